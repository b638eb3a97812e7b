// Prefill: ring and chunk in f32 from the logical state, rounded once at the end.
#include <algorithm>

#include "backend/cpu/replay_head.hpp"
#include "backend/cpu/rooms.hpp"
#include "backend/cpu/token_run.hpp"

namespace replayssm::cpu {
namespace {

void prefill_head(const Context& context, CacheTable& table, const LayerInputs& inputs,
                  const RowDescriptor& desc, std::int32_t head, int worker) {
  const Level& level = *context.level;
  const LayerTable& layer = table.layers[inputs.layer];
  const LayerShape& shape = layer.shape;
  const std::int32_t values = shape.value_dim;
  const std::int32_t group = group_of(shape, head);
  Arena arena = context.arena(worker);
  float* state = arena.take(std::int64_t{values} * shape.key_dim);
  HeadSource source;
  source.slot = desc.slot;
  source.block = desc.source_block;
  source.snapshot = desc.snapshot;
  source.zero = desc.zero != 0;
  source.order = slot_order(table, desc.slot);
  source.records = desc.committed;
  bool finite = replay_head(level, table, layer, source, head, arena, state);

  HeadTokens tokens = take_head_tokens(arena, shape, kPrefillTokens, true);
  float* outputs = arena.take(std::int64_t{kPrefillTokens} * values);
  float* gate = arena.take(values);
  float* row = arena.take(shape.key_dim);
  for (std::int32_t first = 0; first < desc.tokens; first += kPrefillTokens) {
    const std::int32_t n = std::min(kPrefillTokens, desc.tokens - first);
    const std::int64_t offset = desc.token_offset + first;
    load_input_keys(level, layer, inputs, offset, n, group, 0, tokens);
    load_input_head(level, table, layer, inputs, offset, n, head, 0, tokens);
    AdvanceRun run = run_of(shape, tokens, n);
    run.query = tokens.query;
    run.outputs = outputs;
    run.source = state;
    run.target = state;
    run.rows = row;
    finite = level.advance(run) && finite;
    store_outputs(level, layer, inputs, offset, n, head, tokens, gate, outputs);
  }
  if (!finite) mark_non_finite(table, desc.slot);
  std::copy_n(state, std::int64_t{values} * shape.key_dim,
              head_state(layer, desc.target_block, desc.snapshot, head));
}

}  // namespace

void prefill_rows(const Context& context, CacheTable& table, const LayerInputs& inputs) {
  const std::int64_t heads = table.layers[inputs.layer].shape.heads;
  zero_padding(table, inputs.out);  // beside prompt chunks alone nobody calls step
  parallel(context, table.forward.count * heads, [&](std::int64_t index, int worker) {
    const std::int64_t row = index / heads;
    const RowDescriptor& desc = table.forward.rows[row];
    if (desc.kind != RowKind::kPrefill || desc.tokens == 0) return;
    prefill_head(context, table, inputs, desc, static_cast<std::int32_t>(index % heads), worker);
  });
}

}  // namespace replayssm::cpu
