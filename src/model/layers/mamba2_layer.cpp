// See mamba2_layer.hpp.
#include "model/layers/mamba2_layer.hpp"

#include <limits>
#include <vector>

#include "model/layers/norms.hpp"
#include "model/layers/views.hpp"

namespace replayssm::model {
namespace {

// Limits of dt that no float reaches are none.
float to_limit(double value) {
  return value > static_cast<double>(std::numeric_limits<float>::max())
             ? std::numeric_limits<float>::infinity()
             : static_cast<float>(value);
}

class Mamba2Layer final : public Sublayer {
 public:
  Mamba2Layer(const ModelConfig& config, const std::string& prefix, WeightSource& source)
      : shape_(config.mamba2) {
    in_proj_ =
        source.linear(prefix + "in_proj.weight", shape_.projection_dim(), config.hidden_size);
    conv_weight_ =
        source.vector(prefix + "conv1d.weight", {shape_.conv_dim(), 1, shape_.conv_width});
    if (shape_.conv_bias) conv_bias_ = source.vector(prefix + "conv1d.bias", {shape_.conv_dim()});
    a_log_ = source.vector(prefix + "A_log", {shape_.heads});
    d_ = source.vector(prefix + "D", {shape_.heads});
    dt_bias_ = source.vector(prefix + "dt_bias", {shape_.heads});
    norm_ = source.norm(prefix + "norm.weight", shape_.d_inner());
    out_proj_ = source.linear(prefix + "out_proj.weight", config.hidden_size, shape_.d_inner());
  }

  [[nodiscard]] Widths widths() const override {
    Widths widths;
    widths.projected = shape_.projection_dim();
    widths.prepared = shape_.conv_dim();
    widths.recurred = shape_.d_inner();
    widths.inner = shape_.d_inner();
    return widths;
  }

  [[nodiscard]] std::optional<RecurrentLayer> recurrent() const override {
    RecurrentLayer layer;
    layer.shape.rule = Rule::kMamba2;
    layer.shape.heads = static_cast<std::int32_t>(shape_.heads);
    layer.shape.groups = static_cast<std::int32_t>(shape_.groups);
    layer.shape.value_dim = static_cast<std::int32_t>(shape_.head_dim);
    layer.shape.key_dim = static_cast<std::int32_t>(shape_.state_dim);
    layer.shape.conv_channels = static_cast<std::int32_t>(shape_.conv_dim());
    layer.shape.conv_width = static_cast<std::int32_t>(shape_.conv_width);
    layer.shape.dt_min = to_limit(shape_.dt_min);
    layer.shape.dt_max = to_limit(shape_.dt_max);
    layer.weights.a_log = a_log_.data();
    layer.weights.d = d_.data();
    layer.weights.dt_bias = dt_bias_.data();
    layer.weights.conv_weight = conv_weight_.data();
    layer.weights.conv_bias = conv_bias_.empty() ? nullptr : conv_bias_.data();
    return layer;
  }

  [[nodiscard]] Status run(Pass& pass, std::int32_t place) const override {
    const DType type = pass.activations;
    const std::int64_t tokens = pass.tokens;
    const std::int64_t inner = shape_.d_inner();
    const std::int64_t width = shape_.projection_dim();
    const std::int64_t conv_dim = shape_.conv_dim();
    const std::int64_t keys = shape_.groups * shape_.state_dim;
    const void* projected = pass.memory.projected.data();
    const void* convolved = pass.memory.prepared.data();
    const float* recurred = pass.memory.recurred.data();
    REPLAYSSM_RETURN_IF_ERROR(in_proj_.run(pass.memory.normed.data(), tokens,
                                           pass.memory.projected.data(), type, pass.products));

    // A projected row is [z | x B C | dt]; the convolution turns x B C into a row of its own
    // tensor.
    ConvInputs conv;
    conv.layer = place;
    conv.in = columns(projected, type, tokens, width, inner, conv_dim);
    conv.out = columns(convolved, type, tokens, conv_dim, 0, conv_dim);
    REPLAYSSM_RETURN_IF_ERROR(pass.cache.conv(conv));

    LayerInputs inputs;
    inputs.layer = place;
    inputs.value = columns(convolved, type, tokens, conv_dim, 0, shape_.heads, shape_.head_dim);
    inputs.key = columns(convolved, type, tokens, conv_dim, inner, shape_.groups, shape_.state_dim);
    inputs.query =
        columns(convolved, type, tokens, conv_dim, inner + keys, shape_.groups, shape_.state_dim);
    inputs.gate = columns(projected, type, tokens, width, inner + conv_dim, shape_.heads);
    inputs.z = columns(projected, type, tokens, width, 0, shape_.heads, shape_.head_dim);
    inputs.out = columns(recurred, DType::kF32, tokens, inner, 0, shape_.heads, shape_.head_dim);
    REPLAYSSM_RETURN_IF_ERROR(recur(pass, inputs));

    void* normed = pass.memory.inner.data();
    if (type == DType::kF32) {
      group_rms_norm(recurred, norm_.data(), pass.norm_epsilon, tokens, inner, shape_.groups,
                     static_cast<float*>(normed));
    } else {
      group_rms_norm(recurred, norm_.data(), pass.norm_epsilon, tokens, inner, shape_.groups,
                     static_cast<std::uint16_t*>(normed));
    }
    return out_proj_.run(normed, tokens, pass.memory.mixed.data(), DType::kF32, pass.products);
  }

 private:
  Mamba2Config shape_;
  Linear in_proj_;                  // outputs z, x, B, C, dt
  std::vector<float> conv_weight_;  // [conv_dim, conv_width]
  std::vector<float> conv_bias_;    // [conv_dim], or empty
  std::vector<float> a_log_;        // [heads]
  std::vector<float> d_;            // [heads]
  std::vector<float> dt_bias_;      // [heads]
  std::vector<float> norm_;         // [d_inner]
  Linear out_proj_;
};

}  // namespace

std::unique_ptr<Sublayer> load_mamba2(const ModelConfig& config, const std::string& prefix,
                                      WeightSource& source) {
  return std::make_unique<Mamba2Layer>(config, prefix, source);
}

}  // namespace replayssm::model
