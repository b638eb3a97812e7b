// Pitfalls 12 to 20, and of "running it" 43, 46 and 47: rows, slots and what a call leaves behind.
#include <iostream>
#include <set>

#include "tests/pitfalls/checked.hpp"

namespace replayssm::laws {
namespace {

class Pitfalls : public ::testing::TestWithParam<std::string> {};

Row padding_row(std::int64_t id, int tokens) {
  Row row;
  row.slot = id;
  row.padding_tokens = tokens;
  return row;
}

TEST_P(Pitfalls, P12_PaddedRowsTouchNothing) {
  for (const std::int64_t sentinel : {-1, -77, 0, 99}) {
    SCOPED_TRACE(sentinel);
    Checked c(GetParam());
    MachineOptions options;
    options.lent = true;
    options.padding_slot = sentinel;
    Status error;
    c.machine = Machine::create(c.made, options, 3, &error);
    ASSERT_TRUE(c.machine) << error.to_string();
    const std::int64_t live = c.acquire();  // slot 0: as an id of padding it must not be touched
    const std::int64_t slot = c.acquire();
    const std::string text = std::to_string(live);
    const auto before = c.cache().export_slot(live);
    for (int i = 0; i < 6; ++i) {
      c.forward({padding_row(sentinel, 2), chain_row(slot, c.tokens(2)), padding_row(sentinel, 3),
                 padding_row(sentinel, 0)},
                {{0, {}}, {1, {}}, {3, {}}, {0, {}}});
    }
    Row stale = padding_row(sentinel, 2);  // a captured graph pads with what was there
    stale.parents = {5, -9};
    Row tree = chain_row(slot, c.tokens(2));
    tree.parents = {-1, -1};
    c.forward({stale, tree}, {{2, {}}, {1, {1}}});
    c.check_state(slot);
    EXPECT_TRUE(*before == *c.cache().export_slot(live));
    EXPECT_EQ(c.machine->lent()->check_guards(), "");
  }
}

// Beside prompt chunks only, nobody steps: padding is zeroed all the same.
TEST_P(Pitfalls, P12_PaddedRowsOfAPrefillAreZero) {
  Checked c(GetParam(), 4, 3, {}, [](Case& made) {
    made.layers.erase(made.layers.begin(), made.layers.begin() + 1);  // no conv
  });
  const std::int64_t slot = c.acquire();
  TestDevice* device = device_for(implementation_named(GetParam()));
  DeviceBuffer slot_array(*device);
  DeviceBuffer count_array(*device);
  DeviceBuffer prefill_array(*device);
  const std::vector<std::int64_t> slots = {-1, slot};
  const std::vector<std::int32_t> counts = {2, 3};
  const std::vector<std::uint8_t> prefill = {0, 1};
  Rows rows;
  rows.count = 2;
  rows.slots = slot_array.hold(slots);
  rows.tokens = count_array.hold(counts);
  rows.prefill = prefill_array.hold(prefill);
  ASSERT_TRUE(c.cache().begin(rows).ok());
  ASSERT_TRUE(c.cache().fold().ok());
  for (int layer = 0; layer < 2; ++layer) {
    const LayerShape& shape = c.made.layers[layer].shape;
    const auto tensor = [&](HostileTensor::Use use, int n1, int n2) {
      HostileTensor made(*device, use, DType::kF32, 5, n1, n2, nullptr);
      const std::vector<double> values(64, 0.25);
      for (int t = 0; use == HostileTensor::Use::kInput && t < 5; ++t) {
        for (int i = 0; i < (n2 > 0 ? n1 : 1); ++i) made.set(t, i, values.data());
      }
      made.upload();
      return made;
    };
    constexpr auto kIn = HostileTensor::Use::kInput;
    HostileTensor value = tensor(kIn, shape.heads, shape.value_dim);
    HostileTensor key = tensor(kIn, shape.groups, shape.key_dim);
    HostileTensor gate = tensor(kIn, shape.heads, shape.rule == Rule::kKda ? shape.key_dim : 0);
    HostileTensor beta = tensor(kIn, shape.heads, 0);
    HostileTensor out = tensor(HostileTensor::Use::kOutput, shape.heads, shape.value_dim);
    LayerInputs inputs;
    inputs.layer = layer;
    inputs.value = value.view();
    inputs.key = inputs.query = key.view();
    inputs.gate = gate.view();
    inputs.beta = beta.view();
    inputs.out = out.view();
    const Status status = c.cache().prefill(inputs);
    ASSERT_TRUE(status.ok()) << status.to_string();
    out.download();
    for (int t = 0; t < 2; ++t) {
      for (const unsigned char byte : out.token_bytes(t)) ASSERT_EQ(byte, 0) << "token " << t;
    }
  }
}

TEST_P(Pitfalls, P13_TheSameSlotTwiceAndStrangers) {
  Checked c(GetParam());
  const std::int64_t slot = c.acquire();
  const auto begin = [&](std::vector<std::int64_t> ids) {
    std::vector<Row> rows;
    for (const std::int64_t id : ids) rows.push_back(chain_row(id, c.tokens(1)));
    return c.machine->begin(rows);
  };
  EXPECT_EQ(begin({slot, slot}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(begin({slot, 4}).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(begin({slot, 2}).code(), StatusCode::kFailedPrecondition);
  c.step(slot, 2, 2);  // and nothing of it sticks
  c.check_state(slot);
}

TEST_P(Pitfalls, P14_RaggedRowsAndEmptyBatches) {
  Checked c(GetParam(), 4, 4);
  const std::int64_t a = c.acquire();
  const std::int64_t b = c.acquire();
  const std::int64_t d = c.acquire();
  c.forward({}, {});
  for (int i = 0; i < 8; ++i) {
    c.forward({chain_row(a, c.tokens(1)), chain_row(b, c.tokens(4)), chain_row(d, {})},
              {{1, {}}, {i % 4 + 1, {}}, {0, {}}});
  }
  c.forward({chain_row(a, {}), chain_row(b, {})}, {{0, {}}, {0, {}}});
  c.check_state(a);
  c.check_state(b);
  c.check_state(d);
}

TEST_P(Pitfalls, P15_ATreeIsNoChain) {
  Checked c(GetParam(), 4, 4);
  const std::int64_t slot = c.acquire();
  c.step(slot, 2, 2);
  for (int i = 0; i < 5; ++i) {
    Row row = chain_row(slot, c.tokens(4));
    row.parents = {-1, 0, 0, -1};
    c.forward({row}, {i % 2 == 0 ? Keep{2, {0, 2}} : Keep{1, {3}}});
  }
  c.check_state(slot);
  // The comparison can tell: as a chain the same tokens give something else.
  Row row = chain_row(slot, c.tokens(4));
  const auto tree = c.references.at(slot)->step(1, row.tokens, {-1, 0, 0, -1});
  const auto chain = c.references.at(slot)->step(1, row.tokens, {});
  EXPECT_FALSE(oracle::compare("twin", tree.values[3], chain.values[3], 8, tree.bounds[3]).ok);
}

TEST_P(Pitfalls, P16_AForkIsNotStale) {
  Checked c(GetParam(), 8, 3);
  const std::int64_t slot = c.acquire();
  c.step(slot, 3, 3);  // unfolded records
  const Result<std::int64_t> fork = c.cache().fork(slot);
  ASSERT_TRUE(fork.ok());
  c.same(*fork, slot);
  c.check_state(*fork);
  c.step(*fork, 3, 2);
  c.step(slot, 2, 1);
  c.check_state(*fork);
  c.check_state(slot);
}

TEST_P(Pitfalls, P17_SharersFoldIntoBlocksOfTheirOwn) {
  Checked c(GetParam(), 3, 3);
  const std::int64_t a = c.acquire();
  c.prefill(a, 4);
  c.step(a, 3, 3);  // full: all sharers fold in the same forward
  const std::int64_t b = *c.cache().fork(a);
  c.same(b, a);
  const std::int64_t d = *c.cache().fork(a);
  c.same(d, a);
  EXPECT_EQ(c.cache().info(a)->block_references, 3);
  c.forward({chain_row(a, c.tokens(1)), chain_row(b, c.tokens(2)), chain_row(d, c.tokens(3))},
            {{1, {}}, {2, {}}, {3, {}}});
  std::set<std::int64_t> blocks;
  for (const std::int64_t slot : {a, b, d}) {
    EXPECT_EQ(c.cache().info(slot)->block_references, 1);
    blocks.insert(c.cache().info(slot)->block);
    c.check_state(slot);
  }
  EXPECT_EQ(blocks.size(), 3U);
}

TEST_P(Pitfalls, P18_AnExportHoldsRingAndCursors) {
  Checked c(GetParam(), 6, 3);
  const std::int64_t slot = c.acquire();
  c.step(slot, 3, 2);
  c.step(slot, 3, 2);
  const Result<std::vector<std::byte>> bytes = c.cache().export_slot(slot);
  ASSERT_TRUE(bytes.ok());
  const Result<std::int64_t> copy = c.cache().import_slot(*bytes);
  ASSERT_TRUE(copy.ok());
  c.same(*copy, slot);
  EXPECT_EQ(c.cache().info(*copy)->committed, c.replay() ? 4 : 0);
  EXPECT_EQ(c.cache().info(*copy)->seed, 7U);
  for (int i = 0; i < 4; ++i) c.step(*copy, 3, 2);
  c.check_state(*copy);
}

TEST_P(Pitfalls, P19_AnyCommittedPositionCanBeSaved) {
  Checked c(GetParam(), 6, 2, {}, [](Case& made) { made.config.materialize_history = true; });
  const std::int64_t slot = c.acquire();
  for (int i = 0; i < 9; ++i) c.step(slot, 2, 1);
  const SlotReference& reference = *c.references.at(slot);
  for (int back = 0; back <= reference.committed(); ++back) {
    const std::int64_t target = c.acquire();
    const MaterializeItem item{slot, reference.position - back, target};
    ASSERT_TRUE(c.cache().materialize({&item, 1}).ok());
    c.references[target] = std::make_unique<SlotReference>(reference.rewound(back));
    c.check_state(target);
    c.step(target, 2, 2);
    c.release(target);
  }
  c.check_state(slot);
}

// A layer that does not convolve has no say in how many conv inputs there are.
TEST_P(Pitfalls, P19_WidthsOfLayersWithoutConvDoNotCount) {
  Checked c(GetParam(), 6, 2, {}, [](Case& made) {
    made.config.materialize_history = true;
    made.layers[1].shape.conv_width = 200;
  });
  const std::int64_t slot = c.acquire();
  for (int i = 0; i < 5; ++i) c.step(slot, 2, 1);
  const int back = c.references.at(slot)->committed();
  const std::int64_t target = c.acquire();
  const MaterializeItem item{slot, 5 - back, target};
  const Status status = c.cache().materialize({&item, 1});
  EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST_P(Pitfalls, P20_TheConvWindowForgetsRejectedTokens) {
  for (const int width : {2, 3, 5, 8}) {
    Checked c(GetParam(), 4, 4);
    c.add_conv(c.made.layers[0], 7, width);
    finish_case(&c.made);
    c.machine = make_machine(c.made, true, false, 9);
    const std::int64_t slot = c.acquire();
    c.prefill(slot, 2);
    c.step(slot, 4, 1);
    c.prefill(slot, 1);
    c.step(slot, 4, 2);
    Row tree = chain_row(slot, c.tokens(4));
    tree.parents = {-1, -1, 1, 2};
    c.forward({tree}, {{2, {1, 2}}});
    c.prefill(slot, 9);
    for (int i = 0; i < 4; ++i) c.step(slot, 3, i % 3 + 1);
    c.check_state(slot);
  }
}

TEST_P(Pitfalls, P43_EveryLayerWritesItsRecords) {
  Checked c(GetParam(), 8, 3);
  if (!c.replay()) GTEST_SKIP() << "no records in conventional decoding";
  const std::int64_t slot = c.acquire();
  c.poison_ring(slot);
  const auto rings = [&] {
    std::vector<std::vector<unsigned char>> all;
    for (int layer = 0; layer < 3; ++layer) {
      for (const TensorRole role :
           {TensorRole::kRingValue, TensorRole::kRingKey, TensorRole::kRingGate,
            TensorRole::kRingBeta, TensorRole::kRingInvNorm, TensorRole::kRingUpdate}) {
        all.push_back(c.machine->lent()->read(role, layer, slot));
      }
    }
    return all;
  };
  const auto before = rings();
  c.step(slot, 3, 3);
  const auto after = rings();
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (before[i].empty()) continue;
    EXPECT_NE(before[i], after[i]) << "tensor " << i;
  }
  for (int i = 0; i < 4; ++i) c.step(slot, 3, 3);
  c.check_state(slot);
}

TEST_P(Pitfalls, P46_RowsThatFoldTogetherAreRight) {
  // Measured and accepted: sequences that were prefilled together fold in the same forwards. What
  // must hold is that such a forward is right, and that unequal accepts spread the phases.
  Checked c(GetParam(), 3, 3);
  std::vector<std::int64_t> slots;
  for (int i = 0; i < 4; ++i) slots.push_back(c.acquire());
  int together = 0;
  int spread = 0;
  for (int step = 0; step < 12; ++step) {
    std::vector<Row> rows;
    std::vector<Keep> keep;
    int folding = 0;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      folding += c.references.at(slots[i])->folds(c.made.config) ? 1 : 0;
      rows.push_back(chain_row(slots[i], c.tokens(3)));
      keep.push_back({step < 6 ? 1 : 1 + (step + static_cast<int>(i)) % 3, {}});
    }
    (step < 6 ? together : spread) = std::max(step < 6 ? together : spread, folding);
    c.forward(rows, keep);
  }
  for (const std::int64_t slot : slots) c.check_state(slot);
  if (c.replay()) {
    EXPECT_EQ(together, 4);
  }
  std::cout << "rows folding in one forward: in step " << together
            << ", with unequal accepts at most " << spread << " of 4\n";
}

TEST_P(Pitfalls, P47_AForwardAbortedBetweenLayersIsForgotten) {
  for (int layers = 0; layers <= 3; ++layers) {
    Checked c(GetParam(), 3, 3);
    const std::int64_t slot = c.acquire();
    c.step(slot, 3, 3);  // full: the aborted forward folds
    // Fewer tokens than T_max: conventional decoding can take such a step back.
    ASSERT_TRUE(c.open({chain_row(slot, c.tokens(2))}));
    for (int layer = 0; layer < layers; ++layer) c.run(layer);
    ASSERT_TRUE(c.cache().abort().ok());
    EXPECT_EQ(c.cache().info(slot)->error, 0U);
    for (int i = 0; i < 5; ++i) c.step(slot, 3, 2);
    c.check_state(slot);
  }
}

// Where state is written in place, a forward that is given up tears the slot, and says so.
TEST_P(Pitfalls, P47_TornSlotsCanOnlyBeReleased) {
  Checked c(GetParam(), 4, 2);
  const std::int64_t slot = c.acquire();
  c.prefill(slot, 3);
  Row row = chain_row(slot, c.tokens(2));
  row.prefill = true;
  ASSERT_TRUE(c.open({row}));
  c.run(0);
  ASSERT_TRUE(c.cache().abort().ok());
  EXPECT_EQ(c.cache().info(slot)->error, kSlotTorn);
  EXPECT_EQ(c.machine->begin({chain_row(slot, c.tokens(1))}).code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(c.cache().fork(slot).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(c.cache().export_slot(slot).status().code(), StatusCode::kFailedPrecondition);
  c.release(slot);
  const std::int64_t again = c.acquire();
  EXPECT_EQ(c.cache().info(again)->error, 0U);
  c.step(again, 2, 2);
  c.check_state(again);
}

INSTANTIATE_TEST_SUITE_P(All, Pitfalls, ::testing::ValuesIn(available_names()), law_name);

}  // namespace
}  // namespace replayssm::laws
