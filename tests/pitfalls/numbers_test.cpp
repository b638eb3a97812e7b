// Pitfalls 21 to 35: numbers.
#include <bit>

#include "oracle/rounding.hpp"
#include "tests/pitfalls/checked.hpp"

namespace replayssm::laws {
namespace {

class Pitfalls : public ::testing::TestWithParam<std::string> {};

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<CaseLayer> one_layer(Rule rule, GateKind gate, int key_dim = 16) {
  Random random(5);
  CaseLayer layer = simple_layer(random, rule, 2, 1, 8, key_dim);
  layer.shape.gate = gate;
  if (gate == GateKind::kBounded) layer.shape.gate_lower_bound = -5.0F;
  if (gate == GateKind::kLogDecay) {
    layer.a_log.clear();
    layer.dt_bias.clear();
  }
  return {layer};
}

// A token whose gates are chosen by the test.
ModelToken with_gate(const ModelToken& token, double gate) {
  auto copy = std::make_shared<std::vector<LayerToken>>(*token);
  for (LayerToken& layer : *copy) {
    for (double& value : layer.gate) value = gate;
    for (double& value : layer.token.gate) value = gate;
  }
  return copy;
}

void steps_with_gates(Checked& c, std::int64_t slot, const std::vector<double>& gates) {
  for (const double gate : gates) {
    c.forward({chain_row(slot, {with_gate(c.tokens(1)[0], gate)})}, {{1, {}}});
  }
}

TEST_P(Pitfalls, P21_DecaysAreSuffixesNotDifferences) {
  for (const Rule rule : {Rule::kGdn, Rule::kKda}) {
    Checked c(GetParam(), 16, 4, one_layer(rule, GateKind::kLogDecay));
    const std::int64_t slot = c.acquire();
    // One gate so strong that a difference of prefix sums has no digits left for the next ones.
    steps_with_gates(c, slot,
                     {-0.01, -3000.0, -0.001, -0.002, -0.003, 0.0, -0.001, -kInfinity, -0.001,
                      -0.002, 0.0, -1e-6});
    c.check_state(slot);
  }
}

TEST_P(Pitfalls, P22_GatesPerChannelKeepTheirRange) {
  for (const GateKind gate : {GateKind::kBounded, GateKind::kSoftplus, GateKind::kLogDecay}) {
    Checked c(GetParam(), 48, 16, one_layer(Rule::kKda, gate));
    const std::int64_t slot = c.acquire();
    const double strong = gate == GateKind::kLogDecay ? -5.0 : 30.0;
    const double weak = gate == GateKind::kLogDecay ? -0.001 : -9.0;
    for (int i = 0; i < 5; ++i) {
      // Channels at the bound beside channels that forget nothing, far beyond 16 tokens.
      std::vector<ModelToken> tokens = c.tokens(16);
      for (ModelToken& token : tokens) {
        auto copy = std::make_shared<std::vector<LayerToken>>(*token);
        for (std::size_t k = 0; k < (*copy)[0].gate.size(); ++k) {
          (*copy)[0].gate[k] = (*copy)[0].token.gate[k] =
              k % 3 == 0 ? strong : oracle::round_to(weak, DType::kF32);
        }
        token = copy;
      }
      c.forward({chain_row(slot, tokens)}, {{16, {}}});
    }
    c.check_state(slot);
  }
}

TEST_P(Pitfalls, P23_FutureGatesDoNotReachBack) {
  for (const Rule rule : {Rule::kMamba2, Rule::kGdn, Rule::kKda}) {
    const GateKind gate = rule == Rule::kMamba2 ? GateKind::kSoftplus : GateKind::kLogDecay;
    Checked c(GetParam(), 16, 8, one_layer(rule, gate));
    const std::int64_t a = c.acquire();
    c.step(a, 3, 3);
    const std::int64_t b = *c.cache().fork(a);
    c.same(b, a);
    std::vector<ModelToken> tokens = c.tokens(8);
    std::string problem;
    const auto plain = decode_row(*c.machine, chain_row(a, tokens), {1, {}}, &problem);
    tokens[7] = with_gate(tokens[7], rule == Rule::kMamba2 ? 90.0 : -1e4);
    const auto strong = decode_row(*c.machine, chain_row(b, tokens), {1, {}}, &problem);
    ASSERT_EQ(problem, "");
    for (int t = 0; t < 7; ++t) EXPECT_EQ(plain[t], strong[t]) << t;
    EXPECT_NE(plain[7], strong[7]);
  }
}

TEST_P(Pitfalls, P24_TheBoundedGateIsASigmoid) {
  Checked c(GetParam(), 4, 2, one_layer(Rule::kKda, GateKind::kBounded));
  const std::int64_t slot = c.acquire();
  steps_with_gates(c, slot, {-4.0, -1.0, 0.0, 0.5, 1.0, 3.0, 8.0, 40.0});
  c.check_state(slot);
  // A clamped softplus would be told apart.
  CaseLayer& layer = c.made.layers[0];
  oracle::Layer other = layer.oracle;
  other.gate = oracle::GateKind::kSoftplus;
  const ModelToken token = with_gate(c.tokens(1)[0], 0.5);
  const double sigmoid = oracle::derive(layer.oracle, (*token)[0].token).log_decay[0];
  const double clamped = std::max(-5.0, oracle::derive(other, (*token)[0].token).log_decay[0]);
  EXPECT_GT(std::abs(sigmoid - clamped), 0.1);
}

TEST_P(Pitfalls, P25_BetaAndGatesStayF32) {
  // bf16 activations, f32 gates and betas: rounding either to bf16 is 4e-3, the bound 1e-5.
  for (const Rule rule : {Rule::kMamba2, Rule::kGdn, Rule::kKda}) {
    Checked c(GetParam(), 8, 2, one_layer(rule, GateKind::kSoftplus), [](Case& made) {
      made.config.activations = DType::kBF16;
      made.config.update = DType::kF32;
      made.layers[0].shape.gate_record_f32 = true;
      made.layers[0].gate_dtype = DType::kF32;
      made.layers[0].beta_dtype = DType::kF32;
    });
    const std::int64_t slot = c.acquire();
    for (int i = 0; i < 40; ++i) c.step(slot, 2, 2);
    c.check_state(slot);
    // The twin: the recurrence with rounded gates is outside the bounds.
    const SlotReference& reference = *c.references.at(slot);
    oracle::Token token = (*c.tokens(1)[0])[0].token;
    oracle::BoundedLayer exact(c.made.layers[0].oracle,
                               oracle::Precision::of(DType::kF32, DType::kF32));
    oracle::BoundedLayer rounded = exact;
    exact.load(reference.state(0));
    rounded.load(reference.state(0));
    const auto want = exact.step({token}, {});
    for (double& gate : token.gate) gate = oracle::round_to(gate, DType::kBF16);
    for (double& beta : token.beta) beta = oracle::round_to(beta, DType::kBF16);
    const auto got = rounded.step({token}, {});
    EXPECT_FALSE(oracle::compare("twin", got.values[0], want.values[0], 8, want.bounds[0]).ok);
  }
}

TEST_P(Pitfalls, P26_FoldsTakeRawInputs) {
  Checked c(GetParam(), 4, 2);
  if (!c.replay()) GTEST_SKIP() << "nothing is stored to be folded";
  const std::int64_t slot = c.acquire();
  for (int i = 0; i < 20; ++i) {
    if (c.references.at(slot)->committed() > 0) {
      // Every stored u is lost: outputs are NaN from here, the state must not notice.
      c.machine->lent()->poison(TensorRole::kRingUpdate, slot);
    }
    std::string problem;
    Row row = chain_row(slot, c.tokens(2));
    if (c.references.at(slot)->folds(c.made.config)) c.references.at(slot)->fold(4);
    (void)decode_row(*c.machine, row, {2, {}}, &problem);
    ASSERT_EQ(problem, "");
    c.references.at(slot)->commit_step(row.tokens);
  }
  c.check_state(slot);
  EXPECT_EQ(c.cache().info(slot)->error, 0U);
}

TEST_P(Pitfalls, P27_FoldAndStepUseOneGateFormula) {
  // The state, not only outputs, after many folds; and equal bits with a state that was stepped.
  Checked c(GetParam(), 3, 3);
  const std::int64_t slot = c.acquire();
  for (int i = 0; i < 60; ++i) c.step(slot, 3, i % 3 + 1);
  c.check_state(slot);
}

TEST_P(Pitfalls, P28_P29_RejectedDraftsChangeNoBit) {
  Checked c(GetParam(), 5, 4);
  if (!c.replay()) GTEST_SKIP() << "conventional decoding has no window to share";
  const std::int64_t plain = c.acquire();
  const std::int64_t drafting = c.acquire();
  for (int i = 0; i < 200; ++i) {
    const std::vector<ModelToken> next = c.tokens(1);
    std::vector<ModelToken> drafts = c.tokens(4);
    drafts[0] = next[0];
    std::string problem;
    (void)decode_row(*c.machine, chain_row(plain, next), {1, {}}, &problem);
    (void)decode_row(*c.machine, chain_row(drafting, drafts), {1, {}}, &problem);
    ASSERT_EQ(problem, "");
    for (int layer = 0; layer < 3; ++layer) {
      if (c.cache().info(plain)->zero) continue;
      ASSERT_EQ(c.machine->checkpoint(plain, layer), c.machine->checkpoint(drafting, layer)) << i;
    }
  }
  std::string problem;
  EXPECT_EQ(stored_bytes(*c.machine, plain, &problem),
            stored_bytes(*c.machine, drafting, &problem));
}

TEST_P(Pitfalls, P30_P31_P32_NarrowFormatsAreRefusedNotFaked) {
  Checked c(GetParam());
  for (const StateFormat format : {StateFormat::kF16, StateFormat::kBF16, StateFormat::kBF16BF16,
                                   StateFormat::kI8BF16, StateFormat::kI8}) {
    CacheConfig config = c.cache().config();
    config.memory.clear();
    config.format = format;
    const std::vector<StateFormat> formats = implementation_named(GetParam()).formats;
    if (std::find(formats.begin(), formats.end(), format) != formats.end()) continue;
    const Status status = Cache::create(config).status();
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    EXPECT_NE(status.message().find(state_format_name(format)), std::string::npos);
  }
}

TEST_P(Pitfalls, P33_TheNormsEpsilonIsInsideTheRoot) {
  for (const Rule rule : {Rule::kGdn, Rule::kKda}) {
    Checked c(GetParam(), 4, 2, one_layer(rule, GateKind::kSoftplus));
    const std::int64_t slot = c.acquire();
    for (const double size : {1e-3, 3e-4, 1e-5, 0.0}) {
      auto copy = std::make_shared<std::vector<LayerToken>>(*c.tokens(1)[0]);
      for (double& value : (*copy)[0].token.k) value = oracle::round_to(value * size, DType::kF32);
      for (double& value : (*copy)[0].token.q) value = oracle::round_to(value * size, DType::kF32);
      c.forward({chain_row(slot, {copy})}, {{1, {}}});
    }
    c.check_state(slot);
  }
}

TEST_P(Pitfalls, P34_SoftplusAtItsEnds) {
  for (const Rule rule : {Rule::kMamba2, Rule::kGdn, Rule::kKda}) {
    auto layers = one_layer(rule, GateKind::kSoftplus);
    layers[0].dt_bias.clear();
    for (float& a : layers[0].a_log) a = 0.0F;
    Checked c(GetParam(), 16, 2, layers);
    const std::int64_t slot = c.acquire();
    // log(1 + e^x) loses all digits below -17 where log1p keeps them; above 20 x is returned.
    for (const double gate : {-18.0, -25.0, -60.0, -90.0, 19.5, 20.0, 20.5, 80.0, -1e4}) {
      c.forward({chain_row(slot, {with_gate(c.tokens(1)[0], gate)})}, {{1, {}}});
    }
    c.check_state(slot);
  }
}

TEST_P(Pitfalls, P35_F32InputsKeepAllTheirBits) {
  // Products of 11-bit mantissas would be off by 5e-4; the bound is some 1e-6.
  Checked c(GetParam(), 4, 2, {}, [](Case& made) { made.config.update = DType::kF32; });
  const std::int64_t slot = c.acquire();
  for (int i = 0; i < 12; ++i) c.step(slot, 2, 2);
  c.check_state(slot);
  const auto want = c.references.at(slot)->step(1, c.tokens(1), {});
  for (std::size_t i = 0; i < want.bounds[0].size(); ++i) EXPECT_LT(want.bounds[0][i], 2e-4);
}

INSTANTIATE_TEST_SUITE_P(All, Pitfalls, ::testing::ValuesIn(available_names()), law_name);

}  // namespace
}  // namespace replayssm::laws
