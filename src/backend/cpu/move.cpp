// Moves of whole slots: fork's copies, materialize, load_state, store_state.
#include <algorithm>
#include <cstring>

#include "backend/cpu/access.hpp"
#include "backend/cpu/records_copy.hpp"
#include "backend/cpu/replay_head.hpp"
#include "backend/cpu/rooms.hpp"
#include "backend/cpu/vec.hpp"
#include "core/export_order.hpp"
#include "core/text.hpp"
#include "math/law_slots.hpp"

namespace replayssm::cpu {

void copy_records(const CacheTable& table, std::int64_t source, std::int64_t target,
                  std::int32_t records) {
  if (records == 0) return;
  for (std::int32_t number = 0; number < table.layer_count; ++number) {
    const LayerTable& layer = table.layers[number];
    for (const RecordPart& part : record_parts(layer.shape, table.activations, table.update)) {
      const TensorMemory& memory = memory_of(layer, part.role);
      for (std::int64_t piece = 0; piece < part.pieces; ++piece) {
        for (std::int32_t j = 0; j < records; ++j) {
          const std::int64_t from = piece * table.ring + slot_order(table, source)[j];
          const std::int64_t to = piece * table.ring + slot_order(table, target)[j];
          std::memcpy(element(memory, target, to * part.bytes),
                      element(memory, source, from * part.bytes),
                      static_cast<std::size_t>(part.bytes));
        }
      }
    }
  }
}

std::int32_t copy_conv(const CacheTable& table, std::int64_t source, std::int64_t target,
                       std::int32_t drop) {
  const std::int32_t valid = std::max(table.slots.conv_valid[source] - drop, 0);
  for (std::int32_t number = 0; number < table.layer_count && valid > 0; ++number) {
    const LayerTable& layer = table.layers[number];
    if (layer.shape.conv_channels == 0) continue;
    const std::int64_t bytes =
        layer.shape.conv_channels * static_cast<std::int64_t>(dtype_bytes(table.activations));
    for (std::int32_t j = 0; j < valid; ++j) {
      const std::int32_t newest = table.conv_history - 1 - j;
      std::memcpy(element(layer.conv, target, conv_order(table, target)[newest] * bytes),
                  element(layer.conv, source, conv_order(table, source)[newest - drop] * bytes),
                  static_cast<std::size_t>(bytes));
    }
  }
  return valid;
}

namespace {

Status check_materialize(const CacheTable& table, std::span<const MaterializeItem> items,
                         std::size_t index) {
  const MaterializeItem& item = items[index];
  const SlotTable& slots = table.slots;
  for (const std::int64_t slot : {item.source, item.target}) {
    if (slot < 0 || slot >= slots.slots || slots.live[slot] == 0) {
      return error(StatusCode::kOutOfRange, "materialize: slot ", slot, " is not acquired");
    }
    if ((slots.error[slot] & kSlotTorn) != 0) {
      return failed_precondition("materialize: slot ", slot, " is torn; only release is legal");
    }
  }
  if (!is_fresh(table, item.target)) {
    return failed_precondition("materialize: the target slot ", item.target, " must be fresh");
  }
  for (std::size_t other = 0; other < items.size(); ++other) {
    if (item.target == items[other].source ||
        (other != index && item.target == items[other].target)) {
      return invalid_argument("materialize: slot ", item.target,
                              " is the target of one item and named by another");
    }
  }
  if (!position_is_kept(table, item.source, item.position)) {
    return error(StatusCode::kOutOfRange, "materialize: position must be ",
                 slots.position[item.source] - slots.committed[item.source], " to ",
                 slots.position[item.source], " (the checkpoint and the end of slot ", item.source,
                 "), given ", item.position);
  }
  std::int32_t width = 1;
  for (std::int32_t i = 0; i < table.layer_count; ++i) {
    const LayerShape& shape = table.layers[i].shape;
    if (shape.conv_channels > 0) width = std::max(width, shape.conv_width);
  }
  const std::int64_t back = slots.position[item.source] - item.position;
  if (!conv_is_kept(table, back, width)) {
    return failed_precondition(
        "materialize: conv inputs behind position ", item.position,
        " are not kept; create the cache with materialize_history to reach every position");
  }
  return {};
}

HeadSource logical_state(const CacheTable& table, std::int64_t slot, std::int32_t records) {
  HeadSource source;
  source.slot = slot;
  source.block = table.slots.block[slot];
  source.snapshot = table.slots.snapshot[slot];
  source.zero = table.slots.zero[slot] != 0;
  source.order = slot_order(table, slot);
  source.records = records;
  return source;
}

}  // namespace

Status materialize_slots(const Context& context, CacheTable& table,
                         std::span<const MaterializeItem> items) {
  for (std::size_t i = 0; i < items.size(); ++i)
    REPLAYSSM_RETURN_IF_ERROR(check_materialize(table, items, i));
  SlotTable& slots = table.slots;
  for (const MaterializeItem& item : items) {
    const std::int64_t back = slots.position[item.source] - item.position;
    const auto records = static_cast<std::int32_t>(slots.committed[item.source] - back);
    for (std::int32_t number = 0; number < table.layer_count; ++number) {
      const LayerTable& layer = table.layers[number];
      parallel(context, layer.shape.heads, [&](std::int64_t head, int worker) {
        (void)replay_head(*context.level, table, layer, logical_state(table, item.source, records),
                          static_cast<std::int32_t>(head), context.arena(worker),
                          head_state(layer, slots.block[item.target], 0, head));
      });
    }
    slots.conv_valid[item.target] =
        copy_conv(table, item.source, item.target, static_cast<std::int32_t>(back));
    slots.position[item.target] = item.position;
    slots.seed[item.target] = slots.seed[item.source];
    slots.error[item.target] |= errors_of_state(slots.error[item.source]);
    slots.zero[item.target] = slots.zero[item.source] != 0 && records == 0 ? 1 : 0;
  }
  return {};
}

namespace {

// Element [head, v, k] of a caller's state tensor, in bytes from its start.
std::int64_t state_offset(const LayerState& state, std::int64_t head, std::int64_t v,
                          std::int64_t k) {
  const auto& stride = state.state.stride;
  const std::int64_t inner =
      state.key_major ? k * stride[1] + v * stride[2] : v * stride[1] + k * stride[2];
  return (head * stride[0] + inner) * static_cast<std::int64_t>(dtype_bytes(state.state.dtype));
}

void copy_in_row(const LayerState& state, std::int64_t head, std::int64_t v, std::int32_t keys,
                 float* row) {
  const auto* base = static_cast<const std::byte*>(state.state.data);
  for (std::int32_t k = 0; k < keys; ++k) {
    row[k] = load_one(base + state_offset(state, head, v, k), state.state.dtype);
  }
}

void copy_out_row(const LayerState& state, std::int64_t head, std::int64_t v, std::int32_t keys,
                  const float* row) {
  auto* base = static_cast<std::byte*>(state.state.data);
  for (std::int32_t k = 0; k < keys; ++k) {
    store(row + k, 1, base + state_offset(state, head, v, k), state.state.dtype);
  }
}

}  // namespace

void load_slot(const Context& context, CacheTable& table, std::int64_t slot, std::int64_t position,
               std::span<const LayerState> layers) {
  SlotTable& slots = table.slots;
  bool any_conv = false;
  for (const LayerState& state : layers) any_conv = any_conv || state.conv.present();
  for (std::int32_t number = 0; number < table.layer_count; ++number) {
    const LayerTable& layer = table.layers[number];
    const LayerState& state = layers[static_cast<std::size_t>(number)];
    const LayerShape& shape = layer.shape;
    parallel(context, shape.heads, [&](std::int64_t head, int /*worker*/) {
      float* target = head_state(layer, slots.block[slot], 0, head);
      for (std::int32_t v = 0; v < shape.value_dim; ++v) {
        copy_in_row(state, head, v, shape.key_dim, target + std::int64_t{v} * shape.key_dim);
      }
    });
    if (shape.conv_channels == 0 || !any_conv) continue;
    const std::int64_t bytes =
        shape.conv_channels * static_cast<std::int64_t>(dtype_bytes(table.activations));
    // The history of all layers is as long as the widest one's; what a narrower layer lacks counts
    // as 0.
    for (std::int32_t j = 0; j < table.conv_history; ++j) {
      std::byte* target =
          element(layer.conv, slot, conv_order(table, slot)[table.conv_history - 1 - j] * bytes);
      if (state.conv.present() && j < shape.conv_width - 1) {
        std::memcpy(target, at(state.conv, shape.conv_width - 2 - j, 0),
                    static_cast<std::size_t>(bytes));
      } else {
        std::memset(target, 0, static_cast<std::size_t>(bytes));
      }
    }
  }
  slots.snapshot[slot] = 0;
  slots.zero[slot] = 0;
  slots.position[slot] = position;
  slots.conv_valid[slot] = any_conv ? table.conv_history : 0;
}

void store_slot(const Context& context, const CacheTable& table, std::int64_t slot,
                std::span<const LayerState> layers) {
  for (std::int32_t number = 0; number < table.layer_count; ++number) {
    const LayerTable& layer = table.layers[number];
    const LayerState& state = layers[static_cast<std::size_t>(number)];
    const LayerShape& shape = layer.shape;
    parallel(context, shape.heads, [&](std::int64_t head, int worker) {
      Arena arena = context.arena(worker);
      float* logical = arena.take(std::int64_t{shape.value_dim} * shape.key_dim);
      (void)replay_head(*context.level, table, layer,
                        logical_state(table, slot, table.slots.committed[slot]),
                        static_cast<std::int32_t>(head), arena, logical);
      for (std::int32_t v = 0; v < shape.value_dim; ++v) {
        copy_out_row(state, head, v, shape.key_dim, logical + std::int64_t{v} * shape.key_dim);
      }
    });
    if (!state.conv.present()) continue;
    const std::int64_t bytes =
        shape.conv_channels * static_cast<std::int64_t>(dtype_bytes(table.activations));
    for (std::int32_t j = 0; j < shape.conv_width - 1; ++j) {
      void* target = at(state.conv, shape.conv_width - 2 - j, 0);
      if (j < table.slots.conv_valid[slot]) {
        const std::int64_t index = conv_order(table, slot)[table.conv_history - 1 - j];
        std::memcpy(target, element(layer.conv, slot, index * bytes),
                    static_cast<std::size_t>(bytes));
      } else {
        std::memset(target, 0, static_cast<std::size_t>(bytes));
      }
    }
  }
}

}  // namespace replayssm::cpu
