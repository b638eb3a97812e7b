// One random life of a cache, run through the law and through the plain recurrence side by side.
#pragma once

#include <cstdint>
#include <string>

#include "oracle/replay.hpp"

namespace replayssm::oracle::testing {

// What one scenario did, so that a test can prove that its cases reach what they are meant to
// reach.
struct ScenarioCounts {
  std::int64_t tokens = 0;
  std::int64_t folds = 0;
  std::int64_t trees = 0;
  std::int64_t branches = 0;  // accepted paths that are not the first tokens of their row
  std::int64_t rejections = 0;
  std::int64_t forks = 0;
  std::int64_t copies = 0;  // folds of a shared block
  std::int64_t prefills = 0;
  std::int64_t materialized = 0;
  std::int64_t imports = 0;
  std::int64_t aborts = 0;
  std::int64_t recycled = 0;
  double worst_output = 0.0;  // error over scale
  double worst_state = 0.0;
};

// Outputs must agree to 1e-12 and states to 1e-13 of a scale computed from the data: the largest
// norm that the row of the state has had, decayed as the state itself. Returns what went wrong, or
// an empty string.
std::string run_scenario(std::uint64_t seed, Fault fault, ScenarioCounts* counts);

}  // namespace replayssm::oracle::testing
