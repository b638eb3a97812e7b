// Turning by positions against complex multiplication in double, and what is left alone.
#include "model/layers/rotary.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <vector>

namespace replayssm::model {
namespace {

TEST(Rotary, TurnsPairsByTheirAngles) {
  constexpr std::int64_t kDims = 10;
  constexpr std::int64_t kHead = 14;
  constexpr double kTheta = 1e4;
  const std::vector<std::int64_t> positions = {0, 1, 77, 262143};
  WorkerPool pool(2);
  Rotary rotary(kDims, kTheta);
  rotary.prepare(positions, pool);
  for (std::size_t t = 0; t < positions.size(); ++t) {
    std::vector<float> head;
    for (std::int64_t i = 0; i < kHead; ++i)
      head.push_back(std::sin(static_cast<float>(3 * i + 1)));
    const std::vector<float> before = head;
    rotary.turn(static_cast<std::int64_t>(t), head.data());
    for (std::size_t i = 0; i < kDims / 2; ++i) {
      const double angle = static_cast<double>(positions[t]) *
                           std::pow(kTheta, -2.0 * static_cast<double>(i) / kDims);
      const std::complex<double> turned =
          std::complex<double>(before[i], before[i + kDims / 2]) * std::polar(1.0, angle);
      // a c - b s with |a|, |b| <= 1: c and s, the two products and the sum are each rounded by
      // u = 2^-24, in all 3 u (|a c| + |b s|) <= 3 u sqrt(a^2 + b^2) <= 3 sqrt(2) u = 4.243 u. The
      // rest of 4.25 u is for terms in u^2 and for angles in double.
      EXPECT_NEAR(head[i], turned.real(), 4.25 * 0x1.0p-24);
      EXPECT_NEAR(head[i + kDims / 2], turned.imag(), 4.25 * 0x1.0p-24);
    }
    for (std::size_t i = kDims; i < kHead; ++i) EXPECT_EQ(head[i], before[i]);
    if (positions[t] == 0) {
      EXPECT_EQ(head, before);
    } else {
      EXPECT_NE(head[0], before[0]);
    }
  }
}

TEST(Rotary, NothingTurnsWithoutDims) {
  WorkerPool pool(1);
  Rotary rotary(0, 0.0);
  const std::vector<std::int64_t> positions = {5};
  rotary.prepare(positions, pool);
  std::vector<float> head = {1.0F, 2.0F};
  rotary.turn(0, head.data());
  EXPECT_EQ(head, (std::vector<float>{1.0F, 2.0F}));
}

}  // namespace
}  // namespace replayssm::model
