// Slots to and from host bytes. These calls wait for the device.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/tables.hpp"
#include "replayssm/status.hpp"

namespace replayssm::cuda {

// The slot table as the device has it now, after everything that was launched before.
class SlotMirror {
 public:
  [[nodiscard]] Status read(const CacheTable& table);
  // Host pointers; valid while the mirror lives and until the next read.
  [[nodiscard]] const SlotTable& slots() const { return host_.slots; }

 private:
  CacheTable host_;
  std::vector<std::byte> bytes_;
};

[[nodiscard]] Status export_slot_bytes(const CacheTable& table, std::int64_t slot,
                                       std::span<std::byte> bytes);
// Tensors only; the cursors are set by a launch that follows.
[[nodiscard]] Status import_slot_bytes(const CacheTable& table, std::int64_t slot,
                                       const SlotInfo& info, std::int32_t conv_valid,
                                       std::span<const std::byte> bytes);

}  // namespace replayssm::cuda
