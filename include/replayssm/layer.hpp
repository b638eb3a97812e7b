// What one recurrent layer is: its rule, its geometry, the constants its gates need.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

namespace replayssm {

// The recurrences of docs/law.md. For a head with decay a, key k, query q and update u:
//   S_t = S_{t-1} Diag(a_t) + u_t k_t^T,   o_t = S_t q_t.
enum class Rule : std::uint8_t {
  kMamba2 = 0,  // scalar decay, u = dt x                       (Mamba-2, arXiv 2405.21060)
  kGdn = 1,     // scalar decay, u = beta (v - S Diag(a) k)     (Gated DeltaNet, arXiv 2412.06464)
  kKda = 2,     // decay per key channel, u as gdn              (Kimi Linear, arXiv 2510.26692)
};

[[nodiscard]] constexpr std::string_view rule_name(Rule rule) {
  switch (rule) {
    case Rule::kMamba2: return "mamba2";
    case Rule::kGdn: return "gdn";
    case Rule::kKda: return "kda";
  }
  return "unknown";
}

// How the log decay g of gdn and kda follows from the gate input.
enum class GateKind : std::uint8_t {
  kSoftplus = 0,  // g = -exp(A_log) softplus(gate + dt_bias)
  kBounded = 1,   // g = lower_bound sigmoid(exp(A_log) (gate + dt_bias)), kda only
  kLogDecay = 2,  // g = gate, computed by the caller in f32, at most 0
};

[[nodiscard]] constexpr std::string_view gate_kind_name(GateKind kind) {
  switch (kind) {
    case GateKind::kSoftplus: return "softplus";
    case GateKind::kBounded: return "bounded";
    case GateKind::kLogDecay: return "log_decay";
  }
  return "unknown";
}

// Limits of every implementation.
inline constexpr int kMaxHeadDim = 256;    // V and K: multiples of 8 up to this
inline constexpr int kMaxStepTokens = 16;  // T_max
inline constexpr int kMaxWindow = 256;     // W
inline constexpr int kMaxConvWidth = 8;

// Geometry and options of one layer. V = value (head) dim, K = key (state) dim.
struct LayerShape {
  Rule rule = Rule::kMamba2;
  std::int32_t heads = 0;      // H: heads of mamba2, value heads Hv of gdn and kda
  std::int32_t groups = 0;     // G: groups of mamba2, key heads Hk of gdn and kda; divides heads
  std::int32_t value_dim = 0;  // V
  std::int32_t key_dim = 0;    // K

  // Depthwise causal convolution in front of the recurrence; 0 channels: the caller convolves.
  std::int32_t conv_channels = 0;
  std::int32_t conv_width = 0;  // inputs an output sees, itself included; 2 to kMaxConvWidth

  // mamba2: dt = clamp(softplus(dt_raw + dt_bias), dt_min, dt_max); without softplus dt_raw is
  // taken as given.
  bool dt_softplus = true;
  float dt_min = 0.0F;
  float dt_max = std::numeric_limits<float>::infinity();

  // gdn, kda.
  GateKind gate = GateKind::kSoftplus;
  float gate_lower_bound = 0.0F;  // kBounded: below 0
  bool beta_sigmoid = true;       // beta = sigmoid(beta input), else the input itself
  bool beta_doubled = false;      // beta *= 2 (negative eigenvalues allowed)
  bool qk_l2norm = true;          // k and q times rsqrt(sum of squares + 1e-6)
  float query_scale = 0.0F;       // q times this; 0: K^-1/2
  bool gate_record_f32 = false;  // kda: keep the gate record in f32 instead of the activation dtype

  friend bool operator==(const LayerShape&, const LayerShape&) = default;
};

// Constants of one layer, f32, owned by the caller, unchanged while the cache lives, in the
// backend's memory. Folds of all layers run in one launch, which is why they are given once and not
// at every step.
struct LayerWeights {
  const float* a_log = nullptr;  // [heads]; A = -exp(a_log)
  // [heads]; A itself, for checkpoints that store it. Exactly one of the two; kBounded takes a_log,
  // kLogDecay needs neither.
  const float* a = nullptr;
  const float* dt_bias = nullptr;  // [heads] (kda: [heads, K]); null: 0
  const float* d = nullptr;        // [heads], mamba2's skip weight; null: 0
  const float* conv_weight =
      nullptr;  // [conv_channels, conv_width]; the last column weighs the newest input
  const float* conv_bias = nullptr;  // [conv_channels]; null: 0
};

}  // namespace replayssm
