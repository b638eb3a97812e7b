// Moving committed records and conv inputs between slots, oldest first whatever their places.
#pragma once

#include <cstdint>

#include "core/tables.hpp"

namespace replayssm::cpu {

// Copies the first `records` committed records of `source` into the first places of `target`.
void copy_records(const CacheTable& table, std::int64_t source, std::int64_t target,
                  std::int32_t records);
// Copies the conv inputs that stand at conv history places [0, conv_history) shifted so that `drop`
// newest are left out; returns how many exist behind that point.
[[nodiscard]] std::int32_t copy_conv(const CacheTable& table, std::int64_t source,
                                     std::int64_t target, std::int32_t drop);

}  // namespace replayssm::cpu
