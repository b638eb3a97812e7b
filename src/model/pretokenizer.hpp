// Cuts text into the words that the merges of a tokenizer may not cross: the pre_tokenizer of a
// tokenizer.json, or one pattern.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "model/json_value.hpp"
#include "model/regex.hpp"
#include "replayssm/status.hpp"

namespace replayssm::model {

// What becomes of the matches of a split.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// A stretch of text and whether it matched.
struct SplitPart {
  TextRange range;
  bool match;
};

// Joins or drops `parts`, which cover a text in order, as `behavior` says.
[[nodiscard]] std::vector<TextRange> apply_behavior(const std::vector<SplitPart>& parts,
                                                    SplitBehavior behavior);

// Memory of one run; reused between runs. Words point into the text or into `owned`.
struct PretokenizerScratch {
  RegexMatcher matcher;
  std::vector<TextRange> matches;
  std::deque<std::string> owned;  // words that got a space in front; a deque keeps them in place
};

class Pretokenizer {
 public:
  // `json` is the member pre_tokenizer. Supported are ByteLevel and a Sequence of Split, Digits and
  // a ByteLevel at its end; other kinds are kUnsupported by name. Without a ByteLevel the model is
  // not byte-level and is refused.
  [[nodiscard]] static Result<Pretokenizer> parse(const JsonValue* json, const std::string& source);

  // One regex, whose matches and the stretches between them are the words.
  [[nodiscard]] static Result<Pretokenizer> from_pattern(std::string_view pattern);

  // Replaces `words` by the words of `text` (well-formed UTF-8), in order, none empty. They are the
  // bytes themselves, before any mapping of bytes to printable characters.
  [[nodiscard]] Status run(std::string_view text, PretokenizerScratch& scratch,
                           std::vector<std::string_view>& words) const;

 private:
  enum class StepKind { kSplit, kPrefixSpace };
  struct Step {
    StepKind kind = StepKind::kSplit;
    Regex regex;
    SplitBehavior behavior = SplitBehavior::kIsolated;
    bool invert = false;
  };

  [[nodiscard]] Status add(const JsonValue& json, const std::string& where);
  [[nodiscard]] Status add_split(const JsonValue& json, const std::string& where);
  [[nodiscard]] static Status split(const Step& step, std::string_view word,
                                    PretokenizerScratch& scratch,
                                    std::vector<std::string_view>& out);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace replayssm::model
