// Tokens of one head as the recurrence wants them: f32, gates applied, keys normalised. Records and
// fresh inputs come out alike, bit for bit, which is what makes a fold equal to having stepped.
#pragma once

#include <cstdint>

#include "backend/cpu/scratch.hpp"
#include "core/tables.hpp"

namespace replayssm::cpu {

struct HeadTokens {
  float* key = nullptr;    // [n, K] B, or k normalised
  float* query = nullptr;  // [n, K] C, or q normalised and scaled; null where not asked for
  float* decay = nullptr;  // [n], kda [n, K]
  float* scale = nullptr;  // [n] dt or beta
  float* value = nullptr;  // [n, V] x or v
};

// Room for n tokens.
[[nodiscard]] HeadTokens take_head_tokens(Arena& arena, const LayerShape& shape, std::int64_t n,
                                          bool query);
// Floats that take_head_tokens() needs at most, for arenas.
[[nodiscard]] std::int64_t head_tokens_floats(std::int64_t n);

// Records `order[0..n)` of one slot and head, into tokens `first` onwards.
void load_records(const CacheTable& table, const LayerTable& layer, std::int64_t slot,
                  const std::uint16_t* order, std::int32_t n, std::int32_t head, std::int32_t first,
                  HeadTokens& tokens);

// Tokens token_offset .. token_offset + n of the inputs, into tokens `first` onwards.
void load_inputs(const CacheTable& table, const LayerTable& layer, const LayerInputs& inputs,
                 std::int64_t token_offset, std::int32_t n, std::int32_t head, std::int32_t first,
                 HeadTokens& tokens);

// What a record keeps of one token beside raw copies.
[[nodiscard]] float record_gate(const LayerTable& layer, const LayerInputs& inputs,
                                std::int64_t token, std::int32_t head);
[[nodiscard]] float record_beta(const LayerTable& layer, const LayerInputs& inputs,
                                std::int64_t token, std::int32_t head);

// kda: decays of one token from its gate record.
void kda_decay(const LayerTable& layer, std::int32_t head, const float* gate, float* decay);

// One token on one row of the state: S[v] <- S[v] a + u_v k. Returns nothing; `row` holds K floats.
void advance_row(const LayerShape& shape, const HeadTokens& tokens, std::int32_t token,
                 std::int32_t v, float* row);

// The output of one head row: mamba2's skip and gate applied to S q.
[[nodiscard]] float finish_output(const LayerTable& layer, const LayerInputs& inputs,
                                  std::int64_t token, std::int32_t head, std::int32_t v,
                                  float value, float output);

}  // namespace replayssm::cpu
