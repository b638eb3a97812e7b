// Patterns in Oniguruma's syntax: what is rewritten matches what the reference matches on every
// code point, and what is not known to agree is refused by name.
#include "model/regex.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "model/utf8.hpp"

namespace replayssm::model {
namespace {

std::vector<std::string> matches(const std::string& pattern, const std::string& text) {
  const auto regex = Regex::compile(pattern);
  EXPECT_TRUE(regex.ok()) << regex.status().to_string();
  std::vector<std::string> out;
  if (!regex.ok()) return out;
  RegexMatcher matcher;
  std::vector<TextRange> ranges;
  const Status status = matcher.find_all(*regex, text, ranges);
  EXPECT_TRUE(status.ok()) << status.to_string();
  for (const TextRange& range : ranges)
    out.push_back(text.substr(range.begin, range.end - range.begin));
  return out;
}

using Texts = std::vector<std::string>;

TEST(Regex, FindsMatchesLeftToRight) {
  EXPECT_EQ(matches("b+", "abbabb"), (Texts{"bb", "bb"}));
  EXPECT_EQ(matches("(?i:'S|'re)", "'s 'RE 'r"), (Texts{"'s", "'RE"}));
  EXPECT_EQ(matches("a*", "baac"), (Texts{"", "aa", ""}));  // none directly behind "aa"
  EXPECT_EQ(matches("", "\xC3\xA9x"), (Texts{"", "", ""}));
  EXPECT_EQ(matches(R"(\s+(?!\S)|\s+)", "a   b  "), (Texts{"  ", " ", "  "}));
}

TEST(Regex, RubySyntax) {
  EXPECT_EQ(matches("^.", "ab\ncd\n"), (Texts{"a", "c"}));
  EXPECT_EQ(matches(".$", "ab\ncd"), (Texts{"b", "d"}));
  EXPECT_EQ(matches("a.b", "a\nb"), Texts{});
  EXPECT_EQ(matches("(?m:a.b)", "a\nb"), Texts{"a\nb"});
  EXPECT_EQ(matches("a{,2}b", "aaab"), Texts{"aab"});
  EXPECT_EQ(matches("(?<name>a)(b)", "ab"), Texts{"ab"});
  EXPECT_EQ(matches("a{x}", "a{x}"), Texts{"a{x}"});
  EXPECT_EQ(matches("(?i)k", "kK\xE2\x84\xAA"), (Texts{"k", "K", "\xE2\x84\xAA"}));  // U+212A
  EXPECT_EQ(matches("a(?#comment)b", "ab"), Texts{"ab"});
  EXPECT_EQ(matches(R"(\v)", "\x0B\x0C"), Texts{"\x0B"});
}

// data/unicode_sets.txt holds what such classes match; here is how they stand among other things.
TEST(Regex, ClassIntersectionsAreOneCharacter) {
  EXPECT_EQ(matches("[a-f&&d-z]+", "abcdefg"), Texts{"def"});
  EXPECT_EQ(matches("x[a-f&&[^bc]]{2}y?", "xaby xady xaa"), (Texts{"xady", "xaa"}));
  EXPECT_EQ(matches("[^a-f&&d-z]+", "abcdefg\n"), (Texts{"abc", "g\n"}));
  EXPECT_EQ(matches(R"([\p{L}&&[^\p{Han}]]+|\p{Han}+)", "ab\xE6\xBC\xA2z"),
            (Texts{"ab", "\xE6\xBC\xA2", "z"}));
  // PCRE2 alone would take the ampersands and the bracket for items.
  EXPECT_EQ(matches("[a&&[^b]]", "&[a]&&]"), Texts{"a"});
  EXPECT_EQ(matches("[a-f&&d-z]", ""), Texts{});
}

TEST(Regex, LiteralsAreTakenAsTheyStand) {
  const auto regex = Regex::literal("a.*");
  ASSERT_TRUE(regex.ok()) << regex.status().to_string();
  RegexMatcher matcher;
  std::vector<TextRange> ranges;
  ASSERT_TRUE(matcher.find_all(*regex, "abc a.* a.*", ranges).ok());
  ASSERT_EQ(ranges.size(), 2u);
  EXPECT_EQ(ranges[0].begin, 4u);
  EXPECT_FALSE(Regex::literal("").ok());
}

TEST(Regex, RefusesByName) {
  struct Case {
    const char* pattern;
    const char* named;
  };
  const Case cases[] = {{"[a[bc]]", "a class inside of a class"},
                        {"[[bc]]", "a class inside of a class"},
                        {"[a[bc]&&d]", "a class inside of a class"},
                        {"[a&&[bc]d]", "a class inside of a class"},
                        {"[a&&d[bc]]", "a class inside of a class"},
                        {"[a&&[b&&c]]", "&& in a nested class"},
                        {"[a&&]", "an empty side"},
                        {"[&&a]", "an empty side"},
                        {"[a&&&&b]", "&&&"},
                        {"[a&&&b]", "&&&"},
                        {"[a-&&b]", "'-' beside"},
                        {"[a&&-b]", "'-' beside"},
                        {"(?i:[a-z&&[^b]])", "&& under (?i)"},
                        {"[a&&[]]", "']' as the first"},
                        {"[a&&[b", "an unclosed class"},
                        {"[a&&[b]", "an unclosed class"},
                        {"[a&&", "an unclosed class"},
                        {"[a&&[[:alpha:]]]", "a POSIX bracket"},
                        {"[[:alpha:]]", "a POSIX bracket"},
                        {"[]a]", "']' as the first"},
                        {R"((a)\1)", R"('\1')"},
                        {R"(\bword\b)", R"('\b')"},
                        {R"(\X)", R"('\X')"},
                        {R"(\R)", R"('\R')"},
                        {R"(\Ka)", R"('\K')"},
                        {R"(\Ga)", R"('\G')"},
                        {"a{2}+", "+ after {n,m}"},
                        {"a{2}?", "{n}?"},
                        {"a**", "a repetition of a repetition"},
                        {"*a", "a repetition of nothing"},
                        {"a(?i)b|c", "an option group that is not at the start"},
                        {"(?i:ss)", "'ss' under (?i)"},
                        {"(?i:\xC3\xA9)", "outside of ASCII under (?i)"},
                        {R"((?i:\p{Lu}))", R"(\p{Lu} under (?i))"},
                        {"(?x:a b)", "the group '(?x"},
                        {"(?~a)", "the group '(?~"},
                        {"(?(1)a|b)", "the group '(?("},
                        {"(*LIMIT_MATCH=1)a", "a verb"},
                        {R"(\pL)", "without {name}"},
                        {R"(\p{Klingon})", "the property 'Klingon'"},
                        {R"(\p{C})", "the property 'C'"},
                        {R"([\P{L}])", "the complement of L inside of a class"},
                        {R"([\W])", "inside of a class"},
                        {R"(\x80)", "this '\\x'"},
                        {R"(\x{110000})", "this '\\x'"},
                        {R"(\ud800)", "this '\\x'"},
                        {"(a", "an unclosed group"},
                        {"a)", "an unopened group"},
                        {"[a", "an unclosed class"},
                        {"a\\", "a backslash at the end"},
                        {"\xFF", "not UTF-8"}};
  for (const Case& c : cases) {
    const auto regex = Regex::compile(c.pattern);
    ASSERT_FALSE(regex.ok()) << c.pattern;
    EXPECT_EQ(regex.status().code(), StatusCode::kUnsupported) << c.pattern;
    EXPECT_NE(regex.status().message().find(c.named), std::string::npos)
        << c.pattern << ": " << regex.status().message();
  }
  EXPECT_EQ(Regex::compile("(?<=a+)b").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Regex::compile(std::string(30'000, 'a')).status().code(), StatusCode::kUnsupported);
}

TEST(Regex, EndlessBacktrackingEndsInAnError) {
  const auto regex = Regex::compile("(?:a+)+$");
  ASSERT_TRUE(regex.ok());
  RegexMatcher matcher;
  std::vector<TextRange> ranges;
  const Status status = matcher.find_all(*regex, std::string(60, 'a') + "b", ranges);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.to_string();
}

TEST(Regex, LongMatchesNeedNoDeepStack) {
  std::string text;
  for (int i = 0; i < 300'000; ++i) text += "ab";
  const Texts found = matches("(?:a|b)+c?", text);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].size(), text.size());
}

std::uint64_t fnv1a(std::uint64_t value, std::uint32_t point) {
  for (int i = 0; i < 4; ++i) value = (value ^ ((point >> (8 * i)) & 0xFF)) * 0x100000001B3u;
  return value;
}

// data/unicode_sets.txt holds what the reference package matches among all 1,112,064 scalar values.
TEST(Regex, SetsEqualTheReferenceOnEveryCodePoint) {
  std::string text;
  std::vector<std::size_t> starts;
  std::vector<std::uint32_t> points;
  for (std::uint32_t point = 0; point < 0x110000; ++point) {
    if (point >= 0xD800 && point < 0xE000) continue;
    starts.push_back(text.size());
    points.push_back(point);
    append_utf8(text, point);
  }
  std::ifstream file(std::string(REPLAYSSM_SOURCE_DIR) + "/tests/model/data/unicode_sets.txt");
  ASSERT_TRUE(file.is_open());
  std::string line;
  int compared = 0;
  RegexMatcher matcher;
  while (std::getline(file, line)) {
    if (line.front() == '#') continue;
    std::istringstream fields(line);
    std::size_t want_count = 0;
    std::string want_hash;
    fields >> want_count >> want_hash;
    const std::string pattern = line.substr(line.find(want_hash) + want_hash.size() + 1);
    const auto regex = Regex::compile(pattern);
    ASSERT_TRUE(regex.ok()) << regex.status().to_string();
    std::vector<TextRange> ranges;
    ASSERT_TRUE(matcher.find_all(*regex, text, ranges).ok());
    std::uint64_t hash = 0xCBF29CE484222325u;
    std::size_t at = 0;
    for (const TextRange& range : ranges) {
      while (starts[at] < range.begin) ++at;
      hash = fnv1a(hash, points[at]);
    }
    EXPECT_EQ(ranges.size(), want_count) << pattern;
    EXPECT_EQ(hash, std::stoull(want_hash, nullptr, 16)) << pattern;
    ++compared;
  }
  EXPECT_GT(compared, 60);
}

}  // namespace
}  // namespace replayssm::model
