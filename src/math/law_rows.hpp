// What begin and commit decide about one row (docs/law.md), once for every backend: whether the row
// is legal, which tokens it has and where they start, whether it folds, what is accepted, what its
// slot becomes. Plain functions of the tables, so that host and device cannot disagree.
//
// A host refuses the whole call for one illegal row. A device cannot refuse without being waited
// for; there the row alone is refused, marked kSlotOutOfRange and left as it was.
#pragma once

#include <cstdint>

#include "core/tables.hpp"
#include "math/host_device.hpp"

namespace replayssm {

// --- begin

// Why a row is refused; the first of these that holds, in the order of row_fault().
enum class RowFault : std::uint8_t {
  kNone,
  kTokens,   // T is not 0 to T_max, of a prompt not 0 to max_tokens
  kSlot,     // no slot has this id
  kNotHeld,  // the slot is not acquired, or released already
  kTorn,
  kOffset,  // in front of the end of a row before, or behind max_tokens
  kFull,    // the row ends behind max_tokens
  kParent,  // not -1 to the token's own index - 1
  kTwice,   // an earlier row names the slot
};

[[nodiscard]] REPLAYSSM_HOST_DEVICE inline std::int32_t row_tokens(const Rows& rows,
                                                                   std::int64_t row) {
  return rows.tokens != nullptr ? rows.tokens[row] : 1;
}
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline bool is_prefill(const Rows& rows, std::int64_t row) {
  return rows.prefill != nullptr && rows.prefill[row] != 0;
}
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline std::int64_t most_tokens(const CacheTable& table,
                                                                    bool prefill) {
  return prefill ? table.max_tokens : table.max_step_tokens;
}
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline bool tokens_are_legal(const CacheTable& table,
                                                                 const Rows& rows,
                                                                 std::int64_t row) {
  const std::int32_t tokens = row_tokens(rows, row);
  return tokens >= 0 && tokens <= most_tokens(table, is_prefill(rows, row));
}

// Behind a row whose T is no legal count nothing can be placed by counting: more than any
// max_tokens, and so little that sums of it are far from 2^63.
inline constexpr std::int64_t kNoPlace = std::int64_t{1} << 40;

// What the rows before a row mean for its place.
struct RowsBefore {
  std::int64_t packed = 0;  // their tokens, at most kNoPlace
  std::int64_t end = 0;     // where `offsets` are given: the highest end of those that lie inside
};

// One row alone.
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline RowsBefore only_row(const CacheTable& table,
                                                               const Rows& rows, std::int64_t row) {
  RowsBefore only;
  if (!tokens_are_legal(table, rows, row)) {
    only.packed = kNoPlace;
    return only;
  }
  const std::int32_t tokens = row_tokens(rows, row);
  only.packed = tokens;
  if (rows.offsets != nullptr) {
    const std::int64_t offset = rows.offsets[row];
    if (offset >= 0 && offset <= table.max_tokens - tokens) only.end = offset + tokens;
  }
  return only;
}

// Some rows and those behind them. Associative, so that a device may scan it.
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline RowsBefore joined(const RowsBefore& first,
                                                             const RowsBefore& then) {
  RowsBefore both;
  both.packed = first.packed + then.packed;
  if (both.packed > kNoPlace) both.packed = kNoPlace;
  both.end = first.end > then.end ? first.end : then.end;
  return both;
}

// First token of the row in the tensors, whether that is legal or not.
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline std::int64_t row_offset(const Rows& rows,
                                                                   std::int64_t row,
                                                                   const RowsBefore& before) {
  return rows.offsets != nullptr ? rows.offsets[row] : before.packed;
}

// The same as joined() with the row alone, of a row that has passed: cheaper, one row after the
// other.
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline RowsBefore behind_legal_row(const Rows& rows,
                                                                       std::int64_t row,
                                                                       const RowsBefore& before) {
  const std::int32_t tokens = row_tokens(rows, row);
  RowsBefore behind;
  behind.packed = before.packed + tokens;
  if (rows.offsets != nullptr) behind.end = rows.offsets[row] + tokens;
  return behind;
}

// kTokens, kOffset or kFull. Adds nothing that the arrays' contents could overflow.
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline RowFault place_fault(const CacheTable& table,
                                                                const Rows& rows, std::int64_t row,
                                                                const RowsBefore& before) {
  if (!tokens_are_legal(table, rows, row)) return RowFault::kTokens;
  const std::int64_t offset = row_offset(rows, row, before);
  if (rows.offsets != nullptr && (offset < before.end || offset > table.max_tokens))
    return RowFault::kOffset;
  return row_tokens(rows, row) > table.max_tokens - offset ? RowFault::kFull : RowFault::kNone;
}

// kTokens, kSlot, kNotHeld or kTorn: what can be said without the rows before. The row is not
// padding.
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline RowFault slot_fault(const CacheTable& table,
                                                               const Rows& rows, std::int64_t row) {
  if (!tokens_are_legal(table, rows, row)) return RowFault::kTokens;
  const std::int64_t slot = rows.slots[row];
  if (slot < 0 || slot >= table.slots.slots) return RowFault::kSlot;
  if (table.slots.live[slot] == 0 || table.slots.leaving[slot] != 0) return RowFault::kNotHeld;
  return (table.slots.error[slot] & kSlotTorn) != 0 ? RowFault::kTorn : RowFault::kNone;
}

[[nodiscard]] REPLAYSSM_HOST_DEVICE inline bool has_parents(const Rows& rows, std::int64_t row) {
  return rows.parents != nullptr && !is_prefill(rows, row);
}

// The first token whose parent is not -1 to its own index - 1; `tokens` where there is none.
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline std::int32_t first_wrong_parent(
    const std::int32_t* parents, std::int32_t tokens) {
  for (std::int32_t i = 0; i < tokens; ++i) {
    if (parents[i] < -1 || parents[i] >= i) return i;
  }
  return tokens;
}

// Everything but kTwice. Reads parents only where they are known to lie within max_tokens.
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline RowFault row_fault(const CacheTable& table,
                                                              const Rows& rows, std::int64_t row,
                                                              const RowsBefore& before) {
  const bool padding = rows.slots[row] == rows.padding_slot;
  const RowFault of_slot = padding ? RowFault::kNone : slot_fault(table, rows, row);
  if (of_slot != RowFault::kNone) return of_slot;
  const RowFault of_place = place_fault(table, rows, row, before);
  if (of_place != RowFault::kNone) return of_place;
  if (padding || !has_parents(rows, row)) return RowFault::kNone;  // parents of padding: anything
  const std::int32_t tokens = row_tokens(rows, row);
  if (tokens > table.max_tokens - before.packed) return RowFault::kFull;
  return first_wrong_parent(rows.parents + before.packed, tokens) < tokens ? RowFault::kParent
                                                                           : RowFault::kNone;
}

// The one place that decides whether a row folds: exactly the W oldest records, as soon as W are
// committed.
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline std::int32_t records_to_fold(const CacheTable& table,
                                                                        bool prefill,
                                                                        std::int32_t committed) {
  const bool folds = !prefill && table.decode == DecodeMode::kReplay && committed >= table.window;
  return folds ? table.window : 0;
}

// The descriptor of a legal row but for its target block.
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline RowDescriptor describe_row(const CacheTable& table,
                                                                      const Rows& rows,
                                                                      std::int64_t row,
                                                                      const RowsBefore& before) {
  RowDescriptor desc;
  desc.tokens = row_tokens(rows, row);
  desc.token_offset = row_offset(rows, row, before);
  const std::int64_t slot = rows.slots[row];
  if (slot == rows.padding_slot) return desc;
  const SlotTable& slots = table.slots;
  const bool prefill = is_prefill(rows, row);
  desc.slot = slot;
  desc.kind = prefill ? RowKind::kPrefill : RowKind::kStep;
  desc.source_block = slots.block[slot];
  desc.fold = records_to_fold(table, prefill, slots.committed[slot]);
  desc.committed = slots.committed[slot] - desc.fold;
  desc.conv_valid = slots.conv_valid[slot];
  desc.snapshot = slots.snapshot[slot];
  desc.zero = slots.zero[slot];
  desc.tree = has_parents(rows, row) ? 1 : 0;
  return desc;
}

// What a device, which can refuse no call, makes of a row.
struct RowDecision {
  RowDescriptor desc;  // of a refused row: padding, without tokens where it has no place
  RowFault fault = RowFault::kNone;
  bool marks = false;  // the row is refused, and its slot can be told so
};
// `first`: no earlier row names the row's slot.
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline RowDecision decide_row(const CacheTable& table,
                                                                  const Rows& rows,
                                                                  std::int64_t row,
                                                                  const RowsBefore& before,
                                                                  bool first) {
  RowDecision decision;
  const std::int64_t slot = rows.slots[row];
  const bool padding = slot == rows.padding_slot;
  decision.fault = row_fault(table, rows, row, before);
  if (decision.fault == RowFault::kNone && !padding && !first) decision.fault = RowFault::kTwice;
  if (decision.fault == RowFault::kNone) {
    decision.desc = describe_row(table, rows, row, before);
    return decision;
  }
  if (place_fault(table, rows, row, before) == RowFault::kNone) {
    decision.desc.tokens = row_tokens(rows, row);
    decision.desc.token_offset = row_offset(rows, row, before);
  }
  decision.marks = !padding && slot >= 0 && slot < table.slots.slots && table.slots.live[slot] != 0;
  return decision;
}

// Whether the forward writes a state for the row: a fold, a prompt, or a conventional step.
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline bool writes_state(const CacheTable& table,
                                                             const RowDescriptor& desc) {
  if (desc.kind == RowKind::kPadding) return false;
  if (desc.fold > 0) return true;
  return desc.tokens > 0 &&
         (desc.kind == RowKind::kPrefill || table.decode == DecodeMode::kConventional);
}

// In place only where nobody shares the block. The count is that of the forward's start, so all
// sharers that write in this forward take fresh blocks.
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline bool writes_in_place(const CacheTable& table,
                                                                const RowDescriptor& desc) {
  return table.slots.references[desc.source_block] == 1;
}

// --- the forward

// Whether the row's tokens lie inside tensors of `extent` tokens.
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline bool row_fits(const RowDescriptor& desc,
                                                         std::int64_t extent) {
  // Without a short cut, which would make a kernel wait for one field before it asks for the next.
  return (static_cast<int>(desc.tokens == 0) |
          static_cast<int>(desc.token_offset + desc.tokens <= extent)) != 0;
}

// The row's parents, or null for a chain.
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline const std::int32_t* row_parents(const CacheTable& table,
                                                                           std::int64_t row) {
  return table.forward.rows[row].tree != 0 ? table.forward.parents + row * table.max_step_tokens
                                           : nullptr;
}
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline std::int32_t parent_of(const std::int32_t* parents,
                                                                  std::int32_t token) {
  return parents != nullptr ? parents[token] : token - 1;
}

// --- commit

// Why what is accepted of a row is refused; the first that holds.
enum class AcceptFault : std::uint8_t {
  kNone,
  kRefused,      // the row was refused in this forward
  kCount,        // not 0 to T
  kPartPrompt,   // a prompt is accepted whole
  kOverwritten,  // conventional decoding: none, after T_max tokens overwrote the state
  kNodeStride,   // more nodes than a row of `nodes` holds
  kPath,         // the nodes are no path from a root
};

[[nodiscard]] REPLAYSSM_HOST_DEVICE inline std::int32_t accepted_tokens(const Accepted& accepted,
                                                                        const RowDescriptor& desc,
                                                                        std::int64_t row) {
  return accepted.tokens != nullptr ? accepted.tokens[row] : desc.tokens;
}
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline std::int64_t node_stride(const CacheTable& table,
                                                                    const Accepted& accepted) {
  return accepted.node_stride != 0 ? accepted.node_stride : table.max_step_tokens;
}
// The i-th accepted index of the row; without nodes a row accepts its first tokens.
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline std::int32_t accepted_node(const CacheTable& table,
                                                                      const Accepted& accepted,
                                                                      std::int64_t row,
                                                                      std::int32_t i) {
  return accepted.nodes != nullptr ? accepted.nodes[row * node_stride(table, accepted) + i] : i;
}

// Copies accepted nodes to `path` as long as each is a child of the one before; returns how many.
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline std::int32_t take_path(const CacheTable& table,
                                                                  const Accepted& accepted,
                                                                  std::int64_t row,
                                                                  std::int32_t count,
                                                                  std::int32_t* path) {
  const RowDescriptor& desc = table.forward.rows[row];
  const std::int32_t* parents = row_parents(table, row);
  std::int32_t previous = -1;
  for (std::int32_t i = 0; i < count; ++i) {
    const std::int32_t node = accepted_node(table, accepted, row, i);
    if (node <= previous || node >= desc.tokens || parent_of(parents, node) != previous) return i;
    path[i] = previous = node;
  }
  return count;
}

// A conventional step of T_max tokens has overwritten the state it started from, unless that was
// shared or counted as 0.
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline bool step_overwrites(const CacheTable& table,
                                                                const RowDescriptor& desc) {
  return desc.kind == RowKind::kStep && table.decode == DecodeMode::kConventional &&
         desc.tokens == table.max_step_tokens && desc.zero == 0 &&
         desc.target_block == desc.source_block;
}

// Of a row that is not padding and whose slot is not leaving. `path` has room for kMaxStepTokens
// and holds the accepted nodes of a step row afterwards.
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline AcceptFault accept_fault(const CacheTable& table,
                                                                    const Accepted& accepted,
                                                                    std::int64_t row,
                                                                    std::int32_t* path) {
  const RowDescriptor& desc = table.forward.rows[row];
  if (desc.refused != 0) return AcceptFault::kRefused;
  const std::int32_t count = accepted_tokens(accepted, desc, row);
  if (count < 0 || count > desc.tokens) return AcceptFault::kCount;
  if (desc.kind == RowKind::kPrefill)
    return count == desc.tokens ? AcceptFault::kNone : AcceptFault::kPartPrompt;
  if (count == 0 && step_overwrites(table, desc)) return AcceptFault::kOverwritten;
  if (accepted.nodes != nullptr && count > node_stride(table, accepted))
    return AcceptFault::kNodeStride;
  return take_path(table, accepted, row, count, path) < count ? AcceptFault::kPath
                                                              : AcceptFault::kNone;
}

// What commit makes of a row's slot.
struct RowOutcome {
  std::int64_t position = 0;
  std::int32_t committed = 0;
  std::int32_t conv_valid = 0;
  std::int32_t snapshot = 0;
  std::uint8_t zero = 0;
  bool takes_target = false;  // the slot owns target_block alone from now on
  bool gives_back = false;    // target_block was set aside in vain
};

// What is left to do about target_block is the caller's.
REPLAYSSM_HOST_DEVICE inline void write_cursors(const SlotTable& slots, std::int64_t slot,
                                                const RowOutcome& after) {
  slots.position[slot] = after.position;
  slots.committed[slot] = after.committed;
  slots.conv_valid[slot] = after.conv_valid;
  slots.snapshot[slot] = after.snapshot;
  slots.zero[slot] = after.zero;
}

// `count` tokens of the row are accepted, which is legal; `last`: the newest of them.
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline RowOutcome accept_row(const CacheTable& table,
                                                                 const RowDescriptor& desc,
                                                                 std::int32_t count,
                                                                 std::int32_t last) {
  const SlotTable& slots = table.slots;
  RowOutcome after;
  after.position = slots.position[desc.slot] + count;
  after.committed = slots.committed[desc.slot];
  after.snapshot = slots.snapshot[desc.slot];
  after.zero = slots.zero[desc.slot];
  const std::int64_t valid = std::int64_t{slots.conv_valid[desc.slot]} + count;
  after.conv_valid =
      valid < table.conv_history ? static_cast<std::int32_t>(valid) : table.conv_history;
  if (desc.kind == RowKind::kPrefill) {
    if (desc.tokens == 0) return after;
    after.takes_target = true;
    after.committed = 0;
    after.zero = 0;
  } else if (table.decode == DecodeMode::kReplay) {
    after.committed = desc.committed + count;
  } else if (count > 0) {
    after.takes_target = true;
    after.snapshot = (desc.snapshot + 1 + last) % table.max_step_tokens;
    after.zero = 0;
  } else {
    after.gives_back = true;
  }
  return after;
}

// Whether a row that ends without a commit, after some layer has run, leaves a slot that is torn:
// what was overwritten is lost, unless it counts as 0 all the same. Of a row that has not folded;
// one that has is whole: a step by replay writes no state.
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline bool leaving_tears(const CacheTable& table,
                                                              const RowDescriptor& desc) {
  if (desc.tokens == 0) return false;
  // A prompt writes its conv history at least in place.
  if (desc.kind == RowKind::kPrefill) return desc.zero == 0 || desc.committed != 0;
  return step_overwrites(table, desc);
}

}  // namespace replayssm
