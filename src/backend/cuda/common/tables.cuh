// What every kernel is given: the cache's tables, whose arrays lie in device memory, and the few
// words that exist on the device alone.
#pragma once

#include <cstdint>

#include "core/tables.hpp"

namespace replayssm::cuda {

// Written by begin and the moves, read by later launches of the same stream.
struct DeviceWords {
  long long folding_count = 0;           // rows on begin's list
  unsigned long long refused = 0;        // rows and items that a device-side check has refused
  std::int32_t materialize_refused = 0;  // some item of the running materialize is not legal
};

// A kernel argument. `table.layers` points to device memory here.
struct Tables {
  CacheTable table;
  DeviceWords* words = nullptr;
};

inline constexpr int kWarp = 32;

}  // namespace replayssm::cuda
