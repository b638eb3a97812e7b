// The CPU backend: one set of bookkeeping, kernels by level.
#pragma once

#include <memory>

#include "core/backend.hpp"

namespace replayssm::cpu {

// Every implementation this backend offers, best first.
[[nodiscard]] std::span<const Implementation> cpu_implementations();

}  // namespace replayssm::cpu
