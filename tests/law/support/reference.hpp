// What a slot must hold and answer, in float64: the plain recurrence along its accepted tokens with
// the error bounds of oracle/bounds.hpp, its cursors, and the conv inputs it has seen.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "oracle/bounds.hpp"
#include "tests/law/support/case.hpp"

namespace replayssm::laws {

class SlotReference {
 public:
  SlotReference(const Case& made, std::uint64_t seed);

  // Expected outputs [T] and conv outputs of one layer for tokens that follow the committed ones.
  struct Expected {
    std::vector<std::vector<double>> values, bounds;
    std::vector<std::vector<double>> conv_values, conv_bounds;
  };
  [[nodiscard]] Expected step(int layer, const std::vector<ModelToken>& tokens,
                              const std::vector<int>& parents) const;
  // A prompt chunk; the slot itself moves on at commit_prefill().
  [[nodiscard]] Expected prefill(int layer, const std::vector<ModelToken>& tokens) const;

  // A window is folded, as the cache does at the start of a forward.
  [[nodiscard]] bool folds(const CacheConfig& config) const;
  void fold(int records);
  void commit_step(const std::vector<ModelToken>& accepted);
  void commit_prefill(const std::vector<ModelToken>& tokens);
  // Folds every record: an import into a cache that cannot hold them.
  void fold_all();
  // The state was handed in: exact values.
  void load(std::int64_t position, const std::vector<std::vector<double>>& states,
            const std::vector<std::vector<std::vector<double>>>* conv);
  // This sequence as it was `back` tokens ago, all records folded.
  [[nodiscard]] SlotReference rewound(int back) const;

  [[nodiscard]] const oracle::State& state(int layer) const {
    return layers_[layer].bounded.state();
  }
  [[nodiscard]] const std::vector<double>& state_bound(int layer) const {
    return layers_[layer].bounded.state_bound();
  }
  // The last width - 1 inputs.
  [[nodiscard]] oracle::ConvHistory conv_history(int layer) const;

  std::int64_t position = 0;
  std::uint64_t seed = 0;
  bool zero = true;
  bool conventional = false;
  std::shared_ptr<int> block = std::make_shared<int>(0);  // use_count() is the reference count

  [[nodiscard]] int committed() const { return static_cast<int>(ring_.size()); }

 private:
  struct LayerReference {
    oracle::Layer layer;
    oracle::Conv conv;
    oracle::Precision precision;
    oracle::Precision conv_precision;
    oracle::BoundedLayer bounded;                  // checkpoint and records
    oracle::BoundedLayer checkpoint;               // the checkpoint alone
    std::vector<std::vector<double>> conv_inputs;  // oldest first, at least width - 1
  };
  void remember(const std::vector<ModelToken>& tokens);
  // Conventional decoding: the state is written at every token and no u is stored.
  [[nodiscard]] oracle::BoundedOutputs walk(int layer, const std::vector<oracle::Token>& tokens,
                                            const std::vector<int>& parents) const;
  void expect_conv(int layer, const std::vector<ModelToken>& tokens,
                   const std::vector<int>& parents, Expected* expected) const;

  std::vector<LayerReference> layers_;
  std::vector<ModelToken> ring_;
};

}  // namespace replayssm::laws
