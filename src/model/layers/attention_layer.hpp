// Attention with grouped queries: projections, optionally norms and turning of queries and keys,
// scores and sums (attention.hpp), optionally a gate on the output, projection.
#pragma once

#include <memory>
#include <string>

#include "model/config.hpp"
#include "model/layers/sublayer.hpp"
#include "model/layers/weight_source.hpp"

namespace replayssm::model {

// Tensors: prefix + q_proj.weight, k_proj.weight, v_proj.weight, o_proj.weight and, with qk_norm,
// q_norm.weight, k_norm.weight. With an output gate q_proj gives for each head its query and then
// its gate.
[[nodiscard]] std::unique_ptr<Sublayer> load_attention(const ModelConfig& config,
                                                       const std::string& prefix,
                                                       WeightSource& source);

}  // namespace replayssm::model
