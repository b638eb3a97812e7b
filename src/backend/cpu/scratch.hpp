// Working memory of one worker, allocated with the cache so that a forward allocates nothing.
#pragma once

#include <cassert>
#include <cstdint>

namespace replayssm::cpu {

// Hands out float arrays from one piece; everything is given back when the arena is made anew for
// the next item.
class Arena {
 public:
  Arena(float* base, std::int64_t floats) : base_(base), capacity_(floats) {}

  [[nodiscard]] float* take(std::int64_t floats) {
    float* taken = base_ + used_;
    used_ += (floats + 15) / 16 * 16;  // keeps every array on a cache line
    assert(used_ <= capacity_);
    return taken;
  }

 private:
  float* base_;
  std::int64_t capacity_;
  std::int64_t used_ = 0;
};

}  // namespace replayssm::cpu
