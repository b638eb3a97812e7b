// nemotron_h: Mamba-2, attention or an MLP of relu squared, one a layer (docs/formats.md).
#include <initializer_list>

#include "core/text.hpp"
#include "model/layers/attention_layer.hpp"
#include "model/layers/families.hpp"
#include "model/layers/mamba2_layer.hpp"
#include "model/layers/mlp_layer.hpp"

namespace replayssm::model {
namespace {

constexpr std::string_view kEmbeddings = "embeddings.weight";
constexpr std::string_view kHead = "lm_head.weight";

std::vector<std::string> spellings(std::string_view name) {
  if (name == kHead) return {std::string(name)};
  std::vector<std::string> all = {concat("backbone.", name), concat("model.", name)};
  if (name == kEmbeddings) {
    all.emplace_back("backbone.embedding.weight");
    all.emplace_back("model.embedding.weight");
  }
  return all;
}

std::string_view left_out(std::string_view stored) {
  for (const std::string_view prefix : {"mtp.", "model.mtp.", "backbone.mtp."}) {
    if (stored.starts_with(prefix)) return "the multi-token prediction head (mtp.*)";
  }
  return {};
}

Stage load(const ModelConfig& config, std::size_t index, WeightSource& source) {
  const std::string layer = concat("layers.", index, ".");
  const std::string mixer = layer + "mixer.";
  Stage stage;
  stage.norm = source.norm(layer + "norm.weight", config.hidden_size);
  switch (config.layers[index]) {
    case LayerKind::kMamba2: stage.layer = load_mamba2(config, mixer, source); break;
    case LayerKind::kAttention: stage.layer = load_attention(config, mixer, source); break;
    case LayerKind::kMlp: stage.layer = load_mlp(config, mixer, source); break;
    default: refuse_layer("nemotron_h", config.layers[index], source); break;
  }
  return stage;
}

}  // namespace

const Family kNemotronHFamily = {kEmbeddings, "norm_f.weight", kHead, false,
                                 &spellings,  &left_out,       &load};

}  // namespace replayssm::model
