// What a room of the CPU backend is given: the tables, the threads, the working memory.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/cpu/level.hpp"
#include "backend/cpu/scratch.hpp"
#include "core/tables.hpp"
#include "replayssm/parallel.hpp"

namespace replayssm::cpu {

struct Context {
  const Level* level = nullptr;
  ParallelFor threads;
  float* scratch = nullptr;         // [workers, scratch_floats]
  std::int64_t scratch_floats = 0;  // see scratch_floats()
  std::int64_t cache_bytes = 0;     // taken for the last-level cache's size

  [[nodiscard]] Arena arena(int worker) const {
    return {scratch + worker * scratch_floats, scratch_floats};
  }
};

// Calls body(index, worker) for every index in [0, count), on the context's threads.
template <typename Body>
void parallel(const Context& context, std::int64_t count, Body body) {
  if (count <= 0) return;
  context.threads.run(
      context.threads.context, count,
      [](void* argument, std::int64_t index, int worker) {
        (*static_cast<Body*>(argument))(index, worker);
      },
      &body);
}

// Floats of scratch a worker needs for any operation on a cache with this ring and T_max.
[[nodiscard]] std::int64_t scratch_floats(std::int32_t ring, std::int32_t max_step_tokens);

// Heads that a worker takes together, of `heads` in all: it knows what it will read next, and a
// group's heads share dot products of keys. Fewer where the workers would not get two turns each.
[[nodiscard]] inline std::int32_t heads_per_item(const Context& context, std::int64_t heads) {
  constexpr std::int64_t kMost = 8;  // more were no faster (docs/cpu.md)
  return static_cast<std::int32_t>(
      std::clamp<std::int64_t>(heads / (2 * context.threads.workers), 1, kMost));
}

// Tokens that prefill takes at once, so that their f32 copies stay in the nearer caches.
inline constexpr std::int32_t kPrefillTokens = 32;

}  // namespace replayssm::cpu
