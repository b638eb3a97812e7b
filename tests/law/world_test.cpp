// Random caches under random schedules against the float64 recurrence, for every implementation of
// the registry; and the same worlds with a planted fault, which they must notice.
#include <gtest/gtest.h>

#include <cstdint>
#include <iostream>
#include <string>
#include <tuple>

#include "tests/law/support/world.hpp"
#include "tests/support/seed.hpp"

namespace replayssm::laws {
namespace {

#if defined(REPLAYSSM_LAW_CUDA)
constexpr bool kCountsRare = false;  // one world in a hundred folds an import: too few run here
#else
constexpr bool kCountsRare = true;
#endif

// Other cases for each implementation, the same on every machine.
std::uint64_t base_of(const std::string& name) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

class WorldLaw : public ::testing::TestWithParam<std::string> {};

TEST_P(WorldLaw, EveryOutputAndStateIsTheRecurrences) {
  WorldCounts counts;
  WorldOptions options;
  options.implementation = implementation_named(GetParam());
  const bool replay = options.implementation.decode == DecodeMode::kReplay;
  // The cases are shared out among the implementations of a kind.
  const auto sharers = static_cast<std::int64_t>(available(options.implementation.decode).size());
  const std::int64_t cases = (replay ? REPLAYSSM_WORLD_CASES : REPLAYSSM_WORLD_CASES / 4) / sharers;
  testing::for_each_case(base_of(GetParam()), cases, [&](std::uint64_t seed) {
    const std::string problem = run_world(seed, options, &counts, nullptr);
    ASSERT_EQ(problem, "");
  });
  std::cout << counts.text() << "\n";
  if (testing::seed_from_environment() || HasFailure() || cases < 500) return;
  // A property that is never exercised proves nothing.
  EXPECT_GT(counts.outputs, 20 * cases);
  for (const std::int64_t count : {counts.trees,
                                   counts.branches,
                                   counts.rejected,
                                   counts.zero_accepts,
                                   counts.prefills,
                                   counts.empty_rows,
                                   counts.padding,
                                   counts.forks,
                                   counts.materialized,
                                   counts.loads,
                                   counts.imports,
                                   counts.moves,
                                   counts.aborts,
                                   counts.aborts_after_fold,
                                   counts.recycled,
                                   counts.mid_releases,
                                   counts.lent,
                                   replay ? counts.folds : cases,
                                   replay ? counts.shared_folds * 4 : cases,
                                   replay ? counts.rewinds : cases,
                                   replay && kCountsRare ? counts.refolds * 2 : cases,
                                   counts.torn * 2}) {
    EXPECT_GT(count, cases / 50);
  }
}

const char* fault_name(Fault fault) {
  switch (fault) {
    case Fault::kNone: return "None";
    case Fault::kOutputNudged: return "OutputNudged";
    case Fault::kConvNudged: return "ConvNudged";
    case Fault::kStateNudged: return "StateNudged";
    case Fault::kTokenLost: return "TokenLost";
    case Fault::kTokensSwapped: return "TokensSwapped";
    case Fault::kRejectedKept: return "RejectedKept";
    case Fault::kTreeAsChain: return "TreeAsChain";
    case Fault::kConvOfRejected: return "ConvOfRejected";
    case Fault::kStaleFork: return "StaleFork";
    case Fault::kOtherSlot: return "OtherSlot";
    case Fault::kAbortLeavesTrace: return "AbortLeavesTrace";
  }
  return "Unknown";
}

class BrokenTwin : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(BrokenTwin, IsRejected) {
  WorldCounts counts;
  WorldOptions options;
  options.implementation = implementation_named(std::get<0>(GetParam()));
  options.fault = static_cast<Fault>(std::get<1>(GetParam()));
  if (options.fault == Fault::kStaleFork &&
      options.implementation.decode == DecodeMode::kConventional) {
    GTEST_SKIP() << "a conventional fork holds no records";
  }
  int happened = 0;
  int noticed = 0;
  for (std::uint64_t i = 0; i < REPLAYSSM_TWIN_CASES; ++i) {
    bool planted = false;
    const std::string problem = run_world(testing::case_seed(0x7e1, i), options, &counts, &planted);
    ASSERT_TRUE(planted || problem.empty()) << "without the fault: " << problem;
    happened += planted ? 1 : 0;
    noticed += planted && !problem.empty() ? 1 : 0;
  }
  std::cout << "planted in " << happened << " of " << REPLAYSSM_TWIN_CASES << " worlds, noticed in "
            << noticed << "\n";
  EXPECT_GT(happened, REPLAYSSM_TWIN_CASES / 20);
  const bool certain =
      options.fault == Fault::kOutputNudged || options.fault == Fault::kConvNudged ||
      options.fault == Fault::kStateNudged || options.fault == Fault::kConvOfRejected;
  // The others may fall on a slot that is released or forgets everything before it is looked at.
  EXPECT_GE(noticed, certain ? happened : happened * 2 / 3);
}

std::string law_name(const ::testing::TestParamInfo<std::string>& about) {
  return test_name(about.param);
}
std::string twin_name(const ::testing::TestParamInfo<std::tuple<std::string, int>>& about) {
  return test_name(std::get<0>(about.param)) + "_" +
         fault_name(static_cast<Fault>(std::get<1>(about.param)));
}

// The twins judge the comparisons, which are the same for all: one implementation of each kind.
std::vector<std::string> one_of_each_kind() {
  std::vector<std::string> names;
  for (const DecodeMode decode : {DecodeMode::kReplay, DecodeMode::kConventional}) {
    const std::vector<std::string> all = available_names(decode);
    if (!all.empty()) names.push_back(all.front());
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, WorldLaw, ::testing::ValuesIn(available_names()), law_name);
INSTANTIATE_TEST_SUITE_P(
    All, BrokenTwin,
    ::testing::Combine(::testing::ValuesIn(one_of_each_kind()),
                       ::testing::Range(1, static_cast<int>(Fault::kAbortLeavesTrace) + 1)),
    twin_name);

}  // namespace
}  // namespace replayssm::laws
