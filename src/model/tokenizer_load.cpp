// Reads tokenizer.json and the names in tokenizer_config.json.
#include <algorithm>
#include <utility>

#include "model/json_fields.hpp"
#include "model/json_value.hpp"
#include "model/mapped_file.hpp"
#include "model/tokenizer_limits.hpp"
#include "model/tokenizer_state.hpp"
#include "model/utf8.hpp"

namespace replayssm::model {
namespace {

constexpr std::size_t kMaxTemplatePieces = 64;
constexpr int kMaxSequenceDepth = 8;

Status unsupported(const std::string& where, const JsonValue& json, std::string_view supported) {
  const JsonValue* type = json.find("type");
  return Status(StatusCode::kUnsupported,
                where + ": " + (type == nullptr ? json.describe() : "type " + type->describe()) +
                    " is not supported; supported are " + std::string(supported));
}

std::string type_of(const JsonValue& json) {
  const JsonValue* type = json.find("type");
  return type == nullptr || type->as_string() == nullptr ? std::string() : *type->as_string();
}

// The elements of a Sequence; null where `json` is none.
const JsonValue::Array* sequence(const JsonValue& json, std::string_view member) {
  const JsonValue* list = type_of(json) == "Sequence" ? json.find(member) : nullptr;
  return list == nullptr ? nullptr : list->as_array();
}

Status read_normalizer(const JsonValue* json, const std::string& where, int depth, bool& nfc) {
  if (json == nullptr || json->is_null()) return {};
  if (type_of(*json) == "NFC") {
    nfc = true;
    return {};
  }
  const JsonValue::Array* list = sequence(*json, "normalizers");
  if (list == nullptr || depth > kMaxSequenceDepth) {
    return unsupported(where, *json, "null, NFC and a Sequence of these");
  }
  for (const JsonValue& element : *list) {
    REPLAYSSM_RETURN_IF_ERROR(read_normalizer(&element, where, depth + 1, nfc));
  }
  return {};
}

// Bytes-to-characters is the only decoder that fits a byte-level vocabulary.
Status check_decoder(const JsonValue* json, const std::string& where) {
  constexpr std::string_view kSupported = "ByteLevel and a Sequence of one ByteLevel";
  if (json == nullptr)
    return Status(StatusCode::kUnsupported,
                  where + " is missing; supported are " + std::string(kSupported));
  if (type_of(*json) == "ByteLevel") return {};
  const JsonValue::Array* list = sequence(*json, "decoders");
  if (list != nullptr && list->size() == 1 && type_of(list->front()) == "ByteLevel") return {};
  return unsupported(where, *json, kSupported);
}

// The ids that special_tokens gives for a name of the template.
Status add_special(const JsonValue& json, const JsonValue* id, const std::string& where,
                   std::vector<std::int32_t>& out) {
  const JsonValue* map = json.find("special_tokens");
  const JsonValue* entry = map == nullptr || id == nullptr || id->as_string() == nullptr
                               ? nullptr
                               : map->find(*id->as_string());
  const JsonValue* ids = entry == nullptr ? nullptr : entry->find("ids");
  if (ids == nullptr || ids->as_array() == nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  where + ": a special token of the template has no ids in special_tokens");
  }
  JsonFields fields(*entry, where);
  for (const std::int64_t value : fields.integers({"ids"}, {0, kMaxTokenIds - 1})) {
    out.push_back(static_cast<std::int32_t>(value));
  }
  return fields.status();
}

Status read_template(const JsonValue& json, const std::string& where, std::int32_t text_place,
                     std::vector<std::int32_t>& out) {
  const JsonValue* single = json.find("single");
  const JsonValue::Array* pieces = single == nullptr ? nullptr : single->as_array();
  if (pieces == nullptr || pieces->size() > kMaxTemplatePieces) {
    return Status(StatusCode::kInvalidArgument,
                  where + ": TemplateProcessing: single must be a list of at most " +
                      std::to_string(kMaxTemplatePieces) + ", given " +
                      JsonValue::describe(single));
  }
  std::vector<std::int32_t> ids;
  for (const JsonValue& piece : *pieces) {
    const JsonValue* text = piece.find("Sequence");
    const JsonValue* special = piece.find("SpecialToken");
    if (text != nullptr) {
      const JsonValue* id = text->find("id");
      if (id == nullptr || id->as_string() == nullptr || *id->as_string() != "A") {
        return Status(StatusCode::kInvalidArgument,
                      where + ": single may only hold the sequence A");
      }
      ids.push_back(text_place);
    } else if (special != nullptr) {
      REPLAYSSM_RETURN_IF_ERROR(add_special(json, special->find("id"), where, ids));
    } else {
      return Status(StatusCode::kInvalidArgument,
                    where + ": TemplateProcessing: a Sequence or SpecialToken is required, given " +
                        piece.describe());
    }
  }
  if (std::count(ids.begin(), ids.end(), text_place) != 1) {
    return Status(StatusCode::kUnsupported,
                  where + ": TemplateProcessing: single must hold the sequence A once");
  }
  if (out.size() != 1) {
    return Status(StatusCode::kUnsupported,
                  where + ": a second TemplateProcessing is not supported");
  }
  out = std::move(ids);
  return {};
}

Status read_post_processor(const JsonValue* json, const std::string& where, int depth,
                           std::int32_t text_place, std::vector<std::int32_t>& out) {
  if (json == nullptr || json->is_null()) return {};
  const std::string type = type_of(*json);
  if (type == "ByteLevel") return {};  // moves offsets only
  if (type == "TemplateProcessing") return read_template(*json, where, text_place, out);
  const JsonValue::Array* list = sequence(*json, "processors");
  if (list == nullptr || depth > kMaxSequenceDepth) {
    return unsupported(where, *json, "null, ByteLevel, TemplateProcessing and a Sequence of these");
  }
  for (const JsonValue& element : *list) {
    REPLAYSSM_RETURN_IF_ERROR(read_post_processor(&element, where, depth + 1, text_place, out));
  }
  return {};
}

}  // namespace

Result<Tokenizer> Tokenizer::parse(std::string_view json, std::string_view source) {
  const Result<JsonValue> parsed = parse_json(json, source);
  if (!parsed.ok()) return parsed.status();
  const JsonValue& root = *parsed;
  const std::string where(source);
  auto state = std::make_unique<State>();

  const std::string supported = "a tokenizer file of version 1.0 is required";
  const JsonValue* version = root.find("version");
  if (version != nullptr && (version->as_string() == nullptr || *version->as_string() != "1.0")) {
    return Status(StatusCode::kUnsupported,
                  where + ": version " + version->describe() + "; " + supported);
  }
  REPLAYSSM_RETURN_IF_ERROR(
      read_normalizer(root.find("normalizer"), where + ": normalizer", 0, state->nfc));
  Result<Pretokenizer> pretokenizer = Pretokenizer::parse(root.find("pre_tokenizer"), where);
  if (!pretokenizer.ok()) return pretokenizer.status();
  state->pretokenizer = std::move(pretokenizer).value();
  REPLAYSSM_RETURN_IF_ERROR(check_decoder(root.find("decoder"), where + ": decoder"));
  state->special_template = {State::kTextPlace};
  REPLAYSSM_RETURN_IF_ERROR(read_post_processor(root.find("post_processor"),
                                                where + ": post_processor", 0, State::kTextPlace,
                                                state->special_template));
  Result<BytePairModel> model = BytePairModel::parse(root.find("model"), where);
  if (!model.ok()) return model.status();
  state->model = std::move(model).value();
  Result<AddedTokens> added =
      AddedTokens::parse(root.find("added_tokens"), state->model, state->nfc, where);
  if (!added.ok()) return added.status();
  state->added = std::move(added).value();

  std::int32_t largest = -1;
  for (const auto& [spelling, id] : state->model.ids()) largest = std::max(largest, id);
  for (const AddedToken& token : state->added.tokens()) largest = std::max(largest, token.id);
  const std::size_t count = static_cast<std::size_t>(largest) + 1;
  state->bytes.resize(count);
  state->special.resize(count, false);
  for (const auto& [spelling, id] : state->model.ids()) {
    state->bytes[static_cast<std::size_t>(id)] = unmapped_bytes(spelling);
  }
  for (const AddedToken& token : state->added.tokens()) {
    const auto index = static_cast<std::size_t>(token.id);
    // The reference package, too, spells a normalized token by its normal form.
    state->bytes[index] = unmapped_bytes(token.pattern);
    state->special[index] = token.special;
    state->added_ids.emplace(token.content, token.id);
  }
  return Tokenizer(std::move(state));
}

Result<Tokenizer> Tokenizer::load(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "tokenizer.json";
  const Result<std::string> text = read_text_file(path, kMaxTokenizerBytes);
  if (text.ok()) return parse(*text, path_in_quotes(path.native()));
  if (text.status().code() != StatusCode::kNotFound) return text.status();
  Result<Tokenizer> ranked = load_tiktoken(folder);
  if (!ranked.ok() && ranked.status().code() == StatusCode::kNotFound) {
    return Status(StatusCode::kNotFound, text.status().message() + "; nor is there tiktoken.model");
  }
  return ranked;
}

Result<SpecialTokens> parse_special_tokens(std::string_view json, const Tokenizer& tokenizer,
                                           std::string_view source) {
  const Result<JsonValue> parsed = parse_json(json, source);
  if (!parsed.ok()) return parsed.status();
  SpecialTokens tokens;
  struct Role {
    std::string_view name;
    std::optional<std::int32_t>* id;
  };
  const Role roles[] = {{"bos_token", &tokens.bos},
                        {"eos_token", &tokens.eos},
                        {"pad_token", &tokens.pad},
                        {"unk_token", &tokens.unknown}};
  for (const Role& role : roles) {
    const JsonValue* value = parsed->find(role.name);
    if (value == nullptr || value->is_null()) continue;
    const JsonValue* content = value->as_object() == nullptr ? value : value->find("content");
    const std::string* name = content == nullptr ? nullptr : content->as_string();
    if (name != nullptr) *role.id = tokenizer.token_id(*name);
    if (!*role.id) {
      return Status(StatusCode::kInvalidArgument,
                    std::string(source) + ": " + std::string(role.name) +
                        ": the name of a token is required, given " + value->describe());
    }
  }
  return tokens;
}

Result<SpecialTokens> load_special_tokens(const std::filesystem::path& folder,
                                          const Tokenizer& tokenizer) {
  const std::filesystem::path path = folder / "tokenizer_config.json";
  const Result<std::string> text = read_text_file(path, kMaxTokenizerBytes);
  if (text.ok()) return parse_special_tokens(*text, tokenizer, path_in_quotes(path.native()));
  if (text.status().code() == StatusCode::kNotFound) return SpecialTokens{};
  return text.status();
}

}  // namespace replayssm::model
