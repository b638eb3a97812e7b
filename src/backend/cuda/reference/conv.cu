// Depthwise causal convolution over the inputs a slot has seen, one thread a channel; a ring with
// its own order table keeps them.
#include <algorithm>

#include "backend/cuda/common/launch.cuh"
#include "backend/cuda/reference/rooms.hpp"
#include "backend/cuda/reference/warp.cuh"

namespace replayssm::cuda {
namespace {

constexpr unsigned kThreads = kConvThreads;

struct Channel {
  const CacheTable& table;
  const LayerTable& layer;
  const ConvInputs& inputs;
  const RowDescriptor& desc;
  const std::int32_t* parents;
  std::int32_t channel;

  __device__ float input(std::int64_t token) const {
    return load_float(at(inputs.in, token, 0), inputs.in.dtype, channel);
  }
  __device__ char* ring(std::int64_t index) const {
    return element(layer.conv, desc.slot,
                   index * layer.shape.conv_channels *
                       static_cast<std::int64_t>(dtype_bytes(table.activations)));
  }
  // The input `back` places behind token i of the row, 0 where none exists.
  __device__ float tap(std::int32_t i, std::int32_t back) const {
    for (; back > 0 && i >= 0; --back) i = parent_of(parents, i);
    if (i >= 0) return input(desc.token_offset + i);
    if (back >= desc.conv_valid) return 0.0F;  // back = 0: the newest committed input
    const std::int64_t index = conv_order(table, desc.slot)[table.conv_history - 1 - back];
    return load_float(ring(index), table.activations, channel);
  }
  __device__ void convolve(std::int32_t i) const {
    const std::int32_t width = layer.shape.conv_width;
    float sum = layer.weights.conv_bias != nullptr ? layer.weights.conv_bias[channel] : 0.0F;
    const float* weight = layer.weights.conv_weight + std::int64_t{channel} * width;
    for (std::int32_t back = width - 1; back >= 0; --back)
      sum = sum + weight[width - 1 - back] * tap(i, back);
    store_float(at(inputs.out, desc.token_offset + i, 0), inputs.out.dtype, channel,
                inputs.silu ? silu(sum) : sum);
  }
  __device__ void keep(std::int64_t index, std::int64_t token) const {
    store_float(ring(index), table.activations, channel, input(token));
  }
};

// Grid: rows x groups of channels x parts of a prompt. Step rows keep their pending inputs behind
// the history, where no other thread reads.
__global__ void __launch_bounds__(kThreads)
    conv_kernel(const __grid_constant__ Tables tables, const __grid_constant__ LayerTable layer,
                const __grid_constant__ ConvInputs inputs, std::int64_t extent, unsigned groups,
                unsigned parts) {
  const CacheTable& table = tables.table;
  const std::int64_t row = blockIdx.x / (groups * parts);
  const auto part = static_cast<std::int32_t>(blockIdx.x / groups % parts);
  const auto channel = static_cast<std::int32_t>(blockIdx.x % groups * kThreads + threadIdx.x);
  if (channel >= layer.shape.conv_channels) return;
  const RowDescriptor& desc = table.forward.rows[row];
  if (!row_fits(desc, extent)) {
    if (channel == 0) refuse_row(tables, row);
    return;
  }
  const Channel one = {table, layer, inputs, desc, row_parents(table, row), channel};
  for (std::int32_t i = part; i < desc.tokens; i += static_cast<std::int32_t>(parts)) {
    if (desc.kind == RowKind::kPadding) {
      store_float(at(inputs.out, desc.token_offset + i, 0), inputs.out.dtype, channel, 0.0F);
      continue;
    }
    one.convolve(i);
    if (desc.kind == RowKind::kStep)
      one.keep(conv_order(table, desc.slot)[table.conv_history + i], desc.token_offset + i);
  }
}

// A prompt chunk, which is accepted whole, replaces the oldest of the history: a launch of its own,
// since the chunk's first tokens read it.
__global__ void __launch_bounds__(kThreads)
    keep_prefill_kernel(const __grid_constant__ Tables tables,
                        const __grid_constant__ LayerTable layer,
                        const __grid_constant__ ConvInputs inputs, std::int64_t extent,
                        unsigned groups) {
  const CacheTable& table = tables.table;
  const std::int64_t row = blockIdx.x / groups;
  const auto channel = static_cast<std::int32_t>(blockIdx.x % groups * kThreads + threadIdx.x);
  const RowDescriptor& desc = table.forward.rows[row];
  if (channel >= layer.shape.conv_channels || desc.kind != RowKind::kPrefill ||
      !row_fits(desc, extent))
    return;
  const Channel one = {table, layer, inputs, desc, nullptr, channel};
  const std::int32_t kept = min(desc.tokens, table.conv_history);
  for (std::int32_t i = 0; i < kept; ++i)
    one.keep(conv_order(table, desc.slot)[i], desc.token_offset + desc.tokens - kept + i);
}

}  // namespace

Status conv_reference(const Tables& tables, const LayerTable& layer, const ConvInputs& inputs,
                      bool prefill) {
  const CacheTable& table = tables.table;
  const std::int64_t rows = table.forward.count;
  const auto groups = static_cast<unsigned>(conv_groups(layer.shape));
  const auto parts =
      static_cast<unsigned>(conv_parts(table.max_step_tokens, table.max_tokens, prefill));
  const std::int64_t in = inputs.in.present() ? inputs.in.shape[0] : 0;
  const std::int64_t out = inputs.out.present() ? inputs.out.shape[0] : 0;
  const std::int64_t extent = std::min(in, out);
  REPLAYSSM_RETURN_IF_ERROR(launch("conv", conv_kernel,
                                   {rows * groups * parts, kThreads, 0, inputs.stream}, tables,
                                   layer, inputs, extent, groups, parts));
  if (!prefill) return {};
  return launch("conv history", keep_prefill_kernel, {rows * groups, kThreads, 0, inputs.stream},
                tables, layer, inputs, extent, groups);
}

}  // namespace replayssm::cuda
