// One warp works on one row v of a head's state: lane l holds the elements k = l, l + 32, ... The
// order of every sum is fixed here, and depends neither on T nor on the batch.
#pragma once

#include "backend/cuda/common/access.cuh"
#include "math/gates.hpp"

namespace replayssm::cuda {

inline constexpr int kLaneElements = kMaxHeadDim / kWarp;

// A vector over K, spread over the lanes. Elements at and beyond K are 0.
struct LaneRow {
  float at[kLaneElements];
};

// The sum over all lanes, the same in every lane.
__device__ inline float warp_sum(float value) {
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(~0U, value, step);
  return value;
}

__device__ inline int lane_id() { return static_cast<int>(threadIdx.x) % kWarp; }

template <typename F>
__device__ inline void each_k(std::int32_t keys, F&& body) {
#pragma unroll
  for (int i = 0; i < kLaneElements; ++i) {
    const int k = lane_id() + i * kWarp;
    if (k < keys) body(i, k);
  }
}

__device__ inline float lane_dot(const LaneRow& a, const LaneRow& b) {
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < kLaneElements; ++i) sum = sum + a.at[i] * b.at[i];
  return warp_sum(sum);
}

__device__ inline LaneRow lane_zero() {
  LaneRow row;
#pragma unroll
  for (int i = 0; i < kLaneElements; ++i) row.at[i] = 0.0F;
  return row;
}

__device__ inline LaneRow lane_load(const void* base, DType dtype, std::int32_t keys) {
  LaneRow row = lane_zero();
  each_k(keys, [&](int i, int k) { row.at[i] = load_float(base, dtype, k); });
  return row;
}

__device__ inline void lane_scale(LaneRow& row, float by) {
#pragma unroll
  for (int i = 0; i < kLaneElements; ++i) row.at[i] *= by;
}

__device__ inline bool lane_finite(const LaneRow& row) {
  bool finite = true;
#pragma unroll
  for (int i = 0; i < kLaneElements; ++i) finite = finite && isfinite(row.at[i]);
  return finite;
}

// One token of one head: a record in the ring, or fresh among the inputs. Both come out alike, bit
// for bit, which is what makes a fold equal to having stepped.
struct HeadTokens {
  const CacheTable& table;
  const LayerTable& layer;
  const LayerInputs* inputs;  // null where only records are read
  Records records;
  std::int32_t head;
  std::int32_t group;

  __device__ HeadTokens(const CacheTable& cache, const LayerTable& of_layer,
                        const LayerInputs* fresh, std::int64_t slot, std::int32_t of_head)
      : table(cache),
        layer(of_layer),
        inputs(fresh),
        records{cache, of_layer, slot},
        head(of_head),
        group(of_head / (of_layer.shape.heads / of_layer.shape.groups)) {}

  struct Token {
    std::int64_t index;  // ring index of a record, token of the inputs
    bool fresh;
  };

  __device__ const LayerShape& shape() const { return layer.shape; }
  __device__ bool delta() const { return layer.shape.rule != Rule::kMamba2; }

  // What a record keeps: dt or g. Not for kda.
  __device__ float gate(const Token& token) const {
    if (!token.fresh) return *reinterpret_cast<const float*>(records.gate(head, token.index));
    const float raw = load_float(at_gate(token.index), inputs->gate.dtype, 0);
    const float bias = layer.weights.dt_bias != nullptr ? layer.weights.dt_bias[head] : 0.0F;
    if (!delta()) return mamba2_dt(shape(), raw, bias);
    return log_decay(shape(), raw, bias, gate_scale(shape(), layer.weights, head));
  }
  // The decay where it is one number.
  __device__ float decay(const Token& token) const {
    const float value = gate(token);
    return delta() ? expf(value) : expf(value * head_a(layer.weights, head));
  }
  // dt or beta.
  __device__ float weight(const Token& token) const {
    if (!delta()) return gate(token);
    if (!token.fresh) return *records.beta(head, token.index);
    return beta_value(shape(),
                      load_float(at(inputs->beta, token.index, head), inputs->beta.dtype, 0));
  }
  // x or v.
  __device__ float value(const Token& token, std::int32_t v) const {
    if (!token.fresh) return load_float(records.value(head, token.index), table.activations, v);
    return load_float(at(inputs->value, token.index, head), inputs->value.dtype, v);
  }
  // The factor that normalises k; all lanes call.
  __device__ float key_norm(const Token& token) const {
    if (!delta()) return 1.0F;
    if (!token.fresh) return *records.inv_norm(group, token.index);
    return norm_of(
        lane_load(at(inputs->key, token.index, group), inputs->key.dtype, shape().key_dim));
  }
  // B, or k normalised.
  __device__ LaneRow key(const Token& token) const {
    LaneRow row =
        token.fresh
            ? lane_load(at(inputs->key, token.index, group), inputs->key.dtype, shape().key_dim)
            : lane_load(records.key(group, token.index), table.activations, shape().key_dim);
    if (delta()) lane_scale(row, key_norm(token));
    return row;
  }
  // C, or q normalised and scaled.
  __device__ LaneRow query(std::int64_t token) const {
    LaneRow row = lane_load(at(inputs->query, token, group), inputs->query.dtype, shape().key_dim);
    if (delta()) lane_scale(row, norm_of(row) * query_scale(shape()));
    return row;
  }
  // kda: the decay of every key channel.
  __device__ LaneRow channel_decay(const Token& token) const {
    const std::int32_t keys = shape().key_dim;
    const float scale = gate_scale(shape(), layer.weights, head);
    const float* bias = layer.weights.dt_bias != nullptr
                            ? layer.weights.dt_bias + std::int64_t{head} * keys
                            : nullptr;
    LaneRow row = lane_zero();
    each_k(keys, [&](int i, int k) {
      const float raw =
          token.fresh ? round_through(
                            load_float(at(inputs->gate, token.index, head), inputs->gate.dtype, k),
                            records.gate_dtype())
                      : load_float(records.gate(head, token.index), records.gate_dtype(), k);
      row.at[i] = expf(log_decay(shape(), raw, bias != nullptr ? bias[k] : 0.0F, scale));
    });
    return row;
  }

  // S[v] <- S[v] a + u_v k, rounded once behind the product with a and once behind the sum. Every
  // kernel that writes a state rounds so: folds, prompts and conventional steps leave the same
  // bits. All lanes call.
  __device__ void advance(const Token& token, std::int32_t v, LaneRow& row) const {
    const LaneRow k = key(token);
    float update = 0.0F;
    if (!delta()) {
      lane_scale(row, decay(token));
      update = weight(token) * value(token, v);
    } else {
      if (shape().rule == Rule::kGdn) {
        lane_scale(row, decay(token));
      } else {
        const LaneRow a = channel_decay(token);
#pragma unroll
        for (int i = 0; i < kLaneElements; ++i) row.at[i] *= a.at[i];
      }
      update = weight(token) * (value(token, v) - lane_dot(row, k));
    }
#pragma unroll
    for (int i = 0; i < kLaneElements; ++i) row.at[i] = fmaf(update, k.at[i], row.at[i]);
  }

  // mamba2's skip and gate on S q.
  __device__ float finish(std::int64_t token, std::int32_t v, float output) const {
    if (delta()) return output;
    if (layer.weights.d != nullptr)
      output = output + layer.weights.d[head] * value({token, true}, v);
    if (inputs->z.data != nullptr)
      output *= silu(load_float(at(inputs->z, token, head), inputs->z.dtype, v));
    return output;
  }

 private:
  __device__ const char* at_gate(std::int64_t token) const { return at(inputs->gate, token, head); }
  __device__ float norm_of(const LaneRow& row) const {
    return inverse_norm(shape(), shape().qk_l2norm ? lane_dot(row, row) : 0.0F);
  }
};

// The logical state of a head: checkpoint and records. Fold, materialize, store_state and prefill
// all start here, so they cannot disagree.
struct HeadSource {
  std::int64_t block;
  std::int32_t snapshot;
  bool zero;                   // the checkpoint counts as 0 and is not read
  const std::uint16_t* order;  // records, oldest first
  std::int32_t records;
};

// Row v of it; all lanes call.
__device__ inline LaneRow replay_row(const HeadTokens& tokens, const HeadSource& source,
                                     std::int32_t v) {
  const std::int32_t keys = tokens.shape().key_dim;
  LaneRow row = lane_zero();
  if (!source.zero) {
    const float* state = head_state(tokens.layer, source.block, source.snapshot, tokens.head);
    row = lane_load(state + std::int64_t{v} * keys, DType::kF32, keys);
  }
  for (std::int32_t j = 0; j < source.records; ++j)
    tokens.advance({source.order[j], false}, v, row);
  return row;
}

__device__ inline void lane_store(float* target, std::int32_t keys, const LaneRow& row) {
  each_k(keys, [&](int i, int k) { target[k] = row.at[i]; });
}

// Warps of a block share the rows v of a head; calls body(v).
template <typename F>
__device__ inline void each_row(std::int32_t values, F&& body) {
  const auto warps = static_cast<std::int32_t>(blockDim.x) / kWarp;
  for (std::int32_t v = static_cast<std::int32_t>(threadIdx.x) / kWarp; v < values; v += warps)
    body(v);
}

// Writes 0 to the outputs of a padding row, by the threads of a block.
__device__ inline void zero_outputs(const TensorView& out, const RowDescriptor& desc,
                                    std::int64_t middle, std::int64_t last) {
  for (std::int32_t i = 0; i < desc.tokens; ++i) {
    for (std::int64_t e = threadIdx.x; e < last; e += blockDim.x)
      store_float(at(out, desc.token_offset + i, middle), out.dtype, e, 0.0F);
  }
}

}  // namespace replayssm::cuda
