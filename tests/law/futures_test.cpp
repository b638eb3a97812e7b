// Copies of a sequence have its future, bit for bit; rows know nothing of each other; folds do not
// know what was read. Every test ends with a twin that must differ.
#include <limits>

#include "tests/law/support/laws.hpp"

namespace replayssm::laws {
namespace {

class AnyFuture : public ::testing::TestWithParam<std::string> {};
class ReplayFuture : public ::testing::TestWithParam<std::string> {};

// The same steps, drafts and accepts on a slot of each machine.
struct Script {
  std::vector<Row> rows;
  std::vector<Keep> keep;
};

Script random_script(Random& random, const Case& made, int steps) {
  Script script;
  for (int i = 0; i < steps; ++i) {
    Row row =
        chain_row(0, random_tokens(random, made, random.integer(0, made.config.max_step_tokens)));
    Keep keep;
    if (random.chance(0.15)) {
      row.prefill = true;
      keep.count = row.count();
    } else if (random.chance(0.4)) {
      row.parents = tree_parents(random, row.count());
      keep.nodes = tree_path(random, row.parents, 0.1);
      keep.count = static_cast<int>(keep.nodes.size());
    } else {
      keep.count = random.integer(0, row.count());
    }
    if (made.config.decode == DecodeMode::kConventional && keep.count == 0 && row.count() > 0) {
      keep = {1, {}};
      if (!row.parents.empty()) keep.nodes = {0};
    }
    script.rows.push_back(row);
    script.keep.push_back(keep);
  }
  return script;
}

std::vector<std::vector<Bytes>> play(Machine& machine, std::int64_t slot, const Script& script,
                                     std::string* problem) {
  std::vector<std::vector<Bytes>> outputs;
  for (std::size_t i = 0; i < script.rows.size() && problem->empty(); ++i) {
    Row row = script.rows[i];
    row.slot = slot;
    outputs.push_back(decode_row(machine, row, script.keep[i], problem));
  }
  return outputs;
}

TEST_P(AnyFuture, OfForksAndImports) {
  const ImplementationInfo info = implementation_named(GetParam());
  testing::for_each_case(0xf04c, REPLAYSSM_LAW_CASES, [&](std::uint64_t seed) {
    Random random(seed);
    const Case made = roomy_case(random, info, 4);
    auto machine = make_machine(made, random.chance(0.5), false, random.bits());
    Case away_case = made;  // the same window; other counts and threads
    away_case.config.slots = 2;
    away_case.config.blocks = 0;
    away_case.config.max_rows = 0;
    away_case.config.threads = random.integer(1, 2);
    auto away = make_machine(away_case, random.chance(0.5), true, random.bits());
    ASSERT_TRUE(machine && away);
    std::string problem;
    const std::int64_t slot = held(*machine, random.bits());
    const Script past = random_script(random, made, random.integer(0, 8));
    (void)play(*machine, slot, past, &problem);
    ASSERT_EQ(problem, "") << made.describe();

    const Result<std::int64_t> fork = machine->cache().fork(slot);
    const Result<std::vector<std::byte>> bytes = machine->cache().export_slot(slot);
    ASSERT_TRUE(fork.ok() && bytes.ok());
    const Result<std::int64_t> import = machine->cache().import_slot(*bytes);
    const Result<std::int64_t> moved = away->cache().import_slot(*bytes);
    ASSERT_TRUE(import.ok()) << import.status().to_string();
    ASSERT_TRUE(moved.ok()) << moved.status().to_string();
    const Result<std::vector<std::byte>> again = away->cache().export_slot(*moved);
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(*again, *bytes) << "an import exports the bytes it came from";

    const Script future = random_script(random, made, random.integer(1, 8));
    const auto want = play(*machine, slot, future, &problem);
    EXPECT_EQ(want, play(*machine, *fork, future, &problem)) << "fork, " << made.describe();
    EXPECT_EQ(want, play(*machine, *import, future, &problem)) << "import, " << made.describe();
    EXPECT_EQ(want, play(*away, *moved, future, &problem)) << "moved, " << made.describe();
    const Bytes end = export_bytes(*machine, slot, &problem);
    EXPECT_EQ(end, export_bytes(*machine, *fork, &problem));
    EXPECT_EQ(end, export_bytes(*machine, *import, &problem));
    EXPECT_EQ(end, export_bytes(*away, *moved, &problem));
    // The twin: one token more.
    (void)decode_row(*machine, chain_row(*fork, random_tokens(random, made, 1)), {1, {}}, &problem);
    EXPECT_NE(end, export_bytes(*machine, *fork, &problem));
    EXPECT_EQ(problem, "");
  });
}

TEST_P(AnyFuture, OfARowIsItsOwn) {
  const ImplementationInfo info = implementation_named(GetParam());
  testing::for_each_case(0x2035, REPLAYSSM_LAW_CASES, [&](std::uint64_t seed) {
    Random random(seed);
    const Case made = roomy_case(random, info, 3);
    auto alone = make_machine(made, random.chance(0.5), false, random.bits());
    Case crowd_case = made;
    crowd_case.config.threads = random.integer(1, 3);
    auto crowd = make_machine(crowd_case, random.chance(0.5), random.chance(0.5), random.bits());
    ASSERT_TRUE(alone && crowd);
    std::string problem;
    const std::int64_t bad = held(*crowd);  // a neighbour whose numbers are all broken
    const std::int64_t busy = held(*crowd);
    const std::int64_t mine = held(*crowd);
    const std::int64_t own = held(*alone);
    const auto broken = [&](ModelToken token) {
      auto copy = std::make_shared<std::vector<LayerToken>>(*token);
      for (LayerToken& layer : *copy) {
        const double nan = std::numeric_limits<double>::quiet_NaN();
        for (double& value : layer.token.v) value = nan;
        for (double& value : layer.token.k) value = std::numeric_limits<double>::infinity();
        for (double& value : layer.gate) value = nan;
        for (double& value : layer.conv) value = nan;
      }
      return ModelToken(copy);
    };
    for (int step = 0; step < 5; ++step) {
      const Script script = random_script(random, made, 1);
      Row row = script.rows[0];
      row.slot = own;
      const std::vector<Bytes> want = decode_row(*alone, row, script.keep[0], &problem);
      row.slot = mine;
      std::vector<Row> rows = {chain_row(bad, {broken(random_token(random, made))}), row,
                               chain_row(busy, random_tokens(random, made, 1))};
      rows[0].prefill = random.chance(0.3);
      std::vector<Keep> keep = {{1, {}}, script.keep[0], {1, {}}};
      const auto at = static_cast<std::size_t>(random.integer(0, 2));
      std::swap(rows[1], rows[at]);
      std::swap(keep[1], keep[at]);
      std::string written;
      const Status status = crowd->forward(rows, keep, &written);
      ASSERT_TRUE(status.ok()) << status.to_string();
      ASSERT_EQ(written + problem, "");
      for (int t = 0; t < row.count(); ++t) {
        for (int layer = 0; layer < static_cast<int>(made.layers.size()); ++layer) {
          Bytes got = crowd->output_bytes(layer, at, t);
          EXPECT_EQ(got, alone->output_bytes(layer, 0, t)) << made.describe();
          if (made.layers[layer].conv.width == 0) continue;
          EXPECT_EQ(crowd->conv_bytes(layer, at, t), alone->conv_bytes(layer, 0, t));
        }
      }
    }
    EXPECT_EQ(export_bytes(*alone, own, &problem), export_bytes(*crowd, mine, &problem));
    // The neighbour really was broken, and its error word says so once its state is written.
    Machine::Stored stored;
    ASSERT_TRUE(crowd->store(bad, DType::kF32, false, &stored).ok());
    EXPECT_TRUE(std::isnan(stored.state[0][0])) << made.describe();
    const Result<SlotInfo> clean = crowd->cache().info(mine);
    EXPECT_TRUE(clean.ok() && clean->error == 0);
  });
}

TEST_P(ReplayFuture, OfTheCheckpointDoesNotReadStoredUpdates) {
  const ImplementationInfo info = implementation_named(GetParam());
  int bitten = 0;
  testing::for_each_case(0x27ac, REPLAYSSM_LAW_CASES / 2, [&](std::uint64_t seed) {
    Random random(seed);
    Case made = roomy_case(random, info, 1);
    bool delta = false;
    for (CaseLayer& layer : made.layers) delta = delta || layer.shape.rule != Rule::kMamba2;
    auto clean = make_machine(made, true, false, random.bits());
    auto broken = make_machine(made, true, false, random.bits());
    ASSERT_TRUE(clean && broken);
    std::string problem;
    const std::int64_t a = held(*clean);
    const std::int64_t b = held(*broken);
    for (int step = 0; step < 12 && problem.empty(); ++step) {
      Script script = random_script(random, made, 1);
      script.rows[0].prefill = false;
      const auto want = play(*clean, a, script, &problem);
      const auto got = play(*broken, b, script, &problem);
      bitten += want != got ? 1 : 0;
      broken->lent()->poison(TensorRole::kRingUpdate, b);
      const Result<SlotInfo> slot = clean->cache().info(a);
      ASSERT_TRUE(slot.ok());
      if (slot->zero) continue;
      for (int layer = 0; layer < static_cast<int>(made.layers.size()); ++layer) {
        EXPECT_EQ(clean->checkpoint(a, layer), broken->checkpoint(b, layer)) << made.describe();
      }
    }
    EXPECT_EQ(stored_bytes(*clean, a, &problem), stored_bytes(*broken, b, &problem));
    EXPECT_EQ(problem, "");
  });
  // The poison was read where it may be: outputs of the delta rules turned into NaN.
  EXPECT_TRUE(testing::seed_from_environment() || bitten > REPLAYSSM_LAW_CASES / 2) << bitten;
}

TEST_P(ReplayFuture, OfTheCheckpointIsTheConventionalState) {
  const ImplementationInfo info = implementation_named(GetParam());
  const ImplementationInfo other = implementation_named(GetParam() + "-conventional");
  if (!other.available) GTEST_SKIP() << "no conventional implementation of this kind";
  std::int64_t compared = 0;
  testing::for_each_case(0xc04f, REPLAYSSM_LAW_CASES, [&](std::uint64_t seed) {
    Random random(seed);
    const Case made = roomy_case(random, info, 2);
    Case written_case = made;
    written_case.config.implementation = other.name;
    written_case.config.decode = DecodeMode::kConventional;
    auto replay = make_machine(made, true, random.chance(0.3), random.bits());
    auto written = make_machine(written_case, true, false, random.bits());
    ASSERT_TRUE(replay && written);
    std::string problem;
    const std::int64_t a = held(*replay);
    const std::int64_t b = held(*written);
    // Both decode the same accepted tokens; the state of each must be the other's at every token.
    for (int step = 0; step < 10; ++step) {
      Script script = random_script(random, made, 1);
      Row& row = script.rows[0];
      Keep& keep = script.keep[0];
      if (keep.count == 0 && row.count() > 0 && !row.prefill) {
        keep = {1, {}};
        if (!row.parents.empty()) keep.nodes = {0};
      }
      (void)play(*replay, a, script, &problem);
      (void)play(*written, b, script, &problem);
      ASSERT_EQ(problem, "") << made.describe();
      EXPECT_EQ(stored_bytes(*replay, a, &problem), stored_bytes(*written, b, &problem))
          << made.describe();
      const Result<SlotInfo> slot = replay->cache().info(a);
      ASSERT_TRUE(slot.ok());
      if (slot->zero || slot->committed > 0 || made.config.max_step_tokens > 1) continue;
      for (int layer = 0; layer < static_cast<int>(made.layers.size()); ++layer) {
        EXPECT_EQ(replay->checkpoint(a, layer), written->checkpoint(b, layer));
        ++compared;
      }
    }
  });
  EXPECT_TRUE(testing::seed_from_environment() || compared > 0);
}

INSTANTIATE_TEST_SUITE_P(All, AnyFuture, ::testing::ValuesIn(available_names()), law_name);
INSTANTIATE_TEST_SUITE_P(All, ReplayFuture,
                         ::testing::ValuesIn(available_names(DecodeMode::kReplay)), law_name);

}  // namespace
}  // namespace replayssm::laws
