// Dense feed-forward layers: W_down(relu(W_up x)^2) or W_down(silu(W_gate x) * W_up x).
#pragma once

#include <memory>
#include <string>

#include "model/config.hpp"
#include "model/layers/sublayer.hpp"
#include "model/layers/weight_source.hpp"

namespace replayssm::model {

// Tensors: prefix + up_proj.weight, down_proj.weight and, for SwiGLU, gate_proj.weight.
[[nodiscard]] std::unique_ptr<Sublayer> load_mlp(const ModelConfig& config,
                                                 const std::string& prefix, WeightSource& source);

}  // namespace replayssm::model
