// The vector levels of the CPU backend against float64 and against themselves: conversions bit for
// bit with the scalar level, elementary functions in units in the last place, tiled products bit
// for bit.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/simd/levels.hpp"

namespace replayssm::cpu {
namespace {

class LevelTest : public OnEveryLevel {};

TEST_P(LevelTest, EverySixteenBitPatternLoadsAsTheScalarLevelLoadsIt) {
  std::vector<std::uint16_t> patterns(65536);
  for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<std::uint16_t>(i);
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    std::vector<float> expected(65536);
    std::vector<float> got(65536);
    scalar_level().load(patterns.data(), dtype, 65536, expected.data());
    level().load(patterns.data(), dtype, 65536, got.data());
    for (std::size_t i = 0; i < patterns.size(); ++i)
      ASSERT_TRUE(same(expected[i], got[i])) << dtype_name(dtype) << " " << i;
  }
}

TEST_P(LevelTest, StoresRoundToNearestEvenAtEveryBoundary) {
  // Every value that a 16-bit pattern widens to, its neighbours, and the midpoints to the next
  // pattern.
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    std::vector<float> values;
    for (std::uint32_t i = 0; i < 65536; ++i) {
      const auto pattern = static_cast<std::uint16_t>(i);
      const auto above = static_cast<std::uint16_t>(i + 1);
      float x = 0.0F;
      float y = 0.0F;
      scalar_level().load(&pattern, dtype, 1, &x);
      scalar_level().load(&above, dtype, 1, &y);
      const float middle = x + (y - x) * 0.5F;
      for (const float center : {x, middle}) {
        values.insert(values.end(),
                      {center, std::nextafter(center, 1e30F), std::nextafter(center, -1e30F)});
      }
    }
    values.resize(values.size() / 8 * 8);
    const auto n = static_cast<std::int32_t>(values.size());
    std::vector<std::uint16_t> expected(values.size());
    std::vector<std::uint16_t> got(values.size());
    scalar_level().store(values.data(), n, expected.data(), dtype);
    level().store(values.data(), n, got.data(), dtype);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(values[i])) {
        float back = 0.0F;
        scalar_level().load(&got[i], dtype, 1, &back);
        ASSERT_TRUE(std::isnan(back)) << i;
      } else {
        ASSERT_EQ(expected[i], got[i]) << dtype_name(dtype) << " value " << values[i];
      }
    }
  }
}

TEST_P(LevelTest, ShortRowsWriteNothingBeyondTheirEnd) {
  for (const std::int32_t n : {1, 3, 8, 24, 33}) {
    const std::vector<float> values = normals(n);
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      std::vector<unsigned char> bytes(static_cast<std::size_t>(n) * dtype_bytes(dtype) + 64, 0xA5);
      level().store(values.data(), n, bytes.data(), dtype);
      for (std::size_t i = static_cast<std::size_t>(n) * dtype_bytes(dtype); i < bytes.size();
           ++i) {
        ASSERT_EQ(bytes[i], 0xA5) << n << " " << dtype_name(dtype);
      }
      std::vector<float> back(static_cast<std::size_t>(n) + 16, -7.0F);
      level().load(bytes.data(), dtype, n, back.data());
      for (std::size_t i = static_cast<std::size_t>(n); i < back.size(); ++i)
        ASSERT_EQ(back[i], -7.0F);
    }
  }
}

// Distance in units of the last place of the exact value.
double ulps(float got, double exact) {
  const double magnitude = std::max(std::abs(exact), 0x1p-126);
  const double unit = std::ldexp(1.0, std::ilogb(magnitude) - 23);
  return std::abs(static_cast<double>(got) - exact) / unit;
}

TEST_P(LevelTest, DecaysAreExactToAFewUnits) {
  std::vector<float> gates;
  for (float x = -120.0F; x <= 40.0F; x += 0.0137F) gates.push_back(x);
  gates.resize(gates.size() / 8 * 8);
  const auto n = static_cast<std::int32_t>(gates.size());
  std::vector<float> got(gates.size());
  GateRun run;
  run.kind = GateKind::kLogDecay;
  level().decay(run, gates.data(), n, got.data());
  for (std::size_t i = 0; i < gates.size(); ++i) {
    if (gates[i] > 0.0F) continue;  // log decays are at most 0
    ASSERT_LE(ulps(got[i], std::exp(static_cast<double>(gates[i]))), 2.5) << "exp at " << gates[i];
  }
  // The exponent's rounding is amplified by |g| on its way through exp: allow that, computed.
  run.kind = GateKind::kSoftplus;
  run.scale = -0.75F;
  level().decay(run, gates.data(), n, got.data());
  for (std::size_t i = 0; i < gates.size(); ++i) {
    const double g = -0.75 * std::log1p(std::exp(static_cast<double>(gates[i])));
    ASSERT_LE(ulps(got[i], std::exp(g)), 4.0 + 8.0 * std::abs(g))
        << "softplus gate at " << gates[i];
  }
  run.kind = GateKind::kBounded;
  run.lower_bound = -5.0F;
  run.scale = 1.25F;
  level().decay(run, gates.data(), n, got.data());
  for (std::size_t i = 0; i < gates.size(); ++i) {
    const double g = -5.0 / (1.0 + std::exp(-1.25 * static_cast<double>(gates[i])));
    ASSERT_LE(ulps(got[i], std::exp(g)), 4.0 + 8.0 * std::abs(g)) << "bounded gate at " << gates[i];
  }
}

TEST_P(LevelTest, DecaysOfSpecialGates) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> gates = {-inf,   inf,   0.0F,   -0.0F, std::numeric_limits<float>::quiet_NaN(),
                              -1e30F, 1e30F, -200.0F};
  std::vector<float> got(8);
  GateRun run;
  run.kind = GateKind::kLogDecay;
  level().decay(run, gates.data(), 8, got.data());
  EXPECT_EQ(got[0], 0.0F);
  EXPECT_EQ(got[2], 1.0F);
  EXPECT_EQ(got[3], 1.0F);
  EXPECT_TRUE(std::isnan(got[4]));
  EXPECT_EQ(got[5], 0.0F);
  EXPECT_EQ(got[7], 0.0F);
  run.kind = GateKind::kSoftplus;
  run.scale = -1.0F;
  level().decay(run, gates.data(), 8, got.data());
  EXPECT_EQ(got[0], 1.0F);  // softplus(-inf) = 0
  EXPECT_EQ(got[1], 0.0F);
  EXPECT_TRUE(std::isnan(got[4]));
  run.kind = GateKind::kBounded;
  run.lower_bound = -5.0F;
  level().decay(run, gates.data(), 8, got.data());
  EXPECT_TRUE(std::isnan(got[4]));
}

TEST_P(LevelTest, SiluIsExactToAFewUnits) {
  std::vector<float> values;
  for (float x = -80.0F; x <= 80.0F; x += 0.0107F) values.push_back(x);
  std::vector<float> got = values;
  level().silu(got.data(),
               static_cast<std::int32_t>(got.size()));  // not a multiple of 8 on purpose
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double x = values[i];
    ASSERT_LE(ulps(got[i], x / (1.0 + std::exp(-x))), 6.0) << x;
  }
}

TEST_P(LevelTest, TiledProductsEqualSingleOnesBitForBit) {
  for (const std::int32_t keys : kKeys) {
    for (const std::int32_t rows : {1, 3, 4, 7, 8, 16, 17, 31, 64, 128}) {
      for (const std::int32_t count : {1, 2, 3, 4, 5, 8, 13, 16}) {
        const auto matrix = normals(std::int64_t{rows} * keys);
        const auto vectors = normals(std::int64_t{count} * keys);
        std::vector<float> sums(static_cast<std::size_t>(rows * count), -1.0F);
        level().dot_rows(matrix.data(), rows, keys, vectors.data(), count, sums.data(), {});
        // What is fetched meanwhile changes nothing.
        const std::vector<const void*> lines(5, vectors.data());
        std::vector<float> again(sums.size(), -2.0F);
        level().dot_rows(matrix.data(), rows, keys, vectors.data(), count, again.data(),
                         {matrix.data(), lines.data(), 5});
        ASSERT_EQ(sums, again);
        for (std::int32_t i = 0; i < count; ++i) {
          for (std::int32_t r = 0; r < rows; ++r) {
            const float* a = matrix.data() + std::int64_t{r} * keys;
            const float* b = vectors.data() + std::int64_t{i} * keys;
            const float sum = sums[static_cast<std::size_t>(i * rows + r)];
            ASSERT_EQ(bits(sum), bits(level().dot(a, b, keys)));
            double exact = 0.0;
            double norm = 0.0;
            for (std::int32_t k = 0; k < keys; ++k) {
              exact += static_cast<double>(a[k]) * b[k];
              norm += std::abs(static_cast<double>(a[k]) * b[k]);
            }
            ASSERT_LE(std::abs(sum - exact), (keys + 2) * kUnit * norm)
                << keys << " " << rows << " " << count;
          }
        }
      }
    }
  }
}

TEST_P(LevelTest, SumsOfChosenRows) {
  constexpr std::int32_t kRows = 17;
  for (const std::int32_t width : kKeys) {
    for (const std::int32_t count : {0, 1, 3, 4, 5, 16}) {
      const auto matrix = normals(std::int64_t{kRows} * width);
      const auto weights = normals(count);
      std::vector<std::int32_t> index;
      for (std::int32_t j = 0; j < count; ++j)
        index.push_back(static_cast<std::int32_t>(below(kRows)));
      const auto before = normals(width);
      auto out = before;
      level().combine(matrix.data(), width, index.data(), weights.data(), count, out.data());
      for (std::size_t k = 0; k < out.size(); ++k) {
        double exact = before[k];
        double norm = std::abs(exact);
        for (std::size_t j = 0; j < index.size(); ++j) {
          const double x =
              matrix[static_cast<std::size_t>(index[j]) * static_cast<std::size_t>(width) + k];
          exact += weights[j] * x;
          norm += std::abs(weights[j] * x);
        }
        ASSERT_LE(std::abs(out[k] - exact), (count + 2) * kUnit * norm) << width << " " << count;
      }
    }
  }
}

TEST_P(LevelTest, RowsElementByElement) {
  for (std::int32_t n = 1; n <= 80; ++n) {
    const auto x = normals(n);
    const auto w = normals(n);
    const auto before = normals(n);
    auto y = before;
    level().multiply_add(y.data(), w.data(), x.data(), n);  // of any length
    for (std::size_t i = 0; i < y.size(); ++i) {
      const double product = double{w[i]} * x[i];
      ASSERT_LE(std::abs(y[i] - (before[i] + product)),
                kUnit * (2.01 * std::abs(product) + 1.01 * std::abs(before[i])))
          << n << " " << i;
    }
    if (n % 8 != 0) continue;
    auto scaled = before;
    level().scale(scaled.data(), 0.7F, n);
    auto multiplied = before;
    level().multiply(multiplied.data(), x.data(), n);
    for (std::size_t i = 0; i < y.size(); ++i) {
      ASSERT_EQ(bits(scaled[i]), bits(before[i] * 0.7F)) << n << " " << i;
      ASSERT_EQ(bits(multiplied[i]), bits(before[i] * x[i])) << n << " " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, LevelTest, testing::ValuesIn(levels()), level_name);

}  // namespace
}  // namespace replayssm::cpu
