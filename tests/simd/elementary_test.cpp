// The elementary functions of the vector levels: how far the fitted sums are from the functions, in
// long double, where no rounding hides it; what f32 makes of them; and every kind of boundary on
// every level.
#include "backend/cpu/simd/elementary.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/simd/levels.hpp"

namespace replayssm::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// One lane with the operations that the functions need, of f32 (what a level computes) or of long
// double (what it would without roundings; the coefficients stay f32).
template <typename Real>
struct Lane {
  Real x;
  static Lane zero() { return {0}; }
  static Lane all(float x) { return {x}; }
  friend Lane operator+(Lane a, Lane b) { return {a.x + b.x}; }
  friend Lane operator-(Lane a, Lane b) { return {a.x - b.x}; }
  friend Lane operator*(Lane a, Lane b) { return {a.x * b.x}; }
  friend Lane operator/(Lane a, Lane b) { return {a.x / b.x}; }
  static Lane fma(Lane a, Lane b, Lane c) { return {std::fma(a.x, b.x, c.x)}; }
  static Lane max(Lane a, Lane b) { return {a.x > b.x ? a.x : b.x}; }
  static Lane min(Lane a, Lane b) { return {a.x < b.x ? a.x : b.x}; }
  static Lane round(Lane a) { return {std::nearbyint(a.x)}; }
  static Lane negate(Lane a) { return {-a.x}; }
  static Lane absolute(Lane a) { return {std::fabs(a.x)}; }
  static Lane scale_by_power(Lane a, Lane n) {
    return {std::isnan(n.x) ? a.x : std::ldexp(a.x, static_cast<int>(n.x))};
  }
  static Lane select_less(Lane a, Lane b, Lane x, Lane y) { return a.x < b.x ? x : y; }
};
using Exact = Lane<long double>;
using Rounded = Lane<float>;

long double relative(long double got, long double wanted) {
  return std::fabs(got - wanted) / std::fabs(wanted);
}

// Calls look(x) for x evenly from first to last.
template <typename Look>
void sweep(long double first, long double last, int steps, Look look) {
  for (int i = 0; i <= steps; ++i) look(first + (last - first) * i / steps);
}

// A fitted sum comes this near to its bound: were it much better, the test would not look at it.
constexpr long double kNear = 0.85L;

TEST(Elementary, PowersOfTwoAreFittedWithinTheirBound) {
  constexpr long double kBound = 3e-9L;
  long double worst = 0.0L;
  const auto look = [&](long double t) {
    worst = std::max(worst, relative(vector_exp2(Exact{t}).x, std::exp2(t)));
  };
  sweep(-0.5L, 0.5L, 1 << 18, look);
  EXPECT_LE(worst, kBound);
  EXPECT_GE(worst, kBound * kNear);
  // Over the whole range, at the seams as well: there n changes.
  sweep(-200.0L, 127.0L, 85837, look);
  for (int n = -200; n <= 126; ++n) {
    for (const long double t : {0.0L, 0.4999999999L, 0.5L, 0.5000000001L}) look(n + t);
  }
  look(127.0L);
  EXPECT_LE(worst, kBound);
}

TEST(Elementary, LogarithmsAreFittedWithinTheirBound) {
  constexpr long double kBound = 6e-9L;
  long double worst = 0.0L;
  const auto look = [&](long double y) {
    worst = std::max(worst, relative(vector_log1p(Exact{y}).x, std::log1p(y)));
  };
  sweep(0x1p-18L, 1.0L, 1 << 18, look);
  EXPECT_GE(worst, kBound * kNear);
  sweep(-149.0L, 0.0L, 14900, [&](long double power) { look(std::exp2(power)); });
  EXPECT_LE(worst, kBound);
  EXPECT_EQ(vector_log1p(Exact{0.0L}).x, 0.0L);
}

TEST(Elementary, ExponentialsBreakOffWithinTheirBound) {
  // Where r is largest the next term alone is r^8 / 8! e^r = 7.3e-9; the coefficients are f32.
  constexpr long double kBound = 8e-9L;
  long double worst = 0.0L;
  const auto look = [&](long double x) {
    worst = std::max(worst, relative(vector_exp(Exact{x}).x, std::exp(x)));
  };
  sweep(-104.0L, 89.0L, 88129, look);
  EXPECT_LE(worst, kBound);
  EXPECT_GE(worst, kBound * kNear);
}

// All f32 numbers evenly by their bits, both signs: from the smallest subnormal to infinity.
std::vector<float> numbers(std::uint32_t step) {
  std::vector<float> all;
  for (std::uint32_t i = 0; i < 0x7F800000U; i += step) {
    all.push_back(std::bit_cast<float>(i));
    all.push_back(-all.back());
  }
  return all;
}

TEST(Elementary, SoftplusIsWithinItsRoundings) {
  // y = e^-|x|: of the exponent the factor and a rounding, then two of the sum; of log(1 + y) 1 of
  // the last operation and 3 of what that adds to y, 0.45 of the whole at most; one of the sum.
  const long double factor = std::fabs(1.44269504F * std::log(2.0L) - 1.0L);
  double worst = 0.0;
  double twin = 0.0;
  for (const float x : numbers(9973)) {
    const long double y = std::exp(-std::fabs(static_cast<long double>(x)));
    const long double log = std::log1p(y);
    const long double wanted = std::max(x, 0.0F) + log;
    const float got = vector_softplus(Rounded{x}).x;
    const long double allowed = y * (std::fabs(x) * (factor + kUnit) + 2.0L * kUnit + 3e-9L) +
                                log * (2.4L * kUnit + 6e-9L) + wanted * kUnit + 0x1p-148L;
    worst = std::max(worst, static_cast<double>(std::fabs(got - wanted) / allowed));
    ASSERT_LE(worst, 1.0) << x;
    twin = std::max(twin, static_cast<double>(std::fabs(got * 1.000001L - wanted) / allowed));
  }
  EXPECT_GT(worst, 0.2);
  EXPECT_GT(twin, 1.0);
}

TEST(Elementary, Boundaries) {
  const auto exp2 = [](float t) { return vector_exp2(Rounded{t}).x; };
  for (int n = -149; n <= 127; ++n) ASSERT_EQ(exp2(static_cast<float>(n)), std::ldexp(1.0F, n));
  EXPECT_EQ(exp2(0.0F), 1.0F);
  EXPECT_EQ(exp2(-0.0F), 1.0F);
  EXPECT_EQ(exp2(0x1p-149F), 1.0F);
  EXPECT_EQ(exp2(-151.0F), 0.0F);
  EXPECT_EQ(exp2(-kInf), 0.0F);
  EXPECT_EQ(exp2(kInf), 0x1p127F);  // the end of its range
  EXPECT_TRUE(std::isnan(exp2(kNan)));
  const auto softplus = [](float x) { return vector_softplus(Rounded{x}).x; };
  EXPECT_EQ(softplus(kInf), kInf);
  EXPECT_EQ(softplus(-kInf), 0.0F);
  EXPECT_EQ(softplus(std::numeric_limits<float>::max()), std::numeric_limits<float>::max());
  EXPECT_EQ(softplus(-std::numeric_limits<float>::max()), 0.0F);
  EXPECT_EQ(softplus(0.0F), softplus(-0.0F));
  EXPECT_EQ(softplus(0x1p-149F), softplus(0.0F));
  EXPECT_TRUE(std::isnan(softplus(kNan)));
  const auto sigmoid = [](float x) { return vector_sigmoid(Rounded{x}).x; };
  EXPECT_EQ(sigmoid(kInf), 1.0F);
  EXPECT_EQ(sigmoid(-kInf), 0.0F);
  EXPECT_EQ(sigmoid(0.0F), 0.5F);
  EXPECT_EQ(sigmoid(-0.0F), 0.5F);
  EXPECT_TRUE(std::isnan(sigmoid(kNan)));
}

class ElementaryTest : public OnEveryLevel {
 protected:
  std::vector<float> decays(const GateRun& run, std::vector<float> gates) const {
    gates.resize((gates.size() + 7) / 8 * 8);
    std::vector<float> got(gates.size());
    level().decay(run, gates.data(), static_cast<std::int32_t>(gates.size()), got.data());
    return got;
  }
};

// Units in the last place of the exact value.
double ulps(float got, long double exact) {
  if (std::isinf(got) || std::isinf(static_cast<float>(exact))) {
    // One of them may round to infinity where the other is the largest number.
    const float other = std::isinf(got) ? static_cast<float>(exact) : got;
    return other >= std::nextafter(std::numeric_limits<float>::max(), 0.0F) ? 0.0 : kInf;
  }
  const long double magnitude = std::max(std::fabs(exact), 0x1p-126L);
  return static_cast<double>(std::fabs(got - exact) / std::ldexp(1.0L, std::ilogb(magnitude) - 23));
}

TEST_P(ElementaryTest, ExponentialsOfAllNumbers) {
  GateRun run;
  run.kind = GateKind::kLogDecay;
  std::vector<float> gates = numbers(20011);
  // Around the ends: where e^x overflows, turns subnormal, and is half the smallest number.
  for (const float edge : {88.722839F, 89.0F, -87.336548F, -103.27893F, -103.97208F, -104.0F}) {
    float below = edge;
    float above = edge;
    for (int i = 0; i < 40; ++i) {
      gates.insert(gates.end(), {below, above});
      below = std::nextafter(below, -kInf);
      above = std::nextafter(above, kInf);
    }
  }
  const std::vector<float> got = decays(run, gates);
  for (std::size_t i = 0; i < gates.size(); ++i) {
    const long double exact = std::exp(static_cast<long double>(gates[i]));
    ASSERT_LE(ulps(got[i], exact), 2.5) << gates[i];
  }
}

TEST_P(ElementaryTest, GatesOfAllNumbers) {
  const std::vector<float> gates = numbers(20011);
  GateRun run;
  run.kind = GateKind::kSoftplus;
  for (const float scale : {-0.001F, -0.75F, -16.0F}) {
    run.scale = scale;
    const std::vector<float> got = decays(run, gates);
    for (std::size_t i = 0; i < gates.size(); ++i) {
      const long double x = gates[i];
      const long double g = scale * (std::max(x, 0.0L) + std::log1p(std::exp(-std::fabs(x))));
      // A relative error of g is multiplied by g; below -200 all is 0.
      const long double limited = std::min(std::fabs(g), 200.0L);
      ASSERT_LE(ulps(got[i], std::exp(g)), 4.0L + 8.0L * limited) << scale << " " << x;
    }
  }
  run.kind = GateKind::kBounded;
  run.lower_bound = -5.0F;
  for (const float scale : {0.01F, 1.25F, 8.0F}) {
    run.scale = scale;
    const std::vector<float> got = decays(run, gates);
    for (std::size_t i = 0; i < gates.size(); ++i) {
      // The product is an f32, and rounds to infinity where it is too large for one.
      const long double x = scale * gates[i];
      const long double g = -5.0L / (1.0L + std::exp(-x));
      ASSERT_LE(ulps(got[i], std::exp(g)), 4.0L + 8.0L * std::fabs(g)) << scale << " " << x;
    }
  }
}

TEST_P(ElementaryTest, SiluOfAllNumbers) {
  const std::vector<float> values = numbers(20011);
  std::vector<float> got = values;
  level().silu(got.data(), static_cast<std::int32_t>(got.size()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const long double x = values[i];
    const long double exact = x / (1.0L + std::exp(-x));
    // Where e^-x is too large for f32 the sigmoid is 0.
    if (x < -88.0L) {
      ASSERT_LE(std::fabs(got[i] - exact), std::fabs(exact)) << x;
    } else {
      ASSERT_LE(ulps(got[i], exact), 6.0) << x;
    }
  }
  std::vector<float> special = {kInf, kNan, 0.0F, -0.0F, 0x1p-149F};
  level().silu(special.data(), 5);
  EXPECT_EQ(special[0], kInf);
  EXPECT_TRUE(std::isnan(special[1]));
  EXPECT_EQ(bits(special[2]), bits(0.0F));
  EXPECT_EQ(bits(special[3]), bits(-0.0F));
  EXPECT_LE(special[4], 0x1p-149F);
}

INSTANTIATE_TEST_SUITE_P(All, ElementaryTest, testing::ValuesIn(levels()), level_name);

}  // namespace
}  // namespace replayssm::cpu
