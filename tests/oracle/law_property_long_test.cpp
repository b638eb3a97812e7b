// The property of law_property_test.cpp over ten thousand lives of a cache, with seeds of their
// own.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "tests/oracle/law_scenario.hpp"
#include "tests/oracle/random_layers.hpp"

namespace replayssm::oracle::testing {
namespace {

TEST(LawPropertyLong, ReplayEqualsRecurrence) {
  const std::uint64_t seed = from_environment("REPLAYSSM_TEST_SEED", 1'000'000);
  const std::uint64_t cases = from_environment("REPLAYSSM_TEST_CASES", 10'000);
  ScenarioCounts counts;
  for (std::uint64_t i = 0; i < cases; ++i) {
    const std::string error = run_scenario(seed + i, Fault::kNone, &counts);
    ASSERT_EQ(error, "") << "replay with REPLAYSSM_TEST_SEED=" << seed + i
                         << " REPLAYSSM_TEST_CASES=1";
  }
  RecordProperty("tokens", std::to_string(counts.tokens));
  EXPECT_TRUE(cases < 1000 || counts.folds > 1000);
}

}  // namespace
}  // namespace replayssm::oracle::testing
