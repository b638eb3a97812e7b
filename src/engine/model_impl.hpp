// What stands behind Model: the mapped checkpoint, the packed layers, the tokenizer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/config.hpp"
#include "model/layers/network.hpp"
#include "model/safetensors.hpp"
#include "model/tokenizer.hpp"
#include "replayssm/model.hpp"

namespace replayssm {

class REPLAYSSM_HIDDEN Model::Impl {
 public:
  ModelInfo info;
  model::ModelConfig config;
  std::optional<model::Checkpoint> checkpoint;  // the layers read embeddings from it
  std::optional<model::Network> layers;
  std::shared_ptr<const model::Tokenizer> tokenizer;  // null: the folder has none
  std::vector<std::int32_t> stop_tokens;
};

}  // namespace replayssm
