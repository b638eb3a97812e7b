// Folds: the only time a state is written while decoding by replay.
#include <algorithm>
#include <atomic>

#include "backend/cpu/access.hpp"
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

void fold_rows(const Context& context, CacheTable& table) {
  std::int64_t heads = 0;
  for (std::int32_t i = 0; i < table.layer_count; ++i) heads += table.layers[i].shape.heads;
  parallel(context, table.forward.folding_count * heads, [&](std::int64_t index, int worker) {
    const std::int64_t row = table.forward.folding[index / heads];
    std::int64_t head = index % heads;
    std::int32_t number = 0;
    while (head >= table.layers[number].shape.heads) head -= table.layers[number++].shape.heads;
    const LayerTable& layer = table.layers[number];
    const RowDescriptor& desc = table.forward.rows[row];

    HeadSource source;
    source.slot = desc.slot;
    source.block = desc.source_block;
    source.zero = desc.zero != 0;
    source.order = row_order(table, row) + table.ring - desc.fold;
    source.records = desc.fold;
    float* target = head_state(layer, desc.target_block, 0, head);
    const bool finite = replay_head(*context.level, table, layer, source,
                                    static_cast<std::int32_t>(head), context.arena(worker), target);
    if (!finite) mark_non_finite(table, desc.slot);
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
