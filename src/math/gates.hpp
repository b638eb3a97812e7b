// The scalar formulas of the gates, each once: step, fold, prefill and the conventional step call
// the same code, so that a record folds with exactly the decay its token was decoded with.
#pragma once

#include <algorithm>
#include <cmath>

#include "math/host_device.hpp"
#include "replayssm/layer.hpp"

namespace replayssm {

// log(1 + e^x); above 20 the difference to x is below half an ulp of f32.
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline float softplus(float x) {
  return x > 20.0F ? x : std::log1p(std::exp(x));
}

[[nodiscard]] REPLAYSSM_HOST_DEVICE inline float sigmoid(float x) {
  return 1.0F / (1.0F + std::exp(-x));
}

[[nodiscard]] REPLAYSSM_HOST_DEVICE inline float silu(float x) { return x * sigmoid(x); }

// A of one head, below 0.
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline float head_a(const LayerWeights& weights, int head) {
  return weights.a != nullptr ? weights.a[head] : -std::exp(weights.a_log[head]);
}

// mamba2: the time step a record keeps.
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline float mamba2_dt(const LayerShape& shape, float raw,
                                                           float bias) {
  if (!shape.dt_softplus) return raw;
  return std::min(std::max(softplus(raw + bias), shape.dt_min), shape.dt_max);
}

// gdn and kda: log decay from the gate input. `scale` is head_a() for the softplus gate, exp(A_log)
// for the bounded one.
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline float log_decay(const LayerShape& shape, float raw,
                                                           float bias, float scale) {
  switch (shape.gate) {
    case GateKind::kSoftplus: return scale * softplus(raw + bias);
    case GateKind::kBounded: return shape.gate_lower_bound * sigmoid(scale * (raw + bias));
    case GateKind::kLogDecay: break;
  }
  return raw;
}

[[nodiscard]] REPLAYSSM_HOST_DEVICE inline float gate_scale(const LayerShape& shape,
                                                            const LayerWeights& weights, int head) {
  switch (shape.gate) {
    case GateKind::kSoftplus: return head_a(weights, head);
    case GateKind::kBounded: return std::exp(weights.a_log[head]);
    case GateKind::kLogDecay: break;
  }
  return 1.0F;
}

[[nodiscard]] REPLAYSSM_HOST_DEVICE inline float beta_value(const LayerShape& shape, float raw) {
  const float beta = shape.beta_sigmoid ? sigmoid(raw) : raw;
  return shape.beta_doubled ? 2.0F * beta : beta;
}

// The factor that normalises a key or query whose squares sum to `sum`; the epsilon is inside the
// root.
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline float inverse_norm(const LayerShape& shape, float sum) {
  return shape.qk_l2norm ? 1.0F / std::sqrt(sum + 1e-6F) : 1.0F;
}

[[nodiscard]] REPLAYSSM_HOST_DEVICE inline float query_scale(const LayerShape& shape) {
  if (shape.rule == Rule::kMamba2) return 1.0F;
  return shape.query_scale != 0.0F ? shape.query_scale
                                   : 1.0F / std::sqrt(static_cast<float>(shape.key_dim));
}

}  // namespace replayssm
