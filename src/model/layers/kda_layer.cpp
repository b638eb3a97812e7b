// See kda_layer.hpp. The formulas are those of the Kimi Linear report (arXiv 2510.26692, section
// 4) and of transformers' modeling_kimi_linear.py.
#include "model/layers/kda_layer.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "model/layers/norms.hpp"
#include "model/layers/views.hpp"

namespace replayssm::model {
namespace {

class KdaLayer final : public Sublayer {
 public:
  KdaLayer(const ModelConfig& config, const std::string& prefix, WeightSource& source)
      : shape_(config.delta) {
    const std::int64_t inner = shape_.values();
    const std::array<MatrixPart, 6> parts = {MatrixPart{prefix + "q_proj.weight", inner},
                                             MatrixPart{prefix + "k_proj.weight", inner},
                                             MatrixPart{prefix + "v_proj.weight", inner},
                                             MatrixPart{prefix + "f_a_proj.weight", rank()},
                                             MatrixPart{prefix + "g_a_proj.weight", rank()},
                                             MatrixPart{prefix + "b_proj.weight", heads()}};
    in_proj_ = source.stacked(parts, config.hidden_size);
    // One convolution of all channels, in the same order.
    for (const char* part : {"q", "k", "v"}) {
      const std::vector<float> weight =
          source.vector(prefix + part + "_conv1d.weight", {inner, 1, shape_.conv_width});
      conv_weight_.insert(conv_weight_.end(), weight.begin(), weight.end());
    }
    forget_ = source.linear(prefix + "f_b_proj.weight", inner, rank());
    gate_ = source.linear(prefix + "g_b_proj.weight", inner, rank());
    a_log_ = source.vector(prefix + "A_log", {heads()});
    dt_bias_ = source.vector(prefix + "dt_bias", {inner});
    norm_ = source.norm(prefix + "o_norm.weight", shape_.value_dim);
    out_ = source.linear(prefix + "o_proj.weight", config.hidden_size, inner);
  }

  [[nodiscard]] Widths widths() const override {
    Widths widths;
    widths.projected = projected_width();
    widths.prepared = shape_.conv_dim();
    widths.recurred = shape_.values();
    widths.inner = std::max(shape_.values(), rank());
    widths.keys = shape_.keys();
    widths.values = shape_.values();
    return widths;
  }

  [[nodiscard]] std::optional<RecurrentLayer> recurrent() const override {
    RecurrentLayer layer;
    layer.shape.rule = Rule::kKda;
    layer.shape.heads = static_cast<std::int32_t>(shape_.value_heads);
    layer.shape.groups = static_cast<std::int32_t>(shape_.key_heads);
    layer.shape.value_dim = static_cast<std::int32_t>(shape_.value_dim);
    layer.shape.key_dim = static_cast<std::int32_t>(shape_.key_dim);
    layer.shape.conv_channels = static_cast<std::int32_t>(shape_.conv_dim());
    layer.shape.conv_width = static_cast<std::int32_t>(shape_.conv_width);
    layer.shape.gate = shape_.gate;
    layer.shape.gate_lower_bound = static_cast<float>(shape_.gate_lower_bound);
    layer.weights.a_log = a_log_.data();
    layer.weights.dt_bias = dt_bias_.data();
    layer.weights.conv_weight = conv_weight_.data();
    return layer;
  }

  [[nodiscard]] Status run(Pass& pass, std::int32_t place) const override {
    const DType type = pass.activations;
    const std::int64_t tokens = pass.tokens;
    const std::int64_t inner = shape_.values();
    const std::int64_t width = projected_width();
    const std::int64_t conv_dim = shape_.conv_dim();
    Workspace& memory = pass.memory;
    const void* projected = memory.projected.data();
    const void* convolved = memory.prepared.data();
    REPLAYSSM_RETURN_IF_ERROR(
        in_proj_.run(memory.normed.data(), tokens, memory.projected.data(), type, pass.products));
    REPLAYSSM_RETURN_IF_ERROR(second_factor(forget_, conv_dim, pass, memory.keys.data()));
    REPLAYSSM_RETURN_IF_ERROR(second_factor(gate_, conv_dim + rank(), pass, memory.values.data()));

    // A projected row is [q | k | v | f_a | g_a | beta].
    ConvInputs conv;
    conv.layer = place;
    conv.in = columns(projected, type, tokens, width, 0, conv_dim);
    conv.out = columns(convolved, type, tokens, conv_dim, 0, conv_dim);
    REPLAYSSM_RETURN_IF_ERROR(pass.cache.conv(conv));

    const std::int64_t dim = shape_.value_dim;
    LayerInputs inputs;
    inputs.layer = place;
    inputs.query = columns(convolved, type, tokens, conv_dim, 0, heads(), dim);
    inputs.key = columns(convolved, type, tokens, conv_dim, inner, heads(), dim);
    inputs.value = columns(convolved, type, tokens, conv_dim, 2 * inner, heads(), dim);
    inputs.gate = columns(memory.keys.data(), type, tokens, inner, 0, heads(), dim);
    inputs.beta = columns(projected, type, tokens, width, conv_dim + 2 * rank(), heads());
    inputs.out = columns(memory.recurred.data(), DType::kF32, tokens, inner, 0, heads(), dim);
    REPLAYSSM_RETURN_IF_ERROR(recur(pass, inputs));

    if (type == DType::kF32) {
      finish<float>(pass);
    } else {
      finish<std::uint16_t>(pass);
    }
    return out_.run(memory.inner.data(), tokens, memory.mixed.data(), DType::kF32, pass.products);
  }

 private:
  [[nodiscard]] std::int64_t heads() const { return shape_.value_heads; }
  [[nodiscard]] std::int64_t rank() const { return shape_.gate_rank; }
  [[nodiscard]] std::int64_t projected_width() const {
    return shape_.conv_dim() + 2 * rank() + heads();
  }

  // out = W (columns `first` to first + rank of the projected rows). Uses memory.inner.
  [[nodiscard]] Status second_factor(const Linear& matrix, std::int64_t first, Pass& pass,
                                     void* out) const {
    const std::size_t element = dtype_bytes(pass.activations);
    const std::size_t bytes = static_cast<std::size_t>(rank()) * element;
    const std::size_t stride = static_cast<std::size_t>(projected_width()) * element;
    const std::byte* from =
        pass.memory.projected.data() + static_cast<std::size_t>(first) * element;
    std::byte* to = pass.memory.inner.data();
    for (std::int64_t token = 0; token < pass.tokens; ++token, from += stride, to += bytes) {
      std::memcpy(to, from, bytes);
    }
    return matrix.run(pass.memory.inner.data(), pass.tokens, out, pass.activations, pass.products);
  }

  // memory.inner = rms_norm over each head, times the sigmoid of its gates.
  template <typename Element>
  void finish(Pass& pass) const {
    float* recurred = pass.memory.recurred.data();
    const auto* gates = reinterpret_cast<const Element*>(pass.memory.values.data());
    auto* inner = reinterpret_cast<Element*>(pass.memory.inner.data());
    rms_norm(recurred, norm_.data(), pass.norm_epsilon, pass.tokens * heads(), shape_.value_dim,
             recurred);
    for (std::int64_t i = 0; i < pass.tokens * shape_.values(); ++i) {
      store(recurred[i] * sigmoid(load(gates[i])), inner + i);
    }
  }

  DeltaConfig shape_;
  Linear in_proj_;                  // outputs q, k, v, f_a, g_a, beta
  std::vector<float> conv_weight_;  // [conv_dim, conv_width], channels q, k, v
  Linear forget_;                   // f_b: gate inputs
  Linear gate_;                     // g_b: gates of the output
  std::vector<float> a_log_;        // [heads]
  std::vector<float> dt_bias_;      // [heads, key_dim]
  std::vector<float> norm_;         // [value_dim]
  Linear out_;
};

}  // namespace

std::unique_ptr<Sublayer> load_kda(const ModelConfig& config, const std::string& prefix,
                                   WeightSource& source) {
  return std::make_unique<KdaLayer>(config, prefix, source);
}

}  // namespace replayssm::model
