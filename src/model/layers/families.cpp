// See families.hpp.
#include "model/layers/families.hpp"

#include "core/text.hpp"

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

}  // namespace replayssm::model
