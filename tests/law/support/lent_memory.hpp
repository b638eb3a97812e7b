// Memory lent to a cache: tensors of slots interleaved slot by slot, tensors of blocks block by
// block, with the caller's own bytes in between. Everything starts as NaN, the bytes in between as
// a pattern that must survive.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "replayssm/cache.hpp"
#include "tests/law/support/tensor.hpp"

namespace replayssm::laws {

class LentMemory {
 public:
  LentMemory(TestDevice& device, const std::vector<TensorSpec>& specs, Random& layout);

  // One entry a spec, for CacheConfig::memory.
  [[nodiscard]] const std::vector<TensorMemory>& memory() const { return memory_; }
  // Fills one slot's or block's share of every tensor of that role with NaN.
  void poison(TensorRole role, std::int64_t index, unsigned char value = HostileTensor::kNaNByte);
  [[nodiscard]] std::vector<unsigned char> read(TensorRole role, std::int32_t layer,
                                                std::int64_t index) const;
  // Everything that is not the cache's; empty when it is as it was.
  [[nodiscard]] std::string check_guards() const;
  // All bytes, guards and control included.
  [[nodiscard]] std::vector<unsigned char> snapshot() const;

 private:
  [[nodiscard]] std::int64_t offset(std::size_t spec, std::int64_t index) const;

  std::vector<TensorSpec> specs_;
  std::vector<TensorMemory> memory_;
  std::vector<bool> owned_;  // [bytes] belongs to the cache
  std::int64_t bytes_ = 0;
  DeviceBuffer arena_;
};

}  // namespace replayssm::laws
