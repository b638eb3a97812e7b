// Long runs: 20,000 tokens of replay beside conventional f32 decoding, and 5,000 steps of which
// every draft is rejected.
#include <algorithm>
#include <cmath>
#include <iostream>

#include "oracle/bounds.hpp"
#include "oracle/rounding.hpp"
#include "tests/law/support/laws.hpp"
#include "tests/law/support/reference.hpp"

namespace replayssm::laws {
namespace {

Case long_case(const ImplementationInfo& info, Rule rule, int window, int step_tokens) {
  Random random(3);
  Case made;
  made.config.implementation = info.name;
  made.config.decode = info.decode;
  made.config.activations = DType::kBF16;
  made.config.update = DType::kBF16;
  made.config.window = window;
  made.config.max_step_tokens = step_tokens;
  made.config.slots = 3;
  made.config.blocks = 8;
  made.config.max_tokens = 64;
  made.config.threads = 1;
  CaseLayer layer = simple_layer(random, rule, 2, 1, 16, 16);
  layer.gate_dtype = layer.beta_dtype = DType::kF32;
  layer.out_dtype = DType::kF32;
  // Long memory: time constants from tens to ten thousands of tokens.
  for (std::size_t i = 0; i < layer.dt_bias.size(); ++i) {
    layer.dt_bias[i] = -3.0F - 5.0F * static_cast<float>(i % 8) / 7.0F;
  }
  made.layers.push_back(layer);
  finish_case(&made);
  return made;
}

class Drift : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  [[nodiscard]] ImplementationInfo info() const {
    return implementation_named(std::get<0>(GetParam()));
  }
  [[nodiscard]] Rule rule() const { return static_cast<Rule>(std::get<1>(GetParam())); }
};

// The bound: replay and conventional each stay within the float64 recurrence's bounds, of which the
// stored u of the read track (bf16) is by far the largest part. The reference is advanced by the
// states of conventional decoding, exact at each window's start, so that the bound of a window does
// not carry the f32 error of the 20,000 tokens before; what that adds is the measured difference of
// the states, which must be 0: the fold repeats the conventional arithmetic bit for bit.
TEST_P(Drift, ReplayBesideConventional) {
  const ImplementationInfo other = implementation_named(info().name + "-conventional");
  ASSERT_TRUE(other.available);
  Random random(8);
  const Case made = long_case(info(), rule(), 16, 1);
  Case written_case = made;
  written_case.config.implementation = other.name;
  written_case.config.decode = DecodeMode::kConventional;
  auto replay = make_machine(made, true, false, 1);
  auto written = make_machine(written_case, true, false, 1);
  ASSERT_TRUE(replay && written);
  const std::int64_t a = held(*replay);
  const std::int64_t b = held(*written);
  const oracle::Precision replayed = oracle::Precision::of(DType::kBF16, DType::kF32);
  oracle::BoundedLayer window(made.layers[0].oracle, replayed);
  double worst = 0.0;
  double worst_ratio = 0.0;
  double first = 0.0;
  double last = 0.0;
  double size = 0.0;
  std::string problem;
  for (int token = 0; token < REPLAYSSM_LONG_TOKENS; ++token) {
    const std::vector<ModelToken> next = random_tokens(random, made, 1);
    if (token > 0 && token % 16 == 0) {
      // Both begin their next window from the same bits.
      Machine::Stored state;
      ASSERT_TRUE(written->store(b, DType::kF32, false, &state).ok());
      window.load(state.state[0]);
    }
    const oracle::Token& input = (*next[0])[0].token;
    const oracle::BoundedOutputs want = window.step({input}, {});
    (void)decode_row(*replay, chain_row(a, next), {1, {}}, &problem);
    (void)decode_row(*written, chain_row(b, next), {1, {}}, &problem);
    ASSERT_EQ(problem, "");
    window.commit({input});
    const std::vector<double> got = replay->output(0, 0, 0);
    const std::vector<double> base = written->output(0, 0, 0);
    double squares = 0.0;
    double sizes = 0.0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double off = std::abs(got[i] - base[i]);
      worst = std::max(worst, off);
      // Both sides are within the bound of the exact value.
      worst_ratio = std::max(worst_ratio, off / (2.0 * want.bounds[0][i]));
      squares += off * off;
      sizes += base[i] * base[i];
    }
    (token < REPLAYSSM_LONG_TOKENS / 2 ? first : last) += squares;
    size += sizes;
    if ((token + 1) % 16 == 0) {
      // The next forward folds; a row without tokens does it now.
      (void)decode_row(*replay, chain_row(a, {}), {0, {}}, &problem);
      ASSERT_EQ(replay->checkpoint(a, 0), written->checkpoint(b, 0)) << "token " << token;
    }
  }
  const double rms = std::sqrt((first + last) / size);
  std::cout << rule_name(rule()) << ", " << REPLAYSSM_LONG_TOKENS
            << " tokens: relative rms difference of outputs " << rms << ", first half "
            << std::sqrt(2.0 * first / size) << ", second half " << std::sqrt(2.0 * last / size)
            << ", largest " << worst << ", largest over its bound " << worst_ratio
            << "; checkpoints equal bit for bit\n";
  EXPECT_LE(worst_ratio, 1.0);
  // No growth with length: the second half is as near as the first.
  EXPECT_LT(last, 4.0 * first + 1e-30);
  // u in bf16 must show, or nothing was measured.
  if (rule() != Rule::kMamba2) {
    EXPECT_GT(rms, 1e-6);
  }
}

// Every draft of 5,000 steps is rejected, forwards are aborted on the way, and the bits are those
// of plain decoding.
TEST_P(Drift, RejectedDraftsAndAbortsLeaveNoBit) {
  Random random(9);
  const Case made = long_case(info(), rule(), 8, 4);
  auto machine = make_machine(made, true, false, 1);
  ASSERT_TRUE(machine);
  const std::int64_t plain = held(*machine);
  const std::int64_t drafting = held(*machine);
  std::string problem;
  int aborts = 0;
  int torn = 0;
  for (int step = 0; step < REPLAYSSM_LONG_STEPS; ++step) {
    const std::vector<ModelToken> next = random_tokens(random, made, 1);
    std::vector<ModelToken> drafts = random_tokens(random, made, 4);
    drafts[0] = next[0];
    if (step % 7 == 3) {
      // A forward that is given up: before its fold, behind it, behind its layer.
      ASSERT_TRUE(machine->begin({chain_row(drafting, drafts)}).ok());
      if (step % 3 > 0) {
        ASSERT_TRUE(machine->fold().ok());
      }
      if (step % 3 > 1) {
        ASSERT_TRUE(machine->run_layer(0, &problem).ok());
      }
      ASSERT_TRUE(machine->cache().abort().ok());
      ++aborts;
    }
    if (step % 500 == 250) {
      // A prompt chunk in another slot is given up midway: that slot is torn, this one is not.
      const std::int64_t third = held(*machine);
      Row chunk = chain_row(third, random_tokens(random, made, 3));
      chunk.prefill = true;
      (void)decode_row(*machine, chunk, {3, {}}, &problem);
      ASSERT_TRUE(machine->begin({chunk, chain_row(drafting, drafts)}).ok());
      ASSERT_TRUE(machine->fold().ok());
      ASSERT_TRUE(machine->run_layer(0, &problem).ok());
      ASSERT_TRUE(machine->cache().abort().ok());
      EXPECT_EQ(machine->cache().info(third)->error, kSlotTorn);
      EXPECT_EQ(machine->cache().info(drafting)->error, 0U);
      ASSERT_TRUE(machine->cache().release(third).ok());
      ++torn;
    }
    (void)decode_row(*machine, chain_row(plain, next), {1, {}}, &problem);
    (void)decode_row(*machine, chain_row(drafting, drafts), {1, {}}, &problem);
    ASSERT_EQ(problem, "") << "step " << step;
    const Result<SlotInfo> info = machine->cache().info(plain);
    ASSERT_TRUE(info.ok());
    if (info->zero || step % 8 != 0) continue;
    ASSERT_EQ(machine->checkpoint(plain, 0), machine->checkpoint(drafting, 0)) << "step " << step;
  }
  EXPECT_EQ(stored_bytes(*machine, plain, &problem), stored_bytes(*machine, drafting, &problem));
  std::cout << REPLAYSSM_LONG_STEPS << " steps with 3 rejected drafts each, " << aborts
            << " aborted forwards, " << torn << " torn slots\n";
  EXPECT_GT(torn, 0);
}

std::string long_name(const ::testing::TestParamInfo<std::tuple<std::string, int>>& about) {
  return test_name(std::get<0>(about.param)) + "_" +
         std::string(rule_name(static_cast<Rule>(std::get<1>(about.param))));
}

INSTANTIATE_TEST_SUITE_P(
    All, Drift,
    ::testing::Combine(::testing::ValuesIn(available_names(DecodeMode::kReplay)),
                       ::testing::Range(0, 3)),
    long_name);

}  // namespace
}  // namespace replayssm::laws
