// See families.hpp.
#include "model/layers/families.hpp"

#include "core/text.hpp"
#include "model/layers/mlp_layer.hpp"

namespace replayssm::model {

const Family& family_of(ModelFamily family) {
  switch (family) {
    case ModelFamily::kNemotronH: return kNemotronHFamily;
    case ModelFamily::kQwen35: return kQwen35Family;
    case ModelFamily::kKimiLinear: return kKimiLinearFamily;
  }
  return kNemotronHFamily;
}

void refuse_layer(std::string_view family, LayerKind kind, WeightSource& source) {
  source.fail(error(StatusCode::kInternal, family, ": no layer of kind ", layer_kind_name(kind)));
}

Stage load_decoder_half(std::string_view family, const ModelConfig& config, std::size_t index,
                        WeightSource& source, MixerLoader mixer) {
  const std::string layer = concat("layers.", index / 2, ".");
  const LayerKind kind = config.layers[index];
  const bool mlp = kind == LayerKind::kMlp;
  const std::string_view norm = mlp ? "post_attention_layernorm.weight" : "input_layernorm.weight";
  Stage stage;
  stage.norm = source.norm(concat(layer, norm), config.hidden_size);
  stage.layer = mlp ? load_mlp(config, layer + "mlp.", source) : mixer(kind, config, layer, source);
  if (stage.layer == nullptr) refuse_layer(family, kind, source);
  return stage;
}

}  // namespace replayssm::model
