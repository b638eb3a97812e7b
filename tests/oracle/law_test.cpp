// Single laws of the cache, each by the shortest case that can break it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "oracle/law.hpp"
#include "tests/oracle/random_layers.hpp"

namespace replayssm::oracle::testing {
namespace {

// A cache of one layer a rule and the tokens of one sequence, so that several caches can be fed the
// same.
struct Sequence {
  explicit Sequence(std::uint64_t seed, int count) {
    Random random(seed);
    for (const Rule rule : {Rule::kMamba2, Rule::kGdn, Rule::kKda}) {
      LawLayer layer;
      layer.layer = random_layer(random, rule);
      layers.push_back(std::move(layer));
    }
    for (const LawLayer& layer : layers) {
      tokens.emplace_back();
      for (int t = 0; t < count; ++t) tokens.back().push_back(random_token(random, layer.layer));
    }
  }
  [[nodiscard]] Law law(int window, int max_tokens, int slots = 1, int blocks = 1) const {
    LawConfig config;
    config.layers = layers;
    config.window = window;
    config.max_tokens = max_tokens;
    config.slots = slots;
    config.blocks = blocks;
    return Law::create(config).value();
  }
  std::vector<LawLayer> layers;
  std::vector<std::vector<Token>> tokens;  // [layer][position]
};

std::vector<std::vector<double>> outputs_of(const Result<RowValues>& result) {
  EXPECT_TRUE(result.ok()) << result.status().to_string();
  std::vector<std::vector<double>> all;
  for (const auto& row : result.value()) all.insert(all.end(), row.begin(), row.end());
  return all;
}

// One forward of one slot; `from` is the sequence position of each node's token, -1 for a draft
// that will be rejected and holds a token from somewhere else.
void forward(Law* law, const Sequence& sequence, const LawRow& row, const std::vector<int>& from,
             const Accepted& accepted) {
  ASSERT_TRUE(law->begin({row}).ok());
  ASSERT_TRUE(law->fold().ok());
  for (std::size_t layer = 0; layer < sequence.layers.size(); ++layer) {
    std::vector<Token> tokens;
    for (const int position : from) {
      tokens.push_back(
          sequence.tokens[layer][position < 0 ? sequence.tokens[layer].size() - 1 : position]);
    }
    ASSERT_TRUE(law->step(static_cast<int>(layer), {tokens}).ok());
  }
  ASSERT_TRUE(law->commit({accepted}).ok());
}

void forward_chain(Law* law, const Sequence& sequence, std::int64_t slot, int first, int count) {
  LawRow row;
  row.slot = slot;
  row.tokens = count;
  std::vector<int> from;
  for (int t = 0; t < count; ++t) from.push_back(first + t);
  Accepted accepted;
  accepted.count = count;
  forward(law, sequence, row, from, accepted);
}

// Folds what is due without adding a token.
void fold_due(Law* law, std::int64_t slot) {
  LawRow row;
  row.slot = slot;
  ASSERT_TRUE(law->begin({row}).ok());
  ASSERT_TRUE(law->fold().ok());
  ASSERT_TRUE(law->abort().ok());
}

bool same_bits(const State& a, const State& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

// Runs `count` tokens with random chains and trees of drafts, some right, some wrong.
void speculate(Law* law, const Sequence& sequence, Random* random, int count, int max_tokens) {
  int position = 0;
  while (position < count) {
    LawRow row;
    row.tokens = random->integer(1, max_tokens);
    row.parents = random_parents(*random, row.tokens);
    std::vector<int> path = random_path(*random, row.parents);
    while (position + static_cast<int>(path.size()) > count) path.pop_back();
    std::vector<int> from(row.tokens, -1);
    for (std::size_t i = 0; i < path.size(); ++i) from[path[i]] = position + static_cast<int>(i);
    Accepted accepted;
    accepted.nodes = path;
    forward(law, sequence, row, from, accepted);
    position += static_cast<int>(path.size());
  }
}

TEST(Law, CheckpointBitsDependOnAcceptedTokensAlone) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    const Sequence sequence(seed, 60);
    const int window = random.integer(1, 12);
    const int max_tokens = random.integer(1, window);
    Law plain = sequence.law(window, 1);
    Law drafted = sequence.law(window, max_tokens);
    ASSERT_TRUE(plain.allocate().ok() && drafted.allocate().ok());
    for (int t = 0; t < 50; ++t) forward_chain(&plain, sequence, 0, t, 1);
    speculate(&drafted, sequence, &random, 50, max_tokens);
    fold_due(&plain, 0);
    fold_due(&drafted, 0);
    EXPECT_EQ(plain.committed(0), drafted.committed(0));
    for (int layer = 0; layer < 3; ++layer) {
      EXPECT_TRUE(same_bits(plain.checkpoint(0, layer), drafted.checkpoint(0, layer))) << seed;
      for (const double value : plain.checkpoint(0, layer)) EXPECT_TRUE(std::isfinite(value));
    }
    // Twin: another fold rhythm gives other bits, so the comparison sees rounding.
    Law other = sequence.law(window + 1, 1);
    ASSERT_TRUE(other.allocate().ok());
    for (int t = 0; t < 50; ++t) forward_chain(&other, sequence, 0, t, 1);
    fold_due(&other, 0);
    bool equal = true;
    for (int layer = 0; layer < 3; ++layer) {
      equal = equal && same_bits(plain.checkpoint(0, layer), other.checkpoint(0, layer));
    }
    EXPECT_FALSE(equal) << seed;
  }
}

TEST(Law, AbortedForwardLeavesNoTrace) {
  const Sequence sequence(3, 40);
  for (const int stop : {0, 1, 2, 3}) {
    Law law = sequence.law(5, 4);
    Law undisturbed = sequence.law(5, 4);
    ASSERT_TRUE(law.allocate().ok() && undisturbed.allocate().ok());
    for (int t = 0; t < 30; t += 2) {
      LawRow row;
      row.tokens = 4;
      ASSERT_TRUE(law.begin({row}).ok());
      if (stop >= 1) {
        ASSERT_TRUE(law.fold().ok());
      }
      for (int layer = 0; layer + 2 <= stop; ++layer) {
        std::vector<Token> tokens(4, sequence.tokens[layer][35]);
        ASSERT_TRUE(law.step(layer, {tokens}).ok());
      }
      // Not even abort is called: the next begin forgets the open forward.
      forward_chain(&law, sequence, 0, t, 2);
      forward_chain(&undisturbed, sequence, 0, t, 2);
      for (int layer = 0; layer < 3; ++layer) {
        const State got = law.store_state(0).value()[layer];
        EXPECT_TRUE(same_bits(got, undisturbed.store_state(0).value()[layer]));
        for (const double value : got) EXPECT_TRUE(std::isfinite(value));
      }
    }
  }
}

TEST(Law, AcceptingNothingChangesNothing) {
  const Sequence sequence(4, 40);
  Law law = sequence.law(5, 4);
  ASSERT_TRUE(law.allocate().ok());
  for (int t = 0; t < 20; ++t) {
    const auto before = law.store_state(0).value();
    LawRow row;
    row.tokens = 3;
    forward(&law, sequence, row, {-1, -1, -1}, Accepted{});
    const auto after = law.store_state(0).value();
    for (int layer = 0; layer < 3; ++layer) {
      // A due fold may run in between, which reorders sums but not the state.
      for (std::size_t i = 0; i < before[layer].size(); ++i) {
        EXPECT_NEAR(before[layer][i], after[layer][i], 1e-12 * (1.0 + std::abs(before[layer][i])));
      }
    }
    EXPECT_EQ(law.position(0), t);
    forward_chain(&law, sequence, 0, t, 1);
  }
}

TEST(Law, FoldsAtTheFirstForwardThatFindsAFullWindow) {
  const Sequence sequence(5, 40);
  Law law = sequence.law(4, 3);
  ASSERT_TRUE(law.allocate().ok());
  forward_chain(&law, sequence, 0, 0, 3);
  EXPECT_EQ(law.committed(0), 3);
  forward_chain(&law, sequence, 0, 3, 3);  // finds 3: no fold
  EXPECT_EQ(law.committed(0), 6);
  LawRow row;
  row.tokens = 3;
  ASSERT_TRUE(law.begin({row}).ok());
  EXPECT_EQ(law.descriptors()[0].fold, 4);
  EXPECT_EQ(law.descriptors()[0].committed, 2);
  EXPECT_TRUE(law.descriptors()[0].zero);
  ASSERT_TRUE(law.abort().ok());
  EXPECT_EQ(law.committed(0), 6);
  fold_due(&law, 0);
  EXPECT_EQ(law.committed(0), 2);
}

TEST(Law, ForkNeedsABlockForEverySharer) {
  const Sequence sequence(6, 40);
  Law law = sequence.law(2, 1, 4, 4);
  ASSERT_TRUE(law.allocate().ok());
  ASSERT_TRUE(law.fork(0).ok());  // two sharers, three free blocks
  ASSERT_TRUE(law.fork(0).ok());  // three sharers, three free
  const auto refused = law.fork(0);
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(law.allocate().status().code(),
            StatusCode::kResourceExhausted);  // it would take a spare block
  // All three fold in one forward: each into a block of its own, the shared one returns at commit.
  for (int t = 0; t < 3; ++t) {
    ASSERT_TRUE(law.begin({{0, 1, {}, false}, {1, 1, {}, false}, {2, 1, {}, false}}).ok());
    ASSERT_TRUE(law.fold().ok());
    for (int layer = 0; layer < 3; ++layer) {
      const std::vector<Token> token{sequence.tokens[layer][t]};
      ASSERT_TRUE(law.step(layer, {token, token, token}).ok());
    }
    if (t == 2) {
      EXPECT_EQ(law.free_blocks(), 0);
    }
    ASSERT_TRUE(law.commit(std::vector<Accepted>(3, Accepted{1, {}})).ok());
  }
  EXPECT_EQ(law.free_blocks(), 1);
  EXPECT_NE(law.block_of(0), law.block_of(1));
  EXPECT_NE(law.block_of(1), law.block_of(2));
}

TEST(Law, RefusesWrongOrderAndWritesNothing) {
  const Sequence sequence(7, 10);
  Law law = sequence.law(4, 3, 2, 2);
  ASSERT_TRUE(law.allocate().ok());
  const auto token = [&](int layer) {
    return std::vector<std::vector<Token>>{{sequence.tokens[layer][0]}};
  };
  const LawRow row{0, 1, {}, false};
  const auto too_early = StatusCode::kFailedPrecondition;
  EXPECT_EQ(law.fold().code(), too_early);
  EXPECT_EQ(law.step(0, token(0)).status().code(), too_early);
  EXPECT_EQ(law.commit({}).code(), too_early);
  EXPECT_EQ(law.abort().code(), too_early);
  ASSERT_TRUE(law.begin({row}).ok());
  EXPECT_EQ(law.step(0, token(0)).status().code(), too_early);  // before the fold
  ASSERT_TRUE(law.fold().ok());
  EXPECT_EQ(law.fold().code(), too_early);
  EXPECT_EQ(law.fork(0).status().code(), too_early);
  ASSERT_TRUE(law.step(0, token(0)).ok());
  EXPECT_EQ(law.step(0, token(0)).status().code(), too_early);  // a layer twice
  EXPECT_EQ(law.commit({Accepted{1, {}}}).code(), too_early);   // layers missing
  ASSERT_TRUE(law.step(1, token(1)).ok() && law.step(2, token(2)).ok());
  EXPECT_EQ(law.commit({Accepted{2, {}}}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(law.commit({}).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(law.commit({Accepted{1, {}}}).ok());
  EXPECT_EQ(law.commit({Accepted{1, {}}}).code(), too_early);  // twice
  EXPECT_EQ(law.committed(0), 1);
}

TEST(Law, RefusesMalformedRows) {
  const Sequence sequence(8, 10);
  Law law = sequence.law(4, 3, 3, 3);
  ASSERT_TRUE(law.allocate().ok() && law.allocate().ok());
  const auto code = [&](const std::vector<LawRow>& rows) { return law.begin(rows).code(); };
  EXPECT_EQ(code({{0, 4, {}, false}}), StatusCode::kInvalidArgument);  // T > T_max
  EXPECT_EQ(code({{0, -1, {}, false}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{0, 1, {}, false}, {0, 1, {}, false}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{3, 1, {}, false}}), StatusCode::kOutOfRange);
  EXPECT_EQ(code({{-2, 1, {}, false}}), StatusCode::kOutOfRange);
  EXPECT_EQ(code({{2, 1, {}, false}}), StatusCode::kFailedPrecondition);    // not in use
  EXPECT_EQ(code({{0, 2, {-1, 1}, false}}), StatusCode::kInvalidArgument);  // own parent
  EXPECT_EQ(code({{0, 2, {-2, 0}, false}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{0, 2, {-1}, false}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{0, 2, {-1, -1}, true}}), StatusCode::kInvalidArgument);  // a prompt as a tree
  EXPECT_EQ(code({{0, 2, {-1, -1}, false}, {-1, 3, {}, false}, {1, 0, {}, false}}),
            StatusCode::kOk);
}

TEST(Law, RefusesWindowsThatCannotHold) {
  const Sequence sequence(9, 1);
  LawConfig config;
  config.layers = sequence.layers;
  config.window = 3;
  config.max_tokens = 4;
  EXPECT_EQ(Law::create(config).status().code(), StatusCode::kInvalidArgument);
  config.max_tokens = 0;
  EXPECT_EQ(Law::create(config).status().code(), StatusCode::kInvalidArgument);
  config.window = 0;
  EXPECT_EQ(Law::create(config).status().code(), StatusCode::kInvalidArgument);
  config.window = config.max_tokens = 3;
  EXPECT_TRUE(Law::create(config).ok());
}

TEST(Law, TreesNeedPaths) {
  const Sequence sequence(10, 10);
  Law law = sequence.law(6, 4);
  ASSERT_TRUE(law.allocate().ok());
  ASSERT_TRUE(law.begin({{0, 4, {-1, 0, 0, 2}, false}}).ok());
  ASSERT_TRUE(law.fold().ok());
  for (int layer = 0; layer < 3; ++layer) {
    ASSERT_TRUE(law.step(layer, {std::vector<Token>(4, sequence.tokens[layer][0])}).ok());
  }
  const auto bad = StatusCode::kInvalidArgument;
  EXPECT_EQ(law.commit({Accepted{3, {}}}).code(), bad);  // a count over a branch
  EXPECT_EQ(law.commit({Accepted{0, std::vector<int>{0, 3}}}).code(), bad);  // not its child
  EXPECT_EQ(law.commit({Accepted{0, std::vector<int>{2, 3}}}).code(), bad);  // not a root
  EXPECT_EQ(law.commit({Accepted{0, std::vector<int>{0, 0}}}).code(), bad);
  EXPECT_EQ(law.commit({Accepted{0, std::vector<int>{0, 4}}}).code(), bad);
  EXPECT_TRUE(law.commit({Accepted{0, std::vector<int>{0, 2, 3}}}).ok());
  EXPECT_EQ(law.committed(0), 3);
}

TEST(Law, ReleaseInsideAForward) {
  const Sequence sequence(11, 30);
  Law law = sequence.law(3, 2, 3, 5);
  ASSERT_TRUE(law.allocate().ok());
  for (int t = 0; t < 3; ++t) forward_chain(&law, sequence, 0, t, 1);
  ASSERT_TRUE(law.fork(0).ok());
  ASSERT_TRUE(law.begin({{0, 1, {}, false}, {1, 1, {}, false}}).ok());  // both fold a shared block
  ASSERT_TRUE(law.release(0).ok());
  ASSERT_TRUE(law.fold().ok());
  for (int layer = 0; layer < 3; ++layer) {
    const std::vector<Token> token{sequence.tokens[layer][3]};
    const auto outputs = outputs_of(law.step(layer, {token, token}));
    for (const double value : outputs[0]) EXPECT_EQ(value, 0.0);
  }
  ASSERT_TRUE(law.commit({Accepted{1, {}}, Accepted{1, {}}}).ok());
  EXPECT_EQ(law.free_blocks(), 4);
  EXPECT_EQ(law.position(1), 4);
  EXPECT_FALSE(law.store_state(0).ok());
}

}  // namespace
}  // namespace replayssm::oracle::testing
