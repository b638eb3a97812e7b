// Rounding to dtypes against the numbers themselves: every bf16 and f16 value, and the points
// halfway between.
#include "oracle/rounding.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tests/oracle/random_layers.hpp"

namespace replayssm::oracle::testing {
namespace {

// The value of a bit pattern, from the definition of the formats.
double value_of(std::uint32_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const auto exponent = static_cast<int>((bits >> fraction_bits) & ((1U << exponent_bits) - 1));
  const double fraction =
      std::scalbn(static_cast<double>(bits & ((1U << fraction_bits) - 1)), -fraction_bits);
  const double size = exponent == 0 ? std::scalbn(fraction, 1 - bias)
                                    : std::scalbn(1.0 + fraction, exponent - bias);
  return (bits >> (exponent_bits + fraction_bits)) != 0 ? -size : size;
}

void check_all(DType dtype, int exponent_bits, int fraction_bits) {
  const std::uint32_t infinite = ((1U << exponent_bits) - 1) << fraction_bits;
  for (std::uint32_t bits = 0; bits < infinite; ++bits) {
    const double here = value_of(bits, exponent_bits, fraction_bits);
    ASSERT_EQ(round_to(here, dtype), here) << bits;
    ASSERT_EQ(round_to(-here, dtype), -here) << bits;
    const bool last = bits + 1 == infinite;
    // Beyond the largest finite number the next one would be 2^(max exponent + 1), and it rounds to
    // infinity.
    const double next = value_of(bits + 1, exponent_bits, fraction_bits);
    const double middle = 0.5 * (here + next);
    const double above = last ? std::numeric_limits<double>::infinity() : next;
    ASSERT_EQ(round_to(middle, dtype), bits % 2 == 0 ? here : above) << bits;
    ASSERT_EQ(round_to(std::nextafter(middle, 0.0), dtype), here) << bits;
    ASSERT_EQ(round_to(std::nextafter(middle, next), dtype), above) << bits;
    const double spacing = next - here;
    const double allowed = std::max(unit_roundoff(dtype) * here, underflow_error(dtype));
    ASSERT_LE(0.5 * spacing, allowed * (1.0 + 1e-12)) << bits;
  }
}

TEST(Rounding, EveryBf16) { check_all(DType::kBF16, 8, 7); }
TEST(Rounding, EveryF16) { check_all(DType::kF16, 5, 10); }

TEST(Rounding, F32IsTheCast) {
  Random random(1);
  for (int i = 0; i < 200000; ++i) {
    const auto bits = random.bits();
    const double x = std::bit_cast<double>(bits);
    const double scaled =
        std::isfinite(x) ? random.normal() * std::scalbn(1.0, random.integer(-155, 130)) : x;
    if (std::isnan(scaled)) continue;
    ASSERT_EQ(round_to(scaled, DType::kF32), static_cast<double>(static_cast<float>(scaled)))
        << scaled;
  }
  EXPECT_TRUE(std::isnan(round_to(std::nan(""), DType::kF32)));
  EXPECT_TRUE(std::isinf(round_to(1e39, DType::kF32)));
  EXPECT_EQ(unit_roundoff(DType::kF32), 0x1.0p-24);
  EXPECT_EQ(unit_roundoff(DType::kBF16), 0x1.0p-8);
  EXPECT_EQ(unit_roundoff(DType::kF16), 0x1.0p-11);
}

}  // namespace
}  // namespace replayssm::oracle::testing
