// What the tests of the CPU backend's levels share: a test runs once on every level of this build
// and machine. All buffers are vectors of exactly the size that a level may touch, so that the
// address sanitizer sees what lies beyond.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/level.hpp"

namespace replayssm::cpu {

// Half the distance from 1 to the next f32: the largest relative error of a rounding.
inline constexpr double kUnit = 0x1p-24;

// K and V of the tests: those with kernels of their own, one vector and less, half vectors at the
// end, one tile and several, an odd one at the end.
inline constexpr std::int32_t kKeys[] = {8, 24, 32, 64, 80, 128, 256};
inline constexpr std::int32_t kValues[] = {8, 16, 24, 32, 48, 64, 80, 128};

inline std::vector<const Level*> levels() {
  std::vector<const Level*> all = {&scalar_level()};
  for (const Level* level : {avx2_level(), avx512_level()}) {
    if (level != nullptr) all.push_back(level);
  }
  return all;
}

inline std::string level_name(const testing::TestParamInfo<const Level*>& info) {
  return info.param->name;
}

class OnEveryLevel : public testing::TestWithParam<const Level*> {
 protected:
  const Level& level() const { return *GetParam(); }
  std::vector<float> normals(std::int64_t n, float scale = 1.0F) {
    return drawn(n, std::normal_distribution<float>(0.0F, scale));
  }
  // Of decays and time steps.
  std::vector<float> factors(std::int64_t n) {
    return drawn(n, std::uniform_real_distribution<float>(0.3F, 1.0F));
  }
  std::size_t below(std::size_t n) {
    return std::uniform_int_distribution<std::size_t>(0, n - 1)(random_);
  }
  std::mt19937 random_{20261130};

 private:
  template <typename Distribution>
  std::vector<float> drawn(std::int64_t n, Distribution draw) {
    std::vector<float> values(static_cast<std::size_t>(n));
    for (float& value : values) value = draw(random_);
    return values;
  }
};

inline std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

// Equal bits, any NaN equal to any other.
inline bool same(float a, float b) {
  return bits(a) == bits(b) || (std::isnan(a) && std::isnan(b));
}

}  // namespace replayssm::cpu
