// The host's account of blocks. The device decides which block a slot refers to, and in a captured
// graph the host sees nothing of it; so the host counts the worst case: how many blocks its slots
// can need whatever forks have been folded apart since. A call that stays inside this account can
// never leave a later fold without a block.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace replayssm::cuda {

// Slots that may share blocks form a family. A group of m > 1 sharers of one block needs m more
// when all of them fold in one forward, so m + 1 in all; a slot that folds leaves its group alone.
// So a family needs one block a slot, and one more for each group of two or more that it may hold:
// one, plus one for each fork of a slot that may have left its group by then.
class BlockLedger {
 public:
  BlockLedger(std::int64_t slots, std::int64_t blocks)
      : blocks_(blocks), family_(static_cast<std::size_t>(slots), -1), families_(family_.size()) {}

  [[nodiscard]] std::int64_t blocks() const { return blocks_; }
  // Blocks the present slots can need at most.
  [[nodiscard]] std::int64_t need() const { return need_; }
  [[nodiscard]] bool can_acquire() const { return need_ + 1 <= blocks_; }
  [[nodiscard]] bool can_fork(std::int64_t source) const {
    const Family& family = families_[index(family_[index(source)])];
    return need_ + worst(forked(family)) - worst(family) <= blocks_;
  }

  void acquire(std::int64_t slot) {
    // A family is named by a free entry: there are as many as slots.
    std::int64_t name = 0;
    while (families_[index(name)].size != 0) ++name;
    change(name, {1, 0});
    family_[index(slot)] = name;
  }
  void fork(std::int64_t source, std::int64_t target) {
    const std::int64_t name = family_[index(source)];
    change(name, forked(families_[index(name)]));
    family_[index(target)] = name;
  }
  void release(std::int64_t slot) {
    const std::int64_t name = family_[index(slot)];
    if (name < 0) return;
    Family family = families_[index(name)];
    --family.size;
    change(name, family);
    family_[index(slot)] = -1;
  }
  // A forward may take groups apart. `for_good`: it is captured, so that it may run again at any
  // time and nothing is certain any more.
  void forward(bool for_good) {
    apart_ = true;
    captured_ = captured_ || for_good;
  }
  // The truth read back from the device: slots that refer to the same block are one family.
  // `block_of[slot]` counts for slots that are held.
  void refresh(const std::vector<std::int64_t>& block_of) {
    std::vector<std::int64_t> name_of(static_cast<std::size_t>(blocks_), -1);
    std::fill(families_.begin(), families_.end(), Family{});
    need_ = 0;
    for (std::size_t slot = 0; slot < family_.size(); ++slot) {
      const std::int64_t block = block_of[slot];
      if (family_[slot] < 0 || block < 0 || block >= blocks_) continue;
      std::int64_t& name = name_of[index(block)];
      if (name < 0) name = static_cast<std::int64_t>(slot);
      const std::int64_t size = families_[index(name)].size + 1;
      change(name, {size, size > 1 ? 1 : 0});
      family_[slot] = name;
    }
    apart_ = captured_;
  }

 private:
  struct Family {
    std::int64_t size = 0;
    std::int64_t groups = 0;  // of two or more sharers, at most
  };
  static std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }
  static std::int64_t worst(const Family& family) {
    return family.size + std::min(family.groups, family.size / 2);
  }
  [[nodiscard]] Family forked(Family family) const {
    ++family.size;
    family.groups = family.groups == 0 ? 1 : family.groups + (apart_ ? 1 : 0);
    return family;
  }
  void change(std::int64_t name, const Family& to) {
    Family& family = families_[index(name)];
    need_ += worst(to) - worst(family);
    family = to;
  }

  std::int64_t blocks_;
  std::int64_t need_ = 0;
  bool apart_ = false;     // some slot may have left its group since the groups were known
  bool captured_ = false;  // and always may
  std::vector<std::int64_t> family_;  // [slots], -1: not held
  std::vector<Family> families_;
};

}  // namespace replayssm::cuda
