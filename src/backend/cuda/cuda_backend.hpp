// The CUDA backend: one set of bookkeeping on the device, kernels by level.
#pragma once

#include <span>

#include "core/backend.hpp"

namespace replayssm::cuda {

// Every implementation this backend offers, best first. Without a device that the build has code
// for they are listed as not available, with the reason.
[[nodiscard]] std::span<const Implementation> cuda_implementations();

}  // namespace replayssm::cuda
