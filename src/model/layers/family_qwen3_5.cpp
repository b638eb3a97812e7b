// qwen3_5: decoder layers of a mixer (Gated DeltaNet or gated attention) and a SwiGLU MLP, each
// with a zero-centred norm in front (docs/formats.md).
#include <initializer_list>

#include "core/text.hpp"
#include "model/layers/attention_layer.hpp"
#include "model/layers/families.hpp"
#include "model/layers/gdn_layer.hpp"

namespace replayssm::model {
namespace {

constexpr std::string_view kHead = "lm_head.weight";

// Whole models keep the text part under model.language_model, texts alone under model.
std::vector<std::string> spellings(std::string_view name) {
  if (name == kHead) return {std::string(name), concat("model.", name)};
  return {concat("model.language_model.", name), concat("model.", name)};
}

std::string_view left_out(std::string_view stored) {
  for (const std::string_view prefix : {"mtp.", "model.mtp.", "model.language_model.mtp."}) {
    if (stored.starts_with(prefix)) return "the multi-token prediction head (mtp.*)";
  }
  for (const std::string_view prefix : {"model.visual.", "visual."}) {
    if (stored.starts_with(prefix)) return "the vision encoder (visual.*)";
  }
  return {};
}

std::unique_ptr<Sublayer> load_mixer(LayerKind kind, const ModelConfig& config,
                                     const std::string& layer, WeightSource& source) {
  switch (kind) {
    case LayerKind::kGdn: return load_gdn(config, layer + "linear_attn.", source);
    case LayerKind::kAttention: return load_attention(config, layer + "self_attn.", source);
    default: return nullptr;
  }
}

Stage load(const ModelConfig& config, std::size_t index, WeightSource& source) {
  return load_decoder_half("qwen3_5", config, index, source, &load_mixer);
}

}  // namespace

const Family kQwen35Family = {
    "embed_tokens.weight", "norm.weight", kHead, true, &spellings, &left_out, &load};

}  // namespace replayssm::model
