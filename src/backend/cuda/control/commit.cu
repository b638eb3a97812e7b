// commit and abandon: one block of threads a row. What is decided about a row is
// math/law_rows.hpp's. A row that was refused in this forward, or whose accept is refused now,
// leaves the forward as if it had been abandoned: it is counted, and its slot is marked
// kSlotOutOfRange, and kSlotTorn where its state had been overwritten.
#include "backend/cuda/common/launch.cuh"
#include "backend/cuda/control/blocks.cuh"
#include "backend/cuda/control/control.hpp"
#include "math/law.hpp"

namespace replayssm::cuda {
namespace {

constexpr unsigned kThreads = 64;
constexpr int kMaxOrder = 2 * kMaxWindow + 2 * kMaxStepTokens + kMaxConvWidth;

// A row that has not folded ends without a commit, after some layer has run if `touched`.
__device__ void leave(const CacheTable& table, const RowDescriptor& desc, bool touched) {
  if (desc.folded != 0) return;
  give_back_target(table, desc);
  if (touched && leaving_tears(table, desc)) mark_slot(table, desc.slot, kSlotTorn);
}

__device__ void write_outcome(const CacheTable& table, const RowDescriptor& desc,
                              const RowOutcome& after) {
  if (after.takes_target) move_to_target(table, desc);
  if (after.gives_back) give_back_target(table, desc);
  write_cursors(table.slots, desc.slot, after);
}

__global__ void __launch_bounds__(kThreads)
    commit_kernel(const __grid_constant__ Tables tables,
                  const __grid_constant__ Accepted accepted) {
  const CacheTable& table = tables.table;
  const std::int64_t row = blockIdx.x;
  const RowDescriptor& desc = table.forward.rows[row];
  if (desc.kind == RowKind::kPadding) return;
  const auto thread = static_cast<int>(threadIdx.x);
  const auto threads = static_cast<int>(blockDim.x);

  if (table.slots.leaving[desc.slot] != 0) {
    if (thread == 0 && desc.folded == 0) give_back_target(table, desc);
    end_row(table, desc.slot, thread, threads);
    return;
  }

  __shared__ std::int32_t nodes[kMaxStepTokens];
  __shared__ std::int32_t kept;  // -1: the row is refused
  __shared__ std::uint16_t order[kMaxOrder];
  __shared__ std::uint16_t spare[kMaxOrder];
  std::uint16_t* const pending = slot_order(table, desc.slot) + desc.committed;
  std::uint16_t* const history = conv_order(table, desc.slot);
  const bool step = desc.kind == RowKind::kStep;

  if (thread == 0) {
    const AcceptFault fault = accept_fault(table, accepted, row, nodes);
    if (fault == AcceptFault::kNone) {
      kept = accepted_tokens(accepted, desc, row);
      const std::int32_t last = step && kept > 0 ? nodes[kept - 1] : 0;
      write_outcome(table, desc, accept_row(table, desc, kept, last));
    } else {
      kept = -1;
      leave(table, desc, true);
      // A row that a step has refused is marked and counted already.
      if (fault != AcceptFault::kRefused) {
        mark_slot(table, desc.slot, kSlotOutOfRange);
        atomicAdd(&tables.words->refused, 1ULL);
      }
    }
  }
  __syncthreads();
  const std::int32_t count = kept;
  if (count < 0) {
    end_row(table, desc.slot, thread, threads);
    return;
  }

  // Records stay where they are; their order is permuted.
  if (step && table.decode == DecodeMode::kReplay) {
    for (int i = thread; i < desc.tokens; i += threads) order[i] = pending[i];
    __syncthreads();
    if (thread == 0) order_after_accept(order, desc.tokens, nodes, count, spare);
    __syncthreads();
    for (int i = thread; i < desc.tokens; i += threads) pending[i] = order[i];
    __syncthreads();
  }
  if (table.conv_ring > 0) {
    const std::int32_t length = step ? table.conv_ring : table.conv_history;
    for (int i = thread; i < length; i += threads) order[i] = history[i];
    __syncthreads();
    if (thread == 0 && step)
      order_after_accept(order + table.conv_history, desc.tokens, nodes, count, spare);
    __syncthreads();
    const std::int32_t by = count < length ? count : length;
    for (int i = thread; i < length; i += threads) history[i] = order[rotated(i, by, length)];
  }
  end_row(table, desc.slot, thread, threads);
}

__global__ void __launch_bounds__(kThreads)
    abandon_kernel(const __grid_constant__ Tables tables, bool touched) {
  const CacheTable& table = tables.table;
  const RowDescriptor& desc = table.forward.rows[blockIdx.x];
  if (desc.kind == RowKind::kPadding) return;
  if (threadIdx.x == 0) leave(table, desc, touched);
  __syncthreads();
  end_row(table, desc.slot, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
}

}  // namespace

Status commit_rows(const Tables& tables, const Accepted& accepted) {
  return launch("commit", commit_kernel, {tables.table.forward.count, kThreads, 0, accepted.stream},
                tables, accepted);
}

Status abandon_rows(const Tables& tables, bool touched, void* stream) {
  return launch("abandon", abandon_kernel, {tables.table.forward.count, kThreads, 0, stream},
                tables, touched);
}

}  // namespace replayssm::cuda
