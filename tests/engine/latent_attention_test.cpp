// Attention whose values are a part of the keys, with one key head for all queries: against sums in
// double, and the same to the last bit however many workers share the queries.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "model/layers/attention.hpp"

namespace replayssm::model {
namespace {

constexpr std::int64_t kHeads = 5;
constexpr std::int64_t kWidth = 23;  // of a row; its first kValue numbers are the value
constexpr std::int64_t kValue = 18;
constexpr std::int64_t kTokens = 70;  // more than a page

std::vector<float> random_values(std::int64_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

struct Inputs {
  std::vector<float> rows = random_values(kTokens * kWidth, 1);
  std::vector<float> queries = random_values(kTokens * kHeads * kWidth, 2);
};

AttentionShape shape() {
  AttentionShape shape;
  shape.heads = kHeads;
  shape.kv_heads = 1;
  shape.key_dim = kWidth;
  shape.value_dim = kValue;
  shape.scale = 0.3F;
  return shape;
}

// Token by token or all at once.
std::vector<float> run(const Inputs& inputs, int threads, std::int64_t piece) {
  WorkerPool pool(threads);
  Attention attention(pool);
  KvCache cache(KvShape{{KvLayer{1, kWidth, 0}}, DType::kF32});
  std::vector<float> out(static_cast<std::size_t>(kTokens * kHeads * kValue));
  for (std::int64_t first = 0; first < kTokens; first += piece) {
    EXPECT_TRUE(cache.reserve(piece).ok());
    for (std::int64_t t = first; t < first + piece; ++t) {
      cache.write(0, t, inputs.rows.data() + t * kWidth, nullptr);
    }
    AttentionRow row;
    row.cache = &cache;
    row.tokens = piece;
    attention.run(shape(), 0, {&row, 1}, inputs.queries.data() + first * kHeads * kWidth,
                  out.data() + first * kHeads * kValue);
    cache.set_length(first + piece);
  }
  return out;
}

double worst_error(const Inputs& inputs, const std::vector<float>& out) {
  double worst = 0.0;
  for (std::int64_t token = 0; token < kTokens; ++token) {
    for (std::int64_t head = 0; head < kHeads; ++head) {
      std::vector<double> sums(kValue, 0.0);
      double total = 0.0;
      for (std::int64_t t = 0; t <= token; ++t) {
        double score = 0.0;
        for (std::int64_t i = 0; i < kWidth; ++i) {
          const auto q = static_cast<std::size_t>((token * kHeads + head) * kWidth + i);
          score += static_cast<double>(inputs.queries[q]) *
                   inputs.rows[static_cast<std::size_t>(t * kWidth + i)];
        }
        const double weight = std::exp(0.3F * score);
        total += weight;
        for (std::int64_t i = 0; i < kValue; ++i) {
          sums[static_cast<std::size_t>(i)] +=
              weight * inputs.rows[static_cast<std::size_t>(t * kWidth + i)];
        }
      }
      for (std::int64_t i = 0; i < kValue; ++i) {
        const double mine = out[static_cast<std::size_t>((token * kHeads + head) * kValue + i)];
        worst = std::max(worst, std::fabs(mine - sums[static_cast<std::size_t>(i)] / total));
      }
    }
  }
  return worst;
}

// Scores are at most 0.3 |q| |row|, about 0.3 * 3 * 23; a weight's error is (width + 2) roundings
// of its score, a sum's one a position; values are of size 4.
constexpr double kTolerance = 4.0 * 0x1.0p-24 * (0.3 * 3.0 * 23.0 * (23.0 + 2.0) + kTokens);

TEST(LatentAttention, MatchesSumsInDouble) {
  const Inputs inputs;
  EXPECT_LE(worst_error(inputs, run(inputs, 2, kTokens)), kTolerance);
  EXPECT_LE(worst_error(inputs, run(inputs, 2, 1)), kTolerance);
  Inputs other = inputs;
  other.rows[0] += 0.25F;
  EXPECT_GT(worst_error(other, run(inputs, 2, 1)), kTolerance);
}

TEST(LatentAttention, IsTheSameForAnyNumberOfWorkers) {
  const Inputs inputs;
  const std::vector<float> one = run(inputs, 1, 1);
  EXPECT_EQ(run(inputs, 1, kTokens), one);
  for (const int threads : {2, 3, 4, 8}) EXPECT_EQ(run(inputs, threads, 1), one) << threads;
}

}  // namespace
}  // namespace replayssm::model
