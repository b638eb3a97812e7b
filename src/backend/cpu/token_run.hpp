// Outputs of fresh tokens that were run through the recurrence: shared by prefill and the
// conventional step.
#pragma once

#include <cstdint>

#include "backend/cpu/access.hpp"
#include "backend/cpu/head_tokens.hpp"

namespace replayssm::cpu {

// Applies skip and gate to outputs [n, V] of one head, rounds and stores them. `gate` is [V] of
// working memory.
inline void store_outputs(const Level& level, const LayerTable& layer, const LayerInputs& inputs,
                          std::int64_t token_offset, std::int32_t n, std::int32_t head,
                          const HeadTokens& tokens, float* gate, float* outputs) {
  const std::int32_t values = layer.shape.value_dim;
  for (std::int32_t i = 0; i < n; ++i) {
    float* output = outputs + std::int64_t{i} * values;
    finish_output(level, layer, inputs, token_offset + i, head,
                  tokens.value + std::int64_t{i} * values, gate, output);
    level.store(output, values, at(inputs.out, token_offset + i, head), inputs.out.dtype);
  }
}

}  // namespace replayssm::cpu
