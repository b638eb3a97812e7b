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

class CoreGeometry : public ::testing::TestWithParam<std::string> {};

void run_shape(const ModelGeometry& model, int groups, const ImplementationInfo& info,
               std::uint64_t seed) {
  Random random(seed);
  Case made;
  made.config.implementation = info.name;
  made.config.decode = info.decode;
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

  auto machine = make_machine(made, false, false, seed);
  ASSERT_TRUE(machine);
  const std::int64_t states = info.decode == DecodeMode::kReplay ? 1 : 2;
  EXPECT_EQ(machine->cache().bytes().state, states * model.state_bytes);
  SlotReference reference(made, 7);
  const std::int64_t slot = held(*machine);
  for (int forward = 0; forward < 3; ++forward) {
    Row row = chain_row(slot, random_tokens(random, made, forward == 0 ? 1 : 2));
    row.prefill = forward == 0;
    if (reference.folds(made.config)) reference.fold(2);
    const SlotReference::Expected want =
        row.prefill ? reference.prefill(0, row.tokens) : reference.step(0, row.tokens, {});
    std::string problem;
    (void)decode_row(*machine, row, {row.count(), {}}, &problem);
    ASSERT_EQ(problem, "");
    for (int t = 0; t < row.count(); ++t) {
      const oracle::Comparison outputs =
          oracle::compare("out", machine->output(0, 0, t), want.values[t],
                          static_cast<std::size_t>(model.value_dim), want.bounds[t]);
      EXPECT_TRUE(outputs.ok) << outputs.text;
      const oracle::Comparison conv =
          oracle::compare("conv", machine->conv_output(0, 0, t), want.conv_values[t],
                          static_cast<std::size_t>(channels), want.conv_bounds[t]);
      EXPECT_TRUE(conv.ok) << conv.text;
    }
    row.prefill ? reference.commit_prefill(row.tokens) : reference.commit_step(row.tokens);
  }
  Machine::Stored stored;
  ASSERT_TRUE(machine->store(slot, DType::kF32, false, &stored).ok());
  const oracle::Comparison state =
      oracle::compare("state", stored.state[0], reference.state(0),
                      static_cast<std::size_t>(model.key_dim), reference.state_bound(0));
  EXPECT_TRUE(state.ok) << state.text;
}

TEST_P(CoreGeometry, OfEveryModel) {
  const ImplementationInfo info = implementation_named(GetParam());
  int shapes = 0;
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
      run_shape(model, count, info, 77 + static_cast<std::uint64_t>(shapes));
      ++shapes;
    }
    if (HasFailure()) return;
  }
  std::cout << shapes << " shapes\n";
  EXPECT_GT(shapes, 20);
}

INSTANTIATE_TEST_SUITE_P(All, CoreGeometry, ::testing::ValuesIn(available_names()), law_name);

}  // namespace
}  // namespace replayssm::laws
