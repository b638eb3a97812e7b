// The laws that hold bit for bit: what decides a checkpoint, and what does not. No tolerances;
// every test ends with a twin that must differ.
#include "tests/law/support/laws.hpp"

namespace replayssm::laws {
namespace {

class ReplayBits : public ::testing::TestWithParam<std::string> {};
class AnyBits : public ::testing::TestWithParam<std::string> {};

// Other W would fold elsewhere; everything else may differ.
Case hostile_sibling(Random& random, const Case& made) {
  Case other = made;
  other.config.threads = random.integer(1, 3);
  other.config.slots = made.config.slots + random.integer(0, 3);
  other.config.blocks = 2 * other.config.slots;
  other.config.max_rows = other.config.slots + 1;
  other.config.materialize_history = random.chance(0.5);
  other.config.max_step_tokens =
      random.integer(1, std::min(other.config.window, std::int32_t{kMaxStepTokens}));
  const int most = std::max(made.config.max_step_tokens, other.config.max_step_tokens);
  other.config.max_tokens = other.config.max_rows * most + 8;
  return other;
}

TEST_P(ReplayBits, CheckpointsDependOnAcceptedTokensAlone) {
  const ImplementationInfo info = implementation_named(GetParam());
  std::int64_t compared = 0;
  int told_apart = 0;
  testing::for_each_case(0xb175, REPLAYSSM_LAW_CASES, [&](std::uint64_t seed) {
    Random random(seed);
    Case plain_case = roomy_case(random, info, 2);
    plain_case.config.threads = 1;
    const Case hostile_case = hostile_sibling(random, plain_case);
    auto plain = make_machine(plain_case, true, false, random.bits());
    auto hostile = make_machine(hostile_case, true, random.chance(0.4), random.bits());
    ASSERT_TRUE(plain && hostile);
    Sequence sequence = random_sequence(random, hostile_case, random.integer(5, 60));
    std::vector<std::int64_t> mates;
    while (hostile->cache().free_slots() > 1) mates.push_back(held(*hostile));
    // A slot that has been used before, so that its ring and conv ring start anywhere.
    std::int64_t slot = held(*hostile);
    const Sequence earlier = random_sequence(random, hostile_case, random.integer(0, 20));
    ASSERT_EQ(decode_hostile(*hostile, slot, earlier, mates, random).problem, "");
    ASSERT_TRUE(hostile->cache().release(slot).ok());
    slot = held(*hostile);
    const Trace want = decode_plain(*plain, held(*plain), sequence);
    const Trace got = decode_hostile(*hostile, slot, sequence, mates, random);
    ASSERT_EQ(want.problem, "") << plain_case.describe();
    ASSERT_EQ(got.problem, "") << hostile_case.describe();
    EXPECT_EQ(first_difference(want.checkpoints, got.checkpoints), "")
        << plain_case.describe() << "\n"
        << hostile_case.describe();
    EXPECT_EQ(want.end, got.end) << hostile_case.describe();
    for (const auto& known : want.checkpoints) {
      compared += static_cast<std::int64_t>(got.checkpoints.count(known.first));
    }
    // The twin: one value of one token, unless a decay of 0 has wiped it out.
    sequence[0].tokens[0] = nudged(sequence[0].tokens[0]);
    const Trace other = decode_plain(*plain, held(*plain), sequence);
    EXPECT_EQ(other.problem, "");
    told_apart += want.end != other.end || want.checkpoints != other.checkpoints ? 1 : 0;
  });
  if (testing::seed_from_environment()) return;
  EXPECT_GT(compared, REPLAYSSM_LAW_CASES);
  EXPECT_GT(told_apart, REPLAYSSM_LAW_CASES * 9 / 10);
}

// A slot and a fork of it, with a ring that holds `fill` records.
struct Pair {
  std::unique_ptr<Machine> machine;
  std::int64_t one = -1;
  std::int64_t other = -1;
  int records = 0;
};

Pair forked_pair(Random& random, const Case& made, std::string* problem) {
  Pair pair;
  pair.machine = make_machine(made, random.chance(0.5), random.chance(0.3), random.bits());
  pair.one = held(*pair.machine);
  const Sequence sequence = random_sequence(random, made, random.integer(1, 20));
  *problem = decode_hostile(*pair.machine, pair.one, sequence, {}, random).problem;
  const Result<std::int64_t> fork = pair.machine->cache().fork(pair.one);
  if (!fork.ok()) *problem += fork.status().to_string();
  pair.other = fork.ok() ? *fork : -1;
  const Result<SlotInfo> slot = pair.machine->cache().info(pair.one);
  pair.records = slot.ok() ? slot->committed : 0;
  return pair;
}

TEST_P(AnyBits, TokensAtOnceAreTokensOneByOne) {
  const ImplementationInfo info = implementation_named(GetParam());
  std::int64_t compared = 0;
  int told_apart = 0;
  testing::for_each_case(0x4a11, REPLAYSSM_LAW_CASES, [&](std::uint64_t seed) {
    Random random(seed);
    const Case made = roomy_case(random, info, 2);
    std::string problem;
    Pair pair = forked_pair(random, made, &problem);
    ASSERT_EQ(problem, "") << made.describe();
    int tokens = random.integer(1, made.config.max_step_tokens);
    if (info.decode == DecodeMode::kReplay) {
      // No fold between: the last token must still find fewer than W records. A fold that is due at
      // the start happens in both.
      const int records =
          pair.records >= made.config.window ? pair.records - made.config.window : pair.records;
      tokens = std::min(tokens, std::max(made.config.window - records, 1));
    }
    const std::vector<ModelToken> list = random_tokens(random, made, tokens);
    const std::vector<Bytes> once =
        decode_row(*pair.machine, chain_row(pair.one, list), {tokens, {}}, &problem);
    for (int t = 0; t < tokens; ++t) {
      const std::vector<Bytes> single =
          decode_row(*pair.machine, chain_row(pair.other, {list[t]}), {1, {}}, &problem);
      ASSERT_EQ(problem, "");
      EXPECT_EQ(once[t], single[0]) << "token " << t << " of " << tokens << ", " << made.describe();
      ++compared;
    }
    EXPECT_EQ(export_bytes(*pair.machine, pair.one, &problem),
              export_bytes(*pair.machine, pair.other, &problem));
    // The twin.
    const std::vector<Bytes> twin =
        decode_row(*pair.machine, chain_row(pair.other, {nudged(list[0])}), {1, {}}, &problem);
    const std::vector<Bytes> again =
        decode_row(*pair.machine, chain_row(pair.one, {list[0]}), {1, {}}, &problem);
    EXPECT_EQ(problem, "");
    told_apart += twin[0] != again[0] ? 1 : 0;
  });
  if (testing::seed_from_environment()) return;
  EXPECT_GT(compared, REPLAYSSM_LAW_CASES);
  EXPECT_GT(told_apart, REPLAYSSM_LAW_CASES * 9 / 10);
}

TEST_P(AnyBits, PathsOfATreeAreThoseChains) {
  const ImplementationInfo info = implementation_named(GetParam());
  std::int64_t branches = 0;
  testing::for_each_case(0x77ee, REPLAYSSM_LAW_CASES, [&](std::uint64_t seed) {
    Random random(seed);
    Case made = roomy_case(random, info, 2);
    made.config.max_step_tokens = std::max(made.config.max_step_tokens, 4);
    made.config.window = std::max(made.config.window, made.config.max_step_tokens);
    made.config.max_tokens = made.config.max_rows * made.config.max_step_tokens + 8;
    std::string problem;
    Pair pair = forked_pair(random, made, &problem);
    ASSERT_EQ(problem, "") << made.describe();
    Row tree = chain_row(
        pair.one, random_tokens(random, made, random.integer(2, made.config.max_step_tokens)));
    tree.parents = tree_parents(random, tree.count());
    std::vector<int> path = tree_path(random, tree.parents, 0.1);
    if (path.empty()) path = {0};
    if (tree.parents[path[0]] != -1) path = {0};
    const int kept = static_cast<int>(path.size());
    const std::vector<Bytes> of_tree = decode_row(*pair.machine, tree, {kept, path}, &problem);
    Row chain = chain_row(pair.other, {});
    for (const int node : path) chain.tokens.push_back(tree.tokens[node]);
    const std::vector<Bytes> of_chain = decode_row(*pair.machine, chain, {kept, {}}, &problem);
    ASSERT_EQ(problem, "") << made.describe();
    for (int i = 0; i < kept; ++i) {
      EXPECT_EQ(of_tree[path[i]], of_chain[i]) << "node " << path[i] << ", " << made.describe();
      branches += path[i] != i ? 1 : 0;
    }
    EXPECT_EQ(export_bytes(*pair.machine, pair.one, &problem),
              export_bytes(*pair.machine, pair.other, &problem))
        << made.describe();
    EXPECT_EQ(problem, "");
  });
  EXPECT_TRUE(testing::seed_from_environment() || branches > REPLAYSSM_LAW_CASES / 4) << branches;
}

TEST_P(AnyBits, AcceptingNothingChangesNothing) {
  const ImplementationInfo info = implementation_named(GetParam());
  testing::for_each_case(0xacc0, REPLAYSSM_LAW_CASES, [&](std::uint64_t seed) {
    Random random(seed);
    Case made = roomy_case(random, info, 2);
    const bool replay = info.decode == DecodeMode::kReplay;
    if (!replay) made.config.max_step_tokens = std::max(made.config.max_step_tokens, 2);
    made.config.window = std::max(made.config.window, made.config.max_step_tokens);
    std::string problem;
    Pair pair = forked_pair(random, made, &problem);
    ASSERT_EQ(problem, "") << made.describe();
    // A row without tokens folds what is due, in both; from there on nothing is due.
    (void)decode_row(*pair.machine, chain_row(pair.one, {}), {0, {}}, &problem);
    (void)decode_row(*pair.machine, chain_row(pair.other, {}), {0, {}}, &problem);
    const Bytes before = export_bytes(*pair.machine, pair.one, &problem);
    EXPECT_EQ(before, export_bytes(*pair.machine, pair.other, &problem));
    for (int i = 0; i < 3; ++i) {
      const int most = replay ? made.config.max_step_tokens : made.config.max_step_tokens - 1;
      Row row = chain_row(pair.one, random_tokens(random, made, random.integer(0, most)));
      if (random.chance(0.4)) row.parents = tree_parents(random, row.count());
      (void)decode_row(*pair.machine, row, {0, {}}, &problem);
      ASSERT_EQ(problem, "");
      EXPECT_EQ(before, export_bytes(*pair.machine, pair.one, &problem)) << made.describe();
    }
    // And the next token sees nothing of it.
    const std::vector<ModelToken> next = random_tokens(random, made, 1);
    EXPECT_EQ(decode_row(*pair.machine, chain_row(pair.one, next), {1, {}}, &problem),
              decode_row(*pair.machine, chain_row(pair.other, next), {1, {}}, &problem))
        << made.describe();
    EXPECT_NE(before, export_bytes(*pair.machine, pair.one, &problem));
    EXPECT_EQ(problem, "");
  });
}

TEST_P(ReplayBits, AbortedForwardsLeaveNoTrace) {
  const ImplementationInfo info = implementation_named(GetParam());
  testing::for_each_case(0xab07, REPLAYSSM_LAW_CASES, [&](std::uint64_t seed) {
    Random random(seed);
    const Case made = roomy_case(random, info, 2);
    std::string problem;
    Pair pair = forked_pair(random, made, &problem);
    ASSERT_EQ(problem, "") << made.describe();
    Row row = chain_row(
        pair.one, random_tokens(random, made, random.integer(0, made.config.max_step_tokens)));
    if (random.chance(0.4)) row.parents = tree_parents(random, row.count());
    const int layers = static_cast<int>(made.layers.size());
    const int stop = random.integer(-1, layers);
    const Bytes before = export_bytes(*pair.machine, pair.one, &problem);
    ASSERT_TRUE(pair.machine->begin({row}).ok());
    if (stop >= 0) {
      ASSERT_TRUE(pair.machine->fold().ok());
    }
    for (int layer = 0; layer < stop; ++layer) {
      ASSERT_TRUE(pair.machine->run_layer(layer, &problem).ok());
    }
    ASSERT_TRUE(pair.machine->cache().abort().ok());
    // Only a fold that was due may have happened, and it changes no logical state.
    if (stop >= 0) (void)decode_row(*pair.machine, chain_row(pair.other, {}), {0, {}}, &problem);
    const Bytes after = export_bytes(*pair.machine, pair.one, &problem);
    EXPECT_EQ(after, export_bytes(*pair.machine, pair.other, &problem)) << made.describe();
    if (stop < 0) {
      EXPECT_EQ(before, after);
    }
    const std::vector<ModelToken> next = random_tokens(random, made, 1);
    EXPECT_EQ(decode_row(*pair.machine, chain_row(pair.one, next), {1, {}}, &problem),
              decode_row(*pair.machine, chain_row(pair.other, next), {1, {}}, &problem))
        << made.describe();
    const Result<SlotInfo> slot = pair.machine->cache().info(pair.one);
    EXPECT_TRUE(slot.ok() && slot->error == 0);
    EXPECT_EQ(problem, "");
  });
}

INSTANTIATE_TEST_SUITE_P(All, ReplayBits, ::testing::ValuesIn(available_names(DecodeMode::kReplay)),
                         law_name);
INSTANTIATE_TEST_SUITE_P(All, AnyBits, ::testing::ValuesIn(available_names()), law_name);

}  // namespace
}  // namespace replayssm::laws
