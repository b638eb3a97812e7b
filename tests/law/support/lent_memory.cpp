// See lent_memory.hpp.
#include "tests/law/support/lent_memory.hpp"

#include <algorithm>
#include <map>

namespace replayssm::laws {
namespace {

constexpr std::int64_t kUnit = 64;
constexpr unsigned char kGuard = 0x5A;

std::int64_t align(std::int64_t bytes) { return (bytes + kUnit - 1) / kUnit * kUnit; }

}  // namespace

LentMemory::LentMemory(TestDevice& device, const std::vector<TensorSpec>& specs, Random& layout)
    : specs_(specs), memory_(specs.size()), arena_(device) {
  // Tensors that count the same things share a region; one stride for all of them.
  std::map<std::int64_t, std::vector<std::size_t>> regions;
  for (std::size_t i = 0; i < specs.size(); ++i) regions[specs[i].count].push_back(i);
  std::vector<std::int64_t> base(specs.size());
  bytes_ = kUnit;
  for (auto& [count, members] : regions) {
    for (std::size_t i = members.size(); i > 1; --i) {
      std::swap(members[i - 1], members[layout.integer(0, static_cast<int>(i) - 1)]);
    }
    std::int64_t stride = 0;
    for (const std::size_t i : members) {
      base[i] = bytes_ + stride;
      stride += align(specs[i].bytes) + kUnit * layout.integer(0, 2);
    }
    for (const std::size_t i : members) memory_[i].stride_bytes = stride;
    bytes_ += count * stride + kUnit;
  }
  owned_.assign(static_cast<std::size_t>(bytes_), false);
  arena_.reserve(bytes_);
  std::vector<unsigned char> start(static_cast<std::size_t>(bytes_), kGuard);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    memory_[i].base = static_cast<unsigned char*>(arena_.data()) + base[i];
    for (std::int64_t index = 0; index < specs[i].count; ++index) {
      const auto at = offset(i, index);
      std::fill_n(owned_.begin() + at, specs[i].bytes, true);
      std::fill_n(start.begin() + at, specs[i].bytes, HostileTensor::kNaNByte);
    }
  }
  device.upload(arena_.data(), start.data(), bytes_);
}

std::int64_t LentMemory::offset(std::size_t spec, std::int64_t index) const {
  const auto* base = static_cast<const unsigned char*>(memory_[spec].base);
  return base - static_cast<const unsigned char*>(arena_.data()) +
         index * memory_[spec].stride_bytes;
}

void LentMemory::poison(TensorRole role, std::int64_t index, unsigned char value) {
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    if (specs_[i].role != role) continue;
    arena_.device().fill(static_cast<unsigned char*>(arena_.data()) + offset(i, index), value,
                         specs_[i].bytes);
  }
}

std::vector<unsigned char> LentMemory::read(TensorRole role, std::int32_t layer,
                                            std::int64_t index) const {
  std::vector<unsigned char> bytes;
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    if (specs_[i].role != role || specs_[i].layer != layer) continue;
    bytes.resize(static_cast<std::size_t>(specs_[i].bytes));
    arena_.device().download(bytes.data(),
                             static_cast<unsigned char*>(arena_.data()) + offset(i, index),
                             specs_[i].bytes);
  }
  return bytes;
}

std::string LentMemory::check_guards() const {
  const std::vector<unsigned char> now = snapshot();
  for (std::size_t at = 0; at < now.size(); ++at) {
    if (!owned_[at] && now[at] != kGuard) {
      return "byte " + std::to_string(at) + " of the caller's own memory was written";
    }
  }
  return {};
}

std::vector<unsigned char> LentMemory::snapshot() const {
  std::vector<unsigned char> bytes(static_cast<std::size_t>(bytes_));
  arena_.device().download(bytes.data(), arena_.data(), bytes_);
  return bytes;
}

}  // namespace replayssm::laws
