// Counters of counted_new.cpp, and a call of operator new that fails on demand.
#pragma once

#include <atomic>
#include <cstdint>

namespace replayssm::laws {

extern std::atomic<std::int64_t> allocations;    // calls of operator new so far
extern std::atomic<std::int64_t> aligned_bytes;  // bytes asked for with an alignment of their own
extern std::atomic<std::int64_t> unreturned;     // allocations that have not been given back
extern std::atomic<std::int64_t>
    failing;  // the call, counted as `allocations`, that gets no memory

}  // namespace replayssm::laws
