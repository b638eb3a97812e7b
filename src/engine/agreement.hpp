// When do two greedy texts of one model count as the same?
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace replayssm::engine {

// Index of the first token that differs, or that only one of the two has; -1: none.
[[nodiscard]] inline std::int64_t first_difference(const std::vector<std::int32_t>& reference,
                                                   const std::vector<std::int32_t>& other) {
  const std::size_t common = std::min(reference.size(), other.size());
  std::size_t same = 0;
  while (same < common && reference[same] == other[same]) ++same;
  return same == reference.size() && same == other.size() ? -1 : static_cast<std::int64_t>(same);
}

// No difference, or none before the reference's first near-tie (-1: it has none), from where on
// both are right.
[[nodiscard]] inline bool agrees(std::int64_t difference, std::int64_t first_near_tie) {
  return difference < 0 || (first_near_tie >= 0 && difference >= first_near_tie);
}

}  // namespace replayssm::engine
