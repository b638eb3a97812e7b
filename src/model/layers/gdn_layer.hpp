// The Gated DeltaNet mixer: projections, convolution and recurrence through the cache, gated norm,
// projection (arXiv 2412.06464, as Qwen3.5 uses it).
#pragma once

#include <memory>
#include <string>

#include "model/config.hpp"
#include "model/layers/sublayer.hpp"
#include "model/layers/weight_source.hpp"

namespace replayssm::model {

// Tensors: prefix + in_proj_qkv.weight, in_proj_z.weight, in_proj_b.weight, in_proj_a.weight,
// conv1d.weight, A_log, dt_bias, norm.weight (multiplied as it is stored), out_proj.weight.
[[nodiscard]] std::unique_ptr<Sublayer> load_gdn(const ModelConfig& config,
                                                 const std::string& prefix, WeightSource& source);

}  // namespace replayssm::model
