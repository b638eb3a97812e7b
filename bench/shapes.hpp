// Layer shapes of published models, by name.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "replayssm/layer.hpp"
#include "replayssm/status.hpp"

namespace replayssm::bench {

struct ModelShape {
  std::string_view name;
  Rule rule;
  std::int32_t heads, groups, value_dim, key_dim;
  GateKind gate = GateKind::kSoftplus;
};

[[nodiscard]] std::span<const ModelShape> model_shapes();
// kNotFound lists the names.
[[nodiscard]] Result<ModelShape> model_shape(std::string_view name);
[[nodiscard]] LayerShape layer_shape(const ModelShape& model);

}  // namespace replayssm::bench
