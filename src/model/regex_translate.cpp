// From Oniguruma's Ruby syntax to PCRE2's, as a list of what is known to agree. (Over 400 lines:
// one reader with one cursor, of which every construct is a few lines.)
//
// Rewritten:
//   \s \S     PCRE2's \s also takes U+180E; both mean \p{White_Space} afterwards
//   \w \W     [\p{Alphabetic}\p{M}\p{Nd}\p{Pc}]; PCRE2's \w is [\p{L}\p{N}_]. Outside of a class
//             Oniguruma also takes the six superscripts and fractions of Latin-1
//   \d \D     \p{Nd}
//   \h \H     hexadecimal digit (PCRE2: horizontal space)
//   \v        U+000B (PCRE2: any vertical space)
//   \p{Han}   \p{sc:Han}; PCRE2 alone would take script extensions
//   \p{^L}    \P{L}
//   {,n}      {0,n}
//   (?m: )    (?s: )
//   ( ), (?<name> )   (?: ), as nothing can refer to a group
//   [A&&B]    (?:(?=[A])[B]); PCRE2 reads two ampersands. A side is a list or one nested class, as
//             in [\p{L}&&[^\p{Han}]]; [^A&&B] is (?:(?!(?=[A])[B])(?s:.))
// Refused, because PCRE2 reads them differently or the engines' results were not compared: nested
// classes elsewhere, && under (?i) or beside a hyphen, POSIX brackets, back references and
// subexpression calls, \b, \X, \R, \K, \G, possessive or lazy {n}, an option group that is not
// first, case-insensitive matching of what folds to several characters, and everything that is not
// in this file.
//
// Unicode versions: Debian's PCRE2 10.42 knows Unicode 14, the reference package 16. What was added
// in between is spelled out beside each set (unicode_additions.cpp), so that newer characters split
// alike.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "model/regex.hpp"
#include "model/unicode_additions.hpp"
#include "model/utf8.hpp"

namespace replayssm::model {
namespace {

constexpr std::string_view kWordBase = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
constexpr std::string_view kWordLatin1 = R"(\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";
// Without C, Cn and Cs: they lost what the other sets gained.
constexpr std::array<std::string_view, 34> kCategories = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N", "Nd",
    "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S", "Sm",
    "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "Cc", "Cf", "Co"};
constexpr std::array<std::string_view, 12> kScripts = {
    "Han",   "Hiragana", "Katakana", "Hangul", "Latin",      "Cyrillic",
    "Greek", "Arabic",   "Hebrew",   "Thai",   "Devanagari", "Bengali"};
// What several characters fold to, as pairs of letters (U+00DF, U+FB00 to U+FB06).
constexpr std::array<std::string_view, 5> kFolds = {"ss", "ff", "fi", "fl", "st"};

template <typename List>
bool contains(const List& list, std::string_view wanted) {
  return std::find(list.begin(), list.end(), wanted) != list.end();
}

std::string word_set(bool in_class) {
  std::string set(kWordBase);
  for (const std::string_view name : {"L", "M", "Nd"}) set += unicode_additions(name);
  if (!in_class) set += kWordLatin1;
  return set;
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return is_digit(c) || (lower(c) >= 'a' && lower(c) <= 'f'); }
std::uint32_t hex_value(char c) {
  return static_cast<std::uint32_t>(is_digit(c) ? c - '0' : lower(c) - 'a' + 10);
}
bool is_letter(char c) { return lower(c) >= 'a' && lower(c) <= 'z'; }

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  Result<std::string> run() {
    if (find_invalid_utf8(in_) != std::string_view::npos) refuse("bytes that are not UTF-8");
    if (in_.find('\0') != std::string_view::npos) refuse("a NUL character");
    ignore_case_.push_back(false);
    while (at_ < in_.size() && status_.ok()) item();
    if (status_.ok() && ignore_case_.size() != 1) refuse("an unclosed group");
    if (!status_.ok()) return status_;
    return std::move(out_);
  }

 private:
  void refuse(const std::string& what) {
    if (status_.ok()) {
      status_ = Status(StatusCode::kUnsupported,
                       "regex " + in_quotes(in_) + ": " + what + " is not supported");
    }
  }
  [[nodiscard]] bool next_is(std::string_view text) const {
    return in_.substr(at_, text.size()) == text;
  }
  [[nodiscard]] char peek(std::size_t ahead = 0) const {
    return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0';
  }
  [[nodiscard]] bool ignores_case() const { return ignore_case_.back(); }

  // One character, group edge, class or escape, with what repeats it.
  void item() {
    const char c = in_[at_];
    if (c == '\\') {
      escape(false);
      previous_ = '\0';
    } else if (c == '[') {
      char_class();
      previous_ = '\0';
    } else if (c == '(') {
      open_group();
      previous_ = '\0';
      return;  // nothing to repeat yet
    } else if (c == ')') {
      if (ignore_case_.size() == 1) return refuse("an unopened group");
      ignore_case_.pop_back();
      out_ += c;
      ++at_;
      previous_ = '\0';
    } else if (c == '|' || c == '^' || c == '$') {
      out_ += c;
      ++at_;
      previous_ = '\0';
      if (c == '|') return;
    } else if (c == '*' || c == '+' || c == '?' || (c == '{' && interval_length() > 0)) {
      return refuse("a repetition of nothing");
    } else {
      literal();
    }
    if (status_.ok()) repetition();
  }

  void literal() {
    const Utf8Step step = utf8_step(in_.substr(at_));
    if (ignores_case()) {
      if (step.code_point >= 0x80) return refuse("a letter outside of ASCII under (?i)");
      const char now = lower(in_[at_]);
      const std::string pair = {previous_, now};
      if (contains(kFolds, pair)) return refuse("'" + pair + "' under (?i)");
      previous_ = now;
    }
    // Braces that do not form an interval are text in both; the escape says so to PCRE2.
    if (in_[at_] == '{' || in_[at_] == '}' || in_[at_] == ']') out_ += '\\';
    out_ += in_.substr(at_, step.length);
    at_ += step.length;
  }

  // Length of {n}, {n,}, {n,m} or {,m} here; 0 where there is none.
  [[nodiscard]] std::size_t interval_length() const {
    std::size_t i = 1;
    std::size_t digits = 0;
    while (is_digit(peek(i))) ++i, ++digits;
    if (peek(i) == ',') {
      ++i;
      while (is_digit(peek(i))) ++i, ++digits;
    }
    return peek(i) == '}' && digits > 0 ? i + 1 : 0;
  }

  void repetition() {
    const char c = peek();
    if (c == '*' || c == '+' || c == '?') {
      out_ += c;
      ++at_;
      if (peek() == '+' || peek() == '?') out_ += in_[at_++];  // possessive, lazy: the same in both
      previous_ = '\0';
    } else if (c == '{' && interval_length() > 0) {
      const std::string_view interval = in_.substr(at_, interval_length());
      at_ += interval.size();
      if (peek() == '+') return refuse("+ after {n,m}");
      if (peek() == '?' && interval.find(',') == std::string_view::npos) return refuse("{n}?");
      out_ += interval[1] == ',' ? "{0" + std::string(interval.substr(1)) : std::string(interval);
      if (peek() == '?') out_ += in_[at_++];
      previous_ = '\0';
    } else {
      return;
    }
    const char again = peek();
    if (again == '*' || again == '+' || again == '?' || (again == '{' && interval_length() > 0)) {
      refuse("a repetition of a repetition");
    }
  }

  void open_group() {
    const bool outer = ignores_case();
    if (next_is("(*")) return refuse("a verb (*...)");
    if (!next_is("(?")) {
      out_ += "(?:";
      ++at_;
      ignore_case_.push_back(outer);
      return;
    }
    for (const std::string_view kind : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"}) {
      if (!next_is(kind)) continue;
      out_ += kind;
      at_ += kind.size();
      ignore_case_.push_back(outer);
      return;
    }
    if (next_is("(?#")) {
      const std::size_t end = in_.find(')', at_);
      if (end == std::string_view::npos) return refuse("an unclosed comment");
      at_ = end + 1;
      return;
    }
    if (next_is("(?<") && (is_letter(peek(3)) || peek(3) == '_')) {
      const std::size_t end = in_.find('>', at_);
      if (end == std::string_view::npos) return refuse("an unclosed group name");
      out_ += "(?:";
      at_ = end + 1;
      ignore_case_.push_back(outer);
      return;
    }
    options();
  }

  // (?i), (?i: ), (?m: ), (?-i: ) and their mixtures.
  void options() {
    const bool first = at_ == 0;
    at_ += 2;
    bool on = true;
    bool fold = ignores_case();
    std::string flags;
    while (peek() == 'i' || peek() == 'm' || peek() == '-') {
      const char c = in_[at_++];
      if (c == '-') on = false;
      if (c == 'i') fold = on;
      flags += c == 'm' ? 's' : c;
    }
    if (std::count(flags.begin(), flags.end(), '-') > 1) return refuse("options '" + flags + "'");
    if (peek() == ':') {
      ignore_case_.push_back(fold);
    } else if (peek() == ')' && first && !flags.empty()) {
      ignore_case_.back() = fold;
    } else if (peek() == ')') {
      // Ruby: a(?i)b|c is a(?i:b|c); PCRE2 reads two alternatives.
      return refuse("an option group that is not at the start");
    } else {
      return refuse("the group " + in_quotes("(?" + flags + std::string(1, peek())));
    }
    out_ += "(?" + flags;
    out_ += in_[at_++];
  }

  // One side of &&, or a whole class without it: what stands between the brackets.
  struct ClassSide {
    std::string items;
    bool negated = false;
    [[nodiscard]] std::string brackets() const { return (negated ? "[^" : "[") + items + "]"; }
  };

  void char_class() {
    ++at_;
    const bool negated = take_caret();
    std::vector<ClassSide> sides;
    do {
      if (!sides.empty()) at_ += 2;
      ClassSide side;
      const bool nested = peek() == '[' && !next_is("[:");
      if (nested) {
        ++at_;
        side.negated = take_caret();
      }
      side.items = class_items();
      if (!status_.ok()) return;
      if (nested) {
        if (next_is("&&")) return refuse("class intersection && in a nested class");
        ++at_;
        if (at_ >= in_.size()) return refuse("an unclosed class");
        const bool whole = next_is("&&") || (peek() == ']' && !sides.empty());
        if (!whole) return refuse("a class inside of a class");
      }
      sides.push_back(std::move(side));
    } while (next_is("&&"));
    if (sides.size() > 1 && ignores_case()) return refuse("class intersection && under (?i)");
    ++at_;
    if (sides.size() == 1) {
      sides.front().negated = negated;
      out_ += sides.front().brackets();
      return;
    }
    std::string both;
    for (std::size_t i = 0; i + 1 < sides.size(); ++i) both += "(?=" + sides[i].brackets() + ")";
    both += sides.back().brackets();
    out_ += negated ? "(?:(?!" + both + ")(?s:.))" : "(?:" + both + ")";
  }

  bool take_caret() {
    if (peek() != '^') return false;
    ++at_;
    return true;
  }

  // The items up to the ']' or "&&" behind them, translated.
  std::string class_items() {
    const std::size_t begin = at_;
    const bool after = begin >= 2 && in_.substr(begin - 2, 2) == "&&";
    std::string outside = std::exchange(out_, std::string());
    if (peek() == ']' && !after) refuse("']' as the first of a class");
    while (status_.ok()) {
      if (at_ >= in_.size()) {
        refuse("an unclosed class");
      } else if (in_[at_] == ']' || next_is("&&")) {
        break;
      } else if (next_is("[:")) {
        refuse("a POSIX bracket [:");
      } else if (in_[at_] == '[') {
        refuse("a class inside of a class");
      } else if (in_[at_] == '\\') {
        escape(true);
      } else {
        const Utf8Step step = utf8_step(in_.substr(at_));
        if (ignores_case() && step.code_point >= 0x80) {
          refuse("a letter outside of ASCII under (?i)");
        }
        out_ += in_.substr(at_, step.length);
        at_ += step.length;
      }
    }
    if (status_.ok() && (after || next_is("&&"))) check_side(in_.substr(begin, at_ - begin));
    return std::exchange(out_, std::move(outside));
  }

  // Where the engines would disagree on what belongs to a side.
  void check_side(std::string_view items) {
    if (items.empty()) return refuse("an empty side of class intersection &&");
    if (next_is("&&&")) return refuse("&&&");
    if (items.front() == '-' || items.back() == '-') refuse("'-' beside class intersection &&");
  }

  void escape(bool in_class) {
    if (at_ + 1 >= in_.size()) return refuse("a backslash at the end");
    const char c = in_[at_ + 1];
    const auto set = [&](std::string_view positive, std::string_view negative, bool negated) {
      at_ += 2;
      if (negated && negative.empty()) {
        if (in_class)
          return refuse("a negated set '\\" + std::string(1, c) + "' inside of a class");
        out_ += "[^" + std::string(positive) + "]";
      } else if (negated) {
        out_ += negative;
      } else {
        out_ += in_class ? std::string(positive) : "[" + std::string(positive) + "]";
      }
    };
    switch (c) {
      case 's': return set(R"(\p{White_Space})", "", false);
      case 'S': return set("", R"(\P{White_Space})", true);
      case 'd': return property("Nd", false, in_class, 2);
      case 'D': return property("Nd", true, in_class, 2);
      case 'w': return set(word_set(in_class), "", false);
      case 'W': return set(word_set(in_class), "", true);
      case 'h': return set("0-9A-Fa-f", "", false);
      case 'H': return set("0-9A-Fa-f", "", true);
      case 'p':
      case 'P': return named_property(in_class);
      case 'v': out_ += "\\x{b}"; break;
      case 'n':
      case 'r':
      case 't':
      case 'f':
      case 'a':
      case 'e': out_ += in_.substr(at_, 2); break;
      case 'A':
      case 'z':
      case 'Z':
        if (in_class) return refuse("'\\" + std::string(1, c) + "' inside of a class");
        out_ += in_.substr(at_, 2);
        break;
      case 'x':
      case 'u': return code_point();
      default:
        // Punctuation stands for itself in both.
        if (static_cast<unsigned char>(c) < 0x21 || static_cast<unsigned char>(c) > 0x7E ||
            is_letter(c) || is_digit(c)) {
          const std::size_t length = utf8_step(in_.substr(at_ + 1)).length;
          return refuse(in_quotes(in_.substr(at_, length + 1)));
        }
        out_ += in_.substr(at_, 2);
    }
    at_ += 2;
  }

  // \x{h...}, \xhh below 80, \uhhhh.
  void code_point() {
    const bool braces = in_[at_ + 1] == 'x' && peek(2) == '{';
    const std::size_t want = in_[at_ + 1] == 'u' ? 4 : 2;
    std::size_t from = at_ + (braces ? 3 : 2);
    std::size_t end = from;
    while (end < in_.size() && is_hex(in_[end]) && end - from < (braces ? 6 : want)) ++end;
    const std::string_view digits = in_.substr(from, end - from);
    const bool closed = !braces || (end < in_.size() && in_[end] == '}');
    if (!closed || digits.empty() || (!braces && digits.size() != want))
      return refuse("this '\\x'");
    std::uint32_t value = 0;
    for (const char digit : digits) value = value * 16 + hex_value(digit);
    if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) return refuse("this '\\x'");
    if (value >= 0x80 && ((want == 2 && !braces) || ignores_case())) return refuse("this '\\x'");
    out_ += "\\x{" + std::string(digits) + "}";
    at_ = end + (braces ? 1 : 0);
  }

  void named_property(bool in_class) {
    const std::size_t end = in_.find('}', at_);
    if (peek(2) != '{' || end == std::string_view::npos) return refuse("\\p without {name}");
    std::string_view name = in_.substr(at_ + 3, end - at_ - 3);
    bool negated = in_[at_ + 1] == 'P';
    if (!name.empty() && name.front() == '^') {
      negated = !negated;
      name.remove_prefix(1);
    }
    property(name, negated, in_class, end + 1 - at_);
  }

  // Writes the set `name` and steps over `length` bytes of the pattern.
  void property(std::string_view name, bool negated, bool in_class, std::size_t length) {
    std::string set;
    if (contains(kCategories, name)) {
      if (ignores_case() && (name == "Lu" || name == "Ll" || name == "Lt")) {
        return refuse("\\p{" + std::string(name) + "} under (?i)");
      }
      set = "\\p{" + std::string(name) + "}";
    } else if (contains(kScripts, name)) {
      set = "\\p{sc:" + std::string(name) + "}";
    } else {
      return refuse("the property " + in_quotes(name));
    }
    at_ += length;
    const std::string_view added = unicode_additions(name);
    if (negated && added.empty()) {
      set[1] = 'P';
      out_ += set;
    } else if (negated && in_class) {
      return refuse("the complement of " + std::string(name) + " inside of a class");
    } else if (in_class || added.empty()) {
      out_ += set + std::string(added);
    } else {
      out_ += (negated ? "[^" : "[") + set + std::string(added) + "]";
    }
  }

  std::string_view in_;
  std::size_t at_ = 0;
  std::string out_;
  std::vector<bool> ignore_case_;  // one for each open group
  char previous_ = '\0';           // the literal before, under (?i)
  Status status_;
};

}  // namespace

Result<std::string> translate_pattern(std::string_view pattern) {
  return Translator(pattern).run();
}

}  // namespace replayssm::model
