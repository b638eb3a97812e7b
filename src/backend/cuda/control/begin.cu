// begin: one block of threads describes every row of a forward. Nothing of the slots changes but
// the row they stand in and the blocks that are set aside, both of which commit and abandon give
// back. A row that the arrays' contents make illegal cannot be refused with a message here: it
// becomes padding, is counted, and its slot is marked kSlotOutOfRange.
#include "backend/cuda/common/launch.cuh"
#include "backend/cuda/control/blocks.cuh"
#include "backend/cuda/control/control.hpp"

namespace replayssm::cuda {
namespace {

constexpr int kThreads = 1024;

struct RowArrays {
  std::int64_t count;
  const std::int64_t* slots;
  const std::int32_t* tokens;
  const std::int32_t* parents;
  const std::int64_t* offsets;
  const std::uint8_t* prefill;
  std::int64_t padding_slot;
};

// Exclusive prefix sum over the block's threads; `total` becomes the whole sum. Two barriers.
__device__ std::int64_t exclusive_scan(std::int64_t value, std::int64_t* total) {
  __shared__ std::int64_t sums[kThreads / kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  std::int64_t inclusive = value;
  for (int step = 1; step < kWarp; step *= 2) {
    const std::int64_t below = __shfl_up_sync(~0U, inclusive, step);
    if (lane >= step) inclusive += below;
  }
  if (lane == kWarp - 1) sums[warp] = inclusive;
  __syncthreads();
  std::int64_t before = 0;
  std::int64_t all = 0;
  for (int other = 0; other < kThreads / kWarp; ++other) {
    if (other < warp) before += sums[other];
    all += sums[other];
  }
  __syncthreads();
  *total = all;
  return before + inclusive - value;
}

__device__ std::int32_t tokens_of(const RowArrays& rows, std::int64_t row) {
  return rows.tokens != nullptr ? rows.tokens[row] : 1;
}
__device__ bool is_prefill(const RowArrays& rows, std::int64_t row) {
  return rows.prefill != nullptr && rows.prefill[row] != 0;
}
__device__ unsigned long long* row_of(const CacheTable& table, std::int64_t slot) {
  return reinterpret_cast<unsigned long long*>(&table.slots.row[slot]);
}

// Everything about a row that can be judged without the rows before it.
__device__ bool row_is_legal(const CacheTable& table, const RowArrays& rows, std::int64_t row,
                             std::int64_t slot) {
  const std::int32_t tokens = tokens_of(rows, row);
  const std::int64_t most = is_prefill(rows, row) ? table.max_tokens : table.max_step_tokens;
  if (tokens < 0 || tokens > most) return false;
  if (slot < 0 || slot >= table.slots.slots) return false;
  return table.slots.live[slot] != 0 && table.slots.leaving[slot] == 0 &&
         (table.slots.error[slot] & kSlotTorn) == 0;
}

// The one place that decides whether a row folds: exactly the W oldest records, as soon as W are
// committed.
__device__ void describe(const CacheTable& table, const RowArrays& rows, std::int64_t row,
                         std::int64_t slot, RowDescriptor& desc) {
  const SlotTable& slots = table.slots;
  const bool prefill = is_prefill(rows, row);
  desc.slot = slot;
  desc.kind = prefill ? RowKind::kPrefill : RowKind::kStep;
  desc.source_block = slots.block[slot];
  desc.committed = slots.committed[slot];
  desc.conv_valid = slots.conv_valid[slot];
  desc.snapshot = slots.snapshot[slot];
  desc.zero = slots.zero[slot];
  desc.tree = rows.parents != nullptr && !prefill ? 1 : 0;
  if (!prefill && table.decode == DecodeMode::kReplay && desc.committed >= table.window) {
    desc.fold = table.window;
    desc.committed -= table.window;
  }
}

__device__ bool writes_state(const CacheTable& table, const RowDescriptor& desc) {
  if (desc.kind == RowKind::kPadding) return false;
  if (desc.fold > 0) return true;
  return desc.tokens > 0 &&
         (desc.kind == RowKind::kPrefill || table.decode == DecodeMode::kConventional);
}

__device__ bool take_parents(const CacheTable& table, const RowArrays& rows, std::int64_t row,
                             std::int64_t first, std::int32_t tokens) {
  for (std::int32_t i = 0; i < tokens; ++i) {
    const std::int32_t parent = rows.parents[first + i];
    if (parent < -1 || parent >= i) return false;
    table.forward.parents[row * table.max_step_tokens + i] = parent;
  }
  return true;
}

__global__ void __launch_bounds__(kThreads)
    begin_kernel(const __grid_constant__ Tables tables, const RowArrays rows) {
  const CacheTable& table = tables.table;
  const SlotTable& slots = table.slots;
  const ForwardTable& forward = table.forward;
  const auto thread = static_cast<std::int64_t>(threadIdx.x);

  // A slot named twice belongs to its first row.
  for (std::int64_t row = thread; row < rows.count; row += kThreads) {
    const std::int64_t slot = rows.slots[row];
    if (slot != rows.padding_slot && row_is_legal(table, rows, row, slot))
      atomicMin(row_of(table, slot), static_cast<unsigned long long>(row));
  }
  __syncthreads();

  std::int64_t tokens_before = 0;
  std::int64_t folds_before = 0;
  std::int64_t taken_before = 0;
  const std::int64_t free_count = *slots.free_count;
  for (std::int64_t first = 0; first < rows.count; first += kThreads) {
    const std::int64_t row = first + thread;
    const bool here = row < rows.count;
    const std::int64_t slot = here ? rows.slots[row] : rows.padding_slot;
    const std::int32_t given = here ? tokens_of(rows, row) : 0;
    const std::int32_t tokens = given > 0 ? given : 0;

    std::int64_t total = 0;
    const std::int64_t packed = tokens_before + exclusive_scan(tokens, &total);
    tokens_before += total;

    RowDescriptor desc;
    desc.tokens = tokens;
    desc.token_offset = here && rows.offsets != nullptr ? rows.offsets[row] : packed;
    const std::int64_t previous_end = here && rows.offsets != nullptr && row > 0
                                          ? rows.offsets[row - 1] + max(tokens_of(rows, row - 1), 0)
                                          : 0;
    const bool placed =
        desc.token_offset >= previous_end && desc.token_offset + desc.tokens <= table.max_tokens;
    bool refused = false;
    if (here && slot != rows.padding_slot) {
      const bool mine = slot >= 0 && slot < slots.slots && slots.row[slot] == row;
      bool legal = mine && placed && row_is_legal(table, rows, row, slot);
      if (legal && rows.parents != nullptr && !is_prefill(rows, row))
        legal = take_parents(table, rows, row, packed, tokens);
      if (legal) {
        describe(table, rows, row, slot, desc);
      } else {
        refused = true;
        if (mine) slots.row[slot] = -1;
        if (slot >= 0 && slot < slots.slots && slots.live[slot] != 0)
          mark_slot(table, slot, kSlotOutOfRange);
      }
    }
    if (!placed) desc.tokens = 0;  // no output of such a row can be addressed

    // In place only where nobody shares the block; the count is that of the forward's start, so all
    // sharers that write in this forward take fresh blocks, in row order.
    const bool writes = writes_state(table, desc);
    const bool shared = writes && slots.references[desc.source_block] != 1;
    const std::int64_t flags = (desc.fold > 0 ? std::int64_t{1} << 32 : 0) + (shared ? 1 : 0);
    const std::int64_t ranks = exclusive_scan(flags, &total);
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
        mark_slot(table, slot, kSlotOutOfRange);
        slots.row[slot] = -1;
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
    const std::int32_t from = j + desc.fold;
    row_order(table, row)[j] =
        slot_order(table, desc.slot)[from < table.ring ? from : from - table.ring];
  }
}

}  // namespace

Status begin_rows(const Tables& tables, const Rows& rows, void* stream) {
  const RowArrays arrays = {rows.count,   rows.slots,   rows.tokens,      rows.parents,
                            rows.offsets, rows.prefill, rows.padding_slot};
  return launch("begin", begin_kernel, {1, kThreads, 0, stream}, tables, arrays);
}

}  // namespace replayssm::cuda
