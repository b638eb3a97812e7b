// Reads tiktoken.model, a file of ranked tokens ("base64 rank" a line), with the special tokens of
// the tokenizer_config.json beside it.
//
// The file holds neither the splitting rule nor the names behind its ranks: released folders keep
// both in Python code. The rule here is that of the one family whose folders come this way, Kimi
// (tokenization_kimi.py); its reserved ids without a name are called <|reserved_token_ID|> there.
#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "model/json_fields.hpp"
#include "model/json_value.hpp"
#include "model/mapped_file.hpp"
#include "model/tokenizer_limits.hpp"
#include "model/tokenizer_state.hpp"
#include "model/utf8.hpp"

namespace replayssm::model {
namespace {

// Han in runs of its own; words with one change of case, a character in front and a contraction
// behind; digits in threes; punctuation with its line ends; white space.
constexpr std::string_view kKimiPattern =
    R"([\p{Han}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::string_view kAlphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

constexpr std::array<std::int8_t, 256> make_base64_table() {
  std::array<std::int8_t, 256> table{};
  for (auto& value : table) value = -1;
  for (std::size_t i = 0; i < kAlphabet.size(); ++i) {
    table[static_cast<std::uint8_t>(kAlphabet[i])] = static_cast<std::int8_t>(i);
  }
  return table;
}
constexpr std::array<std::int8_t, 256> kBase64 = make_base64_table();

// False where `text` is not padded base64 (RFC 4648, section 4) in its one canonical spelling.
bool decode_base64(std::string_view text, std::string& bytes) {
  bytes.clear();
  if (text.size() % 4 != 0) return false;
  std::size_t padding = 0;
  while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=') ++padding;
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool pad = i >= text.size() - padding;
    const std::int8_t value = pad ? std::int8_t{0} : kBase64[static_cast<std::uint8_t>(text[i])];
    if (value < 0) return false;
    bits = (bits << 6U) | static_cast<std::uint32_t>(value);
    if (i % 4 != 3) continue;
    const std::size_t count = i + 1 == text.size() ? 3 - padding : 3;
    for (std::size_t byte = 0; byte < 3; ++byte) {
      const auto value_of = static_cast<std::uint8_t>(bits >> (16 - 8 * byte));
      if (byte < count) bytes.push_back(static_cast<char>(value_of));
      if (byte >= count && value_of != 0) return false;
    }
    bits = 0;
  }
  return true;
}

// A decimal number without sign or leading zeros, below `limit`.
bool read_number(std::string_view text, std::int64_t limit, std::int64_t& number) {
  if (text.empty() || (text.size() > 1 && text.front() == '0')) return false;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
  return fault == std::errc() && end == text.data() + text.size() && text.front() != '-' &&
         number < limit;
}

// Tokens by rank.
Result<std::vector<std::string>> read_ranks(std::string_view text, const std::string& where) {
  struct Line {
    std::int64_t rank = 0;
    std::string token;
  };
  std::vector<Line> lines;
  std::size_t number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty()) continue;
    // Before anything is kept, so that no file fills the memory with lines.
    if (static_cast<std::int64_t>(lines.size()) >= kMaxTokenIds) {
      return Status(StatusCode::kInvalidArgument, where + ": line " + std::to_string(number) +
                                                      ": at most " + std::to_string(kMaxTokenIds) +
                                                      " tokens are accepted, given more");
    }
    const std::size_t space = std::min(line.find(' '), line.size());
    Line entry;
    if (!decode_base64(line.substr(0, space), entry.token)) {
      return Status(StatusCode::kDataLoss, where + ": line " + std::to_string(number) +
                                               ": a token in base64 is required, given " +
                                               in_quotes(line.substr(0, space)));
    }
    if (entry.token.empty() || entry.token.size() > kMaxRankTokenBytes) {
      return Status(StatusCode::kInvalidArgument,
                    where + ": line " + std::to_string(number) + ": a token of 1 to " +
                        std::to_string(kMaxRankTokenBytes) + " bytes is required, given " +
                        std::to_string(entry.token.size()));
    }
    const std::string_view rank = line.substr(std::min(space + 1, line.size()));
    if (!read_number(rank, kMaxTokenIds, entry.rank)) {
      return Status(StatusCode::kDataLoss, where + ": line " + std::to_string(number) +
                                               ": behind the token a space and a rank from 0 to " +
                                               std::to_string(kMaxTokenIds - 1) +
                                               " are required, given " + in_quotes(line));
    }
    lines.push_back(std::move(entry));
  }
  const auto before = [](const Line& a, const Line& b) { return a.rank < b.rank; };
  if (!std::is_sorted(lines.begin(), lines.end(), before)) {
    std::stable_sort(lines.begin(), lines.end(), before);
  }
  std::vector<std::string> tokens;
  tokens.reserve(lines.size());
  for (Line& line : lines) {
    const auto next = static_cast<std::int64_t>(tokens.size());
    if (line.rank != next) {
      std::string message = where;
      message += ": rank ";
      message += std::to_string(std::min(line.rank, next));
      message += line.rank < next ? " is there twice" : " is missing";
      message += "; each rank from 0 on is required once";
      return Status(StatusCode::kInvalidArgument, std::move(message));
    }
    tokens.push_back(std::move(line.token));
  }
  return tokens;
}

// The ids from `first` to the last named one. `config` is null where there is no such file.
Result<std::vector<AddedToken>> read_special(const JsonValue* config, std::int64_t first,
                                             const std::string& where) {
  const JsonValue* named = config == nullptr ? nullptr : config->find("added_tokens_decoder");
  if (named == nullptr || named->is_null()) return std::vector<AddedToken>();
  const JsonObject* object = named->as_object();
  if (object == nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  where + ": added_tokens_decoder must be an object of tokens by id, given " +
                      named->describe());
  }
  const std::int64_t limit = std::min(first + kMaxSpecialIds, kMaxTokenIds);
  std::vector<AddedToken> tokens;
  for (const JsonObject::Member& member : object->members()) {
    std::int64_t id = 0;
    if (!read_number(member.key, limit, id) || id < first) {
      return Status(StatusCode::kInvalidArgument,
                    where + ": added_tokens_decoder: an id from " + std::to_string(first) +
                        ", behind the ranks, to " + std::to_string(limit - 1) +
                        " is required, given " + in_quotes(member.key));
    }
    JsonFields fields(member.value, where + ": added_tokens_decoder: " + member.key);
    const std::string content = fields.text({"content"});
    const bool special = fields.boolean_or({"special"}, false);
    REPLAYSSM_RETURN_IF_ERROR(fields.status());
    const auto index = static_cast<std::size_t>(id - first);
    while (tokens.size() <= index) {
      AddedToken reserved;
      reserved.id = static_cast<std::int32_t>(first + static_cast<std::int64_t>(tokens.size()));
      reserved.content = "<|reserved_token_" + std::to_string(reserved.id) + "|>";
      reserved.special = true;
      tokens.push_back(std::move(reserved));
    }
    tokens[index].content = content;
    tokens[index].special = special;
  }
  return tokens;
}

}  // namespace

Result<Tokenizer> Tokenizer::parse_tiktoken(std::string_view ranks,
                                            std::optional<std::string_view> config,
                                            std::string_view ranks_source,
                                            std::string_view config_source) {
  const std::string where(ranks_source);
  const std::string config_where(config_source);
  auto state = std::make_unique<State>();
  const Result<std::vector<std::string>> tokens = read_ranks(ranks, where);
  if (!tokens.ok()) return tokens.status();
  Result<BytePairModel> model = BytePairModel::from_ranks(*tokens, where);
  if (!model.ok()) return model.status();
  state->model = std::move(model).value();
  Result<Pretokenizer> pretokenizer = Pretokenizer::from_pattern(kKimiPattern);
  if (!pretokenizer.ok()) return pretokenizer.status();
  state->pretokenizer = std::move(pretokenizer).value();

  Result<JsonValue> json = JsonValue();
  if (config) {
    json = parse_json(*config, config_source);
    if (!json.ok()) return json.status();
  }
  Result<std::vector<AddedToken>> special = read_special(
      config ? &*json : nullptr, static_cast<std::int64_t>(tokens->size()), config_where);
  if (!special.ok()) return special.status();
  Result<AddedTokens> added = AddedTokens::from_tokens(std::move(special).value(), config_where);
  if (!added.ok()) return added.status();
  state->added = std::move(added).value();

  state->bytes = *tokens;
  state->special.resize(tokens->size(), false);
  for (const AddedToken& token : state->added.tokens()) {
    state->bytes.push_back(token.content);
    state->special.push_back(token.special);
    state->added_ids.emplace(token.content, token.id);
  }
  state->special_template = {State::kTextPlace};
  Tokenizer out(std::move(state));
  if (!config) return out;

  // The released tokenizers add nothing; others may ask for it in the file.
  JsonFields fields(*json, config_where);
  const bool add_bos = fields.boolean_or({"add_bos_token"}, false);
  const bool add_eos = fields.boolean_or({"add_eos_token"}, false);
  REPLAYSSM_RETURN_IF_ERROR(fields.status());
  if (!add_bos && !add_eos) return out;
  const Result<SpecialTokens> roles = parse_special_tokens(*config, out, config_source);
  if (!roles.ok()) return roles.status();
  const auto lacks = [&config_where](const std::string& role) {
    return Status(StatusCode::kInvalidArgument, config_where + ": add_" + role + " is true, but " +
                                                    role + " is missing; it is required then");
  };
  if (add_bos && !roles->bos) return lacks("bos_token");
  if (add_eos && !roles->eos) return lacks("eos_token");
  std::vector<std::int32_t>& around = out.state_->special_template;
  if (add_bos) around.insert(around.begin(), *roles->bos);
  if (add_eos) around.push_back(*roles->eos);
  return out;
}

Result<Tokenizer> Tokenizer::load_tiktoken(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "tiktoken.model";
  const Result<std::string> ranks = read_text_file(path, kMaxTokenizerBytes);
  if (!ranks.ok()) return ranks.status();
  const std::filesystem::path config_path = folder / "tokenizer_config.json";
  const Result<std::string> config = read_text_file(config_path, kMaxTokenizerBytes);
  if (!config.ok() && config.status().code() != StatusCode::kNotFound) return config.status();
  std::optional<std::string_view> beside;
  if (config.ok()) beside = *config;
  return parse_tiktoken(*ranks, beside, path_in_quotes(path.native()),
                        path_in_quotes(config_path.native()));
}

}  // namespace replayssm::model
