// The replay step: one pass over the checkpoint, the ring for the rest, records written, state not.
#include <algorithm>
#include <cstring>

#include "backend/cpu/access.hpp"
#include "backend/cpu/rooms.hpp"

namespace replayssm::cpu {
void zero_padding(const CacheTable& table, const TensorView& out) {
  if (!out.present()) return;
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(out.dtype));
  const std::int64_t middle = out.rank == 3 ? out.shape[1] : 1;
  const std::int64_t last = out.rank == 3 ? out.shape[2] : out.shape[1];
  for (std::int64_t row = 0; row < table.forward.count; ++row) {
    const RowDescriptor& desc = table.forward.rows[row];
    if (desc.kind != RowKind::kPadding) continue;
    for (std::int32_t token = 0; token < desc.tokens; ++token) {
      for (std::int64_t i = 0; i < middle; ++i) {
        std::memset(at(out, desc.token_offset + token, out.rank == 3 ? i : 0), 0,
                    static_cast<std::size_t>(last * bytes));
      }
    }
  }
}

void step_replay(const Context& context, CacheTable& table, const LayerInputs& inputs) {
  const LayerShape& shape = table.layers[inputs.layer].shape;
  zero_padding(table, inputs.out);
  const std::int32_t per_group = shape.heads / shape.groups;
  // An item is a run of heads of one row: a part of a group, or several whole ones.
  const std::int32_t most = heads_per_item(context, table.forward.count * shape.heads);
  const std::int32_t per_item = per_group >= most ? most : most / per_group * per_group;
  const std::int32_t parts = per_group >= most ? (per_group + per_item - 1) / per_item : 0;
  const std::int64_t items_per_row =
      parts > 0 ? std::int64_t{shape.groups} * parts : (shape.heads + per_item - 1) / per_item;
  const std::int64_t items = table.forward.count * items_per_row;
  const auto first_head = [&](std::int64_t within) {
    return static_cast<std::int32_t>(
        parts > 0 ? within / parts * per_group + within % parts * per_item : within * per_item);
  };
  parallel(context, items, [&](std::int64_t index, int worker) {
    const std::int64_t row = index / items_per_row;
    const RowDescriptor& desc = table.forward.rows[row];
    if (desc.kind != RowKind::kStep || desc.tokens == 0) return;
    const std::int64_t within = index % items_per_row;
    const std::int32_t begin = first_head(within);
    const std::int32_t end = parts > 0
                                 ? std::min(begin + per_item, (begin / per_group + 1) * per_group)
                                 : std::min(begin + per_item, shape.heads);
    StepHead later;  // workers that keep pace take turns
    if (index + context.threads.workers < items) {
      const std::int64_t other = index + context.threads.workers;
      later = {other / items_per_row, first_head(other % items_per_row)};
    }
    StepItem item;
    item.row = row;
    for (item.head_begin = begin; item.head_begin < end; item.head_begin = item.head_end) {
      item.group = item.head_begin / per_group;
      item.head_end = std::min((item.group + 1) * per_group, end);
      item.first_of_group = item.head_begin == item.group * per_group;
      item.next = item.head_end < end ? StepHead{row, item.head_end} : later;
      if (shape.rule == Rule::kMamba2) {
        step_mamba2_item(*context.level, table, inputs, item, context.arena(worker));
      } else {
        step_delta_item(*context.level, table, inputs, item, context.arena(worker));
      }
    }
  });
}

}  // namespace replayssm::cpu
