// What the readers of config.json share.
#include <optional>
#include <string>

#include "model/config_families.hpp"
#include "model/utf8.hpp"

namespace replayssm::model {

void require_text(JsonFields& fields, std::string_view name, std::string_view supported) {
  const std::optional<std::string> given = fields.optional_text({name});
  if (given && *given != supported) {
    fields.fail(StatusCode::kUnsupported, std::string(name) + " " + in_quotes(*given) +
                                              " is not supported; supported is " +
                                              std::string(supported));
  }
}

void refuse_quantization(JsonFields& fields) {
  const JsonValue* quantization = fields.get({"quantization_config"});
  if (quantization == nullptr) return;
  const JsonValue* method = quantization->find("quant_method");
  fields.fail(StatusCode::kUnsupported,
              "quantization_config" +
                  (method == nullptr ? "" : " with quant_method " + method->describe()) +
                  " is not supported; supported are BF16 and F32 weights");
}

void refuse_flag(JsonFields& fields, std::string_view name) {
  if (fields.boolean_or({name}, false)) {
    fields.fail(StatusCode::kUnsupported,
                std::string(name) + " true is not supported; supported is false");
  }
}

void read_attention_heads(JsonFields& fields, std::int64_t hidden_size, AttentionConfig& out) {
  const auto invalid = [&fields](const std::string& message) {
    fields.fail(StatusCode::kInvalidArgument, message);
  };
  out.heads = fields.integer({"num_attention_heads"}, {1, kMaxHeads});
  out.kv_heads = fields.integer_or({"num_key_value_heads"}, {1, kMaxHeads}, out.heads);
  const auto head_dim = fields.optional_integer({"head_dim", "attention_head_dim"}, {1, kMaxHeads});
  if (!fields.status().ok()) return;
  if (!head_dim && hidden_size % out.heads != 0) {
    return invalid("head_dim is missing and hidden_size " + std::to_string(hidden_size) +
                   " is no multiple of num_attention_heads " + std::to_string(out.heads));
  }
  out.head_dim = head_dim ? *head_dim : hidden_size / out.heads;
  if (out.heads % out.kv_heads != 0) {
    invalid("num_attention_heads must be a multiple of num_key_value_heads, given " +
            std::to_string(out.heads) + " and " + std::to_string(out.kv_heads));
  }
  if (out.heads * out.head_dim > kMaxDim) {
    invalid("num_attention_heads * head_dim may be at most " + std::to_string(kMaxDim) +
            ", given " + std::to_string(out.heads * out.head_dim));
  }
}

}  // namespace replayssm::model
