// Sampling: distributions by chi-square at fixed seeds, filters, ties, and numbers that depend on
// seed and position.
#include "engine/sampler.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <vector>

namespace replayssm::engine {
namespace {

std::vector<double> softmax(const std::vector<float>& logits, double temperature) {
  std::vector<double> weights;
  for (const float logit : logits)
    weights.push_back(std::exp(static_cast<double>(logit) / temperature));
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) weight /= total;
  return weights;
}

// Draws from 20,000 positions and returns the chi-square statistic against `expected` in standard
// deviations above its mean; infinite if something of probability 0 was drawn.
double surprise(const std::vector<float>& logits, const Sampling& sampling,
                const std::vector<double>& expected) {
  constexpr int kDraws = 20000;
  Sampler sampler;
  std::vector<int> counts(logits.size(), 0);
  for (int i = 0; i < kDraws; ++i)
    ++counts[static_cast<std::size_t>(sampler.choose(logits, sampling, i).token)];
  double chi = 0.0;
  int cells = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double mean = expected[i] * kDraws;
    if (mean == 0.0) {
      if (counts[i] > 0) return std::numeric_limits<double>::infinity();
      continue;
    }
    chi += std::pow(counts[i] - mean, 2) / mean;
    ++cells;
  }
  const double freedom = cells - 1;
  return freedom > 0 ? (chi - freedom) / std::sqrt(2.0 * freedom) : 0.0;
}

// Five standard deviations: a right sampler fails once in a million seeds, and the seeds here are
// fixed.
constexpr double kSurprising = 5.0;

std::vector<float> some_logits() { return {1.0F, -0.5F, 2.0F, 0.3F, 0.3F, -2.0F, 1.7F, 0.0F}; }

// Keeps the entries of `keep`, rescaled.
std::vector<double> keep_only(std::vector<double> weights, const std::vector<std::size_t>& keep) {
  std::vector<double> kept(weights.size(), 0.0);
  double total = 0.0;
  for (const std::size_t i : keep) total += weights[i];
  for (const std::size_t i : keep) kept[i] = weights[i] / total;
  return kept;
}

TEST(Sampler, DrawsTheSoftmaxDistribution) {
  for (const float temperature : {0.5F, 1.0F, 1.7F}) {
    for (const std::uint64_t seed : {0U, 1U, 77U}) {
      Sampling sampling;
      sampling.temperature = temperature;
      sampling.seed = seed;
      EXPECT_LT(surprise(some_logits(), sampling, softmax(some_logits(), temperature)),
                kSurprising);
      // The broken twin: a temperature off by a tenth is told apart.
      EXPECT_GT(surprise(some_logits(), sampling, softmax(some_logits(), 1.1 * temperature)),
                kSurprising);
    }
  }
}

TEST(Sampler, TopKKeepsTheLargest) {
  Sampling sampling;
  sampling.temperature = 1.0F;
  sampling.top_k = 3;
  sampling.seed = 5;
  const auto all = softmax(some_logits(), 1.0);
  EXPECT_LT(surprise(some_logits(), sampling, keep_only(all, {2, 6, 0})), kSurprising);
  EXPECT_GT(surprise(some_logits(), sampling, keep_only(all, {2, 6})), kSurprising);
  EXPECT_GT(surprise(some_logits(), sampling, keep_only(all, {2, 6, 0, 3})), kSurprising);
}

TEST(Sampler, TopKCutsTiesByTheLowerId) {
  Sampling sampling;
  sampling.temperature = 1.0F;
  sampling.top_k = 4;  // ids 3 and 4 share the fourth place
  EXPECT_LT(surprise(some_logits(), sampling, keep_only(softmax(some_logits(), 1.0), {2, 6, 0, 3})),
            kSurprising);
}

TEST(Sampler, TopPKeepsTheFewestThatReachIt) {
  Sampling sampling;
  sampling.temperature = 1.0F;
  sampling.seed = 9;
  const auto all = softmax(some_logits(), 1.0);
  const double two = all[2] + all[6];
  sampling.top_p = static_cast<float>(two - 0.01);
  EXPECT_LT(surprise(some_logits(), sampling, keep_only(all, {2, 6})), kSurprising);
  sampling.top_p = static_cast<float>(two + 0.01);
  EXPECT_LT(surprise(some_logits(), sampling, keep_only(all, {2, 6, 0})), kSurprising);
  EXPECT_GT(surprise(some_logits(), sampling, keep_only(all, {2, 6})), kSurprising);
  sampling.top_p = 1e-6F;
  EXPECT_LT(surprise(some_logits(), sampling, keep_only(all, {2})), kSurprising);
}

TEST(Sampler, TopKComesBeforeTopP) {
  Sampling sampling;
  sampling.temperature = 1.0F;
  sampling.top_k = 2;
  const auto all = softmax(some_logits(), 1.0);
  // Of the two kept, the first alone reaches half of their mass but not half of all.
  ASSERT_LT(all[2], 0.5);
  ASSERT_GT(all[2] / (all[2] + all[6]), 0.5);
  sampling.top_p = 0.5F;
  EXPECT_LT(surprise(some_logits(), sampling, keep_only(all, {2})), kSurprising);
}

TEST(Sampler, GreedyTakesTheLargestAndOfEqualsTheFirst) {
  Sampler sampler;
  const Choice choice = sampler.choose(std::vector<float>{0.0F, 3.0F, 2.5F, 3.0F}, Sampling{}, 0);
  EXPECT_EQ(choice.token, 1);
  EXPECT_EQ(choice.second, 3);
  EXPECT_EQ(choice.best_logit, choice.second_logit);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(sampler.choose(std::vector<float>{nan, -1.0F, nan}, Sampling{}, 0).token, 1);
}

TEST(Sampler, InfiniteAndNanLogitsAreNoTrap) {
  Sampler sampler;
  Sampling sampling;
  sampling.temperature = 1.0F;
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(sampler.choose(std::vector<float>{0.0F, inf, nan, -inf}, sampling, i).token, 1);
    EXPECT_EQ(sampler.choose(std::vector<float>{-inf, -inf, 5.0F}, sampling, i).token, 2);
    EXPECT_EQ(sampler.choose(std::vector<float>{nan, nan}, sampling, i).token, 0);
  }
}

TEST(PositionNumber, DependsOnSeedAndPositionAlone) {
  EXPECT_EQ(position_number(3, 4), position_number(3, 4));
  EXPECT_NE(position_number(3, 4), position_number(3, 5));
  EXPECT_NE(position_number(3, 4), position_number(4, 4));
  EXPECT_NE(position_number(3, 4), position_number(4, 3));
}

// Pairs of numbers fall evenly into 16 x 16 cells: neighbouring positions, neighbouring seeds, and
// both.
TEST(PositionNumber, NeighboursAreUnrelated) {
  constexpr int kSide = 16;
  constexpr int kPairs = 1 << 17;
  const auto surprise_of = [](auto pair) {
    std::vector<int> counts(kSide * kSide, 0);
    for (int i = 0; i < kPairs; ++i) {
      const auto [a, b] = pair(i);
      EXPECT_TRUE(a >= 0.0 && a < 1.0);
      ++counts[static_cast<std::size_t>(static_cast<int>(a * kSide) * kSide +
                                        static_cast<int>(b * kSide))];
    }
    const double mean = static_cast<double>(kPairs) / (kSide * kSide);
    double chi = 0.0;
    for (const int count : counts) chi += std::pow(count - mean, 2) / mean;
    const double freedom = kSide * kSide - 1;
    return std::fabs(chi - freedom) / std::sqrt(2.0 * freedom);
  };
  EXPECT_LT(surprise_of(
                [](int i) { return std::pair(position_number(1, i), position_number(1, i + 1)); }),
            5.0);
  EXPECT_LT(surprise_of([](int i) {
              const auto seed = static_cast<std::uint64_t>(i);
              return std::pair(position_number(seed, 7), position_number(seed + 1, 7));
            }),
            5.0);
  EXPECT_LT(surprise_of([](int i) {
              const auto seed = static_cast<std::uint64_t>(i % 300);
              return std::pair(position_number(seed, i / 300),
                               position_number(seed + 1, i / 300 + 1));
            }),
            5.0);
  // The broken twin: a number and itself.
  EXPECT_GT(
      surprise_of([](int i) { return std::pair(position_number(1, i), position_number(1, i)); }),
      5.0);
}

TEST(CheckSampling, RefusesByName) {
  const auto message = [](auto change) {
    Sampling sampling;
    change(sampling);
    const Status status = check_sampling(sampling);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_NE(message([](Sampling& s) { s.temperature = -1.0F; }).find("temperature"),
            std::string::npos);
  EXPECT_NE(message([&](Sampling& s) { s.temperature = nan; }).find("temperature"),
            std::string::npos);
  EXPECT_NE(message([](Sampling& s) { s.top_k = -1; }).find("top_k"), std::string::npos);
  EXPECT_NE(message([](Sampling& s) { s.top_p = 0.0F; }).find("top_p"), std::string::npos);
  EXPECT_NE(message([](Sampling& s) { s.top_p = 1.5F; }).find("top_p"), std::string::npos);
  EXPECT_NE(message([&](Sampling& s) { s.top_p = nan; }).find("top_p"), std::string::npos);
  EXPECT_TRUE(check_sampling(Sampling{}).ok());
}

}  // namespace
}  // namespace replayssm::engine
