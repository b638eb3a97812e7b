// The bytes an exported slot begins with (docs/formats.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "replayssm/cache.hpp"

namespace replayssm {

// What the header says beside the geometry.
struct ExportHeader {
  SlotInfo info;                // position, committed, zero, seed, error
  std::int32_t window = 0;      // of the exporting cache
  std::int32_t conv_valid = 0;  // conv inputs that follow
  std::int64_t payload_bytes = 0;
};

// Payload bytes of a slot with that many records and conv inputs.
[[nodiscard]] std::int64_t export_payload_bytes(const CacheConfig& config,
                                                const ExportHeader& header);

[[nodiscard]] std::int64_t export_header_bytes(const CacheConfig& config);

// Writes the header in front of a payload that is already in place, checksum included.
void write_export_header(const CacheConfig& config, const ExportHeader& header,
                         std::span<std::byte> bytes);

// Reads and checks everything: magic, version, sizes, geometry against `config`, checksum.
// kDataLoss or kUnsupported.
[[nodiscard]] Result<ExportHeader> read_export_header(const CacheConfig& config,
                                                      std::span<const std::byte> bytes);

}  // namespace replayssm
