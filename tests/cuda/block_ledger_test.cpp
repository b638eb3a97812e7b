// The host's account of blocks needs no device: every state the device can be in must fit what the
// account has promised.
#include "backend/cuda/common/block_ledger.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "tests/support/seed.hpp"

namespace replayssm::cuda {
namespace {

// The device's side: which block a slot refers to. A fold gives a sharer a block of its own.
class Device {
 public:
  explicit Device(std::size_t slots) : block_(slots, -1) {}
  void acquire(std::int64_t slot) { block_[slot] = next_++; }
  void fork(std::int64_t source, std::int64_t target) { block_[target] = block_[source]; }
  void release(std::int64_t slot) { block_[slot] = -1; }
  void fold(std::int64_t slot) {
    if (block_[slot] >= 0 && sharers(block_[slot]) > 1) block_[slot] = next_++;
  }
  [[nodiscard]] bool held(std::int64_t slot) const { return block_[slot] >= 0; }
  // Blocks in use, and those needed if all sharers of all blocks fold in one forward.
  [[nodiscard]] std::int64_t need() const {
    std::map<std::int64_t, std::int64_t> count;
    for (const std::int64_t block : block_)
      if (block >= 0) ++count[block];
    std::int64_t blocks = 0;
    for (const auto& [block, sharers] : count) blocks += sharers > 1 ? sharers + 1 : 1;
    return blocks;
  }
  // As the device would number them: below the number of blocks.
  [[nodiscard]] std::vector<std::int64_t> blocks() const {
    std::map<std::int64_t, std::int64_t> number;
    std::vector<std::int64_t> list;
    for (const std::int64_t block : block_) {
      const auto name = static_cast<std::int64_t>(number.size());
      list.push_back(block < 0 ? -1 : number.try_emplace(block, name).first->second);
    }
    return list;
  }

 private:
  [[nodiscard]] std::int64_t sharers(std::int64_t block) const {
    return std::count(block_.begin(), block_.end(), block);
  }
  std::vector<std::int64_t> block_;
  std::int64_t next_ = 0;
};

TEST(BlockLedger, NeverPromisesMoreThanThereIs) {
  std::int64_t refused = 0;
  std::int64_t exact = 0;
  testing::for_each_case(0x1ed6, 2000, [&](std::uint64_t seed) {
    const auto random = [&](std::int64_t below) {
      seed = testing::case_seed(seed, 1);
      return static_cast<std::int64_t>(seed % static_cast<std::uint64_t>(below));
    };
    const std::int64_t slots = 1 + random(8);
    const std::int64_t blocks = slots + random(slots + 2);
    BlockLedger ledger(slots, blocks);
    Device device(static_cast<std::size_t>(slots));
    bool captured = false;
    for (int i = 0; i < 60; ++i) {
      const std::int64_t slot = random(slots);
      const std::int64_t other = random(slots);
      switch (random(6)) {
        case 0:
          if (device.held(slot)) break;
          if (!ledger.can_acquire()) {
            ++refused;
            break;
          }
          ledger.acquire(slot);
          device.acquire(slot);
          break;
        case 1:
        case 2:
          if (!device.held(slot) || device.held(other)) break;
          if (!ledger.can_fork(slot)) {
            ++refused;
            break;
          }
          ledger.fork(slot, other);
          device.fork(slot, other);
          break;
        case 3:
          if (!device.held(slot)) break;
          ledger.release(slot);
          device.release(slot);
          break;
        case 4:
          // A replayed graph folds without the host's knowledge.
          if (!captured) ledger.forward(random(8) == 0);
          captured = captured || random(8) == 0;
          if (captured) ledger.forward(true);
          device.fold(slot);
          device.fold(other);
          break;
        default:
          ledger.refresh(device.blocks());
          EXPECT_EQ(ledger.need(), device.need()) << "what was read back is the truth";
          ++exact;
          break;
      }
      EXPECT_LE(device.need(), ledger.need());
      EXPECT_LE(ledger.need(), blocks);
    }
  });
  EXPECT_TRUE(testing::seed_from_environment() || (refused > 100 && exact > 100));
}

TEST(BlockLedger, CountsAForkAsTheHostPathDoes) {
  BlockLedger ledger(4, 3);
  ledger.acquire(0);
  EXPECT_TRUE(ledger.can_fork(0));  // two sharers and a spare block
  ledger.fork(0, 1);
  EXPECT_EQ(ledger.need(), 3);
  EXPECT_FALSE(ledger.can_acquire());
  EXPECT_FALSE(ledger.can_fork(0));
  ledger.release(1);
  EXPECT_EQ(ledger.need(), 1);
}

}  // namespace
}  // namespace replayssm::cuda
