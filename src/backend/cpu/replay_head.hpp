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

// Writes the head's state [V, K] to `target`; false when it is not finite.
inline bool replay_head(const Level& level, const CacheTable& table, const LayerTable& layer,
                        const HeadSource& source, std::int32_t head, Arena arena, float* target,
                        const Ahead& next = {}) {
  const LayerShape& shape = layer.shape;
  HeadTokens tokens = take_head_tokens(arena, shape, source.records, false);
  load_record_keys(level, table, layer, source.slot, source.order, source.records,
                   group_of(shape, head), tokens);
  load_record_head(level, table, layer, source.slot, source.order, source.records, head, tokens);
  AdvanceRun run = run_of(shape, tokens, source.records);
  run.source = source.zero ? nullptr : head_state(layer, source.block, source.snapshot, head);
  run.target = target;
  run.rows = arena.take(shape.key_dim);
  run.next = next;
  return level.advance(run);
}

}  // namespace replayssm::cpu
