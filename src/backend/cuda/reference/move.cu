// Moves of whole slots: fork's copies, materialize, load_state, store_state. What the contents of
// the cursors forbid is refused on the device: the target is marked kSlotOutOfRange and stays as it
// was.
#include <algorithm>
#include <array>

#include "backend/cuda/common/launch.cuh"
#include "backend/cuda/reference/rooms.hpp"
#include "backend/cuda/reference/warp.cuh"

namespace replayssm::cuda {
namespace {

constexpr unsigned kThreads = 256;

__device__ void copy_bytes(char* to, const char* from, std::int64_t bytes) {
  for (std::int64_t i = threadIdx.x; i < bytes; i += blockDim.x) to[i] = from[i];
}

// The first `records` committed records of `source` into the first places of `target`, for the
// parts of one head (and of its group, where the head is the group's first).
__device__ void copy_records(const CacheTable& table, const LayerTable& layer, std::int64_t source,
                             std::int64_t target, std::int32_t head, std::int32_t records) {
  const LayerShape& shape = layer.shape;
  const Records from = {table, layer, source};
  const Records to = {table, layer, target};
  const std::int32_t per_group = shape.heads / shape.groups;
  const std::int32_t group = head / per_group;
  const auto act = static_cast<std::int64_t>(dtype_bytes(table.activations));
  const bool delta = shape.rule != Rule::kMamba2;
  const std::int64_t gate_bytes = static_cast<std::int64_t>(dtype_bytes(from.gate_dtype())) *
                                  (shape.rule == Rule::kKda ? shape.key_dim : 1);
  for (std::int32_t j = 0; j < records; ++j) {
    const std::int64_t a = slot_order(table, source)[j];
    const std::int64_t b = slot_order(table, target)[j];
    copy_bytes(to.value(head, b), from.value(head, a), shape.value_dim * act);
    copy_bytes(to.gate(head, b), from.gate(head, a), gate_bytes);
    if (delta) {
      copy_bytes(to.update(head, b), from.update(head, a),
                 shape.value_dim * static_cast<std::int64_t>(dtype_bytes(table.update)));
      copy_bytes(reinterpret_cast<char*>(to.beta(head, b)),
                 reinterpret_cast<const char*>(from.beta(head, a)), 4);
    }
    if (head % per_group != 0) continue;
    copy_bytes(to.key(group, b), from.key(group, a), shape.key_dim * act);
    if (delta) {
      copy_bytes(reinterpret_cast<char*>(to.inv_norm(group, b)),
                 reinterpret_cast<const char*>(from.inv_norm(group, a)), 4);
    }
  }
}

// Conv inputs at history places shifted so that the `drop` newest are left out.
__device__ void copy_conv(const CacheTable& table, const LayerTable& layer, std::int64_t source,
                          std::int64_t target, std::int32_t drop, std::int32_t valid) {
  const std::int64_t bytes =
      layer.shape.conv_channels * static_cast<std::int64_t>(dtype_bytes(table.activations));
  for (std::int32_t j = 0; j < valid; ++j) {
    const std::int32_t newest = table.conv_history - 1 - j;
    copy_bytes(element(layer.conv, target, conv_order(table, target)[newest] * bytes),
               element(layer.conv, source, conv_order(table, source)[newest - drop] * bytes),
               bytes);
  }
}

// One block a head, and one for the conv ring.
__global__ void __launch_bounds__(kThreads)
    copy_slot_kernel(const __grid_constant__ Tables tables,
                     const __grid_constant__ LayerTable layer, std::int64_t source,
                     std::int64_t target) {
  const CacheTable& table = tables.table;
  const SlotTable& slots = table.slots;
  // A fork that was refused on the device has left the target as it was.
  if (slots.live[source] == 0 || slots.live[target] == 0 ||
      slots.block[source] != slots.block[target])
    return;
  const auto head = static_cast<std::int32_t>(blockIdx.x);
  if (head < layer.shape.heads) {
    copy_records(table, layer, source, target, head, slots.committed[source]);
  } else if (layer.shape.conv_channels > 0) {
    copy_conv(table, layer, source, target, 0, slots.conv_valid[source]);
  }
}

constexpr int kItemsPerLaunch = 64;
struct Items {
  std::int32_t count;
  std::array<MaterializeItem, kItemsPerLaunch> item;
};

// `width`: the widest convolution.
__global__ void check_items_kernel(const __grid_constant__ Tables tables,
                                   const __grid_constant__ Items items, std::int32_t width,
                                   bool first) {
  const CacheTable& table = tables.table;
  const SlotTable& slots = table.slots;
  if (first) tables.words->materialize_refused = 0;
  for (std::int32_t i = 0; i < items.count; ++i) {
    const MaterializeItem& item = items.item[i];
    const std::int64_t back = slots.position[item.source] - item.position;
    const bool legal =
        slots.live[item.source] != 0 && (slots.error[item.source] & kSlotTorn) == 0 &&
        is_fresh(table, item.target) && position_is_kept(table, item.source, item.position) &&
        conv_is_kept(table, back, width);
    if (legal) continue;
    tables.words->materialize_refused = 1;
    ++tables.words->refused;
    if (slots.live[item.target] != 0) mark_slot(table, item.target, kSlotOutOfRange);
  }
}

__global__ void __launch_bounds__(kThreads)
    materialize_kernel(const __grid_constant__ Tables tables,
                       const __grid_constant__ LayerTable layer,
                       const __grid_constant__ Items items) {
  const CacheTable& table = tables.table;
  const SlotTable& slots = table.slots;
  if (tables.words->materialize_refused != 0) return;
  const MaterializeItem& item = items.item[blockIdx.x / (layer.shape.heads + 1)];
  const auto head = static_cast<std::int32_t>(blockIdx.x % (layer.shape.heads + 1));
  const auto back = static_cast<std::int32_t>(slots.position[item.source] - item.position);
  if (head == layer.shape.heads) {
    const std::int32_t valid = max(slots.conv_valid[item.source] - back, 0);
    if (layer.shape.conv_channels > 0)
      copy_conv(table, layer, item.source, item.target, back, valid);
    return;
  }
  const HeadTokens tokens(table, layer, nullptr, item.source, head);
  const HeadSource source = {slots.block[item.source], slots.snapshot[item.source],
                             slots.zero[item.source] != 0, slot_order(table, item.source),
                             slots.committed[item.source] - back};
  float* target = head_state(layer, slots.block[item.target], 0, head);
  const std::int32_t keys = layer.shape.key_dim;
  each_row(layer.shape.value_dim, [&](std::int32_t v) {
    lane_store(target + std::int64_t{v} * keys, keys, replay_row(tokens, source, v));
  });
}

__global__ void finish_items_kernel(const __grid_constant__ Tables tables,
                                    const __grid_constant__ Items items) {
  const SlotTable& slots = tables.table.slots;
  if (tables.words->materialize_refused != 0) return;
  for (std::int32_t i = 0; i < items.count; ++i) {
    const MaterializeItem& item = items.item[i];
    const auto back = static_cast<std::int32_t>(slots.position[item.source] - item.position);
    const std::int32_t records = slots.committed[item.source] - back;
    slots.conv_valid[item.target] = max(slots.conv_valid[item.source] - back, 0);
    slots.position[item.target] = item.position;
    slots.seed[item.target] = slots.seed[item.source];
    mark_slot(tables.table, item.target, errors_of_state(slots.error[item.source]));
    slots.zero[item.target] = slots.zero[item.source] != 0 && records == 0 ? 1 : 0;
  }
}

// Where element [head, v, k] of a caller's state tensor stands.
__device__ std::int64_t state_index(const LayerState& state, std::int64_t head, std::int64_t v,
                                    std::int64_t k) {
  const auto& stride = state.state.stride;
  return head * stride[0] +
         (state.key_major ? k * stride[1] + v * stride[2] : v * stride[1] + k * stride[2]);
}

__global__ void __launch_bounds__(kThreads)
    load_kernel(const __grid_constant__ Tables tables, const __grid_constant__ LayerTable layer,
                std::int64_t slot, const __grid_constant__ LayerState state, bool any_conv) {
  const CacheTable& table = tables.table;
  const LayerShape& shape = layer.shape;
  if (!is_fresh(table, slot)) return;
  const auto head = static_cast<std::int32_t>(blockIdx.x);
  if (head < shape.heads) {
    float* target = head_state(layer, table.slots.block[slot], 0, head);
    const std::int64_t keys = shape.key_dim;
    for (std::int64_t i = threadIdx.x; i < shape.value_dim * keys; i += blockDim.x)
      target[i] = load_float(state.state.data, state.state.dtype,
                             state_index(state, head, i / keys, i % keys));
    return;
  }
  if (shape.conv_channels == 0 || !any_conv) return;
  const std::int64_t bytes =
      shape.conv_channels * static_cast<std::int64_t>(dtype_bytes(table.activations));
  // The history of all layers is as long as the widest one's; what a narrower layer lacks counts
  // as 0.
  for (std::int32_t j = 0; j < table.conv_history; ++j) {
    char* target =
        element(layer.conv, slot, conv_order(table, slot)[table.conv_history - 1 - j] * bytes);
    const bool given = state.conv.data != nullptr && j < shape.conv_width - 1;
    const char* source = given ? at(state.conv, shape.conv_width - 2 - j, 0) : nullptr;
    for (std::int64_t i = threadIdx.x; i < bytes; i += blockDim.x)
      target[i] = given ? source[i] : static_cast<char>(0);
  }
}

__global__ void finish_load_kernel(const __grid_constant__ Tables tables, std::int64_t slot,
                                   std::int64_t position, bool any_conv) {
  const CacheTable& table = tables.table;
  const SlotTable& slots = table.slots;
  if (!is_fresh(table, slot)) {
    ++tables.words->refused;
    if (slots.live[slot] != 0) mark_slot(table, slot, kSlotOutOfRange);
    return;
  }
  slots.snapshot[slot] = 0;
  slots.zero[slot] = 0;
  slots.position[slot] = position;
  slots.conv_valid[slot] = any_conv ? table.conv_history : 0;
}

__global__ void __launch_bounds__(kThreads)
    store_kernel(const __grid_constant__ Tables tables, const __grid_constant__ LayerTable layer,
                 std::int64_t slot, const __grid_constant__ LayerState state) {
  const CacheTable& table = tables.table;
  const SlotTable& slots = table.slots;
  const LayerShape& shape = layer.shape;
  if (slots.live[slot] == 0) return;
  const auto head = static_cast<std::int32_t>(blockIdx.x);
  if (head < shape.heads) {
    const HeadTokens tokens(table, layer, nullptr, slot, head);
    const HeadSource source = {slots.block[slot], slots.snapshot[slot], slots.zero[slot] != 0,
                               slot_order(table, slot), slots.committed[slot]};
    each_row(shape.value_dim, [&](std::int32_t v) {
      const LaneRow row = replay_row(tokens, source, v);
      each_k(shape.key_dim, [&](int i, int k) {
        store_float(state.state.data, state.state.dtype, state_index(state, head, v, k), row.at[i]);
      });
    });
    return;
  }
  if (state.conv.data == nullptr) return;
  const std::int64_t bytes =
      shape.conv_channels * static_cast<std::int64_t>(dtype_bytes(table.activations));
  for (std::int32_t j = 0; j < shape.conv_width - 1; ++j) {
    char* target = at(state.conv, shape.conv_width - 2 - j, 0);
    const bool exists = j < slots.conv_valid[slot];
    const char* source =
        exists
            ? element(layer.conv, slot, conv_order(table, slot)[table.conv_history - 1 - j] * bytes)
            : nullptr;
    for (std::int64_t i = threadIdx.x; i < bytes; i += blockDim.x)
      target[i] = exists ? source[i] : static_cast<char>(0);
  }
}

std::int64_t head_blocks(const LayerTable& layer) { return std::int64_t{layer.shape.heads} + 1; }

}  // namespace

Status copy_slot(const Tables& tables, const LayerTable& layer, std::int64_t source,
                 std::int64_t target, void* stream) {
  return launch("fork copies", copy_slot_kernel, {head_blocks(layer), kThreads, 0, stream}, tables,
                layer, source, target);
}

Status materialize_slots(const Tables& tables, std::span<const LayerTable> layers,
                         std::span<const MaterializeItem> items, void* stream) {
  std::int32_t width = 1;
  for (const LayerTable& layer : layers) width = std::max(width, layer.shape.conv_width);
  const auto each = [&](auto&& body) {
    for (std::size_t first = 0; first < items.size(); first += kItemsPerLaunch) {
      Items part = {};
      part.count =
          static_cast<std::int32_t>(std::min<std::size_t>(items.size() - first, kItemsPerLaunch));
      std::copy_n(items.begin() + static_cast<std::ptrdiff_t>(first), part.count,
                  part.item.begin());
      REPLAYSSM_RETURN_IF_ERROR(body(part, first == 0));
    }
    return Status();
  };
  // All items or none: every item is looked at before the first one is run.
  REPLAYSSM_RETURN_IF_ERROR(each([&](const Items& part, bool first) {
    return launch("materialize checks", check_items_kernel, {1, 1, 0, stream}, tables, part, width,
                  first);
  }));
  REPLAYSSM_RETURN_IF_ERROR(each([&](const Items& part, bool /*first*/) {
    for (const LayerTable& layer : layers) {
      const std::int64_t blocks = head_blocks(layer) * part.count;
      REPLAYSSM_RETURN_IF_ERROR(launch("materialize", materialize_kernel,
                                       {blocks, kThreads, 0, stream}, tables, layer, part));
    }
    return Status();
  }));
  return each([&](const Items& part, bool /*first*/) {
    return launch("materialize cursors", finish_items_kernel, {1, 1, 0, stream}, tables, part);
  });
}

Status load_layer(const Tables& tables, const LayerTable& layer, std::int64_t slot,
                  const LayerState& state, bool any_conv, void* stream) {
  return launch("load state", load_kernel, {head_blocks(layer), kThreads, 0, stream}, tables, layer,
                slot, state, any_conv);
}

Status finish_load(const Tables& tables, std::int64_t slot, std::int64_t position, bool any_conv,
                   void* stream) {
  return launch("load cursors", finish_load_kernel, {1, 1, 0, stream}, tables, slot, position,
                any_conv);
}

Status store_layer(const Tables& tables, const LayerTable& layer, std::int64_t slot,
                   const LayerState& state, void* stream) {
  return launch("store state", store_kernel, {head_blocks(layer), kThreads, 0, stream}, tables,
                layer, slot, state);
}

}  // namespace replayssm::cuda
