// The comparison must reject every way of being wrong that a softer one has let through.
#include "oracle/compare.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace replayssm::oracle::testing {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Values = std::vector<double>;

// So that a braced list is a vector of doubles.
Comparison check(const char* name, const Values& got, const Values& want, std::size_t columns,
                 const Values& tolerance) {
  return compare(name, got, want, columns, tolerance);
}

TEST(Compare, AcceptsWhatIsWithinItsTolerance) {
  const std::vector<double> want{1, 2, 3, kNaN, kInfinity, -kInfinity};
  const std::vector<double> got{1.1, 1.9, 3, -kNaN, kInfinity, -kInfinity};
  const Comparison result = check("x", got, want, 3, {0.11});
  EXPECT_TRUE(result) << result.text;
  EXPECT_NEAR(result.worst_ratio, 0.1 / 0.11, 1e-6);
}

TEST(Compare, NamesTheWorstElement) {
  const std::vector<double> want{1, 2, 3, 4, 5, 6};
  const std::vector<double> got{1, 2.1, 3, 4, 5, 6.5};
  const Comparison result = check("state", got, want, 3, {0.01});
  EXPECT_FALSE(result);
  EXPECT_EQ(result.row, 1U);
  EXPECT_EQ(result.column, 2U);
  EXPECT_NE(result.text.find("state [row 1, column 2]"), std::string::npos) << result.text;
  EXPECT_NE(result.text.find("failed 2 of 6 elements in 2 of 2 rows"), std::string::npos)
      << result.text;
}

TEST(Compare, MasksComeFirst) {
  const std::vector<double> want{1, 2, 3};
  EXPECT_FALSE(check("nan for a number", {1, kNaN, 3}, want, 3, {1e300}));
  EXPECT_FALSE(check("a number for nan", want, {1, kNaN, 3}, 3, {1e300}));
  EXPECT_FALSE(check("infinite for a number", {1, kInfinity, 3}, want, 3, {1e300}));
  EXPECT_FALSE(
      check("infinity of the wrong sign", {1, -kInfinity, 3}, {1, kInfinity, 3}, 3, {1e300}));
  EXPECT_FALSE(check("nan for infinite", {1, kNaN, 3}, {1, kInfinity, 3}, 3, {1e300}));
}

TEST(Compare, EveryElementHasItsTolerance) {
  const std::vector<double> want{0, 0, 1000, 0};
  EXPECT_FALSE(check("a sign lost", {0, 0, -1000, 0}, want, 2, {1.0}));
  EXPECT_FALSE(check("one of many", {0, 0.02, 1000, 0}, want, 2, {0.01, 0.01, 10, 0.01}));
  EXPECT_TRUE(check("an element each", {0, 0.005, 1009, 0}, want, 2, {0.01, 0.01, 10, 0.01}));
  EXPECT_FALSE(check("a row each", {0, 0.005, 1009, 0}, want, 2, {0.001, 10}));
  EXPECT_TRUE(check("a row each", {0, 0.0005, 1009, 0}, want, 2, {0.001, 10}));
  EXPECT_FALSE(check("zero tolerance", {0, 1e-300, 1000, 0}, want, 2, {0.0}));
  EXPECT_TRUE(check("zero tolerance", {0, -0.0, 1000, 0}, want, 2, {0.0}));
}

TEST(Compare, FourZeroedRowsOfManyAreSeen) {
  std::vector<double> want(4096 * 4, 1.0);
  std::vector<double> got = want;
  for (int i = 0; i < 16; ++i) got[4000 + i] = 0.0;
  const Comparison result = check("rows", got, want, 4, {1e-3});
  EXPECT_FALSE(result);
  EXPECT_EQ(result.row, 1000U);
}

TEST(Compare, RefusesToCompareNothing) {
  const std::vector<double> x{1, 2, 3, 4};
  EXPECT_FALSE(check("empty", std::vector<double>{}, {}, 1, {1.0}));
  EXPECT_FALSE(check("no columns", {1, 2}, {1, 2}, 0, {1.0}));
  EXPECT_FALSE(check("sizes", {1, 2, 3}, {1, 2}, 1, {1.0}));
  EXPECT_FALSE(check("ragged", {1, 2, 3}, {1, 2, 3}, 2, {1.0}));
  EXPECT_FALSE(check("itself", x, x, 2, {1.0}));
  EXPECT_FALSE(compare("overlapping", x.data(), x.data() + 1, 3, 3, {10.0}));
  EXPECT_FALSE(check("tolerances", {1, 2, 3, 4}, x, 2, {1.0, 1.0, 1.0}));
  EXPECT_FALSE(check("nan tolerance", {1, 2, 3, 4}, x, 2, {kNaN}));
  EXPECT_FALSE(check("infinite tolerance", {1, 2, 3, 4}, x, 2, {kInfinity}));
  EXPECT_FALSE(check("negative tolerance", {1, 2, 3, 4}, x, 2, {-1.0}));
}

TEST(CompareBits, SeesWhatNumbersHide) {
  const std::vector<float> want{1.0F, 0.0F, std::nanf("1")};
  EXPECT_TRUE(compare_bits("equal", {1.0F, 0.0F, std::nanf("1")}, want, 3));
  EXPECT_FALSE(compare_bits("sign of zero", {1.0F, -0.0F, std::nanf("1")}, want, 3));
  EXPECT_FALSE(compare_bits("payload", {1.0F, 0.0F, std::nanf("2")}, want, 3));
  const Comparison one =
      compare_bits("last bit", {std::nextafter(1.0F, 2.0F), 0.0F, std::nanf("1")}, want, 3);
  EXPECT_FALSE(one);
  EXPECT_NE(one.text.find("got 0x3f800001, want 0x3f800000"), std::string::npos) << one.text;
  EXPECT_FALSE(compare_bits("itself", want, want, 3));
  EXPECT_FALSE(compare_bits("sizes", {1.0F}, want, 1));
  EXPECT_FALSE(compare_bits("empty", std::vector<float>{}, std::vector<float>{}, 1));
}

TEST(CompareGuard, SeesOneByte) {
  std::vector<unsigned char> memory(64, 0xA5);
  EXPECT_TRUE(compare_guard("guard", memory.data(), memory.size(), 0xA5));
  memory[63] = 0xA4;
  EXPECT_FALSE(compare_guard("guard", memory.data(), memory.size(), 0xA5));
  EXPECT_EQ(compare_guard("guard", memory.data(), memory.size(), 0xA5).column, 63U);
  EXPECT_FALSE(compare_guard("guard", memory.data(), 0, 0xA5));
}

}  // namespace
}  // namespace replayssm::oracle::testing
