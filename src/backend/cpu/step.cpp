// The replay step: one pass over the checkpoint, the ring for the rest, records written, state not.
#include <algorithm>
#include <cstring>

#include "backend/cpu/access.hpp"
#include "backend/cpu/rooms.hpp"

namespace replayssm::cpu {
namespace {

// Value heads of one key head that an item takes: they share the dot products of keys, so a few
// belong together, but a layer with one group must still spread over the threads.
constexpr std::int32_t kHeadsPerItem = 8;

}  // namespace

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
  const std::int32_t heads_per_group = shape.heads / shape.groups;
  const std::int32_t chunks = (heads_per_group + kHeadsPerItem - 1) / kHeadsPerItem;
  const std::int64_t items_per_row = std::int64_t{shape.groups} * chunks;
  parallel(context, table.forward.count * items_per_row, [&](std::int64_t index, int worker) {
    StepItem item;
    item.row = index / items_per_row;
    const RowDescriptor& desc = table.forward.rows[item.row];
    if (desc.kind != RowKind::kStep || desc.tokens == 0) return;
    const auto within = static_cast<std::int32_t>(index % items_per_row);
    const std::int32_t chunk = within % chunks;
    item.group = within / chunks;
    item.head_begin = item.group * heads_per_group + chunk * kHeadsPerItem;
    item.head_end = std::min(item.head_begin + kHeadsPerItem, (item.group + 1) * heads_per_group);
    item.first_of_group = chunk == 0;
    if (shape.rule == Rule::kMamba2) {
      step_mamba2_item(*context.level, table, inputs, item, context.arena(worker));
    } else {
      step_delta_item(*context.level, table, inputs, item, context.arena(worker));
    }
  });
}

}  // namespace replayssm::cpu
