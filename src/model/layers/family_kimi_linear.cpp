// kimi_linear: decoder layers of a mixer, Kimi Delta Attention or latent attention, and a SwiGLU
// MLP (docs/formats.md).
#include <array>

#include "core/text.hpp"
#include "model/layers/families.hpp"
#include "model/layers/kda_layer.hpp"
#include "model/layers/latent_attention_layer.hpp"

namespace replayssm::model {
namespace {

constexpr std::string_view kHead = "lm_head.weight";
constexpr std::string_view kMixer = ".self_attn.";

// transformers puts these into a module of their own, and the three convolutions into one.
constexpr std::array<std::string_view, 4> kForgetGate = {"f_a_proj.weight", "f_b_proj.weight",
                                                         "dt_bias", "A_log"};
constexpr std::array<std::string_view, 3> kConvolutions = {"q_conv1d.weight", "k_conv1d.weight",
                                                           "v_conv1d.weight"};

// What stands behind ".self_attn." of a name; empty: nothing does.
std::string_view within_mixer(std::string_view name) {
  const std::size_t at = name.find(kMixer);
  return at == std::string_view::npos ? std::string_view() : name.substr(at + kMixer.size());
}

std::vector<std::string> spellings(std::string_view name) {
  if (name == kHead) return {std::string(name)};
  std::vector<std::string> all = {concat("model.", name)};
  const std::string_view inner = within_mixer(name);
  for (const std::string_view part : kForgetGate) {
    if (inner != part) continue;
    name.remove_suffix(part.size());
    all.push_back(concat("model.", name, "forget_gate.", part));
    break;
  }
  return all;
}

std::optional<StoredSlice> slice(std::string_view name) {
  const std::string_view inner = within_mixer(name);
  for (std::size_t i = 0; i < kConvolutions.size(); ++i) {
    if (inner != kConvolutions[i]) continue;
    name.remove_suffix(inner.size());
    return StoredSlice{concat("model.", name, "conv1d.weight"), static_cast<std::int64_t>(i),
                       static_cast<std::int64_t>(kConvolutions.size())};
  }
  return std::nullopt;
}

std::string_view left_out(std::string_view /*stored*/) { return {}; }

std::unique_ptr<Sublayer> load_mixer(LayerKind kind, const ModelConfig& config,
                                     const std::string& layer, WeightSource& source) {
  switch (kind) {
    case LayerKind::kKda: return load_kda(config, layer + "self_attn.", source);
    case LayerKind::kLatentAttention:
      return load_latent_attention(config, layer + "self_attn.", source);
    default: return nullptr;
  }
}

Stage load(const ModelConfig& config, std::size_t index, WeightSource& source) {
  return load_decoder_half("kimi_linear", config, index, source, &load_mixer);
}

}  // namespace

const Family kKimiLinearFamily = {
    "embed_tokens.weight", "norm.weight", kHead, false, &spellings, &left_out, &load, &slice};

}  // namespace replayssm::model
