// Moving committed records and conv inputs between slots and bytes, oldest first whatever their
// places.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/tables.hpp"

namespace replayssm::cpu {

// One part of a record in one layer: `parts` pieces of `bytes`, the piece of ring index i at
// base + (piece * ring + i) * bytes.
struct RecordPart {
  const TensorMemory* memory = nullptr;
  std::int64_t pieces = 0;
  std::int64_t bytes = 0;

  [[nodiscard]] std::byte* at(std::int64_t slot, std::int64_t piece, std::int64_t ring,
                              std::int64_t index) const {
    return static_cast<std::byte*>(memory->base) + slot * memory->stride_bytes +
           (piece * ring + index) * bytes;
  }
};

struct RecordParts {
  std::array<RecordPart, 6> part;
  std::size_t count = 0;
};

// The parts of a layer's records in export order: value, key, gate, and for gdn and kda beta,
// inverse norm, u.
[[nodiscard]] RecordParts record_parts(const CacheTable& table, const LayerTable& layer);

// Copies the first `records` committed records of `source` into the first places of `target`.
void copy_records(const CacheTable& table, std::int64_t source, std::int64_t target,
                  std::int32_t records);
// Copies the conv inputs that stand at conv history places [0, conv_history) shifted so that `drop`
// newest are left out; returns how many exist behind that point.
[[nodiscard]] std::int32_t copy_conv(const CacheTable& table, std::int64_t source,
                                     std::int64_t target, std::int32_t drop);

}  // namespace replayssm::cpu
