// The replay step of all three rules, one block of threads a row and head: the coefficients of the
// records first, by walking back along each token's own path, then one pass over the checkpoint,
// records written, state not. The formulas stand in docs/law.md.
#include <algorithm>

#include "backend/cuda/common/launch.cuh"
#include "backend/cuda/reference/rooms.hpp"
#include "backend/cuda/reference/warp.cuh"

namespace replayssm::cuda {
namespace {

constexpr unsigned kThreads = 128;

// Shared arrays of one block, in floats: see step_kernel.
struct Shared {
  float* to_query;     // [T, n + T] what u_j (mamba2: x_j) counts for in output t
  float* to_key;       // [T, n + T] and in the prediction of u_t; gdn and kda
  float* query_reach;  // [T, K] q_t times the decay from the checkpoint, where that is a vector
  float* key_reach;    // [T, K] the same of k_t
  float* reach;        // [T] that decay where it is one number
};

__host__ __device__ std::int64_t shared_floats(std::int64_t steps, std::int64_t total,
                                               std::int64_t keys) {
  return 2 * steps * total + 2 * steps * keys + steps;
}

__device__ Shared split(float* base, std::int64_t steps, std::int64_t total, std::int64_t keys) {
  Shared shared;
  shared.to_query = base;
  shared.to_key = shared.to_query + steps * total;
  shared.query_reach = shared.to_key + steps * total;
  shared.key_reach = shared.query_reach + steps * keys;
  shared.reach = shared.key_reach + steps * keys;
  return shared;
}

struct Path {
  const std::int32_t* parents;
  std::int32_t n;  // committed records
  // What comes before j on the path of a pending token, -1 at the checkpoint.
  __device__ std::int32_t before(std::int32_t j) const {
    const std::int32_t parent = j >= n ? parent_of(parents, j - n) : -1;
    if (parent >= 0) return n + parent;
    return (j < n ? j : n) - 1;
  }
};

// Coefficients of token t, by one warp. Decays are multiplied on from the newest record to the
// oldest, so none is ever a difference.
template <typename TokenAt>
__device__ void walk(const HeadTokens& tokens, const Path& path, std::int32_t t, std::int32_t total,
                     std::int64_t fresh, TokenAt token_at, const Shared& shared) {
  const LayerShape& shape = tokens.shape();
  const bool channels = shape.rule == Rule::kKda;
  LaneRow query = tokens.query(fresh);
  LaneRow key = tokens.key({fresh, true});
  float weight = 1.0F;
  std::int32_t j = path.n + t;
  const float own = lane_dot(key, query);
  if (lane_id() == 0)
    shared.to_query[t * total + j] = tokens.delta() ? own : tokens.weight({fresh, true}) * own;
  while (true) {
    // The decay of a record lies between it and everything older.
    const auto newer = token_at(j);
    if (channels) {
      const LaneRow decay = tokens.channel_decay(newer);
#pragma unroll
      for (int i = 0; i < kLaneElements; ++i) {
        key.at[i] *= decay.at[i];
        query.at[i] *= decay.at[i];
      }
    } else {
      weight *= tokens.decay(newer);
    }
    j = path.before(j);
    if (j < 0) break;
    const auto token = token_at(j);
    const LaneRow older = tokens.key(token);
    const float to_query = lane_dot(older, query);
    const float to_key = tokens.delta() ? lane_dot(older, key) : 0.0F;
    if (lane_id() == 0) {
      const float scale = tokens.delta() ? weight : weight * tokens.weight(token);
      shared.to_query[t * total + j] = scale * to_query;
      shared.to_key[t * total + j] = scale * to_key;
    }
  }
  each_k(shape.key_dim, [&](int i, int k) {
    shared.query_reach[t * shape.key_dim + k] = query.at[i];
    shared.key_reach[t * shape.key_dim + k] = key.at[i];
  });
  if (lane_id() == 0) shared.reach[t] = weight;
}

// Leaves what the tokens' records share between the rows of the state. Nothing of this forward
// reads it there.
__device__ void write_records(const HeadTokens& tokens, const RowDescriptor& desc,
                              const std::uint16_t* pending) {
  const LayerShape& shape = tokens.shape();
  const bool first_of_group = tokens.head % (shape.heads / shape.groups) == 0;
  const auto warp = static_cast<std::int32_t>(threadIdx.x) / kWarp;
  const auto warps = static_cast<std::int32_t>(blockDim.x) / kWarp;
  for (std::int32_t i = warp; i < desc.tokens; i += warps) {
    const std::int64_t token = desc.token_offset + i;
    const HeadTokens::Token fresh = {token, true};
    const std::int64_t index = pending[i];
    if (first_of_group) {
      const LayerInputs& inputs = *tokens.inputs;
      each_k(shape.key_dim, [&](int, int k) {
        store_float(tokens.records.key(tokens.group, index), tokens.table.activations, k,
                    load_float(at(inputs.key, token, tokens.group), inputs.key.dtype, k));
      });
      const float norm = tokens.key_norm(fresh);
      if (tokens.delta() && lane_id() == 0) *tokens.records.inv_norm(tokens.group, index) = norm;
    }
    if (shape.rule == Rule::kKda) {
      const LayerInputs& inputs = *tokens.inputs;
      each_k(shape.key_dim, [&](int, int k) {
        store_float(tokens.records.gate(tokens.head, index), tokens.records.gate_dtype(), k,
                    load_float(at(inputs.gate, token, tokens.head), inputs.gate.dtype, k));
      });
    } else if (lane_id() == 0) {
      *reinterpret_cast<float*>(tokens.records.gate(tokens.head, index)) = tokens.gate(fresh);
    }
    if (tokens.delta() && lane_id() == 0)
      *tokens.records.beta(tokens.head, index) = tokens.weight(fresh);
  }
}

__global__ void __launch_bounds__(kThreads)
    step_kernel(const __grid_constant__ Tables tables, const __grid_constant__ LayerTable layer,
                const __grid_constant__ LayerInputs inputs, std::int64_t extent) {
  extern __shared__ float memory[];
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
  const std::int32_t n = desc.committed;
  const std::int32_t steps = desc.tokens;
  const std::int32_t total = n + steps;
  const std::int32_t keys = shape.key_dim;
  const Path path = {row_parents(table, row), n};
  const std::uint16_t* order = row_order(table, row);
  const auto token_at = [&](std::int32_t j) {
    return j < n ? HeadTokens::Token{order[j], false}
                 : HeadTokens::Token{desc.token_offset + (j - n), true};
  };
  const Shared shared = split(memory, steps, total, keys);
  const auto warps = static_cast<std::int32_t>(blockDim.x) / kWarp;
  for (std::int32_t t = static_cast<std::int32_t>(threadIdx.x) / kWarp; t < steps; t += warps)
    walk(tokens, path, t, total, desc.token_offset + t, token_at, shared);
  __syncthreads();

  const float* state = desc.reads_zero() ? nullptr : head_state(layer, desc.read_block(), 0, head);
  each_row(shape.value_dim, [&](std::int32_t v) {
    const LaneRow checkpoint = state == nullptr
                                   ? lane_zero()
                                   : lane_load(state + std::int64_t{v} * keys, DType::kF32, keys);
    float pending_u = 0.0F;  // lane t: u of pending token t as the read path sees it
    for (std::int32_t t = 0; t < steps; ++t) {
      const LaneRow query = lane_load(shared.query_reach + t * keys, DType::kF32, keys);
      const float query_read =
          state == nullptr ? 0.0F : shared.reach[t] * lane_dot(checkpoint, query);
      const HeadTokens::Token fresh = {desc.token_offset + t, true};
      const float value = tokens.value(fresh, v);
      const std::int64_t index = order[n + t];
      float output = 0.0F;
      if (!tokens.delta()) {
        for (std::int32_t j = n + t; j >= 0; j = path.before(j))
          output = output + shared.to_query[t * total + j] * tokens.value(token_at(j), v);
        output = output + query_read;
      } else {
        const LaneRow key = lane_load(shared.key_reach + t * keys, DType::kF32, keys);
        const float key_read =
            state == nullptr ? 0.0F : shared.reach[t] * lane_dot(checkpoint, key);
        float predicted = 0.0F;
        for (std::int32_t j = path.before(n + t); j >= 0; j = path.before(j)) {
          const float u = j < n ? load_float(tokens.records.update(head, order[j]), table.update, v)
                                : __shfl_sync(~0U, pending_u, j - n);
          predicted = predicted + shared.to_key[t * total + j] * u;
          output = output + shared.to_query[t * total + j] * u;
        }
        predicted = predicted + key_read;
        output = output + query_read;
        const float u = tokens.weight(fresh) * (value - predicted);
        output = output + shared.to_query[t * total + n + t] * u;
        // Later tokens of this step see what a later step would: u as stored.
        if (lane_id() == t) pending_u = round_through(u, table.update);
        if (lane_id() == 0) store_float(tokens.records.update(head, index), table.update, v, u);
      }
      if (lane_id() == 0) {
        store_float(tokens.records.value(head, index), table.activations, v, value);
        store_float(at(inputs.out, fresh.index, head), inputs.out.dtype, v,
                    tokens.finish(fresh.index, v, output));
      }
    }
  });
  write_records(tokens, desc, order + n);
}

}  // namespace

std::int64_t token_extent(const LayerInputs& inputs, const LayerShape& shape) {
  std::int64_t extent = INT64_MAX;
  const auto limit = [&](const TensorView& view) {
    extent = std::min(extent, view.present() ? view.shape[0] : std::int64_t{0});
  };
  for (const TensorView* view :
       {&inputs.value, &inputs.key, &inputs.query, &inputs.gate, &inputs.out})
    limit(*view);
  if (shape.rule != Rule::kMamba2) limit(inputs.beta);
  if (inputs.z.present()) limit(inputs.z);
  return extent;
}

Status prepare_reference() {
  // The largest window, T_max and K together.
  const std::int64_t bytes =
      shared_floats(kMaxStepTokens, kMaxWindow - 1 + kMaxStepTokens, kMaxHeadDim) * 4;
  return check(cudaFuncSetAttribute(step_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(bytes)),
               "shared memory of the step");
}

Status step_reference(const Tables& tables, const LayerTable& layer, const LayerInputs& inputs) {
  const CacheTable& table = tables.table;
  const std::int64_t blocks = table.forward.count * layer.shape.heads;
  const std::int64_t total =
      std::int64_t{table.window} - 1 + table.max_step_tokens;  // a fold leaves W - 1 at most
  const auto bytes = static_cast<std::size_t>(
      shared_floats(table.max_step_tokens, total, layer.shape.key_dim) * 4);
  return launch("step", step_kernel, {blocks, kThreads, bytes, inputs.stream}, tables, layer,
                inputs, token_extent(inputs, layer.shape));
}

}  // namespace replayssm::cuda
