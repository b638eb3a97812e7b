// Cost model: bytes that decoding moves.
#pragma once

#include "replayssm/cache.hpp"

namespace replayssm {

// See state_bytes_per_token() in replayssm/cache.hpp; the configuration has been checked.
[[nodiscard]] double traffic_per_token(const CacheConfig& config, double step_tokens,
                                       double accepted_tokens);

}  // namespace replayssm
