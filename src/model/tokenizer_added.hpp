// Tokens that are cut out of a text before anything else sees it: the added_tokens of a
// tokenizer.json, the added_tokens_decoder beside a tiktoken file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/json_value.hpp"
#include "model/regex.hpp"
#include "model/tokenizer_bpe.hpp"
#include "replayssm/status.hpp"

namespace replayssm::model {

struct AddedToken {
  std::string content;
  std::string pattern;  // what is searched: the content or its normal form
  std::int32_t id = 0;
  bool special = false;
  bool single_word = false;  // only where no word character stands beside it
  bool strip_left = false;   // takes the white space before it along
  bool strip_right = false;
  bool normalized = false;  // is searched in the normalized text, as its own normal form
};

// Finds the leftmost, and there the longest, of a set of texts. Searching takes time in proportion
// to the text and the length of the longest entry.
class TextTrie {
 public:
  TextTrie() : nodes_(1) {}
  // False where `text` is there already. `value` must not be negative.
  [[nodiscard]] bool insert(std::string_view text, std::int32_t value);
  [[nodiscard]] bool empty() const { return nodes_.size() == 1; }
  // Length and value of the longest entry that `text` begins with; length 0 where there is none.
  [[nodiscard]] std::pair<std::size_t, std::int32_t> longest_prefix(std::string_view text) const;

 private:
  struct Node {
    std::int32_t value = -1;
    std::vector<std::pair<std::uint8_t, std::uint32_t>> children;  // sorted by byte
  };
  std::vector<Node> nodes_;
};

// A stretch of a text: an added token, or ordinary text where `id` is negative.
struct TextPiece {
  TextRange range;
  std::int32_t id = -1;
};

class AddedTokens {
 public:
  // `json` is the member added_tokens, null where absent. A token that the model has must have the
  // model's id; the others are numbered behind it, in order. kInvalidArgument where a given id
  // differs (the reference package would silently use its own) or a content repeats.
  [[nodiscard]] static Result<AddedTokens> parse(const JsonValue* json, const BytePairModel& model,
                                                 bool nfc, const std::string& source);

  // Tokens with ids of the caller's choice, searched in the raw text. kInvalidArgument where a
  // content is empty, too long or there twice.
  [[nodiscard]] static Result<AddedTokens> from_tokens(std::vector<AddedToken> tokens,
                                                       const std::string& source);

  [[nodiscard]] const std::vector<AddedToken>& tokens() const { return tokens_; }

  // Appends the pieces of `text` in order. `normalized` chooses the tokens that are searched: those
  // for the raw text first, then, in each ordinary piece after its normalization, the others.
  [[nodiscard]] Status split(std::string_view text, bool normalized, RegexMatcher& matcher,
                             std::vector<TextPiece>& pieces) const;

 private:
  // Takes in one token; its pattern is made here.
  [[nodiscard]] Status add(AddedToken token, bool nfc, TextTrie& contents,
                           const std::string& where);
  [[nodiscard]] Result<bool> beside_word(std::string_view text, TextRange match,
                                         RegexMatcher& matcher) const;

  std::vector<AddedToken> tokens_;
  TextTrie raw_;         // values are indices of tokens_
  TextTrie normalized_;  // the same
  std::optional<Regex> word_character_;
};

}  // namespace replayssm::model
