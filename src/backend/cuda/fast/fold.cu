// Folds of mamba2 by independent warps, see tile.cuh: one launch for all layers, persistent over
// begin's list. Records are stepped one by one, oldest first, with the roundings of the
// conventional step, so that a checkpoint has the bits of the state that plain decoding would have
// written.
#include "backend/cuda/common/launch.cuh"
#include "backend/cuda/fast/rooms.hpp"
#include "backend/cuda/fast/tile.cuh"

namespace replayssm::cuda {
namespace {

__device__ inline void step_row(float4& s, float by, float update, const float4& key) {
  s.x = fmaf(update, key.x, s.x * by);
  s.y = fmaf(update, key.y, s.y * by);
  s.z = fmaf(update, key.z, s.z * by);
  s.w = fmaf(update, key.w, s.w * by);
}

template <typename Act>
__device__ void fold_tile(const Tables& tables, const LayerTable& layer, const RowDescriptor& desc,
                          std::int64_t row, std::int32_t head, std::int32_t part,
                          float (*updates)[kTileRows], int lane) {
  const CacheTable& table = tables.table;
  const LayerShape& shape = layer.shape;
  const std::int64_t offset = part * kTileRows * kTileKeys;
  Tile tile;
  if (desc.zero != 0) {
    zero_tile(tile);
  } else {
    load_tile(tile, head_state(layer, desc.source_block, 0, head) + offset, lane);
  }
  const std::uint16_t* order = row_order(table, row) + table.ring - desc.fold;
  const std::int32_t group = head / (shape.heads / shape.groups);
  const TileRecords<Act> records(table, layer, desc.slot, head, group);
  const int place = lane / 2;
  const bool exists = place < desc.fold;
  const std::int64_t index = exists ? order[place] : 0;
  float dt = 0.0F;
  if (exists) dt = records.gate[index];
  const float decay = expf(dt * head_a(layer.weights, head));
  if (exists) {
    Eight<Act> value;
    value.load(records.value + index * shape.value_dim + part * kTileRows + lane % 2 * 8, true);
    float x[8];
    value.unpack(x);
#pragma unroll
    for (int e = 0; e < 8; ++e) updates[place][lane % 2 * 8 + e] = dt * x[e];
  }
  __syncwarp();
  // Keys of several records in flight; a place beyond the last has key 0 and is passed over.
  constexpr int kBatch = sizeof(Act) == 2 ? 8 : 4;
  const std::int32_t place_index = static_cast<std::int32_t>(index);
  const Act* const keys = records.key + 4 * lane;
#pragma unroll
  for (int from = 0; from < kTileRecords; from += kBatch) {
    if (from >= desc.fold) break;
    Four<Act> batch[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const std::int32_t at = __shfl_sync(~0U, place_index, 2 * (from + b));
      if (from + b < desc.fold) batch[b].load(keys + at * kTileKeys, true);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int j = from + b;
      if (j >= desc.fold) break;
      const float by = __shfl_sync(~0U, decay, 2 * j);
      const float4 key = batch[b].unpack();
#pragma unroll
      for (int quad = 0; quad < kTileRows; quad += 4) {
        const float4 update = *reinterpret_cast<const float4*>(&updates[j][quad]);
        step_row(tile.row[quad], by, update.x, key);
        step_row(tile.row[quad + 1], by, update.y, key);
        step_row(tile.row[quad + 2], by, update.z, key);
        step_row(tile.row[quad + 3], by, update.w, key);
      }
    }
  }
  __syncwarp();  // the next item overwrites `updates`
  if (isnan(not_finite(tile))) mark_slot(table, desc.slot, kSlotNonFinite);
  store_tile(tile, head_state(layer, desc.target_block, 0, head) + offset, lane);
}

// `each`: items of one layer, where all layers have as many; else 0.
template <typename Act>
__global__ void __launch_bounds__(kTileThreads, 4)
    fold_kernel(const __grid_constant__ Tables tables, const FoldSpan* spans, std::int32_t count,
                std::uint32_t items, std::uint32_t each) {
  __shared__ __align__(16) float updates[kTileWarps][kTileRecords][kTileRows];
  const CacheTable& table = tables.table;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::uint32_t warp = threadIdx.x / kWarp;
  const std::int64_t rows = tables.words->folding_count;
  const std::uint32_t stride = gridDim.x * kTileWarps;
  // Row by row, so that an index of an item needs 32 bits whatever the batch.
  std::uint32_t within = blockIdx.x * kTileWarps + warp;
  for (std::int64_t i = 0; i < rows;) {
    if (within >= items) {
      within -= items;
      ++i;
      continue;
    }
    const std::int64_t row = table.forward.folding[i];
    const RowDescriptor desc = load_descriptor(table.forward.rows + row);
    std::uint32_t low = each > 0 ? within / each : 0;
    if (each == 0) {  // the last span that begins at or before the item
      for (std::uint32_t high = static_cast<std::uint32_t>(count); high - low > 1;) {
        const std::uint32_t middle = (low + high) / 2;
        if (spans[middle].first <= within) {
          low = middle;
        } else {
          high = middle;
        }
      }
    }
    const FoldSpan span = spans[low];
    const auto piece = static_cast<std::uint32_t>(within - span.first);
    const auto parts = static_cast<std::uint32_t>(span.parts);
    if (desc.fold > 0) {
      fold_tile<Act>(tables, table.layers[span.layer], desc, row,
                     static_cast<std::int32_t>(piece / parts),
                     static_cast<std::int32_t>(piece % parts), updates[warp], lane);
    }
    within += stride;
  }
}

}  // namespace

Status fold_fast(const Tables& tables, const DeviceFacts& facts, const FoldSpan* spans,
                 std::int32_t count, std::int64_t items, std::int64_t each, void* stream) {
  // As many blocks as the device holds at once, whatever the batch: empty ones cost 20 us.
  const LaunchShape grid = {std::int64_t{facts.multiprocessors} * 4, kTileThreads, 0, stream};
  if (tables.table.activations == DType::kF32)
    return launch("fast fold", fold_kernel<float>, grid, tables, spans, count,
                  static_cast<std::uint32_t>(items), static_cast<std::uint32_t>(each));
  return launch("fast fold", fold_kernel<BFloat16>, grid, tables, spans, count,
                static_cast<std::uint32_t>(items), static_cast<std::uint32_t>(each));
}

}  // namespace replayssm::cuda
