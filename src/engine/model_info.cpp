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
#include "model/layers/families.hpp"
#include "model/layers/network.hpp"
#include "replayssm/cache.hpp"

namespace replayssm {
namespace engine {
namespace {

// kAuto: weights up to this many bytes in the file are computed in f32.
constexpr std::int64_t kAutoF32Bytes = std::int64_t{1} << 30;

std::int64_t elements(const model::ExpectedTensor& tensor) {
  std::int64_t count = 1;
  for (const std::int64_t extent : tensor.shape) count *= extent;
  return count;
}

// The matrices of the products and the vectors, as they lie in memory after loading.
std::int64_t resident_bytes(const model::ModelConfig& config, const model::Outline& outline,
                            ComputeType compute) {
  const auto element = static_cast<std::int64_t>(dtype_bytes(activation_dtype(compute)));
  const std::string_view embeddings = model::family_of(config.family).embeddings;
  std::int64_t bytes = 0;
  for (const model::ExpectedTensor& tensor : outline.tensors) {
    // Embeddings are read from the file's mapping, but for the head of a tied model.
    if (tensor.name == embeddings && !config.tied_embeddings) continue;
    bytes += elements(tensor) * (tensor.shape.size() == 2 ? element : 4);
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
  info.layers = config.layers;
  info.hidden = config.hidden_size;
  info.vocab = config.vocab_size;
  info.max_positions = config.max_positions;
  info.tied_embeddings = config.tied_embeddings;
  info.norm_epsilon = config.norm_epsilon;
  const model::Outline outline = model::outline(config);
  info.recurrent = outline.recurrent;
  const bool latent = info.count(LayerKind::kLatentAttention) > 0;
  info.attention_heads = latent ? config.latent.heads : config.attention.heads;
  info.kv_heads = config.attention.kv_heads;
  info.attention_head_dim = latent ? config.latent.key_dim() : config.attention.head_dim;
  info.rotary_dims = config.attention.rotary_dims;
  info.latent_width = latent ? config.latent.kv_rank + config.latent.rope_dim : 0;
  info.mlp_width = config.mlp.width;
  for (const model::ExpectedTensor& tensor : outline.tensors) info.parameters += elements(tensor);
  info.has_weights = weights != nullptr;
  info.weight_bytes = weights != nullptr ? weights->bytes() : 2 * info.parameters;
  if (weights != nullptr)
    info.weight_dtype = weights->matrix(model::family_of(config.family).embeddings).dtype;
  info.compute = compute;
  if (compute == ComputeType::kAuto) {
    info.compute = info.weight_bytes <= kAutoF32Bytes ? ComputeType::kF32 : ComputeType::kBF16;
  }
  info.resident_weight_bytes = resident_bytes(config, outline, info.compute);

  // The cache's own check of the geometry, so that a model that cannot run is refused before its
  // weights are read.
  if (info.recurrent.empty()) {
    return error(StatusCode::kUnsupported,
                 "model: no recurrent layer; supported are models with at least one");
  }
  const CacheConfig cache =
      cache_config(info.recurrent, activation_dtype(info.compute), DecodeMode::kReplay, 16, 1, 1);
  if (const auto bytes = replayssm::cache_bytes(cache); !bytes.ok()) {
    const bool memory = bytes.status().code() == StatusCode::kResourceExhausted;
    return error(memory ? StatusCode::kResourceExhausted : StatusCode::kUnsupported,
                 "model: ", bytes.status().message());
  }
  return info;
}

}  // namespace engine

std::int64_t ModelInfo::count(LayerKind kind) const {
  return std::count(layers.begin(), layers.end(), kind);
}

std::int64_t ModelInfo::kv_bytes_per_token() const {
  return (2 * count(LayerKind::kAttention) * kv_heads * attention_head_dim +
          count(LayerKind::kLatentAttention) * latent_width) *
         static_cast<std::int64_t>(dtype_bytes(engine::activation_dtype(compute)));
}

std::int64_t ModelInfo::state_bytes() const {
  std::int64_t elements = 0;
  for (const LayerShape& layer : recurrent) {
    elements += std::int64_t{layer.heads} * layer.value_dim * layer.key_dim;
  }
  return 4 * elements;
}

std::int64_t ModelInfo::conv_bytes() const {
  std::int64_t elements = 0;
  for (const LayerShape& layer : recurrent) {
    elements += (std::int64_t{layer.conv_width} - 1) * layer.conv_channels;
  }
  return elements * static_cast<std::int64_t>(dtype_bytes(engine::activation_dtype(compute)));
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
