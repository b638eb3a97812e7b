// One reader for each model_type, which parse_config chooses, and what the readers share. Internal
// to the config files.
#pragma once

#include <cstdint>
#include <string_view>

#include "model/config.hpp"
#include "model/json_fields.hpp"
#include "model/json_value.hpp"

namespace replayssm::model {

// model_type nemotron_h, dense.
[[nodiscard]] Result<ModelConfig> parse_nemotron_h(const JsonValue& root, std::string_view source);
// model_type qwen3_5 (fields of the text part in text_config) and qwen3_5_text, dense.
[[nodiscard]] Result<ModelConfig> parse_qwen3_5(const JsonValue& root, std::string_view source);
// model_type kimi_linear, dense.
[[nodiscard]] Result<ModelConfig> parse_kimi_linear(const JsonValue& root, std::string_view source);

// Bounds that no real model comes near; they keep every product of dimensions inside 64 bits.
inline constexpr std::int64_t kMaxDim = 1 << 20;
inline constexpr std::int64_t kMaxVocab = 1 << 24;
inline constexpr std::int64_t kMaxLayers = 4096;
inline constexpr std::int64_t kMaxHeads = 1 << 16;

// The functions below keep their faults in `fields`.

// kUnsupported where a text is given and is not the supported one.
void require_text(JsonFields& fields, std::string_view name, std::string_view supported);
// kUnsupported where a quantization_config is given.
void refuse_quantization(JsonFields& fields);
// kUnsupported where the flag is true.
void refuse_flag(JsonFields& fields, std::string_view name);
// num_attention_heads, num_key_value_heads and head_dim (by default hidden_size / heads).
void read_attention_heads(JsonFields& fields, std::int64_t hidden_size, AttentionConfig& out);

// bos_token_id, eos_token_id (a number or a list) and pad_token_id into `out`, where given.
void read_token_ids(JsonFields& fields, std::int64_t vocab_size, GenerationConfig& out);

}  // namespace replayssm::model
