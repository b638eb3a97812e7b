// Reference counts of blocks and the stack of free ones. Many threads may give blocks back at a
// time; blocks are taken by one block of threads alone (begin) or by one thread (acquire).
#pragma once

#include "backend/cuda/common/access.cuh"

namespace replayssm::cuda {

__device__ inline void push_free(const CacheTable& table, std::int64_t block) {
  const auto place = atomicAdd(reinterpret_cast<unsigned long long*>(table.slots.free_count), 1ULL);
  table.slots.free_blocks[place] = block;
}

// Drops one reference; the last one frees the block.
__device__ inline void drop_block(const CacheTable& table, std::int64_t block) {
  if (atomicSub(&table.slots.references[block], 1) == 1) push_free(table, block);
}

// The row's slot now owns target_block alone.
__device__ inline void move_to_target(const CacheTable& table, const RowDescriptor& desc) {
  if (desc.target_block == desc.source_block) return;
  drop_block(table, desc.source_block);
  table.slots.references[desc.target_block] = 1;
  table.slots.block[desc.slot] = desc.target_block;
}

__device__ inline void give_back_target(const CacheTable& table, const RowDescriptor& desc) {
  if (desc.target_block < 0 || desc.target_block == desc.source_block) return;
  push_free(table, desc.target_block);
}

// Cursors of a slot that holds nothing, by all threads of a block (`thread` of `threads`). No byte
// of its tensors is touched: what an earlier owner left there is never read while `zero` is set and
// `committed` and `conv_valid` are 0.
__device__ inline void clear_cursors(const CacheTable& table, std::int64_t slot, int thread,
                                     int threads) {
  const SlotTable& slots = table.slots;
  if (thread == 0) {
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
  }
  for (std::int32_t j = thread; j < table.ring; j += threads)
    slot_order(table, slot)[j] = static_cast<std::uint16_t>(j);
  for (std::int32_t j = thread; j < table.conv_ring; j += threads)
    conv_order(table, slot)[j] = static_cast<std::uint16_t>(j);
}

// Ends a forward for one row; a slot released meanwhile is given back now. All threads of a block.
__device__ inline void end_row(const CacheTable& table, std::int64_t slot, int thread,
                               int threads) {
  const bool leaving = table.slots.leaving[slot] != 0;
  const std::int64_t block = table.slots.block[slot];
  __syncthreads();
  if (leaving) {
    if (thread == 0) drop_block(table, block);
    clear_cursors(table, slot, thread, threads);
  } else if (thread == 0) {
    table.slots.row[slot] = -1;
  }
}

}  // namespace replayssm::cuda
