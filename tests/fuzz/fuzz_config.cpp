// Any text as config.json and as generation_config.json.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "model/config.hpp"
#include "model/layers/network.hpp"

namespace {

using namespace replayssm::model;

// What the layers rely on.
bool sound(const ModelConfig& config) {
  const Mamba2Config& mamba = config.mamba2;
  const DeltaConfig& delta = config.delta;
  const AttentionConfig& attention = config.attention;
  const LatentAttentionConfig& latent = config.latent;
  const auto has = [&config](LayerKind kind) { return config.layer_count(kind) > 0; };
  return !config.layers.empty() && config.vocab_size > 0 && config.hidden_size > 0 &&
         config.norm_epsilon > 0 &&
         (!has(LayerKind::kMamba2) || (mamba.heads % mamba.groups == 0 && mamba.d_inner() > 0 &&
                                       mamba.dt_min <= mamba.dt_max)) &&
         ((!has(LayerKind::kGdn) && !has(LayerKind::kKda)) ||
          (delta.value_heads % delta.key_heads == 0 && delta.keys() > 0 && delta.values() > 0 &&
           delta.conv_width > 1)) &&
         (!has(LayerKind::kAttention) ||
          (attention.heads % attention.kv_heads == 0 && attention.head_dim > 0 &&
           attention.rotary_dims % 2 == 0 && attention.rotary_dims <= attention.head_dim &&
           (attention.rotary_dims == 0 || attention.rope_theta > 0))) &&
         (!has(LayerKind::kLatentAttention) || (latent.heads > 0 && latent.kv_rank > 0 &&
                                                latent.key_dim() > 0 && latent.value_dim > 0)) &&
         (!has(LayerKind::kMlp) || config.mlp.width > 0);
}

// What follows from a configuration without weights: extents, and the sum of all parameters.
bool sound(const Outline& outline) {
  std::int64_t parameters = 0;
  for (const ExpectedTensor& tensor : outline.tensors) {
    std::int64_t elements = 1;
    for (const std::int64_t extent : tensor.shape) {
      if (extent < 1 || __builtin_mul_overflow(elements, extent, &elements)) return false;
    }
    if (__builtin_add_overflow(parameters, elements, &parameters)) return false;
  }
  // In f32 at most.
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(parameters, std::int64_t{4}, &bytes)) return false;
  for (const replayssm::LayerShape& shape : outline.recurrent) {
    if (shape.heads < 1 || shape.groups < 1 || shape.value_dim < 1 || shape.key_dim < 1 ||
        shape.conv_channels < 1) {
      return false;
    }
  }
  for (const KvLayer& layer : outline.kv) {
    if (layer.heads < 1 || layer.key_width < 1 || layer.value_width < 0) return false;
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = parse_config(text, "fuzz");
  if (config.ok()) {
    if (!sound(*config) || !sound(outline(*config))) std::abort();
  } else if (config.status().message().find('\n') != std::string::npos) {
    std::abort();
  }
  (void)parse_generation_config(text, 1000, "fuzz");
  return 0;
}
