// The files of a folder, the choice of the family, and generation_config.json.
#include "model/config.hpp"

#include <algorithm>
#include <utility>

#include "model/config_families.hpp"
#include "model/json_fields.hpp"
#include "model/json_value.hpp"
#include "model/mapped_file.hpp"
#include "model/utf8.hpp"

namespace replayssm::model {
namespace {

constexpr std::size_t kMaxConfigBytes = 4'000'000;
constexpr std::string_view kSupportedTypes =
    "supported are kimi_linear, nemotron_h, qwen3_5 and qwen3_5_text";

JsonLimits config_limits() {
  JsonLimits limits;
  limits.allow_nonfinite = true;
  limits.max_values = 1'000'000;
  return limits;
}

}  // namespace

std::int64_t ModelConfig::layer_count(LayerKind kind) const {
  return std::count(layers.begin(), layers.end(), kind);
}

Result<ModelConfig> parse_config(std::string_view json, std::string_view source) {
  const Result<JsonValue> parsed = parse_json(json, source, config_limits());
  if (!parsed.ok()) return parsed.status();
  JsonFields fields(*parsed, std::string(source));
  const std::string type = fields.text({"model_type"});
  REPLAYSSM_RETURN_IF_ERROR(fields.status());
  if (type == "nemotron_h") return parse_nemotron_h(*parsed, source);
  if (type == "kimi_linear") return parse_kimi_linear(*parsed, source);
  if (type == "qwen3_5" || type == "qwen3_5_text") return parse_qwen3_5(*parsed, source);
  const std::string reason = type.starts_with("qwen3_5_moe")
                                 ? " is a mixture of experts (MoE), which is not supported"
                                 : " is not supported";
  return Status(StatusCode::kUnsupported, std::string(source) + ": model_type " + in_quotes(type) +
                                              reason + "; " + std::string(kSupportedTypes));
}

void read_token_ids(JsonFields& fields, std::int64_t vocab_size, GenerationConfig& out) {
  const IntegerRange ids{0, vocab_size - 1};
  if (const auto id = fields.optional_integer({"bos_token_id"}, ids)) out.bos_token = id;
  if (const auto id = fields.optional_integer({"pad_token_id"}, ids)) out.pad_token = id;
  std::vector<std::int64_t> eos = fields.integers({"eos_token_id"}, ids);
  if (!eos.empty()) out.eos_tokens = std::move(eos);
}

Result<GenerationConfig> parse_generation_config(std::string_view json, std::int64_t vocab_size,
                                                 std::string_view source) {
  const Result<JsonValue> parsed = parse_json(json, source, config_limits());
  if (!parsed.ok()) return parsed.status();
  JsonFields fields(*parsed, std::string(source));
  GenerationConfig out;
  read_token_ids(fields, vocab_size, out);
  if (fields.get({"do_sample"}) != nullptr) out.do_sample = fields.boolean_or({"do_sample"}, false);
  out.temperature = fields.optional_real({"temperature"}, {0, 1000});
  out.top_p = fields.optional_real({"top_p"}, {0, 1});
  out.top_k = fields.optional_integer({"top_k"}, {0, std::numeric_limits<std::int32_t>::max()});
  out.repetition_penalty = fields.optional_real({"repetition_penalty"}, {1e-6, 1e6});
  out.max_new_tokens =
      fields.optional_integer({"max_new_tokens"}, {1, std::numeric_limits<std::int32_t>::max()});
  REPLAYSSM_RETURN_IF_ERROR(fields.status());
  return out;
}

Result<ModelConfig> load_config(const std::filesystem::path& folder) {
  const std::filesystem::path config_path = folder / "config.json";
  const Result<std::string> text = read_text_file(config_path, kMaxConfigBytes);
  if (!text.ok()) return text.status();
  Result<ModelConfig> config = parse_config(*text, path_in_quotes(config_path.native()));
  if (!config.ok()) return config;

  const std::filesystem::path generation_path = folder / "generation_config.json";
  const Result<std::string> generation_text = read_text_file(generation_path, kMaxConfigBytes);
  if (!generation_text.ok()) {
    if (generation_text.status().code() == StatusCode::kNotFound) return config;
    return generation_text.status();
  }
  Result<GenerationConfig> generation = parse_generation_config(
      *generation_text, config->vocab_size, path_in_quotes(generation_path.native()));
  if (!generation.ok()) return generation.status();
  if (!generation->bos_token) generation->bos_token = config->generation.bos_token;
  if (!generation->pad_token) generation->pad_token = config->generation.pad_token;
  if (generation->eos_tokens.empty()) generation->eos_tokens = config->generation.eos_tokens;
  config->generation = std::move(generation).value();
  return config;
}

}  // namespace replayssm::model
