// The permutations of the cache law (docs/law.md) on one slot's order table: records never move,
// their order does.
#pragma once

#include <cstdint>

#include "math/host_device.hpp"

namespace replayssm {

// Which entry of a table of `count` comes to place j when its `by` first ones go to the back, `by`
// at most `count`.
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline std::int32_t rotated(std::int32_t j, std::int32_t by,
                                                                std::int32_t count) {
  return j + by < count ? j + by : j + by - count;
}

// After a fold of the `folded` oldest of R records the freed places go to the back, oldest first.
REPLAYSSM_HOST_DEVICE inline void order_after_fold(const std::uint16_t* order, std::int32_t ring,
                                                   std::int32_t folded, std::uint16_t* result) {
  for (std::int32_t j = 0; j < ring; ++j) result[j] = order[rotated(j, folded, ring)];
}

// Moves the accepted ones of the pending places to their front, keeping the order of both parts.
// `nodes` is strictly ascending; chains accept 0, 1, ..., which changes nothing. `spare` holds
// `pending` entries.
REPLAYSSM_HOST_DEVICE inline void order_after_accept(std::uint16_t* pending_order,
                                                     std::int32_t pending,
                                                     const std::int32_t* nodes,
                                                     std::int32_t accepted, std::uint16_t* spare) {
  std::int32_t next_node = 0;
  std::int32_t rest = accepted;
  for (std::int32_t i = 0; i < pending; ++i) {
    const bool taken = next_node < accepted && nodes[next_node] == i;
    spare[taken ? next_node++ : rest++] = pending_order[i];
  }
  for (std::int32_t i = 0; i < pending; ++i) pending_order[i] = spare[i];
}

// Rotates `count` entries left by `by`: the oldest `by` conv inputs leave the history and become
// free places.
REPLAYSSM_HOST_DEVICE inline void rotate_left(std::uint16_t* order, std::int32_t count,
                                              std::int32_t by, std::uint16_t* spare) {
  for (std::int32_t i = 0; i < count; ++i) spare[i] = order[rotated(i, by, count)];
  for (std::int32_t i = 0; i < count; ++i) order[i] = spare[i];
}

// Free blocks that must stay in reserve for a block with so many sharers: all of them may fold in
// one forward, and none in place, since the others still read it in the same launch.
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline std::int64_t block_reserve(std::int32_t references) {
  return references > 1 ? references : 0;
}

}  // namespace replayssm
