// The scalar level: plain loops in the order written down in vec.hpp.
#include <algorithm>
#include <cmath>

#include "backend/cpu/level.hpp"
#include "backend/cpu/vec.hpp"
#include "math/gates.hpp"

namespace replayssm::cpu {
namespace {

void advance_row(const AdvanceRun& run, std::int32_t token, std::int32_t v, float* row) {
  const std::int32_t keys = run.keys;
  const float* key = run.key + std::int64_t{token} * keys;
  const float value = run.value[std::int64_t{token} * run.values + v];
  if (run.rule == Rule::kMamba2) {
    const float decay = run.decay[token];
    const float update = run.scale[token] * value;
    for (std::int32_t k = 0; k < keys; ++k) row[k] = row[k] * decay + update * key[k];
    return;
  }
  if (run.rule == Rule::kGdn) {
    scale(row, run.decay[token], keys);
  } else {
    multiply(row, run.decay + std::int64_t{token} * keys, keys);
  }
  const float update = run.scale[token] * (value - dot16(row, key, keys));
  add_scaled(row, update, key, keys);
}

bool advance(const AdvanceRun& run) {
  const std::int32_t keys = run.keys;
  bool finite = true;
  for (std::int32_t v = 0; v < run.values; ++v) {
    const std::int64_t at_row = std::int64_t{v} * keys;
    // Chains keep one row; trees keep the row before the run and after each token.
    float* first = run.rows;
    if (run.source == nullptr) {
      std::fill_n(first, keys, 0.0F);
    } else {
      std::copy_n(run.source + at_row, keys, first);
    }
    float* row = first;
    for (std::int32_t j = 0; j < run.tokens; ++j) {
      if (run.parents != nullptr) {
        row = run.rows + std::int64_t{j + 1} * keys;
        std::copy_n(run.rows + std::int64_t{run.parents[j] + 1} * keys, keys, row);
      }
      advance_row(run, j, v, row);
      if (run.query != nullptr) {
        run.outputs[std::int64_t{j} * run.values + v] =
            dot16(row, run.query + std::int64_t{j} * keys, keys);
      }
      if (run.after != nullptr) {
        finite = finite && all_finite(row, keys);
        std::copy_n(row, keys, run.after[j] + at_row);
      }
    }
    if (run.target != nullptr) {
      finite = finite && all_finite(row, keys);
      std::copy_n(row, keys, run.target + at_row);
    }
  }
  return finite;
}

void dot_rows(const float* matrix, std::int32_t rows, std::int32_t keys, const float* vectors,
              std::int32_t count, float* sums, const Ahead& /*next*/) {
  for (std::int32_t r = 0; r < rows; ++r) {
    for (std::int32_t i = 0; i < count; ++i) {
      sums[std::int64_t{i} * rows + r] =
          dot16(matrix + std::int64_t{r} * keys, vectors + std::int64_t{i} * keys, keys);
    }
  }
}

void walk(const WalkRun& run) {
  const std::int32_t keys = run.keys;
  std::copy_n(run.own_key, keys, run.reach_key);
  std::copy_n(run.own_query, keys, run.reach_query);
  const auto pass = [&](std::int32_t record) {
    multiply(run.reach_key, run.decay + std::int64_t{record} * keys, keys);
    multiply(run.reach_query, run.decay + std::int64_t{record} * keys, keys);
  };
  pass(run.own);
  for (std::int32_t i = 0; i < run.count; ++i) {
    const float* key = run.key + std::int64_t{run.path[i]} * keys;
    run.to_key[i] = dot16(key, run.reach_key, keys);
    run.to_query[i] = dot16(key, run.reach_query, keys);
    pass(run.path[i]);
  }
}

void solve(const SolveRun& run) {
  for (std::int32_t v = 0; v < run.values; ++v) {
    float predicted = 0.0F;
    float output = 0.0F;
    for (std::int32_t j = 0; j < run.count; ++j) {
      const float update = run.update[std::int64_t{run.path[j]} * run.values + v];
      predicted = predicted + run.to_key[j] * update;
      output = output + run.to_query[j] * update;
    }
    if (run.read_key != nullptr) {
      predicted = predicted + run.read_weight * run.read_key[v];
      output = output + run.read_weight * run.read_query[v];
    }
    run.own_update[v] = run.scale * (run.value[v] - predicted);
    run.output[v] = output + run.own_weight * run.own_update[v];
  }
  store(run.own_update, run.values, run.stored, run.dtype);
  round_through(run.own_update, run.values, run.dtype);
}

void combine(const float* matrix, std::int32_t width, const std::int32_t* index,
             const float* weights, std::int32_t count, float* out) {
  for (std::int32_t j = 0; j < count; ++j) {
    add_scaled(out, weights[j], matrix + std::int64_t{index[j]} * width, width);
  }
}

void decay(const GateRun& run, const float* gate, std::int32_t n, float* decays) {
  LayerShape shape;
  shape.gate = run.kind;
  shape.gate_lower_bound = run.lower_bound;
  for (std::int32_t k = 0; k < n; ++k) {
    decays[k] =
        std::exp(log_decay(shape, gate[k], run.bias != nullptr ? run.bias[k] : 0.0F, run.scale));
  }
}

void silu_in_place(float* y, std::int32_t n) {
  for (std::int32_t i = 0; i < n; ++i) y[i] = silu(y[i]);
}

void multiply_add(float* y, const float* w, const float* x, std::int32_t n) {
  for (std::int32_t i = 0; i < n; ++i) y[i] = y[i] + w[i] * x[i];
}

}  // namespace

const Level& scalar_level() {
  static constexpr Level kLevel = {"scalar", advance, dot_rows,      walk,        solve,
                                   combine,  dot16,   scale,         multiply,    load,
                                   store,    decay,   silu_in_place, multiply_add};
  return kLevel;
}

}  // namespace replayssm::cpu
