// The recurrence of the CPU backend's levels against float64, and its forms against each other bit
// for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/level.hpp"

namespace replayssm::cpu {
namespace {

std::vector<const Level*> levels() {
  std::vector<const Level*> all = {&scalar_level()};
  for (const Level* level : {avx2_level(), avx512_level()}) {
    if (level != nullptr) all.push_back(level);
  }
  return all;
}

class AdvanceTest : public testing::TestWithParam<const Level*> {
 protected:
  const Level& level() const { return *GetParam(); }
  std::mt19937 random_{20261130};
};

std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

struct Operands {
  std::int32_t keys, values, tokens;
  std::vector<float> key, decay, scale, value, query, source;
};

Operands random_run(Rule rule, std::int32_t keys, std::int32_t values, std::int32_t tokens,
                    std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform(0.3F, 1.0F);
  const auto fill = [&](std::int64_t n, auto draw) {
    std::vector<float> x(static_cast<std::size_t>(n));
    for (float& y : x) y = draw();
    return x;
  };
  const float norm = 1.0F / std::sqrt(static_cast<float>(keys));
  Operands run{keys, values, tokens, {}, {}, {}, {}, {}, {}};
  run.key = fill(std::int64_t{tokens} * keys, [&] { return norm * normal(random); });
  run.query = fill(std::int64_t{tokens} * keys, [&] { return norm * normal(random); });
  run.decay =
      fill(std::int64_t{tokens} * (rule == Rule::kKda ? keys : 1), [&] { return uniform(random); });
  run.scale = fill(tokens, [&] { return uniform(random); });
  run.value = fill(std::int64_t{tokens} * values, [&] { return normal(random); });
  run.source = fill(std::int64_t{values} * keys, [&] { return normal(random); });
  return run;
}

// States after each token and outputs, in float64, straight from S <- S Diag(a) + u k^T.
void exact(Rule rule, const Operands& run, std::vector<double>& state,
           std::vector<double>& outputs) {
  state.assign(run.source.begin(), run.source.end());
  outputs.assign(static_cast<std::size_t>(run.tokens * run.values), 0.0);
  for (std::int32_t j = 0; j < run.tokens; ++j) {
    for (std::int32_t v = 0; v < run.values; ++v) {
      double* row = state.data() + std::int64_t{v} * run.keys;
      const float* key = run.key.data() + std::int64_t{j} * run.keys;
      double predicted = 0.0;
      for (std::int32_t k = 0; k < run.keys; ++k) {
        row[k] *= rule == Rule::kKda ? run.decay[static_cast<std::size_t>(j * run.keys + k)]
                                     : run.decay[static_cast<std::size_t>(j)];
        predicted += row[k] * key[k];
      }
      const double value = run.value[static_cast<std::size_t>(j * run.values + v)];
      const double scale = run.scale[static_cast<std::size_t>(j)];
      const double update = rule == Rule::kMamba2 ? scale * value : scale * (value - predicted);
      for (std::int32_t k = 0; k < run.keys; ++k) {
        row[k] += update * key[k];
        outputs[static_cast<std::size_t>(j * run.values + v)] +=
            row[k] * run.query[static_cast<std::size_t>(j * run.keys + k)];
      }
    }
  }
}

AdvanceRun arguments(Rule rule, const Operands& run) {
  AdvanceRun arguments;
  arguments.rule = rule;
  arguments.keys = run.keys;
  arguments.values = run.values;
  arguments.tokens = run.tokens;
  arguments.key = run.key.data();
  arguments.decay = run.decay.data();
  arguments.scale = run.scale.data();
  arguments.value = run.value.data();
  arguments.query = run.query.data();
  arguments.source = run.source.data();
  return arguments;
}

TEST_P(AdvanceTest, RecurrenceInRegistersAndInMemoryAgreeAndAreRight) {
  for (const Rule rule : {Rule::kMamba2, Rule::kGdn, Rule::kKda}) {
    for (const std::int32_t keys : {8, 32, 64, 80, 128, 256}) {
      for (const std::int32_t values : {8, 24}) {
        const Operands run = random_run(rule, keys, values, 5, random_);
        const std::size_t size = static_cast<std::size_t>(keys * values);
        std::vector<float> outputs(static_cast<std::size_t>(5 * values));
        std::vector<float> target(size);
        std::vector<float> rows(static_cast<std::size_t>(6 * keys));
        AdvanceRun chain = arguments(rule, run);
        chain.outputs = outputs.data();
        chain.target = target.data();
        chain.rows = rows.data();
        ASSERT_TRUE(level().advance(chain));

        // The same tokens as a tree that happens to be a chain take the other path.
        const std::vector<std::int32_t> parents = {-1, 0, 1, 2, 3};
        std::vector<float> tree_outputs(outputs.size());
        std::vector<float> after(5 * size);
        std::vector<float*> targets;
        for (std::size_t j = 0; j < 5; ++j) targets.push_back(after.data() + j * size);
        AdvanceRun tree = arguments(rule, run);
        tree.outputs = tree_outputs.data();
        tree.after = targets.data();
        tree.parents = parents.data();
        tree.rows = rows.data();
        ASSERT_TRUE(level().advance(tree));
        for (std::size_t i = 0; i < size; ++i)
          ASSERT_EQ(bits(target[i]), bits(after[4 * size + i]));
        for (std::size_t i = 0; i < outputs.size(); ++i)
          ASSERT_EQ(bits(outputs[i]), bits(tree_outputs[i]));

        std::vector<double> exact_state;
        std::vector<double> exact_outputs;
        exact(rule, run, exact_state, exact_outputs);
        // Five tokens of at most keys + 4 roundings each, on values whose size the norms bound.
        double norm = 0.0;
        for (const double x : exact_state) norm = std::max(norm, std::abs(x));
        const double bound = 5.0 * (keys + 4) * 0x1p-24 * (norm + 6.0) * 4.0;
        for (std::size_t i = 0; i < size; ++i)
          ASSERT_NEAR(target[i], exact_state[i], bound) << keys;
        for (std::size_t i = 0; i < outputs.size(); ++i)
          ASSERT_NEAR(outputs[i], exact_outputs[i], bound * 8.0);
        // The broken twin: one decay forgotten is far outside.
        Operands broken = run;
        broken.decay[0] = 1.0F;
        if (rule == Rule::kKda) std::fill_n(broken.decay.begin(), keys, 1.0F);
        exact(rule, broken, exact_state, exact_outputs);
        double worst = 0.0;
        for (std::size_t i = 0; i < size; ++i)
          worst = std::max(worst, std::abs(target[i] - exact_state[i]));
        ASSERT_GT(worst, bound);
      }
    }
  }
}

TEST_P(AdvanceTest, AFoldGivesTheBitsOfSingleSteps) {
  for (const Rule rule : {Rule::kMamba2, Rule::kGdn, Rule::kKda}) {
    for (const std::int32_t keys : {24, 64, 128, 256}) {
      for (const std::int32_t values : {8, 16, 24, 32, 48, 80}) {
        for (const std::int32_t tokens : {1, 4, 7}) {
          const Operands run = random_run(rule, keys, values, tokens, random_);
          const std::size_t size = static_cast<std::size_t>(keys * values);
          std::vector<float> rows(static_cast<std::size_t>((tokens + 1) * keys));
          for (const bool zero : {false, true}) {
            // Token after token, each state where the next run finds it, with outputs.
            std::vector<float> stepped = run.source;
            std::vector<float> outputs(static_cast<std::size_t>(values));
            for (std::int32_t j = 0; j < tokens; ++j) {
              AdvanceRun one = arguments(rule, run);
              one.tokens = 1;
              one.key += std::int64_t{j} * keys;
              one.decay += std::int64_t{j} * (rule == Rule::kKda ? keys : 1);
              one.scale += j;
              one.value += std::int64_t{j} * values;
              one.query += std::int64_t{j} * keys;
              one.outputs = outputs.data();
              one.source = zero && j == 0 ? nullptr : stepped.data();
              float* place = stepped.data();
              one.after = &place;
              one.rows = rows.data();
              ASSERT_TRUE(level().advance(one));
            }
            // All at once, in place, while something else is fetched.
            std::vector<float> folded = run.source;
            const void* line = run.key.data();
            AdvanceRun fold = arguments(rule, run);
            fold.query = nullptr;
            fold.source = zero ? nullptr : folded.data();
            fold.target = folded.data();
            fold.rows = rows.data();
            fold.next = {run.source.data(), &line, 1};
            ASSERT_TRUE(level().advance(fold));
            for (std::size_t i = 0; i < size; ++i) {
              ASSERT_EQ(bits(folded[i]), bits(stepped[i]))
                  << keys << " " << values << " " << tokens << " " << zero;
            }
          }
        }
      }
    }
  }
}

TEST_P(AdvanceTest, StatesThatAreNotFiniteAreReported) {
  for (const Rule rule : {Rule::kMamba2, Rule::kGdn, Rule::kKda}) {
    for (const std::int32_t keys : {24, 64, 128}) {
      for (const float bad :
           {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
        Operands run = random_run(rule, keys, 8, 2, random_);
        run.source[static_cast<std::size_t>(keys * 8 - 1)] = bad;
        std::vector<float> outputs(16);
        std::vector<float> target(static_cast<std::size_t>(keys * 8));
        std::vector<float> rows(static_cast<std::size_t>(3 * keys));
        AdvanceRun chain = arguments(rule, run);
        chain.outputs = outputs.data();
        chain.target = target.data();
        chain.rows = rows.data();
        ASSERT_FALSE(level().advance(chain)) << keys;
        run.source[static_cast<std::size_t>(keys * 8 - 1)] = 0.0F;
        ASSERT_TRUE(level().advance(chain)) << keys;
        // A fold looks at its last states alone.
        Operands wide = random_run(rule, keys, 32, 6, random_);
        for (const std::int32_t at : {0, keys * 16 + 3, keys * 32 - 1}) {
          std::vector<float> state = wide.source;
          state[static_cast<std::size_t>(at)] = bad;
          AdvanceRun fold = arguments(rule, wide);
          fold.query = nullptr;
          fold.source = state.data();
          fold.target = state.data();
          std::vector<float> more(static_cast<std::size_t>(7 * keys));
          fold.rows = more.data();
          ASSERT_FALSE(level().advance(fold)) << keys << " " << at;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, AdvanceTest, testing::ValuesIn(levels()),
                         [](const auto& test) { return std::string(test.param->name); });

}  // namespace
}  // namespace replayssm::cpu
