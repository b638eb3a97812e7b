// See recurrent_mixer.hpp.
#include "model/layers/recurrent_mixer.hpp"

#include "model/layers/norms.hpp"
#include "model/layers/token_loop.hpp"
#include "model/layers/views.hpp"

namespace replayssm::model {
namespace {

// One layer of the recurrent cache for all rows of the pass, prompt chunks and steps.
Status recur(Pass& pass, const LayerInputs& inputs) {
  if (pass.any_prefill) REPLAYSSM_RETURN_IF_ERROR(pass.cache.prefill(inputs));
  if (pass.any_step) REPLAYSSM_RETURN_IF_ERROR(pass.cache.step(inputs));
  return {};
}

const float* data_or_null(const std::vector<float>& weights) {
  return weights.empty() ? nullptr : weights.data();
}

}  // namespace

Widths RecurrentMixer::widths() const {
  Widths widths;
  widths.projected = parts_.projected;
  widths.prepared = parts_.shape.conv_channels;
  widths.recurred = values();
  widths.inner = values();
  return widths;
}

std::optional<RecurrentLayer> RecurrentMixer::recurrent() const {
  RecurrentLayer layer;
  layer.shape = parts_.shape;
  layer.weights.a_log = parts_.a_log.data();
  layer.weights.d = data_or_null(parts_.d);
  layer.weights.dt_bias = parts_.dt_bias.data();
  layer.weights.conv_weight = parts_.conv_weight.data();
  layer.weights.conv_bias = data_or_null(parts_.conv_bias);
  return layer;
}

Status RecurrentMixer::run(Pass& pass, std::int32_t place) const {
  const DType type = pass.activations;
  const std::int64_t tokens = pass.tokens;
  const LayerShape& shape = parts_.shape;
  Workspace& memory = pass.memory;
  REPLAYSSM_RETURN_IF_ERROR(parts_.in_proj.run(memory.normed.data(), tokens,
                                               memory.projected.data(), type, pass.products));

  ConvInputs conv;
  conv.layer = place;
  conv.in = columns(memory.projected.data(), type, tokens, parts_.projected, parts_.conv_first,
                    shape.conv_channels);
  conv.out =
      columns(memory.prepared.data(), type, tokens, shape.conv_channels, 0, shape.conv_channels);
  REPLAYSSM_RETURN_IF_ERROR(pass.cache.conv(conv));

  LayerInputs inputs;
  inputs.layer = place;
  inputs.out = columns(memory.recurred.data(), DType::kF32, tokens, values(), 0, shape.heads,
                       shape.value_dim);
  REPLAYSSM_RETURN_IF_ERROR(connect(pass, inputs));
  REPLAYSSM_RETURN_IF_ERROR(recur(pass, inputs));

  for_tokens(pass.products.pool(), tokens, values(),
             [&](std::int64_t first, std::int64_t count, int) { finish(pass, first, count); });
  return parts_.out_proj.run(memory.inner.data(), tokens, memory.mixed.data(), DType::kF32,
                             pass.products);
}

DeltaMixer::DeltaMixer(Rule rule, const DeltaConfig& config) : config_(config) {
  LayerShape& shape = parts_.shape;
  shape.rule = rule;
  shape.heads = static_cast<std::int32_t>(config.value_heads);
  shape.groups = static_cast<std::int32_t>(config.key_heads);
  shape.value_dim = static_cast<std::int32_t>(config.value_dim);
  shape.key_dim = static_cast<std::int32_t>(config.key_dim);
  shape.conv_channels = static_cast<std::int32_t>(config.conv_dim());
  shape.conv_width = static_cast<std::int32_t>(config.conv_width);
}

void DeltaMixer::connect_convolved(Pass& pass, LayerInputs& inputs) const {
  const auto part = [&](std::int64_t first, std::int64_t heads, std::int64_t dim) {
    return columns(pass.memory.prepared.data(), pass.activations, pass.tokens, config_.conv_dim(),
                   first, heads, dim);
  };
  inputs.query = part(0, config_.key_heads, config_.key_dim);
  inputs.key = part(config_.keys(), config_.key_heads, config_.key_dim);
  inputs.value = part(2 * config_.keys(), config_.value_heads, config_.value_dim);
}

void DeltaMixer::norm_and_gate(Pass& pass, std::int64_t first, std::int64_t count,
                               const std::byte* gates, std::int64_t stride,
                               bool sigmoid_gate) const {
  const std::int64_t width = values();
  float* recurred = pass.memory.recurred.data() + first * width;
  rms_norm(recurred, parts_.norm.data(), pass.norm_epsilon, count * config_.value_heads,
           config_.value_dim, recurred);
  with_element(pass.activations, [&](auto element) {
    using Element = decltype(element);
    const auto* gate_rows = reinterpret_cast<const Element*>(gates) + first * stride;
    auto* inner = reinterpret_cast<Element*>(pass.memory.inner.data()) + first * width;
    for (std::int64_t token = 0; token < count; ++token) {
      for (std::int64_t i = 0; i < width; ++i) {
        const float gate = load(gate_rows[token * stride + i]);
        store(recurred[token * width + i] * (sigmoid_gate ? sigmoid(gate) : silu(gate)),
              inner + token * width + i);
      }
    }
  });
}

}  // namespace replayssm::model
