// Slots to and from host bytes, in the order docs/formats.md gives: per layer the checkpoint, then
// the records oldest first part by part, then the conv inputs oldest first.
#include "backend/cuda/transfer.hpp"

#include <array>

#include "backend/cuda/common/launch.cuh"
#include "core/control.hpp"
#include "core/layout.hpp"

namespace replayssm::cuda {

Status SlotMirror::read(const CacheTable& table) {
  host_ = table;
  const auto* first = reinterpret_cast<const std::byte*>(table.slots.block);
  const auto* end = reinterpret_cast<const std::byte*>(table.forward.rows);
  bytes_.resize(static_cast<std::size_t>(place_control(host_, nullptr)));
  place_control(host_, bytes_.data());
  REPLAYSSM_RETURN_IF_ERROR(check(cudaDeviceSynchronize(), "waiting for the device"));
  return check(cudaMemcpy(bytes_.data(), first, static_cast<std::size_t>(end - first),
                          cudaMemcpyDeviceToHost),
               "reading the slot table");
}

namespace {

// One part of a layer's records: `pieces` of `bytes`, the piece of ring index i at
// slot + (piece * ring + i) * bytes.
struct RecordPart {
  const TensorMemory* memory;
  std::int64_t pieces;
  std::int64_t bytes;
};

std::vector<RecordPart> record_parts(const CacheTable& table, const LayerTable& layer) {
  const LayerShape& shape = layer.shape;
  const auto act = static_cast<std::int64_t>(dtype_bytes(table.activations));
  const std::int64_t gate_width = shape.rule == Rule::kKda ? shape.key_dim : 1;
  const auto gate_bytes =
      static_cast<std::int64_t>(dtype_bytes(gate_record_dtype(shape, table.activations)));
  std::vector<RecordPart> parts = {{&layer.value, shape.heads, shape.value_dim * act},
                                   {&layer.key, shape.groups, shape.key_dim * act},
                                   {&layer.gate, shape.heads, gate_width * gate_bytes}};
  if (shape.rule == Rule::kMamba2) return parts;
  parts.push_back({&layer.beta, shape.heads, 4});
  parts.push_back({&layer.inv_norm, shape.groups, 4});
  parts.push_back({&layer.update, shape.heads,
                   shape.value_dim * static_cast<std::int64_t>(dtype_bytes(table.update))});
  return parts;
}

// Calls move(device address, its pitch, bytes, pieces, their pitch in the payload) in payload
// order; a null address is passed over.
template <typename Move>
Status each_piece(const CacheTable& table, std::int64_t slot, const SlotTable& cursors, bool zero,
                  std::int32_t snapshot, std::int32_t records, std::int32_t conv_valid, Move move) {
  std::int64_t at = 0;
  const auto address = [](const TensorMemory& memory, std::int64_t unit, std::int64_t bytes) {
    return static_cast<std::byte*>(memory.base) + unit * memory.stride_bytes + bytes;
  };
  for (std::int32_t number = 0; number < table.layer_count; ++number) {
    const LayerTable& layer = table.layers[number];
    const std::int64_t state_bytes = state_elements(layer.shape) * 4;
    if (!zero) {
      REPLAYSSM_RETURN_IF_ERROR(
          move(address(layer.state, cursors.block[slot], snapshot * state_bytes), state_bytes,
               state_bytes, std::int64_t{1}, at, state_bytes));
      at += state_bytes;
    }
    for (const RecordPart& part : record_parts(table, layer)) {
      for (std::int32_t j = 0; j < records; ++j) {
        const std::int64_t index = cursors.order[slot * table.ring + j];
        REPLAYSSM_RETURN_IF_ERROR(move(address(*part.memory, slot, index * part.bytes),
                                       table.ring * part.bytes, part.bytes, part.pieces,
                                       at + j * part.bytes, records * part.bytes));
      }
      at += part.pieces * records * part.bytes;
    }
    if (layer.shape.conv_channels == 0) continue;
    const std::int64_t bytes =
        layer.shape.conv_channels * static_cast<std::int64_t>(dtype_bytes(table.activations));
    for (std::int32_t j = 0; j < conv_valid; ++j) {
      const std::int32_t place = table.conv_history - conv_valid + j;
      if (place >= 0) {
        const std::int64_t index = cursors.conv_order[slot * table.conv_ring + place];
        REPLAYSSM_RETURN_IF_ERROR(move(address(layer.conv, slot, index * bytes), bytes, bytes,
                                       std::int64_t{1}, at, bytes));
      }
      at += bytes;
    }
  }
  return {};
}

}  // namespace

Status export_slot_bytes(const CacheTable& table, std::int64_t slot, std::span<std::byte> bytes) {
  SlotMirror mirror;
  REPLAYSSM_RETURN_IF_ERROR(mirror.read(table));
  const SlotTable& cursors = mirror.slots();
  return each_piece(
      table, slot, cursors, cursors.zero[slot] != 0, cursors.snapshot[slot],
      cursors.committed[slot], cursors.conv_valid[slot],
      [&](const std::byte* device, std::int64_t pitch, std::int64_t width, std::int64_t pieces,
          std::int64_t at, std::int64_t payload_pitch) {
        return check(
            cudaMemcpy2D(bytes.data() + at, static_cast<std::size_t>(payload_pitch), device,
                         static_cast<std::size_t>(pitch), static_cast<std::size_t>(width),
                         static_cast<std::size_t>(pieces), cudaMemcpyDeviceToHost),
            "export");
      });
}

Status import_slot_bytes(const CacheTable& table, std::int64_t slot, const SlotInfo& info,
                         std::int32_t conv_valid, std::span<const std::byte> bytes) {
  SlotMirror mirror;
  REPLAYSSM_RETURN_IF_ERROR(mirror.read(table));
  return each_piece(
      table, slot, mirror.slots(), info.zero, 0, info.committed, conv_valid,
      [&](std::byte* device, std::int64_t pitch, std::int64_t width, std::int64_t pieces,
          std::int64_t at, std::int64_t payload_pitch) {
        return check(
            cudaMemcpy2D(device, static_cast<std::size_t>(pitch), bytes.data() + at,
                         static_cast<std::size_t>(payload_pitch), static_cast<std::size_t>(width),
                         static_cast<std::size_t>(pieces), cudaMemcpyHostToDevice),
            "import");
      });
}

}  // namespace replayssm::cuda
