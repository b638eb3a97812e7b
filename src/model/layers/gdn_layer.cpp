// See gdn_layer.hpp.
#include "model/layers/gdn_layer.hpp"

#include <array>

#include "model/layers/recurrent_mixer.hpp"
#include "model/layers/views.hpp"

namespace replayssm::model {
namespace {

// A projected row is [q k v | z | b | a].
class GdnLayer final : public DeltaMixer {
 public:
  GdnLayer(const ModelConfig& config, const std::string& prefix, WeightSource& source)
      : DeltaMixer(Rule::kGdn, config.delta) {
    const std::array<MatrixPart, 4> parts = {
        MatrixPart{prefix + "in_proj_qkv.weight", config_.conv_dim()},
        MatrixPart{prefix + "in_proj_z.weight", config_.values()},
        MatrixPart{prefix + "in_proj_b.weight", config_.value_heads},
        MatrixPart{prefix + "in_proj_a.weight", config_.value_heads}};
    parts_.projected = beta() + 2 * config_.value_heads;
    parts_.in_proj = source.stacked(parts, config.hidden_size);
    parts_.conv_weight =
        source.vector(prefix + "conv1d.weight", {config_.conv_dim(), 1, config_.conv_width});
    parts_.a_log = source.vector(prefix + "A_log", {config_.value_heads});
    parts_.dt_bias = source.vector(prefix + "dt_bias", {config_.value_heads});
    parts_.norm = source.vector(prefix + "norm.weight", {config_.value_dim});
    parts_.out_proj =
        source.linear(prefix + "out_proj.weight", config.hidden_size, config_.values());
  }

 private:
  // The first column of b.
  [[nodiscard]] std::int64_t beta() const { return config_.conv_dim() + config_.values(); }

  [[nodiscard]] Status connect(Pass& pass, LayerInputs& inputs) const override {
    connect_convolved(pass, inputs);
    const auto part = [&](std::int64_t first) {
      return columns(pass.memory.projected.data(), pass.activations, pass.tokens, parts_.projected,
                     first, config_.value_heads);
    };
    inputs.beta = part(beta());
    inputs.gate = part(beta() + config_.value_heads);
    return {};
  }

  void finish(Pass& pass, std::int64_t first, std::int64_t count) const override {
    const auto element = static_cast<std::int64_t>(dtype_bytes(pass.activations));
    norm_and_gate(pass, first, count, pass.memory.projected.data() + config_.conv_dim() * element,
                  parts_.projected, config_.sigmoid_gate);
  }
};

}  // namespace

std::unique_ptr<Sublayer> load_gdn(const ModelConfig& config, const std::string& prefix,
                                   WeightSource& source) {
  return std::make_unique<GdnLayer>(config, prefix, source);
}

}  // namespace replayssm::model
