// See nemotron_h.hpp.
#include "model/layers/nemotron_h.hpp"

#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "core/text.hpp"
#include "model/layers/bf16.hpp"

namespace replayssm::model {
namespace {

void widen_row(const MatrixView& matrix, std::int64_t row, float* out) {
  const std::int64_t offset = row * matrix.inputs;
  if (matrix.dtype == DType::kF32) {
    std::memcpy(out, static_cast<const float*>(matrix.data) + offset,
                static_cast<std::size_t>(matrix.inputs) * sizeof(float));
  } else {
    bf16_to_f32(static_cast<const std::uint16_t*>(matrix.data) + offset, out, matrix.inputs);
  }
}

// Limits of dt that no float reaches are none.
float to_limit(double value) {
  return value > static_cast<double>(std::numeric_limits<float>::max())
             ? std::numeric_limits<float>::infinity()
             : static_cast<float>(value);
}

std::int64_t vector_bytes(const std::vector<float>& values) {
  return static_cast<std::int64_t>(values.size() * sizeof(float));
}

// Reads the parts of one model; keeps the first failure.
class Loader {
 public:
  Loader(const WeightMap& weights, DType compute, WorkerPool& pool)
      : weights_(weights), compute_(compute), pool_(pool) {}

  Linear linear(const std::string& name) {
    Linear made;
    if (!status_.ok()) return made;
    Result<Linear> result = Linear::create(weights_.matrix(name), compute_, pool_);
    if (!result.ok()) {
      status_ = error(result.status().code(), "tensor ", name, ": ", result.status().message());
      return made;
    }
    made = std::move(*result);
    bytes_ += made.bytes();
    return made;
  }

  std::vector<float> vector(const std::string& name) {
    std::vector<float> values = weights_.vector(name);
    bytes_ += vector_bytes(values);
    return values;
  }

  [[nodiscard]] const Status& status() const { return status_; }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

 private:
  const WeightMap& weights_;
  DType compute_;
  WorkerPool& pool_;
  Status status_;
  std::int64_t bytes_ = 0;
};

}  // namespace

LayerShape recurrent_shape(const ModelConfig& config) {
  const Mamba2Config& mamba = config.mamba2;
  LayerShape shape;
  shape.rule = Rule::kMamba2;
  shape.heads = static_cast<std::int32_t>(mamba.heads);
  shape.groups = static_cast<std::int32_t>(mamba.groups);
  shape.value_dim = static_cast<std::int32_t>(mamba.head_dim);
  shape.key_dim = static_cast<std::int32_t>(mamba.state_dim);
  shape.conv_channels = mamba.heads > 0 ? static_cast<std::int32_t>(mamba.conv_dim()) : 0;
  shape.conv_width = static_cast<std::int32_t>(mamba.conv_width);
  shape.dt_min = to_limit(mamba.dt_min);
  shape.dt_max = to_limit(mamba.dt_max);
  return shape;
}

AttentionShape attention_shape(const ModelConfig& config, DType activations) {
  AttentionShape shape;
  shape.layers = config.layer_count(LayerKind::kAttention);
  shape.heads = config.attention.heads;
  shape.kv_heads = config.attention.kv_heads;
  shape.head_dim = config.attention.head_dim;
  shape.dtype = activations;
  return shape;
}

Result<NemotronH> NemotronH::load(const ModelConfig& config, const WeightMap& weights,
                                  DType compute, WorkerPool& pool) {
  NemotronH model;
  model.config_ = config;
  model.compute_ = compute;
  Loader loader(weights, compute, pool);
  for (std::size_t i = 0; i < config.layers.size() && loader.status().ok(); ++i) {
    const auto name = [i](std::string_view part) { return concat("layers.", i, ".", part); };
    LayerPlace place;
    place.kind = config.layers[i];
    place.norm = loader.vector(name("norm.weight"));
    switch (place.kind) {
      case LayerKind::kMamba2: {
        Mamba2Layer layer;
        layer.in_proj = loader.linear(name("mixer.in_proj.weight"));
        layer.out_proj = loader.linear(name("mixer.out_proj.weight"));
        layer.conv_weight = loader.vector(name("mixer.conv1d.weight"));
        if (config.mamba2.conv_bias) layer.conv_bias = loader.vector(name("mixer.conv1d.bias"));
        layer.a_log = loader.vector(name("mixer.A_log"));
        layer.d = loader.vector(name("mixer.D"));
        layer.dt_bias = loader.vector(name("mixer.dt_bias"));
        layer.norm = loader.vector(name("mixer.norm.weight"));
        place.index = model.mamba2_.size();
        model.mamba2_.push_back(std::move(layer));
        break;
      }
      case LayerKind::kAttention: {
        AttentionLayer layer;
        layer.query = loader.linear(name("mixer.q_proj.weight"));
        layer.key = loader.linear(name("mixer.k_proj.weight"));
        layer.value = loader.linear(name("mixer.v_proj.weight"));
        layer.out = loader.linear(name("mixer.o_proj.weight"));
        place.index = model.attention_.size();
        model.attention_.push_back(std::move(layer));
        break;
      }
      case LayerKind::kMlp: {
        MlpLayer layer;
        layer.up = loader.linear(name("mixer.up_proj.weight"));
        layer.down = loader.linear(name("mixer.down_proj.weight"));
        place.index = model.mlp_.size();
        model.mlp_.push_back(std::move(layer));
        break;
      }
    }
    model.layers_.push_back(std::move(place));
  }
  model.final_norm_ = loader.vector("norm_f.weight");
  model.embeddings_ = weights.matrix("embeddings.weight");
  const std::string head = config.tied_embeddings ? "embeddings.weight" : "lm_head.weight";
  model.head_matrix_ = weights.matrix(head);
  model.head_ = loader.linear(head);
  REPLAYSSM_RETURN_IF_ERROR(loader.status());
  model.bytes_ = loader.bytes();
  return model;
}

void NemotronH::embed(std::int32_t token, float* out) const { widen_row(embeddings_, token, out); }

void NemotronH::head_row(std::int32_t token, float* out) const {
  widen_row(head_matrix_, token, out);
}

std::vector<LayerWeights> NemotronH::recurrent_weights() const {
  std::vector<LayerWeights> list;
  for (const Mamba2Layer& layer : mamba2_) {
    LayerWeights weights;
    weights.a_log = layer.a_log.data();
    weights.d = layer.d.data();
    weights.dt_bias = layer.dt_bias.data();
    weights.conv_weight = layer.conv_weight.data();
    weights.conv_bias = layer.conv_bias.empty() ? nullptr : layer.conv_bias.data();
    list.push_back(weights);
  }
  return list;
}

}  // namespace replayssm::model
