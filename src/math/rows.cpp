// Messages of what law_rows.hpp refuses.
#include "math/rows.hpp"

#include "core/text.hpp"
#include "math/law_rows.hpp"

namespace replayssm {
namespace {

Status refuse_row(const CacheTable& table, const Rows& rows, std::int64_t row,
                  const RowsBefore& before, RowFault fault) {
  const std::int64_t slot = rows.slots[row];
  const std::int32_t tokens = row_tokens(rows, row);
  const bool prefill = is_prefill(rows, row);
  switch (fault) {
    case RowFault::kNone: break;
    case RowFault::kTokens:
      return invalid_argument("row ", row, ": ",
                              prefill ? "a prefill row takes 0 to max_tokens = "
                                      : "a step row takes 0 to max_step_tokens = ",
                              most_tokens(table, prefill), " tokens, given ", tokens);
    case RowFault::kSlot:
      return error(StatusCode::kOutOfRange, "row ", row, ": slot must be 0 to ",
                   table.slots.slots - 1, " or the padding id ", rows.padding_slot, ", given ",
                   slot);
    case RowFault::kNotHeld:
      return failed_precondition("row ", row, ": slot ", slot, " is not acquired");
    case RowFault::kTorn:
      return failed_precondition("row ", row, ": slot ", slot,
                                 " is torn by an abandoned forward; only release is legal");
    case RowFault::kOffset:
      return invalid_argument("row ", row, ": offset must be at least ", before.end,
                              ", the end of the row before, and at most max_tokens, given ",
                              rows.offsets[row]);
    case RowFault::kFull:
      // Of its parents too: behind legal rows alone, they never end later than its tokens.
      return error(StatusCode::kResourceExhausted, "row ", row, " ends at token ",
                   row_offset(rows, row, before) + tokens, ", the cache was created for at most ",
                   table.max_tokens, " tokens of one forward (max_tokens)");
    case RowFault::kParent: {
      const std::int32_t* parents = rows.parents + before.packed;
      const std::int32_t i = first_wrong_parent(parents, tokens);
      return invalid_argument("row ", row, ": the parent of token ", i, " must be -1 to ", i - 1,
                              ", given ", parents[i]);
    }
    case RowFault::kTwice:
      return invalid_argument("rows ", table.slots.row[slot], " and ", row, " both name slot ",
                              slot, "; a slot may appear once in a batch");
  }
  return {};
}

Status refuse_accept(const CacheTable& table, const Accepted& accepted, std::int64_t row,
                     std::int32_t* path, AcceptFault fault) {
  const RowDescriptor& desc = table.forward.rows[row];
  const std::int32_t count = accepted_tokens(accepted, desc, row);
  switch (fault) {
    case AcceptFault::kNone: break;
    case AcceptFault::kRefused:
      return failed_precondition("row ", row,
                                 ": was refused in this forward, see its slot's error "
                                 "word; abort the forward");
    case AcceptFault::kCount:
      return invalid_argument("row ", row, ": accepted tokens must be 0 to ", desc.tokens,
                              ", given ", count);
    case AcceptFault::kPartPrompt:
      return failed_precondition("row ", row, ": a prefilled row is accepted whole: required ",
                                 desc.tokens, ", given ", count);
    case AcceptFault::kOverwritten:
      return failed_precondition(
          "row ", row, ": conventional decoding has overwritten the state with ", desc.tokens,
          " of max_step_tokens = ", table.max_step_tokens,
          " tokens; at least one must be accepted (decode by replay to accept none)");
    case AcceptFault::kNodeStride:
      return invalid_argument("row ", row, ": required node_stride of at least the ", count,
                              " accepted nodes, given ", node_stride(table, accepted));
    case AcceptFault::kPath: {
      const std::int32_t i = take_path(table, accepted, row, count, path);
      return invalid_argument("row ", row, ": accepted nodes must form one path from a root: node ",
                              i, " is ", accepted_node(table, accepted, row, i),
                              ", required a child of ", i > 0 ? path[i - 1] : -1, " below ",
                              desc.tokens,
                              accepted.nodes == nullptr ? " (no nodes were given for a tree)" : "");
    }
  }
  return {};
}

}  // namespace

Status check_rows(CacheTable& table, const Rows& rows) {
  // Marks rows on the way, so that a slot named twice is found in one pass.
  Status status;
  RowsBefore before;
  std::int64_t row = 0;
  for (; row < rows.count; ++row) {
    RowFault fault = row_fault(table, rows, row, before);
    const std::int64_t slot = rows.slots[row];
    if (fault == RowFault::kNone && slot != rows.padding_slot) {
      if (table.slots.row[slot] >= 0) {
        fault = RowFault::kTwice;
      } else {
        table.slots.row[slot] = row;
      }
    }
    if (fault != RowFault::kNone) {
      status = refuse_row(table, rows, row, before, fault);
      break;
    }
    before = behind_legal_row(rows, row, before);
  }
  if (status.ok()) return status;
  while (row-- > 0) {
    if (rows.slots[row] != rows.padding_slot) table.slots.row[rows.slots[row]] = -1;
  }
  return status;
}

Status check_accepted(const CacheTable& table, const Accepted& accepted) {
  std::int32_t path[kMaxStepTokens];
  for (std::int64_t row = 0; row < table.forward.count; ++row) {
    const RowDescriptor& desc = table.forward.rows[row];
    if (desc.kind == RowKind::kPadding || table.slots.leaving[desc.slot] != 0) continue;
    const AcceptFault fault = accept_fault(table, accepted, row, path);
    if (fault != AcceptFault::kNone) return refuse_accept(table, accepted, row, path, fault);
  }
  return {};
}

}  // namespace replayssm
