// The vector level, written once on a vector type and compiled once an instruction set. Everything
// here is a template on that type, so that no function built for one level can be linked into
// another.
#pragma once

#include <cstddef>

#include "backend/cpu/level.hpp"
#include "backend/cpu/simd/elementary.hpp"

namespace replayssm::cpu {

template <class V>
struct SimdLevel {
  static constexpr std::int32_t kWidth = V::kWidth;

  // Calls body(offset, lanes) for vectors that cover n elements; n is a multiple of 8.
  template <typename Body>
  static void each(std::int32_t n, Body body) {
    std::int32_t i = 0;
    for (; i + kWidth <= n; i += kWidth) body(i, kWidth);
    if (i < n) body(i, n - i);
  }

  static constexpr std::size_t bytes_of(std::int32_t count, std::size_t size) {
    return static_cast<std::size_t>(count) * size;
  }

  static V load_lanes(const float* p, std::int32_t lanes) {
    return lanes == kWidth ? V::load(p) : V::load_part(p, lanes);
  }
  static void store_lanes(V x, float* p, std::int32_t lanes) {
    if (lanes == kWidth) {
      x.store(p);
    } else {
      x.store_part(p, lanes);
    }
  }

  // --- the recurrence
  // ---------------------------------------------------------------------------------------------

  // kRows rows of kVectors full vectors each stay in registers for the whole run.
  template <Rule kRule, int kVectors, int kRows>
  static bool advance_rows(const AdvanceRun& run, std::int32_t v) {
    const std::int64_t keys = run.keys;
    V state[kRows][kVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < kVectors; ++i) {
        state[r][i] =
            run.source == nullptr ? V::zero() : V::load(run.source + (v + r) * keys + i * kWidth);
      }
    }
    bool finite = true;
    for (std::int32_t j = 0; j < run.tokens; ++j) {
      const float* key = run.key + j * keys;
      const float* value = run.value + std::int64_t{j} * run.values + v;
      if constexpr (kRule == Rule::kMamba2) {
        const V decay = V::all(run.decay[j]);
        V update[kRows];
        for (int r = 0; r < kRows; ++r) update[r] = V::all(run.scale[j] * value[r]);
        for (int i = 0; i < kVectors; ++i) {
          const V k = V::load(key + i * kWidth);
          for (int r = 0; r < kRows; ++r) state[r][i] = V::fma(update[r], k, state[r][i] * decay);
        }
      } else {
        V predicted[kRows];
        for (int r = 0; r < kRows; ++r) predicted[r] = V::zero();
        for (int i = 0; i < kVectors; ++i) {
          const V k = V::load(key + i * kWidth);
          const V decay = kRule == Rule::kGdn ? V::all(run.decay[j])
                                              : V::load(run.decay + j * keys + i * kWidth);
          for (int r = 0; r < kRows; ++r) {
            state[r][i] = state[r][i] * decay;
            predicted[r] = V::fma(state[r][i], k, predicted[r]);
          }
        }
        V update[kRows];
        for (int r = 0; r < kRows; ++r)
          update[r] = V::all(run.scale[j] * (value[r] - predicted[r].sum()));
        for (int i = 0; i < kVectors; ++i) {
          const V k = V::load(key + i * kWidth);
          for (int r = 0; r < kRows; ++r) state[r][i] = V::fma(update[r], k, state[r][i]);
        }
      }
      if (run.query != nullptr) {
        V read[kRows];
        for (int r = 0; r < kRows; ++r) read[r] = V::zero();
        for (int i = 0; i < kVectors; ++i) {
          const V q = V::load(run.query + j * keys + i * kWidth);
          for (int r = 0; r < kRows; ++r) read[r] = V::fma(state[r][i], q, read[r]);
        }
        for (int r = 0; r < kRows; ++r)
          run.outputs[std::int64_t{j} * run.values + v + r] = read[r].sum();
      }
      if (run.after != nullptr)
        finite = write_rows<kVectors, kRows>(state, run.after[j] + v * keys, keys) && finite;
    }
    if (run.target != nullptr)
      finite = write_rows<kVectors, kRows>(state, run.target + v * keys, keys) && finite;
    return finite;
  }

  template <int kVectors, int kRows>
  static bool write_rows(const V (&state)[kRows][kVectors], float* target, std::int64_t keys) {
    bool finite = true;
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < kVectors; ++i) {
        finite = V::finite(state[r][i]) && finite;
        state[r][i].store(target + r * keys + i * kWidth);
      }
    }
    return finite;
  }

  template <Rule kRule, int kVectors, int kRows>
  static bool advance_head(const AdvanceRun& run) {
    bool finite = true;
    for (std::int32_t v = 0; v < run.values; v += kRows)
      finite = advance_rows<kRule, kVectors, kRows>(run, v) && finite;
    return finite;
  }

  // Any K and trees: the row lives in memory near by.
  static bool advance_any(const AdvanceRun& run) {
    const std::int32_t keys = run.keys;
    bool finite = true;
    for (std::int32_t v = 0; v < run.values; ++v) {
      float* row = run.rows;
      each(keys, [&](std::int32_t i, std::int32_t lanes) {
        store_lanes(run.source == nullptr
                        ? V::zero()
                        : load_lanes(run.source + std::int64_t{v} * keys + i, lanes),
                    row + i, lanes);
      });
      for (std::int32_t j = 0; j < run.tokens; ++j) {
        const float* from = row;
        if (run.parents != nullptr) {
          from = run.rows + std::int64_t{run.parents[j] + 1} * keys;
          row = run.rows + std::int64_t{j + 1} * keys;
        }
        advance_row_any(run, j, v, from, row);
        if (run.query != nullptr) {
          run.outputs[std::int64_t{j} * run.values + v] =
              dot(row, run.query + std::int64_t{j} * keys, keys);
        }
        if (run.after != nullptr)
          finite = write_row_any(row, keys, run.after[j] + std::int64_t{v} * keys) && finite;
      }
      if (run.target != nullptr)
        finite = write_row_any(row, keys, run.target + std::int64_t{v} * keys) && finite;
    }
    return finite;
  }

  static void advance_row_any(const AdvanceRun& run, std::int32_t j, std::int32_t v,
                              const float* from, float* row) {
    const std::int32_t keys = run.keys;
    const float* key = run.key + std::int64_t{j} * keys;
    const float value = run.value[std::int64_t{j} * run.values + v];
    if (run.rule == Rule::kMamba2) {
      const V decay = V::all(run.decay[j]);
      const V update = V::all(run.scale[j] * value);
      each(keys, [&](std::int32_t i, std::int32_t lanes) {
        store_lanes(V::fma(update, load_lanes(key + i, lanes), load_lanes(from + i, lanes) * decay),
                    row + i, lanes);
      });
      return;
    }
    const bool scalar = run.rule == Rule::kGdn;
    V predicted = V::zero();
    each(keys, [&](std::int32_t i, std::int32_t lanes) {
      const V decay =
          scalar ? V::all(run.decay[j]) : load_lanes(run.decay + std::int64_t{j} * keys + i, lanes);
      const V state = load_lanes(from + i, lanes) * decay;
      store_lanes(state, row + i, lanes);
      predicted = V::fma(state, load_lanes(key + i, lanes), predicted);
    });
    const V update = V::all(run.scale[j] * (value - predicted.sum()));
    each(keys, [&](std::int32_t i, std::int32_t lanes) {
      store_lanes(V::fma(update, load_lanes(key + i, lanes), load_lanes(row + i, lanes)), row + i,
                  lanes);
    });
  }

  static bool write_row_any(const float* row, std::int32_t keys, float* target) {
    bool finite = true;
    each(keys, [&](std::int32_t i, std::int32_t lanes) {
      const V x = load_lanes(row + i, lanes);
      finite = V::finite(x) && finite;
      store_lanes(x, target + i, lanes);
    });
    return finite;
  }

  template <Rule kRule>
  static bool advance_rule(const AdvanceRun& run) {
    // Both paths give the same bits: the same operations in the same order, held in registers or
    // not.
    if (run.parents == nullptr && run.values % 4 == 0) {
      if (run.keys == 4 * kWidth) return advance_head<kRule, 4, 4>(run);
      if (run.keys == 8 * kWidth) return advance_head<kRule, 8, 2>(run);
      if (run.keys == 16 * kWidth) return advance_head<kRule, 16, 1>(run);
    }
    return advance_any(run);
  }

  static bool advance(const AdvanceRun& run) {
    switch (run.rule) {
      case Rule::kMamba2: return advance_rule<Rule::kMamba2>(run);
      case Rule::kGdn: return advance_rule<Rule::kGdn>(run);
      case Rule::kKda: break;
    }
    return advance_rule<Rule::kKda>(run);
  }

  // --- products
  // ---------------------------------------------------------------------------------------------------

  static float dot(const float* a, const float* b, std::int32_t n) {
    V sum = V::zero();
    each(n, [&](std::int32_t i, std::int32_t lanes) {
      sum = V::fma(load_lanes(a + i, lanes), load_lanes(b + i, lanes), sum);
    });
    return sum.sum();
  }

  // kRows rows by kCount vectors; the same sums as dot(), in the same order.
  template <int kRows, int kCount>
  static void dot_tile(const float* matrix, std::int32_t rows, std::int32_t keys,
                       const float* vectors, float* sums) {
    V sum[kRows][kCount];
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < kCount; ++c) sum[r][c] = V::zero();
    }
    each(keys, [&](std::int32_t i, std::int32_t lanes) {
      V x[kCount];
      for (int c = 0; c < kCount; ++c)
        x[c] = load_lanes(vectors + std::int64_t{c} * keys + i, lanes);
      for (int r = 0; r < kRows; ++r) {
        const V row = load_lanes(matrix + std::int64_t{r} * keys + i, lanes);
        for (int c = 0; c < kCount; ++c) sum[r][c] = V::fma(row, x[c], sum[r][c]);
      }
    });
    for (int c = 0; c < kCount; ++c) {
      for (int r = 0; r < kRows; ++r) sums[std::int64_t{c} * rows + r] = sum[r][c].sum();
    }
  }

  template <int kCount>
  static void dot_rows_of(const float* matrix, std::int32_t rows, std::int32_t keys,
                          const float* vectors, float* sums, std::int32_t count) {
    std::int32_t r = 0;
    for (; r + 4 <= rows; r += 4) {
      const float* tile = matrix + std::int64_t{r} * keys;
      std::int32_t c = 0;
      for (; c + kCount <= count; c += kCount) {
        dot_tile<4, kCount>(tile, rows, keys, vectors + std::int64_t{c} * keys,
                            sums + std::int64_t{c} * rows + r);
      }
      for (; c < count; ++c) {
        dot_tile<4, 1>(tile, rows, keys, vectors + std::int64_t{c} * keys,
                       sums + std::int64_t{c} * rows + r);
      }
    }
    for (; r < rows; ++r) {
      for (std::int32_t c = 0; c < count; ++c) {
        dot_tile<1, 1>(matrix + std::int64_t{r} * keys, rows, keys,
                       vectors + std::int64_t{c} * keys, sums + std::int64_t{c} * rows + r);
      }
    }
  }

  static void dot_rows(const float* matrix, std::int32_t rows, std::int32_t keys,
                       const float* vectors, std::int32_t count, float* sums) {
    if (count == 1) {
      dot_rows_of<1>(matrix, rows, keys, vectors, sums, count);
    } else {
      dot_rows_of<2>(matrix, rows, keys, vectors, sums, count);
    }
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
      if (run.kind != GateKind::kLogDecay) {
        if (run.bias != nullptr) x = x + load_lanes(run.bias + i, lanes);
        x = run.kind == GateKind::kSoftplus
                ? V::all(run.scale) * vector_softplus(x)
                : V::all(run.lower_bound) * vector_sigmoid(V::all(run.scale) * x);
      }
      store_lanes(vector_exp(x), decays + i, lanes);
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
    return {name,     advance, dot_rows, combine, dot,  scale,
            multiply, load,    store,    decay,   silu, multiply_add};
  }
};

}  // namespace replayssm::cpu
