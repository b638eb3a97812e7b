// The conventional step, the baseline: state read, updated and written at every token; with drafts,
// a state a token. A block then holds T_max states; token i of a step that starts at state c leaves
// its own at (c + 1 + i) mod T_max.
#include <array>

#include "backend/cpu/rooms.hpp"
#include "backend/cpu/token_run.hpp"

namespace replayssm::cpu {
namespace {

void conventional_head(const Level& level, CacheTable& table, const LayerInputs& inputs,
                       std::int64_t row_number, std::int32_t head, Arena arena) {
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
  if (!level.advance(run)) mark_non_finite(table, desc.slot);
  float* gate = arena.take(shape.value_dim);
  store_outputs(level, layer, inputs, desc.token_offset, desc.tokens, head, tokens, gate,
                run.outputs);
}

}  // namespace

void step_conventional(const Context& context, CacheTable& table, const LayerInputs& inputs) {
  const std::int64_t heads = table.layers[inputs.layer].shape.heads;
  zero_padding(table, inputs.out);
  parallel(context, table.forward.count * heads, [&](std::int64_t index, int worker) {
    const RowDescriptor& desc = table.forward.rows[index / heads];
    if (desc.kind != RowKind::kStep || desc.tokens == 0) return;
    conventional_head(*context.level, table, inputs, index / heads,
                      static_cast<std::int32_t>(index % heads), context.arena(worker));
  });
}

}  // namespace replayssm::cpu
