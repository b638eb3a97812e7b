// All implementations of the build, whatever their backend.
#pragma once

#include <span>

#include "core/backend.hpp"

namespace replayssm {

// Best first.
[[nodiscard]] std::span<const Implementation> registry();

}  // namespace replayssm
