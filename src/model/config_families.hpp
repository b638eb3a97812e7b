// One reader for each model_type; parse_config chooses. Internal to the config files.
#pragma once

#include <string_view>

#include "model/config.hpp"
#include "model/json_fields.hpp"
#include "model/json_value.hpp"

namespace replayssm::model {

// model_type nemotron_h, dense.
[[nodiscard]] Result<ModelConfig> parse_nemotron_h(const JsonValue& root, std::string_view source);

// bos_token_id, eos_token_id (a number or a list) and pad_token_id into `out`, where given.
void read_token_ids(JsonFields& fields, std::int64_t vocab_size, GenerationConfig& out);

}  // namespace replayssm::model
