// begin's rules against a statement of their own, in integers that cannot overflow: every pair of
// rows with legal and hostile slots, counts, offsets and parents. What a host refuses, and what a
// device, which can refuse no call, makes of each row.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>

#include "math/law_rows.hpp"
#include "math/rows.hpp"
#include "tests/math/row_world.hpp"

namespace replayssm {
namespace {

constexpr std::int64_t kMaxTokens = 5;
constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kNear = std::numeric_limits<std::int64_t>::min();

struct Batch {
  std::vector<std::int64_t> slots;
  std::vector<std::int32_t> tokens;
  std::vector<std::uint8_t> prefill;
  std::vector<std::int64_t> offsets;  // empty: packed
  std::vector<std::int32_t> parents;  // empty: chains
  bool trees = false;

  [[nodiscard]] Rows rows() const {
    Rows rows;
    rows.count = static_cast<std::int64_t>(slots.size());
    rows.slots = slots.data();
    rows.tokens = tokens.data();
    rows.prefill = prefill.data();
    rows.offsets = offsets.empty() ? nullptr : offsets.data();
    rows.parents = trees ? parents.data() : nullptr;
    rows.padding_slot = kPadding;
    return rows;
  }
};

// What the law says of one row, the rows before it given.
struct Expected {
  bool legal = false;
  bool placed = false;
  bool padding = false;
  bool claims = false;  // names a slot that it may use, wherever its tokens are
  std::int64_t offset = 0;
  std::int64_t packed = 0;
};

std::vector<Expected> expected(const Batch& batch) {
  std::vector<Expected> all;
  __extension__ using Wide = __int128;
  Wide packed = 0;
  Wide end = 0;
  bool countable = true;  // all counts so far are legal
  for (std::size_t r = 0; r < batch.slots.size(); ++r) {
    Expected row;
    const Wide tokens = batch.tokens[r];
    const Wide most = batch.prefill[r] != 0 ? kMaxTokens : RowWorld::kSteps;
    const bool counted = tokens >= 0 && tokens <= most;
    const Wide offset = batch.offsets.empty() ? packed : Wide{batch.offsets[r]};
    row.placed = counted && offset + tokens <= kMaxTokens &&
                 (batch.offsets.empty() ? countable : offset >= end);
    row.offset = static_cast<std::int64_t>(offset);
    row.packed = static_cast<std::int64_t>(packed);
    const std::int64_t slot = batch.slots[r];
    row.padding = slot == kPadding;
    row.claims = counted && (slot == kHeld || slot == kFull);
    bool twice = false;
    for (std::size_t q = 0; q < r; ++q)
      twice = twice || (row.claims && all[q].claims && batch.slots[q] == slot);
    bool path = true;
    if (batch.trees && batch.prefill[r] == 0 && !row.padding && counted) {
      path = countable && packed + tokens <= kMaxTokens;
      for (std::int32_t i = 0; path && i < batch.tokens[r]; ++i) {
        const std::int32_t parent = batch.parents[static_cast<std::size_t>(packed) + i];
        path = parent >= -1 && parent < i;
      }
    }
    row.legal = row.placed && path && (row.padding || (row.claims && !twice));
    all.push_back(row);
    if (counted && offset >= 0 && offset + tokens <= kMaxTokens)
      end = std::max(end, offset + tokens);
    countable = countable && counted;
    if (counted) packed += tokens;
  }
  return all;
}

class Judge {
 public:
  explicit Judge(DecodeMode decode) : world_(decode, kMaxTokens) {}

  int legal_batches = 0;
  int refused_batches = 0;

  void check(const Batch& batch) {
    const std::vector<Expected> want = expected(batch);
    const Rows rows = batch.rows();
    // As on a device: claims first, then every row by what was scanned of those before.
    std::array<std::int64_t, kSlots> owner;
    owner.fill(kFar);
    for (std::int64_t r = 0; r < rows.count; ++r) {
      const std::int64_t slot = rows.slots[r];
      if (slot != kPadding && slot_fault(world_.table, rows, r) == RowFault::kNone)
        owner[static_cast<std::size_t>(slot)] = std::min(owner[static_cast<std::size_t>(slot)], r);
    }
    RowsBefore before;
    bool all_legal = true;
    for (std::int64_t r = 0; r < rows.count; ++r) {
      const std::int64_t slot = rows.slots[r];
      const bool first = slot >= 0 && slot < kSlots && owner[static_cast<std::size_t>(slot)] == r;
      const RowDecision decision = decide_row(world_.table, rows, r, before, first);
      check_row(batch, rows, r, want[static_cast<std::size_t>(r)], decision);
      all_legal = all_legal && want[static_cast<std::size_t>(r)].legal;
      const RowsBefore behind = joined(before, only_row(world_.table, rows, r));
      if (all_legal) {
        const RowsBefore legal = behind_legal_row(rows, r, before);
        ASSERT_EQ(legal.packed, behind.packed);
        ASSERT_EQ(legal.end, behind.end);
      }
      before = behind;
    }
    const Status status = check_rows(world_.table, rows);
    ASSERT_EQ(status.ok(), all_legal) << status.to_string();
    ASSERT_EQ(status.message().find('\n'), std::string::npos);
    ++(all_legal ? legal_batches : refused_batches);
    for (int slot = 0; slot < kSlots; ++slot) {
      const auto named = std::find(batch.slots.begin(), batch.slots.end(), slot);
      const std::int64_t marked =
          all_legal && named != batch.slots.end() ? named - batch.slots.begin() : -1;
      ASSERT_EQ(world_.row[static_cast<std::size_t>(slot)], marked);
    }
    world_.row.fill(-1);
  }

 private:
  void check_row(const Batch& batch, const Rows& rows, std::int64_t r, const Expected& want,
                 const RowDecision& decision) {
    const RowDescriptor& desc = decision.desc;
    ASSERT_EQ(decision.fault == RowFault::kNone, want.legal);
    ASSERT_EQ(desc.refused, 0U);
    ASSERT_EQ(desc.tokens, want.placed ? rows.tokens[r] : 0);
    if (want.placed && desc.tokens > 0) {
      ASSERT_EQ(desc.token_offset, want.offset);
      ASSERT_GE(desc.token_offset, 0);
      ASSERT_LE(desc.token_offset + desc.tokens, kMaxTokens);
    }
    const std::int64_t slot = rows.slots[r];
    const bool exists = slot >= 0 && slot < kSlots;
    const bool live = exists && world_.live[static_cast<std::size_t>(slot)] != 0;
    ASSERT_EQ(decision.marks, !want.legal && !want.padding && live);
    if (!want.legal || want.padding) {
      ASSERT_EQ(desc.kind, RowKind::kPadding);
      ASSERT_EQ(desc.fold, 0);
      ASSERT_FALSE(writes_state(world_.table, desc));
      return;
    }
    const auto s = static_cast<std::size_t>(slot);
    const bool prefill = rows.prefill[r] != 0;
    const bool replay = world_.table.decode == DecodeMode::kReplay;
    const bool folds = replay && !prefill && slot == kFull;
    ASSERT_EQ(desc.kind, prefill ? RowKind::kPrefill : RowKind::kStep);
    ASSERT_EQ(desc.slot, slot);
    ASSERT_EQ(desc.source_block, world_.block[s]);
    ASSERT_EQ(desc.fold, folds ? RowWorld::kWindow : 0);
    ASSERT_EQ(desc.committed, world_.committed[s] - desc.fold);
    ASSERT_EQ(desc.zero, world_.zero[s]);
    ASSERT_EQ(desc.snapshot, world_.snapshot[s]);
    ASSERT_EQ(desc.conv_valid, world_.conv_valid[s]);
    ASSERT_EQ(desc.tree != 0, batch.trees && !prefill);
    ASSERT_EQ(writes_state(world_.table, desc), folds || (desc.tokens > 0 && (prefill || !replay)));
  }

  RowWorld world_;
};

// Parents as long as what the counts before them leave known, so that a read beyond is seen by a
// memory checker. `kind` 0: none; 1: legal ones; beyond: the last of each row is wrong.
void add_parents(Batch& batch, int kind) {
  batch.trees = kind > 0;
  batch.parents.clear();
  for (std::size_t r = 0; r < batch.slots.size(); ++r) {
    const std::int32_t most =
        batch.prefill[r] != 0 ? static_cast<std::int32_t>(kMaxTokens) : RowWorld::kSteps;
    if (batch.tokens[r] < 0 || batch.tokens[r] > most) break;
    for (std::int32_t i = 0; i < batch.tokens[r]; ++i) {
      const std::array<std::int32_t, 5> wrong = {-2, kLeast, i, i + 1, kMost};
      const bool last = i == batch.tokens[r] - 1;
      batch.parents.push_back(kind > 1 && last ? wrong[static_cast<std::size_t>(kind - 2)]
                                               : i % 2 - 1);
    }
  }
  batch.parents.shrink_to_fit();
  if (batch.parents.empty()) batch.parents.reserve(1);  // an array all the same
}

constexpr std::array<std::int64_t, 8> kNames = {kPadding,  kHeld,    kFull,  kFree,
                                                kTornSlot, kLeaving, kSlots, kNear};
constexpr std::array<std::int32_t, 8> kCounts = {0, 1, 3, 4, 5, -1, kLeast, kMost};
constexpr std::array<std::int64_t, 7> kOffsets = {0, 2, 3, 5, -1, kFar, kNear};

class LawBegin : public ::testing::TestWithParam<DecodeMode> {};

TEST_P(LawBegin, EveryPairOfRows) {
  Judge judge(GetParam());
  Batch batch;
  batch.slots.resize(2);
  batch.tokens.resize(2);
  batch.prefill.resize(2);
  const auto for_rows = [&](auto body) {
    for (const std::int64_t a : kNames) {
      for (const std::int64_t b : kNames) {
        for (const std::int32_t s : kCounts) {
          for (const std::int32_t t : kCounts) {
            for (std::uint8_t prefill = 0; prefill < 4; ++prefill) {
              batch.slots = {a, b};
              batch.tokens = {s, t};
              batch.prefill = {static_cast<std::uint8_t>(prefill & 1),
                               static_cast<std::uint8_t>(prefill >> 1)};
              body();
              if (HasFatalFailure()) {
                FAIL() << "slots " << a << " " << b << ", tokens " << s << " " << t << ", prefill "
                       << int{prefill} << ", offsets " << ::testing::PrintToString(batch.offsets)
                       << ", trees " << batch.trees;
              }
            }
          }
        }
      }
    }
  };
  for_rows([&] {
    for (int kind = 0; kind < 7 && !HasFatalFailure(); ++kind) {
      add_parents(batch, kind);
      judge.check(batch);
    }
  });
  if (HasFatalFailure()) return;
  for (const std::int64_t first : kOffsets) {
    for (const std::int64_t second : kOffsets) {
      batch.offsets = {first, second};
      for_rows([&] {
        batch.trees = false;
        judge.check(batch);
        if (HasFatalFailure() || first > 2) return;
        add_parents(batch, 1);
        judge.check(batch);
      });
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GT(judge.legal_batches, 1000);
  EXPECT_GT(judge.refused_batches, 100000);
}

TEST_P(LawBegin, LongerBatches) {
  Judge judge(GetParam());
  std::mt19937 random(17);
  const auto pick = [&](const auto& from) { return from[random() % from.size()]; };
  for (int i = 0; i < 60000; ++i) {
    Batch batch;
    const std::size_t count = 3 + random() % 3;
    const bool hostile = random() % 2 == 0;
    for (std::size_t r = 0; r < count; ++r) {
      batch.slots.push_back(hostile ? pick(kNames) : static_cast<std::int64_t>(random() % 3) - 1);
      batch.tokens.push_back(
          hostile && random() % 4 == 0 ? pick(kCounts) : static_cast<std::int32_t>(random() % 3));
      batch.prefill.push_back(random() % 4 == 0 ? 1 : 0);
    }
    if (random() % 2 == 0) {
      std::int64_t next = 0;
      for (std::size_t r = 0; r < count; ++r) {
        next += static_cast<std::int64_t>(random() % 2);
        batch.offsets.push_back(hostile && random() % 4 == 0 ? pick(kOffsets) : next);
        next += batch.tokens[r] > 0 && batch.tokens[r] < 6 ? batch.tokens[r] : 0;
      }
    }
    add_parents(batch, static_cast<int>(random() % (hostile ? 7 : 2)));
    judge.check(batch);
    ASSERT_FALSE(HasFatalFailure()) << "batch " << i;
  }
  EXPECT_GT(judge.legal_batches, 1000);
}

// A device scans rows in any grouping.
TEST_P(LawBegin, RowsJoinInAnyGrouping) {
  const RowWorld world(GetParam(), kMaxTokens);
  Batch batch;
  std::vector<RowsBefore> all;
  for (const std::int32_t tokens : kCounts) {
    for (const std::int64_t offset : kOffsets) {
      batch.slots = {kHeld};
      batch.tokens = {tokens};
      batch.prefill = {0};
      batch.offsets = {offset};
      all.push_back(only_row(world.table, batch.rows(), 0));
    }
  }
  all.push_back({kNoPlace, kMaxTokens});
  const auto same = [](const RowsBefore& a, const RowsBefore& b) {
    return a.packed == b.packed && a.end == b.end;
  };
  for (const RowsBefore& a : all) {
    EXPECT_TRUE(same(joined({}, a), a));
    EXPECT_TRUE(same(joined(a, {}), a));
    for (const RowsBefore& b : all) {
      for (const RowsBefore& c : all)
        ASSERT_TRUE(same(joined(joined(a, b), c), joined(a, joined(b, c))));
    }
  }
  // As many rows as there may be, each with the largest count, stay far from 2^63.
  RowsBefore most{kNoPlace, 0};
  for (int i = 0; i < 31; ++i) most = joined(most, most);
  EXPECT_EQ(most.packed, kNoPlace);
}

INSTANTIATE_TEST_SUITE_P(Decode, LawBegin,
                         ::testing::Values(DecodeMode::kReplay, DecodeMode::kConventional),
                         [](const auto& about) {
                           return std::string(decode_mode_name(about.param));
                         });

// A slot folds at exactly a full window, prompts and conventional decoding never.
TEST(LawRules, FoldsAtAFullWindow) {
  for (const DecodeMode decode : {DecodeMode::kReplay, DecodeMode::kConventional}) {
    RowWorld world(decode, kMaxTokens);
    world.table.window = RowWorld::kWindow;
    for (std::int32_t n = 0; n <= RowWorld::kWindow + RowWorld::kSteps - 1; ++n) {
      const bool folds = decode == DecodeMode::kReplay && n >= RowWorld::kWindow;
      EXPECT_EQ(records_to_fold(world.table, false, n), folds ? RowWorld::kWindow : 0);
      EXPECT_EQ(records_to_fold(world.table, true, n), 0);
    }
  }
}

TEST(LawRules, RowsFitTensors) {
  RowDescriptor desc;
  for (const std::int64_t offset : {0, 1, 7}) {
    for (const std::int32_t tokens : {0, 1, 4}) {
      for (std::int64_t extent = 0; extent < 13; ++extent) {
        desc.token_offset = offset;
        desc.tokens = tokens;
        EXPECT_EQ(row_fits(desc, extent), tokens == 0 || offset + tokens <= extent);
      }
      EXPECT_TRUE(row_fits(desc, kFar));
    }
  }
}

}  // namespace
}  // namespace replayssm
