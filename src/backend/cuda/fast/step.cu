// The replay step of mamba2 by independent warps, see tile.cuh. With w the decay from a record to
// the token:
//   o = sum_j (w_j dt_j (B_j . C)) x_j + w S0 C, then the skip and the gate.
// Committed records and the token's own path stand in one row of places, oldest first: place j is
// that of lanes 2 j and 2 j + 1, whether its record was committed earlier or is pending. Every sum
// and product is grouped by place, so a token's bits are the same whether it comes alone, behind
// others or on a tree.
#include <algorithm>

#include "backend/cuda/common/launch.cuh"
#include "backend/cuda/fast/dots.cuh"
#include "backend/cuda/fast/rooms.hpp"
#include "backend/cuda/fast/tile.cuh"
#include "core/text.hpp"

namespace replayssm::cuda {
namespace {

// Blocks a multiprocessor. Five need registers that only a step of one token with given dots
// spares; a step that computes its own is faster with four (docs/cuda.md).
template <int kSteps, bool kGiven>
inline constexpr int kBlocks = kSteps == 1 && kGiven ? 5 : 4;

// Dots of all groups of all rows, [row, group, kSteps + 2, lane]: the heads of a group share them,
// and in a large batch computing them once saves more than this launch costs.
template <int kSteps>
__device__ float* dots_of(float* memory, std::int64_t row, std::int32_t groups,
                          std::int32_t group) {
  return memory + (row * groups + group) * (kSteps + 2) * kWarp;
}

template <typename Act, int kSteps, bool kAligned>
__global__ void __launch_bounds__(kTileThreads)
    dots_kernel(const __grid_constant__ Tables tables, const __grid_constant__ LayerTable layer,
                const __grid_constant__ LayerInputs inputs, std::int64_t extent, float* memory) {
  const CacheTable& table = tables.table;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto group = static_cast<std::int32_t>(blockIdx.x * kTileWarps + threadIdx.x / kWarp);
  if (group >= layer.shape.groups) return;
  const std::int64_t row = blockIdx.y;
  const RowDescriptor desc = load_descriptor(table.forward.rows + row);
  const int place = lane / 2;
  const std::int32_t index = place < table.ring ? row_order(table, row)[place] : 0;
  if (desc.kind != RowKind::kStep || desc.tokens == 0 || !row_fits(desc, extent)) return;
  const TileRecords<Act> records(table, layer, desc.slot, 0, group);
  const Dots<kSteps> dots = all_dots<kSteps, kAligned>(
      make_keys(inputs, records, desc, group, place < desc.committed ? index : 0), lane);
  float* const to = dots_of<kSteps>(memory, row, layer.shape.groups, group) + lane;
#pragma unroll
  for (int t = 0; t < kSteps; ++t) to[t * kWarp] = dots.place[t];
  to[kSteps * kWarp] = dots.fresh[0];
  to[(kSteps + 1) * kWarp] = dots.fresh[1];
}

// kAligned: wherever rows of key, query and value begin, eight elements can be loaded at once.
// kGiven: dots_kernel has run.
template <typename Act, int kSteps, bool kAligned, bool kGiven>
__global__ void __launch_bounds__(kTileThreads, kBlocks<kSteps, kGiven>)
    step_kernel(const __grid_constant__ Tables tables, const __grid_constant__ LayerTable layer,
                const __grid_constant__ LayerInputs inputs, std::int64_t extent,
                const Divisor parts, const Divisor heads_per_group, float* given) {
  const CacheTable& table = tables.table;
  const LayerShape& shape = layer.shape;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::uint32_t unit = blockIdx.x * kTileWarps + threadIdx.x / kWarp;
  const auto head = static_cast<std::int32_t>(parts.divide(unit));
  const auto part = static_cast<std::int32_t>(unit - parts.divide(unit) * parts.by);
  if (head >= shape.heads) return;
  const auto group = static_cast<std::int32_t>(heads_per_group.divide(head));
  const bool first_of_group = group * static_cast<std::int32_t>(heads_per_group.by) == head;
  const std::int64_t row = blockIdx.y;

  // What needs no descriptor is asked for together with it.
  const RowDescriptor desc = load_descriptor(table.forward.rows + row);
  const std::uint16_t* order = row_order(table, row);
  const int place = lane / 2;
  const std::int32_t place_index = place < table.ring ? order[place] : 0;
  const std::int32_t tokens = desc.tokens;
  const std::int64_t first = desc.token_offset;
  const std::int32_t v =
      part * kTileRows + tile_row(lane);  // the row whose outputs are this lane's
  const bool writer = (lane & 2) == 0;
  const bool inside = row_fits(desc, extent);
  // One question of all fields, without short cuts: those would load them one after the other.
  const std::int64_t block = desc.read_block();
  const bool active = static_cast<bool>(static_cast<int>(desc.kind == RowKind::kStep) &
                                        static_cast<int>(tokens > 0) & static_cast<int>(inside) &
                                        static_cast<int>(block >= 0));
  const bool reads =
      static_cast<bool>(static_cast<int>(active) &
                        (static_cast<int>(desc.zero == 0) | static_cast<int>(desc.fold > 0)));
  // Before anything else: the state is what the warp will wait for.
  Tile tile;
  if (reads) {
    load_tile(tile, head_state(layer, block, 0, head) + part * kTileRows * kTileKeys, lane);
  } else {
    zero_tile(tile);
  }
  if (!active) {
    if (!inside) {
      if (unit == 0 && lane == 0) refuse_row(tables, row);
    } else if (desc.kind == RowKind::kPadding && writer) {
      for (std::int32_t t = 0; t < tokens; ++t)
        store_output<Act>(inputs.out, first + t, head, v, 0.0F);
    }
    return;
  }

  const std::int32_t n = desc.committed;
  const TileRecords<Act> records(table, layer, desc.slot, head, group);
  const auto fresh_key = [&](int t) {
    return typed_at<const Act>(inputs.key, first + t, group) + 4 * lane;
  };
  const auto fresh_value = [&](int t) {
    return typed_at<const Act>(inputs.value, first + t, head);
  };

  // What this lane's place holds if it is a committed one, or the only token's own.
  const int half = part * kTileRows + lane % 2 * 8;
  const bool committed = place < n;
  const std::int32_t index = committed ? place_index : 0;
  Eight<Act> record_value;
  if (committed) {
    record_value.load(records.value + std::int64_t{index} * shape.value_dim + half, true);
  }
  if (kSteps == 1 && place == n) record_value.load(fresh_value(0) + half, kAligned);
  // Everything else that a token alone needs, asked for before the first wait for the state.
  const HeadDecay head_decay(layer.weights, head);
  const float bias = layer.weights.dt_bias != nullptr ? layer.weights.dt_bias[head] : 0.0F;
  const float skip = layer.weights.d != nullptr ? layer.weights.d[head] : 0.0F;
  float record_dt = 0.0F;
  if (committed) record_dt = records.gate[index];
  // Fresh tokens: lane t reads what is one number of token t.
  float raw = 0.0F;
  std::int32_t parent = lane - 1;
  if (lane < tokens) {
    raw = load_gate<Act>(inputs.gate, first + lane, head);
    if (kSteps > 1 && desc.tree != 0)
      parent = table.forward.parents[row * table.max_step_tokens + lane];
  }
  Act only_x = {};
  if (kSteps == 1) only_x = fresh_value(0)[v];
  Four<Act> only_query;
  if (kSteps == 1)
    only_query.load(typed_at<const Act>(inputs.query, first, group) + 4 * lane, kAligned);

  Dots<kSteps> dots;
  if constexpr (kGiven) {
    const float* const from = dots_of<kSteps>(given, row, shape.groups, group) + lane;
#pragma unroll
    for (int t = 0; t < kSteps; ++t) dots.place[t] = from[t * kWarp];
    dots.fresh[0] = kSteps > 1 ? from[kSteps * kWarp] : 0.0F;
    dots.fresh[1] = kSteps > 1 ? from[(kSteps + 1) * kWarp] : 0.0F;
  } else {
    dots = all_dots<kSteps, kAligned>(make_keys(inputs, records, desc, group, index), lane);
  }

  const float a = head_decay.a();
  const float record_decay = expf(record_dt * a);
  float fresh_dt = 0.0F;
  if (lane < tokens) fresh_dt = mamba2_dt(shape, raw, bias);
  const float fresh_decay = expf(fresh_dt * a);
  const Paths<kSteps> paths(parent);

#pragma unroll
  for (int t = 0; t < kSteps; ++t) {
    if (t >= tokens) break;
    // Places n .. n + depth hold the token's own path.
    const int last = n + paths.depth[t];
    const bool pending = place >= n && place <= last;
    const int node = pending ? paths.node(t, place - n) : 0;
    const float node_dt = __shfl_sync(~0U, fresh_dt, node);
    const float node_decay = __shfl_sync(~0U, fresh_decay, node);
    const float node_dot = kSteps == 1 ? dots.place[0] : dots.pair(t, node);
    const float dt = pending ? node_dt : record_dt;
    const float dot = pending ? node_dot : dots.place[t];
    const float suffix =
        suffix_product(pending ? node_decay : (committed ? record_decay : 1.0F), lane);
    Eight<Act> value = record_value;
    if (kSteps > 1 && pending) value.load(fresh_value(node) + half, kAligned);
    const float x = to_float(kSteps == 1 ? only_x : fresh_value(t)[v]);

    // A path may reach beyond the places where a fold has left W - 1 records; those come first,
    // newest to oldest.
    float beyond = 1.0F;
    float output = 0.0F;
    if constexpr (kSteps > 1) {
      for (int far = last; far >= kTileRecords; --far) {
        const int node_far = paths.node(t, far - n);
        const float far_dt = __shfl_sync(~0U, fresh_dt, node_far);
        const float far_decay = __shfl_sync(~0U, fresh_decay, node_far);
        const float far_dot = dots.pair(t, node_far);
        output = fmaf(beyond * far_dt * far_dot, to_float(fresh_value(node_far)[v]), output);
        beyond *= far_decay;
      }
    }

    const bool exists = committed || pending;
    const float after = behind(suffix, lane);  // all lanes call
    const float coefficient = exists ? beyond * after * dt * dot : 0.0F;
    float values[8];
    value.unpack(values);
#pragma unroll
    for (int e = 0; e < 8; ++e) values[e] = exists ? coefficient * values[e] : 0.0F;
    output += sum_halves(values, lane);

    Four<Act> of_token = only_query;
    if (kSteps > 1)
      of_token.load(typed_at<const Act>(inputs.query, first + t, group) + 4 * lane, kAligned);
    const float4 query = of_token.unpack();
    float read[kTileRows];
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) read[r] = dot4(tile.row[r], query);
    const float reach = beyond * __shfl_sync(~0U, suffix, 0);
    output = fmaf(reach, sum_rows(read, lane), output);

    if (layer.weights.d != nullptr) output = fmaf(skip, x, output);
    if (writer) {
      if (inputs.z.data != nullptr)
        output *= silu(to_float(typed_at<const Act>(inputs.z, first + t, head)[v]));
      store_output<Act>(inputs.out, first + t, head, v, output);
    }
  }

  // Records go to places that nothing of this forward reads.
#pragma unroll
  for (int t = 0; t < kSteps; ++t) {
    if (t >= tokens) break;
    // One token's own place is among the 16; a path of several may reach beyond.
    const std::int64_t to = kSteps == 1 ? __shfl_sync(~0U, place_index, 2 * n) : order[n + t];
    if (writer) records.value[to * shape.value_dim + v] = kSteps == 1 ? only_x : fresh_value(t)[v];
    if (part != 0) continue;
    if (lane == t) records.gate[to] = fresh_dt;
    if (first_of_group) {
      Act* const key = records.key + to * kTileKeys + 4 * lane;
      Four<Act> whole;
      whole.load(fresh_key(t), kAligned);
      whole.store(key);
    }
  }
}

template <typename Act, int kSteps, bool kAligned>
Status run(const Tables& tables, const LayerTable& layer, const LayerInputs& inputs, float* dots) {
  const LayerShape& shape = layer.shape;
  const auto blocks = [](std::int64_t warps) { return (warps + kTileWarps - 1) / kTileWarps; };
  const std::int64_t rows = tables.table.forward.count;
  const std::int64_t extent = token_extent(inputs, shape);
  const Divisor parts(shape.value_dim / kTileRows);
  const Divisor heads_per_group(shape.heads / shape.groups);
  const LaunchShape grid = {blocks(shape.heads * shape.value_dim / kTileRows), kTileThreads, 0,
                            inputs.stream, rows};
  if (dots == nullptr) {
    return launch("fast step", step_kernel<Act, kSteps, kAligned, false>, grid, tables, layer,
                  inputs, extent, parts, heads_per_group, dots);
  }
  REPLAYSSM_RETURN_IF_ERROR(launch("dots of the step", dots_kernel<Act, kSteps, kAligned>,
                                   {blocks(shape.groups), kTileThreads, 0, inputs.stream, rows},
                                   tables, layer, inputs, extent, dots));
  return launch("fast step", step_kernel<Act, kSteps, kAligned, true>, grid, tables, layer, inputs,
                extent, parts, heads_per_group, dots);
}

template <typename Act>
Status run(const Tables& tables, const LayerTable& layer, const LayerInputs& inputs, float* dots) {
  const bool aligned = wide(inputs.key) && wide(inputs.query) && wide(inputs.value);
  if (tables.table.max_step_tokens == 1) {
    return aligned ? run<Act, 1, true>(tables, layer, inputs, dots)
                   : run<Act, 1, false>(tables, layer, inputs, dots);
  }
  return aligned ? run<Act, 4, true>(tables, layer, inputs, dots)
                 : run<Act, 4, false>(tables, layer, inputs, dots);
}

}  // namespace

namespace {
// From so many rows on a launch of its own for the dots pays (docs/cuda.md).
constexpr std::int64_t kRowsForDots = 16;
}  // namespace

bool wide(const TensorView& view) {
  constexpr int kElements = 8;
  const std::size_t bytes = std::min<std::size_t>(16, kElements * dtype_bytes(view.dtype));
  return reinterpret_cast<std::uintptr_t>(view.data) % bytes == 0 &&
         view.stride[0] % kElements == 0 && view.stride[1] % kElements == 0;
}

std::string why_not_fast(const CacheConfig& config, const LayerShape& shape) {
  if (shape.rule != Rule::kMamba2) return concat("rule ", rule_name(shape.rule));
  if (config.activations == DType::kF16) return "f16 activations";
  if (shape.key_dim != kTileKeys || shape.value_dim % kTileRows != 0)
    return concat("value_dim ", shape.value_dim, ", key_dim ", shape.key_dim);
  if (config.max_rows > kMaxGridRows) return concat("max_rows ", config.max_rows);
  if (config.max_step_tokens > 4) return concat("max_step_tokens ", config.max_step_tokens);
  if (config.decode == DecodeMode::kReplay && config.window > kTileRecords)
    return concat("window ", config.window);
  return {};
}

std::int64_t dots_bytes(const CacheConfig& config, std::int32_t groups) {
  if (config.decode != DecodeMode::kReplay || config.max_rows < kRowsForDots) return 0;
  const std::int64_t floats = (config.max_step_tokens == 1 ? 1 : 4) + 2;
  return config.max_rows * groups * floats * kWarp * 4;
}

Status step_fast(const Tables& tables, const LayerTable& layer, const LayerInputs& inputs,
                 float* dots) {
  if (tables.table.forward.count < kRowsForDots) dots = nullptr;
  return tables.table.activations == DType::kF32 ? run<float>(tables, layer, inputs, dots)
                                                 : run<BFloat16>(tables, layer, inputs, dots);
}

}  // namespace replayssm::cuda
