// Pitfalls 1 to 11: cursors and rings. Each test carries the number of its line in the list of
// faults that other engines' code had.
#include "tests/pitfalls/checked.hpp"

namespace replayssm::laws {
namespace {

class Pitfalls : public ::testing::TestWithParam<std::string> {};

TEST_P(Pitfalls, P01_AllLayersOfAForwardSeeTheSameCursor) {
  Random random(1);
  std::vector<CaseLayer> layers;
  for (int i = 0; i < 4; ++i) layers.push_back(simple_layer(random, Rule::kGdn, 2, 1, 8, 8));
  Checked c(GetParam(), 4, 2, layers);
  const std::int64_t slot = c.acquire();
  for (int i = 0; i < 12; ++i) c.step(slot, 2, 1 + i % 2);
  c.check_state(slot);
}

TEST_P(Pitfalls, P02_ARecycledSlotStartsAtNothing) {
  Checked c(GetParam());
  const std::int64_t first = c.acquire();
  for (int i = 0; i < 5; ++i) c.step(first, 3, 2);
  const std::int64_t block = c.cache().info(first)->block;
  c.release(first);
  c.poison_ring(first);
  c.machine->lent()->poison(TensorRole::kConv, first);
  c.machine->lent()->poison(TensorRole::kState, block);
  const std::int64_t again = c.acquire();
  EXPECT_EQ(again, first);
  EXPECT_EQ(c.cache().info(again)->position, 0);
  EXPECT_TRUE(c.cache().info(again)->zero);
  for (int i = 0; i < 5; ++i) c.step(again, 3, 2);
  c.check_state(again);
}

TEST_P(Pitfalls, P03_PositionsAreExplicit) {
  Checked c(GetParam(), 4, 3);
  const std::int64_t slot = c.acquire();
  c.prefill(slot, 5);
  c.step(slot, 3, 2);
  c.prefill(slot, 2);  // folds a partly filled ring
  c.step(slot, 1, 1);
  c.prefill(slot, 1);
  for (int i = 0; i < 6; ++i) c.step(slot, 2, i % 2 + 1);
  EXPECT_EQ(c.cache().info(slot)->position, 5 + 2 + 2 + 1 + 1 + 9);
  c.check_state(slot);
}

TEST_P(Pitfalls, P04_OnlyCommittedRecordsAreFolded) {
  Checked c(GetParam(), 3, 3);
  const std::int64_t slot = c.acquire();
  for (int i = 0; i < 10; ++i) c.step(slot, 3, 1);  // two rejected a step, folds in between
  c.check_state(slot);
}

TEST_P(Pitfalls, P05_AnyAcceptanceFitsTheWindow) {
  Checked c(GetParam(), 4, 4);
  const std::int64_t slot = c.acquire();
  c.step(slot, 3, 3);  // W - 1 records, then T_max more
  c.step(slot, 4, 4);
  c.step(slot, 4, 4);
  c.step(slot, 4, 1);
  c.step(slot, 4, 4);
  c.check_state(slot);
  if (c.replay()) {
    EXPECT_EQ(c.cache().ring_length(), 4 - 1 + 4);
  }
}

TEST_P(Pitfalls, P06_DraftsDoNotOverwriteWhatIsFolded) {
  Checked c(GetParam(), 4, 4);
  const std::int64_t slot = c.acquire();
  for (int i = 0; i < 12; ++i) c.step(slot, 4, i % 4 + 1);  // every fill meets every fold
  c.check_state(slot);
}

TEST_P(Pitfalls, P07_DecaysSurviveAMovingRing) {
  Checked c(GetParam(), 5, 2);
  const std::int64_t slot = c.acquire();
  for (int i = 0; i < 25; ++i) c.step(slot, 2, i % 3 == 0 ? 1 : 2);
  c.check_state(slot);
}

TEST_P(Pitfalls, P08_AOneTokenChunkIsNotLost) {
  Checked c(GetParam());
  const std::int64_t a = c.acquire();
  c.prefill(a, 4);
  c.prefill(a, 1);
  c.step(a, 1, 1);
  c.check_state(a);
  // The last prompt token as a decode row instead.
  const std::int64_t b = c.acquire();
  c.prefill(b, 4);
  c.step(b, 1, 1);
  c.step(b, 1, 1);
  c.check_state(b);
  EXPECT_EQ(c.cache().info(a)->position, c.cache().info(b)->position);
}

TEST_P(Pitfalls, P09_ACommitCountsOnce) {
  Checked c(GetParam());
  const std::int64_t slot = c.acquire();
  c.step(slot, 3, 2);
  EXPECT_EQ(c.machine->commit({{2, {}}}).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(c.cache().info(slot)->position, 2);
  ASSERT_TRUE(c.open({chain_row(slot, c.tokens(2))}));
  EXPECT_EQ(c.machine->commit({{2, {}}}).code(), StatusCode::kFailedPrecondition) << "no layer ran";
  for (int layer = 0; layer < 3; ++layer) c.run(layer);
  c.close({{2, {}}});
  EXPECT_EQ(c.cache().info(slot)->position, 4);
}

TEST_P(Pitfalls, P10_BytesCountTheRings) {
  Checked c(GetParam());
  const CacheBytes bytes = c.cache().bytes();
  EXPECT_GT(bytes.state, 0);
  EXPECT_GT(bytes.conv, 0);
  EXPECT_GT(bytes.control, 0);
  EXPECT_GT(bytes.scratch, 0);
  EXPECT_EQ(bytes.rings > 0, c.replay());
  Checked wider(GetParam(), 40, 3);
  if (c.replay()) {
    EXPECT_GT(wider.cache().bytes().rings, 5 * bytes.rings);
  }
  Checked more(GetParam(), 4, 3, {}, [](Case& made) { made.config.slots = 8; });
  EXPECT_EQ(more.cache().bytes().rings, 2 * bytes.rings);
  EXPECT_EQ(more.cache().bytes().conv, 2 * bytes.conv);
}

TEST_P(Pitfalls, P11_WindowAndStepLimits) {
  Checked c(GetParam());
  CacheConfig config = c.cache().config();
  config.memory.clear();
  const auto code = [&](int window, int tokens) {
    config.window = window;
    config.max_step_tokens = tokens;
    return Cache::create(config).status().code();
  };
  EXPECT_EQ(code(4, 0), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(4, 17), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(0, 1), c.replay() ? StatusCode::kInvalidArgument : StatusCode::kOk);
  EXPECT_EQ(code(2, 3), c.replay() ? StatusCode::kInvalidArgument : StatusCode::kOk);
  EXPECT_EQ(code(1, 1), StatusCode::kOk);
  EXPECT_EQ(code(16, 16), StatusCode::kOk);
  // T = 0 and W = 1 are right, not only taken.
  Checked one(GetParam(), 1, 1);
  const std::int64_t slot = one.acquire();
  for (int i = 0; i < 6; ++i) one.step(slot, i % 2, i % 2);
  one.check_state(slot);
}

INSTANTIATE_TEST_SUITE_P(All, Pitfalls, ::testing::ValuesIn(available_names()), law_name);

}  // namespace
}  // namespace replayssm::laws
