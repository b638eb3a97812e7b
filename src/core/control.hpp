// Laying the control arrays out in one piece of memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/tables.hpp"

namespace replayssm {

// Points every array of `table.slots` and `table.forward` into `base` (null: only measures) and
// returns the bytes used. The counts in `table` must be set. base is aligned to kTensorAlignment.
std::int64_t place_control(CacheTable& table, std::byte* base);

}  // namespace replayssm
