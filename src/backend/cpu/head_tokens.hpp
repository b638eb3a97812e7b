// Tokens of one head as the recurrence wants them: f32, gates applied, keys normalised. Records and
// fresh inputs come out alike, bit for bit, which is what makes a fold equal to having stepped.
#pragma once

#include <cstdint>

#include "backend/cpu/level.hpp"
#include "backend/cpu/prefetch.hpp"
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

// `stream` is fetched meanwhile, about as fast as memory delivers.
// What the heads of a group share (keys), and what is a head's own (gates, values), of records
// `order[0..n)` of one slot, into tokens 0 onwards.
void load_record_keys(const Level& level, const CacheTable& table, const LayerTable& layer,
                      std::int64_t slot, const std::uint16_t* order, std::int32_t n,
                      std::int32_t group, HeadTokens& tokens, Stream* stream = nullptr);
void load_record_head(const Level& level, const CacheTable& table, const LayerTable& layer,
                      std::int64_t slot, const std::uint16_t* order, std::int32_t n,
                      std::int32_t head, HeadTokens& tokens, Stream* stream = nullptr);

// Decays alone.
void load_record_gates(const Level& level, const CacheTable& table, const LayerTable& layer,
                       std::int64_t slot, const std::uint16_t* order, std::int32_t n,
                       std::int32_t head, HeadTokens& tokens, Stream* stream = nullptr);

// The same of tokens token_offset .. token_offset + n of the inputs, into tokens `first` onwards;
// queries too where `tokens` has room for them.
void load_input_keys(const Level& level, const LayerTable& layer, const LayerInputs& inputs,
                     std::int64_t token_offset, std::int32_t n, std::int32_t group,
                     std::int32_t first, HeadTokens& tokens);
void load_input_head(const Level& level, const CacheTable& table, const LayerTable& layer,
                     const LayerInputs& inputs, std::int64_t token_offset, std::int32_t n,
                     std::int32_t head, std::int32_t first, HeadTokens& tokens);

// What a record keeps of one token beside raw copies.
[[nodiscard]] float record_gate(const LayerTable& layer, const LayerInputs& inputs,
                                std::int64_t token, std::int32_t head);
[[nodiscard]] float record_beta(const LayerTable& layer, const LayerInputs& inputs,
                                std::int64_t token, std::int32_t head);
// 1 / norm of a raw key or query; 1 where the layer does not normalise.
[[nodiscard]] float raw_inverse_norm(const Level& level, const LayerShape& shape, const float* raw);

[[nodiscard]] inline std::int32_t group_of(const LayerShape& shape, std::int32_t head) {
  return head / (shape.heads / shape.groups);
}

// A run over these tokens, operands filled in.
[[nodiscard]] AdvanceRun run_of(const LayerShape& shape, const HeadTokens& tokens, std::int32_t n);

// mamba2's skip and gate on one token's output [V]; other rules: nothing. `gate` is [V] of working
// memory.
void finish_output(const Level& level, const LayerTable& layer, const LayerInputs& inputs,
                   std::int64_t token, std::int32_t head, const float* value, float* gate,
                   float* output);

}  // namespace replayssm::cpu
