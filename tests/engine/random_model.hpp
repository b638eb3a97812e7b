// Writes small folders with random weights, of nemotron_h or of a given config.json, whole or
// damaged on purpose.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "replayssm/dtype.hpp"

namespace replayssm::testing_models {

struct Tensor {
  std::string name;
  std::string dtype = "F32";  // F32, BF16 or F16
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

struct RandomModel {
  std::string pattern = "M-M*M-";
  std::int64_t vocab = 67;
  std::int64_t hidden = 40;
  std::int64_t mamba_heads = 4;
  std::int64_t mamba_head_dim = 16;
  std::int64_t groups = 2;
  std::int64_t state = 16;
  std::int64_t attention_heads = 4;
  std::int64_t kv_heads = 2;
  std::int64_t head_dim = 12;
  std::int64_t mlp_width = 56;
  std::int64_t max_positions = 512;
  bool tied = false;
  std::string prefix = "backbone.";
  std::string dtype = "F32";
  std::uint64_t seed = 1;
  std::string extra_config;       // members, each with a comma in front
  std::string config;             // whole file, instead of one from the sizes above
  std::string generation_config;  // whole file; empty: none
  // Changes the list of tensors before it is written.
  std::function<void(std::vector<Tensor>&)> damage;
};

// Writes into REPLAYSSM_TEST_TMP/name and returns that folder.
std::string write_model(const std::string& name, const RandomModel& model);

// Ids below `vocab`, the same for the same seed.
std::vector<std::int32_t> random_tokens(std::size_t count, std::int64_t vocab, std::uint64_t seed);

}  // namespace replayssm::testing_models
