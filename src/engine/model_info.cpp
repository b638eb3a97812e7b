// See model_info.hpp.
#include "engine/model_info.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "core/guard.hpp"
#include "core/text.hpp"
#include "engine/runner.hpp"
#include "model/hub_cache.hpp"
#include "model/layers/nemotron_h.hpp"
#include "replayssm/cache.hpp"

namespace replayssm {
namespace engine {
namespace {

// kAuto: weights up to this many bytes in the file are computed in f32.
constexpr std::int64_t kAutoF32Bytes = std::int64_t{1} << 30;

LayerKind public_kind(model::LayerKind kind) {
  switch (kind) {
    case model::LayerKind::kMamba2: return LayerKind::kMamba2;
    case model::LayerKind::kAttention: return LayerKind::kAttention;
    case model::LayerKind::kMlp: return LayerKind::kMlp;
  }
  return LayerKind::kMlp;
}

// The matrices of the products and the vectors, as they lie in memory after loading.
std::int64_t resident_bytes(const model::ModelConfig& config, ComputeType compute) {
  const auto element = static_cast<std::int64_t>(dtype_bytes(activation_dtype(compute)));
  std::int64_t bytes = 0;
  for (const model::ExpectedTensor& tensor : model::expected_tensors(config)) {
    std::int64_t elements = 1;
    for (const std::int64_t extent : tensor.shape) elements *= extent;
    // Embeddings are read from the file's mapping, but for the head of a tied model.
    if (tensor.name == "embeddings.weight" && !config.tied_embeddings) continue;
    bytes += elements * (tensor.shape.size() == 2 ? element : 4);
  }
  return bytes;
}

}  // namespace

DType activation_dtype(ComputeType compute) {
  return compute == ComputeType::kBF16 ? DType::kBF16 : DType::kF32;
}

Result<ModelInfo> describe_model(const std::string& path, const model::ModelConfig& config,
                                 const model::WeightMap* weights, ComputeType compute) {
  ModelInfo info;
  info.path = path;
  info.architecture = config.model_type;
  for (const model::LayerKind kind : config.layers) info.layers.push_back(public_kind(kind));
  info.hidden = config.hidden_size;
  info.vocab = config.vocab_size;
  info.max_positions = config.max_positions;
  info.tied_embeddings = config.tied_embeddings;
  info.norm_epsilon = config.norm_epsilon;
  info.recurrent = model::recurrent_shape(config);
  info.attention_heads = config.attention.heads;
  info.kv_heads = config.attention.kv_heads;
  info.attention_head_dim = config.attention.head_dim;
  info.mlp_width = config.mlp.width;
  for (const model::ExpectedTensor& tensor : model::expected_tensors(config)) {
    std::int64_t elements = 1;
    for (const std::int64_t extent : tensor.shape) elements *= extent;
    info.parameters += elements;
  }
  info.has_weights = weights != nullptr;
  info.weight_bytes = weights != nullptr ? weights->bytes() : 2 * info.parameters;
  if (weights != nullptr) info.weight_dtype = weights->matrix("embeddings.weight").dtype;
  info.compute = compute;
  if (compute == ComputeType::kAuto) {
    info.compute = info.weight_bytes <= kAutoF32Bytes ? ComputeType::kF32 : ComputeType::kBF16;
  }
  info.resident_weight_bytes = resident_bytes(config, info.compute);

  // The cache's own check of the geometry, so that a model that cannot run is refused before its
  // weights are read.
  const std::int64_t recurrent = info.count(LayerKind::kMamba2);
  if (recurrent == 0) {
    return error(StatusCode::kUnsupported,
                 "model: no recurrent layer; supported are models with at least one Mamba-2 layer");
  }
  const CacheConfig cache = cache_config(info.recurrent, recurrent, activation_dtype(info.compute),
                                         DecodeMode::kReplay, 16, 1, 1);
  if (const auto bytes = replayssm::cache_bytes(cache); !bytes.ok()) {
    return error(StatusCode::kUnsupported, "model: ", bytes.status().message());
  }
  return info;
}

}  // namespace engine

std::int64_t ModelInfo::count(LayerKind kind) const {
  return std::count(layers.begin(), layers.end(), kind);
}

std::int64_t ModelInfo::kv_bytes_per_token() const {
  return 2 * count(LayerKind::kAttention) * kv_heads * attention_head_dim *
         static_cast<std::int64_t>(dtype_bytes(engine::activation_dtype(compute)));
}

std::int64_t ModelInfo::state_bytes() const {
  return count(LayerKind::kMamba2) * 4 * std::int64_t{recurrent.heads} * recurrent.value_dim *
         recurrent.key_dim;
}

std::int64_t ModelInfo::conv_bytes() const {
  return count(LayerKind::kMamba2) * (std::int64_t{recurrent.conv_width} - 1) *
         recurrent.conv_channels *
         static_cast<std::int64_t>(dtype_bytes(engine::activation_dtype(compute)));
}

Result<ModelInfo> inspect_model(const std::string& path, ComputeType compute) {
  return guard([&]() -> Result<ModelInfo> {
    const Result<model::ModelConfig> config = model::load_config(path);
    if (!config.ok()) return config.status();
    const Result<model::Checkpoint> checkpoint = model::Checkpoint::open(path);
    if (!checkpoint.ok()) {
      // A configuration alone is enough to plan with.
      if (checkpoint.status().code() != StatusCode::kNotFound) return checkpoint.status();
      return engine::describe_model(path, *config, nullptr, compute);
    }
    const Result<model::WeightMap> weights = model::WeightMap::check(*config, *checkpoint, {});
    if (!weights.ok()) return weights.status();
    return engine::describe_model(path, *config, &*weights, compute);
  });
}

Result<std::string> locate_model(const std::string& name, const std::string& hub_folder) {
  return guard([&]() -> Result<std::string> {
    const Result<std::filesystem::path> folder = model::resolve_model(name, hub_folder);
    if (!folder.ok()) return folder.status();
    return folder->string();
  });
}

}  // namespace replayssm
