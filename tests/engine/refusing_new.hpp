// Allocations that fail on purpose (refusing_new.cpp replaces operator new of the whole program).
#pragma once

#include <cstddef>

namespace replayssm::testing_models {

// While it lives the next `grant` allocations of exactly `size` bytes succeed and later ones fail.
struct Refusal {
  Refusal(std::size_t size, int grant);
  ~Refusal();
  Refusal(const Refusal&) = delete;
  Refusal& operator=(const Refusal&) = delete;
};

}  // namespace replayssm::testing_models
