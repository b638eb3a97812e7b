// See kda_layer.hpp. The formulas are those of the Kimi Linear report (arXiv 2510.26692, section
// 4) and of transformers' modeling_kimi_linear.py.
#include "model/layers/kda_layer.hpp"

#include <array>
#include <vector>

#include "model/layers/recurrent_mixer.hpp"
#include "model/layers/views.hpp"

namespace replayssm::model {
namespace {

// A projected row is [q k v | f_a | g_a | beta].
class KdaLayer final : public DeltaMixer {
 public:
  KdaLayer(const ModelConfig& config, const std::string& prefix, WeightSource& source)
      : DeltaMixer(Rule::kKda, config.delta) {
    parts_.shape.gate = config_.gate;
    parts_.shape.gate_lower_bound = static_cast<float>(config_.gate_lower_bound);
    const std::int64_t inner = config_.values();
    const std::array<MatrixPart, 6> parts = {MatrixPart{prefix + "q_proj.weight", inner},
                                             MatrixPart{prefix + "k_proj.weight", inner},
                                             MatrixPart{prefix + "v_proj.weight", inner},
                                             MatrixPart{prefix + "f_a_proj.weight", rank()},
                                             MatrixPart{prefix + "g_a_proj.weight", rank()},
                                             MatrixPart{prefix + "b_proj.weight", heads()}};
    parts_.projected = config_.conv_dim() + 2 * rank() + heads();
    parts_.in_proj = source.stacked(parts, config.hidden_size);
    // One convolution of all channels, in the same order.
    for (const char* part : {"q", "k", "v"}) {
      const std::vector<float> weight =
          source.vector(prefix + part + "_conv1d.weight", {inner, 1, config_.conv_width});
      parts_.conv_weight.insert(parts_.conv_weight.end(), weight.begin(), weight.end());
    }
    forget_ = source.linear(prefix + "f_b_proj.weight", inner, rank());
    gate_ = source.linear(prefix + "g_b_proj.weight", inner, rank());
    parts_.a_log = source.vector(prefix + "A_log", {heads()});
    parts_.dt_bias = source.vector(prefix + "dt_bias", {inner});
    parts_.norm = source.norm(prefix + "o_norm.weight", config_.value_dim);
    parts_.out_proj = source.linear(prefix + "o_proj.weight", config.hidden_size, inner);
  }

  [[nodiscard]] Widths widths() const override {
    Widths widths = DeltaMixer::widths();
    widths.keys = config_.values();    // gate inputs
    widths.values = config_.values();  // gates of the output
    return widths;
  }

 private:
  [[nodiscard]] std::int64_t heads() const { return config_.value_heads; }
  [[nodiscard]] std::int64_t rank() const { return config_.gate_rank; }

  [[nodiscard]] Status connect(Pass& pass, LayerInputs& inputs) const override {
    const std::int64_t conv_dim = config_.conv_dim();
    Workspace& memory = pass.memory;
    REPLAYSSM_RETURN_IF_ERROR(second_factor(forget_, conv_dim, pass, memory.keys.data()));
    REPLAYSSM_RETURN_IF_ERROR(second_factor(gate_, conv_dim + rank(), pass, memory.values.data()));
    connect_convolved(pass, inputs);
    inputs.gate = columns(memory.keys.data(), pass.activations, pass.tokens, values(), 0, heads(),
                          config_.value_dim);
    inputs.beta = columns(memory.projected.data(), pass.activations, pass.tokens, parts_.projected,
                          conv_dim + 2 * rank(), heads());
    return {};
  }

  // out = W (columns `first` to first + rank of the projected rows).
  [[nodiscard]] Status second_factor(const Linear& matrix, std::int64_t first, Pass& pass,
                                     void* out) const {
    const auto element = static_cast<std::int64_t>(dtype_bytes(pass.activations));
    return Linear::run_each({&matrix, 1},
                            {pass.memory.projected.data() + first * element, parts_.projected, 0},
                            pass.tokens, {out, values(), 0}, pass.activations, pass.products);
  }

  void finish(Pass& pass, std::int64_t first, std::int64_t count) const override {
    norm_and_gate(pass, first, count, pass.memory.values.data(), values(), true);
  }

  Linear forget_;  // f_b: gate inputs
  Linear gate_;    // g_b: gates of the output
};

}  // namespace

std::unique_ptr<Sublayer> load_kda(const ModelConfig& config, const std::string& prefix,
                                   WeightSource& source) {
  return std::make_unique<KdaLayer>(config, prefix, source);
}

}  // namespace replayssm::model
