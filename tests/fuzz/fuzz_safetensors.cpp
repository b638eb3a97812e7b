// Any bytes as a safetensors file, and as an index of shards.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "model/safetensors.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace replayssm::model;
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  const auto entries = parse_safetensors(file, "fuzz");
  if (entries.ok()) {
    // What is accepted lies inside of the file; touch it so that a sanitizer sees otherwise.
    unsigned sum = 0;
    for (const TensorEntry& entry : *entries) {
      if (!entry.bytes.empty() && (entry.bytes.data() < file.data() ||
                                   entry.bytes.data() + entry.bytes.size() > file.data() + size)) {
        std::abort();
      }
      for (const std::byte b : entry.bytes) sum += std::to_integer<unsigned>(b);
    }
    if (sum == 0xFFFFFFFFu) std::abort();
  } else if (entries.status().message().find('\n') != std::string::npos) {
    std::abort();
  }
  const auto shards = parse_shard_index({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (shards.ok()) {
    for (const ShardEntry& shard : *shards) {
      if (shard.file.find('/') != std::string::npos || shard.file.front() == '.') std::abort();
    }
  }
  return 0;
}
