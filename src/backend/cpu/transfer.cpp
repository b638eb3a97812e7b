// A slot as bytes, in the order of core/export_order.hpp.
#include <algorithm>
#include <cstring>

#include "backend/cpu/access.hpp"
#include "backend/cpu/rooms.hpp"
#include "core/export_order.hpp"

namespace replayssm::cpu {
namespace {

// Calls copy(memory, payload offset, bytes) for every piece.
template <typename Copy>
void each_piece(const CacheTable& table, const ExportedSlot& of, Copy copy) {
  const auto all = [&](const ExportPieces& pieces) {
    for (std::int64_t i = 0; i < pieces.count; ++i) {
      copy(pieces.memory + i * pieces.memory_pitch, pieces.payload + i * pieces.payload_pitch,
           static_cast<std::size_t>(pieces.bytes));
    }
    return Status();
  };
  // Copies in memory do not fail.
  (void)each_export_piece(table, slot_order(table, of.slot), conv_order(table, of.slot), of, all);
}

}  // namespace

void export_slot_bytes(const CacheTable& table, std::int64_t slot, std::span<std::byte> bytes) {
  const ExportedSlot of = leaving_slot(table.slots, slot);
  each_piece(table, of, [&](const std::byte* piece, std::int64_t at, std::size_t count) {
    std::memcpy(bytes.data() + at, piece, count);
  });
}

void import_slot_bytes(CacheTable& table, std::int64_t slot, const SlotInfo& info,
                       std::int32_t conv_valid, std::span<const std::byte> bytes) {
  SlotTable& slots = table.slots;
  const ExportedSlot of = entering_slot(slots, slot, info, conv_valid);
  each_piece(table, of, [&](std::byte* piece, std::int64_t at, std::size_t count) {
    std::memcpy(piece, bytes.data() + at, count);
  });
  slots.position[slot] = info.position;
  slots.committed[slot] = info.committed;
  slots.conv_valid[slot] = std::min(conv_valid, table.conv_history);
  slots.zero[slot] = info.zero ? 1 : 0;
  slots.seed[slot] = info.seed;
  slots.error[slot] = info.error;
}

}  // namespace replayssm::cpu
