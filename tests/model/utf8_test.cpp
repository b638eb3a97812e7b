// UTF-8: well-formed text passes, everything else is found, repaired or shown safely.
#include "model/utf8.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace replayssm::model {
namespace {

TEST(Utf8, EveryScalarValueRoundTrips) {
  for (std::uint32_t point = 0; point < 0x110000; ++point) {
    if (point >= 0xD800 && point < 0xE000) continue;
    std::string text;
    append_utf8(text, point);
    const Utf8Step step = utf8_step(text);
    ASSERT_EQ(step.kind, Utf8Kind::kValid) << point;
    ASSERT_EQ(step.code_point, point);
    ASSERT_EQ(step.length, text.size());
    for (std::size_t cut = 1; cut < text.size(); ++cut) {
      const Utf8Step partial = utf8_step(std::string_view(text).substr(0, cut));
      ASSERT_EQ(partial.kind, Utf8Kind::kIncomplete) << point;
      ASSERT_EQ(partial.length, cut);
    }
  }
}

TEST(Utf8, FindsTheFirstFault) {
  EXPECT_EQ(find_invalid_utf8("plain \xC3\xA9"), std::string_view::npos);
  EXPECT_EQ(find_invalid_utf8("ab\x80"), 2u);            // continuation alone
  EXPECT_EQ(find_invalid_utf8("\xC0\xAF"), 0u);          // overlong
  EXPECT_EQ(find_invalid_utf8("\xE0\x9F\xBF"), 0u);      // overlong
  EXPECT_EQ(find_invalid_utf8("a\xED\xA0\x80"), 1u);     // surrogate
  EXPECT_EQ(find_invalid_utf8("\xF4\x90\x80\x80"), 0u);  // above U+10FFFF
  EXPECT_EQ(find_invalid_utf8("a\xE2\x82"), 1u);         // cut short
}

// Unicode 15, table 3-8: one U+FFFD for each maximal part.
TEST(Utf8, RepairsByMaximalParts) {
  std::string out;
  append_lossy_utf8(out, "\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64");
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(out, "a" + r + r + r + "b" + r + "c" + r + r + "d");
}

TEST(Utf8, LossyOutputIsAlwaysWellFormed) {
  std::mt19937 random(7);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes;
    for (std::uint32_t i = random() % 12; i > 0; --i) {
      bytes.push_back(static_cast<char>(random() % 3 == 0 ? random() % 128 : 128 + random() % 128));
    }
    std::string out;
    append_lossy_utf8(out, bytes);
    ASSERT_EQ(find_invalid_utf8(out), std::string_view::npos);
    const bool well_formed = find_invalid_utf8(bytes) == std::string_view::npos;
    ASSERT_EQ(out == bytes, well_formed);
  }
}

TEST(Utf8, QuotedTextIsOneShortLine) {
  EXPECT_EQ(in_quotes("a\nb\x01\xFF\xC3\xA9"), "'a\\x0ab\\x01\\xff\xC3\xA9'");
  EXPECT_EQ(in_quotes("\xE2\x80\xA8"), "'\\xe2\\x80\\xa8'");  // U+2028 separates lines
  EXPECT_EQ(path_in_quotes(std::string(4096, 'x')), "'" + std::string(4096, 'x') + "'");
  EXPECT_EQ(path_in_quotes(std::string(4097, 'x')), "'" + std::string(4096, 'x') + "...'");
  const std::string shown = in_quotes(std::string(1000, 'x'));
  EXPECT_EQ(shown, "'" + std::string(80, 'x') + "...'");
}

}  // namespace
}  // namespace replayssm::model
