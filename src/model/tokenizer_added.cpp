// AddedTokens: reading and searching.
#include "model/tokenizer_added.hpp"

#include <algorithm>

#include "model/json_fields.hpp"
#include "model/tokenizer_limits.hpp"
#include "model/tokenizer_normalizer.hpp"
#include "model/utf8.hpp"

namespace replayssm::model {
namespace {

constexpr std::size_t kMaxAddedTokenBytes = 4096;
constexpr std::size_t kMaxAddedTokens = 1 << 20;

// \w of the reference package's regex crate (UTS 18, annex C).
constexpr std::string_view kWordCharacter = R"([\w\x{200c}\x{200d}])";

// The property White_Space, which has not changed since Unicode 6.3.
bool is_white_space(std::uint32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

// The last character of non-empty, well-formed `text`.
std::string_view last_character(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return text.substr(at);
}

std::size_t space_at_start(std::string_view text) {
  std::size_t length = 0;
  while (length < text.size()) {
    const Utf8Step step = utf8_step(text.substr(length));
    if (!is_white_space(step.code_point)) break;
    length += step.length;
  }
  return length;
}

// Where the white space at the end begins.
std::size_t space_at_end(std::string_view text) {
  while (!text.empty()) {
    const std::string_view last = last_character(text);
    if (!is_white_space(utf8_step(last).code_point)) break;
    text.remove_suffix(last.size());
  }
  return text.size();
}

bool child_before(const std::pair<std::uint8_t, std::uint32_t>& child, std::uint8_t byte) {
  return child.first < byte;
}

}  // namespace

bool TextTrie::insert(std::string_view text, std::int32_t value) {
  std::size_t node = 0;
  for (const char c : text) {
    const auto byte = static_cast<std::uint8_t>(c);
    auto& children = nodes_[node].children;
    const auto at = std::lower_bound(children.begin(), children.end(), byte, child_before);
    if (at != children.end() && at->first == byte) {
      node = at->second;
    } else {
      const std::size_t added = nodes_.size();
      children.insert(at, {byte, static_cast<std::uint32_t>(added)});
      nodes_.emplace_back();  // invalidates `children`
      node = added;
    }
  }
  if (nodes_[node].value >= 0) return false;
  nodes_[node].value = value;
  return true;
}

std::pair<std::size_t, std::int32_t> TextTrie::longest_prefix(std::string_view text) const {
  std::pair<std::size_t, std::int32_t> best{0, -1};
  std::size_t node = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<std::uint8_t>(text[i]);
    const auto& children = nodes_[node].children;
    const auto at = std::lower_bound(children.begin(), children.end(), byte, child_before);
    if (at == children.end() || at->first != byte) break;
    node = at->second;
    if (nodes_[node].value >= 0) best = {i + 1, nodes_[node].value};
  }
  return best;
}

Result<AddedTokens> AddedTokens::parse(const JsonValue* json, const BytePairModel& model, bool nfc,
                                       const std::string& source) {
  AddedTokens out;
  if (json == nullptr || json->is_null()) return out;
  const std::string where = source + ": added_tokens";
  const JsonValue::Array* list = json->as_array();
  if (list == nullptr || list->size() > kMaxAddedTokens) {
    return Status(StatusCode::kInvalidArgument,
                  where + ": a list of at most " + std::to_string(kMaxAddedTokens) +
                      " tokens is required, given " + json->describe());
  }
  auto next_id = static_cast<std::int64_t>(model.token_count());
  TextTrie contents;
  for (const JsonValue& element : *list) {
    JsonFields fields(element, where);
    AddedToken token;
    token.content = fields.text({"content"});
    const std::int64_t given = fields.integer({"id"}, {0, kMaxTokenIds - 1});
    token.special = fields.boolean_or({"special"}, false);
    token.single_word = fields.boolean_or({"single_word"}, false);
    token.strip_left = fields.boolean_or({"lstrip"}, false);
    token.strip_right = fields.boolean_or({"rstrip"}, false);
    token.normalized = fields.boolean_or({"normalized"}, !token.special);
    REPLAYSSM_RETURN_IF_ERROR(fields.status());
    if (token.content.empty()) continue;
    const std::optional<std::int32_t> known = model.token_id(token.content);
    const std::int64_t id = known ? *known : next_id++;
    if (id != given) {
      return Status(StatusCode::kInvalidArgument,
                    where + ": " + in_quotes(token.content) + " has the id " +
                        std::to_string(given) + "; the vocabulary gives " + std::to_string(id));
    }
    token.id = static_cast<std::int32_t>(id);
    REPLAYSSM_RETURN_IF_ERROR(out.add(std::move(token), nfc, contents, where));
  }
  return out;
}

Result<AddedTokens> AddedTokens::from_tokens(std::vector<AddedToken> tokens,
                                             const std::string& source) {
  AddedTokens out;
  TextTrie contents;
  for (AddedToken& token : tokens) {
    if (token.content.empty()) {
      return Status(StatusCode::kInvalidArgument,
                    source + ": the token of id " + std::to_string(token.id) + " is empty");
    }
    token.normalized = false;
    REPLAYSSM_RETURN_IF_ERROR(out.add(std::move(token), false, contents, source));
  }
  return out;
}

Status AddedTokens::add(AddedToken token, bool nfc, TextTrie& contents, const std::string& where) {
  if (token.content.size() > kMaxAddedTokenBytes) {
    return Status(StatusCode::kInvalidArgument,
                  where + ": " + in_quotes(token.content) + ": at most " +
                      std::to_string(kMaxAddedTokenBytes) + " bytes are accepted");
  }
  const auto index = static_cast<std::int32_t>(tokens_.size());
  token.pattern = token.content;
  if (token.normalized && nfc) {
    Result<std::string> normal = normalize_nfc(token.content);
    if (!normal.ok()) return normal.status();
    token.pattern = std::move(normal).value();
  }
  TextTrie& trie = token.normalized ? normalized_ : raw_;
  if (!contents.insert(token.content, index) || !trie.insert(token.pattern, index)) {
    return Status(StatusCode::kInvalidArgument,
                  where + ": " + in_quotes(token.content) + " is there twice");
  }
  if (token.single_word && !word_character_) {
    Result<Regex> word = Regex::compile(kWordCharacter);
    if (!word.ok()) return word.status();
    word_character_ = std::move(word).value();
  }
  tokens_.push_back(std::move(token));
  return {};
}

Result<bool> AddedTokens::beside_word(std::string_view text, TextRange match,
                                      RegexMatcher& matcher) const {
  std::vector<TextRange> found;
  if (match.begin > 0) {
    const std::string_view before = last_character(text.substr(0, match.begin));
    REPLAYSSM_RETURN_IF_ERROR(matcher.find_all(*word_character_, before, found));
  }
  if (match.end < text.size()) {
    const std::string_view rest = text.substr(match.end);
    const std::string_view after = rest.substr(0, utf8_step(rest).length);
    REPLAYSSM_RETURN_IF_ERROR(matcher.find_all(*word_character_, after, found));
  }
  return !found.empty();
}

Status AddedTokens::split(std::string_view text, bool normalized, RegexMatcher& matcher,
                          std::vector<TextPiece>& pieces) const {
  const TextTrie& trie = normalized ? normalized_ : raw_;
  std::size_t covered = 0;
  std::size_t at = trie.empty() ? text.size() : 0;
  while (at < text.size()) {
    const auto [length, index] = trie.longest_prefix(text.substr(at));
    if (length == 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<std::size_t>(index)];
    TextRange range{at, at + length};
    at = range.end;
    if (token.single_word) {
      const Result<bool> beside = beside_word(text, range, matcher);
      if (!beside.ok()) return beside.status();
      if (*beside) continue;
    }
    if (token.strip_left) {
      range.begin = std::max(space_at_end(text.substr(0, range.begin)), covered);
    }
    if (token.strip_right) range.end += space_at_start(text.substr(range.end));
    // The token before took all of this one with the white space behind it.
    if (range.begin >= range.end) continue;
    if (covered < range.begin) pieces.push_back({{covered, range.begin}, -1});
    pieces.push_back({range, token.id});
    covered = range.end;
  }
  if (covered < text.size()) pieces.push_back({{covered, text.size()}, -1});
  return {};
}

}  // namespace replayssm::model
