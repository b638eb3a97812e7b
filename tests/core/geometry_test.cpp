// Every layer shape of the supported models, created, prefilled, stepped and folded, against the
// float64 recurrence.
#include <array>
#include <iostream>
#include <set>

#include "oracle/compare.hpp"
#include "tests/core/model_geometry.hpp"
#include "tests/law/support/laws.hpp"
#include "tests/law/support/reference.hpp"

namespace replayssm::laws {
namespace {

// What the reference says of three forwards, a prompt chunk, a step and a step that folds: worked
// out once and held against every implementation of the kind.
struct Expectation {
  std::vector<Row> rows;
  std::vector<SlotReference::Expected> outputs;
  oracle::State state;
  std::vector<double> state_bound;
};

Case shape_case(const ModelGeometry& model, int groups, std::uint64_t seed) {
  Random random(seed);
  Case made;
  made.config.activations = DType::kBF16;
  made.config.slots = 1;
  made.config.window = 2;
  made.config.max_step_tokens = 2;
  made.config.max_tokens = 2;
  made.layers.push_back(
      simple_layer(random, model.rule, model.heads, groups, model.value_dim, model.key_dim));
  CaseLayer& layer = made.layers[0];
  if (model.rule == Rule::kMamba2) {
    for (int head = 0; head < model.heads; ++head) layer.d.push_back(0.5F);
  }
  // The published channels are x, B and C (q, k and v) side by side.
  const int channels = model.heads * model.value_dim + 2 * groups * model.key_dim;
  if (model.conv_channels > 0) {
    EXPECT_EQ(model.conv_channels, channels) << model.model;
  }
  layer.shape.conv_channels = channels;
  layer.shape.conv_width = 4;
  for (int i = 0; i < channels * 4; ++i) {
    layer.conv_weight.push_back(static_cast<float>(random.real(-0.5, 0.5)));
  }
  finish_case(&made);
  return made;
}

Expectation expect_shape(Case made, DecodeMode decode, std::uint64_t seed) {
  Random random(seed);
  made.config.decode = decode;
  SlotReference reference(made, 7);
  Expectation all;
  for (int forward = 0; forward < 3; ++forward) {
    Row row = chain_row(0, random_tokens(random, made, forward == 0 ? 1 : 2));
    row.prefill = forward == 0;
    if (reference.folds(made.config)) reference.fold(2);
    all.outputs.push_back(row.prefill ? reference.prefill(0, row.tokens)
                                      : reference.step(0, row.tokens, {}));
    row.prefill ? reference.commit_prefill(row.tokens) : reference.commit_step(row.tokens);
    all.rows.push_back(std::move(row));
  }
  all.state = reference.state(0);
  all.state_bound = reference.state_bound(0);
  return all;
}

void run_shape(const ModelGeometry& model, Case made, const ImplementationInfo& info,
               const Expectation& want) {
  SCOPED_TRACE(info.name);
  made.config.implementation = info.name;
  made.config.decode = info.decode;
  auto machine = make_machine(made, false, false, 1);
  ASSERT_TRUE(machine);
  const std::int64_t states = info.decode == DecodeMode::kReplay ? 1 : 2;
  EXPECT_EQ(machine->cache().bytes().state, states * model.state_bytes);
  const std::int64_t slot = held(*machine);
  const auto same = [](const char* what, const std::vector<double>& got,
                       const std::vector<double>& exact, const std::vector<double>& bounds,
                       int columns) {
    const oracle::Comparison found =
        oracle::compare(what, got, exact, static_cast<std::size_t>(columns), bounds);
    EXPECT_TRUE(found.ok) << found.text;
  };
  for (std::size_t forward = 0; forward < want.rows.size(); ++forward) {
    Row row = want.rows[forward];
    row.slot = slot;
    std::string problem;
    (void)decode_row(*machine, row, {row.count(), {}}, &problem);
    ASSERT_EQ(problem, "");
    const SlotReference::Expected& expected = want.outputs[forward];
    for (int t = 0; t < row.count(); ++t) {
      same("out", machine->output(0, 0, t), expected.values[t], expected.bounds[t],
           model.value_dim);
      same("conv", machine->conv_output(0, 0, t), expected.conv_values[t], expected.conv_bounds[t],
           made.layers[0].conv.channels);
    }
  }
  Machine::Stored stored;
  ASSERT_TRUE(machine->store(slot, DType::kF32, false, &stored).ok());
  same("state", stored.state[0], want.state, want.state_bound, model.key_dim);
}

TEST(CoreGeometry, OfEveryModel) {
  const std::vector<ImplementationInfo> all = available();
  std::uint64_t seed = 77;
  std::set<std::array<int, 5>> seen;
  for (const ModelGeometry& model : kModels) {
    SCOPED_TRACE(std::string(model.model) + " TP" + std::to_string(model.tensor_parallel));
    // Under the sanitizers the widest shapes, which differ by their number of heads only, are left
    // to the other builds.
    if (model.heads > REPLAYSSM_GEOMETRY_HEADS) continue;
    std::vector<int> groups = {model.groups};
    if (model.groups == 0) groups = {1, 2};
    for (const int count : groups) {
      // Models and degrees share shapes; each is run once.
      if (!seen.insert({static_cast<int>(model.rule), model.heads, model.value_dim, model.key_dim,
                        count})
               .second) {
        continue;
      }
      const Case made = shape_case(model, count, ++seed);
      for (const DecodeMode decode : {DecodeMode::kReplay, DecodeMode::kConventional}) {
        const Expectation want = expect_shape(made, decode, seed);
        for (const ImplementationInfo& info : all) {
          if (info.decode == decode) run_shape(model, made, info, want);
        }
      }
      if (HasFailure()) return;
    }
  }
  std::cout << seen.size() << " shapes on " << all.size() << " implementations\n";
  EXPECT_GT(seen.size(), 12U);
}

}  // namespace
}  // namespace replayssm::laws
