// Sizes: which tensors a cache consists of, and what a decoded token moves.
#pragma once

#include <cstdint>
#include <vector>

#include "replayssm/cache.hpp"

namespace replayssm {

// Tensors of one layer and role are found by position; kControl comes last. `config` has its
// defaults filled in and has passed check_config.
[[nodiscard]] std::vector<TensorSpec> tensor_specs(const CacheConfig& config);

// Bytes of the control arrays (SlotTable, ForwardTable) of a cache.
[[nodiscard]] std::int64_t control_bytes(const CacheConfig& config);

// Alignment of every stored tensor and of its stride: a cache line, and the widest vector load.
inline constexpr std::int64_t kTensorAlignment = 64;

// Token positions beyond this are refused, so that counting on from a loaded one cannot overflow.
inline constexpr std::int64_t kMaxPosition = std::int64_t{1} << 60;

[[nodiscard]] constexpr std::int64_t align_up(std::int64_t bytes, std::int64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

// Elements of one head state times heads.
[[nodiscard]] constexpr std::int64_t state_elements(const LayerShape& shape) {
  return std::int64_t{shape.heads} * shape.value_dim * shape.key_dim;
}

// States a block holds: 1, or one a draft in conventional decoding.
[[nodiscard]] constexpr std::int64_t states_per_block(DecodeMode decode,
                                                      std::int32_t max_step_tokens) {
  return decode == DecodeMode::kConventional ? max_step_tokens : 1;
}

// The dtype of kda's gate record.
[[nodiscard]] constexpr DType gate_record_dtype(const LayerShape& shape, DType activations) {
  const bool f32 =
      shape.rule != Rule::kKda || shape.gate_record_f32 || shape.gate == GateKind::kLogDecay;
  return f32 ? DType::kF32 : activations;
}

// Bytes of one record in one layer (conv input excluded).
[[nodiscard]] std::int64_t record_bytes(const LayerShape& shape, DType activations, DType update);

}  // namespace replayssm
