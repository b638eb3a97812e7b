// Every recurrent layer of the models this library is for, at every tensor-parallel degree: heads,
// dims, groups (0: not published, so several are tried), bytes of an f32 state and conv channels
// (0: not published) a rank.
#pragma once

#include <cstdint>

#include "replayssm/layer.hpp"

namespace replayssm::laws {

struct ModelGeometry {
  const char* model;
  int tensor_parallel;
  Rule rule;
  int heads, value_dim, key_dim, groups;
  std::int64_t state_bytes;
  int conv_channels;
};

inline constexpr ModelGeometry kModels[] = {
    {"Nemotron-3-Nano-4B", 1, Rule::kMamba2, 96, 80, 128, 8, 3932160, 9728},
    {"Nemotron-3-Nano-4B", 2, Rule::kMamba2, 48, 80, 128, 4, 1966080, 4864},
    {"Nemotron-3-Nano-30B-A3B / 3.5-Lightning-30B", 1, Rule::kMamba2, 64, 64, 128, 8, 2097152,
     6144},
    {"Nemotron-3-Nano-30B-A3B / 3.5-Lightning-30B", 2, Rule::kMamba2, 32, 64, 128, 4, 1048576,
     3072},
    {"Nemotron-3-Nano-30B-A3B / 3.5-Lightning-30B", 4, Rule::kMamba2, 16, 64, 128, 2, 524288, 1536},
    {"Nemotron-3-Super-120B-A12B", 1, Rule::kMamba2, 128, 64, 128, 8, 4194304, 10240},
    {"Nemotron-3-Super-120B-A12B", 2, Rule::kMamba2, 64, 64, 128, 4, 2097152, 5120},
    {"Nemotron-3-Super-120B-A12B", 4, Rule::kMamba2, 32, 64, 128, 2, 1048576, 2560},
    {"Nemotron-3-Super-120B-A12B", 8, Rule::kMamba2, 16, 64, 128, 1, 524288, 1280},
    {"Nemotron-3-Ultra-550B-A55B", 1, Rule::kMamba2, 256, 64, 128, 8, 8388608, 18432},
    {"Nemotron-3-Ultra-550B-A55B", 2, Rule::kMamba2, 128, 64, 128, 4, 4194304, 9216},
    {"Nemotron-3-Ultra-550B-A55B", 4, Rule::kMamba2, 64, 64, 128, 2, 2097152, 4608},
    {"Nemotron-3-Ultra-550B-A55B", 8, Rule::kMamba2, 32, 64, 128, 1, 1048576, 2304},
    {"Nemotron-H-56B", 1, Rule::kMamba2, 256, 64, 256, 8, 16777216, 20480},
    {"Nemotron-H-56B", 2, Rule::kMamba2, 128, 64, 256, 4, 8388608, 10240},
    {"Nemotron-H-56B", 4, Rule::kMamba2, 64, 64, 256, 2, 4194304, 5120},
    {"Nemotron-H-56B", 8, Rule::kMamba2, 32, 64, 256, 1, 2097152, 2560},
    {"Qwen3.5-0.8B", 1, Rule::kGdn, 16, 128, 128, 16, 1048576, 6144},
    {"Qwen3.5-2B", 1, Rule::kGdn, 16, 128, 128, 16, 1048576, 6144},
    {"Qwen3.5-4B / 9B", 1, Rule::kGdn, 32, 128, 128, 16, 2097152, 8192},
    {"Qwen3.5-4B / 9B", 2, Rule::kGdn, 16, 128, 128, 8, 1048576, 4096},
    {"Qwen3.5-27B (3.6-27B)", 1, Rule::kGdn, 48, 128, 128, 16, 3145728, 10240},
    {"Qwen3.5-27B (3.6-27B)", 2, Rule::kGdn, 24, 128, 128, 8, 1572864, 5120},
    {"Qwen3.5-27B (3.6-27B)", 4, Rule::kGdn, 12, 128, 128, 4, 786432, 2560},
    {"Qwen3.5-27B (3.6-27B)", 8, Rule::kGdn, 6, 128, 128, 2, 393216, 1280},
    {"Qwen3.5-35B-A3B", 1, Rule::kGdn, 32, 128, 128, 16, 2097152, 8192},
    {"Qwen3.5-35B-A3B", 2, Rule::kGdn, 16, 128, 128, 8, 1048576, 4096},
    {"Qwen3.5-35B-A3B", 4, Rule::kGdn, 8, 128, 128, 4, 524288, 2048},
    {"Qwen3.5-35B-A3B", 8, Rule::kGdn, 4, 128, 128, 2, 262144, 1024},
    {"Qwen3-Next-80B-A3B", 1, Rule::kGdn, 32, 128, 128, 16, 2097152, 8192},
    {"Qwen3-Next-80B-A3B", 2, Rule::kGdn, 16, 128, 128, 8, 1048576, 4096},
    {"Qwen3-Next-80B-A3B", 4, Rule::kGdn, 8, 128, 128, 4, 524288, 2048},
    {"Qwen3-Next-80B-A3B", 8, Rule::kGdn, 4, 128, 128, 2, 262144, 1024},
    {"Qwen3.5-122B-A10B", 1, Rule::kGdn, 64, 128, 128, 16, 4194304, 12288},
    {"Qwen3.5-122B-A10B", 2, Rule::kGdn, 32, 128, 128, 8, 2097152, 6144},
    {"Qwen3.5-122B-A10B", 4, Rule::kGdn, 16, 128, 128, 4, 1048576, 3072},
    {"Qwen3.5-122B-A10B", 8, Rule::kGdn, 8, 128, 128, 2, 524288, 1536},
    {"Qwen3.5-397B-A17B", 1, Rule::kGdn, 64, 128, 128, 16, 4194304, 12288},
    {"Qwen3.5-397B-A17B", 2, Rule::kGdn, 32, 128, 128, 8, 2097152, 6144},
    {"Qwen3.5-397B-A17B", 4, Rule::kGdn, 16, 128, 128, 4, 1048576, 3072},
    {"Qwen3.5-397B-A17B", 8, Rule::kGdn, 8, 128, 128, 2, 524288, 1536},
    {"Kimi-Linear-48B-A3B", 1, Rule::kKda, 32, 128, 128, 32, 2097152, 12288},
    {"Kimi-Linear-48B-A3B", 2, Rule::kKda, 16, 128, 128, 16, 1048576, 6144},
    {"Kimi-Linear-48B-A3B", 4, Rule::kKda, 8, 128, 128, 8, 524288, 3072},
    {"Kimi-Linear-48B-A3B", 8, Rule::kKda, 4, 128, 128, 4, 262144, 1536},
    {"GLM-5.3-Flash", 1, Rule::kKda, 64, 128, 128, 64, 4194304, 24576},
    {"GLM-5.3-Flash", 2, Rule::kKda, 32, 128, 128, 32, 2097152, 12288},
    {"GLM-5.3-Flash", 4, Rule::kKda, 16, 128, 128, 16, 1048576, 6144},
    {"GLM-5.3-Flash", 8, Rule::kKda, 8, 128, 128, 8, 524288, 3072},
    {"Kimi-K3", 1, Rule::kKda, 96, 128, 128, 96, 6291456, 36864},
    {"Kimi-K3", 2, Rule::kKda, 48, 128, 128, 48, 3145728, 18432},
    {"Kimi-K3", 4, Rule::kKda, 24, 128, 128, 24, 1572864, 9216},
    {"Kimi-K3", 8, Rule::kKda, 12, 128, 128, 12, 786432, 4608},
    {"Granite-4.0-H-350m", 1, Rule::kMamba2, 48, 32, 128, 1, 786432, 1792},
    {"Granite-4.0-H-1b / tiny", 1, Rule::kMamba2, 48, 64, 128, 1, 1572864, 3328},
    {"Granite-4.0-H-micro", 1, Rule::kMamba2, 64, 64, 128, 1, 2097152, 4352},
    {"Granite-4.0-H-small", 1, Rule::kMamba2, 128, 64, 128, 1, 4194304, 8448},
    {"Granite-4.0-H-small", 2, Rule::kMamba2, 64, 64, 128, 1, 2097152, 4352},
    {"Granite-4.0-H-small", 4, Rule::kMamba2, 32, 64, 128, 1, 1048576, 2304},
    {"Granite-4.0-H-small", 8, Rule::kMamba2, 16, 64, 128, 1, 524288, 1280},
    {"Falcon-H1-0.5B", 1, Rule::kMamba2, 24, 64, 128, 1, 786432, 1792},
    {"Falcon-H1-1.5B", 1, Rule::kMamba2, 48, 64, 256, 0, 3145728, 0},
    {"Falcon-H1-3B", 1, Rule::kMamba2, 32, 128, 256, 0, 4194304, 0},
    {"Falcon-H1-7B", 1, Rule::kMamba2, 24, 128, 256, 0, 3145728, 0},
    {"Falcon-H1-34B", 1, Rule::kMamba2, 32, 128, 256, 0, 4194304, 0},
    {"Bamba-9B", 1, Rule::kMamba2, 128, 64, 128, 1, 4194304, 8448},
    {"Zamba2-2.7B", 1, Rule::kMamba2, 80, 64, 64, 1, 1310720, 5248},
    {"mamba2-130m", 1, Rule::kMamba2, 24, 64, 128, 1, 786432, 1792},
    {"mamba2-370m", 1, Rule::kMamba2, 32, 64, 128, 1, 1048576, 2304},
    {"mamba2-780m", 1, Rule::kMamba2, 48, 64, 128, 1, 1572864, 3328},
    {"mamba2-1.3b", 1, Rule::kMamba2, 64, 64, 128, 1, 2097152, 4352},
    {"mamba2-2.7b", 1, Rule::kMamba2, 80, 64, 128, 1, 2621440, 5376},
    {"Codestral-Mamba-7B", 1, Rule::kMamba2, 128, 64, 128, 8, 4194304, 10240},
    {"Codestral-Mamba-7B", 2, Rule::kMamba2, 64, 64, 128, 4, 2097152, 5120},
    {"Codestral-Mamba-7B", 4, Rule::kMamba2, 32, 64, 128, 2, 1048576, 2560},
    {"Codestral-Mamba-7B", 8, Rule::kMamba2, 16, 64, 128, 1, 524288, 1280},
};

}  // namespace replayssm::laws
