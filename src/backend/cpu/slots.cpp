// Handing slots out, taking them back, forking them; reference counts of blocks.
#include <algorithm>

#include "backend/cpu/access.hpp"
#include "backend/cpu/rooms.hpp"
#include "core/text.hpp"
#include "math/law.hpp"

namespace replayssm::cpu {
namespace {

void change_references(CacheTable& table, std::int64_t block, std::int32_t by) {
  std::int32_t& count = table.slots.references[block];
  *table.slots.reserved += block_reserve(count + by) - block_reserve(count);
  count += by;
}

// Cursors of a slot that holds nothing. No byte of its tensors is touched: what an earlier owner
// left there is never read while `zero` is set and `committed` and `conv_valid` are 0.
void clear_cursors(CacheTable& table, std::int64_t slot) {
  SlotTable& slots = table.slots;
  slots.block[slot] = -1;
  slots.position[slot] = 0;
  slots.seed[slot] = 0;
  slots.committed[slot] = 0;
  slots.conv_valid[slot] = 0;
  slots.snapshot[slot] = 0;
  slots.error[slot] = 0;
  slots.live[slot] = 0;
  slots.zero[slot] = 1;
  slots.leaving[slot] = 0;
  slots.row[slot] = -1;
  for (std::int32_t j = 0; j < table.ring; ++j)
    slot_order(table, slot)[j] = static_cast<std::uint16_t>(j);
  for (std::int32_t j = 0; j < table.conv_ring; ++j)
    conv_order(table, slot)[j] = static_cast<std::uint16_t>(j);
}

}  // namespace

void initialize_slots(CacheTable& table) {
  SlotTable& slots = table.slots;
  for (std::int64_t slot = 0; slot < slots.slots; ++slot) clear_cursors(table, slot);
  for (std::int64_t block = 0; block < slots.blocks; ++block) {
    slots.references[block] = 0;
    slots.free_blocks[block] = slots.blocks - 1 - block;  // a stack: block 0 is handed out first
  }
  *slots.free_count = slots.blocks;
  *slots.reserved = 0;
}

std::int64_t unreserved_blocks(const CacheTable& table) {
  // An open forward has already taken fresh blocks for sharers that are still counted in
  // `reserved`.
  std::int64_t taken = 0;
  for (std::int64_t row = 0; row < table.forward.count; ++row) {
    const RowDescriptor& desc = table.forward.rows[row];
    if (desc.folded == 0 && desc.target_block >= 0 && desc.target_block != desc.source_block)
      ++taken;
  }
  return *table.slots.free_count - std::max<std::int64_t>(*table.slots.reserved - taken, 0);
}

void drop_block(CacheTable& table, std::int64_t block) {
  change_references(table, block, -1);
  if (table.slots.references[block] == 0)
    table.slots.free_blocks[(*table.slots.free_count)++] = block;
}

Status acquire_slot(CacheTable& table, std::int64_t slot, std::uint64_t seed) {
  SlotTable& slots = table.slots;
  if (unreserved_blocks(table) < 1) {
    return error(StatusCode::kResourceExhausted, "no block is free: ", slots.blocks, " blocks, ",
                 *slots.free_count, " free, ", *slots.reserved,
                 " reserved for forked slots; release a slot or create more blocks");
  }
  clear_cursors(table, slot);
  slots.live[slot] = 1;
  slots.seed[slot] = seed;
  slots.block[slot] = slots.free_blocks[--*slots.free_count];
  slots.references[slots.block[slot]] = 1;
  return {};
}

void release_slot(CacheTable& table, std::int64_t slot) {
  if (table.slots.row[slot] >= 0) {
    table.slots.leaving[slot] = 1;  // end_forward() comes back
    return;
  }
  drop_block(table, table.slots.block[slot]);
  clear_cursors(table, slot);
}

Status fork_slot(CacheTable& table, std::int64_t source, std::int64_t target) {
  SlotTable& slots = table.slots;
  const std::int64_t block = slots.block[source];
  const std::int32_t references = slots.references[block];
  const std::int64_t more = block_reserve(references + 1) - block_reserve(references);
  if (unreserved_blocks(table) < more) {
    return error(StatusCode::kResourceExhausted, "a fork needs ", more,
                 " unreserved blocks, so that every sharer can "
                 "fold; given ",
                 unreserved_blocks(table), " of ", slots.blocks);
  }
  clear_cursors(table, target);
  change_references(table, block, 1);
  slots.live[target] = 1;
  slots.block[target] = block;
  slots.position[target] = slots.position[source];
  slots.seed[target] = slots.seed[source];
  slots.committed[target] = slots.committed[source];
  slots.conv_valid[target] = slots.conv_valid[source];
  slots.snapshot[target] = slots.snapshot[source];
  slots.error[target] = slots.error[source];
  slots.zero[target] = slots.zero[source];
  return {};
}

}  // namespace replayssm::cpu
