// See gdn_layer.hpp.
#include "model/layers/gdn_layer.hpp"

#include <array>
#include <vector>

#include "model/layers/norms.hpp"
#include "model/layers/views.hpp"

namespace replayssm::model {
namespace {

class GdnLayer final : public Sublayer {
 public:
  GdnLayer(const ModelConfig& config, const std::string& prefix, WeightSource& source)
      : shape_(config.delta) {
    const std::array<MatrixPart, 4> parts = {
        MatrixPart{prefix + "in_proj_qkv.weight", shape_.conv_dim()},
        MatrixPart{prefix + "in_proj_z.weight", shape_.values()},
        MatrixPart{prefix + "in_proj_b.weight", shape_.value_heads},
        MatrixPart{prefix + "in_proj_a.weight", shape_.value_heads}};
    in_proj_ = source.stacked(parts, config.hidden_size);
    conv_weight_ =
        source.vector(prefix + "conv1d.weight", {shape_.conv_dim(), 1, shape_.conv_width});
    a_log_ = source.vector(prefix + "A_log", {shape_.value_heads});
    dt_bias_ = source.vector(prefix + "dt_bias", {shape_.value_heads});
    norm_ = source.vector(prefix + "norm.weight", {shape_.value_dim});
    out_proj_ = source.linear(prefix + "out_proj.weight", config.hidden_size, shape_.values());
  }

  [[nodiscard]] Widths widths() const override {
    Widths widths;
    widths.projected = projection_dim();
    widths.prepared = shape_.conv_dim();
    widths.recurred = shape_.values();
    widths.inner = shape_.values();
    return widths;
  }

  [[nodiscard]] std::optional<RecurrentLayer> recurrent() const override {
    RecurrentLayer layer;
    layer.shape.rule = Rule::kGdn;
    layer.shape.heads = static_cast<std::int32_t>(shape_.value_heads);
    layer.shape.groups = static_cast<std::int32_t>(shape_.key_heads);
    layer.shape.value_dim = static_cast<std::int32_t>(shape_.value_dim);
    layer.shape.key_dim = static_cast<std::int32_t>(shape_.key_dim);
    layer.shape.conv_channels = static_cast<std::int32_t>(shape_.conv_dim());
    layer.shape.conv_width = static_cast<std::int32_t>(shape_.conv_width);
    layer.weights.a_log = a_log_.data();
    layer.weights.dt_bias = dt_bias_.data();
    layer.weights.conv_weight = conv_weight_.data();
    return layer;
  }

  [[nodiscard]] Status run(Pass& pass, std::int32_t place) const override {
    const DType type = pass.activations;
    const std::int64_t tokens = pass.tokens;
    const std::int64_t width = projection_dim();
    const std::int64_t conv_dim = shape_.conv_dim();
    const void* projected = pass.memory.projected.data();
    const void* convolved = pass.memory.prepared.data();
    REPLAYSSM_RETURN_IF_ERROR(in_proj_.run(pass.memory.normed.data(), tokens,
                                           pass.memory.projected.data(), type, pass.products));

    // A projected row is [q k v | z | b | a]; the convolution turns q k v into a row of its own
    // tensor.
    ConvInputs conv;
    conv.layer = place;
    conv.in = columns(projected, type, tokens, width, 0, conv_dim);
    conv.out = columns(convolved, type, tokens, conv_dim, 0, conv_dim);
    REPLAYSSM_RETURN_IF_ERROR(pass.cache.conv(conv));

    LayerInputs inputs;
    inputs.layer = place;
    inputs.query = columns(convolved, type, tokens, conv_dim, 0, shape_.key_heads, shape_.key_dim);
    inputs.key =
        columns(convolved, type, tokens, conv_dim, shape_.keys(), shape_.key_heads, shape_.key_dim);
    inputs.value = columns(convolved, type, tokens, conv_dim, 2 * shape_.keys(), shape_.value_heads,
                           shape_.value_dim);
    const std::int64_t beta = conv_dim + shape_.values();
    inputs.beta = columns(projected, type, tokens, width, beta, shape_.value_heads);
    inputs.gate =
        columns(projected, type, tokens, width, beta + shape_.value_heads, shape_.value_heads);
    inputs.out = columns(pass.memory.recurred.data(), DType::kF32, tokens, shape_.values(), 0,
                         shape_.value_heads, shape_.value_dim);
    REPLAYSSM_RETURN_IF_ERROR(recur(pass, inputs));

    if (type == DType::kF32) {
      norm_and_gate<float>(pass);
    } else {
      norm_and_gate<std::uint16_t>(pass);
    }
    return out_proj_.run(pass.memory.inner.data(), tokens, pass.memory.mixed.data(), DType::kF32,
                         pass.products);
  }

 private:
  [[nodiscard]] std::int64_t projection_dim() const {
    return shape_.conv_dim() + shape_.values() + 2 * shape_.value_heads;
  }

  // The norm over each head comes first, then the gate.
  template <typename Element>
  void norm_and_gate(Pass& pass) const {
    float* recurred = pass.memory.recurred.data();
    const auto* projected = reinterpret_cast<const Element*>(pass.memory.projected.data());
    auto* inner = reinterpret_cast<Element*>(pass.memory.inner.data());
    rms_norm(recurred, norm_.data(), pass.norm_epsilon, pass.tokens * shape_.value_heads,
             shape_.value_dim, recurred);
    for (std::int64_t token = 0; token < pass.tokens; ++token) {
      const std::int64_t row = token * shape_.values();
      const Element* z = projected + token * projection_dim() + shape_.conv_dim();
      for (std::int64_t i = 0; i < shape_.values(); ++i) {
        const float gate = load(z[i]);
        store(recurred[row + i] * (shape_.sigmoid_gate ? sigmoid(gate) : silu(gate)),
              inner + row + i);
      }
    }
  }

  DeltaConfig shape_;
  Linear in_proj_;                  // outputs q, k, v, z, b, a
  std::vector<float> conv_weight_;  // [conv_dim, conv_width]
  std::vector<float> a_log_;        // [value_heads]
  std::vector<float> dt_bias_;      // [value_heads]
  std::vector<float> norm_;         // [value_dim]
  Linear out_proj_;
};

}  // namespace

std::unique_ptr<Sublayer> load_gdn(const ModelConfig& config, const std::string& prefix,
                                   WeightSource& source) {
  return std::make_unique<GdnLayer>(config, prefix, source);
}

}  // namespace replayssm::model
