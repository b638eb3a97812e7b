// The logical state of a head: checkpoint and records, stepped in order in f32. Fold, materialize,
// store_state and an import under a smaller window all go through here, so they cannot disagree.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/cpu/access.hpp"
#include "backend/cpu/head_tokens.hpp"
#include "backend/cpu/scratch.hpp"

namespace replayssm::cpu {

struct HeadSource {
  std::int64_t slot = 0;
  std::int64_t block = 0;
  std::int32_t snapshot = 0;
  bool zero = false;                     // the checkpoint counts as 0 and is not read
  const std::uint16_t* order = nullptr;  // records, oldest first
  std::int32_t records = 0;
};

// Calls sink(v, row) with the K floats of each row v in turn; the buffer is the arena's.
template <typename Sink>
void replay_head(const CacheTable& table, const LayerTable& layer, const HeadSource& source,
                 std::int32_t head, Arena& arena, Sink sink) {
  const LayerShape& shape = layer.shape;
  HeadTokens tokens = take_head_tokens(arena, shape, source.records, false);
  load_records(table, layer, source.slot, source.order, source.records, head, 0, tokens);
  float* row = arena.take(shape.key_dim);
  const float* state =
      source.zero ? nullptr : head_state(layer, source.block, source.snapshot, head);
  for (std::int32_t v = 0; v < shape.value_dim; ++v) {
    if (state == nullptr) {
      std::fill_n(row, shape.key_dim, 0.0F);
    } else {
      std::copy_n(state + std::int64_t{v} * shape.key_dim, shape.key_dim, row);
    }
    for (std::int32_t j = 0; j < source.records; ++j) advance_row(shape, tokens, j, v, row);
    sink(v, row);
  }
}

}  // namespace replayssm::cpu
