// Prefill: ring and chunk in f32 from the logical state, rounded once at the end.
#include <algorithm>

#include "backend/cpu/replay_head.hpp"
#include "backend/cpu/rooms.hpp"
#include "backend/cpu/token_run.hpp"

namespace replayssm::cpu {
namespace {

void prefill_head(CacheTable& table, const LayerInputs& inputs, const RowDescriptor& desc,
                  const std::uint16_t* order, std::int32_t head, const Context& context,
                  int worker) {
  const LayerTable& layer = table.layers[inputs.layer];
  const LayerShape& shape = layer.shape;
  const std::int32_t keys = shape.key_dim;
  const std::int32_t values = shape.value_dim;
  Arena arena = context.arena(worker);
  float* state = arena.take(std::int64_t{values} * keys);
  {
    Arena records = arena;  // given back once the ring is applied
    HeadSource source;
    source.slot = desc.slot;
    source.block = desc.source_block;
    source.snapshot = desc.snapshot;
    source.zero = desc.zero != 0;
    source.order = order;
    source.records = desc.committed;
    replay_head(table, layer, source, head, records, [&](std::int32_t v, const float* row) {
      std::copy_n(row, keys, state + std::int64_t{v} * keys);
    });
  }
  HeadTokens tokens = take_head_tokens(arena, shape, kPrefillTokens, true);
  float* outputs = arena.take(std::int64_t{kPrefillTokens} * values);
  for (std::int32_t first = 0; first < desc.tokens; first += kPrefillTokens) {
    const std::int32_t n = std::min(kPrefillTokens, desc.tokens - first);
    const std::int64_t offset = desc.token_offset + first;
    load_inputs(table, layer, inputs, offset, n, head, 0, tokens);
    for (std::int32_t v = 0; v < values; ++v) {
      for (std::int32_t i = 0; i < n; ++i) {
        run_token(layer, inputs, offset, tokens, i, head, v, state + std::int64_t{v} * keys,
                  outputs);
      }
    }
    store_outputs(shape, inputs, offset, n, head, outputs);
  }
  if (!all_finite(state, values * keys)) mark_non_finite(table, desc.slot);
  std::copy_n(state, std::int64_t{values} * keys,
              head_state(layer, desc.target_block, desc.snapshot, head));
}

}  // namespace

void prefill_scalar(const Context& context, CacheTable& table, const LayerInputs& inputs) {
  const std::int64_t heads = table.layers[inputs.layer].shape.heads;
  parallel(context, table.forward.count * heads, [&](std::int64_t index, int worker) {
    const std::int64_t row = index / heads;
    const RowDescriptor& desc = table.forward.rows[row];
    if (desc.kind != RowKind::kPrefill || desc.tokens == 0) return;
    prefill_head(table, inputs, desc, slot_order(table, desc.slot),
                 static_cast<std::int32_t>(index % heads), context, worker);
  });
}

}  // namespace replayssm::cpu
