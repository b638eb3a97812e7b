// commit and abandon: one block of threads a row. An accept that the arrays' contents make illegal
// cannot be refused with a message here: the row accepts nothing, is counted, and its slot is
// marked kSlotOutOfRange; where the state has been overwritten already it is torn.
#include "backend/cuda/common/launch.cuh"
#include "backend/cuda/control/blocks.cuh"
#include "backend/cuda/control/control.hpp"
#include "math/law.hpp"

namespace replayssm::cuda {
namespace {

constexpr unsigned kThreads = 64;
constexpr int kMaxOrder = 2 * kMaxWindow + 2 * kMaxStepTokens + kMaxConvWidth;

struct AcceptArrays {
  const std::int32_t* tokens;
  const std::int32_t* nodes;
  std::int64_t node_stride;
};

// The accepted indices, root first, into `nodes`; false where they are no path of the row.
__device__ bool take_nodes(const CacheTable& table, const AcceptArrays& accepted, std::int64_t row,
                           const RowDescriptor& desc, std::int32_t count, std::int32_t* nodes) {
  const std::int32_t* parents = row_parents(table, row);
  const bool given = parents != nullptr && accepted.nodes != nullptr;
  std::int32_t previous = -1;
  for (std::int32_t i = 0; i < count; ++i) {
    const std::int32_t node = given ? accepted.nodes[row * accepted.node_stride + i] : i;
    if (node <= previous || node >= desc.tokens || parent_of(parents, node) != previous)
      return false;
    nodes[i] = node;
    previous = node;
  }
  return true;
}

// Whether the device may do what `count` asks of the row.
__device__ bool accept_is_legal(const CacheTable& table, const RowDescriptor& desc,
                                std::int32_t count) {
  if (count < 0 || count > desc.tokens) return false;
  if (desc.kind == RowKind::kPrefill) return count == desc.tokens;
  // Conventional decoding with T_max tokens has overwritten the state it came from.
  return !(table.decode == DecodeMode::kConventional && count == 0 &&
           desc.tokens == table.max_step_tokens && desc.zero == 0 &&
           desc.target_block == desc.source_block);
}

// Blocks, counters and cursors of a row that accepts `count` tokens, the last one `last`.
__device__ void accept_cursors(const CacheTable& table, const RowDescriptor& desc,
                               std::int32_t count, std::int32_t last) {
  const SlotTable& slots = table.slots;
  if (desc.kind == RowKind::kPrefill) {
    if (desc.tokens > 0) {
      move_to_target(table, desc);
      slots.committed[desc.slot] = 0;
      slots.zero[desc.slot] = 0;
    }
  } else if (table.decode == DecodeMode::kReplay) {
    slots.committed[desc.slot] = desc.committed + count;
  } else if (count > 0) {
    move_to_target(table, desc);
    slots.snapshot[desc.slot] = (desc.snapshot + 1 + last) % table.max_step_tokens;
    slots.zero[desc.slot] = 0;
  } else {
    give_back_target(table, desc);
  }
  slots.position[desc.slot] += count;
  const std::int32_t valid = slots.conv_valid[desc.slot] + count;
  slots.conv_valid[desc.slot] = valid < table.conv_history ? valid : table.conv_history;
}

__global__ void __launch_bounds__(kThreads)
    commit_kernel(const __grid_constant__ Tables tables, const AcceptArrays accepted) {
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
  __shared__ std::int32_t kept;
  __shared__ std::uint16_t order[kMaxOrder];
  __shared__ std::uint16_t spare[kMaxOrder];
  std::uint16_t* const pending = slot_order(table, desc.slot) + desc.committed;
  std::uint16_t* const history = conv_order(table, desc.slot);
  const bool step = desc.kind == RowKind::kStep;

  if (thread == 0) {
    std::int32_t count = accepted.tokens != nullptr ? accepted.tokens[row] : desc.tokens;
    const bool legal = accept_is_legal(table, desc, count) &&
                       (!step || take_nodes(table, accepted, row, desc, count, nodes));
    if (!legal) {
      count = 0;
      const bool in_place = desc.target_block == desc.source_block && desc.folded == 0;
      const bool lost = !step || (table.decode == DecodeMode::kConventional && in_place &&
                                  desc.tokens == table.max_step_tokens && desc.zero == 0);
      mark_slot(table, desc.slot, kSlotOutOfRange | (lost && desc.tokens > 0 ? kSlotTorn : 0U));
      atomicAdd(&tables.words->refused, 1ULL);
    }
    kept = count;
    if (legal || step) {
      accept_cursors(table, desc, count, count > 0 && step ? nodes[count - 1] : 0);
    } else {
      give_back_target(table, desc);
    }
  }
  __syncthreads();
  const std::int32_t count = kept;

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
    for (int i = thread; i < length; i += threads) history[i] = order[(i + by) % length];
  }
  end_row(table, desc.slot, thread, threads);
}

__global__ void __launch_bounds__(kThreads)
    abandon_kernel(const __grid_constant__ Tables tables, bool touched) {
  const CacheTable& table = tables.table;
  const RowDescriptor& desc = table.forward.rows[blockIdx.x];
  if (desc.kind == RowKind::kPadding) return;
  if (threadIdx.x == 0 && desc.folded == 0) {
    give_back_target(table, desc);
    // What was written into a slot that holds nothing counts as 0 all the same.
    const bool fresh = desc.zero != 0 && desc.committed == 0;
    bool torn = false;
    if (desc.kind == RowKind::kPrefill) {
      torn = !fresh;  // conv history at least is written in place
    } else if (table.decode == DecodeMode::kConventional) {
      torn =
          !fresh && desc.target_block == desc.source_block && desc.tokens == table.max_step_tokens;
    }
    if (torn && touched && desc.tokens > 0) mark_slot(table, desc.slot, kSlotTorn);
  }
  __syncthreads();
  end_row(table, desc.slot, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
}

}  // namespace

Status commit_rows(const Tables& tables, const Accepted& accepted) {
  const AcceptArrays arrays = {
      accepted.tokens, accepted.nodes,
      accepted.node_stride != 0 ? accepted.node_stride : tables.table.max_step_tokens};
  const auto rows = static_cast<unsigned>(tables.table.forward.count);
  return launch("commit", commit_kernel, {rows, kThreads, 0, accepted.stream}, tables, arrays);
}

Status abandon_rows(const Tables& tables, bool touched, void* stream) {
  const auto rows = static_cast<unsigned>(tables.table.forward.count);
  return launch("abandon", abandon_kernel, {rows, kThreads, 0, stream}, tables, touched);
}

}  // namespace replayssm::cuda
