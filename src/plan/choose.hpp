// Choosing an implementation: a pure function of the problem and of what the build offers.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "core/backend.hpp"

namespace replayssm {

// What the choice depends on.
struct Problem {
  const CacheConfig* config = nullptr;
};

struct Plan {
  std::size_t implementation = 0;  // index into the list given
  std::string why;                 // one line
};

// The named implementation if the configuration names one, else the one of highest priority that
// takes the problem. kUnsupported recites why each one does not.
[[nodiscard]] Result<Plan> choose(const Problem& problem,
                                  std::span<const Implementation> implementations);

// Empty, or the reason why an implementation does not take the problem.
[[nodiscard]] std::string why_not(const Problem& problem, const ImplementationInfo& info);

}  // namespace replayssm
