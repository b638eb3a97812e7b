// The conventional step, the baseline: state read, updated and written at every token; with drafts,
// a state a token. A block then holds T_max states; token i of a step that starts at state c leaves
// its own at (c + 1 + i) mod T_max.
#include <algorithm>

#include "backend/cpu/rooms.hpp"
#include "backend/cpu/token_run.hpp"

namespace replayssm::cpu {
namespace {

void conventional_head(CacheTable& table, const LayerInputs& inputs, std::int64_t row_number,
                       std::int32_t head, Arena& arena) {
  const LayerTable& layer = table.layers[inputs.layer];
  const LayerShape& shape = layer.shape;
  const RowDescriptor& desc = table.forward.rows[row_number];
  const std::int32_t keys = shape.key_dim;
  const std::int32_t* parents = row_parents(table, row_number);

  HeadTokens tokens = take_head_tokens(arena, shape, desc.tokens, true);
  load_inputs(table, layer, inputs, desc.token_offset, desc.tokens, head, 0, tokens);
  float* outputs = arena.take(std::int64_t{desc.tokens} * shape.value_dim);
  float* rows = arena.take(std::int64_t{desc.tokens + 1} *
                           keys);  // row v before the step and after each token
  bool finite = true;
  for (std::int32_t v = 0; v < shape.value_dim; ++v) {
    const std::int64_t at_row = std::int64_t{v} * keys;
    if (desc.zero != 0) {
      std::fill_n(rows, keys, 0.0F);
    } else {
      std::copy_n(head_state(layer, desc.source_block, desc.snapshot, head) + at_row, keys, rows);
    }
    for (std::int32_t i = 0; i < desc.tokens; ++i) {
      float* row = rows + std::int64_t{i + 1} * keys;
      std::copy_n(rows + std::int64_t{parent_of(parents, i) + 1} * keys, keys, row);
      run_token(layer, inputs, desc.token_offset, tokens, i, head, v, row, outputs);
      finite = finite && all_finite(row, keys);
      const std::int32_t state = (desc.snapshot + 1 + i) % table.max_step_tokens;
      std::copy_n(row, keys, head_state(layer, desc.target_block, state, head) + at_row);
    }
  }
  store_outputs(shape, inputs, desc.token_offset, desc.tokens, head, outputs);
  if (!finite) mark_non_finite(table, desc.slot);
}

}  // namespace

void step_conventional_scalar(const Context& context, CacheTable& table,
                              const LayerInputs& inputs) {
  const std::int64_t heads = table.layers[inputs.layer].shape.heads;
  zero_padding(table, inputs.out);
  parallel(context, table.forward.count * heads, [&](std::int64_t index, int worker) {
    const RowDescriptor& desc = table.forward.rows[index / heads];
    if (desc.kind != RowKind::kStep || desc.tokens == 0) return;
    Arena arena = context.arena(worker);
    conventional_head(table, inputs, index / heads, static_cast<std::int32_t>(index % heads),
                      arena);
  });
}

}  // namespace replayssm::cpu
