// qwen3_5: decoder layers of a mixer (Gated DeltaNet or gated attention) and a SwiGLU MLP, each
// with a zero-centred norm in front (docs/formats.md).
#include <initializer_list>

#include "core/text.hpp"
#include "model/layers/attention_layer.hpp"
#include "model/layers/families.hpp"
#include "model/layers/gdn_layer.hpp"
#include "model/layers/mlp_layer.hpp"

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

Stage load(const ModelConfig& config, std::size_t index, WeightSource& source) {
  const std::string layer = concat("layers.", index / 2, ".");
  const LayerKind kind = config.layers[index];
  Stage stage;
  const std::string_view norm =
      kind == LayerKind::kMlp ? "post_attention_layernorm.weight" : "input_layernorm.weight";
  stage.norm = source.norm(concat(layer, norm), config.hidden_size);
  switch (kind) {
    case LayerKind::kGdn: stage.layer = load_gdn(config, layer + "linear_attn.", source); break;
    case LayerKind::kAttention:
      stage.layer = load_attention(config, layer + "self_attn.", source);
      break;
    case LayerKind::kMlp: stage.layer = load_mlp(config, layer + "mlp.", source); break;
    default: refuse_layer("qwen3_5", kind, source); break;
  }
  return stage;
}

}  // namespace

const Family kQwen35Family = {
    "embed_tokens.weight", "norm.weight", kHead, true, &spellings, &left_out, &load};

}  // namespace replayssm::model
