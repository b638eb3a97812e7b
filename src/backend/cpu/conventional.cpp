// The conventional step, the baseline: state read, updated and written at every token; with drafts,
// a state a token. A block then holds T_max states; token i of a step that starts at state c leaves
// its own at (c + 1 + i) mod T_max.
#include <algorithm>
#include <array>

#include "backend/cpu/rooms.hpp"
#include "backend/cpu/token_run.hpp"

namespace replayssm::cpu {
namespace {

// Whether the states that steps of these rows write in turn, T_max a row, are more than the
// last-level cache holds: then a store through the caches only reads each line before it is
// written.
bool states_pass_caches(const Context& context, const CacheTable& table) {
  if (table.max_step_tokens == 1) return false;  // updated in place
  std::int64_t floats = 0;
  for (std::int32_t i = 0; i < table.layer_count; ++i) {
    const LayerShape& shape = table.layers[i].shape;
    floats += std::int64_t{shape.heads} * shape.value_dim * shape.key_dim;
  }
  const std::int64_t states = table.forward.count * table.max_step_tokens;
  return floats * static_cast<std::int64_t>(sizeof(float)) * states > context.cache_bytes;
}

void conventional_head(const Level& level, CacheTable& table, const LayerInputs& inputs,
                       std::int64_t row_number, std::int32_t head, const float* next,
                       bool past_caches, Arena arena) {
  const LayerTable& layer = table.layers[inputs.layer];
  const LayerShape& shape = layer.shape;
  const RowDescriptor& desc = table.forward.rows[row_number];

  HeadTokens tokens = take_head_tokens(arena, shape, desc.tokens, true);
  load_input_keys(level, layer, inputs, desc.token_offset, desc.tokens, group_of(shape, head), 0,
                  tokens);
  load_input_head(level, table, layer, inputs, desc.token_offset, desc.tokens, head, 0, tokens);
  std::array<float*, kMaxStepTokens> after{};
  for (std::int32_t i = 0; i < desc.tokens; ++i) {
    const std::int32_t state = (desc.snapshot + 1 + i) % table.max_step_tokens;
    after[static_cast<std::size_t>(i)] = head_state(layer, desc.target_block, state, head);
  }
  AdvanceRun run = run_of(shape, tokens, desc.tokens);
  run.query = tokens.query;
  run.outputs = arena.take(std::int64_t{desc.tokens} * shape.value_dim);
  run.source = desc.zero != 0 ? nullptr : head_state(layer, desc.source_block, desc.snapshot, head);
  run.parents = row_parents(table, row_number);
  run.rows = arena.take(std::int64_t{desc.tokens + 1} * shape.key_dim);
  // The last token's state may take the place of the one the step starts from: a level reads a row
  // before it writes it.
  run.after = after.data();
  run.past_caches = past_caches;
  run.next.matrix = next;
  if (!level.advance(run)) mark_non_finite(table, desc.slot);
  float* gate = arena.take(shape.value_dim);
  store_outputs(level, layer, inputs, desc.token_offset, desc.tokens, head, tokens, gate,
                run.outputs);
}

}  // namespace

void step_conventional(const Context& context, CacheTable& table, const LayerInputs& inputs) {
  const LayerTable& layer = table.layers[inputs.layer];
  const std::int64_t heads = layer.shape.heads;
  zero_padding(table, inputs.out);
  const std::int64_t per_item = heads_per_item(context, table.forward.count * heads);
  const std::int64_t runs = (heads + per_item - 1) / per_item;
  const std::int64_t items = table.forward.count * runs;
  const bool past_caches = states_pass_caches(context, table);
  const auto state_of = [&](std::int64_t row, std::int64_t head) -> const float* {
    const RowDescriptor& desc = table.forward.rows[row];
    if (desc.kind != RowKind::kStep || desc.tokens == 0 || desc.zero != 0) return nullptr;
    return head_state(layer, desc.source_block, desc.snapshot, head);
  };
  parallel(context, items, [&](std::int64_t index, int worker) {
    const std::int64_t row = index / runs;
    const RowDescriptor& desc = table.forward.rows[row];
    if (desc.kind != RowKind::kStep || desc.tokens == 0) return;
    const std::int64_t begin = index % runs * per_item;
    const std::int64_t end = std::min(begin + per_item, heads);
    for (std::int64_t head = begin; head < end; ++head) {
      const std::int64_t later = index + context.threads.workers;
      const float* next = nullptr;
      if (head + 1 < end) {
        next = state_of(row, head + 1);
      } else if (later < items) {
        next = state_of(later / runs, later % runs * per_item);
      }
      conventional_head(*context.level, table, inputs, row, static_cast<std::int32_t>(head), next,
                        past_caches, context.arena(worker));
    }
  });
}

}  // namespace replayssm::cpu
