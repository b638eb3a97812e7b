// Regular expressions of tokenizer.json files.
//
// The reference package runs them on Oniguruma in its Ruby syntax, this library on PCRE2. The two
// agree on most of what tokenizers use and differ silently in places, so a pattern is first
// translated (regex_translate.cpp): every construct is either known to mean the same, rewritten so
// that it does, or refused by name.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "replayssm/status.hpp"

namespace replayssm::model {

// `pattern` (Oniguruma, Ruby syntax, UTF-8) in PCRE2's syntax for the options that Regex uses.
// kUnsupported with the construct's name where it is not known to mean the same.
[[nodiscard]] Result<std::string> translate_pattern(std::string_view pattern);

struct TextRange {
  std::size_t begin;
  std::size_t end;
};

// A compiled pattern. Copies share it; it may be used by several threads at once.
class Regex {
 public:
  // kUnsupported as translate_pattern; kInvalidArgument where PCRE2 cannot compile it.
  [[nodiscard]] static Result<Regex> compile(std::string_view pattern);
  // Matches `text` itself. It must not be empty.
  [[nodiscard]] static Result<Regex> literal(std::string_view text);

 private:
  friend class RegexMatcher;
  struct Code;
  std::shared_ptr<const Code> code_;
};

// The scratch memory of matching; one per thread at a time.
class RegexMatcher {
 public:
  RegexMatcher();
  ~RegexMatcher();
  RegexMatcher(RegexMatcher&&) noexcept;
  RegexMatcher& operator=(RegexMatcher&&) noexcept;
  RegexMatcher(const RegexMatcher&) = delete;
  RegexMatcher& operator=(const RegexMatcher&) = delete;

  // Appends the matches of `regex` in `text`, left to right without overlap. An empty match
  // directly behind the match before it is dropped, and the search goes on one character later.
  // `text` must be well-formed UTF-8. kResourceExhausted where the pattern backtracks beyond all
  // measure.
  [[nodiscard]] Status find_all(const Regex& regex, std::string_view text,
                                std::vector<TextRange>& matches);

 private:
  struct Scratch;
  std::unique_ptr<Scratch> scratch_;
};

}  // namespace replayssm::model
