// What only the arrays of a call show, on a device that nobody waits for: a row that is not legal
// is marked in its slot's error word and left as it was, in begin, in a layer and in commit; the
// rows beside it come out as if it had not been there. With `checked` the call itself is refused
// and nothing has changed.
// It has over 400 lines because all cases are judged by one fixture, against a twin.
#include "tests/cuda/device_rig.hpp"

namespace replayssm::device_tests {
namespace {

constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kNear = std::numeric_limits<std::int64_t>::min();
constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();

class CudaRefusals : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string why = why_skipped(GetParam());
    if (!why.empty()) GTEST_SKIP() << why;
  }
  static void ok(const Status& status) { ASSERT_TRUE(status.ok()) << status.to_string(); }

  // After `rig` has run a forward in which the rows of `refused` should have had no part: every
  // slot has the future it has in a cache where only `legal` was run, now and some tokens later.
  void expect_future(Rig& rig, const RowArrays& legal, const std::vector<std::int32_t>& accepted,
                     const std::vector<std::int64_t>& refused,
                     const std::vector<std::int32_t>& nodes = {}) {
    Rig twin(GetParam(), false);
    twin.start();
    if (!legal.slots.empty()) {
      ok(twin.begin(legal));
      ok(twin.layers());
      ok(twin.commit(accepted, nodes));
    }
    for (std::int64_t slot = 0; slot < 4; ++slot) {
      const bool marked = std::find(refused.begin(), refused.end(), slot) != refused.end();
      EXPECT_EQ(rig.info(slot).error, marked ? std::uint32_t{kSlotOutOfRange} : 0U)
          << "slot " << slot;
      EXPECT_EQ(rig.info(slot).position, twin.info(slot).position) << "slot " << slot;
      EXPECT_EQ(twin.info(slot).error, 0U);
    }
    for (int more = 0; more < 2; ++more) {
      RowArrays all;
      all.slots = {0, 1, 2, 3};
      all.tokens = {1, 3, 2, 3};
      for (Rig* one : {&rig, &twin}) ok(one->forward(all));
      for (std::int64_t token = 0; token < 9; ++token) {
        for (int layer = 0; layer < 2; ++layer)
          ASSERT_EQ(rig.output(layer, token), twin.output(layer, token)) << "token " << token;
      }
    }
    for (std::int64_t slot = 0; slot < 4; ++slot) {
      // The order of places may differ, an export does not know it; a fold that both have run may
      // stand in other blocks.
      EXPECT_EQ(rig.future(slot), twin.future(slot)) << "slot " << slot;
      EXPECT_EQ(rig.info(slot).error, 0U) << "taken back";
    }
  }
};

TEST_P(CudaRefusals, RowsThatDoNotFitATensorCommitNothing) {
  const std::vector<std::pair<const char*, Mistake>> mistakes = {
      {"conv input", {0, nullptr, 3, 0.0F}},
      {"value of the first layer", {0, &LayerInputs::value, 3, 0.0F}},
      {"gate of the first layer", {0, &LayerInputs::gate, 4, 0.0F}},
      {"output of the second layer", {1, &LayerInputs::out, 2, 0.0F}},
      {"beta of the second layer", {1, &LayerInputs::beta, 3, 0.0F}},
  };
  RowArrays rows;
  rows.slots = {2, 1};
  rows.tokens = {2, 3};
  RowArrays legal = rows;
  legal.slots[1] = -1;
  for (const auto& [name, mistake] : mistakes) {
    SCOPED_TRACE(name);
    Rig rig(GetParam(), false);
    rig.start();
    // Conventional decoding of T_max tokens in place would lose the state; see below.
    rows.tokens[1] = legal.tokens[1] = rig.conventional() ? 2 : 3;
    Mistake wrong = mistake;
    wrong.extent = std::min<std::int64_t>(wrong.extent, 1 + rows.tokens[1]);
    ok(rig.begin(rows));
    ok(rig.layers(wrong));
    ok(rig.commit({1, 2}));
    expect_future(rig, legal, {1, 2}, {1});
  }
}

// Rows of no tokens fit everywhere.
TEST_P(CudaRefusals, RowsWithoutTokensFitEverywhere) {
  Rig rig(GetParam(), false);
  rig.start();
  RowArrays rows;
  rows.slots = {2, 1};
  rows.tokens = {2, 0};
  ok(rig.begin(rows));
  ok(rig.layers({1, &LayerInputs::out, 2, 0.0F}));
  ok(rig.commit({2, 0}));
  expect_future(rig, rows, {2, 0}, {});
}

// Shapes say nothing where T lies on the device, so an absent input is found by the rows.
TEST_P(CudaRefusals, AbsentInputsRefuseEveryRow) {
  for (const int layer : {0, 1}) {
    for (TensorView LayerInputs::*view : {&LayerInputs::key, &LayerInputs::out}) {
      Rig rig(GetParam(), false);
      rig.start();
      RowArrays rows;
      rows.slots = {0, -1, 2};
      rows.tokens = {1, 2, 1};
      ok(rig.begin(rows));
      ok(rig.layers({layer, view, -1, 0.0F}));
      ok(rig.commit({1, 2, 1}));
      expect_future(rig, {}, {}, {0, 2});
    }
  }
}

TEST_P(CudaRefusals, StepsThatOverwroteTheStateTearTheSlot) {
  Rig rig(GetParam(), false);
  rig.start();
  RowArrays rows;
  rows.slots = {0};
  rows.tokens = {kSteps};
  ok(rig.begin(rows));
  ok(rig.layers({1, &LayerInputs::value, 2, 0.0F}));  // the first layer has run
  ok(rig.commit({}));
  EXPECT_EQ(rig.info(0).error,
            rig.conventional() ? kSlotOutOfRange | kSlotTorn : std::uint32_t{kSlotOutOfRange});
  EXPECT_EQ(rig.info(0).position, 5);
}

TEST_P(CudaRefusals, PromptsThatDoNotFitCommitNothing) {
  Rig rig(GetParam(), false);
  rig.start();
  RowArrays rows;
  rows.slots = {3, 1, 0};
  rows.tokens = {2, 5, 2};
  rows.prefill = {0, 1, 1};
  ok(rig.begin(rows));
  ok(rig.layers({1, &LayerInputs::query, 8, 0.0F}));
  ok(rig.commit({}));
  // The prompt behind the end; the one before it and the step have been taken.
  EXPECT_EQ(rig.info(0).error, kSlotOutOfRange | kSlotTorn) << "its conv history was overwritten";
  EXPECT_EQ(rig.info(0).position, 5);
  EXPECT_EQ(rig.info(1).error, 0U);
  EXPECT_EQ(rig.info(1).position, 10);
  EXPECT_EQ(rig.info(3).position, 2);
  // Into a slot that holds nothing a prompt may be tried again: what was written counts as 0.
  Rig fresh(GetParam(), false);
  fresh.start();
  RowArrays prompt;
  prompt.slots = {3};
  prompt.tokens = {5};
  prompt.prefill = {1};
  ok(fresh.begin(prompt));
  ok(fresh.layers({1, &LayerInputs::value, 4, 0.0F}));
  ok(fresh.commit({}));
  expect_future(fresh, {}, {}, {3});
}

struct Hostile {
  const char* name;
  RowArrays rows;
  std::vector<std::size_t> legal;    // rows that must come out
  std::vector<std::int64_t> marked;  // slots that are told
};

TEST_P(CudaRefusals, HostileRowsAreLeftAlone) {
  const std::vector<Hostile> cases = {
      {"slot ids", {{0, 99, kNear, kFar}, {1, 1, 1, 1}, {}, {}, {}}, {0}, {}},
      {"a slot not held", {{5, 0}, {1, 2}, {}, {}, {}}, {1}, {}},
      {"twice", {{1, 0, 1}, {2, 1, 1}, {}, {}, {}}, {0, 1}, {1}},
      {"too many tokens", {{0, 1}, {2, kSteps + 1}, {}, {}, {}}, {0}, {1}},
      // Behind a count that is none, nothing can be placed by counting.
      {"no count, packed", {{0, 1, 2}, {1, -1, 1}, {}, {}, {}}, {0}, {1, 2}},
      {"least count, packed", {{0, 1, 2}, {1, kLeast, 1}, {}, {}, {}}, {0}, {1, 2}},
      {"most count, packed", {{0, 1, 2}, {1, kMost, 1}, {}, {}, {}}, {0}, {1, 2}},
      {"no count of padding", {{0, -1, 2}, {1, kMost, 1}, {}, {}, {}}, {0}, {2}},
      {"no count, placed", {{0, 1, 2}, {1, kMost, 1}, {}, {0, 1, 2}, {}}, {0, 2}, {1}},
      {"negative offset", {{0, 1}, {1, 1}, {}, {-1, 3}, {}}, {1}, {0}},
      {"negative end", {{0, 1}, {1, 1}, {}, {-5, -3}, {}}, {}, {0, 1}},
      {"far offset", {{0, 1}, {1, 2}, {}, {0, kFar}, {}}, {0}, {1}},
      {"nearly far", {{0, 1}, {1, 2}, {}, {0, kFar - 1}, {}}, {0}, {1}},
      {"least offset", {{0, 1}, {1, 1}, {}, {kNear, 0}, {}}, {1}, {0}},
      {"behind the end", {{0, 1}, {1, 2}, {}, {0, kMaxTokens - 1}, {}}, {0}, {1}},
      {"overlap", {{0, 1, 2}, {3, 2, 1}, {}, {0, 2, 4}, {}}, {0, 2}, {1}},
      {"overlap behind one that is out of range",
       {{0, 1, 2}, {3, 2, 1}, {}, {0, kFar, 1}, {}},
       {0},
       {1, 2}},
      {"parents", {{0, 1, 2}, {2, 2, 2}, {-1, 0, -1, 1, -1, 0}, {}, {}}, {0, 2}, {1}},
      {"far parents", {{0, 1}, {1, 2}, {-1, kLeast, kMost}, {}, {}}, {0}, {1}},
      {"parents behind no count", {{0, 1, 2}, {1, kMost, 1}, {-1}, {0, 1, 2}, {}}, {0}, {1, 2}},
      {"prompt too long", {{3, 1}, {kMaxTokens + 1, 1}, {}, {0, 2}, {1, 0}}, {1}, {3}},
  };
  for (const Hostile& hostile : cases) {
    SCOPED_TRACE(hostile.name);
    Rig rig(GetParam(), false);
    rig.start();
    ok(rig.begin(hostile.rows));
    ok(rig.layers());
    ok(rig.commit({}));
    // The same forward with padding of no tokens in place of what is refused; rows keep the place
    // that they had.
    RowArrays legal;
    std::int64_t packed = 0;
    for (std::size_t r = 0; r < hostile.rows.slots.size(); ++r) {
      const bool kept =
          std::find(hostile.legal.begin(), hostile.legal.end(), r) != hostile.legal.end();
      const std::int32_t count = hostile.rows.tokens[r];
      if (kept) {
        legal.slots.push_back(hostile.rows.slots[r]);
        legal.tokens.push_back(count);
        legal.offsets.push_back(hostile.rows.offsets.empty() ? packed : hostile.rows.offsets[r]);
        if (!hostile.rows.parents.empty()) {
          for (std::int32_t i = 0; i < count; ++i)
            legal.parents.push_back(hostile.rows.parents[static_cast<std::size_t>(packed + i)]);
        }
      }
      if (count > 0 && count <= kMaxTokens) packed += count;
    }
    expect_future(rig, legal, {}, hostile.marked);
    if (HasFatalFailure()) return;
  }
}

TEST_P(CudaRefusals, AcceptsThatAreNoneCommitNothing) {
  struct Case {
    const char* name;
    std::vector<std::int32_t> parents;
    std::vector<std::int32_t> accepted;
    std::vector<std::int32_t> nodes;
    std::int64_t stride;
    bool first;   // slot 0's accept stands
    bool second;  // slot 1's
  };
  // Rows of two tokens each: in conventional decoding fewer than T_max.
  const std::vector<std::int32_t> tree = {-1, -1, -1, -1};
  const std::vector<Case> cases = {
      {"more than there are", {}, {3, 1}, {}, 0, false, true},
      {"fewer than none", {}, {1, -1}, {}, 0, true, false},
      {"least", {}, {kLeast, 1}, {}, 0, false, true},
      {"most", {}, {1, kMost}, {}, 0, true, false},
      {"a tree by count", tree, {2, 1}, {}, 0, false, true},
      {"no path", tree, {2, 1}, {0, 1, 9, 1, 9, 9}, 3, false, true},
      {"node behind the row", tree, {1, 1}, {2, 9, 0, 9}, 2, false, true},
      {"negative node", tree, {1, 1}, {1, 9, -1, 9}, 2, true, false},
      {"more nodes than a row of them holds", {-1, 0, -1, 0}, {1, 2}, {0, 0}, 1, true, false},
      // Nodes that are given for chains must be the chain.
      {"no chain", {}, {1, 2}, {0, 9, 9, 0, 9, 9}, 3, true, false},
      {"the chain", {}, {1, 2}, {0, 9, 9, 0, 1, 9}, 3, true, true},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    Rig rig(GetParam(), false);
    rig.start();
    RowArrays rows;
    rows.slots = {0, 1};
    rows.tokens = {2, 2};
    rows.parents = one.parents;
    ok(rig.begin(rows));
    ok(rig.layers());
    ok(rig.commit(one.accepted, one.nodes, one.stride));
    RowArrays legal = rows;
    std::vector<std::int64_t> refused;
    std::vector<std::int32_t> nodes(6, 0);
    std::vector<std::int32_t> accepted = one.accepted;
    for (std::size_t r = 0; r < 2; ++r) {
      if (r == 0 ? one.first : one.second) {
        for (std::size_t i = 0; i < static_cast<std::size_t>(accepted[r]); ++i) {
          const auto given = one.nodes.empty()
                                 ? static_cast<std::int32_t>(i)
                                 : one.nodes[r * static_cast<std::size_t>(one.stride) + i];
          nodes[r * 3 + i] = given;
        }
        continue;
      }
      legal.slots[r] = -1;
      refused.push_back(static_cast<std::int64_t>(r));
    }
    expect_future(rig, legal, accepted, refused, nodes);
    if (HasFatalFailure()) return;
  }
}

// A prompt is taken whole or not at all, and a conventional step of T_max tokens not without one.
TEST_P(CudaRefusals, AcceptsThatWouldLoseTheStateTearTheSlot) {
  Rig rig(GetParam(), false);
  rig.start();
  RowArrays rows;
  rows.slots = {0, 1, 3};
  rows.tokens = {3, 2, 2};
  rows.prefill = {0, 1, 1};
  ok(rig.begin(rows));
  ok(rig.layers());
  ok(rig.commit({0, 1, 1}));
  EXPECT_EQ(rig.info(0).error, rig.conventional() ? kSlotOutOfRange | kSlotTorn : 0U);
  EXPECT_EQ(rig.info(0).position, 5);
  EXPECT_EQ(rig.info(1).error, kSlotOutOfRange | kSlotTorn);
  EXPECT_EQ(rig.info(1).position, 5);
  EXPECT_EQ(rig.info(3).error, std::uint32_t{kSlotOutOfRange}) << "it held nothing";
  EXPECT_EQ(rig.info(3).position, 0);
  EXPECT_EQ(rig.cache().clear_errors(1, kSlotTorn).code(), StatusCode::kInvalidArgument);
  RowArrays torn;
  torn.slots = {1, 2};
  torn.tokens = {1, 1};
  ok(rig.forward(torn));
  EXPECT_EQ(rig.info(1).position, 5);
  EXPECT_EQ(rig.info(2).position, 6);
}

TEST_P(CudaRefusals, MaterializeTellsOfAStateThatIsNotFinite) {
  Rig rig(GetParam(), false);
  rig.start();
  RowArrays prompt;
  prompt.slots = {3};
  prompt.tokens = {2};
  prompt.prefill = {1};
  ok(rig.begin(prompt));
  ok(rig.layers({1, nullptr, 0, std::numeric_limits<float>::infinity()}));
  ok(rig.commit({}));
  EXPECT_EQ(rig.info(3).error, std::uint32_t{kSlotNonFinite});
  ok(rig.cache().acquire_slot(4, 1, rig.stream()));
  ok(rig.cache().acquire_slot(5, 1, rig.stream()));
  const std::vector<MaterializeItem> items = {{3, 2, 4}, {1, 5, 5}};
  ok(rig.cache().materialize(items, rig.stream()));
  const std::vector<std::int64_t> slots = {4, 5};
  const Result<std::vector<SlotInfo>> infos = rig.cache().info(slots);
  ASSERT_TRUE(infos.ok());
  EXPECT_EQ((*infos)[0].error, std::uint32_t{kSlotNonFinite});
  EXPECT_EQ((*infos)[0].position, 2);
  EXPECT_EQ((*infos)[1].error, 0U);
  EXPECT_EQ((*infos)[1].position, 5);
}

// With `checked` a refused call has changed nothing: the forward is as open as it was, and no slot
// is marked.
TEST_P(CudaRefusals, CheckedCallsAreAllOrNothing) {
  Rig rig(GetParam(), true);
  rig.start();
  const auto unchanged = [&] {
    for (std::int64_t slot = 0; slot < 4; ++slot) {
      EXPECT_EQ(rig.info(slot).error, 0U) << "slot " << slot;
      EXPECT_EQ(rig.info(slot).position, slot < 3 ? 5 : 0) << "slot " << slot;
    }
  };
  RowArrays rows;
  rows.slots = {0, 1};
  rows.tokens = {2, 2};
  ok(rig.begin(rows));
  ok(rig.cache().fold(rig.stream()));
  // Tensors are too short for the rows: refused as on a host.
  EXPECT_EQ(rig.run(0, {0, &LayerInputs::value, 3, 0.0F}).code(), StatusCode::kInvalidArgument);
  ok(rig.cache().abort(rig.stream()));
  unchanged();
  ok(rig.begin(rows));
  ok(rig.layers());
  // A begin that is refused leaves the forward open.
  for (const RowArrays& wrong :
       {RowArrays{{0, 7}, {1, 1}, {}, {}, {}}, RowArrays{{0, 0}, {1, 1}, {}, {}, {}},
        RowArrays{{0}, {kMost}, {}, {}, {}}, RowArrays{{0}, {1}, {}, {kFar}, {}},
        RowArrays{{0}, {1}, {0}, {}, {}}}) {
    EXPECT_FALSE(rig.begin(wrong).ok());
  }
  unchanged();
  // The rows of the rig are those of the refused call now; give the accept by hand.
  const auto commit = [&](const std::vector<std::int32_t>& counts) {
    const Copy lent(counts);
    Accepted accepted;
    accepted.count = 2;
    accepted.tokens = lent.as<std::int32_t>();
    accepted.stream = rig.stream();
    const Status status = rig.cache().commit(accepted);
    require(cudaStreamSynchronize(rig.stream()));
    return status;
  };
  const Status refused = commit({2, 3});
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument) << refused.to_string();
  EXPECT_NE(refused.message().find("row 1"), std::string::npos) << refused.to_string();
  unchanged();
  ok(commit({2, 1}));
  EXPECT_EQ(rig.info(0).position, 7);
  EXPECT_EQ(rig.info(1).position, 6);
  EXPECT_EQ(commit({2, 1}).code(), StatusCode::kFailedPrecondition) << "committed already";
}

TEST_P(CudaRefusals, CachesOfMoreRowsThanAGridAreRefused) {
  CacheConfig config;
  config.layers = {layer_shape(0)};
  const Copy weights(std::vector<float>(kChannels * 3, 0.1F));
  LayerWeights given;
  given.a = given.dt_bias = given.conv_weight = weights.as<float>();
  config.weights = {given};
  for (const ImplementationInfo& info : implementations()) {
    if (info.name == GetParam()) config.decode = info.decode;
  }
  config.implementation = GetParam();
  config.slots = 1;
  config.max_rows = std::int64_t{1} << 30;
  const Result<Cache> made = Cache::create(config);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(made.status().message().find("max_rows"), std::string::npos)
      << made.status().to_string();
}

INSTANTIATE_TEST_SUITE_P(Implementations, CudaRefusals,
                         ::testing::Values("cuda", "cuda-reference", "cuda-conventional",
                                           "cuda-reference-conventional"),
                         test_name);

}  // namespace
}  // namespace replayssm::device_tests
