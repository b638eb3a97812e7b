// The plain recurrence against numbers worked out by hand: the anchor that no other code of this
// repository holds.
#include "oracle/recurrence.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/oracle/random_layers.hpp"

namespace replayssm::oracle::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Layer layer_of(Rule rule, int heads, int groups, int value_dim, int key_dim) {
  Layer layer;
  layer.rule = rule;
  layer.heads = heads;
  layer.groups = groups;
  layer.value_dim = value_dim;
  layer.key_dim = key_dim;
  layer.a_log.assign(heads, 0.0);  // A = -1
  EXPECT_TRUE(check_layer(layer).ok()) << check_layer(layer).to_string();
  return layer;
}

TEST(Formulas, KnownValues) {
  EXPECT_NEAR(softplus(0.0), 0.6931471805599453, 1e-15);
  EXPECT_NEAR(softplus(1.0), 1.3132616875182228, 1e-15);
  EXPECT_EQ(softplus(20.5), 20.5);
  EXPECT_NEAR(softplus(-40.0), 4.248354255291589e-18, 1e-32);  // log1p, not log(1 + .)
  EXPECT_EQ(softplus(-kInfinity), 0.0);
  EXPECT_NEAR(sigmoid(2.0), 0.8807970779778823, 1e-15);
  EXPECT_NEAR(silu(1.0), 0.7310585786300049, 1e-15);
  EXPECT_NEAR(silu(-2.0), -0.2384058440442351, 1e-15);
}

TEST(Recurrence, Mamba2ByHand) {
  Layer layer = layer_of(Rule::kMamba2, 1, 1, 2, 2);
  layer.a_log = {std::log(2.0)};  // A = -2
  layer.dt_softplus = false;
  layer.dt_bias = {0.25};
  layer.d = {10.0};
  Token token{{1.0, 3.0}, {2.0, -1.0}, {4.0, 8.0}, {0.25}, {}, {}};  // dt = 0.5, a = e^-1
  State state{1.0, 2.0, 3.0, 4.0};
  const auto out = recurrence_step(layer, token, &state);
  const double a = std::exp(-1.0);
  // dt x = (2, 4); dt x B^T = ((4, -2), (8, -4)).
  EXPECT_NEAR(state[0], a + 4.0, 1e-15);
  EXPECT_NEAR(state[1], 2.0 * a - 2.0, 1e-15);
  EXPECT_NEAR(state[2], 3.0 * a + 8.0, 1e-15);
  EXPECT_NEAR(state[3], 4.0 * a - 4.0, 1e-15);
  EXPECT_NEAR(out[0], (a + 4.0) + 3.0 * (2.0 * a - 2.0) + 40.0, 1e-14);
  EXPECT_NEAR(out[1], (3.0 * a + 8.0) + 3.0 * (4.0 * a - 4.0) + 80.0, 1e-14);
  // z multiplies skip and state alike.
  token.z = {1.0, -2.0};
  State again{1.0, 2.0, 3.0, 4.0};
  const auto gated = recurrence_step(layer, token, &again);
  EXPECT_NEAR(gated[0], out[0] * 0.7310585786300049, 1e-13);
  EXPECT_NEAR(gated[1], out[1] * -0.2384058440442351, 1e-13);
}

TEST(Recurrence, Mamba2ClampsAfterSoftplus) {
  Layer layer = layer_of(Rule::kMamba2, 1, 1, 1, 1);
  layer.dt_min = 0.1;
  layer.dt_max = 0.5;
  for (const auto& [raw, dt] :
       {std::pair{0.0, 0.5}, std::pair{-20.0, 0.1}, std::pair{-1.0, 0.31326168751822286}}) {
    State state{0.0};
    recurrence_step(layer, Token{{1.0}, {1.0}, {1.0}, {raw}, {}, {}}, &state);
    EXPECT_NEAR(state[0], dt, 1e-15);
  }
}

TEST(Recurrence, GdnByHand) {
  Layer layer = layer_of(Rule::kGdn, 1, 1, 1, 2);
  layer.q_scale = 0.5;
  // softplus(0) = log 2, A = -1: a = 1/2. beta = sigmoid(0) = 1/2.
  const Token token{{2.0, 4.0}, {0.6, 0.8}, {3.0}, {0.0}, {0.0}, {}};
  State state{4.0, 2.0};
  const auto out = recurrence_step(layer, token, &state);
  // decayed (2, 1); prediction 2; u = (3 - 2) / 2.
  EXPECT_NEAR(state[0], 2.3, 1e-14);
  EXPECT_NEAR(state[1], 1.4, 1e-14);
  EXPECT_NEAR(out[0], 2.3 + 2.0 * 1.4, 1e-14);
  layer.double_beta = true;
  State doubled{4.0, 2.0};
  recurrence_step(layer, token, &doubled);
  EXPECT_NEAR(doubled[0], 2.6, 1e-14);
}

TEST(Recurrence, NormalisationPutsEpsilonInsideTheRoot) {
  Layer layer = layer_of(Rule::kGdn, 1, 1, 1, 2);
  layer.l2_norm = true;
  layer.beta_given = true;
  const Token token{{3e-3, 4e-3}, {3e-4, 4e-4}, {1.0}, {-kInfinity}, {1.0}, {}};
  const Derived in = derive(layer, token);
  EXPECT_NEAR(in.q[0], 3e-3 / std::sqrt(25e-6 + 1e-6), 1e-15);
  EXPECT_NEAR(in.k[1], 4e-4 / std::sqrt(25e-8 + 1e-6), 1e-15);
  EXPECT_NEAR(in.inv_norm[0], 1.0 / std::sqrt(1.25e-6), 1e-9);
}

TEST(Recurrence, KdaDecaysEveryChannelByItself) {
  Layer layer = layer_of(Rule::kKda, 1, 1, 1, 3);
  layer.a_log = {std::log(2.0)};
  layer.dt_bias = {0.0, 1.0, -1.0};
  Token token{{1.0, 1.0, 1.0}, {0.0, 0.0, 0.0}, {0.0}, {0.0, 0.0, 1.0}, {0.0}, {}};
  State state{1.0, 1.0, 1.0};
  recurrence_step(layer, token, &state);
  EXPECT_NEAR(state[0], 0.25, 1e-15);  // e^(-2 log 2)
  EXPECT_NEAR(state[1], std::exp(-2.0 * 1.3132616875182228), 1e-15);
  EXPECT_NEAR(state[2], 0.25, 1e-15);
  layer.gate = GateKind::kBounded;
  layer.lower_bound = -5.0;
  State bounded{1.0, 1.0, 1.0};
  recurrence_step(layer, token, &bounded);
  EXPECT_NEAR(bounded[0], std::exp(-2.5), 1e-15);
  EXPECT_NEAR(bounded[1], std::exp(-5.0 * 0.8807970779778823), 1e-15);  // sigmoid(2 * 1)
  token.gate = {1e9, -1e9, 0.0};
  State extremes{1.0, 1.0, 1.0};
  recurrence_step(layer, token, &extremes);
  EXPECT_NEAR(extremes[0], std::exp(-5.0), 1e-15);
  EXPECT_EQ(extremes[1], 1.0);
}

// A delta-rule state is an associative memory: after writing v under a unit key with beta = 1,
// reading it gives v.
TEST(Recurrence, DeltaRuleRemembersExactly) {
  Random random(5);
  Layer layer = layer_of(Rule::kGdn, 1, 1, 3, 8);
  layer.beta_given = true;
  layer.gate = GateKind::kLogDecay;
  layer.l2_norm = true;
  State state = random.normals(24, 1.0);
  Token token = random_token(random, layer);
  for (double& k : token.k) k *= 1e6;  // the epsilon of the norm vanishes
  token.q = token.k;
  token.gate = {-0.3};
  token.beta = {1.0};
  const auto out = recurrence_step(layer, token, &state);
  for (int row = 0; row < 3; ++row) EXPECT_NEAR(out[row], token.v[row], 1e-12);
}

TEST(Recurrence, HeadsShareGroupsInBlocks) {
  for (const Rule rule : {Rule::kMamba2, Rule::kGdn, Rule::kKda}) {
    Layer layer = layer_of(rule, 6, 2, 1, 1);
    Token token;
    token.q = {1.0, 100.0};
    token.k = {0.5, 0.25};
    token.v.assign(6, 1.0);
    token.gate.assign(6, 0.0);
    if (layer.delta_rule()) token.beta.assign(6, 0.0);
    State state = zero_state(layer);
    const auto out = recurrence_step(layer, token, &state);
    const double weight = rule == Rule::kMamba2 ? std::log(2.0) : 0.5;
    for (int head = 0; head < 6; ++head) {
      EXPECT_NEAR(out[head], head < 3 ? weight * 0.5 : weight * 25.0, 1e-13) << head;
    }
  }
}

TEST(Recurrence, TreesFollowTheirOwnPath) {
  Random random(9);
  const Layer layer = random_layer(random, Rule::kKda);
  std::vector<Token> tokens;
  for (int t = 0; t < 4; ++t) tokens.push_back(random_token(random, layer));
  const State start = random.normals(layer.state_size(), 1.0);
  const RecurrenceRun tree = recurrence_run(layer, start, tokens, {-1, 0, 0, -1});
  const RecurrenceRun left = recurrence_run(layer, start, {tokens[0], tokens[1]}, {});
  const RecurrenceRun right = recurrence_run(layer, start, {tokens[0], tokens[2]}, {});
  const RecurrenceRun alone = recurrence_run(layer, start, {tokens[3]}, {});
  EXPECT_EQ(tree.outputs[1], left.outputs[1]);
  EXPECT_EQ(tree.outputs[2], right.outputs[1]);
  EXPECT_EQ(tree.outputs[3], alone.outputs[0]);
  EXPECT_NE(tree.states[2], recurrence_run(layer, start, tokens, {}).states[2]);
}

TEST(Conv, ByHand) {
  Conv conv{2, 3, false, {1.0, 10.0, 100.0, 2.0, 20.0, 200.0}, {0.5, -0.5}};
  ASSERT_TRUE(check_conv(conv).ok());
  ConvHistory history = zero_history(conv);
  EXPECT_EQ(conv_step(conv, {1.0, 1.0}, &history), (std::vector<double>{100.5, 199.5}));
  EXPECT_EQ(conv_step(conv, {2.0, 0.0}, &history), (std::vector<double>{210.5, 19.5}));
  EXPECT_EQ(conv_step(conv, {3.0, 0.0}, &history), (std::vector<double>{321.5, 1.5}));
  EXPECT_EQ(history, (ConvHistory{{2.0, 0.0}, {3.0, 0.0}}));
  conv.silu = true;
  EXPECT_NEAR(conv_step(conv, {-0.325, 0.0025}, &history)[0], silu(2.0 + 30.0 - 32.5 + 0.5), 1e-15);
}

TEST(Conv, TreesFollowTheirAncestors) {
  const Conv conv{1, 3, false, {1.0, 10.0, 100.0}, {}};
  const ConvRun run = conv_run(conv, {{7.0}, {8.0}}, {{1.0}, {2.0}, {3.0}, {4.0}}, {-1, 0, 0, 2});
  EXPECT_EQ(run.outputs[0][0], 7.0 + 80.0 + 100.0);
  EXPECT_EQ(run.outputs[1][0], 8.0 + 10.0 + 200.0);
  EXPECT_EQ(run.outputs[2][0], 8.0 + 10.0 + 300.0);
  EXPECT_EQ(run.outputs[3][0], 1.0 + 30.0 + 400.0);
}

TEST(Layer, RefusesWhatDoesNotFit) {
  Layer layer = layer_of(Rule::kMamba2, 4, 2, 8, 8);
  const auto bad = StatusCode::kInvalidArgument;
  Layer broken = layer;
  broken.groups = 3;
  EXPECT_EQ(check_layer(broken).code(), bad);
  broken = layer;
  broken.a_log.pop_back();
  EXPECT_EQ(check_layer(broken).code(), bad);
  broken = layer;
  broken.a = {-1, -1, -1, -1};  // both forms of A
  EXPECT_EQ(check_layer(broken).code(), bad);
  broken = layer;
  broken.rule = Rule::kGdn;
  broken.gate = GateKind::kBounded;
  EXPECT_EQ(check_layer(broken).code(), bad);
  broken.rule = Rule::kKda;
  broken.lower_bound = 0.0;
  EXPECT_EQ(check_layer(broken).code(), bad);
  broken.lower_bound = -1.0;
  EXPECT_TRUE(check_layer(broken).ok());
  EXPECT_EQ(check_token(layer, Token{}).code(), bad);
}

}  // namespace
}  // namespace replayssm::oracle::testing
