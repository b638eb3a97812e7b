// What a layer's records consist of, and the order in which an exported slot holds them
// (docs/formats.md). The one description that sizes, copies, exports and imports of every backend
// follow.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/layout.hpp"
#include "core/tables.hpp"

namespace replayssm {

// One part of the records of a layer: `pieces` (heads or groups) of `bytes` each. Of a slot, the
// piece of ring index i lies at (piece * ring + i) * bytes.
struct RecordPart {
  TensorRole role = TensorRole::kRingValue;
  std::int64_t pieces = 0;
  std::int64_t bytes = 0;
};

struct RecordParts {
  std::array<RecordPart, 6> part;
  std::size_t count = 0;

  [[nodiscard]] const RecordPart* begin() const { return part.data(); }
  [[nodiscard]] const RecordPart* end() const { return part.data() + count; }
};

// In export order: value, key, gate, and for gdn and kda beta, inverse norm, u.
[[nodiscard]] RecordParts record_parts(const LayerShape& shape, DType activations, DType update);

// Where the tensors of a role lie; `Layer` is a LayerTable, const or not.
template <typename Layer>
[[nodiscard]] auto& memory_of(Layer& layer, TensorRole role) {
  switch (role) {
    case TensorRole::kRingValue: return layer.value;
    case TensorRole::kRingKey: return layer.key;
    case TensorRole::kRingGate: return layer.gate;
    case TensorRole::kRingBeta: return layer.beta;
    case TensorRole::kRingInvNorm: return layer.inv_norm;
    case TensorRole::kRingUpdate: return layer.update;
    case TensorRole::kConv: return layer.conv;
    case TensorRole::kState:
    case TensorRole::kControl: break;
  }
  return layer.state;
}

// Which of a slot's tensors an export holds.
struct ExportedSlot {
  std::int64_t slot = 0;
  bool zero = false;  // the checkpoint counts as 0 and is left out
  std::int64_t block = 0;
  std::int32_t snapshot = 0;
  std::int32_t records = 0;
  std::int32_t conv_valid = 0;
};

// What leaves `slot`, and what an export with these cursors brings into it; cursors on the host.
[[nodiscard]] inline ExportedSlot leaving_slot(const SlotTable& slots, std::int64_t slot) {
  return {slot,
          slots.zero[slot] != 0,
          slots.block[slot],
          slots.snapshot[slot],
          slots.committed[slot],
          slots.conv_valid[slot]};
}
[[nodiscard]] inline ExportedSlot entering_slot(const SlotTable& slots, std::int64_t slot,
                                                const SlotInfo& info, std::int32_t conv_valid) {
  return {slot, info.zero, slots.block[slot], 0, info.committed, conv_valid};
}

// Pieces of one width that lie equally far apart in the slot's memory and in the payload.
struct ExportPieces {
  std::byte* memory = nullptr;
  std::int64_t memory_pitch = 0;
  std::int64_t payload = 0;  // offset of the first
  std::int64_t payload_pitch = 0;
  std::int64_t bytes = 0;
  std::int64_t count = 0;
};

// Calls move(ExportPieces) -> Status for everything that the payload holds: per layer the
// checkpoint, then the records oldest first part by part, then the conv inputs oldest first. Conv
// inputs beyond what this cache keeps (an export of one with a longer history) are passed over.
// `order` and `conv_order` are the slot's, in the host's memory.
template <typename Move>
[[nodiscard]] Status each_export_piece(const CacheTable& table, const std::uint16_t* order,
                                       const std::uint16_t* conv_order, const ExportedSlot& of,
                                       Move move) {
  std::int64_t payload = 0;
  const auto address = [](const TensorMemory& memory, std::int64_t unit, std::int64_t bytes) {
    return static_cast<std::byte*>(memory.base) + unit * memory.stride_bytes + bytes;
  };
  const auto move_one = [&](std::byte* memory, std::int64_t bytes) {
    return move(ExportPieces{memory, bytes, payload, bytes, bytes, 1});
  };
  for (std::int32_t number = 0; number < table.layer_count; ++number) {
    const LayerTable& layer = table.layers[number];
    if (!of.zero) {
      const std::int64_t bytes = state_elements(layer.shape) * 4;
      REPLAYSSM_RETURN_IF_ERROR(
          move_one(address(layer.state, of.block, of.snapshot * bytes), bytes));
      payload += bytes;
    }
    for (const RecordPart& part : record_parts(layer.shape, table.activations, table.update)) {
      for (std::int32_t j = 0; j < of.records; ++j) {
        REPLAYSSM_RETURN_IF_ERROR(
            move(ExportPieces{address(memory_of(layer, part.role), of.slot, order[j] * part.bytes),
                              table.ring * part.bytes, payload + j * part.bytes,
                              of.records * part.bytes, part.bytes, part.pieces}));
      }
      payload += part.pieces * of.records * part.bytes;
    }
    const std::int64_t bytes =
        layer.shape.conv_channels * static_cast<std::int64_t>(dtype_bytes(table.activations));
    for (std::int32_t j = 0; j < of.conv_valid && bytes > 0; ++j) {
      const std::int32_t place = table.conv_history - of.conv_valid + j;
      if (place >= 0) {
        REPLAYSSM_RETURN_IF_ERROR(
            move_one(address(layer.conv, of.slot, conv_order[place] * bytes), bytes));
      }
      payload += bytes;
    }
  }
  return {};
}

}  // namespace replayssm
