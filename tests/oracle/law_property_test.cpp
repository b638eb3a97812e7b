// The cache law equals the plain recurrence, over random shapes, windows, trees, accepts, forks and
// moves.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "tests/oracle/law_scenario.hpp"
#include "tests/oracle/random_layers.hpp"

namespace replayssm::oracle::testing {
namespace {

TEST(LawProperty, ReplayEqualsRecurrence) {
  const std::uint64_t seed = from_environment("REPLAYSSM_TEST_SEED", 1);
  const std::uint64_t cases = from_environment("REPLAYSSM_TEST_CASES", 800);
  ScenarioCounts counts;
  for (std::uint64_t i = 0; i < cases; ++i) {
    const std::string error = run_scenario(seed + i, Fault::kNone, &counts);
    ASSERT_EQ(error, "") << "replay with REPLAYSSM_TEST_SEED=" << seed + i
                         << " REPLAYSSM_TEST_CASES=1";
  }
  std::printf(
      "tokens %lld, folds %lld (%lld of shared blocks), trees %lld (%lld branches taken), "
      "rejections %lld,\n"
      "forks %lld, prefills %lld, materialized %lld, imports %lld, aborts %lld, recycled slots "
      "%lld\n"
      "worst error over scale: outputs %.2e, states %.2e\n",
      static_cast<long long>(counts.tokens), static_cast<long long>(counts.folds),
      static_cast<long long>(counts.copies), static_cast<long long>(counts.trees),
      static_cast<long long>(counts.branches), static_cast<long long>(counts.rejections),
      static_cast<long long>(counts.forks), static_cast<long long>(counts.prefills),
      static_cast<long long>(counts.materialized), static_cast<long long>(counts.imports),
      static_cast<long long>(counts.aborts), static_cast<long long>(counts.recycled),
      counts.worst_output, counts.worst_state);
  if (cases < 100) return;
  // A property that is never exercised proves nothing.
  for (const std::int64_t count :
       {counts.folds, counts.copies, counts.trees, counts.branches, counts.rejections, counts.forks,
        counts.prefills, counts.materialized, counts.imports, counts.aborts, counts.recycled}) {
    EXPECT_GT(count, static_cast<std::int64_t>(cases / 100));
  }
}

class BrokenTwin : public ::testing::TestWithParam<Fault> {};

TEST_P(BrokenTwin, IsRejected) {
  ScenarioCounts counts;
  int rejected = 0;
  constexpr int kCases = 120;
  for (std::uint64_t seed = 1; seed <= kCases; ++seed) {
    rejected += run_scenario(seed, GetParam(), &counts).empty() ? 0 : 1;
  }
  std::printf("rejected in %d of %d cases\n", rejected, kCases);
  EXPECT_GE(rejected, kCases / 20);
}

std::string fault_name(const ::testing::TestParamInfo<Fault>& info) {
  switch (info.param) {
    case Fault::kNone: return "None";
    case Fault::kFoldTooFew: return "FoldTooFew";
    case Fault::kForgetDecay: return "ForgetDecay";
    case Fault::kTreeAsChain: return "TreeAsChain";
    case Fault::kCursorPerLayer: return "CursorPerLayer";
    case Fault::kPrefixSums: return "PrefixSums";
    case Fault::kFoldStoredU: return "FoldStoredU";
    case Fault::kIgnoreZeroFlag: return "IgnoreZeroFlag";
    case Fault::kFoldInPlace: return "FoldInPlace";
    case Fault::kKeepRejected: return "KeepRejected";
  }
  return "Unknown";
}

INSTANTIATE_TEST_SUITE_P(Law, BrokenTwin,
                         ::testing::Values(Fault::kFoldTooFew, Fault::kForgetDecay,
                                           Fault::kTreeAsChain, Fault::kCursorPerLayer,
                                           Fault::kPrefixSums, Fault::kFoldStoredU,
                                           Fault::kIgnoreZeroFlag, Fault::kFoldInPlace,
                                           Fault::kKeepRejected),
                         fault_name);

}  // namespace
}  // namespace replayssm::oracle::testing
