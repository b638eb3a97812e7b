// See mamba2_layer.hpp.
#include "model/layers/mamba2_layer.hpp"

#include <limits>

#include "model/layers/norms.hpp"
#include "model/layers/recurrent_mixer.hpp"
#include "model/layers/views.hpp"

namespace replayssm::model {
namespace {

// Limits of dt that no float reaches are none.
float to_limit(double value) {
  return value > static_cast<double>(std::numeric_limits<float>::max())
             ? std::numeric_limits<float>::infinity()
             : static_cast<float>(value);
}

// A projected row is [z | x B C | dt], a convolved one [x | B | C].
class Mamba2Layer final : public RecurrentMixer {
 public:
  Mamba2Layer(const ModelConfig& config, const std::string& prefix, WeightSource& source)
      : config_(config.mamba2) {
    LayerShape& shape = parts_.shape;
    shape.rule = Rule::kMamba2;
    shape.heads = static_cast<std::int32_t>(config_.heads);
    shape.groups = static_cast<std::int32_t>(config_.groups);
    shape.value_dim = static_cast<std::int32_t>(config_.head_dim);
    shape.key_dim = static_cast<std::int32_t>(config_.state_dim);
    shape.conv_channels = static_cast<std::int32_t>(config_.conv_dim());
    shape.conv_width = static_cast<std::int32_t>(config_.conv_width);
    shape.dt_min = to_limit(config_.dt_min);
    shape.dt_max = to_limit(config_.dt_max);
    parts_.projected = config_.projection_dim();
    parts_.conv_first = config_.d_inner();
    parts_.in_proj =
        source.linear(prefix + "in_proj.weight", config_.projection_dim(), config.hidden_size);
    parts_.conv_weight =
        source.vector(prefix + "conv1d.weight", {config_.conv_dim(), 1, config_.conv_width});
    if (config_.conv_bias)
      parts_.conv_bias = source.vector(prefix + "conv1d.bias", {config_.conv_dim()});
    parts_.a_log = source.vector(prefix + "A_log", {config_.heads});
    parts_.d = source.vector(prefix + "D", {config_.heads});
    parts_.dt_bias = source.vector(prefix + "dt_bias", {config_.heads});
    parts_.norm = source.norm(prefix + "norm.weight", config_.d_inner());
    parts_.out_proj =
        source.linear(prefix + "out_proj.weight", config.hidden_size, config_.d_inner());
  }

 private:
  [[nodiscard]] Status connect(Pass& pass, LayerInputs& inputs) const override {
    const DType type = pass.activations;
    const std::int64_t tokens = pass.tokens;
    const std::int64_t inner = config_.d_inner();
    const std::int64_t width = parts_.projected;
    const std::int64_t conv_dim = config_.conv_dim();
    const std::int64_t keys = config_.groups * config_.state_dim;
    const void* projected = pass.memory.projected.data();
    const void* convolved = pass.memory.prepared.data();
    inputs.value = columns(convolved, type, tokens, conv_dim, 0, config_.heads, config_.head_dim);
    inputs.key =
        columns(convolved, type, tokens, conv_dim, inner, config_.groups, config_.state_dim);
    inputs.query =
        columns(convolved, type, tokens, conv_dim, inner + keys, config_.groups, config_.state_dim);
    inputs.gate = columns(projected, type, tokens, width, inner + conv_dim, config_.heads);
    inputs.z = columns(projected, type, tokens, width, 0, config_.heads, config_.head_dim);
    return {};
  }

  // The cache has multiplied the gate z in.
  void finish(Pass& pass, std::int64_t first, std::int64_t count) const override {
    const std::int64_t offset = first * values();
    with_element(pass.activations, [&](auto element) {
      auto* inner = reinterpret_cast<decltype(element)*>(pass.memory.inner.data());
      group_rms_norm(pass.memory.recurred.data() + offset, parts_.norm.data(), pass.norm_epsilon,
                     count, values(), config_.groups, inner + offset);
    });
  }

  Mamba2Config config_;
};

}  // namespace

std::unique_ptr<Sublayer> load_mamba2(const ModelConfig& config, const std::string& prefix,
                                      WeightSource& source) {
  return std::make_unique<Mamba2Layer>(config, prefix, source);
}

}  // namespace replayssm::model
