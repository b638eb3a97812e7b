// What the replay step of gdn and kda asks of a level: the walk along a path and the update and
// output of a token, against float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/level.hpp"

namespace replayssm::cpu {
namespace {

constexpr double kUnit = 0x1p-24;

std::vector<const Level*> levels() {
  std::vector<const Level*> all = {&scalar_level()};
  for (const Level* level : {avx2_level(), avx512_level()}) {
    if (level != nullptr) all.push_back(level);
  }
  return all;
}

class DeltaTest : public testing::TestWithParam<const Level*> {
 protected:
  const Level& level() const { return *GetParam(); }
  std::vector<float> normals(std::int64_t n) {
    std::normal_distribution<float> draw;
    return filled(n, [&] { return draw(random_); });
  }
  std::vector<float> decays(std::int64_t n) {
    std::uniform_real_distribution<float> draw(0.3F, 1.0F);
    return filled(n, [&] { return draw(random_); });
  }
  // `count` of `records`, in any order.
  std::vector<std::int32_t> path(std::int32_t records, std::int32_t count) {
    std::vector<std::int32_t> all(static_cast<std::size_t>(records));
    for (std::int32_t i = 0; i < records; ++i) all[static_cast<std::size_t>(i)] = i;
    std::shuffle(all.begin(), all.end(), random_);
    all.resize(static_cast<std::size_t>(count));
    return all;
  }

 private:
  template <typename Draw>
  static std::vector<float> filled(std::int64_t n, Draw draw) {
    std::vector<float> values(static_cast<std::size_t>(n));
    for (float& value : values) value = draw();
    return values;
  }
  std::mt19937 random_{20261130};
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
  for (const std::int32_t keys : {8, 24, 64, 128, 256}) {
    for (const std::int32_t count : {0, 1, 3, 4, 8, 9, 19}) {
      Walk walk{keys, kRecords - 1, {}, {}, {}, {}, path(kRecords - 1, count)};
      walk.key = normals(std::int64_t{kRecords} * keys);
      walk.decay = decays(std::int64_t{kRecords} * keys);
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
  constexpr std::int32_t kRecords = 12;
  for (const std::int32_t values : {8, 24, 64, 128}) {
    for (const std::int32_t count : {0, 1, 5, 11}) {
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
        for (const bool reads : {false, true}) {
          const auto at = [&](std::int32_t row, std::int32_t v) {
            return static_cast<std::size_t>(row * values + v);
          };
          const auto updates = normals(std::int64_t{kRecords} * values);
          const auto to_key = normals(count);
          const auto to_query = normals(count);
          const auto read = normals(2 * std::int64_t{values});
          const auto value = normals(values);
          const auto order = path(kRecords, count);
          const auto n = static_cast<std::size_t>(values);
          std::vector<float> own(n);
          std::vector<float> output(n);
          std::vector<unsigned char> stored(n * dtype_bytes(dtype) + 64, 0xA5);
          SolveRun run;
          run.values = values;
          run.update = updates.data();
          run.path = order.data();
          run.count = count;
          run.to_key = to_key.data();
          run.to_query = to_query.data();
          if (reads) {
            run.read_key = read.data();
            run.read_query = read.data() + values;
          }
          run.read_weight = 0.7F;
          run.scale = 0.4F;
          run.own_weight = -0.3F;
          run.value = value.data();
          run.dtype = dtype;
          run.stored = stored.data();
          run.own_update = own.data();
          run.output = output.data();
          level().solve(run);

          // What is stored is what later tokens see, and nothing lies behind it.
          std::vector<float> loaded(n);
          level().load(stored.data(), dtype, values, loaded.data());
          EXPECT_EQ(loaded, own);
          for (std::size_t i = n * dtype_bytes(dtype); i < stored.size(); ++i)
            ASSERT_EQ(stored[i], 0xA5);
          const double narrow = dtype == DType::kF32    ? 0.0
                                : dtype == DType::kBF16 ? 0x1p-8
                                                        : 0x1p-11;
          double twin = 0.0;
          for (std::int32_t v = 0; v < values; ++v) {
            double predicted = 0.0;
            double out = 0.0;
            double norm = 0.0;
            for (std::size_t i = 0; i < order.size(); ++i) {
              const double u = updates[at(order[i], v)];
              predicted += to_key[i] * u;
              out += to_query[i] * u;
              norm += (std::abs(to_key[i]) + std::abs(to_query[i])) * std::abs(u);
            }
            if (reads) {
              predicted += 0.7F * static_cast<double>(read[at(0, v)]);
              out += 0.7F * static_cast<double>(read[at(1, v)]);
              norm += std::abs(read[at(0, v)]) + std::abs(read[at(1, v)]);
            }
            norm += std::abs(value[at(0, v)]);
            const double u = 0.4F * (value[at(0, v)] - predicted);
            const double allowed = (count + 6.0) * kUnit * norm;
            ASSERT_NEAR(own[at(0, v)], u, allowed + narrow * std::abs(u) + 0x1p-25) << values;
            // The output takes u before it is rounded.
            ASSERT_NEAR(output[at(0, v)], out - 0.3F * u, allowed) << values;
            twin = std::max(twin, std::abs(output[at(0, v)] - (out - 0.31F * u)) / allowed);
          }
          ASSERT_GT(twin, 1.0);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, DeltaTest, testing::ValuesIn(levels()),
                         [](const auto& test) { return std::string(test.param->name); });

}  // namespace
}  // namespace replayssm::cpu
