// commit's rules against a statement of their own: every tree of up to three tokens with every list
// of accepted nodes, hostile counts and strides; what a slot becomes; what leaving a forward tears.
#include <gtest/gtest.h>

#include <algorithm>

#include "math/law.hpp"
#include "math/law_rows.hpp"
#include "math/law_slots.hpp"
#include "math/rows.hpp"
#include "tests/math/row_world.hpp"

namespace replayssm {
namespace {

constexpr int kRow = 1;  // so that a row's place among the nodes counts

// An open forward of one row that matters, of slot kHeld, behind one of padding.
class OpenRow : public RowWorld {
 public:
  explicit OpenRow(DecodeMode decode) : RowWorld(decode, 8) {
    table.forward.count = 2;
    RowDescriptor& desc = rows[kRow];
    desc.slot = kHeld;
    desc.kind = RowKind::kStep;
    desc.source_block = 10;
    desc.committed = committed[kHeld];
  }
  RowDescriptor& desc() { return rows[kRow]; }
  void set_parents(const std::vector<std::int32_t>& of) {
    desc().tree = of.empty() ? 0 : 1;
    std::copy(of.begin(), of.end(), parents.begin() + std::ptrdiff_t{kRow} * kSteps);
  }
};

// Whether `nodes` is a path from a root: a statement by ancestors, not by walking.
bool is_path(const std::vector<std::int32_t>& parents, std::int32_t tokens,
             const std::vector<std::int32_t>& nodes) {
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i] < 0 || nodes[i] >= tokens) return false;
    const std::int32_t parent =
        parents.empty() ? nodes[i] - 1 : parents[static_cast<std::size_t>(nodes[i])];
    if (parent != (i > 0 ? nodes[i - 1] : -1)) return false;
  }
  return true;
}

// All trees of `tokens` nodes, and the chain that is given without parents.
std::vector<std::vector<std::int32_t>> all_trees(std::int32_t tokens) {
  std::vector<std::vector<std::int32_t>> trees = {{}};
  if (tokens == 0) return trees;
  std::vector<std::vector<std::int32_t>> grown = {{}};
  for (std::int32_t i = 0; i < tokens; ++i) {
    std::vector<std::vector<std::int32_t>> next;
    for (const auto& tree : grown) {
      for (std::int32_t parent = -1; parent < i; ++parent) {
        next.push_back(tree);
        next.back().push_back(parent);
      }
    }
    grown = next;
  }
  trees.insert(trees.end(), grown.begin(), grown.end());
  return trees;
}

constexpr std::array<std::int32_t, 8> kCounts = {0, 1, 2, 3, 4, -1, kLeast, kMost};
constexpr std::array<std::int32_t, 6> kNodes = {0, 1, 2, -1, 3, kMost};

// The statement: may `count` tokens with these nodes be accepted of the row?
AcceptFault expected(OpenRow& world, const std::vector<std::int32_t>& parents, std::int32_t count,
                     const std::vector<std::int32_t>* nodes, std::int64_t stride) {
  const RowDescriptor& desc = world.desc();
  if (desc.refused != 0) return AcceptFault::kRefused;
  if (count < 0 || count > desc.tokens) return AcceptFault::kCount;
  if (desc.kind == RowKind::kPrefill)
    return count < desc.tokens ? AcceptFault::kPartPrompt : AcceptFault::kNone;
  const bool lost = world.table.decode == DecodeMode::kConventional &&
                    desc.tokens == RowWorld::kSteps && desc.zero == 0 &&
                    desc.target_block == desc.source_block;
  if (lost && count == 0) return AcceptFault::kOverwritten;
  if (nodes != nullptr && count > (stride == 0 ? RowWorld::kSteps : stride))
    return AcceptFault::kNodeStride;
  std::vector<std::int32_t> kept;
  for (std::int32_t i = 0; i < count; ++i)
    kept.push_back(nodes != nullptr ? (*nodes)[static_cast<std::size_t>(i)] : i);
  return is_path(parents, desc.tokens, kept) ? AcceptFault::kNone : AcceptFault::kPath;
}

class LawCommit : public ::testing::TestWithParam<DecodeMode> {
 protected:
  // Both answers, the device's and the host's, for the row as it stands.
  void judge(OpenRow& world, const std::vector<std::int32_t>& parents, const std::int32_t* count,
             const std::vector<std::int32_t>* nodes, std::int64_t stride) {
    const std::vector<std::int32_t> counts = {kMost, count != nullptr ? *count : 0};
    // Exactly as many as a caller must lend.
    const std::int64_t width = stride == 0 ? RowWorld::kSteps : stride;
    std::vector<std::int32_t> lent;
    if (nodes != nullptr) {
      lent.assign(static_cast<std::size_t>(2 * width), kLeast);
      for (std::int64_t i = 0; i < std::min<std::int64_t>(width, 3); ++i)
        lent[static_cast<std::size_t>(width + i)] = (*nodes)[static_cast<std::size_t>(i)];
    }
    Accepted accepted;
    accepted.count = 2;
    accepted.tokens = count != nullptr ? counts.data() : nullptr;
    accepted.nodes = nodes != nullptr ? lent.data() : nullptr;
    accepted.node_stride = stride;
    const std::int32_t kept = count != nullptr ? *count : world.desc().tokens;
    const AcceptFault want = expected(world, parents, kept, nodes, stride);
    std::int32_t path[kMaxStepTokens];
    const AcceptFault fault = accept_fault(world.table, accepted, kRow, path);
    ASSERT_EQ(static_cast<int>(fault), static_cast<int>(want));
    if (fault == AcceptFault::kNone && world.desc().kind == RowKind::kStep) {
      for (std::int32_t i = 0; i < kept; ++i) {
        ASSERT_EQ(path[i], nodes != nullptr ? (*nodes)[static_cast<std::size_t>(i)] : i);
      }
    }
    const Status status = check_accepted(world.table, accepted);
    ASSERT_EQ(status.ok(), want == AcceptFault::kNone) << status.to_string();
    if (!status.ok()) {
      ASSERT_NE(status.message().find("row 1"), std::string::npos);
    }
    ++(status.ok() ? legal_ : refused_);
  }
  int legal_ = 0;
  int refused_ = 0;
};

TEST_P(LawCommit, EveryTreeAndEveryListOfNodes) {
  OpenRow world(GetParam());
  std::vector<std::int32_t> nodes(3);
  for (std::int32_t tokens = 0; tokens <= RowWorld::kSteps; ++tokens) {
    for (const auto& parents : all_trees(tokens)) {
      for (int state = 0; state < 8; ++state) {
        world.desc().tokens = tokens;
        world.desc().zero = state & 1;
        world.desc().target_block = (state & 2) != 0 ? 10 : 12;
        world.desc().kind = (state & 4) != 0 ? RowKind::kPrefill : RowKind::kStep;
        if (world.desc().kind == RowKind::kPrefill && !parents.empty()) continue;
        world.set_parents(parents);
        judge(world, parents, nullptr, nullptr, 0);
        for (const std::int32_t count : kCounts) {
          judge(world, parents, &count, nullptr, 0);
          for (const std::int64_t stride : {0, 1, 2, 3, 5}) {
            for (const std::int32_t a : kNodes) {
              for (const std::int32_t b : kNodes) {
                for (const std::int32_t c : kNodes) {
                  nodes = {a, b, c};
                  judge(world, parents, &count, &nodes, stride);
                  if (HasFatalFailure()) {
                    FAIL() << "tokens " << tokens << ", parents "
                           << ::testing::PrintToString(parents) << ", count " << count << ", nodes "
                           << ::testing::PrintToString(nodes) << ", stride " << stride << ", state "
                           << state;
                  }
                  if (count < 3 && c != kNodes[0]) break;  // read by nobody
                }
                if (count < 2 && b != kNodes[0]) break;
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GT(legal_, 1000);
  EXPECT_GT(refused_, 10000);
}

// A row that was refused anywhere in the forward commits nothing, whatever is accepted of it.
TEST_P(LawCommit, RefusedRowsCommitNothing) {
  OpenRow world(GetParam());
  world.desc().tokens = 2;
  world.desc().target_block = 12;
  world.desc().refused = 1;
  for (const RowKind kind : {RowKind::kStep, RowKind::kPrefill}) {
    world.desc().kind = kind;
    judge(world, {}, nullptr, nullptr, 0);
    for (const std::int32_t count : kCounts) judge(world, {}, &count, nullptr, 0);
  }
  EXPECT_EQ(legal_, 0);
}

// Rows of padding and slots that were released meanwhile are asked nothing.
TEST_P(LawCommit, PaddingAndLeavingSlotsAreAskedNothing) {
  OpenRow world(GetParam());
  const std::vector<std::int32_t> counts = {kLeast, kMost};
  Accepted accepted;
  accepted.count = 2;
  accepted.tokens = counts.data();
  EXPECT_FALSE(check_accepted(world.table, accepted).ok());
  world.leaving[kHeld] = 1;
  EXPECT_TRUE(check_accepted(world.table, accepted).ok());
  world.leaving[kHeld] = 0;
  world.desc().kind = RowKind::kPadding;
  EXPECT_TRUE(check_accepted(world.table, accepted).ok());
}

TEST_P(LawCommit, WhatASlotBecomes) {
  const bool replay = GetParam() == DecodeMode::kReplay;
  for (std::int32_t tokens = 0; tokens <= RowWorld::kSteps; ++tokens) {
    for (std::int32_t count = 0; count <= tokens; ++count) {
      for (const RowKind kind : {RowKind::kStep, RowKind::kPrefill}) {
        if (kind == RowKind::kPrefill && count != tokens) continue;
        for (const std::int32_t valid : {0, 2, 3}) {
          OpenRow world(GetParam());
          RowDescriptor& desc = world.desc();
          desc.kind = kind;
          desc.tokens = tokens;
          desc.committed = 1;  // of 3 that the slot held: a fold came first
          desc.snapshot = world.snapshot[kHeld] = 2;
          world.conv_valid[kHeld] = valid;
          desc.target_block = 12;
          const std::int32_t last = count - 1;
          const RowOutcome after = accept_row(world.table, desc, count, last);
          const bool prompt = kind == RowKind::kPrefill && tokens > 0;
          const bool step = kind == RowKind::kStep;
          EXPECT_EQ(after.position, 7 + count);
          EXPECT_EQ(after.conv_valid, std::min(valid + count, 3));
          EXPECT_EQ(after.committed,
                    prompt ? 0 : (step && replay ? 1 + count : RowWorld::kWindow - 1));
          EXPECT_EQ(after.takes_target, prompt || (step && !replay && count > 0));
          EXPECT_EQ(after.gives_back, step && !replay && count == 0);
          EXPECT_EQ(after.snapshot,
                    step && !replay && count > 0 ? (2 + 1 + last) % RowWorld::kSteps : 2);
          EXPECT_EQ(after.zero, after.takes_target ? 0 : 1);
        }
      }
    }
  }
  // A prompt as long as there can be does not overflow the count of conv inputs.
  OpenRow world(GetParam());
  world.desc().kind = RowKind::kPrefill;
  world.desc().tokens = kMost;
  world.conv_valid[kHeld] = 3;
  EXPECT_EQ(accept_row(world.table, world.desc(), kMost, 0).conv_valid, 3);
}

TEST_P(LawCommit, WhatLeavingTears) {
  const bool replay = GetParam() == DecodeMode::kReplay;
  for (std::int32_t tokens = 0; tokens <= RowWorld::kSteps; ++tokens) {
    for (int state = 0; state < 8; ++state) {
      OpenRow world(GetParam());
      RowDescriptor& desc = world.desc();
      desc.tokens = tokens;
      desc.zero = state & 1;
      desc.target_block = (state & 2) != 0 ? 10 : 12;
      desc.committed = (state & 4) != 0 ? 2 : 0;
      const bool empty = desc.zero != 0 && desc.committed == 0;
      EXPECT_EQ(leaving_tears(world.table, desc),
                !replay && tokens == RowWorld::kSteps && desc.zero == 0 && desc.target_block == 10);
      desc.kind = RowKind::kPrefill;
      EXPECT_EQ(leaving_tears(world.table, desc), tokens > 0 && !empty);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Decode, LawCommit,
                         ::testing::Values(DecodeMode::kReplay, DecodeMode::kConventional),
                         [](const auto& about) {
                           return std::string(decode_mode_name(about.param));
                         });

TEST(LawRules, OrderTablesArePermuted) {
  for (std::int32_t count = 1; count < 6; ++count) {
    for (std::int32_t by = 0; by <= count; ++by) {
      std::vector<bool> seen(static_cast<std::size_t>(count));
      for (std::int32_t j = 0; j < count; ++j) {
        const std::int32_t from = rotated(j, by, count);
        ASSERT_EQ(from, (j + by) % count);
        seen[static_cast<std::size_t>(from)] = true;
      }
      EXPECT_EQ(std::count(seen.begin(), seen.end(), true), count);
    }
  }
}

TEST(LawRules, MovesAndErrors) {
  RowWorld world(DecodeMode::kReplay, 8);
  // Slot kHeld stands at 7 with 3 records: positions 4 to 7.
  for (std::int64_t position = -2; position < 12; ++position)
    EXPECT_EQ(position_is_kept(world.table, kHeld, position), position >= 4 && position <= 7);
  EXPECT_FALSE(position_is_kept(world.table, kHeld, std::numeric_limits<std::int64_t>::min()));
  EXPECT_FALSE(position_is_kept(world.table, kHeld, std::numeric_limits<std::int64_t>::max()));
  EXPECT_TRUE(conv_is_kept(world.table, 0, 8));
  EXPECT_TRUE(conv_is_kept(world.table, 1, 3));
  EXPECT_FALSE(conv_is_kept(world.table, 2, 3));
  world.table.conv_ring = 0;
  EXPECT_TRUE(conv_is_kept(world.table, 2, 3));
  EXPECT_EQ(errors_of_state(~0U), std::uint32_t{kSlotNonFinite});
  EXPECT_EQ(errors_of_state(kSlotOutOfRange | kSlotTorn), 0U);
  EXPECT_EQ(clearable_errors(~0U), kSlotNonFinite | kSlotOutOfRange);
  const SlotInfo info = slot_info(world.table.slots, kFree);
  EXPECT_EQ(info.block, -1);
  EXPECT_EQ(info.block_references, 0) << "a slot without a block has no count to read";
}

TEST(LawRules, FreshSlots) {
  const auto fresh = [](auto change) {
    RowWorld world(DecodeMode::kReplay, 8);
    world.position[kHeld] = 0;
    world.committed[kHeld] = 0;
    world.references[10] = 1;
    change(world);
    return is_fresh(world.table, kHeld);
  };
  EXPECT_TRUE(fresh([](RowWorld&) {}));
  EXPECT_FALSE(fresh([](RowWorld& w) { w.position[kHeld] = 1; }));
  EXPECT_FALSE(fresh([](RowWorld& w) { w.committed[kHeld] = 1; }));
  EXPECT_FALSE(fresh([](RowWorld& w) { w.zero[kHeld] = 0; }));
  EXPECT_FALSE(fresh([](RowWorld& w) { w.references[10] = 2; }));
  EXPECT_FALSE(fresh([](RowWorld& w) { w.error[kHeld] = kSlotTorn; }));
  EXPECT_FALSE(fresh([](RowWorld& w) { w.live[kHeld] = 0; }));
}

}  // namespace
}  // namespace replayssm
