// What the replay step of gdn and kda asks of a level: the walk along a path and the update and
// output of a token, against float64.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/simd/levels.hpp"

namespace replayssm::cpu {
namespace {

constexpr float kReadWeight = 0.7F;
constexpr float kOwnWeight = -0.3F;

// A token whose u and o are asked for, with what lies on its path.
struct Token {
  std::int32_t values;
  DType dtype;
  std::vector<std::int32_t> path;
  std::vector<float> updates, to_key, to_query, read_key, read_query, value;
};

// What a level makes of it; behind `stored` lies what it must leave alone.
struct Solved {
  std::vector<float> own, output;
  std::vector<unsigned char> stored;
};

Solved solve(const Level& level, const Token& token, float scale, bool reads = true) {
  const auto n = static_cast<std::size_t>(token.values);
  Solved solved{std::vector<float>(n), std::vector<float>(n),
                std::vector<unsigned char>(n * dtype_bytes(token.dtype) + 64, 0xA5)};
  SolveRun run;
  run.values = token.values;
  run.update = token.updates.data();
  run.path = token.path.data();
  run.count = static_cast<std::int32_t>(token.path.size());
  run.to_key = token.to_key.data();
  run.to_query = token.to_query.data();
  if (reads) {
    run.read_key = token.read_key.data();
    run.read_query = token.read_query.data();
  }
  run.read_weight = kReadWeight;
  run.scale = scale;
  run.own_weight = kOwnWeight;
  run.value = token.value.data();
  run.dtype = token.dtype;
  run.stored = solved.stored.data();
  run.own_update = solved.own.data();
  run.output = solved.output.data();
  level.solve(run);
  // What is stored is what later tokens see, and nothing lies behind it.
  std::vector<float> loaded(n);
  level.load(solved.stored.data(), token.dtype, token.values, loaded.data());
  for (std::size_t v = 0; v < n; ++v) EXPECT_TRUE(same(loaded[v], solved.own[v])) << v;
  for (std::size_t i = n * dtype_bytes(token.dtype); i < solved.stored.size(); ++i)
    EXPECT_EQ(solved.stored[i], 0xA5) << i;
  return solved;
}

class DeltaTest : public OnEveryLevel {
 protected:
  // `count` of `records`, in any order.
  std::vector<std::int32_t> path(std::int32_t records, std::int32_t count) {
    std::vector<std::int32_t> all(static_cast<std::size_t>(records));
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), random_);
    all.resize(static_cast<std::size_t>(count));
    return all;
  }
  Token random_token(std::int32_t values, DType dtype, std::int32_t records, std::int32_t count) {
    Token token{values, dtype, path(records, count), {}, {}, {}, {}, {}, {}};
    token.updates = normals(std::int64_t{records} * values);
    token.to_key = normals(count);
    token.to_query = normals(count);
    token.read_key = normals(values);
    token.read_query = normals(values);
    token.value = normals(values);
    return token;
  }
};

struct Walk {
  std::int32_t keys, own;
  std::vector<float> key, decay, own_key, own_query;
  std::vector<std::int32_t> path;
};

// The walk in float64 for one of the two vectors: the largest error of `dots` and `reach` in units
// of what their roundings allow.
double worst_of(const Walk& walk, const std::vector<float>& start, const std::vector<float>& dots,
                const std::vector<float>& reach) {
  const auto keys = static_cast<std::size_t>(walk.keys);
  const auto decay = [&](std::int32_t j, std::size_t k) -> double {
    return walk.decay[static_cast<std::size_t>(j) * keys + k];
  };
  std::vector<double> x(start.begin(), start.end());
  for (std::size_t k = 0; k < keys; ++k) x[k] *= decay(walk.own, k);
  double worst = 0.0;
  for (std::size_t i = 0; i < walk.path.size(); ++i) {
    double sum = 0.0;
    double norm = 1e-30;
    for (std::size_t k = 0; k < keys; ++k) {
      const double product = walk.key[static_cast<std::size_t>(walk.path[i]) * keys + k] * x[k];
      sum += product;
      norm += std::abs(product);
      x[k] *= decay(walk.path[i], k);
    }
    const double allowed = (walk.keys + static_cast<double>(i) + 4.0) * kUnit * norm;
    worst = std::max(worst, std::abs(dots[i] - sum) / allowed);
  }
  for (std::size_t k = 0; k < keys; ++k) {
    const double allowed =
        (static_cast<double>(walk.path.size()) + 2.0) * kUnit * std::abs(x[k]) + 1e-30;
    worst = std::max(worst, std::abs(reach[k] - x[k]) / allowed);
  }
  return worst;
}

TEST_P(DeltaTest, WalksAlongAPath) {
  constexpr std::int32_t kRecords = 20;
  for (const std::int32_t keys : kKeys) {
    for (std::int32_t count = 0; count < kRecords; ++count) {
      Walk walk{keys, kRecords - 1, {}, {}, {}, {}, path(kRecords - 1, count)};
      walk.key = normals(std::int64_t{kRecords} * keys);
      walk.decay = factors(std::int64_t{kRecords} * keys);
      walk.own_key = normals(keys);
      walk.own_query = normals(keys);
      std::vector<float> to_key(static_cast<std::size_t>(count) + 1, -7.0F);
      std::vector<float> to_query(to_key);
      std::vector<float> reach_key(static_cast<std::size_t>(keys));
      std::vector<float> reach_query(reach_key);
      WalkRun run;
      run.keys = keys;
      run.key = walk.key.data();
      run.decay = walk.decay.data();
      run.own = walk.own;
      run.path = walk.path.data();
      run.count = count;
      run.own_key = walk.own_key.data();
      run.own_query = walk.own_query.data();
      run.to_key = to_key.data();
      run.to_query = to_query.data();
      run.reach_key = reach_key.data();
      run.reach_query = reach_query.data();
      level().walk(run);
      EXPECT_LE(worst_of(walk, walk.own_key, to_key, reach_key), 1.0) << keys << " " << count;
      EXPECT_LE(worst_of(walk, walk.own_query, to_query, reach_query), 1.0) << keys << " " << count;
      EXPECT_EQ(to_key.back(), -7.0F);
      EXPECT_EQ(to_query.back(), -7.0F);
      // The broken twin: one decay that is another.
      walk.decay[static_cast<std::size_t>(walk.own) * static_cast<std::size_t>(keys)] *= 1.001F;
      EXPECT_GT(worst_of(walk, walk.own_key, to_key, reach_key), 1.0);
    }
  }
}

TEST_P(DeltaTest, SolvesForUpdateAndOutput) {
  constexpr std::int32_t kRecords = 17;
  for (const std::int32_t values : kValues) {
    for (const std::int32_t count : {0, 1, 3, 4, 5, 11, 16}) {
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
        for (const bool reads : {false, true}) {
          const Token token = random_token(values, dtype, kRecords, count);
          const Solved got = solve(level(), token, 0.4F, reads);
          const double narrow = dtype == DType::kF32    ? 0.0
                                : dtype == DType::kBF16 ? 0x1p-8
                                                        : 0x1p-11;
          double twin = 0.0;
          const auto n = static_cast<std::size_t>(values);
          for (std::size_t v = 0; v < n; ++v) {
            double predicted = 0.0;
            double out = 0.0;
            double norm = 0.0;
            for (std::size_t i = 0; i < token.path.size(); ++i) {
              const double u = token.updates[static_cast<std::size_t>(token.path[i]) * n + v];
              predicted += token.to_key[i] * u;
              out += token.to_query[i] * u;
              norm += (std::abs(token.to_key[i]) + std::abs(token.to_query[i])) * std::abs(u);
            }
            if (reads) {
              predicted += double{kReadWeight} * token.read_key[v];
              out += double{kReadWeight} * token.read_query[v];
              norm += std::abs(token.read_key[v]) + std::abs(token.read_query[v]);
            }
            norm += std::abs(token.value[v]);
            const double u = 0.4F * (token.value[v] - predicted);
            const double allowed = (count + 6.0) * kUnit * norm;
            ASSERT_NEAR(got.own[v], u, allowed + narrow * std::abs(u) + 0x1p-25) << values;
            // The output takes u before it is rounded.
            ASSERT_NEAR(got.output[v], out + kOwnWeight * u, allowed) << values;
            twin = std::max(twin, std::abs(got.output[v] - (out - 0.31F * u)) / allowed);
          }
          ASSERT_GT(twin, 1.0);
        }
      }
    }
  }
}

// Infinities and NaN come out where the scalar level has them, an update too large for its dtype as
// infinity.
TEST_P(DeltaTest, WhatIsNotFiniteStaysSo) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::int32_t values : kValues) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      Token token = random_token(values, dtype, 5, 5);
      const auto n = static_cast<std::size_t>(values);
      const std::size_t large = below(n);
      const std::size_t odd = (large + 3) % n;
      token.value[large] = dtype == DType::kF16 ? 1e6F : std::numeric_limits<float>::max();
      token.value[odd] = below(2) == 0 ? inf : nan;
      token.updates[(odd + 1) % n + n] = nan;
      token.read_key[(odd + 2) % n] = -inf;
      const Solved expected = solve(scalar_level(), token, 2.0F);
      const Solved got = solve(level(), token, 2.0F);
      EXPECT_EQ(got.own[large], inf) << values << " " << dtype_name(dtype);
      for (const std::size_t at : {odd, (odd + 1) % n, (odd + 2) % n})
        EXPECT_FALSE(std::isfinite(got.own[at])) << values << " " << at;
      const auto same_kind = [](float a, float b) {
        return std::isnan(a) == std::isnan(b) && std::isinf(a) == std::isinf(b);
      };
      for (std::size_t v = 0; v < n; ++v) {
        ASSERT_TRUE(same_kind(got.own[v], expected.own[v])) << values << " " << v;
        ASSERT_TRUE(same_kind(got.output[v], expected.output[v])) << values << " " << v;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, DeltaTest, testing::ValuesIn(levels()), level_name);

}  // namespace
}  // namespace replayssm::cpu
