// A small float32 replay of one layer of one slot, written for the tests of the error bounds: it
// errs as a correct backend may err, and in a broken twin more than that. It is not a mirror; its
// order of operations is its own.
#pragma once

#include <vector>

#include "oracle/layer.hpp"
#include "replayssm/dtype.hpp"

namespace replayssm::oracle::testing {

enum class FloatFault {
  kNone,
  kDropOldest,     // an output leaves out the oldest record
  kNoNewestDecay,  // the checkpoint's share is not decayed by the newest gate
  kGateInBf16,     // the log decay is rounded to bf16
  kBetaInBf16,     // dt or beta is rounded to bf16
  kFoldStoredU,    // the fold takes the stored u
  kNormInBf16,     // the normalised key is rounded to bf16
  kPrefixSums,     // decays from differences of prefix sums
};

class FloatReplay {
 public:
  // exp_of_sums: decays as exponentials of summed gates instead of products.
  FloatReplay(Layer layer, DType update, DType output, bool exp_of_sums, FloatFault fault);

  std::vector<std::vector<double>> step(const std::vector<Token>& tokens,
                                        const std::vector<int>& parents);
  void commit(const std::vector<int>& path);  // of the last step's tokens
  void fold(int count);
  [[nodiscard]] int committed() const { return static_cast<int>(records_.size()); }
  [[nodiscard]] const std::vector<float>& checkpoint() const { return state_; }

 private:
  struct Record {
    Token token;
    std::vector<float> k;       // [groups, K] normalised
    std::vector<float> q;       // [groups, K]
    std::vector<float> g;       // [heads, gate_width]
    std::vector<float> weight;  // [heads]
    std::vector<float> u;       // [heads, V]
    int parent = -1;
  };
  [[nodiscard]] Record take(const Token& token) const;
  // S_at y for one head, with the decay `start` [K] in front; `at` may be -1.
  [[nodiscard]] std::vector<float> read(const std::vector<Record>& items, int head, int at,
                                        const float* y, const std::vector<float>* newest) const;
  void solve(std::vector<Record>* items, int item, bool round) const;

  Layer layer_;
  DType update_;
  DType output_;
  bool exp_of_sums_;
  FloatFault fault_;
  std::vector<float> state_;
  std::vector<Record> records_;
  std::vector<Record> pending_;  // parents among themselves
};

}  // namespace replayssm::oracle::testing
