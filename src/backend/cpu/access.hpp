// Addresses: where a head's state, a record's parts and a token's inputs lie.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/layout.hpp"
#include "core/tables.hpp"
#include "math/law_rows.hpp"

namespace replayssm::cpu {

[[nodiscard]] inline std::byte* element(const TensorMemory& memory, std::int64_t unit,
                                        std::int64_t offset_bytes) {
  return static_cast<std::byte*>(memory.base) + unit * memory.stride_bytes + offset_bytes;
}

// [V, K] of one head in one of the block's states.
[[nodiscard]] inline float* head_state(const LayerTable& layer, std::int64_t block,
                                       std::int64_t state, std::int64_t head) {
  const LayerShape& shape = layer.shape;
  const std::int64_t elements =
      state * state_elements(shape) + head * shape.value_dim * shape.key_dim;
  return reinterpret_cast<float*>(element(layer.state, block, elements * 4));
}

// Parts of the record at physical ring index `index` (see TensorRole for the inner layouts).
class RecordAccess {
 public:
  RecordAccess(const CacheTable& table, const LayerTable& layer, std::int64_t slot)
      : layer_(layer),
        slot_(slot),
        ring_(table.ring),
        activation_bytes_(static_cast<std::int64_t>(dtype_bytes(table.activations))),
        update_bytes_(static_cast<std::int64_t>(dtype_bytes(table.update))),
        gate_dtype_(gate_record_dtype(layer.shape, table.activations)) {}

  [[nodiscard]] void* value(std::int64_t head, std::int64_t index) const {
    return element(layer_.value, slot_,
                   (head * ring_ + index) * layer_.shape.value_dim * activation_bytes_);
  }
  [[nodiscard]] void* key(std::int64_t group, std::int64_t index) const {
    return element(layer_.key, slot_,
                   (group * ring_ + index) * layer_.shape.key_dim * activation_bytes_);
  }
  // kda: K elements of gate_dtype(); else one f32.
  [[nodiscard]] void* gate(std::int64_t head, std::int64_t index) const {
    const std::int64_t width = layer_.shape.rule == Rule::kKda ? layer_.shape.key_dim : 1;
    const auto bytes = static_cast<std::int64_t>(dtype_bytes(gate_dtype_));
    return element(layer_.gate, slot_, (head * ring_ + index) * width * bytes);
  }
  [[nodiscard]] float* beta(std::int64_t head, std::int64_t index) const {
    return reinterpret_cast<float*>(element(layer_.beta, slot_, (head * ring_ + index) * 4));
  }
  [[nodiscard]] float* inv_norm(std::int64_t group, std::int64_t index) const {
    return reinterpret_cast<float*>(element(layer_.inv_norm, slot_, (group * ring_ + index) * 4));
  }
  [[nodiscard]] void* update(std::int64_t head, std::int64_t index) const {
    return element(layer_.update, slot_,
                   (head * ring_ + index) * layer_.shape.value_dim * update_bytes_);
  }
  [[nodiscard]] DType gate_dtype() const { return gate_dtype_; }

 private:
  const LayerTable& layer_;
  std::int64_t slot_;
  std::int64_t ring_;
  std::int64_t activation_bytes_;
  std::int64_t update_bytes_;
  DType gate_dtype_;
};

// The element [i0, i1] of a view, the start of its last axis where the view has rank 3.
[[nodiscard]] inline void* at(const TensorView& view, std::int64_t i0, std::int64_t i1) {
  const std::int64_t offset = i0 * view.stride[0] + i1 * view.stride[1];
  return static_cast<std::byte*>(view.data) +
         offset * static_cast<std::int64_t>(dtype_bytes(view.dtype));
}

[[nodiscard]] inline std::uint16_t* slot_order(const CacheTable& table, std::int64_t slot) {
  return table.slots.order + slot * table.ring;
}
[[nodiscard]] inline std::uint16_t* row_order(const CacheTable& table, std::int64_t row) {
  return table.forward.order + row * table.ring;
}
[[nodiscard]] inline std::uint16_t* conv_order(const CacheTable& table, std::int64_t slot) {
  return table.slots.conv_order + slot * table.conv_ring;
}

// What comes before record j on the path of a pending token, where the n committed records are
// 0..n-1 and the row's tokens follow; -1 at the checkpoint.
[[nodiscard]] inline std::int32_t before(const std::int32_t* parents, std::int32_t n,
                                         std::int32_t j) {
  if (j < n) return j - 1;
  const std::int32_t parent = parent_of(parents, j - n);
  return parent >= 0 ? n + parent : n - 1;
}

}  // namespace replayssm::cpu
