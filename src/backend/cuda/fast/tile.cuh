// The piece of work of every fast kernel: one warp, alone, holds 16 rows of a head's state, 8 KiB,
// all loaded before the first use. Lane l holds the four elements k = 4 l .. 4 l + 3 of each row,
// so that a load is one gap-free 512 bytes of the warp and the query needs four registers a token.
// No barriers between warps: whatever they could share is cheaper to read twice than to wait for.
#pragma once

#include "backend/cuda/common/access.cuh"
#include "math/gates.hpp"

namespace replayssm::cuda {

inline constexpr int kTileRows = 16;
inline constexpr int kTileKeys = 128;
inline constexpr int kTileRecords = 16;  // the longest window the fast kernels take
inline constexpr int kTileThreads = 128;
inline constexpr int kTileWarps = kTileThreads / kWarp;

// Addresses with the element type known: asking for it at every access costs more than the access.
template <typename T>
__device__ inline T* typed_at(const TensorView& view, std::int64_t i0, std::int64_t i1) {
  return static_cast<T*>(view.data) + i0 * view.stride[0] + i1 * view.stride[1];
}
// A gate or an output is f32 or Act.
template <typename Act>
__device__ inline float load_gate(const TensorView& gate, std::int64_t token, std::int32_t head) {
  if (gate.dtype == DType::kF32) return *typed_at<const float>(gate, token, head);
  return to_float(*typed_at<const Act>(gate, token, head));
}
template <typename Act>
__device__ inline void store_output(const TensorView& out, std::int64_t token, std::int32_t head,
                                    std::int32_t v, float value) {
  if (out.dtype == DType::kF32) {
    typed_at<float>(out, token, head)[v] = value;
  } else {
    typed_at<Act>(out, token, head)[v] = from_float<Act>(value);
  }
}

// The records of one slot that one head reads.
template <typename Act>
struct TileRecords {
  Act* value;   // [R, V]
  Act* key;     // [R, K]
  float* gate;  // [R]

  __device__ TileRecords(const CacheTable& table, const LayerTable& layer, std::int64_t slot,
                         std::int32_t head, std::int32_t group)
      : value(reinterpret_cast<Act*>(element(layer.value, slot, 0)) +
              std::int64_t{head} * table.ring * layer.shape.value_dim),
        key(reinterpret_cast<Act*>(element(layer.key, slot, 0)) +
            std::int64_t{group} * table.ring * kTileKeys),
        gate(reinterpret_cast<float*>(element(layer.gate, slot, 0)) +
             std::int64_t{head} * table.ring) {}
};

// A of one head, asked for early and computed late: its exponential must not stand before the
// loads of the state.
struct HeadDecay {
  float raw;
  bool log;
  __device__ HeadDecay(const LayerWeights& weights, std::int32_t head)
      : raw((weights.a != nullptr ? weights.a : weights.a_log)[head]), log(weights.a == nullptr) {}
  __device__ float a() const { return log ? -expf(raw) : raw; }
};

// Division of small numbers by one that the host knows: n / d where n d < 2^32.
struct Divisor {
  std::uint32_t by = 1;
  std::uint32_t magic = 0;  // floor(2^32 / d) + 1; d = 1 needs none

  explicit Divisor(std::int32_t d)
      : by(static_cast<std::uint32_t>(d)),
        magic(d > 1 ? static_cast<std::uint32_t>((std::uint64_t{1} << 32U) / by + 1) : 0) {}
  __device__ std::uint32_t divide(std::uint32_t n) const {
    return by == 1 ? n : __umulhi(n, magic);
  }
};

// A descriptor in four loads at once: field by field each would wait for the one before.
__device__ inline RowDescriptor load_descriptor(const RowDescriptor* from) {
  static_assert(sizeof(RowDescriptor) == 64);
  union Bits {
    uint4 word[4];
    RowDescriptor desc;
    __device__ Bits() {}
  } bits;
#pragma unroll
  for (int i = 0; i < 4; ++i) bits.word[i] = reinterpret_cast<const uint4*>(from)[i];
  return bits.desc;
}

struct Tile {
  float4 row[kTileRows];
};

// Streaming: the state is used once a step, and should not push the ring out of the caches.
__device__ inline void load_tile(Tile& tile, const float* state, int lane) {
#pragma unroll
  for (int r = 0; r < kTileRows; ++r)
    tile.row[r] = __ldcs(reinterpret_cast<const float4*>(state + r * kTileKeys) + lane);
}

__device__ inline void zero_tile(Tile& tile) {
#pragma unroll
  for (int r = 0; r < kTileRows; ++r) tile.row[r] = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
}

__device__ inline void store_tile(const Tile& tile, float* state, int lane) {
#pragma unroll
  for (int r = 0; r < kTileRows; ++r)
    __stcs(reinterpret_cast<float4*>(state + r * kTileKeys) + lane, tile.row[r]);
}

__device__ inline float dot4(const float4& a, const float4& b) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, a.x * b.x)));
}

// NaN where some element is not finite, else 0.
__device__ inline float not_finite(const Tile& tile) {
  float sum = 0.0F;
#pragma unroll
  for (int r = 0; r < kTileRows; ++r) {
    sum = fmaf(tile.row[r].x, 0.0F, sum);
    sum = fmaf(tile.row[r].y, 0.0F, sum);
    sum = fmaf(tile.row[r].z, 0.0F, sum);
    sum = fmaf(tile.row[r].w, 0.0F, sum);
  }
  return sum;
}

// One halving of `2 n` values: lanes whose `mask` bit is set keep the upper half, the others the
// lower one, each adding what its partner had of it.
template <int n>
__device__ inline void halve(float* value, int lane, int mask) {
  const bool upper = (lane & mask) != 0;
#pragma unroll
  for (int i = 0; i < n; ++i) {
    const float keep = upper ? value[i + n] : value[i];
    const float send = upper ? value[i] : value[i + n];
    value[i] = keep + __shfl_xor_sync(~0U, send, mask);
  }
}

// Sums over all lanes of 16 values; lane l gets that of row tile_row(l).
__device__ inline float sum_rows(float* value, int lane) {
  halve<8>(value, lane, 1);
  halve<4>(value, lane, 16);
  halve<2>(value, lane, 8);
  halve<1>(value, lane, 4);
  return value[0] + __shfl_xor_sync(~0U, value[0], 2);
}
__device__ inline int tile_row(int lane) {
  return (lane & 1) * 8 + (lane >> 4) * 4 + (lane >> 3 & 1) * 2 + (lane >> 2 & 1);
}

// Sums of 16 values over all lanes; lane l gets that of record l / 2.
__device__ inline float sum_records(float* value, int lane) {
  halve<8>(value, lane, 16);
  halve<4>(value, lane, 8);
  halve<2>(value, lane, 4);
  halve<1>(value, lane, 2);
  return value[0] + __shfl_xor_sync(~0U, value[0], 1);
}

// Of 8 rows a lane, those of half l % 2 of the tile, over the 16 lanes of that half; lane l gets
// row tile_row(l).
__device__ inline float sum_halves(float* value, int lane) {
  halve<4>(value, lane, 16);
  halve<2>(value, lane, 8);
  halve<1>(value, lane, 4);
  return value[0] + __shfl_xor_sync(~0U, value[0], 2);
}

// Four neighbouring elements; the address is aligned to their size.
__device__ inline float4 load4(const float* from) { return *reinterpret_cast<const float4*>(from); }
__device__ inline float4 load4(const BFloat16* from) {
  const uint2 bits = *reinterpret_cast<const uint2*>(from);
  return make_float4(__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xFFFF0000U),
                     __uint_as_float(bits.y << 16), __uint_as_float(bits.y & 0xFFFF0000U));
}
// Four or eight neighbouring elements where nothing is known of the address.
template <typename Act>
__device__ inline float4 load4(const Act* from, bool aligned) {
  if (aligned) return load4(from);
  return make_float4(to_float(from[0]), to_float(from[1]), to_float(from[2]), to_float(from[3]));
}

// Eight neighbouring values of a record, kept as they are stored until they are used.
template <typename Act>
struct Eight;
template <>
struct Eight<BFloat16> {
  uint4 bits = make_uint4(0, 0, 0, 0);
  __device__ void load(const BFloat16* from, bool aligned) {
    if (aligned) {
      bits = *reinterpret_cast<const uint4*>(from);
    } else {
      const auto pair = [&](int i) { return from[i].bits | unsigned{from[i + 1].bits} << 16U; };
      bits = make_uint4(pair(0), pair(2), pair(4), pair(6));
    }
  }
  __device__ void unpack(float* to) const {
    const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[2 * i] = __uint_as_float(words[i] << 16);
      to[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000U);
    }
  }
};
template <>
struct Eight<float> {
  float4 low = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  float4 high = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  __device__ void load(const float* from, bool aligned) {
    low = load4(from, aligned);
    high = load4(from + 4, aligned);
  }
  __device__ void unpack(float* to) const {
    to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
    to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
  }
};

// The same of four.
template <typename Act>
struct Four;
template <>
struct Four<BFloat16> {
  uint2 bits = make_uint2(0, 0);
  __device__ void load(const BFloat16* from, bool aligned) {
    if (aligned) {
      bits = *reinterpret_cast<const uint2*>(from);
    } else {
      bits = make_uint2(from[0].bits | unsigned{from[1].bits} << 16U,
                        from[2].bits | unsigned{from[3].bits} << 16U);
    }
  }
  __device__ void store(BFloat16* to) const { *reinterpret_cast<uint2*>(to) = bits; }
  __device__ float4 unpack() const {
    return make_float4(__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xFFFF0000U),
                       __uint_as_float(bits.y << 16), __uint_as_float(bits.y & 0xFFFF0000U));
  }
};
template <>
struct Four<float> {
  float4 value = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  __device__ void load(const float* from, bool aligned) { value = load4(from, aligned); }
  __device__ void store(float* to) const { *reinterpret_cast<float4*>(to) = value; }
  __device__ float4 unpack() const { return value; }
};

// c += a b of m16n8k16 in bf16, summed in f32. Lane l holds, of rows l / 4 and l / 4 + 8 and of
// column l / 4, the same two pairs of k. Which k a pair stands for does not matter as long as rows
// and column agree; so a lane's 16 bytes are two such steps as they lie in memory.
__device__ inline void mma(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                           unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ inline void mma8(float (&c)[4], const uint4& low, const uint4& high, const uint4& b) {
  mma(c, low.x, high.x, low.y, high.y, b.x, b.y);
  mma(c, low.z, high.z, low.w, high.w, b.z, b.w);
}

// Products of `decay` over this lane's place (l / 2) and all higher ones: never a difference of
// sums, and grouped by place alone, whatever stands at the places beyond the last.
__device__ inline float suffix_product(float decay, int lane) {
#pragma unroll
  for (int step = 2; step < kWarp; step *= 2) {
    const float newer = __shfl_down_sync(~0U, decay, step);
    if (lane + step < kWarp) decay *= newer;
  }
  return decay;
}
// That of the next place, 1 behind the last.
__device__ inline float behind(float suffix, int lane) {
  const float next = __shfl_down_sync(~0U, suffix, 2);
  return lane + 2 < kWarp ? next : 1.0F;
}

}  // namespace replayssm::cuda
