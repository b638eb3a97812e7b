// The conventional step of mamba2 by independent warps, see tile.cuh: the baseline, as fast as its
// traffic allows. The state is read once and written once a token; with drafts token i leaves its
// state at (c + 1 + i) mod T_max, c the state the step starts from.
#include "backend/cuda/common/launch.cuh"
#include "backend/cuda/fast/rooms.hpp"
#include "backend/cuda/fast/tile.cuh"

namespace replayssm::cuda {
namespace {

template <typename Act>
__global__ void __launch_bounds__(kTileThreads, 4)
    conventional_kernel(const __grid_constant__ Tables tables,
                        const __grid_constant__ LayerTable layer,
                        const __grid_constant__ LayerInputs inputs, std::int64_t extent,
                        bool aligned) {
  const CacheTable& table = tables.table;
  const LayerShape& shape = layer.shape;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::uint32_t parts = static_cast<std::uint32_t>(shape.value_dim) / kTileRows;
  const std::uint32_t unit = blockIdx.x * kTileWarps + threadIdx.x / kWarp;
  const auto part = static_cast<std::int32_t>(unit % parts);
  const auto head = static_cast<std::int32_t>(unit / parts);
  if (head >= shape.heads) return;
  const std::int64_t row = blockIdx.y;
  const RowDescriptor desc = load_descriptor(table.forward.rows + row);
  const std::int32_t tokens = desc.tokens;
  const std::int64_t first = desc.token_offset;
  const std::int32_t v = part * kTileRows + tile_row(lane);
  const bool writer = (lane & 2) == 0;
  const bool inside = row_fits(desc, extent);
  if (desc.kind != RowKind::kStep || tokens == 0 || !inside) {
    if (!inside) {
      if (unit == 0 && lane == 0) refuse_row(tables, row);
    } else if (desc.kind == RowKind::kPadding && writer) {
      for (std::int32_t t = 0; t < tokens; ++t)
        store_output<Act>(inputs.out, first + t, head, v, 0.0F);
    }
    return;
  }

  const std::int64_t offset = part * kTileRows * kTileKeys;
  const float* source = head_state(layer, desc.source_block, desc.snapshot, head) + offset;
  Tile tile;
  if (desc.zero != 0) {
    zero_tile(tile);
  } else {
    load_tile(tile, source, lane);
  }
  const std::int32_t group = head / (shape.heads / shape.groups);
  const float a = head_a(layer.weights, head);
  const float bias = layer.weights.dt_bias != nullptr ? layer.weights.dt_bias[head] : 0.0F;
  float bad = 0.0F;
  for (std::int32_t t = 0; t < tokens; ++t) {
    const std::int64_t token = first + t;
    const float4 key = load4(typed_at<const Act>(inputs.key, token, group) + 4 * lane, aligned);
    const float4 query = load4(typed_at<const Act>(inputs.query, token, group) + 4 * lane, aligned);
    const float x = to_float(typed_at<const Act>(inputs.value, token, head)[v]);
    const float dt = mamba2_dt(shape, load_gate<Act>(inputs.gate, token, head), bias);
    const float decay = expf(dt * a);
    if (desc.tree != 0) {
      const std::int32_t parent = table.forward.parents[row * table.max_step_tokens + t];
      if (parent < 0 && t > 0) {
        if (desc.zero != 0) {
          zero_tile(tile);
        } else {
          load_tile(tile, source, lane);
        }
      } else if (parent >= 0 && parent != t - 1) {
        // Every lane reads back what it wrote itself.
        const std::int32_t state = (desc.snapshot + 1 + parent) % table.max_step_tokens;
        load_tile(tile, head_state(layer, desc.target_block, state, head) + offset, lane);
      }
    }
    float read[kTileRows];
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      // The lane that owns row r of the outputs has its x: tile_row() turned round.
      const int owner = (r >> 3) + (r >> 2 & 1) * 16 + (r >> 1 & 1) * 8 + (r & 1) * 4;
      const float update = dt * __shfl_sync(~0U, x, owner);
      float4& s = tile.row[r];
      s.x = fmaf(update, key.x, s.x * decay);
      s.y = fmaf(update, key.y, s.y * decay);
      s.z = fmaf(update, key.z, s.z * decay);
      s.w = fmaf(update, key.w, s.w * decay);
      read[r] = dot4(s, query);
    }
    const std::int32_t state = (desc.snapshot + 1 + t) % table.max_step_tokens;
    store_tile(tile, head_state(layer, desc.target_block, state, head) + offset, lane);
    bad += not_finite(tile);
    float output = sum_rows(read, lane);
    if (layer.weights.d != nullptr) output = fmaf(layer.weights.d[head], x, output);
    if (writer) {
      if (inputs.z.data != nullptr)
        output *= silu(to_float(typed_at<const Act>(inputs.z, token, head)[v]));
      store_output<Act>(inputs.out, token, head, v, output);
    }
  }
  if (bad != 0.0F || isnan(bad)) mark_slot(table, desc.slot, kSlotNonFinite);
}

}  // namespace

Status step_conventional_fast(const Tables& tables, const LayerTable& layer,
                              const LayerInputs& inputs) {
  const int units = layer.shape.heads * (layer.shape.value_dim / kTileRows);
  const LaunchShape grid = {(units + kTileWarps - 1) / kTileWarps, kTileThreads, 0, inputs.stream,
                            tables.table.forward.count};
  const std::int64_t extent = token_extent(inputs, layer.shape);
  const bool aligned = wide(inputs.key) && wide(inputs.query);
  if (tables.table.activations == DType::kF32) {
    return launch("fast conventional step", conventional_kernel<float>, grid, tables, layer, inputs,
                  extent, aligned);
  }
  return launch("fast conventional step", conventional_kernel<BFloat16>, grid, tables, layer,
                inputs, extent, aligned);
}

}  // namespace replayssm::cuda
