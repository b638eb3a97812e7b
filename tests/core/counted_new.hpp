// Counters of counted_new.cpp.
#pragma once

#include <atomic>
#include <cstdint>

namespace replayssm::laws {

extern std::atomic<std::int64_t> allocations;    // calls of operator new so far
extern std::atomic<std::int64_t> aligned_bytes;  // bytes asked for with an alignment of their own

}  // namespace replayssm::laws
