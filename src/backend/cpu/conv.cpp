// Depthwise causal convolution over the inputs a slot has seen, with a ring that has its own order
// table:
//   y_t = bias + sum_d w[width - 1 - d] in_{t - d}, d inputs back along the token's own path; silu
//   on request.
#include <algorithm>
#include <array>
#include <cstring>

#include "backend/cpu/access.hpp"
#include "backend/cpu/rooms.hpp"

namespace replayssm::cpu {
namespace {

constexpr std::int32_t kChannelsPerItem = 256;

struct ConvItem {
  const CacheTable* table = nullptr;
  const LayerTable* layer = nullptr;
  const ConvInputs* inputs = nullptr;
  std::int64_t row = 0;
  std::int32_t begin = 0;  // channels [begin, end)
  std::int32_t end = 0;

  [[nodiscard]] std::int64_t activation_bytes() const {
    return static_cast<std::int64_t>(dtype_bytes(table->activations));
  }
  [[nodiscard]] std::byte* ring(std::int64_t index) const {
    const RowDescriptor& desc = table->forward.rows[row];
    const std::int64_t channel = index * layer->shape.conv_channels + begin;
    return element(layer->conv, desc.slot, channel * activation_bytes());
  }
  [[nodiscard]] const std::byte* input(std::int64_t token) const {
    return static_cast<const std::byte*>(at(inputs->in, token, begin));
  }
};

// The input `back` places behind token i of the row, null where none exists.
const std::byte* tap(const ConvItem& item, std::int32_t i, std::int32_t back) {
  const CacheTable& table = *item.table;
  const RowDescriptor& desc = table.forward.rows[item.row];
  const std::int32_t* parents = row_parents(table, item.row);
  for (; back > 0 && i >= 0; --back) i = parent_of(parents, i);
  if (i >= 0) return item.input(desc.token_offset + i);
  // back = 0: the newest committed input
  if (back >= desc.conv_valid) return nullptr;
  return item.ring(conv_order(table, desc.slot)[table.conv_history - 1 - back]);
}

void convolve(const Level& level, const ConvItem& item, const float* weights, std::int32_t i) {
  const CacheTable& table = *item.table;
  const LayerShape& shape = item.layer->shape;
  const RowDescriptor& desc = table.forward.rows[item.row];
  const std::int32_t n = item.end - item.begin;
  std::array<float, kChannelsPerItem> sum{};
  std::array<float, kChannelsPerItem> in{};
  if (item.layer->weights.conv_bias != nullptr)
    std::copy_n(item.layer->weights.conv_bias + item.begin, n, sum.data());
  for (std::int32_t back = shape.conv_width - 1; back >= 0; --back) {
    const std::byte* source = tap(item, i, back);
    if (source == nullptr) continue;
    level.load(source, table.activations, n, in.data());
    level.multiply_add(sum.data(),
                       weights + std::int64_t{shape.conv_width - 1 - back} * kChannelsPerItem,
                       in.data(), n);
  }
  if (item.inputs->silu) level.silu(sum.data(), n);
  level.store(sum.data(), n, at(item.inputs->out, desc.token_offset + i, item.begin),
              item.inputs->out.dtype);
}

// Pending inputs go behind the history; a prefill chunk, which is accepted whole, replaces the
// oldest of it.
void keep_inputs(const ConvItem& item) {
  const CacheTable& table = *item.table;
  const RowDescriptor& desc = table.forward.rows[item.row];
  const std::uint16_t* order = conv_order(table, desc.slot);
  const auto bytes = static_cast<std::size_t>((item.end - item.begin) * item.activation_bytes());
  if (desc.kind == RowKind::kStep) {
    for (std::int32_t i = 0; i < desc.tokens; ++i) {
      std::memcpy(item.ring(order[table.conv_history + i]), item.input(desc.token_offset + i),
                  bytes);
    }
    return;
  }
  const std::int32_t kept = std::min(desc.tokens, table.conv_history);
  for (std::int32_t i = 0; i < kept; ++i) {
    std::memcpy(item.ring(order[i]), item.input(desc.token_offset + desc.tokens - kept + i), bytes);
  }
}

}  // namespace

void conv_rows(const Context& context, CacheTable& table, const ConvInputs& inputs) {
  const LayerTable& layer = table.layers[inputs.layer];
  const std::int32_t channels = layer.shape.conv_channels;
  const std::int64_t chunks = (channels + kChannelsPerItem - 1) / kChannelsPerItem;
  zero_padding(table, inputs.out);
  parallel(context, table.forward.count * chunks, [&](std::int64_t index, int worker) {
    ConvItem item;
    item.table = &table;
    item.layer = &layer;
    item.inputs = &inputs;
    item.row = index / chunks;
    item.begin = static_cast<std::int32_t>(index % chunks) * kChannelsPerItem;
    item.end = std::min(item.begin + kChannelsPerItem, channels);
    const RowDescriptor& desc = table.forward.rows[item.row];
    if (desc.kind == RowKind::kPadding) return;
    // Weights tap by tap, so that the loop over channels is dense.
    const std::int32_t width = layer.shape.conv_width;
    float* weights = context.arena(worker).take(std::int64_t{width} * kChannelsPerItem);
    for (std::int32_t c = item.begin; c < item.end; ++c) {
      for (std::int32_t tap = 0; tap < width; ++tap) {
        weights[tap * kChannelsPerItem + c - item.begin] =
            layer.weights.conv_weight[std::int64_t{c} * width + tap];
      }
    }
    for (std::int32_t i = 0; i < desc.tokens; ++i) convolve(*context.level, item, weights, i);
    keep_inputs(item);
  });
}

}  // namespace replayssm::cpu
