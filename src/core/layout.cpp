// Sizes of a cache's tensors.
#include "core/layout.hpp"

#include "core/checks.hpp"
#include "core/tables.hpp"

namespace replayssm {
namespace {

std::int64_t bytes_of(DType dtype) { return static_cast<std::int64_t>(dtype_bytes(dtype)); }

}  // namespace

std::vector<TensorSpec> tensor_specs(const CacheConfig& config) {
  const std::int64_t ring = ring_length(config);
  const std::int64_t history = conv_history(config);
  const std::int64_t conv_ring = history > 0 ? history + config.max_step_tokens : 0;
  const std::int64_t states = states_per_block(config.decode, config.max_step_tokens);
  const std::int64_t act = bytes_of(config.activations);
  std::vector<TensorSpec> specs;
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    const LayerShape& shape = config.layers[i];
    const std::int64_t heads = shape.heads;
    const std::int64_t groups = shape.groups;
    const auto add = [&](TensorRole role, std::int64_t count, std::int64_t bytes) {
      if (bytes > 0)
        specs.push_back({role, static_cast<std::int32_t>(i), count, bytes, kTensorAlignment});
    };
    const std::int64_t gate_width = shape.rule == Rule::kKda ? shape.key_dim : 1;
    add(TensorRole::kState, config.blocks, states * state_elements(shape) * 4);
    add(TensorRole::kRingValue, config.slots, heads * ring * shape.value_dim * act);
    add(TensorRole::kRingKey, config.slots, groups * ring * shape.key_dim * act);
    add(TensorRole::kRingGate, config.slots,
        heads * ring * gate_width * bytes_of(gate_record_dtype(shape, config.activations)));
    if (shape.rule != Rule::kMamba2) {
      add(TensorRole::kRingBeta, config.slots, heads * ring * 4);
      add(TensorRole::kRingInvNorm, config.slots, groups * ring * 4);
      add(TensorRole::kRingUpdate, config.slots,
          heads * ring * shape.value_dim * bytes_of(config.update));
    }
    if (shape.conv_channels > 0)
      add(TensorRole::kConv, config.slots, conv_ring * shape.conv_channels * act);
  }
  specs.push_back({TensorRole::kControl, -1, 1, control_bytes(config), kTensorAlignment});
  return specs;
}

std::int64_t record_bytes(const LayerShape& shape, DType activations, DType update) {
  const std::int64_t act = bytes_of(activations);
  const std::int64_t heads = shape.heads;
  const std::int64_t groups = shape.groups;
  std::int64_t bytes = heads * shape.value_dim * act + groups * shape.key_dim * act;
  if (shape.rule == Rule::kMamba2) return bytes + heads * 4;
  const std::int64_t gate_width = shape.rule == Rule::kKda ? shape.key_dim : 1;
  bytes += heads * gate_width * bytes_of(gate_record_dtype(shape, activations));
  bytes += heads * 4 + groups * 4 + heads * shape.value_dim * bytes_of(update);
  return bytes;
}

}  // namespace replayssm
