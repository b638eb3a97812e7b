// The driver of the property tests: one random cache (sometimes two that exchange slots), a random
// schedule of everything a caller may do, and after each operation the comparison with the float64
// reference. A fault planted in the reference or in an output must be noticed.
#pragma once

#include <cstdint>
#include <string>

#include "tests/law/support/case.hpp"

namespace replayssm::laws {

// Mistakes a world can be asked to make once, on the reference's side of the comparison: what a
// cache with that bug would have done instead.
enum class Fault {
  kNone,
  kOutputNudged,      // one output off by four times its tolerance
  kConvNudged,        // the same for a conv output
  kStateNudged,       // the same for a stored state
  kTokenLost,         // an accepted token is forgotten
  kTokensSwapped,     // two accepted tokens in the wrong order
  kRejectedKept,      // a rejected token is kept
  kTreeAsChain,       // parents are ignored
  kConvOfRejected,    // the conv window keeps a rejected token
  kStaleFork,         // a fork misses the newest token
  kOtherSlot,         // two rows exchange their sequences
  kAbortLeavesTrace,  // an aborted forward counts as accepted
};

struct WorldCounts {
  std::int64_t forwards = 0, tokens = 0, outputs = 0, folds = 0, shared_folds = 0, trees = 0,
               branches = 0, rejected = 0, zero_accepts = 0, empty_rows = 0, padding = 0,
               prefills = 0, forks = 0, materialized = 0, rewinds = 0, loads = 0, stores = 0,
               imports = 0, moves = 0, refolds = 0, aborts = 0, aborts_after_fold = 0, torn = 0,
               recycled = 0, mid_releases = 0, refused = 0, lent = 0;
  double worst_ratio = 0.0;  // largest error over its tolerance
  [[nodiscard]] std::string text() const;
};

struct WorldOptions {
  ImplementationInfo implementation;
  Fault fault = Fault::kNone;
  CaseLimits limits;
  int operations = 20;
};

// Empty, or what was wrong. Counts of the run are added; `planted` tells whether the fault
// happened.
[[nodiscard]] std::string run_world(std::uint64_t seed, const WorldOptions& options,
                                    WorldCounts* counts, bool* planted);

}  // namespace replayssm::laws
