// Runs fresh tokens of one head through the recurrence, writing outputs: the shared body of prefill
// and the conventional step.
#pragma once

#include <cstdint>

#include "backend/cpu/access.hpp"
#include "backend/cpu/head_tokens.hpp"
#include "backend/cpu/vec.hpp"

namespace replayssm::cpu {

// Advances `row` (K floats, row v of the head state) by token i of `tokens` and writes that token's
// output to outputs[i, v].
inline void run_token(const LayerTable& layer, const LayerInputs& inputs, std::int64_t token_offset,
                      const HeadTokens& tokens, std::int32_t i, std::int32_t head, std::int32_t v,
                      float* row, float* outputs) {
  const LayerShape& shape = layer.shape;
  advance_row(shape, tokens, i, v, row);
  const float read = dot16(row, tokens.query + std::int64_t{i} * shape.key_dim, shape.key_dim);
  const std::int64_t at_value = std::int64_t{i} * shape.value_dim + v;
  outputs[at_value] =
      finish_output(layer, inputs, token_offset + i, head, v, tokens.value[at_value], read);
}

// Rounds and stores outputs [n, V] of one head.
inline void store_outputs(const LayerShape& shape, const LayerInputs& inputs,
                          std::int64_t token_offset, std::int32_t n, std::int32_t head,
                          const float* outputs) {
  for (std::int32_t i = 0; i < n; ++i) {
    store(outputs + std::int64_t{i} * shape.value_dim, shape.value_dim,
          at(inputs.out, token_offset + i, head), inputs.out.dtype);
  }
}

}  // namespace replayssm::cpu
