// Folds: the only time a state is written while decoding by replay. One launch for all layers,
// persistent over begin's list.
#include "backend/cuda/common/launch.cuh"
#include "backend/cuda/control/blocks.cuh"
#include "backend/cuda/reference/rooms.hpp"
#include "backend/cuda/reference/warp.cuh"

namespace replayssm::cuda {
namespace {

constexpr unsigned kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    fold_kernel(const __grid_constant__ Tables tables, const std::uint8_t* only_layer) {
  const CacheTable& table = tables.table;
  std::int64_t heads = 0;
  for (std::int32_t i = 0; i < table.layer_count; ++i) heads += table.layers[i].shape.heads;
  const std::int64_t items = tables.words->folding_count * heads;
  for (std::int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    std::int64_t head = item % heads;
    std::int32_t number = 0;
    while (head >= table.layers[number].shape.heads) head -= table.layers[number++].shape.heads;
    if (only_layer != nullptr && only_layer[number] == 0) continue;
    const LayerTable& layer = table.layers[number];
    const std::int64_t row = table.forward.folding[item / heads];
    const RowDescriptor& desc = table.forward.rows[row];
    if (desc.fold == 0) continue;
    const HeadTokens tokens(table, layer, nullptr, desc.slot, static_cast<std::int32_t>(head));
    const HeadSource source = {desc.source_block, 0, desc.zero != 0,
                               row_order(table, row) + table.ring - desc.fold, desc.fold};
    float* target = head_state(layer, desc.target_block, 0, head);
    const std::int32_t keys = layer.shape.key_dim;
    each_row(layer.shape.value_dim, [&](std::int32_t v) {
      const LaneRow state = replay_row(tokens, source, v);
      if (!lane_finite(state)) mark_slot(table, desc.slot, kSlotNonFinite);
      lane_store(target + std::int64_t{v} * keys, keys, state);
    });
  }
}

__global__ void apply_fold_kernel(const __grid_constant__ Tables tables) {
  const CacheTable& table = tables.table;
  const SlotTable& slots = table.slots;
  for (std::int64_t i = blockIdx.x; i < tables.words->folding_count; i += gridDim.x) {
    const std::int64_t row = table.forward.folding[i];
    RowDescriptor& desc = table.forward.rows[row];
    if (desc.fold == 0) continue;
    if (threadIdx.x == 0) {
      move_to_target(table, desc);
      slots.committed[desc.slot] = desc.committed;
      slots.zero[desc.slot] = 0;
      desc.folded = 1;
    }
    for (std::int32_t j = static_cast<std::int32_t>(threadIdx.x); j < table.ring;
         j += static_cast<std::int32_t>(blockDim.x))
      slot_order(table, desc.slot)[j] = row_order(table, row)[j];
  }
}

__global__ void __launch_bounds__(kThreads)
    fold_all_kernel(const __grid_constant__ Tables tables, const __grid_constant__ LayerTable layer,
                    std::int64_t slot) {
  const CacheTable& table = tables.table;
  const SlotTable& slots = table.slots;
  const auto head = static_cast<std::int32_t>(blockIdx.x);
  const HeadTokens tokens(table, layer, nullptr, slot, head);
  const HeadSource source = {slots.block[slot], slots.snapshot[slot], slots.zero[slot] != 0,
                             slot_order(table, slot), slots.committed[slot]};
  float* target = head_state(layer, source.block, 0, head);
  const std::int32_t keys = layer.shape.key_dim;
  each_row(layer.shape.value_dim, [&](std::int32_t v) {
    lane_store(target + std::int64_t{v} * keys, keys, replay_row(tokens, source, v));
  });
}

}  // namespace

Status fold_reference(const Tables& tables, const DeviceFacts& facts,
                      const std::uint8_t* only_layer, void* stream) {
  // As many blocks as the device holds at once, whatever the batch: empty ones cost 20 us.
  const std::int64_t blocks = std::int64_t{facts.multiprocessors} * 4;
  return launch("fold", fold_kernel, {blocks, kThreads, 0, stream}, tables, only_layer);
}

Status apply_fold(const Tables& tables, void* stream) {
  return launch("fold cursors", apply_fold_kernel, {64, 32, 0, stream}, tables);
}

Status fold_all_records(const Tables& tables, std::span<const LayerTable> layers, std::int64_t slot,
                        void* stream) {
  for (const LayerTable& layer : layers) {
    REPLAYSSM_RETURN_IF_ERROR(launch("fold all", fold_all_kernel,
                                     {layer.shape.heads, kThreads, 0, stream}, tables, layer,
                                     slot));
  }
  return {};
}

}  // namespace replayssm::cuda
