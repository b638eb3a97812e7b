// See sublayer.hpp.
#include "model/layers/sublayer.hpp"

#include <algorithm>

namespace replayssm::model {

void Widths::grow(const Widths& other) {
  projected = std::max(projected, other.projected);
  prepared = std::max(prepared, other.prepared);
  recurred = std::max(recurred, other.recurred);
  inner = std::max(inner, other.inner);
  keys = std::max(keys, other.keys);
  values = std::max(values, other.values);
}

Status recur(Pass& pass, const LayerInputs& inputs) {
  if (pass.any_prefill) REPLAYSSM_RETURN_IF_ERROR(pass.cache.prefill(inputs));
  if (pass.any_step) REPLAYSSM_RETURN_IF_ERROR(pass.cache.step(inputs));
  return {};
}

}  // namespace replayssm::model
