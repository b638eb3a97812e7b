// Folds: the only time a state is written while decoding by replay.
#include <algorithm>
#include <atomic>

#include "backend/cpu/access.hpp"
#include "backend/cpu/prefetch.hpp"
#include "backend/cpu/replay_head.hpp"
#include "backend/cpu/rooms.hpp"
#include "backend/cpu/vec.hpp"

namespace replayssm::cpu {

std::int64_t scratch_floats(std::int32_t ring, std::int32_t max_step_tokens) {
  // A fold takes fewer records than the ring holds.
  const std::int64_t tokens = std::max<std::int64_t>(ring + max_step_tokens, kPrefillTokens);
  // Tokens of a head, two products a token and value, coefficients for each pair, one state and T
  // rows.
  return 2 * head_tokens_floats(tokens) + 8 * std::int64_t{kMaxHeadDim} * kMaxStepTokens +
         2 * (tokens + 16) * kMaxStepTokens +
         (kMaxHeadDim + kMaxStepTokens + 2) * std::int64_t{kMaxHeadDim};
}

void mark_non_finite(CacheTable& table, std::int64_t slot) {
  std::atomic_ref<std::uint32_t>(table.slots.error[slot])
      .fetch_or(kSlotNonFinite, std::memory_order_relaxed);
}

namespace {

// One head of one folding row.
struct FoldHead {
  std::int64_t row = -1;
  std::int32_t layer = 0;
  std::int32_t head = 0;
};

HeadSource fold_source(const CacheTable& table, const FoldHead& at) {
  const RowDescriptor& desc = table.forward.rows[at.row];
  HeadSource source;
  source.slot = desc.slot;
  source.block = desc.source_block;
  source.zero = desc.zero != 0;
  source.order = row_order(table, at.row) + table.ring - desc.fold;
  source.records = desc.fold;
  return source;
}

}  // namespace

void fold_rows(const Context& context, CacheTable& table) {
  std::int64_t heads = 0;
  for (std::int32_t i = 0; i < table.layer_count; ++i) heads += table.layers[i].shape.heads;
  const std::int64_t all = table.forward.folding_count * heads;
  const auto head_at = [&](std::int64_t number) {
    FoldHead at;
    if (number >= all) return at;
    at.row = table.forward.folding[number / heads];
    std::int64_t head = number % heads;
    while (head >= table.layers[at.layer].shape.heads) head -= table.layers[at.layer++].shape.heads;
    at.head = static_cast<std::int32_t>(head);
    return at;
  };
  const std::int64_t per_item = heads_per_item(context, all);
  const std::int64_t items = (all + per_item - 1) / per_item;
  parallel(context, items, [&](std::int64_t index, int worker) {
    const std::int64_t begin = index * per_item;
    const std::int64_t end = std::min(begin + per_item, all);
    FoldHead next = head_at(begin);
    for (std::int64_t number = begin; number < end; ++number) {
      const FoldHead at = next;
      // Workers that keep pace take turns.
      next = head_at(number + 1 < end ? number + 1 : (index + context.threads.workers) * per_item);
      Lines lines;
      Ahead ahead;
      if (next.row >= 0) {
        const HeadSource later = fold_source(table, next);
        const LayerTable& layer = table.layers[next.layer];
        list_fold(table, layer, later.slot, later.order, later.records, next.head, lines);
        if (!later.zero) ahead.matrix = head_state(layer, later.block, 0, next.head);
        ahead.lines = lines.data();
        ahead.count = lines.count();
      }
      const LayerTable& layer = table.layers[at.layer];
      const RowDescriptor& desc = table.forward.rows[at.row];
      float* target = head_state(layer, desc.target_block, 0, at.head);
      if (!replay_head(*context.level, table, layer, fold_source(table, at), at.head,
                       context.arena(worker), target, ahead)) {
        mark_non_finite(table, desc.slot);
      }
    }
  });
}

void fold_all_records(const Context& context, CacheTable& table, std::int64_t slot) {
  SlotTable& slots = table.slots;
  for (std::int32_t number = 0; number < table.layer_count; ++number) {
    const LayerTable& layer = table.layers[number];
    parallel(context, layer.shape.heads, [&](std::int64_t head, int worker) {
      HeadSource source;
      source.slot = slot;
      source.block = slots.block[slot];
      source.zero = slots.zero[slot] != 0;
      source.order = slot_order(table, slot);
      source.records = slots.committed[slot];
      (void)replay_head(*context.level, table, layer, source, static_cast<std::int32_t>(head),
                        context.arena(worker), head_state(layer, slots.block[slot], 0, head));
    });
  }
  slots.committed[slot] = 0;
  slots.zero[slot] = 0;
}

}  // namespace replayssm::cpu
