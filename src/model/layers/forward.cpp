// See forward.hpp.
#include "model/layers/forward.hpp"

#include <algorithm>

#include "model/layers/norms.hpp"

namespace replayssm::model {
namespace {

// A view of some columns of a row-major [tokens, width] tensor as [tokens, outer, inner].
TensorView columns(const void* data, DType dtype, std::int64_t tokens, std::int64_t width,
                   std::int64_t first, std::int64_t outer, std::int64_t inner) {
  TensorView view = TensorView::contiguous(data, dtype, tokens, outer, inner);
  view.data =
      static_cast<std::byte*>(view.data) + first * static_cast<std::int64_t>(dtype_bytes(dtype));
  view.stride[0] = width;
  return view;
}

// The same as [tokens, count].
TensorView columns(const void* data, DType dtype, std::int64_t tokens, std::int64_t width,
                   std::int64_t first, std::int64_t count) {
  TensorView view = TensorView::contiguous(data, dtype, tokens, count);
  view.data =
      static_cast<std::byte*>(view.data) + first * static_cast<std::int64_t>(dtype_bytes(dtype));
  view.stride[0] = width;
  return view;
}

}  // namespace

Forward::Forward(const NemotronH& model, WorkerPool& pool, std::int64_t max_tokens)
    : model_(model),
      products_(pool),
      attention_(attention_shape(model.config(), model.compute()), pool),
      max_tokens_(max_tokens),
      activations_(model.compute()) {
  const ModelConfig& config = model.config();
  const auto floats = [max_tokens](std::int64_t width) {
    return static_cast<std::size_t>(max_tokens * width);
  };
  const auto elements = [this, floats](std::int64_t width) {
    return floats(width) * dtype_bytes(activations_);
  };
  const std::int64_t queries = config.attention.heads * config.attention.head_dim;
  const std::int64_t keys = config.attention.kv_heads * config.attention.head_dim;
  residual_.resize(floats(config.hidden_size));
  mixed_.resize(floats(config.hidden_size));
  normed_.resize(elements(config.hidden_size));
  projected_.resize(
      elements(std::max({config.mamba2.projection_dim(), queries, config.mlp.width})));
  convolved_.resize(elements(config.mamba2.heads > 0 ? config.mamba2.conv_dim() : 0));
  recurred_.resize(floats(config.mamba2.d_inner()));
  inner_.resize(elements(std::max(config.mamba2.d_inner(), queries)));
  keys_.resize(elements(keys));
  values_.resize(elements(keys));
}

void Forward::normalise(const float* in, const std::vector<float>& weight, std::int64_t rows,
                        void* out) {
  const std::int64_t hidden = model_.config().hidden_size;
  const double epsilon = model_.config().norm_epsilon;
  if (activations_ == DType::kF32) {
    rms_norm(in, weight.data(), epsilon, rows, hidden, static_cast<float*>(out));
  } else {
    rms_norm(in, weight.data(), epsilon, rows, hidden, static_cast<std::uint16_t*>(out));
  }
}

Status Forward::run(std::span<const std::int32_t> tokens, std::span<const ForwardRow> rows,
                    Cache& cache) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  const std::int64_t hidden = model_.config().hidden_size;
  if (count > max_tokens_) {
    return {StatusCode::kInternal, "forward: more tokens than working memory"};
  }
  any_step_ = false;
  any_prefill_ = false;
  attention_rows_.clear();
  for (const ForwardRow& row : rows) {
    (row.prefill ? any_prefill_ : any_step_) = true;
    AttentionRow attention_row;
    attention_row.cache = row.kv;
    attention_row.first = row.first;
    attention_row.tokens = row.tokens;
    attention_rows_.push_back(attention_row);
    REPLAYSSM_RETURN_IF_ERROR(row.kv->reserve(row.tokens));
  }
  for (std::int64_t i = 0; i < count; ++i) {
    model_.embed(tokens[static_cast<std::size_t>(i)], residual_.data() + i * hidden);
  }
  for (const LayerPlace& layer : model_.layers()) {
    normalise(residual_.data(), layer.norm, count, normed_.data());
    switch (layer.kind) {
      case LayerKind::kMamba2:
        REPLAYSSM_RETURN_IF_ERROR(run_mamba2(static_cast<std::int32_t>(layer.index),
                                             model_.mamba2()[layer.index], count, cache));
        break;
      case LayerKind::kAttention:
        REPLAYSSM_RETURN_IF_ERROR(run_attention(static_cast<std::int64_t>(layer.index),
                                                model_.attention()[layer.index], count, rows));
        break;
      case LayerKind::kMlp:
        REPLAYSSM_RETURN_IF_ERROR(run_mlp(model_.mlp()[layer.index], count));
        break;
    }
    add(mixed_.data(), count * hidden, residual_.data());
  }
  return {};
}

Status Forward::run_mamba2(std::int32_t layer, const Mamba2Layer& weights, std::int64_t tokens,
                           Cache& cache) {
  const Mamba2Config& shape = model_.config().mamba2;
  const std::int64_t inner = shape.d_inner();
  const std::int64_t width = shape.projection_dim();
  const std::int64_t conv_dim = shape.conv_dim();
  const std::int64_t keys = shape.groups * shape.state_dim;
  REPLAYSSM_RETURN_IF_ERROR(
      weights.in_proj.run(normed_.data(), tokens, projected_.data(), activations_, products_));

  // A projected row is [z | x B C | dt]; the convolution turns x B C into a row of its own tensor.
  ConvInputs conv;
  conv.layer = layer;
  conv.in = columns(projected_.data(), activations_, tokens, width, inner, conv_dim);
  conv.out = columns(convolved_.data(), activations_, tokens, conv_dim, 0, conv_dim);
  REPLAYSSM_RETURN_IF_ERROR(cache.conv(conv));

  LayerInputs inputs;
  inputs.layer = layer;
  inputs.value =
      columns(convolved_.data(), activations_, tokens, conv_dim, 0, shape.heads, shape.head_dim);
  inputs.key = columns(convolved_.data(), activations_, tokens, conv_dim, inner, shape.groups,
                       shape.state_dim);
  inputs.query = columns(convolved_.data(), activations_, tokens, conv_dim, inner + keys,
                         shape.groups, shape.state_dim);
  inputs.gate =
      columns(projected_.data(), activations_, tokens, width, inner + conv_dim, shape.heads);
  inputs.z =
      columns(projected_.data(), activations_, tokens, width, 0, shape.heads, shape.head_dim);
  inputs.out =
      columns(recurred_.data(), DType::kF32, tokens, inner, 0, shape.heads, shape.head_dim);
  if (any_prefill_) REPLAYSSM_RETURN_IF_ERROR(cache.prefill(inputs));
  if (any_step_) REPLAYSSM_RETURN_IF_ERROR(cache.step(inputs));

  const double epsilon = model_.config().norm_epsilon;
  if (activations_ == DType::kF32) {
    group_rms_norm(recurred_.data(), weights.norm.data(), epsilon, tokens, inner, shape.groups,
                   reinterpret_cast<float*>(inner_.data()));
  } else {
    group_rms_norm(recurred_.data(), weights.norm.data(), epsilon, tokens, inner, shape.groups,
                   reinterpret_cast<std::uint16_t*>(inner_.data()));
  }
  return weights.out_proj.run(inner_.data(), tokens, mixed_.data(), DType::kF32, products_);
}

Status Forward::run_attention(std::int64_t layer, const AttentionLayer& weights,
                              std::int64_t tokens, std::span<const ForwardRow> rows) {
  const AttentionConfig& shape = model_.config().attention;
  const auto row_bytes =
      static_cast<std::int64_t>(dtype_bytes(activations_)) * shape.kv_heads * shape.head_dim;
  REPLAYSSM_RETURN_IF_ERROR(
      weights.query.run(normed_.data(), tokens, projected_.data(), activations_, products_));
  REPLAYSSM_RETURN_IF_ERROR(
      weights.key.run(normed_.data(), tokens, keys_.data(), activations_, products_));
  REPLAYSSM_RETURN_IF_ERROR(
      weights.value.run(normed_.data(), tokens, values_.data(), activations_, products_));
  for (const ForwardRow& row : rows) {
    for (std::int64_t i = 0; i < row.tokens; ++i) {
      const std::int64_t offset = (row.first + i) * row_bytes;
      row.kv->write(layer, row.kv->length() + i, keys_.data() + offset, values_.data() + offset);
    }
  }
  attention_.run(layer, attention_rows_, projected_.data(), inner_.data());
  return weights.out.run(inner_.data(), tokens, mixed_.data(), DType::kF32, products_);
}

Status Forward::run_mlp(const MlpLayer& weights, std::int64_t tokens) {
  const std::int64_t count = tokens * model_.config().mlp.width;
  REPLAYSSM_RETURN_IF_ERROR(
      weights.up.run(normed_.data(), tokens, projected_.data(), activations_, products_));
  if (activations_ == DType::kF32) {
    relu_squared(reinterpret_cast<float*>(projected_.data()), count);
  } else {
    relu_squared(reinterpret_cast<std::uint16_t*>(projected_.data()), count);
  }
  return weights.down.run(projected_.data(), tokens, mixed_.data(), DType::kF32, products_);
}

Status Forward::logits(std::span<const std::int64_t> positions, float* hidden_out, float* logits) {
  const std::int64_t hidden = model_.config().hidden_size;
  const std::int64_t vocab = model_.config().vocab_size;
  const auto count = static_cast<std::int64_t>(positions.size());
  // mixed_ holds nothing any more, and there is room for max_tokens rows of it.
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t rows = std::min(count - done, max_tokens_);
    for (std::int64_t i = 0; i < rows; ++i) {
      const float* from = residual_.data() + positions[static_cast<std::size_t>(done + i)] * hidden;
      std::copy_n(from, hidden, mixed_.data() + i * hidden);
    }
    normalise(mixed_.data(), model_.final_norm(), rows, normed_.data());
    if (hidden_out != nullptr) {
      rms_norm(mixed_.data(), model_.final_norm().data(), model_.config().norm_epsilon, rows,
               hidden, hidden_out + done * hidden);
    }
    REPLAYSSM_RETURN_IF_ERROR(
        model_.head().run(normed_.data(), rows, logits + done * vocab, DType::kF32, products_));
    done += rows;
  }
  return {};
}

}  // namespace replayssm::model
