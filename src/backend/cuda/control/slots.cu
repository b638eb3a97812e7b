// Handing slots out, taking them back, forking them: one block of threads each, in stream order.
#include "backend/cuda/common/launch.cuh"
#include "backend/cuda/control/blocks.cuh"
#include "backend/cuda/control/control.hpp"

namespace replayssm::cuda {
namespace {

constexpr unsigned kThreads = 128;

__global__ void initialize_kernel(const __grid_constant__ Tables tables) {
  const CacheTable& table = tables.table;
  const SlotTable& slots = table.slots;
  for (std::int64_t slot = blockIdx.x; slot < slots.slots; slot += gridDim.x) {
    clear_cursors(table, slot, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  }
  const std::int64_t thread = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::int64_t threads = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t block = thread; block < slots.blocks; block += threads) {
    slots.references[block] = 0;
    slots.free_blocks[block] = slots.blocks - 1 - block;  // a stack: block 0 is handed out first
  }
  if (thread == 0) {
    *slots.free_count = slots.blocks;
    *slots.reserved = 0;  // the host keeps the account (common/block_ledger.hpp)
    *tables.words = DeviceWords{};
  }
}

// A replayed graph may hand out what is still held, or find no block; then nothing is touched.
__global__ void acquire_kernel(const __grid_constant__ Tables tables, std::int64_t slot,
                               std::uint64_t seed) {
  const CacheTable& table = tables.table;
  const SlotTable& slots = table.slots;
  const bool refused = slots.live[slot] != 0 || *slots.free_count < 1;
  __syncthreads();
  if (refused) {
    if (threadIdx.x == 0) atomicAdd(&tables.words->refused, 1ULL);
    return;
  }
  clear_cursors(table, slot, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  if (threadIdx.x != 0) return;
  const std::int64_t block = slots.free_blocks[--*slots.free_count];
  slots.live[slot] = 1;
  slots.seed[slot] = seed;
  slots.block[slot] = block;
  slots.references[block] = 1;
}

__global__ void release_kernel(const __grid_constant__ Tables tables, std::int64_t slot) {
  const CacheTable& table = tables.table;
  const bool live = table.slots.live[slot] != 0;
  const bool open = table.slots.row[slot] >= 0;
  const std::int64_t block = table.slots.block[slot];
  __syncthreads();
  if (!live) {
    if (threadIdx.x == 0) atomicAdd(&tables.words->refused, 1ULL);
    return;
  }
  if (open) {
    if (threadIdx.x == 0) table.slots.leaving[slot] = 1;  // the end of the forward comes back
    return;
  }
  if (threadIdx.x == 0) drop_block(table, block);
  clear_cursors(table, slot, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
}

__global__ void fork_kernel(const __grid_constant__ Tables tables, std::int64_t source,
                            std::int64_t target) {
  const CacheTable& table = tables.table;
  const SlotTable& slots = table.slots;
  const bool refused = slots.live[source] == 0 || slots.live[target] != 0;
  __syncthreads();
  if (refused) {
    if (threadIdx.x == 0) atomicAdd(&tables.words->refused, 1ULL);
    return;
  }
  clear_cursors(table, target, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  if (threadIdx.x != 0) return;
  ++slots.references[slots.block[source]];
  slots.live[target] = 1;
  slots.block[target] = slots.block[source];
  slots.position[target] = slots.position[source];
  slots.seed[target] = slots.seed[source];
  slots.committed[target] = slots.committed[source];
  slots.conv_valid[target] = slots.conv_valid[source];
  slots.snapshot[target] = slots.snapshot[source];
  slots.error[target] = slots.error[source];  // a torn slot's fork is as torn
  slots.zero[target] = slots.zero[source];
}

__global__ void set_cursors_kernel(const __grid_constant__ Tables tables, std::int64_t slot,
                                   std::int64_t position, std::int32_t committed, bool zero,
                                   std::uint64_t seed, std::uint32_t error,
                                   std::int32_t conv_valid) {
  const SlotTable& slots = tables.table.slots;
  slots.position[slot] = position;
  slots.committed[slot] = committed;
  slots.conv_valid[slot] = conv_valid;
  slots.zero[slot] = zero ? 1 : 0;
  slots.seed[slot] = seed;
  slots.error[slot] = error;
}

__global__ void clear_records_kernel(const __grid_constant__ Tables tables, std::int64_t slot) {
  tables.table.slots.committed[slot] = 0;
  tables.table.slots.zero[slot] = 0;
}

__global__ void clear_errors_kernel(const __grid_constant__ Tables tables, std::int64_t slot,
                                    std::uint32_t bits) {
  atomicAnd(&tables.table.slots.error[slot], ~clearable_errors(bits));
}

}  // namespace

Status initialize_slots(const Tables& tables, void* stream) {
  const std::int64_t wanted = tables.table.slots.slots;
  const std::int64_t blocks = wanted < 1024 ? wanted : 1024;
  return launch("initialize", initialize_kernel, {blocks, kThreads, 0, stream}, tables);
}

Status acquire_slot(const Tables& tables, std::int64_t slot, std::uint64_t seed, void* stream) {
  return launch("acquire", acquire_kernel, {1, kThreads, 0, stream}, tables, slot, seed);
}

Status release_slot(const Tables& tables, std::int64_t slot, void* stream) {
  return launch("release", release_kernel, {1, kThreads, 0, stream}, tables, slot);
}

Status fork_cursors(const Tables& tables, std::int64_t source, std::int64_t target, void* stream) {
  return launch("fork", fork_kernel, {1, kThreads, 0, stream}, tables, source, target);
}

Status set_cursors(const Tables& tables, std::int64_t slot, const SlotInfo& info,
                   std::int32_t conv_valid, void* stream) {
  return launch("set cursors", set_cursors_kernel, {1, 1, 0, stream}, tables, slot, info.position,
                info.committed, info.zero, info.seed, info.error, conv_valid);
}

Status clear_records(const Tables& tables, std::int64_t slot, void* stream) {
  return launch("clear records", clear_records_kernel, {1, 1, 0, stream}, tables, slot);
}

Status clear_errors(const Tables& tables, std::int64_t slot, std::uint32_t bits, void* stream) {
  return launch("clear errors", clear_errors_kernel, {1, 1, 0, stream}, tables, slot, bits);
}

}  // namespace replayssm::cuda
