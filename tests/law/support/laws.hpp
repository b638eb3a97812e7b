// What the bitwise law tests share: a random case with room for what they need.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/law/support/decode.hpp"
#include "tests/support/seed.hpp"

namespace replayssm::laws {

// A random case with at least `slots` slots and blocks, and max_tokens for all of them.
[[nodiscard]] inline Case roomy_case(Random& random, const ImplementationInfo& info, int slots) {
  CaseLimits limits;
  limits.max_layers = 2;
  Case made = random_case(random, info, limits);
  CacheConfig& config = made.config;
  config.slots = slots + random.integer(0, 2);
  config.blocks = 2 * config.slots + 2;
  config.max_rows = config.slots + 1;
  config.max_tokens = config.max_rows * config.max_step_tokens + 8;
  return made;
}

[[nodiscard]] inline std::unique_ptr<Machine> make_machine(const Case& made, bool lent, bool loop,
                                                           std::uint64_t seed) {
  MachineOptions options;
  options.lent = lent;
  options.caller_threads = loop;
  Status error;
  std::unique_ptr<Machine> machine = Machine::create(made, options, seed, &error);
  EXPECT_TRUE(error.ok()) << error.to_string() << "\n" << made.describe();
  return machine;
}

[[nodiscard]] inline std::int64_t held(Machine& machine, std::uint64_t seed = 7) {
  const Result<std::int64_t> slot = machine.cache().acquire(seed);
  EXPECT_TRUE(slot.ok()) << slot.status().to_string();
  return slot.ok() ? *slot : -1;
}

[[nodiscard]] inline Row chain_row(std::int64_t slot, std::vector<ModelToken> tokens) {
  Row row;
  row.slot = slot;
  row.tokens = std::move(tokens);
  return row;
}

[[nodiscard]] inline std::vector<ModelToken> random_tokens(Random& random, const Case& made,
                                                           int count) {
  std::vector<ModelToken> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(random_token(random, made));
  return tokens;
}

[[nodiscard]] inline std::string law_name(const ::testing::TestParamInfo<std::string>& about) {
  return test_name(about.param);
}

}  // namespace replayssm::laws
