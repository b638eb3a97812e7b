// The rounding mirror does what its header says, operation for operation, and its bits notice any
// other order.
#include "oracle/mirror.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "oracle/compare.hpp"
#include "oracle/rounding.hpp"
#include "tests/oracle/random_layers.hpp"

namespace replayssm::oracle::testing {
namespace {

std::vector<float> floats(Random* random, int count) {
  std::vector<float> values;
  for (int i = 0; i < count; ++i) values.push_back(static_cast<float>(random->normal()));
  return values;
}

TEST(Mirror, DotAddsLanesAsATree) {
  Random random(1);
  for (const int count : {8, 16, 24, 40, 128, 256}) {
    bool sequential_differs = false;
    for (int repeat = 0; repeat < 20; ++repeat) {
      const auto a = floats(&random, count);
      const auto b = floats(&random, count);
      // Written out: sixteen sums, then (l0+l8)+(l4+l12) and so on.
      float lane[16];
      for (int i = 0; i < 16; ++i) {
        lane[i] = 0.0F;
        for (int j = i; j < count; j += 16) lane[i] += a[j] * b[j];
      }
      const auto four = [&](int i) {
        return (lane[i] + lane[i + 8]) + (lane[i + 4] + lane[i + 12]);
      };
      const float want = (four(0) + four(2)) + (four(1) + four(3));
      EXPECT_EQ(dot16(a.data(), b.data(), count), want);
      float sequential = 0.0F;
      for (int i = 0; i < count; ++i) sequential += a[i] * b[i];
      sequential_differs = sequential_differs || sequential != want;
    }
    EXPECT_TRUE(sequential_differs) << count;
  }
}

// A product and a sum that only a fused operation would get right: the mirror rounds the product
// first.
TEST(Mirror, RoundsTheProductBeforeTheSum) {
  Layer layer;
  layer.rule = Rule::kGdn;
  layer.heads = layer.groups = layer.value_dim = 1;
  layer.key_dim = 8;
  layer.gate = GateKind::kLogDecay;
  layer.beta_given = true;
  ASSERT_TRUE(check_layer(layer).ok());
  Token token;
  token.q.assign(8, 0.0);
  token.k.assign(8, 0.0);
  token.k[0] = 1.0 + 0x1p-12;
  token.v = {-0x1p-11 - 0x1p-23};
  token.gate = {0.0};
  token.beta = {1.0};
  std::vector<float> state(8, 0.0F);
  state[0] = -(1.0F + 0x1p-11F);
  mirror_step(layer, token, &state);
  EXPECT_EQ(state[0], 0.0F);  // fused: 2^-24
}

// The recurrence of one element a head, as plain statements.
TEST(Mirror, OneElementByHand) {
  Random random(2);
  for (int repeat = 0; repeat < 200; ++repeat) {
    const auto at = [&](double low, double high) {
      return static_cast<float>(random.real(low, high));
    };
    const float a_log = at(-1, 1);
    const float bias = at(-1, 1);
    const float raw = at(-3, 30);
    const float b = at(-3, 3);
    const float k = at(-2, 2);
    const float v = at(-2, 2);
    const float s = at(-2, 2);
    const float x = raw + bias;
    const float softplus_x = x > 20.0F ? x : log1pf(expf(x));
    Layer layer;
    layer.heads = layer.groups = layer.value_dim = 1;
    layer.key_dim = 1;
    layer.a_log = {a_log};
    layer.dt_bias = {bias};
    Token token{{0.0}, {k}, {v}, {raw}, {}, {}};

    layer.rule = Rule::kMamba2;
    layer.dt_min = 0.25;
    layer.dt_max = 2.0;
    const float dt = softplus_x < 0.25F ? 0.25F : softplus_x > 2.0F ? 2.0F : softplus_x;
    std::vector<float> state{s};
    mirror_step(layer, token, &state);
    const float mamba_decay = expf(dt * -expf(a_log));
    const float kept = s * mamba_decay;
    const float dx = dt * v;
    const float added = dx * k;
    EXPECT_EQ(state[0], kept + added);

    layer.rule = Rule::kGdn;
    layer.l2_norm = true;
    layer.double_beta = repeat % 2 == 0;
    token.beta = {b};
    state = {s};
    mirror_step(layer, token, &state);
    const float beta = (1.0F / (1.0F + expf(-b))) * (layer.double_beta ? 2.0F : 1.0F);
    const auto delta = [&](float g) {
      const float inverse = 1.0F / sqrtf(k * k + 1e-6F);
      const float kk = k * inverse;
      const float decayed = s * expf(g);
      const float predicted = decayed * kk;
      const float rest = v - predicted;
      const float u = beta * rest;
      const float step = u * kk;
      return decayed + step;
    };
    EXPECT_EQ(state[0], delta(-expf(a_log) * softplus_x));

    layer.rule = Rule::kKda;
    layer.gate = GateKind::kBounded;
    layer.lower_bound = -5.0;
    state = {s};
    mirror_step(layer, token, &state);
    const float y = expf(a_log) * x;
    EXPECT_EQ(state[0], delta(-5.0F * (1.0F / (1.0F + expf(-y)))));

    layer.gate = GateKind::kLogDecay;
    layer.a_log.clear();
    layer.dt_bias.clear();
    token.gate = {-0.25};
    state = {s};
    mirror_step(layer, token, &state);
    EXPECT_EQ(state[0], delta(-0.25F));
  }
}

TEST(Mirror, FoldIsSteppingAndFoldingNothingIsIdentity) {
  Random random(3);
  int order_noticed = 0;
  int fewer_noticed = 0;
  for (int repeat = 0; repeat < 50; ++repeat) {
    Layer layer = random_layer(random, static_cast<Rule>(repeat % 3), 2);
    layer.key_dim *= 8;
    layer.dt_bias.clear();
    layer = round_layer(layer);
    std::vector<Token> tokens;
    for (int t = 0; t < 7; ++t) {
      tokens.push_back(round_token(layer, random_token(random, layer), DType::kBF16, DType::kBF16));
    }
    const std::vector<float> start = floats(&random, layer.state_size());
    std::vector<float> folded = start;
    mirror_fold(layer, {}, &folded);
    EXPECT_TRUE(compare_bits("nothing", folded, start, layer.key_dim));
    mirror_fold(layer, tokens, &folded);
    std::vector<float> stepped = start;
    for (const Token& token : tokens) mirror_step(layer, token, &stepped);
    EXPECT_TRUE(compare_bits("fold", folded, stepped, layer.key_dim));
    // Twins: a record too few, and two in the wrong order.
    std::vector<float> fewer = start;
    mirror_fold(layer, {tokens.begin() + 1, tokens.end()}, &fewer);
    std::vector<Token> swapped = tokens;
    std::swap(swapped[5], swapped[6]);
    std::vector<float> other = start;
    mirror_fold(layer, swapped, &other);
    order_noticed += compare_bits("order", other, stepped, layer.key_dim).ok ? 0 : 1;
    fewer_noticed += compare_bits("fewer", fewer, stepped, layer.key_dim).ok ? 0 : 1;
  }
  // All but the cases whose gates forget everything in between.
  EXPECT_GT(order_noticed, 40);
  EXPECT_GT(fewer_noticed, 25);
}

TEST(Mirror, RecordsHoldWhatTheRingHolds) {
  Layer layer;
  layer.rule = Rule::kGdn;
  layer.heads = 2;
  layer.groups = 1;
  layer.value_dim = 1;
  layer.key_dim = 8;
  layer.l2_norm = true;
  layer.a_log = {0.0, 0.0};
  Token token;
  token.q.assign(8, 1.0);
  token.k.assign(8, 2.0);
  token.v = {1.0, 1.0};
  token.gate = {0.0, 21.0};
  token.beta = {0.0, 0.0};
  const MirrorRecord record = mirror_record(layer, token);
  EXPECT_EQ(record.inv_norm, (std::vector<float>{1.0F / sqrtf(32.0F + 1e-6F)}));
  EXPECT_EQ(record.log_decay, (std::vector<float>{-log1pf(1.0F), -21.0F}));
  EXPECT_EQ(record.weight, (std::vector<float>{0.5F, 0.5F}));
  // Above 20 softplus is the identity, to the bit, and does not overflow.
  for (int i = 0; i < 800; ++i) {
    const float x = 20.001F * std::pow(1.003F, static_cast<float>(i));
    token.gate[1] = x;
    EXPECT_EQ(mirror_record(layer, token).log_decay[1], -x);
  }
}

}  // namespace
}  // namespace replayssm::oracle::testing
