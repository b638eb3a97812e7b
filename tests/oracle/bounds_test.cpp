// The error bounds hold for correct float32 arithmetic, are not so wide that they would hold for
// anything, and reject implementations that are broken.
#include "oracle/bounds.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "oracle/compare.hpp"
#include "oracle/mirror.hpp"
#include "oracle/rounding.hpp"
#include "tests/oracle/float_replay.hpp"
#include "tests/oracle/random_layers.hpp"

namespace replayssm::oracle::testing {
namespace {

constexpr DType kActivations[] = {DType::kF32, DType::kBF16, DType::kF16};

// Ordinary gates keep the memory long, so that errors have time to add up; nasty ones come from
// random_layers.hpp.
struct Case {
  explicit Case(std::uint64_t seed, bool ordinary) : random(seed), calm(ordinary) {
    layer = round_layer(random_layer(random, static_cast<Rule>(random.integer(0, 2)), 3));
    layer.value_dim *= 4;
    layer.key_dim *= 8;
    if (layer.rule == Rule::kKda && !layer.dt_bias.empty()) {
      layer.dt_bias = random.normals(layer.heads * layer.key_dim, 1.0);
    }
    layer = round_layer(layer);
    activations = kActivations[random.integer(0, 2)];
    output = kActivations[random.integer(0, 2)];
    update = random.chance(0.5) ? DType::kBF16 : DType::kF32;
  }
  Token token() {
    Token raw = random_token(random, layer);
    if (calm) {
      for (double& gate : raw.gate) {
        gate = layer.delta_rule() && layer.gate == GateKind::kLogDecay ? -random.real(0.0, 0.02)
                                                                       : random.real(-7.0, -3.0);
      }
    }
    return round_token(layer, raw, activations, activations);
  }
  Random random;
  bool calm;
  Layer layer;
  DType activations;
  DType output;
  DType update;
};

// Runs the float replay beside the bounds; the failing comparison, or an empty string.
std::string run_replay(std::uint64_t seed, bool calm, FloatFault fault, double* widest) {
  Case here(seed, calm);
  Precision precision = Precision::of(here.update, here.output);
  precision.lanes = 1;
  const int window = here.random.integer(1, 12);
  const int max_tokens = here.random.integer(1, window);
  BoundedLayer bounded(here.layer, precision);
  FloatReplay replay(here.layer, here.update, here.output, here.random.chance(0.5), fault);
  for (int forward = 0; forward < 16; ++forward) {
    if (replay.committed() >= window) {
      replay.fold(window);
      bounded.fold(window);
      std::vector<double> tolerance = bounded.checkpoint_bound();
      for (double& bound : tolerance) bound += 1e-300;
      const Comparison state = compare("checkpoint", replay.checkpoint(), bounded.checkpoint(),
                                       here.layer.key_dim, tolerance);
      if (!state.ok) return state.text;
      *widest = std::max(*widest, state.worst_ratio);
    }
    std::vector<Token> tokens;
    for (int t = here.random.integer(1, max_tokens); t > 0; --t) tokens.push_back(here.token());
    std::vector<int> parents;
    if (here.random.chance(0.5))
      parents = random_parents(here.random, static_cast<int>(tokens.size()));
    const auto got = replay.step(tokens, parents);
    const BoundedOutputs want = bounded.step(tokens, parents);
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      const Comparison outputs =
          compare("outputs", got[t], want.values[t], here.layer.value_dim, want.bounds[t]);
      if (!outputs.ok) return outputs.text;
      *widest = std::max(*widest, outputs.worst_ratio);
    }
    if (parents.empty()) {
      for (std::size_t t = 0; t < tokens.size(); ++t) parents.push_back(static_cast<int>(t) - 1);
    }
    const std::vector<int> path = random_path(here.random, parents);
    std::vector<Token> accepted;
    for (const int node : path) accepted.push_back(tokens[node]);
    replay.commit(path);
    bounded.commit(accepted);
  }
  return "";
}

TEST(Bounds, HoldForReplayInFloat32) {
  double narrowest = 1e300;
  double widest = 0.0;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    double ratio = 0.0;
    const std::string error = run_replay(seed, seed % 3 != 0, FloatFault::kNone, &ratio);
    ASSERT_EQ(error, "") << "seed " << seed;
    narrowest = std::min(narrowest, ratio);
    widest = std::max(widest, ratio);
  }
  std::printf("largest error over bound: %.3f, in the tamest case %.3f\n", widest, narrowest);
  // A bound that no error comes near would also hold for a broken backend.
  EXPECT_GT(narrowest, 0.003);
}

class BrokenReplay : public ::testing::TestWithParam<FloatFault> {};

TEST_P(BrokenReplay, IsRejected) {
  int rejected = 0;
  constexpr int kCases = 100;
  for (std::uint64_t seed = 1; seed <= kCases; ++seed) {
    double ratio = 0.0;
    rejected += run_replay(seed, true, GetParam(), &ratio).empty() ? 0 : 1;
  }
  std::printf("rejected in %d of %d cases\n", rejected, kCases);
  EXPECT_GE(rejected, kCases / 10);
}

std::string fault_name(const ::testing::TestParamInfo<FloatFault>& info) {
  switch (info.param) {
    case FloatFault::kNone: return "None";
    case FloatFault::kDropOldest: return "DropOldest";
    case FloatFault::kNoNewestDecay: return "NoNewestDecay";
    case FloatFault::kGateInBf16: return "GateInBf16";
    case FloatFault::kBetaInBf16: return "BetaInBf16";
    case FloatFault::kFoldStoredU: return "FoldStoredU";
    case FloatFault::kNormInBf16: return "NormInBf16";
    case FloatFault::kPrefixSums: return "PrefixSums";
  }
  return "Unknown";
}

INSTANTIATE_TEST_SUITE_P(Bounds, BrokenReplay,
                         ::testing::Values(FloatFault::kDropOldest, FloatFault::kNoNewestDecay,
                                           FloatFault::kGateInBf16, FloatFault::kBetaInBf16,
                                           FloatFault::kFoldStoredU, FloatFault::kNormInBf16),
                         fault_name);

// Prefix sums go wrong where gates are strong.
TEST(Bounds, RejectPrefixSums) {
  int rejected = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    double ratio = 0.0;
    rejected += run_replay(seed, false, FloatFault::kPrefixSums, &ratio).empty() ? 0 : 1;
  }
  std::printf("rejected in %d of 100 cases\n", rejected);
  EXPECT_GE(rejected, 20);
}

// The rounding mirror is one correct implementation among others, over many tokens.
TEST(Bounds, HoldForTheMirrorsState) {
  double worst = 0.0;
  double least = 1e300;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    Case here(seed, seed % 3 != 0);
    BoundedLayer bounded(here.layer, Precision::of(DType::kF32, DType::kF32));
    std::vector<float> state(here.layer.state_size(), 0.0F);
    double ratio = 0.0;
    for (int t = 0; t < 150; ++t) {
      const Token token = here.token();
      mirror_step(here.layer, token, &state);
      bounded.advance({token});
      std::vector<double> tolerance = bounded.state_bound();
      for (double& bound : tolerance) bound += 1e-300;
      const Comparison result =
          compare("state", state, bounded.state(), here.layer.key_dim, tolerance);
      ASSERT_TRUE(result) << "seed " << seed << " token " << t << ": " << result.text;
      ratio = std::max(ratio, result.worst_ratio);
    }
    worst = std::max(worst, ratio);
    least = std::min(least, ratio);
  }
  std::printf("largest error over bound: %.3f, in the tamest case %.3f\n", worst, least);
  EXPECT_GT(least, 0.003);
}

TEST(Bounds, StartExactAfterLoad) {
  Case here(4, true);
  BoundedLayer bounded(here.layer, Precision::of(DType::kBF16, DType::kF32));
  for (int t = 0; t < 20; ++t) bounded.advance({here.token()});
  std::vector<double> state = bounded.state();
  for (double& value : state) value = round_to(value, DType::kF32);
  bounded.load(state);
  for (const double bound : bounded.state_bound()) EXPECT_EQ(bound, 0.0);
  bounded.fold(0);
  EXPECT_EQ(bounded.state(), state);
}

TEST(Bounds, CoverConv) {
  Random random(8);
  double worst = 0.0;
  for (int i = 0; i < 2000; ++i) {
    Conv conv = random_conv(random);
    if (conv.width == 0) continue;
    const DType dtype = kActivations[random.integer(0, 2)];
    for (double& w : conv.weight) w = round_to(w, DType::kF32);
    for (double& b : conv.bias) b = round_to(b, DType::kF32);
    ConvHistory history = zero_history(conv);
    for (auto& input : history) {
      for (double& x : input) x = round_to(random.normal(), dtype);
    }
    std::vector<double> input = random.normals(conv.channels, random.chance(0.2) ? 40.0 : 1.0);
    for (double& x : input) x = round_to(x, dtype);
    std::vector<double> got;
    for (int channel = 0; channel < conv.channels; ++channel) {
      float sum = conv.bias.empty() ? 0.0F : static_cast<float>(conv.bias[channel]);
      for (int j = 0; j < conv.width; ++j) {
        const double x = j + 1 < conv.width ? history[j][channel] : input[channel];
        sum += static_cast<float>(conv.weight[channel * conv.width + j]) * static_cast<float>(x);
      }
      if (conv.silu) sum = sum / (1.0F + std::exp(-sum));
      got.push_back(round_to(sum, dtype));
    }
    const std::vector<double> bound =
        conv_bound(conv, input, history, Precision::of(DType::kF32, dtype));
    const std::vector<double> want = conv_step(conv, input, &history);
    const Comparison result = compare("conv", got, want, conv.channels, bound);
    ASSERT_TRUE(result) << result.text;
    worst = std::max(worst, result.worst_ratio);
    // Twin: the taps in the other order.
    if (conv.width > 1 && !conv.silu) {
      Conv reversed = conv;
      for (int channel = 0; channel < conv.channels; ++channel) {
        std::reverse(reversed.weight.begin() + channel * conv.width,
                     reversed.weight.begin() + (channel + 1) * conv.width);
      }
      ConvHistory again = zero_history(conv);
      for (std::size_t j = 0; j + 1 < history.size(); ++j) again[j + 1] = history[j];
      EXPECT_FALSE(
          compare("reversed", conv_step(reversed, input, &again), want, conv.channels, bound));
    }
  }
  EXPECT_GT(worst, 0.1);
}

}  // namespace
}  // namespace replayssm::oracle::testing
