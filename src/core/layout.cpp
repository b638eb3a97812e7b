// Sizes of a cache's tensors.
#include "core/layout.hpp"

#include "core/checks.hpp"
#include "core/export_order.hpp"
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
    const auto add = [&](TensorRole role, std::int64_t count, std::int64_t bytes) {
      if (bytes > 0)
        specs.push_back({role, static_cast<std::int32_t>(i), count, bytes, kTensorAlignment});
    };
    add(TensorRole::kState, config.blocks, states * state_elements(shape) * 4);
    for (const RecordPart& part : record_parts(shape, config.activations, config.update))
      add(part.role, config.slots, part.pieces * ring * part.bytes);
    if (shape.conv_channels > 0)
      add(TensorRole::kConv, config.slots, conv_ring * shape.conv_channels * act);
  }
  specs.push_back({TensorRole::kControl, -1, 1, control_bytes(config), kTensorAlignment});
  return specs;
}

RecordParts record_parts(const LayerShape& shape, DType activations, DType update) {
  const std::int64_t gate_width = shape.rule == Rule::kKda ? shape.key_dim : 1;
  RecordParts parts;
  const auto add = [&](TensorRole role, std::int64_t pieces, std::int64_t bytes) {
    parts.part[parts.count++] = {role, pieces, bytes};
  };
  add(TensorRole::kRingValue, shape.heads, shape.value_dim * bytes_of(activations));
  add(TensorRole::kRingKey, shape.groups, shape.key_dim * bytes_of(activations));
  add(TensorRole::kRingGate, shape.heads,
      gate_width * bytes_of(gate_record_dtype(shape, activations)));
  if (shape.rule != Rule::kMamba2) {
    add(TensorRole::kRingBeta, shape.heads, 4);
    add(TensorRole::kRingInvNorm, shape.groups, 4);
    add(TensorRole::kRingUpdate, shape.heads, shape.value_dim * bytes_of(update));
  }
  return parts;
}

std::int64_t record_bytes(const LayerShape& shape, DType activations, DType update) {
  std::int64_t bytes = 0;
  for (const RecordPart& part : record_parts(shape, activations, update))
    bytes += part.pieces * part.bytes;
  return bytes;
}

}  // namespace replayssm
