// begin: one block of threads describes every row of a forward. Nothing of the slots changes but
// the row they stand in and the blocks that are set aside, both of which commit and abandon give
// back. What is decided about a row is math/law_rows.hpp's; a row that is refused there becomes
// padding, is counted, and its slot is marked kSlotOutOfRange.
#include "backend/cuda/common/launch.cuh"
#include "backend/cuda/control/blocks.cuh"
#include "backend/cuda/control/control.hpp"
#include "math/law.hpp"

namespace replayssm::cuda {
namespace {

constexpr int kThreads = 1024;

__device__ std::int64_t sum(std::int64_t a, std::int64_t b) { return a + b; }

__device__ std::int64_t from_below(std::int64_t value, int step) {
  return __shfl_up_sync(~0U, value, step);
}
__device__ RowsBefore from_below(const RowsBefore& value, int step) {
  RowsBefore below;
  below.packed = __shfl_up_sync(~0U, value.packed, step);
  below.end = __shfl_up_sync(~0U, value.end, step);
  return below;
}

// What `join` makes of the values of all threads before this one, from T() on; `total`: of all
// threads. `sums` is shared. Two barriers.
template <typename T, typename Join>
__device__ T exclusive_scan(const T& value, Join join, T* sums, T* total) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  T inclusive = value;
  for (int step = 1; step < kWarp; step *= 2) {
    const T below = from_below(inclusive, step);
    if (lane >= step) inclusive = join(below, inclusive);
  }
  T within = from_below(inclusive, 1);
  if (lane == 0) within = T();
  if (lane == kWarp - 1) sums[warp] = inclusive;
  __syncthreads();
  T before = T();
  T all = T();
  for (int other = 0; other < kThreads / kWarp; ++other) {
    if (other < warp) before = join(before, sums[other]);
    all = join(all, sums[other]);
  }
  __syncthreads();
  *total = all;
  return join(before, within);
}

__device__ unsigned long long* row_of(const CacheTable& table, std::int64_t slot) {
  return reinterpret_cast<unsigned long long*>(&table.slots.row[slot]);
}

__global__ void __launch_bounds__(kThreads)
    begin_kernel(const __grid_constant__ Tables tables, const __grid_constant__ Rows rows) {
  __shared__ RowsBefore places[kThreads / kWarp];
  __shared__ std::int64_t counts[kThreads / kWarp];
  const CacheTable& table = tables.table;
  const SlotTable& slots = table.slots;
  const ForwardTable& forward = table.forward;
  const auto thread = static_cast<std::int64_t>(threadIdx.x);

  // A slot named twice belongs to its first row.
  for (std::int64_t row = thread; row < rows.count; row += kThreads) {
    const std::int64_t slot = rows.slots[row];
    if (slot != rows.padding_slot && slot_fault(table, rows, row) == RowFault::kNone)
      atomicMin(row_of(table, slot), static_cast<unsigned long long>(row));
  }
  __syncthreads();

  RowsBefore rows_before;
  std::int64_t folds_before = 0;
  std::int64_t taken_before = 0;
  const std::int64_t free_count = *slots.free_count;
  for (std::int64_t first = 0; first < rows.count; first += kThreads) {
    const std::int64_t row = first + thread;
    const bool here = row < rows.count;

    RowsBefore all_rows;
    const RowsBefore before =
        joined(rows_before, exclusive_scan(here ? only_row(table, rows, row) : RowsBefore(), joined,
                                           places, &all_rows));
    rows_before = joined(rows_before, all_rows);

    RowDescriptor desc;
    bool refused = false;
    if (here) {
      const std::int64_t slot = rows.slots[row];
      const bool exists = slot != rows.padding_slot && slot >= 0 && slot < slots.slots;
      const bool mine = exists && slots.row[slot] == row;
      const RowDecision decision = decide_row(table, rows, row, before, mine);
      desc = decision.desc;
      refused = decision.fault != RowFault::kNone;
      if (refused && mine) slots.row[slot] = -1;
      if (decision.marks) mark_slot(table, slot, kSlotOutOfRange);
      if (desc.tree != 0) {
        for (std::int32_t i = 0; i < desc.tokens; ++i)
          forward.parents[row * table.max_step_tokens + i] = rows.parents[before.packed + i];
      }
    }

    // Fresh blocks in row order.
    const bool writes = writes_state(table, desc);
    const bool shared = writes && !writes_in_place(table, desc);
    const std::int64_t flags = (desc.fold > 0 ? std::int64_t{1} << 32 : 0) + (shared ? 1 : 0);
    std::int64_t total = 0;
    const std::int64_t ranks = exclusive_scan(flags, sum, counts, &total);
    const std::int64_t fold_rank = folds_before + (ranks >> 32);
    const std::int64_t take_rank = taken_before + (ranks & 0xFFFFFFFF);
    folds_before += total >> 32;
    taken_before += total & 0xFFFFFFFF;
    if (here) {
      if (desc.fold > 0) forward.folding[fold_rank] = row;
      const std::int64_t place = free_count - 1 - take_rank;
      if (writes && (!shared || place >= 0)) {
        desc.target_block = shared ? slots.free_blocks[place] : desc.source_block;
      } else if (writes) {
        // Only a graph replayed from other slots than it was captured with comes here: the host's
        // account keeps enough blocks. Folds pass over the row.
        refused = true;
        mark_slot(table, desc.slot, kSlotOutOfRange);
        slots.row[desc.slot] = -1;
        desc.kind = RowKind::kPadding;
        desc.fold = 0;
      }
      forward.rows[row] = desc;
      if (refused) atomicAdd(&tables.words->refused, 1ULL);
    }
  }
  if (thread == 0) {
    *slots.free_count = max(free_count - taken_before, std::int64_t{0});
    tables.words->folding_count = folds_before;
  }
  __syncthreads();

  const std::int64_t entries = rows.count * table.ring;
  for (std::int64_t i = thread; i < entries; i += kThreads) {
    const std::int64_t row = i / table.ring;
    const auto j = static_cast<std::int32_t>(i % table.ring);
    const RowDescriptor& desc = forward.rows[row];
    if (desc.kind == RowKind::kPadding) continue;
    row_order(table, row)[j] = slot_order(table, desc.slot)[rotated(j, desc.fold, table.ring)];
  }
}

}  // namespace

Status begin_rows(const Tables& tables, const Rows& rows, void* stream) {
  return launch("begin", begin_kernel, {1, kThreads, 0, stream}, tables, rows);
}

}  // namespace replayssm::cuda
