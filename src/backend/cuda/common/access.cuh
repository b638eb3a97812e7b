// Addresses on the device: where a head's state, a record's parts and a token's inputs lie.
#pragma once

#include <cstdint>

#include "backend/cuda/common/tables.cuh"
#include "core/layout.hpp"
#include "math/convert.hpp"
#include "math/law_rows.hpp"
#include "math/law_slots.hpp"

namespace replayssm::cuda {

__device__ inline char* element(const TensorMemory& memory, std::int64_t unit,
                                std::int64_t offset_bytes) {
  return static_cast<char*>(memory.base) + unit * memory.stride_bytes + offset_bytes;
}

// [V, K] of one head in one of the block's states.
__device__ inline float* head_state(const LayerTable& layer, std::int64_t block, std::int64_t state,
                                    std::int64_t head) {
  const LayerShape& shape = layer.shape;
  const std::int64_t elements =
      state * state_elements(shape) + head * shape.value_dim * shape.key_dim;
  return reinterpret_cast<float*>(element(layer.state, block, elements * 4));
}

// Element `index` of an array of `dtype`.
__device__ inline float load_float(const void* base, DType dtype, std::int64_t index) {
  switch (dtype) {
    case DType::kBF16: return to_float(static_cast<const BFloat16*>(base)[index]);
    case DType::kF16: return to_float(static_cast<const Float16*>(base)[index]);
    default: break;
  }
  return static_cast<const float*>(base)[index];
}

// Rounds to nearest even where `dtype` is narrower than f32.
__device__ inline void store_float(void* base, DType dtype, std::int64_t index, float value) {
  switch (dtype) {
    case DType::kBF16: static_cast<BFloat16*>(base)[index] = from_float<BFloat16>(value); return;
    case DType::kF16: static_cast<Float16*>(base)[index] = from_float<Float16>(value); return;
    default: break;
  }
  static_cast<float*>(base)[index] = value;
}

// What storing in `dtype` and loading again makes of a value.
__device__ inline float round_through(float value, DType dtype) {
  if (dtype == DType::kBF16) return to_float(from_float<BFloat16>(value));
  if (dtype == DType::kF16) return to_float(from_float<Float16>(value));
  return value;
}

// Where [i0, i1] of a view begins.
__device__ inline char* at(const TensorView& view, std::int64_t i0, std::int64_t i1) {
  const std::int64_t offset = i0 * view.stride[0] + i1 * view.stride[1];
  return static_cast<char*>(view.data) +
         offset * static_cast<std::int64_t>(dtype_bytes(view.dtype));
}

// Parts of the records of one slot and layer (see TensorRole for the inner layouts).
struct Records {
  const CacheTable& table;
  const LayerTable& layer;
  std::int64_t slot;

  __device__ char* value(std::int64_t head, std::int64_t index) const {
    return element(layer.value, slot,
                   (head * table.ring + index) * layer.shape.value_dim *
                       static_cast<std::int64_t>(dtype_bytes(table.activations)));
  }
  __device__ char* key(std::int64_t group, std::int64_t index) const {
    return element(layer.key, slot,
                   (group * table.ring + index) * layer.shape.key_dim *
                       static_cast<std::int64_t>(dtype_bytes(table.activations)));
  }
  __device__ DType gate_dtype() const { return gate_record_dtype(layer.shape, table.activations); }
  // kda: K elements of gate_dtype(); else one f32.
  __device__ char* gate(std::int64_t head, std::int64_t index) const {
    const std::int64_t width = layer.shape.rule == Rule::kKda ? layer.shape.key_dim : 1;
    return element(
        layer.gate, slot,
        (head * table.ring + index) * width * static_cast<std::int64_t>(dtype_bytes(gate_dtype())));
  }
  __device__ float* beta(std::int64_t head, std::int64_t index) const {
    return reinterpret_cast<float*>(element(layer.beta, slot, (head * table.ring + index) * 4));
  }
  __device__ float* inv_norm(std::int64_t group, std::int64_t index) const {
    return reinterpret_cast<float*>(
        element(layer.inv_norm, slot, (group * table.ring + index) * 4));
  }
  __device__ char* update(std::int64_t head, std::int64_t index) const {
    return element(layer.update, slot,
                   (head * table.ring + index) * layer.shape.value_dim *
                       static_cast<std::int64_t>(dtype_bytes(table.update)));
  }
};

__device__ inline std::uint16_t* slot_order(const CacheTable& table, std::int64_t slot) {
  return table.slots.order + slot * table.ring;
}
__device__ inline std::uint16_t* row_order(const CacheTable& table, std::int64_t row) {
  return table.forward.order + row * table.ring;
}
__device__ inline std::uint16_t* conv_order(const CacheTable& table, std::int64_t slot) {
  return table.slots.conv_order + slot * table.conv_ring;
}
// Safe from several threads.
__device__ inline void mark_slot(const CacheTable& table, std::int64_t slot, std::uint32_t bits) {
  atomicOr(&table.slots.error[slot], bits);
}

// After begin: the row's tokens do not lie inside the tensors of a call, which the host cannot
// know, since T and the offsets of the rows are on the device. The row commits nothing. Safe from
// several threads; counted once a row.
__device__ inline void refuse_row(const Tables& tables, std::int64_t row) {
  RowDescriptor& desc = tables.table.forward.rows[row];
  if (desc.kind == RowKind::kPadding) return;
  mark_slot(tables.table, desc.slot, kSlotOutOfRange);
  if (atomicExch(&desc.refused, 1U) == 0U) atomicAdd(&tables.words->refused, 1ULL);
}

}  // namespace replayssm::cuda
