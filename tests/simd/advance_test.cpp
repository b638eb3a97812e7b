// The recurrence of the CPU backend's levels against float64, and its forms against each other bit
// for bit.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/simd/levels.hpp"

namespace replayssm::cpu {
namespace {

constexpr Rule kRules[] = {Rule::kMamba2, Rule::kGdn, Rule::kKda};

struct Operands {
  Rule rule;
  std::int32_t keys, values, tokens;
  std::vector<float> key, decay, scale, value, query, source;

  std::int64_t decays() const { return rule == Rule::kKda ? keys : 1; }
  std::size_t size() const { return static_cast<std::size_t>(keys * values); }
};

// A run of `tokens` tokens without a place for its states.
AdvanceRun arguments(const Operands& run, std::int32_t tokens, std::vector<float>& rows) {
  rows.assign(static_cast<std::size_t>((tokens + 1) * run.keys), -7.0F);
  AdvanceRun arguments;
  arguments.rule = run.rule;
  arguments.keys = run.keys;
  arguments.values = run.values;
  arguments.tokens = tokens;
  arguments.key = run.key.data();
  arguments.decay = run.decay.data();
  arguments.scale = run.scale.data();
  arguments.value = run.value.data();
  arguments.query = run.query.data();
  arguments.source = run.source.data();
  arguments.rows = rows.data();
  return arguments;
}

class AdvanceTest : public OnEveryLevel {
 protected:
  Operands random_run(Rule rule, std::int32_t keys, std::int32_t values, std::int32_t tokens) {
    Operands run{rule, keys, values, tokens, {}, {}, {}, {}, {}, {}};
    const float norm = 1.0F / std::sqrt(static_cast<float>(keys));
    run.key = normals(std::int64_t{tokens} * keys, norm);
    run.query = normals(std::int64_t{tokens} * keys, norm);
    run.decay = factors(tokens * run.decays());
    run.scale = factors(tokens);
    run.value = normals(std::int64_t{tokens} * values);
    run.source = normals(std::int64_t{values} * keys);
    return run;
  }
};

// What a run leaves behind. The outputs and states are those of every token, the states empty
// where they go elsewhere.
struct Trace {
  bool finite = false;
  std::vector<float> outputs, target;
  std::vector<std::vector<float>> after;
};

// kPast: `after` may be written past the caches, the last state over the source; kPastOdd: the same
// where no state begins at a vector's boundary.
enum class Form { kTarget, kInPlace, kAfter, kTree, kPast, kPastOdd };
constexpr std::initializer_list<Form> kForms = {Form::kTarget, Form::kInPlace, Form::kAfter,
                                                Form::kTree,   Form::kPast,    Form::kPastOdd};

Trace trace(const Level& level, const Operands& run, Form form, bool reads, bool zero = false) {
  Trace result;
  std::vector<float> rows;
  AdvanceRun call = arguments(run, run.tokens, rows);
  result.outputs.assign(static_cast<std::size_t>(run.tokens * run.values), -7.0F);
  if (zero) call.source = nullptr;
  if (reads) {
    call.outputs = result.outputs.data();
  } else {
    call.query = nullptr;
  }
  std::vector<float> room;
  std::vector<float*> places;
  std::vector<std::int32_t> parents(static_cast<std::size_t>(run.tokens));
  std::iota(parents.begin(), parents.end(), -1);
  if (form == Form::kTarget || form == Form::kInPlace) {
    result.target = run.source;
    if (form == Form::kTarget) std::fill(result.target.begin(), result.target.end(), -7.0F);
    if (form == Form::kInPlace && !zero) call.source = result.target.data();
    call.target = result.target.data();
  } else if (form == Form::kPast || form == Form::kPastOdd) {
    constexpr std::size_t kLine = 16;  // floats
    room.assign(run.size() * static_cast<std::size_t>(run.tokens) + 2 * kLine, -7.0F);
    float* first = room.data();
    while (reinterpret_cast<std::uintptr_t>(first) % (kLine * sizeof(float)) != 0) ++first;
    if (form == Form::kPastOdd) first += 4;
    for (std::int32_t j = 0; j < run.tokens; ++j)
      places.push_back(first + static_cast<std::size_t>(j) * run.size());
    std::copy(run.source.begin(), run.source.end(), places.back());
    if (!zero) call.source = places.back();
    call.after = places.data();
    call.past_caches = true;
  } else {
    result.after.assign(static_cast<std::size_t>(run.tokens),
                        std::vector<float>(run.size(), -7.0F));
    for (auto& state : result.after) places.push_back(state.data());
    call.after = places.data();
    if (form == Form::kTree) call.parents = parents.data();
  }
  // Something else is fetched meanwhile.
  const void* const line = run.key.data();
  call.next = {run.source.data(), &line, 1};
  result.finite = level.advance(call);
  if (call.past_caches) {
    for (const float* state : places) result.after.emplace_back(state, state + run.size());
  }
  return result;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](float x, float y) { return bits(x) == bits(y); });
}

// Distances from float64, in units of what roundings allow.
struct Errors {
  double states = 0.0;
  double outputs = 0.0;
};

// Straight from S <- S Diag(a) + u k^T in float64. Roundings are followed by the 2-norm `off` of
// what a row is off by: a token takes e to (I - beta k k^T) Diag(a) e, of which the norm is known,
// and adds its own roundings: at most K + 4 of the sum, in whatever order, 2 of u, 3 of the
// update. The hundredth stands for products of roundings.
Errors errors(const Operands& run, const Trace& got, bool zero = false) {
  const auto keys = static_cast<std::size_t>(run.keys);
  const double sums = 1.01 * (run.keys + 4) * kUnit;
  Errors worst;
  for (std::int32_t v = 0; v < run.values; ++v) {
    std::vector<double> row(keys, 0.0);
    if (!zero) std::copy_n(run.source.begin() + std::int64_t{v} * run.keys, keys, row.begin());
    double off = 0.0;
    for (std::int32_t j = 0; j < run.tokens; ++j) {
      const float* key = run.key.data() + std::int64_t{j} * run.keys;
      const float* query = run.query.data() + std::int64_t{j} * run.keys;
      const float* decay = run.decay.data() + j * run.decays();
      double predicted = 0.0;
      double products = 0.0;
      double largest = 0.0;
      double key_norm = 0.0;
      double row_norm = 0.0;
      for (std::size_t k = 0; k < keys; ++k) {
        const double a = decay[run.rule == Rule::kKda ? k : 0];
        row[k] *= a;
        predicted += row[k] * key[k];
        products += std::abs(row[k] * key[k]);
        largest = std::max(largest, a);
        key_norm += double{key[k]} * key[k];
        row_norm += row[k] * row[k];
      }
      key_norm = std::sqrt(key_norm);
      row_norm = std::sqrt(row_norm);
      const double scale = run.scale[static_cast<std::size_t>(j)];
      const double value = run.value[static_cast<std::size_t>(j * run.values + v)];
      off *= largest;
      double update = scale * value;
      double update_off = 2.02 * kUnit * std::abs(update);
      if (run.rule != Rule::kMamba2) {
        update -= scale * predicted;
        update_off = scale * (sums * (products + off * key_norm) +
                              2.02 * kUnit * (std::abs(value) + std::abs(predicted)));
        off *= std::max(1.0, std::abs(1.0 - scale * key_norm * key_norm));
      }
      off += update_off * key_norm + 3.03 * kUnit * (row_norm + off + std::abs(update) * key_norm);
      double output = 0.0;
      double reads = 0.0;
      double query_norm = 0.0;
      for (std::size_t k = 0; k < keys; ++k) {
        row[k] += update * key[k];
        output += row[k] * query[k];
        reads += std::abs(row[k] * query[k]);
        query_norm += double{query[k]} * query[k];
        const auto at = static_cast<std::size_t>(v) * keys + k;
        const float state = got.after[static_cast<std::size_t>(j)][at];
        worst.states = std::max(worst.states, std::abs(state - row[k]) / off);
      }
      const double allowed = off * std::sqrt(query_norm) * 1.01 + sums * reads;
      const float read = got.outputs[static_cast<std::size_t>(j * run.values + v)];
      worst.outputs = std::max(worst.outputs, std::abs(read - output) / allowed);
    }
  }
  return worst;
}

template <typename Body>
void for_each_shape(std::initializer_list<std::int32_t> tokens_of, Body body) {
  for (const Rule rule : kRules) {
    for (const std::int32_t keys : kKeys) {
      for (const std::int32_t values : kValues) {
        for (const std::int32_t tokens : tokens_of) {
          SCOPED_TRACE(testing::Message() << "rule " << static_cast<int>(rule) << ", K " << keys
                                          << ", V " << values << ", tokens " << tokens);
          body(rule, keys, values, tokens);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(AdvanceTest, RecurrenceInRegistersAndInMemoryAgreeAndAreRight) {
  for_each_shape({1, 3, 4, 5, 7, 16}, [&](Rule rule, std::int32_t keys, std::int32_t values,
                                          std::int32_t tokens) {
    const Operands run = random_run(rule, keys, values, tokens);
    for (const bool zero : {false, true}) {
      // A tree that happens to be a chain goes a row at a time, on every shape.
      const Trace tree = trace(level(), run, Form::kTree, true, zero);
      ASSERT_TRUE(tree.finite);
      const Errors off = errors(run, tree, zero);
      ASSERT_LE(off.states, 1.0);
      ASSERT_LE(off.outputs, 1.0);
      for (const Form form : kForms) {
        for (const bool reads : {true, false}) {
          const Trace chain = trace(level(), run, form, reads, zero);
          ASSERT_TRUE(chain.finite);
          for (std::size_t j = 0; j < chain.after.size(); ++j)
            ASSERT_TRUE(same_bits(chain.after[j], tree.after[j])) << j << zero << reads;
          if (!chain.target.empty()) {
            ASSERT_TRUE(same_bits(chain.target, tree.after.back())) << zero << reads;
          }
          const std::vector<float> untouched(chain.outputs.size(), -7.0F);
          ASSERT_TRUE(same_bits(chain.outputs, reads ? tree.outputs : untouched)) << zero << reads;
        }
      }
      // Broken twins: one decay, one time step that is another.
      if (!zero) {
        Operands broken = run;
        broken.decay[0] *= 0.5F;
        const Errors twin = errors(broken, tree);
        ASSERT_GT(twin.states, 1.0);
        ASSERT_GT(twin.outputs, 1.0);
      }
      Operands broken = run;
      broken.scale.back() *= 0.5F;
      const Errors twin = errors(broken, tree, zero);
      ASSERT_GT(twin.states, 1.0);
      ASSERT_GT(twin.outputs, 1.0);
    }
  });
}

TEST_P(AdvanceTest, AFoldGivesTheBitsOfSingleSteps) {
  for_each_shape({1, 3, 4, 5, 7, 16},
                 [&](Rule rule, std::int32_t keys, std::int32_t values, std::int32_t tokens) {
                   const Operands run = random_run(rule, keys, values, tokens);
                   for (const bool zero : {false, true}) {
                     // Token after token, each state where the next run finds it, with outputs.
                     std::vector<float> stepped = run.source;
                     std::vector<float> outputs(static_cast<std::size_t>(values));
                     for (std::int32_t j = 0; j < tokens; ++j) {
                       std::vector<float> rows;
                       AdvanceRun one = arguments(run, 1, rows);
                       one.key += std::int64_t{j} * keys;
                       one.decay += j * run.decays();
                       one.scale += j;
                       one.value += std::int64_t{j} * values;
                       one.query += std::int64_t{j} * keys;
                       one.outputs = outputs.data();
                       one.source = zero && j == 0 ? nullptr : stepped.data();
                       float* place = stepped.data();
                       one.after = &place;
                       ASSERT_TRUE(level().advance(one));
                     }
                     const Trace fold = trace(level(), run, Form::kInPlace, false, zero);
                     ASSERT_TRUE(fold.finite);
                     ASSERT_TRUE(same_bits(fold.target, stepped)) << zero;
                   }
                 });
}

// A tree gives every token the bits of the chain that leads to it.
TEST_P(AdvanceTest, BranchesAreChains) {
  const std::array<std::int32_t, 6> parents = {-1, 0, 0, 2, -1, 1};
  for_each_shape({6}, [&](Rule rule, std::int32_t keys, std::int32_t values, std::int32_t tokens) {
    const Operands run = random_run(rule, keys, values, tokens);
    std::vector<float> rows;
    AdvanceRun tree = arguments(run, tokens, rows);
    std::vector<float> outputs(static_cast<std::size_t>(tokens * values));
    std::vector<float> after(static_cast<std::size_t>(tokens) * run.size());
    std::vector<float*> places;
    for (std::int32_t j = 0; j < tokens; ++j)
      places.push_back(after.data() + static_cast<std::size_t>(j) * run.size());
    tree.outputs = outputs.data();
    tree.after = places.data();
    tree.parents = parents.data();
    ASSERT_TRUE(level().advance(tree));
    for (std::int32_t j = 0; j < tokens; ++j) {
      std::vector<std::int32_t> path;
      for (std::int32_t at = j; at >= 0; at = parents[static_cast<std::size_t>(at)])
        path.insert(path.begin(), at);
      Operands chain{rule, keys, values,    static_cast<std::int32_t>(path.size()), {}, {}, {},
                     {},   {},   run.source};
      for (const std::int32_t at : path) {
        const auto take = [&](const std::vector<float>& from, std::int64_t width,
                              std::vector<float>& to) {
          to.insert(to.end(), from.begin() + at * width, from.begin() + (at + 1) * width);
        };
        take(run.key, keys, chain.key);
        take(run.query, keys, chain.query);
        take(run.decay, run.decays(), chain.decay);
        take(run.scale, 1, chain.scale);
        take(run.value, values, chain.value);
      }
      const Trace expected = trace(level(), chain, Form::kTarget, true);
      const float* state = places[static_cast<std::size_t>(j)];
      const float* output = outputs.data() + std::int64_t{j} * values;
      ASSERT_TRUE(same_bits(expected.target, {state, state + run.size()})) << j;
      ASSERT_TRUE(same_bits({expected.outputs.end() - values, expected.outputs.end()},
                            {output, output + values}))
          << j;
    }
  });
}

bool all_finite(const std::vector<float>& x) {
  return std::all_of(x.begin(), x.end(), [](float y) { return std::isfinite(y); });
}

TEST_P(AdvanceTest, StatesThatAreNotFiniteAreReported) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for_each_shape(
      {1, 2, 6}, [&](Rule rule, std::int32_t keys, std::int32_t values, std::int32_t tokens) {
        const Operands good = random_run(rule, keys, values, tokens);
        const auto check = [&](const Operands& run, bool finite) {
          for (const Form form : kForms) {
            for (const bool reads : {true, false}) {
              const Trace got = trace(level(), run, form, reads);
              ASSERT_EQ(got.finite, finite) << static_cast<int>(form) << reads;
              // What is reported is what is there.
              const bool there = all_finite(got.target) &&
                                 std::all_of(got.after.begin(), got.after.end(), all_finite);
              ASSERT_EQ(there, finite) << static_cast<int>(form) << reads;
            }
          }
        };
        check(good, true);
        for (const auto member : {&Operands::source, &Operands::key, &Operands::decay,
                                  &Operands::scale, &Operands::value, &Operands::query}) {
          Operands run = good;
          auto& operand = run.*member;
          operand[below(operand.size())] = below(2) == 0 ? inf : nan;
          // Queries are only read.
          check(run, member == &Operands::query);
          if (testing::Test::HasFatalFailure()) return;
        }
        // One state anywhere: the first, one in the middle, the last.
        for (const std::size_t at : {std::size_t{0}, good.size() / 2 + 3, good.size() - 1}) {
          Operands run = good;
          run.source[at] = inf;
          check(run, false);
          // Finite operands whose product is not.
          run.source[at] = std::numeric_limits<float>::max();
          std::fill_n(run.decay.begin(), run.decays(), 2.0F);
          check(run, false);
          if (testing::Test::HasFatalFailure()) return;
        }
      });
}

INSTANTIATE_TEST_SUITE_P(All, AdvanceTest, testing::ValuesIn(levels()), level_name);

}  // namespace
}  // namespace replayssm::cpu
