// What a step knows of a row's records and tokens before it looks at the state: the paths of its
// tokens, and the products B . C. The same for all heads of a group.
#pragma once

#include "backend/cuda/fast/tile.cuh"

namespace replayssm::cuda {

// Where the tokens of a row stand behind the committed records, root first, four bits each.
template <int kSteps>
struct Paths {
  std::uint32_t nodes[kSteps];
  int depth[kSteps];  // nodes before the token itself

  // `parent` of token t in lane t; all lanes call.
  __device__ explicit Paths(std::int32_t parent) {
#pragma unroll
    for (int t = 0; t < kSteps; ++t) {
      const std::int32_t before = __shfl_sync(~0U, parent, t);
      nodes[t] = 0;
      depth[t] = 0;
#pragma unroll
      for (int p = 0; p < t; ++p) {
        if (before != p) continue;
        nodes[t] = nodes[p];
        depth[t] = depth[p] + 1;
      }
      nodes[t] |= static_cast<std::uint32_t>(t) << (4 * depth[t]);
    }
  }
  __device__ int node(int t, int place) const {
    return static_cast<int>(nodes[t] >> (4 * place) & 15U);
  }
};

// B . C of a row's records and tokens.
template <int kSteps>
struct Dots {
  float place[kSteps];  // [t]: of the record at this lane's place
  float fresh[2];       // more than one token: of token l / 4 with tokens 2 (l % 4) and the next

  // Of fresh tokens `node`, which may differ by lane, and t; all lanes call.
  __device__ float pair(int t, int node) const {
    return __shfl_sync(~0U, fresh[t & 1], node * 4 + t / 2);
  }
};

// Where the 16 places' keys lie: `committed` ring records, then, where a step has one token alone,
// that token's own.
template <typename Act>
struct Keys {
  const Act* ring;          // the group's records of this slot
  const Act* fresh;         // token 0 of the step
  std::int64_t fresh_step;  // elements from token to token
  const Act* query;         // token 0
  std::int64_t query_step;
  std::int32_t index;  // ring index of this lane's place
  std::int32_t committed;
  std::int32_t tokens;
};

// Tensor cores: records are rows, tokens are columns. A row's sums do not depend on where it
// stands.
template <int kSteps, bool kAligned>
__device__ Dots<kSteps> all_dots(const Keys<BFloat16>& keys, int lane) {
  const int place = lane / 4;  // and place + 8
  const int at = lane % 4 * 8;
  const auto index_low = __shfl_sync(~0U, keys.index, 2 * place);
  const auto index_high = __shfl_sync(~0U, keys.index, 2 * place + 16);
  const BFloat16* const fresh = keys.fresh + (kSteps == 1 ? 0 : place) * keys.fresh_step + at;
  const BFloat16* const query = keys.query + place * keys.query_step + at;
  const bool own_low = kSteps == 1 && place == keys.committed;
  const bool own_high = kSteps == 1 && place + 8 == keys.committed;
  const BFloat16* const low = own_low ? fresh : keys.ring + index_low * kTileKeys + at;
  const BFloat16* const high = own_high ? fresh : keys.ring + index_high * kTileKeys + at;
  const bool has_low = own_low || place < keys.committed;
  const bool has_high = own_high || place + 8 < keys.committed;
  const bool has_token = place < keys.tokens;
  float records[4] = {};
  float tokens[4] = {};
  const uint4 zero = make_uint4(0, 0, 0, 0);
#pragma unroll
  for (int chunk = 0; chunk < kTileKeys; chunk += 64) {
    Eight<BFloat16> a[2];
    Eight<BFloat16> b[2];
    Eight<BFloat16> own[2];
    Eight<BFloat16> column[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int k = chunk + 32 * i;
      if (has_low) a[i].load(low + k, kAligned);
      if (has_high) b[i].load(high + k, kAligned);
      if (has_token) column[i].load(query + k, kAligned);
      if (kSteps > 1 && has_token) own[i].load(fresh + k, kAligned);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      mma8(records, a[i].bits, b[i].bits, column[i].bits);
      if (kSteps > 1) mma8(tokens, own[i].bits, zero, column[i].bits);
    }
  }
  Dots<kSteps> dots;
#pragma unroll
  for (int t = 0; t < kSteps; ++t) {
    const int from = lane / 2 % 8 * 4 + t / 2;
    const float first = __shfl_sync(~0U, records[t & 1], from);
    const float second = __shfl_sync(~0U, records[2 + (t & 1)], from);
    dots.place[t] = lane < 16 ? first : second;
  }
  dots.fresh[0] = tokens[0];
  dots.fresh[1] = tokens[1];
  return dots;
}

// The same in f32: every lane its four k of every row, then sums over the lanes.
template <int kSteps, bool kAligned>
__device__ Dots<kSteps> all_dots(const Keys<float>& keys, int lane) {
  constexpr int kBatch = 4;  // keys in flight
  float4 query[kSteps];
#pragma unroll
  for (int t = 0; t < kSteps; ++t) {
    query[t] = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
    if (t < keys.tokens) query[t] = load4(keys.query + t * keys.query_step + 4 * lane, kAligned);
  }
  float product[kSteps][kTileRecords];
#pragma unroll
  for (int first = 0; first < kTileRecords; first += kBatch) {
    float4 key[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int j = first + b;
      const std::int32_t from = __shfl_sync(~0U, keys.index, 2 * j);
      key[b] = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
      if (j < keys.committed) key[b] = load4(keys.ring + from * kTileKeys + 4 * lane);
      if (kSteps == 1 && j == keys.committed) key[b] = load4(keys.fresh + 4 * lane, kAligned);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
#pragma unroll
      for (int t = 0; t < kSteps; ++t) product[t][first + b] = dot4(key[b], query[t]);
    }
  }
  Dots<kSteps> dots;
#pragma unroll
  for (int t = 0; t < kSteps; ++t) dots.place[t] = sum_records(product[t], lane);
  dots.fresh[0] = dots.fresh[1] = 0.0F;
  if constexpr (kSteps > 1) {
    // Place 4 i + t of one more round is that of fresh tokens i and t.
    float pair[kTileRecords] = {};
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      float4 key = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
      if (i < keys.tokens) key = load4(keys.fresh + i * keys.fresh_step + 4 * lane, kAligned);
#pragma unroll
      for (int t = i; t < kSteps; ++t) pair[4 * i + t] = dot4(key, query[t]);
    }
    const float sum = sum_records(pair, lane);
    const int from = 2 * (lane / 4 % 4 * 4 + lane % 2 * 2);
    dots.fresh[0] = __shfl_sync(~0U, sum, from);
    dots.fresh[1] = __shfl_sync(~0U, sum, from + 2);
  }
  return dots;
}

// `order`: the row's; `index` of a place without a committed record is 0 and never used.
template <typename Act>
__device__ Keys<Act> make_keys(const LayerInputs& inputs, const TileRecords<Act>& records,
                               const RowDescriptor& desc, std::int32_t group, std::int32_t index) {
  Keys<Act> keys;
  keys.ring = records.key;
  keys.fresh = typed_at<const Act>(inputs.key, desc.token_offset, group);
  keys.fresh_step = inputs.key.stride[0];
  keys.query = typed_at<const Act>(inputs.query, desc.token_offset, group);
  keys.query_step = inputs.query.stride[0];
  keys.index = index;
  keys.committed = desc.committed;
  keys.tokens = desc.tokens;
  return keys;
}

}  // namespace replayssm::cuda
