// The recurrence of a vector level: token after token through the state of one head. Folds, prefill
// and the conventional step all go through here, in one of three forms that give the same bits: any
// shape and trees a row at a time; chains a tile of rows at a time; folds a tile at a time with the
// passes of neighbouring tokens joined.
//
// A tile is kWidth rows, which stay in the nearest cache from token to token. A row's update waits
// for a sum over all of it; so many rows at once hide that, and one tree of additions serves them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/cpu/level.hpp"
#include "backend/cpu/simd/lanes.hpp"

namespace replayssm::cpu {

template <class V>
struct SimdAdvance : SimdLanes<V> {
  using Lanes = SimdLanes<V>;
  using Lanes::each;
  static constexpr std::int32_t kWidth = V::kWidth;
  using Lanes::load_lanes;
  using Lanes::store_lanes;

  // --- a tile of rows
  // Inlined whatever the size: as calls the parts made a step take up to half as long again.

  // A row of a state that is 0.
  alignas(64) static constexpr float kZeros[kMaxHeadDim] = {};

  // kWidth rows of a state: where they are, how far apart, and what to fetch meanwhile.
  struct Tile {
    const float* rows;
    std::int64_t stride;
    const float* ahead;
  };

  template <Rule kRule>
  static V decay_at(const AdvanceRun& run, std::int32_t j, std::int32_t i, std::int32_t lanes) {
    if constexpr (kRule == Rule::kKda)
      return load_lanes(run.decay + std::int64_t{j} * run.keys + i, lanes);
    return V::all(run.decay[j]);
  }
  // What the state before the decay is multiplied with to predict a value; gdn's decay is a factor
  // of the sum.
  template <Rule kRule>
  static V predictor_at(const AdvanceRun& run, std::int32_t j, std::int32_t i, std::int32_t lanes) {
    const V k = load_lanes(run.key + std::int64_t{j} * run.keys + i, lanes);
    if constexpr (kRule == Rule::kKda) return k * decay_at<kRule>(run, j, i, lanes);
    return k;
  }

  template <Rule kRule, std::int32_t kKeys>
  [[gnu::always_inline]] static void predict(const AdvanceRun& run, std::int32_t j,
                                             const Tile& from, V (&sum)[kWidth]) {
    for (V& each_sum : sum) each_sum = V::zero();
    const std::int64_t stride = kKeys != 0 && from.stride != 0 ? kKeys : from.stride;
    Lanes::template each_of<kKeys>(run.keys, [&](std::int32_t i, auto lanes) {
      const V k = predictor_at<kRule>(run, j, i, lanes);
      for (int r = 0; r < kWidth; ++r) {
        __builtin_prefetch(from.ahead + r * stride + i);
        sum[r] = V::fma(load_lanes(from.rows + r * stride + i, lanes), k, sum[r]);
      }
    });
  }

  // u of the tile's rows.
  template <Rule kRule>
  [[gnu::always_inline]] static void update(const AdvanceRun& run, std::int32_t j, std::int32_t v,
                                            const V (&sum)[kWidth], float* updates) {
    const V value = V::load(run.value + std::int64_t{j} * run.values + v);
    const V scale = V::all(run.scale[j]);
    if constexpr (kRule == Rule::kMamba2) {
      (scale * value).store(updates);
    } else {
      V predicted = V::sum_each(sum);
      if constexpr (kRule == Rule::kGdn) predicted = predicted * V::all(run.decay[j]);
      (scale * (value - predicted)).store(updates);
    }
  }

  // Token j: states from `from` to `to`, which may be the same, and outputs. kStream: the states go
  // to `past` as well, past the caches. False when a state is not finite.
  template <Rule kRule, std::int32_t kKeys, bool kStream>
  [[gnu::always_inline]] static bool step_tile(const AdvanceRun& run, std::int32_t j,
                                               std::int32_t v, const Tile& from, float* to,
                                               float* past) {
    const std::int32_t keys = kKeys != 0 ? kKeys : run.keys;
    const std::int64_t stride = from.stride != 0 ? keys : 0;
    V sum[kWidth];
    if constexpr (kRule != Rule::kMamba2) predict<kRule, kKeys>(run, j, from, sum);
    alignas(64) float updates[kWidth];
    update<kRule>(run, j, v, sum, updates);

    V odd = V::zero();                 // as long as all is finite
    constexpr int kPart = kWidth / 2;  // rows whose updates and outputs fit into registers
    const auto write = [&](auto reads, int first) __attribute__((always_inline)) {
      V u[kPart];
      for (int r = 0; r < kPart; ++r) u[r] = V::all(updates[first + r]);
      V read[kPart];
      for (V& each_read : read) each_read = V::zero();
      Lanes::template each_of<kKeys>(keys, [&](std::int32_t i, auto lanes) {
        const V k = load_lanes(run.key + std::int64_t{j} * keys + i, lanes);
        const V a = decay_at<kRule>(run, j, i, lanes);
        const V q = reads() ? load_lanes(run.query + std::int64_t{j} * keys + i, lanes) : V::zero();
        for (int r = 0; r < kPart; ++r) {
          if constexpr (kRule == Rule::kMamba2)
            __builtin_prefetch(from.ahead + (first + r) * stride + i);
          const V old = load_lanes(from.rows + (first + r) * stride + i, lanes);
          const V state = V::fma(u[r], k, old * a);
          store_lanes(state, to + std::int64_t{first + r} * keys + i, lanes);
          if constexpr (kStream) state.stream(past + std::int64_t{first + r} * keys + i);
          if constexpr (reads()) read[r] = V::fma(state, q, read[r]);
          odd = V::fma(state, V::zero(), odd);
        }
      });
      for (int r = 0; r < kPart; ++r) sum[first + r] = read[r];
    };
    if (run.query != nullptr) {
      write(std::true_type(), 0);
      write(std::true_type(), kPart);
      V::sum_each(sum).store(run.outputs + std::int64_t{j} * run.values + v);
    } else {
      write(std::false_type(), 0);
      write(std::false_type(), kPart);
    }
    return V::finite(odd);
  }

  // The whole run where only the last state is wanted. While a token is applied to a row, the next
  // one's prediction is summed; and while a tile waits for its updates, the other one is at work.
  template <Rule kRule, std::int32_t kKeys, int kTiles>
  static bool fold_tiles(const AdvanceRun& run, std::int32_t v, Tile (&from)[kTiles], float* to) {
    const std::int32_t keys = kKeys != 0 ? kKeys : run.keys;
    alignas(64) float updates[kTiles][kWidth];
    for (int tile = 0; tile < kTiles; ++tile) {
      V sum[kWidth];
      predict<kRule, kKeys>(run, 0, from[tile], sum);
      update<kRule>(run, 0, v + tile * kWidth, sum, updates[tile]);
    }
    V odd = V::zero();
    const auto apply = [&](auto last, std::int32_t j, int tile) {
      const float* rows = from[tile].rows;
      const std::int64_t stride = from[tile].stride != 0 ? keys : 0;
      float* out = to + std::int64_t{tile} * kWidth * keys;
      V sum[kWidth];
      for (V& each_sum : sum) each_sum = V::zero();
      Lanes::template each_of<kKeys>(keys, [&](std::int32_t i, auto lanes) {
        const V k = load_lanes(run.key + std::int64_t{j} * keys + i, lanes);
        const V a = decay_at<kRule>(run, j, i, lanes);
        const V next = last() ? V::zero() : predictor_at<kRule>(run, j + 1, i, lanes);
        for (int r = 0; r < kWidth; ++r) {
          const V old = load_lanes(rows + r * stride + i, lanes);
          const V state = V::fma(V::all(updates[tile][r]), k, old * a);
          store_lanes(state, out + std::int64_t{r} * keys + i, lanes);
          if constexpr (last()) {
            odd = V::fma(state, V::zero(), odd);
          } else {
            sum[r] = V::fma(state, next, sum[r]);
          }
        }
      });
      if constexpr (!last()) update<kRule>(run, j + 1, v + tile * kWidth, sum, updates[tile]);
      from[tile] = {out, keys, out};
    };
    for (std::int32_t j = 0; j + 1 < run.tokens; ++j) {
      for (int tile = 0; tile < kTiles; ++tile) apply(std::false_type(), j, tile);
    }
    for (int tile = 0; tile < kTiles; ++tile) apply(std::true_type(), run.tokens - 1, tile);
    return V::finite(odd);
  }

  // The same for mamba2, whose updates wait for nothing: kTokens at once on each vector.
  template <std::int32_t kKeys, int kTokens>
  static bool fold_tokens(const AdvanceRun& run, std::int32_t first, std::int32_t v,
                          const Tile& from, float* to) {
    const std::int32_t keys = kKeys != 0 ? kKeys : run.keys;
    const std::int64_t stride = from.stride != 0 ? keys : 0;
    alignas(64) float updates[kTokens][kWidth];
    V a[kTokens];
    for (int t = 0; t < kTokens; ++t) {
      const V none[kWidth] = {};
      update<Rule::kMamba2>(run, first + t, v, none, updates[t]);
      a[t] = V::all(run.decay[first + t]);
    }
    V odd = V::zero();
    Lanes::template each_of<kKeys>(keys, [&](std::int32_t i, auto lanes) {
      V k[kTokens];
      for (int t = 0; t < kTokens; ++t)
        k[t] = load_lanes(run.key + std::int64_t{first + t} * keys + i, lanes);
      for (int r = 0; r < kWidth; ++r) {
        __builtin_prefetch(from.ahead + r * stride + i);
        V state = load_lanes(from.rows + r * stride + i, lanes);
        for (int t = 0; t < kTokens; ++t) state = V::fma(V::all(updates[t][r]), k[t], state * a[t]);
        store_lanes(state, to + std::int64_t{r} * keys + i, lanes);
        odd = V::fma(state, V::zero(), odd);
      }
    });
    return V::finite(odd);
  }
  template <std::int32_t kKeys>
  static bool fold_mamba2(const AdvanceRun& run, std::int32_t v, Tile from, float* to) {
    bool finite = true;
    std::int32_t j = 0;
    for (; j + 4 <= run.tokens; j += 4) {
      finite = fold_tokens<kKeys, 4>(run, j, v, from, to) && finite;
      from = {to, run.keys, to};
    }
    for (; j < run.tokens; ++j) {
      finite = fold_tokens<kKeys, 1>(run, j, v, from, to) && finite;
      from = {to, run.keys, to};
    }
    return finite;
  }

  // Where a run finds the rows from v on, and what comes after them.
  static Tile source_tile(const AdvanceRun& run, std::int32_t v) {
    if (run.source == nullptr) return {kZeros, 0, kZeros};
    const float* rows = run.source + std::int64_t{v} * run.keys;
    const float* ahead = rows;
    if (v + kWidth < run.values) {
      ahead += std::int64_t{kWidth} * run.keys;
    } else if (run.next.matrix != nullptr) {
      ahead = run.next.matrix;
    }
    return {rows, run.keys, ahead};
  }

  // Lines of run.next that are due by row v; `line`: how many have been fetched.
  static void fetch_lines(const AdvanceRun& run, std::int32_t v, std::int32_t& line) {
    const std::int32_t until = (v + kWidth) * run.next.count / run.values;
    for (; line < until; ++line) __builtin_prefetch(run.next.lines[line]);
  }

  template <Rule kRule, std::int32_t kKeys>
  static bool advance_tiles(const AdvanceRun& run) {
    bool finite = true;
    std::int32_t line = 0;
    std::int32_t v = 0;
    while (v < run.values) {
      const std::int64_t at = std::int64_t{v} * run.keys;
      fetch_lines(run, v, line);
      Tile from = source_tile(run, v);
      if (run.target == nullptr || run.query != nullptr) {
        for (std::int32_t j = 0; j < run.tokens; ++j) {
          float* to = (run.after != nullptr ? run.after[j] : run.target) + at;
          finite = step_tile<kRule, kKeys, false>(run, j, v, from, to, nullptr) && finite;
          from = {to, run.keys, to};
        }
        v += kWidth;
      } else if constexpr (kRule == Rule::kMamba2) {
        finite = fold_mamba2<kKeys>(run, v, from, run.target + at) && finite;
        v += kWidth;
      } else if (v + 2 * kWidth <= run.values) {
        Tile both[2] = {from, source_tile(run, v + kWidth)};
        finite = fold_tiles<kRule, kKeys>(run, v, both, run.target + at) && finite;
        v += 2 * kWidth;
      } else {
        Tile one[1] = {from};
        finite = fold_tiles<kRule, kKeys>(run, v, one, run.target + at) && finite;
        v += kWidth;
      }
    }
    return finite;
  }

  // The same with run.after written past the caches; what one token leaves for the next stays near.
  template <Rule kRule, std::int32_t kKeys>
  static bool advance_past_caches(const AdvanceRun& run) {
    alignas(64) float near[kWidth * kMaxHeadDim];
    bool finite = true;
    std::int32_t line = 0;
    for (std::int32_t v = 0; v < run.values; v += kWidth) {
      fetch_lines(run, v, line);
      Tile from = source_tile(run, v);
      for (std::int32_t j = 0; j < run.tokens; ++j) {
        float* past = run.after[j] + std::int64_t{v} * run.keys;
        finite = step_tile<kRule, kKeys, true>(run, j, v, from, near, past) && finite;
        from = {near, run.keys, near};
      }
    }
    V::fence();
    return finite;
  }
  // Whole vectors, each within a line.
  static bool can_stream(const AdvanceRun& run) {
    if (!run.past_caches || run.after == nullptr || run.keys % kWidth != 0) return false;
    return std::all_of(run.after, run.after + run.tokens, [](const float* state) {
      return reinterpret_cast<std::uintptr_t>(state) % (kWidth * sizeof(float)) == 0;
    });
  }
  template <Rule kRule, std::int32_t kKeys>
  static bool advance_chain(const AdvanceRun& run) {
    return can_stream(run) ? advance_past_caches<kRule, kKeys>(run)
                           : advance_tiles<kRule, kKeys>(run);
  }

  // --- a row at a time

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
              dot_row(row, run.query + std::int64_t{j} * keys, keys);
        }
        if (run.after != nullptr)
          finite = write_row_any(row, keys, run.after[j] + std::int64_t{v} * keys) && finite;
      }
      if (run.target != nullptr)
        finite = write_row_any(row, keys, run.target + std::int64_t{v} * keys) && finite;
    }
    return finite;
  }

  static float dot_row(const float* a, const float* b, std::int32_t n) {
    V sum = V::zero();
    each(n, [&](std::int32_t i, std::int32_t lanes) {
      sum = V::fma(load_lanes(a + i, lanes), load_lanes(b + i, lanes), sum);
    });
    return sum.sum();
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
    // As step_tile().
    const bool scalar = run.rule == Rule::kGdn;
    const auto decay_at = [&](std::int32_t i, std::int32_t lanes) {
      return scalar ? V::all(run.decay[j])
                    : load_lanes(run.decay + std::int64_t{j} * keys + i, lanes);
    };
    V sum = V::zero();
    each(keys, [&](std::int32_t i, std::int32_t lanes) {
      V k = load_lanes(key + i, lanes);
      if (!scalar) k = k * decay_at(i, lanes);
      sum = V::fma(load_lanes(from + i, lanes), k, sum);
    });
    const float predicted = scalar ? sum.sum() * run.decay[j] : sum.sum();
    const V update = V::all(run.scale[j] * (value - predicted));
    each(keys, [&](std::int32_t i, std::int32_t lanes) {
      const V old = load_lanes(from + i, lanes) * decay_at(i, lanes);
      store_lanes(V::fma(update, load_lanes(key + i, lanes), old), row + i, lanes);
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

  static bool advance(const AdvanceRun& run) {
    const bool one_place = (run.after != nullptr) != (run.target != nullptr);
    if (run.parents != nullptr || run.values % kWidth != 0 || !one_place || run.tokens == 0)
      return advance_any(run);
    return Lanes::with_keys(run.keys, [&](auto keys) {
      switch (run.rule) {
        case Rule::kMamba2: return advance_chain<Rule::kMamba2, keys()>(run);
        case Rule::kGdn: return advance_chain<Rule::kGdn, keys()>(run);
        case Rule::kKda: break;
      }
      return advance_chain<Rule::kKda, keys()>(run);
    });
  }
};

}  // namespace replayssm::cpu
