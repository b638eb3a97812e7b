// Random cases of a property test, each with a seed of its own that is printed when the case fails
// and can be run alone: REPLAYSSM_SEED=<seed> <test program> --gtest_filter=<Suite.Case>.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>

namespace replayssm::testing {

// The seed given in the environment. A value that is no number ends the program: the replay of a
// failure must not silently run something else.
inline std::optional<std::uint64_t> seed_from_environment() {
  const char* text = std::getenv("REPLAYSSM_SEED");
  if (text == nullptr || *text == '\0') return std::nullopt;
  char* end = nullptr;
  const std::uint64_t seed = std::strtoull(text, &end, 0);
  if (*end != '\0') {
    std::cerr << "error: REPLAYSSM_SEED must be an unsigned number, but is '" << text << "'\n";
    std::exit(2);
  }
  return seed;
}

// Spreads (base, index) over 64 bits: the finalizer of splitmix64 (Steele, Lea, Flood 2014).
inline std::uint64_t case_seed(std::uint64_t base, std::uint64_t index) {
  std::uint64_t z = base + 0x9e3779b97f4a7c15ULL * (index + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

// Calls body(seed) for `count` cases, or for the one seed that the environment gives. Stops at the
// first case that fails and says how to run it again. `base` differs from test to test.
template <typename Body>
void for_each_case(std::uint64_t base, std::int64_t count, Body&& body) {
  const auto run = [&body](std::uint64_t seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    body(seed);
    if (!::testing::Test::HasFailure()) return true;
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    std::cout << "failed with seed " << seed << "; run it again: REPLAYSSM_SEED=" << seed
              << " PROGRAM --gtest_filter=" << info->test_suite_name() << "." << info->name()
              << std::endl;
    return false;
  };
  if (const auto seed = seed_from_environment()) {
    run(*seed);
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    if (!run(case_seed(base, static_cast<std::uint64_t>(i)))) return;
  }
}

}  // namespace replayssm::testing
