// A slot table small enough to go through every row there can be: slots of each kind.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/tables.hpp"

namespace replayssm {

inline constexpr std::int64_t kPadding = -1;
inline constexpr std::int64_t kHeld = 0;      // one record less than a window
inline constexpr std::int64_t kFull = 1;      // a full window
inline constexpr std::int64_t kFree = 2;      // never handed out
inline constexpr std::int64_t kTornSlot = 3;  // only release is legal
inline constexpr std::int64_t kLeaving = 4;   // released while its forward is open
inline constexpr int kSlots = 5;

inline constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
inline constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();

class RowWorld {
 public:
  static constexpr int kWindow = 4;
  static constexpr int kSteps = 3;
  static constexpr int kRows = 3;

  explicit RowWorld(DecodeMode decode, std::int64_t max_tokens) {
    table.decode = decode;
    table.window = decode == DecodeMode::kReplay ? kWindow : 0;
    table.max_step_tokens = kSteps;
    table.ring = decode == DecodeMode::kReplay ? kWindow - 1 + kSteps : 0;
    table.conv_history = 3;
    table.conv_ring = 3 + kSteps;
    table.max_rows = kRows;
    table.max_tokens = max_tokens;
    SlotTable& slots = table.slots;
    slots.slots = kSlots;
    slots.blocks = kSlots;
    slots.block = block.data();
    slots.position = position.data();
    slots.seed = seed.data();
    slots.committed = committed.data();
    slots.conv_valid = conv_valid.data();
    slots.snapshot = snapshot.data();
    slots.error = error.data();
    slots.live = live.data();
    slots.zero = zero.data();
    slots.leaving = leaving.data();
    slots.row = row.data();
    slots.references = references.data();
    table.forward.rows = rows.data();
    table.forward.parents = parents.data();
    row.fill(-1);
  }
  RowWorld(const RowWorld&) = delete;
  RowWorld& operator=(const RowWorld&) = delete;

  CacheTable table;
  std::array<std::int64_t, kSlots> block = {10, 11, -1, 13, 14};
  std::array<std::int64_t, kSlots> position = {7, 9, 0, 3, 5};
  std::array<std::uint64_t, kSlots> seed = {5, 6, 0, 8, 9};
  std::array<std::int32_t, kSlots> committed = {kWindow - 1, kWindow + 1, 0, 2, 0};
  std::array<std::int32_t, kSlots> conv_valid = {1, 3, 0, 2, 0};
  std::array<std::int32_t, kSlots> snapshot = {0, 2, 0, 1, 0};
  std::array<std::uint32_t, kSlots> error = {kSlotOutOfRange, 0, 0, kSlotTorn, 0};
  std::array<std::uint8_t, kSlots> live = {1, 1, 0, 1, 1};
  std::array<std::uint8_t, kSlots> zero = {1, 0, 1, 0, 0};
  std::array<std::uint8_t, kSlots> leaving = {0, 0, 0, 0, 1};
  std::array<std::int64_t, kSlots> row{};
  std::array<std::int32_t, kSlots + 10> references{};
  std::array<RowDescriptor, kRows> rows{};
  std::array<std::int32_t, static_cast<std::size_t>(kRows) * kSteps> parents{};
};

}  // namespace replayssm
