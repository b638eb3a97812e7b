// Laying the control arrays out in one piece of memory.
#include "core/control.hpp"

#include "core/checks.hpp"
#include "core/layout.hpp"

namespace replayssm {

std::int64_t place_control(CacheTable& table, std::byte* base) {
  std::int64_t used = 0;
  const auto place = [&]<typename T>(T*& pointer, std::int64_t count) {
    pointer = base == nullptr ? nullptr : reinterpret_cast<T*>(base + used);
    used = align_up(used + count * static_cast<std::int64_t>(sizeof(T)), kTensorAlignment);
  };
  SlotTable& slots = table.slots;
  place(slots.block, slots.slots);
  place(slots.position, slots.slots);
  place(slots.seed, slots.slots);
  place(slots.committed, slots.slots);
  place(slots.conv_valid, slots.slots);
  place(slots.snapshot, slots.slots);
  place(slots.error, slots.slots);
  place(slots.live, slots.slots);
  place(slots.zero, slots.slots);
  place(slots.leaving, slots.slots);
  place(slots.row, slots.slots);
  place(slots.order, slots.slots * table.ring);
  place(slots.conv_order, slots.slots * table.conv_ring);
  place(slots.references, slots.blocks);
  place(slots.free_blocks, slots.blocks);
  place(slots.free_count, 1);
  place(slots.reserved, 1);
  ForwardTable& forward = table.forward;
  place(forward.rows, table.max_rows);
  place(forward.parents, table.max_rows * table.max_step_tokens);
  place(forward.order, table.max_rows * table.ring);
  place(forward.folding, table.max_rows);
  return used;
}

std::int64_t control_bytes(const CacheConfig& config) {
  CacheTable table;
  table.slots.slots = config.slots;
  table.slots.blocks = config.blocks;
  table.max_rows = config.max_rows;
  table.max_step_tokens = config.max_step_tokens;
  table.ring = ring_length(config);
  table.conv_history = conv_history(config);
  table.conv_ring = table.conv_history > 0 ? table.conv_history + config.max_step_tokens : 0;
  return place_control(table, nullptr);
}

}  // namespace replayssm
