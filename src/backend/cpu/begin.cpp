// begin: checks what only the arrays show, then describes every row. Nothing changes until all rows
// have passed.
#include <algorithm>

#include "backend/cpu/access.hpp"
#include "backend/cpu/rooms.hpp"
#include "core/text.hpp"
#include "math/law.hpp"

namespace replayssm::cpu {
namespace {

Status check_parents(std::int64_t row, const std::int32_t* parents, std::int32_t tokens) {
  for (std::int32_t i = 0; i < tokens; ++i) {
    if (parents[i] < -1 || parents[i] >= i) {
      return invalid_argument("row ", row, ": the parent of token ", i, " must be -1 to ", i - 1,
                              ", given ", parents[i]);
    }
  }
  return {};
}

Status check_row(const CacheTable& table, const Rows& rows, std::int64_t row) {
  const std::int64_t slot = rows.slots[row];
  const std::int32_t tokens = rows.tokens != nullptr ? rows.tokens[row] : 1;
  const bool prefill = rows.prefill != nullptr && rows.prefill[row] != 0;
  const std::int64_t most = prefill ? table.max_tokens : table.max_step_tokens;
  if (tokens < 0 || tokens > most) {
    return invalid_argument("row ", row, ": ",
                            prefill ? "a prefill row takes 0 to max_tokens = "
                                    : "a step row takes 0 to max_step_tokens = ",
                            most, " tokens, given ", tokens);
  }
  if (slot == rows.padding_slot) return {};
  if (slot < 0 || slot >= table.slots.slots) {
    return error(StatusCode::kOutOfRange, "row ", row, ": slot must be 0 to ",
                 table.slots.slots - 1, " or the padding id ", rows.padding_slot, ", given ", slot);
  }
  if (table.slots.live[slot] == 0 || table.slots.leaving[slot] != 0) {
    return failed_precondition("row ", row, ": slot ", slot, " is not acquired");
  }
  if ((table.slots.error[slot] & kSlotTorn) != 0) {
    return failed_precondition("row ", row, ": slot ", slot,
                               " is torn by an abandoned forward; only release is legal");
  }
  return {};
}

// The one place that decides whether a row folds: exactly the W oldest records, as soon as W are
// committed.
void describe(const CacheTable& table, const Rows& rows, std::int64_t row, RowDescriptor& desc) {
  desc = {};
  desc.tokens = rows.tokens != nullptr ? rows.tokens[row] : 1;
  const std::int64_t slot = rows.slots[row];
  if (slot == rows.padding_slot) return;
  const SlotTable& slots = table.slots;
  const bool prefill = rows.prefill != nullptr && rows.prefill[row] != 0;
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

bool writes_state(const CacheTable& table, const RowDescriptor& desc) {
  if (desc.kind == RowKind::kPadding) return false;
  if (desc.fold > 0) return true;
  return desc.tokens > 0 &&
         (desc.kind == RowKind::kPrefill || table.decode == DecodeMode::kConventional);
}

// Sets or takes back the marks that rows of the open forward leave on their slots.
void mark_rows(CacheTable& table, bool marked) {
  for (std::int64_t row = 0; row < table.forward.count; ++row) {
    const RowDescriptor& desc = table.forward.rows[row];
    if (desc.kind != RowKind::kPadding) table.slots.row[desc.slot] = marked ? row : -1;
  }
}

// Passing, it leaves each row's mark on its slot.
Status check_rows(CacheTable& table, const Rows& rows) {
  std::int64_t next = 0;
  std::int64_t parents_seen = 0;
  for (std::int64_t row = 0; row < rows.count; ++row) {
    REPLAYSSM_RETURN_IF_ERROR(check_row(table, rows, row));
    const std::int32_t tokens = rows.tokens != nullptr ? rows.tokens[row] : 1;
    const bool prefill = rows.prefill != nullptr && rows.prefill[row] != 0;
    const bool padding = rows.slots[row] == rows.padding_slot;  // its parents may be anything
    if (rows.parents != nullptr && !prefill && !padding) {
      REPLAYSSM_RETURN_IF_ERROR(check_parents(row, rows.parents + parents_seen, tokens));
    }
    parents_seen += tokens;
    const std::int64_t offset = rows.offsets != nullptr ? rows.offsets[row] : next;
    if (offset < next || offset > table.max_tokens) {
      return invalid_argument("row ", row, ": offset must be at least ", next,
                              ", the end of the row before, and at most max_tokens, given ",
                              offset);
    }
    next = offset + tokens;
  }
  if (next > table.max_tokens) {
    return error(StatusCode::kResourceExhausted, "the rows hold ", next,
                 " tokens, the cache was created for ", table.max_tokens, " (max_tokens)");
  }
  // Marks rows on the way, so that a slot named twice is found in one pass; taken back below on
  // failure.
  std::int64_t twice = -1;
  std::int64_t marked = 0;
  for (; marked < rows.count; ++marked) {
    const std::int64_t slot = rows.slots[marked];
    if (slot == rows.padding_slot) continue;
    if (table.slots.row[slot] >= 0) {
      twice = marked;
      break;
    }
    table.slots.row[slot] = marked;
  }
  if (twice < 0) return {};
  const std::int64_t slot = rows.slots[twice];
  const std::int64_t first = table.slots.row[slot];
  for (std::int64_t row = 0; row < marked; ++row) {
    if (rows.slots[row] != rows.padding_slot) table.slots.row[rows.slots[row]] = -1;
  }
  return invalid_argument("rows ", first, " and ", twice, " both name slot ", slot,
                          "; a slot may appear once in a batch");
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
  std::int64_t next = 0;
  std::int64_t parents_seen = 0;
  for (std::int64_t row = 0; row < rows.count; ++row) {
    RowDescriptor& desc = forward.rows[row];
    describe(table, rows, row, desc);
    desc.token_offset = rows.offsets != nullptr ? rows.offsets[row] : next;
    next = desc.token_offset + desc.tokens;
    forward.tokens = std::max(forward.tokens, next);
    if (desc.tree != 0) {
      std::copy_n(rows.parents + parents_seen, desc.tokens,
                  forward.parents + row * table.max_step_tokens);
    }
    parents_seen += desc.tokens;
    if (desc.kind == RowKind::kPadding) continue;
    if (desc.tokens > 0)
      (desc.kind == RowKind::kStep ? forward.needs_step : forward.needs_prefill) = true;
    order_after_fold(slot_order(table, desc.slot), table.ring, desc.fold, row_order(table, row));
    if (desc.fold > 0) forward.folding[forward.folding_count++] = row;
    if (!writes_state(table, desc)) continue;
    // In place only where nobody shares the block; the count is that of the forward's start, so all
    // sharers that write in this forward take fresh blocks. Forks have kept them in reserve.
    desc.target_block = slots.references[desc.source_block] == 1
                            ? desc.source_block
                            : slots.free_blocks[--*slots.free_count];
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
    if (!touched || desc.tokens == 0) continue;
    const bool fresh =
        desc.zero != 0 && desc.committed == 0;  // what was written counts as 0 all the same
    bool torn = false;
    if (desc.kind == RowKind::kPrefill) {
      torn = !fresh;  // conv history at least is written in place
    } else if (table.decode == DecodeMode::kConventional) {
      torn =
          !fresh && desc.target_block == desc.source_block && desc.tokens == table.max_step_tokens;
    }
    if (torn) slots.error[desc.slot] |= kSlotTorn;
  }
  end_forward(table);
}

namespace {

Status check_accept(const CacheTable& table, const Accepted& accepted, std::int64_t row) {
  const RowDescriptor& desc = table.forward.rows[row];
  if (desc.kind == RowKind::kPadding || table.slots.leaving[desc.slot] != 0) return {};
  const std::int32_t count = accepted.tokens != nullptr ? accepted.tokens[row] : desc.tokens;
  if (count < 0 || count > desc.tokens) {
    return invalid_argument("row ", row, ": accepted tokens must be 0 to ", desc.tokens, ", given ",
                            count);
  }
  if (desc.kind == RowKind::kPrefill) {
    if (count == desc.tokens) return {};
    return failed_precondition("row ", row, ": a prefilled row is accepted whole: required ",
                               desc.tokens, ", given ", count);
  }
  if (table.decode == DecodeMode::kConventional && count == 0 &&
      desc.tokens == table.max_step_tokens && desc.zero == 0 &&
      desc.target_block == desc.source_block) {
    return failed_precondition(
        "row ", row, ": conventional decoding has overwritten the state with ", desc.tokens,
        " of max_step_tokens = ", table.max_step_tokens,
        " tokens; at least one must be accepted (decode by replay to accept none)");
  }
  const std::int32_t* parents = row_parents(table, row);
  if (parents == nullptr && accepted.nodes == nullptr) return {};
  std::int32_t previous = -1;
  const std::int64_t stride =
      accepted.node_stride != 0 ? accepted.node_stride : table.max_step_tokens;
  if (accepted.nodes != nullptr && count > stride) {
    return invalid_argument("row ", row, ": required node_stride of at least the ", count,
                            " accepted nodes, given ", stride);
  }
  for (std::int32_t i = 0; i < count; ++i) {
    const std::int32_t node = accepted.nodes != nullptr ? accepted.nodes[row * stride + i] : i;
    if (node <= previous || node >= desc.tokens || parent_of(parents, node) != previous) {
      return invalid_argument("row ", row, ": accepted nodes must form one path from a root: node ",
                              i, " is ", node, ", required a child of ", previous, " below ",
                              desc.tokens,
                              accepted.nodes == nullptr ? " (no nodes were given for a tree)" : "");
    }
    previous = node;
  }
  return {};
}

// Records stay where they are; their order is permuted.
void accept_step(CacheTable& table, std::int64_t row, const std::int32_t* nodes,
                 std::int32_t count) {
  SlotTable& slots = table.slots;
  const RowDescriptor& desc = table.forward.rows[row];
  std::uint16_t spare[kMaxWindow + 2 * kMaxStepTokens + kMaxConvWidth + kMaxWindow];
  if (table.decode == DecodeMode::kReplay) {
    order_after_accept(slot_order(table, desc.slot) + desc.committed, desc.tokens, nodes, count,
                       spare);
    slots.committed[desc.slot] = desc.committed + count;
  } else if (count > 0) {
    move_to_target(table, desc);
    slots.snapshot[desc.slot] = (desc.snapshot + 1 + nodes[count - 1]) % table.max_step_tokens;
    slots.zero[desc.slot] = 0;
  } else {
    give_back_target(table, desc);
  }
  if (table.conv_ring > 0) {
    std::uint16_t* order = conv_order(table, desc.slot);
    order_after_accept(order + table.conv_history, desc.tokens, nodes, count, spare);
    rotate_left(order, table.conv_ring, count, spare);
  }
}

void accept_prefill(CacheTable& table, const RowDescriptor& desc) {
  SlotTable& slots = table.slots;
  if (desc.tokens == 0) return;
  move_to_target(table, desc);
  slots.committed[desc.slot] = 0;
  slots.zero[desc.slot] = 0;
  if (table.conv_ring > 0) {
    std::uint16_t spare[2 * kMaxWindow + kMaxStepTokens + kMaxConvWidth];
    rotate_left(conv_order(table, desc.slot), table.conv_history,
                std::min(desc.tokens, table.conv_history), spare);
  }
}

}  // namespace

Status commit_rows(CacheTable& table, const Accepted& accepted) {
  ForwardTable& forward = table.forward;
  for (std::int64_t row = 0; row < forward.count; ++row) {
    REPLAYSSM_RETURN_IF_ERROR(check_accept(table, accepted, row));
  }
  std::int32_t chain[kMaxStepTokens];
  for (std::int32_t i = 0; i < kMaxStepTokens; ++i) chain[i] = i;
  const std::int64_t stride =
      accepted.node_stride != 0 ? accepted.node_stride : table.max_step_tokens;
  SlotTable& slots = table.slots;
  for (std::int64_t row = 0; row < forward.count; ++row) {
    const RowDescriptor& desc = forward.rows[row];
    if (desc.kind == RowKind::kPadding) continue;
    if (slots.leaving[desc.slot] != 0) {
      if (desc.folded == 0) give_back_target(table, desc);
      continue;
    }
    const std::int32_t count = accepted.tokens != nullptr ? accepted.tokens[row] : desc.tokens;
    if (desc.kind == RowKind::kPrefill) {
      accept_prefill(table, desc);
    } else {
      const bool nodes = accepted.nodes != nullptr && desc.tree != 0;
      accept_step(table, row, nodes ? accepted.nodes + row * stride : chain, count);
    }
    slots.position[desc.slot] += count;
    slots.conv_valid[desc.slot] = std::min(slots.conv_valid[desc.slot] + count, table.conv_history);
  }
  end_forward(table);
  return {};
}

}  // namespace replayssm::cpu
