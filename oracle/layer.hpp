// What a recurrent layer is and what one token brings to it, as plain float64 values: the common
// language of every file in oracle/. Nothing here is shared with the library: an oracle that shares
// a formula shares its bug.
//
// Activations, gates and parameters are exact: a value that a test gives to a backend as bf16, f16
// or f32 is given to the oracle as the same number in a double.
#pragma once

#include <limits>
#include <vector>

#include "replayssm/status.hpp"

namespace replayssm::oracle {

enum class Rule { kMamba2, kGdn, kKda };

// How the gate input of a delta rule becomes the log decay g <= 0. mamba2 ignores it: its g is
// -exp(a_log) * dt.
enum class GateKind {
  kSoftplus,  // g = -exp(a_log) * softplus(raw + dt_bias)
  kBounded,   // g = lower_bound * sigmoid(exp(a_log) * (raw + dt_bias)); kda only
  kLogDecay,  // the input is g itself; a_log, a and dt_bias are not read
};

// One recurrent layer. Matrices are row-major; head h uses group h / (heads / groups).
struct Layer {
  Rule rule = Rule::kMamba2;
  int heads = 0;      // heads that own a state: H of mamba2, v-heads of gdn and kda
  int groups = 0;     // groups of B and C, k-heads of gdn and kda; divides heads
  int value_dim = 0;  // V
  int key_dim = 0;    // K

  GateKind gate = GateKind::kSoftplus;
  double lower_bound = -5.0;  // kBounded: < 0
  std::vector<double> a_log;  // [heads], A = -exp(a_log)
  std::vector<double>
      a;  // [heads], A itself (< 0) for checkpoints that store it; one of the two is empty
  std::vector<double> dt_bias;  // [heads], kda [heads, key_dim]; empty counts as 0

  // mamba2
  bool dt_softplus =
      true;  // dt = softplus(dt_raw + dt_bias), otherwise dt = dt_raw + dt_bias; then clamped
  double dt_min = 0.0;
  double dt_max = std::numeric_limits<double>::infinity();
  std::vector<double> d;  // [heads] skip weight D; empty: no skip

  // gdn, kda
  bool l2_norm = false;  // q and k times 1 / sqrt(sum of squares + 1e-6)
  bool beta_given =
      false;  // the beta input is beta; otherwise beta = sigmoid(input), doubled if double_beta
  bool double_beta = false;  // ignored when beta is given
  double q_scale = 1.0;      // models use key_dim^-1/2

  [[nodiscard]] bool delta_rule() const { return rule != Rule::kMamba2; }
  // Log decays a head: one, or one a key channel.
  [[nodiscard]] int gate_width() const { return rule == Rule::kKda ? key_dim : 1; }
  [[nodiscard]] int group_of(int head) const { return head / (heads / groups); }
  [[nodiscard]] int state_size() const { return heads * value_dim * key_dim; }
};

// What one token brings to one layer, after the conv, as the model produced it.
struct Token {
  std::vector<double> q;  // [groups, K]: C of mamba2, q
  std::vector<double> k;  // [groups, K]: B of mamba2, k (before any normalisation)
  std::vector<double> v;  // [heads, V]: x of mamba2, v
  std::vector<double>
      gate;  // [heads, gate_width]: dt_raw of mamba2, a of gdn, raw gate of kda, or g itself
  std::vector<double> beta;  // [heads], delta rules: b or beta
  std::vector<double> z;     // [heads, V], mamba2: output times silu(z); empty: none
};

// Depthwise causal convolution over channels; width 0: the layer has none.
// y[t] = bias + sum over j of weight[j] * x[t - (width - 1) + j], then silu: the last weight meets
// the newest input.
struct Conv {
  int channels = 0;
  int width = 0;
  bool silu = true;
  std::vector<double> weight;  // [channels, width]
  std::vector<double> bias;    // [channels]; empty counts as 0
};

// What a token's inputs become before the recurrence.
struct Derived {
  std::vector<double> q;          // [groups, K], normalised and scaled
  std::vector<double> k;          // [groups, K], normalised
  std::vector<double> inv_norm;   // [groups], what k was multiplied by
  std::vector<double> log_decay;  // [heads, gate_width], <= 0, may be -inf
  std::vector<double> weight;     // [heads]: dt of mamba2, beta of the delta rules
};

// kInvalidArgument unless shapes, parameter sizes and options agree.
[[nodiscard]] Status check_layer(const Layer& layer);
// kInvalidArgument unless the token's arrays have the layer's sizes.
[[nodiscard]] Status check_token(const Layer& layer, const Token& token);
[[nodiscard]] Status check_conv(const Conv& conv);

// x above 20 is its own softplus to float32, and models are trained with that cut.
[[nodiscard]] double softplus(double x);
[[nodiscard]] double sigmoid(double x);
[[nodiscard]] double silu(double x);

// Formulas of the table in the design's section 2.
[[nodiscard]] Derived derive(const Layer& layer, const Token& token);

// The output of one head: S q becomes (S q + D x) * silu(z) for mamba2, stays S q otherwise. In
// place on [V].
void finish_output(const Layer& layer, const Token& token, int head, double* out);

}  // namespace replayssm::oracle
