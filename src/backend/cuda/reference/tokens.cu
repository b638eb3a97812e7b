// What runs fresh tokens through the recurrence one after the other: prefill, and the conventional
// step, which is the baseline. One warp a row of the state.
#include "backend/cuda/common/launch.cuh"
#include "backend/cuda/reference/rooms.hpp"
#include "backend/cuda/reference/warp.cuh"

namespace replayssm::cuda {
namespace {

constexpr unsigned kThreads = 256;

// Advances `state` by one fresh token and writes that token's output. All lanes call.
__device__ void run_token(const HeadTokens& tokens, std::int64_t token, std::int32_t v,
                          LaneRow& state) {
  tokens.advance({token, true}, v, state);
  const float read = lane_dot(state, tokens.query(token));
  if (lane_id() == 0) {
    const TensorView& out = tokens.inputs->out;
    store_float(at(out, token, tokens.head), out.dtype, v, tokens.finish(token, v, read));
  }
}

__global__ void __launch_bounds__(kThreads)
    prefill_kernel(const __grid_constant__ Tables tables, const __grid_constant__ LayerTable layer,
                   const __grid_constant__ LayerInputs inputs, std::int64_t extent) {
  const CacheTable& table = tables.table;
  const LayerShape& shape = layer.shape;
  const std::int64_t row = blockIdx.x / shape.heads;
  const auto head = static_cast<std::int32_t>(blockIdx.x % shape.heads);
  const RowDescriptor& desc = table.forward.rows[row];
  if (desc.kind != RowKind::kPrefill || desc.tokens == 0) return;
  if (!row_fits(desc, extent)) {
    if (head == 0 && threadIdx.x == 0) refuse_row(tables, row);
    return;
  }
  const HeadTokens tokens(table, layer, &inputs, desc.slot, head);
  const HeadSource source = {desc.source_block, desc.snapshot, desc.zero != 0,
                             slot_order(table, desc.slot), desc.committed};
  float* target = head_state(layer, desc.target_block, desc.snapshot, head);
  const std::int32_t keys = shape.key_dim;
  each_row(shape.value_dim, [&](std::int32_t v) {
    LaneRow state = replay_row(tokens, source, v);
    for (std::int32_t i = 0; i < desc.tokens; ++i)
      run_token(tokens, desc.token_offset + i, v, state);
    if (!lane_finite(state)) mark_slot(table, desc.slot, kSlotNonFinite);
    lane_store(target + std::int64_t{v} * keys, keys, state);
  });
}

// With drafts a block holds T_max states; token i of a step that starts at state c leaves its own
// at (c + 1 + i) mod T_max. The state a token starts from is its parent's.
__global__ void __launch_bounds__(kThreads)
    conventional_kernel(const __grid_constant__ Tables tables,
                        const __grid_constant__ LayerTable layer,
                        const __grid_constant__ LayerInputs inputs, std::int64_t extent) {
  const CacheTable& table = tables.table;
  const LayerShape& shape = layer.shape;
  const std::int64_t row = blockIdx.x / shape.heads;
  const auto head = static_cast<std::int32_t>(blockIdx.x % shape.heads);
  const RowDescriptor& desc = table.forward.rows[row];
  if (!row_fits(desc, extent)) {
    if (head == 0 && threadIdx.x == 0) refuse_row(tables, row);
    return;
  }
  if (desc.kind == RowKind::kPadding) zero_outputs(inputs.out, desc, head, shape.value_dim);
  if (desc.kind != RowKind::kStep || desc.tokens == 0) return;
  const HeadTokens tokens(table, layer, &inputs, desc.slot, head);
  const std::int32_t* parents = row_parents(table, row);
  const std::int32_t keys = shape.key_dim;
  const auto state_of = [&](std::int32_t i) {
    return head_state(layer, desc.target_block, (desc.snapshot + 1 + i) % table.max_step_tokens,
                      head);
  };
  each_row(shape.value_dim, [&](std::int32_t v) {
    const std::int64_t at_row = std::int64_t{v} * keys;
    LaneRow start = lane_zero();
    if (desc.zero == 0) {
      start = lane_load(head_state(layer, desc.source_block, desc.snapshot, head) + at_row,
                        DType::kF32, keys);
    }
    for (std::int32_t i = 0; i < desc.tokens; ++i) {
      const std::int32_t parent = parent_of(parents, i);
      // Every lane reads back what it wrote itself.
      LaneRow state = parent < 0 ? start : lane_load(state_of(parent) + at_row, DType::kF32, keys);
      run_token(tokens, desc.token_offset + i, v, state);
      if (!lane_finite(state)) mark_slot(table, desc.slot, kSlotNonFinite);
      lane_store(state_of(i) + at_row, keys, state);
    }
  });
}

}  // namespace

Status prefill_reference(const Tables& tables, const LayerTable& layer, const LayerInputs& inputs) {
  const std::int64_t blocks = tables.table.forward.count * layer.shape.heads;
  return launch("prefill", prefill_kernel, {blocks, kThreads, 0, inputs.stream}, tables, layer,
                inputs, token_extent(inputs, layer.shape));
}

Status step_conventional_reference(const Tables& tables, const LayerTable& layer,
                                   const LayerInputs& inputs) {
  const std::int64_t blocks = tables.table.forward.count * layer.shape.heads;
  return launch("conventional step", conventional_kernel, {blocks, kThreads, 0, inputs.stream},
                tables, layer, inputs, token_extent(inputs, layer.shape));
}

}  // namespace replayssm::cuda
