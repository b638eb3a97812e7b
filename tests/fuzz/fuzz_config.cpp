// Any text as config.json and as generation_config.json.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "model/config.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace replayssm::model;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = parse_config(text, "fuzz");
  if (config.ok()) {
    // What the layers rely on.
    const Mamba2Config& mamba = config->mamba2;
    const AttentionConfig& attention = config->attention;
    const bool sound = !config->layers.empty() && config->vocab_size > 0 &&
                       config->hidden_size > 0 && config->norm_epsilon > 0 &&
                       (config->layer_count(LayerKind::kMamba2) == 0 ||
                        (mamba.heads % mamba.groups == 0 && mamba.d_inner() > 0 &&
                         mamba.dt_min <= mamba.dt_max)) &&
                       (config->layer_count(LayerKind::kAttention) == 0 ||
                        (attention.heads % attention.kv_heads == 0 && attention.head_dim > 0)) &&
                       (config->layer_count(LayerKind::kMlp) == 0 || config->mlp.width > 0);
    if (!sound) std::abort();
  } else if (config.status().message().find('\n') != std::string::npos) {
    std::abort();
  }
  (void)parse_generation_config(text, 1000, "fuzz");
  return 0;
}
