// A slot as bytes, in the order docs/formats.md gives: per layer the checkpoint, then the records
// oldest first part by part, then the conv inputs oldest first.
#include <algorithm>
#include <cstring>

#include "backend/cpu/access.hpp"
#include "backend/cpu/records_copy.hpp"
#include "backend/cpu/rooms.hpp"

namespace replayssm::cpu {
namespace {

// Calls move(memory, bytes) for every piece in turn, and skip(bytes) for conv inputs beyond what
// this cache keeps (an export of a cache with a longer history).
template <typename Move, typename Skip>
void each_piece(const CacheTable& table, std::int64_t slot, bool zero, std::int64_t block,
                std::int32_t snapshot, std::int32_t records, std::int32_t conv_valid, Move move,
                Skip skip) {
  for (std::int32_t number = 0; number < table.layer_count; ++number) {
    const LayerTable& layer = table.layers[number];
    if (!zero) {
      move(reinterpret_cast<std::byte*>(head_state(layer, block, snapshot, 0)),
           state_elements(layer.shape) * 4);
    }
    const RecordParts parts = record_parts(table, layer);
    for (std::size_t i = 0; i < parts.count && records > 0; ++i) {
      for (std::int64_t piece = 0; piece < parts.part[i].pieces; ++piece) {
        for (std::int32_t j = 0; j < records; ++j) {
          move(parts.part[i].at(slot, piece, table.ring, slot_order(table, slot)[j]),
               parts.part[i].bytes);
        }
      }
    }
    if (layer.shape.conv_channels == 0) continue;
    const std::int64_t bytes =
        layer.shape.conv_channels * static_cast<std::int64_t>(dtype_bytes(table.activations));
    for (std::int32_t j = 0; j < conv_valid; ++j) {
      const std::int32_t place = table.conv_history - conv_valid + j;
      if (place < 0) {
        skip(bytes);
      } else {
        move(element(layer.conv, slot, conv_order(table, slot)[place] * bytes), bytes);
      }
    }
  }
}

}  // namespace

void export_slot_bytes(const CacheTable& table, std::int64_t slot, std::span<std::byte> bytes) {
  const SlotTable& slots = table.slots;
  std::byte* next = bytes.data();
  each_piece(
      table, slot, slots.zero[slot] != 0, slots.block[slot], slots.snapshot[slot],
      slots.committed[slot], slots.conv_valid[slot],
      [&](const std::byte* piece, std::int64_t count) {
        std::memcpy(next, piece, static_cast<std::size_t>(count));
        next += count;
      },
      [&](std::int64_t count) { next += count; });
}

void import_slot_bytes(CacheTable& table, std::int64_t slot, const SlotInfo& info,
                       std::int32_t conv_valid, std::span<const std::byte> bytes) {
  SlotTable& slots = table.slots;
  const std::byte* next = bytes.data();
  each_piece(
      table, slot, info.zero, slots.block[slot], 0, info.committed, conv_valid,
      [&](std::byte* piece, std::int64_t count) {
        std::memcpy(piece, next, static_cast<std::size_t>(count));
        next += count;
      },
      [&](std::int64_t count) { next += count; });
  slots.position[slot] = info.position;
  slots.committed[slot] = info.committed;
  slots.conv_valid[slot] = std::min(conv_valid, table.conv_history);
  slots.zero[slot] = info.zero ? 1 : 0;
  slots.seed[slot] = info.seed;
  slots.error[slot] = info.error;
}

}  // namespace replayssm::cpu
