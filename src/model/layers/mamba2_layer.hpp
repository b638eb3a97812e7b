// The Mamba-2 mixer: projection, convolution and recurrence through the cache, gated norm,
// projection.
#pragma once

#include <memory>
#include <string>

#include "model/config.hpp"
#include "model/layers/sublayer.hpp"
#include "model/layers/weight_source.hpp"

namespace replayssm::model {

// Tensors: prefix + in_proj.weight, conv1d.weight, conv1d.bias, A_log, D, dt_bias, norm.weight,
// out_proj.weight.
[[nodiscard]] std::unique_ptr<Sublayer> load_mamba2(const ModelConfig& config,
                                                    const std::string& prefix,
                                                    WeightSource& source);

}  // namespace replayssm::model
