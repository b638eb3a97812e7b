// begin, the end of a fold, commit and abandon: what is decided about a row is law_rows.hpp's; here
// it is written into the tables. Nothing changes until all rows have passed.
#include <algorithm>

#include "backend/cpu/access.hpp"
#include "backend/cpu/rooms.hpp"
#include "math/law.hpp"
#include "math/law_rows.hpp"
#include "math/rows.hpp"

namespace replayssm::cpu {
namespace {

// Sets or takes back the marks that rows of the open forward leave on their slots.
void mark_rows(CacheTable& table, bool marked) {
  for (std::int64_t row = 0; row < table.forward.count; ++row) {
    const RowDescriptor& desc = table.forward.rows[row];
    if (desc.kind != RowKind::kPadding) table.slots.row[desc.slot] = marked ? row : -1;
  }
}

}  // namespace

Status check_begin(CacheTable& table, const Rows& rows) {
  mark_rows(table, false);
  Status status = check_rows(table, rows);
  for (std::int64_t row = 0; status.ok() && row < rows.count; ++row) {
    if (rows.slots[row] != rows.padding_slot) table.slots.row[rows.slots[row]] = -1;
  }
  mark_rows(table, true);
  return status;
}

Status begin_rows(CacheTable& table, const Rows& rows) {
  REPLAYSSM_RETURN_IF_ERROR(check_rows(table, rows));
  ForwardTable& forward = table.forward;
  SlotTable& slots = table.slots;
  forward.count = rows.count;
  forward.folding_count = 0;
  forward.tokens = 0;
  forward.needs_step = false;
  forward.needs_prefill = false;
  RowsBefore before;
  for (std::int64_t row = 0; row < rows.count; ++row) {
    RowDescriptor& desc = forward.rows[row];
    desc = describe_row(table, rows, row, before);
    forward.tokens = std::max(forward.tokens, desc.token_offset + desc.tokens);
    if (desc.tree != 0) {
      std::copy_n(rows.parents + before.packed, desc.tokens,
                  forward.parents + row * table.max_step_tokens);
    }
    before = behind_legal_row(rows, row, before);
    if (desc.kind == RowKind::kPadding) continue;
    if (desc.tokens > 0)
      (desc.kind == RowKind::kStep ? forward.needs_step : forward.needs_prefill) = true;
    order_after_fold(slot_order(table, desc.slot), table.ring, desc.fold, row_order(table, row));
    if (desc.fold > 0) forward.folding[forward.folding_count++] = row;
    if (!writes_state(table, desc)) continue;
    // Forks have kept the fresh blocks in reserve.
    desc.target_block =
        writes_in_place(table, desc) ? desc.source_block : slots.free_blocks[--*slots.free_count];
  }
  return {};
}

namespace {

// The row's slot now owns target_block alone.
void move_to_target(CacheTable& table, const RowDescriptor& desc) {
  SlotTable& slots = table.slots;
  if (desc.target_block == desc.source_block) return;
  drop_block(table, desc.source_block);
  slots.references[desc.target_block] = 1;
  slots.block[desc.slot] = desc.target_block;
}

void give_back_target(CacheTable& table, const RowDescriptor& desc) {
  if (desc.target_block < 0 || desc.target_block == desc.source_block) return;
  table.slots.free_blocks[(*table.slots.free_count)++] = desc.target_block;
}

void end_forward(CacheTable& table) {
  for (std::int64_t row = 0; row < table.forward.count; ++row) {
    const RowDescriptor& desc = table.forward.rows[row];
    if (desc.kind == RowKind::kPadding) continue;
    table.slots.row[desc.slot] = -1;
    if (table.slots.leaving[desc.slot] != 0) release_slot(table, desc.slot);
  }
  table.forward.count = 0;
  table.forward.folding_count = 0;
}

}  // namespace

void apply_fold(CacheTable& table) {
  SlotTable& slots = table.slots;
  for (std::int64_t i = 0; i < table.forward.folding_count; ++i) {
    const std::int64_t row = table.forward.folding[i];
    RowDescriptor& desc = table.forward.rows[row];
    move_to_target(table, desc);
    slots.committed[desc.slot] = desc.committed;
    slots.zero[desc.slot] = 0;
    std::copy_n(row_order(table, row), table.ring, slot_order(table, desc.slot));
    desc.folded = 1;
  }
}

void abandon_rows(CacheTable& table, bool touched) {
  SlotTable& slots = table.slots;
  for (std::int64_t row = 0; row < table.forward.count; ++row) {
    const RowDescriptor& desc = table.forward.rows[row];
    if (desc.kind == RowKind::kPadding || desc.folded != 0) continue;
    give_back_target(table, desc);
    if (touched && leaving_tears(table, desc)) slots.error[desc.slot] |= kSlotTorn;
  }
  end_forward(table);
}

namespace {

// The order tables of a row that accepts `count` tokens: records stay where they are.
void permute(CacheTable& table, const RowDescriptor& desc, const std::int32_t* nodes,
             std::int32_t count) {
  std::uint16_t spare[2 * kMaxWindow + 2 * kMaxStepTokens + kMaxConvWidth];
  std::uint16_t* conv = conv_order(table, desc.slot);
  if (desc.kind == RowKind::kPrefill) {
    if (table.conv_ring > 0)
      rotate_left(conv, table.conv_history, std::min(count, table.conv_history), spare);
    return;
  }
  if (table.decode == DecodeMode::kReplay) {
    order_after_accept(slot_order(table, desc.slot) + desc.committed, desc.tokens, nodes, count,
                       spare);
  }
  if (table.conv_ring > 0) {
    order_after_accept(conv + table.conv_history, desc.tokens, nodes, count, spare);
    rotate_left(conv, table.conv_ring, count, spare);
  }
}

}  // namespace

Status commit_rows(CacheTable& table, const Accepted& accepted) {
  REPLAYSSM_RETURN_IF_ERROR(check_accepted(table, accepted));
  ForwardTable& forward = table.forward;
  std::int32_t chain[kMaxStepTokens];
  for (std::int32_t i = 0; i < kMaxStepTokens; ++i) chain[i] = i;
  const std::int64_t stride = node_stride(table, accepted);
  SlotTable& slots = table.slots;
  for (std::int64_t row = 0; row < forward.count; ++row) {
    const RowDescriptor& desc = forward.rows[row];
    if (desc.kind == RowKind::kPadding) continue;
    if (slots.leaving[desc.slot] != 0) {
      if (desc.folded == 0) give_back_target(table, desc);
      continue;
    }
    const std::int32_t count = accepted_tokens(accepted, desc, row);
    const bool step = desc.kind == RowKind::kStep;
    const std::int32_t* nodes =
        accepted.nodes != nullptr && step ? accepted.nodes + row * stride : chain;
    const RowOutcome after =
        accept_row(table, desc, count, step && count > 0 ? nodes[count - 1] : 0);
    permute(table, desc, nodes, count);
    if (after.takes_target) move_to_target(table, desc);
    if (after.gives_back) give_back_target(table, desc);
    write_cursors(slots, desc.slot, after);
  }
  end_forward(table);
  return {};
}

}  // namespace replayssm::cpu
