// Threads: the caller's, or the library's own pool.
#pragma once

#include <cstdint>

namespace replayssm {

// A parallel loop supplied by the caller. run() calls body(argument, index, worker) once for every
// index in [0, count), on any threads, and returns when all calls have returned. worker is below
// `workers` and no two calls that run at the same time share one. Results never depend on how
// indices are spread.
struct ParallelFor {
  using Body = void (*)(void* argument, std::int64_t index, int worker);
  void (*run)(void* context, std::int64_t count, Body body, void* argument) = nullptr;
  void* context = nullptr;
  int workers = 1;
};

}  // namespace replayssm
