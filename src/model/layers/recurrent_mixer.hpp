// What the mixers with a recurrent state have in common: one product that gives all a token needs,
// the convolution of some of its columns and the recurrence through the cache, a norm with a gate,
// one product back. gdn_layer and kda_layer share more: the delta rule's queries, keys and values,
// and a gate behind the norm of each head.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "model/config.hpp"
#include "model/layers/linear.hpp"
#include "model/layers/sublayer.hpp"
#include "replayssm/layer.hpp"
#include "replayssm/status.hpp"

namespace replayssm::model {

// A mixer's constructor fills parts_ in.
class RecurrentMixer : public Sublayer {
 public:
  [[nodiscard]] Widths widths() const override;
  [[nodiscard]] std::optional<RecurrentLayer> recurrent() const final;
  [[nodiscard]] Status run(Pass& pass, std::int32_t place) const final;

 protected:
  struct Parts {
    LayerShape shape;
    std::int64_t projected = 0;      // columns of a projected row
    std::int64_t conv_first = 0;     // the first of shape.conv_channels columns that are convolved
    Linear in_proj;                  // hidden to projected
    std::vector<float> conv_weight;  // [conv_channels, conv_width]
    std::vector<float> conv_bias;    // [conv_channels], or empty
    std::vector<float> a_log;        // [heads]
    std::vector<float> d;            // [heads], or empty
    std::vector<float> dt_bias;      // [heads]; kda: [heads, key_dim]
    std::vector<float> norm;         // of the recurrence's results
    Linear out_proj;                 // values to hidden
  };

  // Points `inputs`, all but its layer and its out, at the projected rows [tokens, projected] in
  // memory.projected and at the convolved ones [tokens, conv_channels] in memory.prepared.
  [[nodiscard]] virtual Status connect(Pass& pass, LayerInputs& inputs) const = 0;
  // memory.inner from memory.recurred, both [tokens, values], for tokens first to first + count:
  // the norm and what gate there is beside it. Several workers call it, each for its own tokens.
  virtual void finish(Pass& pass, std::int64_t first, std::int64_t count) const = 0;

  [[nodiscard]] std::int64_t values() const {
    return std::int64_t{parts_.shape.heads} * parts_.shape.value_dim;
  }

  Parts parts_;
};

// The mixers of the delta rule, whose convolved rows are [q | k | v].
class DeltaMixer : public RecurrentMixer {
 protected:
  DeltaMixer(Rule rule, const DeltaConfig& config);

  // Query, key and value of `inputs`.
  void connect_convolved(Pass& pass, LayerInputs& inputs) const;
  // finish() with the norm over each head and then the gate: sigmoid(g) or silu(g). gates: of token
  // 0, [tokens, values] activations, `stride` elements a token.
  void norm_and_gate(Pass& pass, std::int64_t first, std::int64_t count, const std::byte* gates,
                     std::int64_t stride, bool sigmoid_gate) const;

  DeltaConfig config_;
};

}  // namespace replayssm::model
