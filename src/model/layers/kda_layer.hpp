// The mixer of Kimi Delta Attention: projections, convolution and delta rule through the cache, a
// norm over each head times a sigmoid gate, projection.
#pragma once

#include <memory>
#include <string>

#include "model/config.hpp"
#include "model/layers/sublayer.hpp"
#include "model/layers/weight_source.hpp"

namespace replayssm::model {

// Tensors: prefix + {q,k,v}_proj.weight, {q,k,v}_conv1d.weight, f_a_proj.weight, f_b_proj.weight,
// b_proj.weight, g_a_proj.weight, g_b_proj.weight, A_log, dt_bias, o_norm.weight, o_proj.weight.
[[nodiscard]] std::unique_ptr<Sublayer> load_kda(const ModelConfig& config,
                                                 const std::string& prefix, WeightSource& source);

}  // namespace replayssm::model
