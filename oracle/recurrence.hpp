// The plain float64 recurrence: the answer to "how accurate is it?". It keeps one state and steps
// it a token at a time:
//   S_t = S_{t-1} Diag(a_t) + u_t k_t^T,   o_t = S_t q_t,
//   u_t = dt_t x_t (mamba2),   u_t = beta_t (v_t - S_{t-1} Diag(a_t) k_t) (gdn, kda).
// Source of the formulas: the papers of Mamba-2 (Dao and Gu 2024), Gated DeltaNet (Yang et al.
// 2024) and Kimi Linear (2025).
#pragma once

#include <vector>

#include "oracle/layer.hpp"

namespace replayssm::oracle {

// The state of one layer of one sequence, [heads, V, K], and its start: zeros.
using State = std::vector<double>;
[[nodiscard]] State zero_state(const Layer& layer);

// Advances `state` by one token and returns the outputs [heads, V]. The token must pass
// check_token.
std::vector<double> recurrence_step(const Layer& layer, const Token& token, State* state);

// Outputs and states of a chain or a tree of tokens, one of each a token.
struct RecurrenceRun {
  std::vector<std::vector<double>> outputs;  // [T][heads * V]
  std::vector<State> states;                 // [T]: the state after that token along its own path
};

// Runs every token from its parent's state; parents[i] < i, -1 starts from `state`. Empty parents:
// a chain.
[[nodiscard]] RecurrenceRun recurrence_run(const Layer& layer, const State& state,
                                           const std::vector<Token>& tokens,
                                           const std::vector<int>& parents);

// The last width - 1 inputs before the next token, oldest first, each [channels]; zeros at the
// start of a sequence.
using ConvHistory = std::vector<std::vector<double>>;
[[nodiscard]] ConvHistory zero_history(const Conv& conv);

// One conv output [channels]; `history` moves on by one input. width >= 1.
std::vector<double> conv_step(const Conv& conv, const std::vector<double>& input,
                              ConvHistory* history);

struct ConvRun {
  std::vector<std::vector<double>> outputs;  // [T][channels]
  std::vector<ConvHistory> histories;        // [T]: the history after that token along its own path
};
[[nodiscard]] ConvRun conv_run(const Conv& conv, const ConvHistory& history,
                               const std::vector<std::vector<double>>& inputs,
                               const std::vector<int>& parents);

}  // namespace replayssm::oracle
