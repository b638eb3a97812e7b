// What the device holds, read on the host. These calls wait for the device.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/tables.hpp"
#include "replayssm/status.hpp"

namespace replayssm::cuda {

// The cache's tables as the device has them now, after everything that was launched before.
class TableMirror {
 public:
  // The slot table and, with `forward`, descriptors and parents of the open forward.
  [[nodiscard]] Status read(const CacheTable& table, bool forward);
  // Host pointers; valid while the mirror lives and until the next read.
  [[nodiscard]] const SlotTable& slots() const { return host_.slots; }
  [[nodiscard]] CacheTable& table() { return host_; }

 private:
  CacheTable host_;
  std::vector<std::byte> bytes_;
};

// What a host backend says of the rows and of what is accepted, by the same rules and before
// anything has changed. `tokens`: the end of the last row.
[[nodiscard]] Status check_rows_now(const CacheTable& table, const Rows& rows,
                                    std::int64_t& tokens);
[[nodiscard]] Status check_accepted_now(const CacheTable& table, const Accepted& accepted);

[[nodiscard]] Status export_slot_bytes(const CacheTable& table, std::int64_t slot,
                                       std::span<std::byte> bytes);
// Tensors only; the cursors are set by a launch that follows.
[[nodiscard]] Status import_slot_bytes(const CacheTable& table, std::int64_t slot,
                                       const SlotInfo& info, std::int32_t conv_valid,
                                       std::span<const std::byte> bytes);

}  // namespace replayssm::cuda
