// The rounding mirror: float32 arithmetic in the order of the library's scalar CPU code, operation
// for operation. It answers "bug or rounding?": where the float64 recurrence says that a state is
// off, equal bits here say that it is rounding.
//
// What it repeats (every operation rounds once, no fused multiply-add; compile with
// -ffp-contract=off):
//   mamba2   dt = clamp(softplus(dt_raw + dt_bias)), a = expf(dt * A);
//            dx = dt * x[v];  S[v][k] = S[v][k] * a + dx * B[k]
//   gdn      g = -expf(a_log) * softplus(gate + dt_bias), a = expf(g); beta = 1 / (1 + expf(-b)),
//   doubled last;
//            kk = k * (1 / sqrtf(dot16(k, k) + 1e-6));
//            S[v][k] *= a;  p = dot16(S[v], kk);  u = beta * (x[v] - p);  S[v][k] = S[v][k] + u *
//            kk[k]
//   kda      the same with a[k]; bounded gate: g = lower_bound * sigmoid(expf(a_log) * (gate +
//   dt_bias))
// A layer that gives A itself uses it instead of -expf(a_log).
//
// The layer's parameters and the token's values must be exact in f32 (rounding.hpp makes them so).
#pragma once

#include <vector>

#include "oracle/layer.hpp"

namespace replayssm::oracle {

// Sum of a[i] * b[i]: 16 lanes, lane i takes elements i, i + 16, ...; the lanes are added pairwise
// at distance 8, 4, 2, 1.
[[nodiscard]] float dot16(const float* a, const float* b, int count);

// What the library keeps of a token in f32 besides the raw inputs.
struct MirrorRecord {
  std::vector<float> log_decay;  // [heads, gate_width]
  std::vector<float> weight;     // [heads]: dt or beta
  std::vector<float> inv_norm;   // [groups], 1 without l2 normalisation and for mamba2
};
[[nodiscard]] MirrorRecord mirror_record(const Layer& layer, const Token& token);

// Advances an f32 state [heads, V, K] by one token: one token of a fold, of a prefill and of the
// conventional recurrence.
void mirror_step(const Layer& layer, const Token& token, std::vector<float>* state);

// A fold: the tokens in order. No tokens: the same bits.
void mirror_fold(const Layer& layer, const std::vector<Token>& tokens, std::vector<float>* state);

}  // namespace replayssm::oracle
