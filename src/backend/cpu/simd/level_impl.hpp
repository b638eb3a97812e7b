// The vector level, written once on a vector type and compiled once an instruction set. Everything
// here is a template on that type, so that no function built for one level can be linked into
// another.
#pragma once

#include <cstddef>
#include <type_traits>

#include "backend/cpu/level.hpp"
#include "backend/cpu/simd/advance_impl.hpp"
#include "backend/cpu/simd/elementary.hpp"
#include "backend/cpu/simd/lanes.hpp"

namespace replayssm::cpu {

template <class V>
struct SimdLevel : SimdLanes<V> {
  using Lanes = SimdLanes<V>;
  using Lanes::bytes_of;
  using Lanes::each;
  using Lanes::kWidth;
  using Lanes::load_lanes;
  using Lanes::store_lanes;

  // --- products
  // ---------------------------------------------------------------------------------------------------

  static float dot(const float* a, const float* b, std::int32_t n) {
    return SimdAdvance<V>::dot_row(a, b, n);
  }

  // kRows rows by kCount vectors; the same sums as dot(), in the same order. kRows * kCount is the
  // width, so that one tree adds up all lanes. `ahead`: kRows rows to fetch.
  // kPart: only `some` of the rows are there; the last one stands in for the others.
  template <int kRows, int kCount, std::int32_t kKeys, bool kPart = false>
  static void dot_tile(const float* matrix, std::int32_t rows, std::int32_t given_keys,
                       const float* vectors, float* sums, const float* ahead,
                       std::int32_t some = kRows) {
    static_assert(kRows * kCount == kWidth);
    const std::int32_t keys = kKeys != 0 ? kKeys : given_keys;
    V sum[kWidth];
    for (V& each_sum : sum) each_sum = V::zero();
    Lanes::template each_of<kKeys>(keys, [&](std::int32_t i, auto lanes) {
      V x[kCount];
      for (int c = 0; c < kCount; ++c)
        x[c] = load_lanes(vectors + std::int64_t{c} * keys + i, lanes);
      for (int r = 0; r < kRows; ++r) {
        if constexpr (!kPart) __builtin_prefetch(ahead + std::int64_t{r} * keys + i);
        const std::int64_t at = kPart && r >= some ? some - 1 : r;
        const V row = load_lanes(matrix + at * keys + i, lanes);
        for (int c = 0; c < kCount; ++c) sum[c * kRows + r] = V::fma(row, x[c], sum[c * kRows + r]);
      }
    });
    alignas(64) float all[kWidth];
    V::sum_each(sum).store(all);
    for (int c = 0; c < kCount; ++c)
      __builtin_memcpy(sums + std::int64_t{c} * rows, all + c * kRows,
                       bytes_of(kPart ? some : kRows, sizeof(float)));
  }

  template <int kCount, std::int32_t kKeys>
  static void dot_rows_of(const float* matrix, std::int32_t rows, std::int32_t keys,
                          const float* vectors, float* sums, const Ahead& next) {
    constexpr int kRows = kWidth / kCount;
    // Far enough ahead for memory, near enough for the first cache.
    constexpr std::int32_t kAheadFloats = 1024;
    const std::int32_t ahead_rows = (kAheadFloats / keys + kRows) / kRows * kRows;
    std::int32_t r = 0;
    std::int32_t line = 0;
    for (; r + kRows <= rows; r += kRows) {
      // Evenly, since the hardware drops what it has no room to wait for.
      const std::int32_t until = (r + kRows) * next.count / rows;
      for (; line < until; ++line) __builtin_prefetch(next.lines[line]);
      const std::int32_t far = r + ahead_rows;
      const float* ahead = matrix + std::int64_t{r} * keys;  // nothing new
      if (far + kRows <= rows) {
        ahead = matrix + std::int64_t{far} * keys;
      } else if (next.matrix != nullptr && far >= rows && far + kRows <= 2 * rows) {
        ahead = next.matrix + std::int64_t{far - rows} * keys;
      }
      dot_tile<kRows, kCount, kKeys>(matrix + std::int64_t{r} * keys, rows, keys, vectors, sums + r,
                                     ahead);
    }
    if (r < rows) {
      dot_tile<kRows, kCount, kKeys, true>(matrix + std::int64_t{r} * keys, rows, keys, vectors,
                                           sums + r, nullptr, rows - r);
    }
  }

  static void dot_rows(const float* matrix, std::int32_t rows, std::int32_t keys,
                       const float* vectors, std::int32_t count, float* sums, const Ahead& next) {
    std::int32_t c = 0;
    const auto take = [&](auto size) {
      for (; c + size() <= count; c += size()) {
        Lanes::with_keys(keys, [&](auto known) {
          dot_rows_of<size(), known()>(matrix, rows, keys, vectors + std::int64_t{c} * keys,
                                       sums + std::int64_t{c} * rows,
                                       c + size() == count ? next : Ahead());
        });
      }
    };
    take(std::integral_constant<std::int32_t, 8>());
    take(std::integral_constant<std::int32_t, 4>());
    take(std::integral_constant<std::int32_t, 2>());
    take(std::integral_constant<std::int32_t, 1>());
  }

  // --- gdn and kda
  // -----------------------------------------------------------------------------------------------

  // kRecords records of the path: both products of each stay in registers.
  template <int kRecords>
  static void walk_records(const WalkRun& run, std::int32_t first) {
    constexpr int kHalf = kWidth / 2;
    const float* key[kRecords];
    const float* decay[kRecords];
    for (int r = 0; r < kRecords; ++r) {
      const std::int64_t at = std::int64_t{run.path[first + r]} * run.keys;
      key[r] = run.key + at;
      decay[r] = run.decay + at;
    }
    V sum[kWidth];
    for (V& each_sum : sum) each_sum = V::zero();
    each(run.keys, [&](std::int32_t i, std::int32_t lanes) {
      V k = load_lanes(run.reach_key + i, lanes);
      V q = load_lanes(run.reach_query + i, lanes);
      for (int r = 0; r < kRecords; ++r) {
        const V x = load_lanes(key[r] + i, lanes);
        sum[r] = V::fma(x, k, sum[r]);
        sum[kHalf + r] = V::fma(x, q, sum[kHalf + r]);
        const V a = load_lanes(decay[r] + i, lanes);
        k = k * a;
        q = q * a;
      }
      store_lanes(k, run.reach_key + i, lanes);
      store_lanes(q, run.reach_query + i, lanes);
    });
    alignas(64) float all[kWidth];
    V::sum_each(sum).store(all);
    __builtin_memcpy(run.to_key + first, all, kRecords * sizeof(float));
    __builtin_memcpy(run.to_query + first, all + kHalf, kRecords * sizeof(float));
  }
  template <int kRecords>
  static void walk_rest(const WalkRun& run, std::int32_t first) {
    if constexpr (kRecords > 0) {
      if (run.count - first == kRecords) {
        walk_records<kRecords>(run, first);
      } else {
        walk_rest<kRecords - 1>(run, first);
      }
    }
  }

  static void walk(const WalkRun& run) {
    const float* own = run.decay + std::int64_t{run.own} * run.keys;
    each(run.keys, [&](std::int32_t i, std::int32_t lanes) {
      const V a = load_lanes(own + i, lanes);
      store_lanes(load_lanes(run.own_key + i, lanes) * a, run.reach_key + i, lanes);
      store_lanes(load_lanes(run.own_query + i, lanes) * a, run.reach_query + i, lanes);
    });
    constexpr int kBlock = kWidth / 2;
    std::int32_t first = 0;
    for (; first + kBlock <= run.count; first += kBlock) walk_records<kBlock>(run, first);
    walk_rest<kBlock - 1>(run, first);
  }

  static void solve(const SolveRun& run) {
    const std::int64_t size = run.dtype == DType::kF32 ? 4 : 2;
    auto* stored = static_cast<unsigned char*>(run.stored);
    each(run.values, [&](std::int32_t i, std::int32_t lanes) {
      V predicted = V::zero();
      V output = V::zero();
      for (std::int32_t j = 0; j < run.count; ++j) {
        const V u = load_lanes(run.update + std::int64_t{run.path[j]} * run.values + i, lanes);
        predicted = V::fma(V::all(run.to_key[j]), u, predicted);
        output = V::fma(V::all(run.to_query[j]), u, output);
      }
      if (run.read_key != nullptr) {
        const V weight = V::all(run.read_weight);
        predicted = V::fma(weight, load_lanes(run.read_key + i, lanes), predicted);
        output = V::fma(weight, load_lanes(run.read_query + i, lanes), output);
      }
      const V u = V::all(run.scale) * (load_lanes(run.value + i, lanes) - predicted);
      store_lanes(V::fma(V::all(run.own_weight), u, output), run.output + i, lanes);
      alignas(64) unsigned char narrow[4 * kWidth];
      store_vector(u, narrow, run.dtype);
      __builtin_memcpy(stored + i * size, narrow, bytes_of(lanes, static_cast<std::size_t>(size)));
      store_lanes(load_vector(narrow, run.dtype), run.own_update + i, lanes);
    });
  }

  static void combine(const float* matrix, std::int32_t width, const std::int32_t* index,
                      const float* weights, std::int32_t count, float* out) {
    each(width, [&](std::int32_t i, std::int32_t lanes) {
      V sum = load_lanes(out + i, lanes);
      for (std::int32_t j = 0; j < count; ++j) {
        sum = V::fma(V::all(weights[j]),
                     load_lanes(matrix + std::int64_t{index[j]} * width + i, lanes), sum);
      }
      store_lanes(sum, out + i, lanes);
    });
  }

  // --- element by element
  // -----------------------------------------------------------------------------------------

  static void scale(float* y, float s, std::int32_t n) {
    each(n, [&](std::int32_t i, std::int32_t lanes) {
      store_lanes(load_lanes(y + i, lanes) * V::all(s), y + i, lanes);
    });
  }
  static void multiply(float* y, const float* x, std::int32_t n) {
    each(n, [&](std::int32_t i, std::int32_t lanes) {
      store_lanes(load_lanes(y + i, lanes) * load_lanes(x + i, lanes), y + i, lanes);
    });
  }
  static void multiply_add(float* y, const float* w, const float* x, std::int32_t n) {
    std::int32_t i = 0;
    for (; i + kWidth <= n; i += kWidth)
      V::fma(V::load(w + i), V::load(x + i), V::load(y + i)).store(y + i);
    for (; i < n; ++i) y[i] = __builtin_fmaf(w[i], x[i], y[i]);
  }
  static void silu(float* y, std::int32_t n) {
    // Channels need not be a multiple of 8: a tail goes through a whole vector of its own.
    std::int32_t i = 0;
    for (; i + kWidth <= n; i += kWidth) silu_vector(V::load(y + i)).store(y + i);
    if (i == n) return;
    float tail[kWidth] = {};
    for (std::int32_t j = i; j < n; ++j) tail[j - i] = y[j];
    silu_vector(V::load(tail)).store(tail);
    for (std::int32_t j = i; j < n; ++j) y[j] = tail[j - i];
  }
  static V silu_vector(V x) { return x * vector_sigmoid(x); }

  static void decay(const GateRun& run, const float* gate, std::int32_t n, float* decays) {
    each(n, [&](std::int32_t i, std::int32_t lanes) {
      V x = load_lanes(gate + i, lanes);
      if (run.kind == GateKind::kLogDecay) {
        store_lanes(vector_exp(x), decays + i, lanes);
        return;
      }
      if (run.bias != nullptr) x = x + load_lanes(run.bias + i, lanes);
      x = run.kind == GateKind::kSoftplus
              ? V::all(run.scale) * vector_softplus(x)
              : V::all(run.lower_bound) * vector_sigmoid(V::all(run.scale) * x);
      store_lanes(vector_exp2(x * V::all(1.44269504F)), decays + i, lanes);
    });
  }

  static void load(const void* source, DType dtype, std::int32_t n, float* values) {
    const auto* bytes = static_cast<const unsigned char*>(source);
    const std::int64_t size = dtype == DType::kF32 ? 4 : 2;
    std::int32_t i = 0;
    for (; i + kWidth <= n; i += kWidth) load_vector(bytes + i * size, dtype).store(values + i);
    if (i == n) return;
    alignas(64) unsigned char tail[4 * kWidth] = {};
    __builtin_memcpy(tail, bytes + i * size, bytes_of(n - i, static_cast<std::size_t>(size)));
    alignas(64) float wide[kWidth];
    load_vector(tail, dtype).store(wide);
    __builtin_memcpy(values + i, wide, bytes_of(n - i, sizeof(float)));
  }
  static V load_vector(const unsigned char* p, DType dtype) {
    if (dtype == DType::kBF16) return V::load_bf16(p);
    if (dtype == DType::kF16) return V::load_f16(p);
    return V::load(reinterpret_cast<const float*>(p));
  }

  static void store(const float* values, std::int32_t n, void* target, DType dtype) {
    auto* bytes = static_cast<unsigned char*>(target);
    const std::int64_t size = dtype == DType::kF32 ? 4 : 2;
    std::int32_t i = 0;
    for (; i + kWidth <= n; i += kWidth) store_vector(V::load(values + i), bytes + i * size, dtype);
    if (i == n) return;
    alignas(64) float wide[kWidth] = {};
    __builtin_memcpy(wide, values + i, bytes_of(n - i, sizeof(float)));
    alignas(64) unsigned char tail[4 * kWidth];
    store_vector(V::load(wide), tail, dtype);
    __builtin_memcpy(bytes + i * size, tail, bytes_of(n - i, static_cast<std::size_t>(size)));
  }
  static void store_vector(V x, unsigned char* p, DType dtype) {
    if (dtype == DType::kBF16) {
      x.store_bf16(p);
    } else if (dtype == DType::kF16) {
      x.store_f16(p);
    } else {
      x.store(reinterpret_cast<float*>(p));
    }
  }

  static constexpr Level level(const char* name) {
    return {name,     SimdAdvance<V>::advance,
            dot_rows, walk,
            solve,    combine,
            dot,      scale,
            multiply, load,
            store,    decay,
            silu,     multiply_add};
  }
};

}  // namespace replayssm::cpu
