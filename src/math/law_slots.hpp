// What may be done with a whole slot, and what is said of it, once for every backend.
#pragma once

#include <cstdint>

#include "core/tables.hpp"
#include "math/host_device.hpp"

namespace replayssm {

// Whether the state after `position` tokens can be built from a slot, and its conv inputs behind it
// are kept; `width`: the widest convolution, 1 without one.
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline bool position_is_kept(const CacheTable& table,
                                                                 std::int64_t slot,
                                                                 std::int64_t position) {
  const std::int64_t end = table.slots.position[slot];
  return position >= end - table.slots.committed[slot] && position <= end;
}
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline bool conv_is_kept(const CacheTable& table,
                                                             std::int64_t back,
                                                             std::int32_t width) {
  return back == 0 || table.conv_ring == 0 || table.conv_history >= width - 1 + back;
}
// Nothing has happened to the slot since it was handed out.
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline bool is_fresh(const CacheTable& table,
                                                         std::int64_t slot) {
  const SlotTable& slots = table.slots;
  return slots.live[slot] != 0 && slots.position[slot] == 0 && slots.committed[slot] == 0 &&
         slots.zero[slot] != 0 && slots.references[slots.block[slot]] == 1 &&
         (slots.error[slot] & kSlotTorn) == 0;
}
// What info() says of a slot, in a table that can be read here.
[[nodiscard]] inline SlotInfo slot_info(const SlotTable& slots, std::int64_t slot) {
  SlotInfo info;
  info.position = slots.position[slot];
  info.committed = slots.committed[slot];
  info.block = slots.block[slot];
  info.block_references = info.block >= 0 ? slots.references[info.block] : 0;
  info.zero = slots.zero[slot] != 0;
  info.seed = slots.seed[slot];
  info.error = slots.error[slot];
  return info;
}
// A torn slot stays torn until it is released.
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline std::uint32_t clearable_errors(std::uint32_t bits) {
  return bits & (kSlotNonFinite | kSlotOutOfRange);
}
// Error bits that a state brings along from where it was made.
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline std::uint32_t errors_of_state(std::uint32_t source) {
  return source & kSlotNonFinite;
}

}  // namespace replayssm
