// Facts of a model folder from its configuration and, where they exist, the headers of its weight
// files.
#pragma once

#include "model/config.hpp"
#include "model/layers/weights.hpp"
#include "replayssm/model.hpp"
#include "replayssm/status.hpp"

namespace replayssm::engine {

// weights: null where the files are not there. Errors: kUnsupported, kInvalidArgument (a geometry
// that no recurrent cache takes).
[[nodiscard]] Result<ModelInfo> describe_model(const std::string& path,
                                               const model::ModelConfig& config,
                                               const model::WeightMap* weights,
                                               ComputeType compute);

// Of products and of what recurrent layers take.
[[nodiscard]] DType activation_dtype(ComputeType compute);

}  // namespace replayssm::engine
