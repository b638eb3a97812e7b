// Checks of shapes, strides and configurations.
#include "core/checks.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "core/text.hpp"

namespace replayssm {
namespace {

bool is_head_dim(std::int32_t dim) { return dim >= 8 && dim <= kMaxHeadDim && dim % 8 == 0; }

// Products of sizes stay far from 2^63: no single factor may exceed this.
constexpr std::int64_t kMaxCount = std::int64_t{1} << 31;

// Bytes of a whole cache beyond which sizes could overflow 64 bits; no machine has so much.
constexpr double kMaxBytes = 0x1p60;

// An upper bound, in floating point so that it cannot overflow itself.
double bytes_bound(const CacheConfig& config) {
  const double ring = config.window + 2.0 * kMaxStepTokens + kMaxConvWidth;
  double bytes = 0.0;
  for (const LayerShape& shape : config.layers) {
    const double heads = shape.heads;
    bytes += heads * shape.value_dim * shape.key_dim * 4.0 * config.max_step_tokens *
             static_cast<double>(std::max(config.blocks, config.slots));
    const double record =
        heads * (12.0 * shape.value_dim + 8.0 * shape.key_dim + 64.0) + 4.0 * shape.conv_channels;
    bytes += record * 2.0 * ring * static_cast<double>(config.slots);
  }
  return bytes;
}

}  // namespace

Status check_layer(const LayerShape& shape, const LayerWeights& weights, std::int32_t layer) {
  if (shape.rule != Rule::kMamba2 && shape.rule != Rule::kGdn && shape.rule != Rule::kKda) {
    return invalid_argument("layer ", layer, ": unknown rule ", static_cast<int>(shape.rule),
                            "; supported: mamba2, gdn, kda");
  }
  if (shape.heads < 1 || shape.heads > 65536 || shape.groups < 1 ||
      shape.heads % shape.groups != 0) {
    return invalid_argument("layer ", layer,
                            ": heads must be a positive multiple of groups, given ", shape.heads,
                            " heads and ", shape.groups, " groups");
  }
  if (!is_head_dim(shape.value_dim) || !is_head_dim(shape.key_dim)) {
    return invalid_argument("layer ", layer,
                            ": value_dim and key_dim must be multiples of 8 from 8 to ",
                            kMaxHeadDim, ", given ", shape.value_dim, " and ", shape.key_dim);
  }
  const bool convolves = shape.conv_channels != 0;
  if (shape.conv_channels < 0 ||
      (convolves && (shape.conv_width < 2 || shape.conv_width > kMaxConvWidth))) {
    return invalid_argument(
        "layer ", layer, ": conv_channels must not be negative and conv_width must be 2 to ",
        kMaxConvWidth, ", given ", shape.conv_channels, " and ", shape.conv_width);
  }
  if (convolves && weights.conv_weight == nullptr) {
    return invalid_argument("layer ", layer, ": conv_channels is ", shape.conv_channels,
                            " but conv_weight is null");
  }
  const bool needs_a = shape.rule == Rule::kMamba2 || shape.gate != GateKind::kLogDecay;
  if (needs_a && (weights.a_log == nullptr) == (weights.a == nullptr)) {
    return invalid_argument("layer ", layer, ": exactly one of a_log and a must be given for rule ",
                            rule_name(shape.rule), " with gate ", gate_kind_name(shape.gate));
  }
  if (shape.rule == Rule::kMamba2) {
    if (!(shape.dt_min >= 0.0F) || !(shape.dt_max >= shape.dt_min)) {
      return invalid_argument("layer ", layer,
                              ": dt limits must satisfy 0 <= dt_min <= dt_max, given ",
                              shape.dt_min, " and ", shape.dt_max);
    }
    return {};
  }
  if (shape.gate == GateKind::kBounded) {
    if (shape.rule != Rule::kKda) {
      return invalid_argument("layer ", layer, ": gate bounded exists for rule kda only, given ",
                              rule_name(shape.rule));
    }
    if (weights.a_log == nullptr) {
      return invalid_argument("layer ", layer, ": gate bounded needs a_log");
    }
    if (!(shape.gate_lower_bound < 0.0F) || !std::isfinite(shape.gate_lower_bound)) {
      return invalid_argument("layer ", layer,
                              ": gate_lower_bound must be finite and below 0, given ",
                              shape.gate_lower_bound);
    }
  }
  if (shape.gate != GateKind::kSoftplus && shape.gate != GateKind::kBounded &&
      shape.gate != GateKind::kLogDecay) {
    return invalid_argument("layer ", layer, ": unknown gate ", static_cast<int>(shape.gate),
                            "; supported: softplus, bounded, log_decay");
  }
  if (!std::isfinite(shape.query_scale)) {
    return invalid_argument("layer ", layer, ": query_scale must be finite, given ",
                            shape.query_scale);
  }
  return {};
}

Status check_config(const CacheConfig& config) {
  if (config.layers.empty())
    return invalid_argument("a cache needs at least one layer, given none");
  if (config.weights.size() != config.layers.size()) {
    return invalid_argument("weights must hold one entry a layer: required ", config.layers.size(),
                            ", given ", config.weights.size());
  }
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    REPLAYSSM_RETURN_IF_ERROR(
        check_layer(config.layers[i], config.weights[i], static_cast<std::int32_t>(i)));
  }
  if (config.max_step_tokens < 1 || config.max_step_tokens > kMaxStepTokens) {
    return invalid_argument("max_step_tokens must be 1 to ", kMaxStepTokens, ", given ",
                            config.max_step_tokens);
  }
  if (config.decode != DecodeMode::kReplay && config.decode != DecodeMode::kConventional) {
    return invalid_argument("unknown decode mode ", static_cast<int>(config.decode),
                            "; supported: replay, conventional");
  }
  if (config.decode == DecodeMode::kReplay &&
      (config.window < config.max_step_tokens || config.window > kMaxWindow)) {
    return invalid_argument("window must be max_step_tokens (", config.max_step_tokens, ") to ",
                            kMaxWindow, ", given ", config.window);
  }
  if (!is_activation_dtype(config.activations)) {
    return invalid_argument("activations must be f32, bf16 or f16, given ",
                            dtype_name(config.activations));
  }
  if (config.update != DType::kF32 && config.update != DType::kBF16) {
    return invalid_argument("update must be bf16 or f32, given ", dtype_name(config.update));
  }
  if (config.slots < 1 || config.slots > kMaxCount) {
    return invalid_argument("slots must be 1 to ", kMaxCount, ", given ", config.slots);
  }
  if (config.blocks < 0 || config.blocks > kMaxCount || config.max_rows < 0 ||
      config.max_rows > kMaxCount || config.max_tokens < 0 || config.max_tokens > kMaxCount) {
    return invalid_argument("blocks, max_rows and max_tokens must be 0 to ", kMaxCount, ", given ",
                            config.blocks, ", ", config.max_rows, " and ", config.max_tokens);
  }
  if (config.parallel.run != nullptr &&
      (config.parallel.workers < 1 || config.parallel.workers > 4096)) {
    return invalid_argument("parallel.workers must be 1 to 4096, given ", config.parallel.workers);
  }
  if (config.threads < 0 || config.threads > 4096) {
    return invalid_argument("threads must be 0 to 4096, given ", config.threads);
  }
  if (bytes_bound(config) > kMaxBytes) {
    return error(StatusCode::kResourceExhausted, "a cache of ", config.slots, " slots and ",
                 config.blocks, " blocks of this geometry would take more than 2^60 bytes");
  }
  return {};
}

namespace {

// Elements of an output lie apart: going from the innermost axis outwards, each stride steps over
// everything within.
Status check_apart(const TensorView& view, std::string_view name) {
  const auto last = static_cast<std::size_t>(view.rank - 1);
  auto within = static_cast<double>(view.shape[last]);  // strides may be absurd: no overflow here
  std::array<std::size_t, 2> axes = {0, 1};
  if (view.rank == 3 && view.stride[0] < view.stride[1]) std::swap(axes[0], axes[1]);
  for (std::size_t i = last; i-- > 0;) {
    const std::size_t axis = axes[i];
    if (view.shape[axis] <= 1) continue;
    const auto stride = static_cast<double>(view.stride[axis]);
    if (stride < within) {
      return invalid_argument(
          name, ": elements of an output must not overlap: required a stride of ", "at least ",
          within, ", given ", view.stride[axis], " on axis ", axis);
    }
    within += static_cast<double>(view.shape[axis] - 1) * stride;
  }
  return {};
}

}  // namespace

Status check_view(const TensorView& view, const ViewRule& rule) {
  if (!view.present()) {
    if (rule.optional || rule.tokens == 0) return {};
    return invalid_argument(rule.name, ": required, given none");
  }
  const int rank = rule.d2 > 0 ? 3 : 2;
  const auto last = static_cast<std::size_t>(rank - 1);
  const std::int64_t last_extent = rule.d2 > 0 ? rule.d2 : rule.d1;
  if (view.rank != rank || view.shape[0] < rule.tokens || view.shape[1] != rule.d1 ||
      (rank == 3 && view.shape[2] != rule.d2)) {
    std::string given;
    for (int axis = 0; axis < std::clamp(view.rank, 0, TensorView::kMaxRank); ++axis) {
      given += concat(axis == 0 ? "" : ", ", view.shape[static_cast<std::size_t>(axis)]);
    }
    return invalid_argument(rule.name, ": required shape [at least ", rule.tokens, ", ", rule.d1,
                            rank == 3 ? concat(", ", rule.d2) : std::string(), "], given [", given,
                            "]");
  }
  if (view.stride[last] != 1 && last_extent > 1) {
    return invalid_argument(rule.name, ": the last axis must have stride 1, given ",
                            view.stride[last]);
  }
  for (int axis = 0; axis < rank - 1; ++axis) {
    if (view.stride[static_cast<std::size_t>(axis)] < 0) {
      return invalid_argument(rule.name, ": strides must not be negative, given ",
                              view.stride[static_cast<std::size_t>(axis)], " on axis ", axis);
    }
  }
  const bool dtype_fits = view.dtype == rule.dtype || (rule.or_f32 && view.dtype == DType::kF32) ||
                          (rule.any_activation && is_activation_dtype(view.dtype));
  if (!dtype_fits) {
    const bool also_f32 = rule.or_f32 && rule.dtype != DType::kF32;
    return invalid_argument(rule.name, ": required dtype ",
                            rule.any_activation ? "f32, bf16 or f16" : dtype_name(rule.dtype),
                            also_f32 ? " or f32" : "", ", given ", dtype_name(view.dtype));
  }
  if (reinterpret_cast<std::uintptr_t>(view.data) % dtype_bytes(view.dtype) != 0) {
    return invalid_argument(rule.name, ": data must be aligned to the ", dtype_bytes(view.dtype),
                            " bytes of ", dtype_name(view.dtype));
  }
  return rule.output ? check_apart(view, rule.name) : Status{};
}

std::int32_t ring_length(const CacheConfig& config) {
  return config.decode == DecodeMode::kReplay ? config.window - 1 + config.max_step_tokens : 0;
}

std::int32_t conv_history(const CacheConfig& config) {
  std::int32_t width = 0;
  for (const LayerShape& shape : config.layers) {
    if (shape.conv_channels > 0) width = std::max(width, shape.conv_width);
  }
  if (width == 0) return 0;
  return width - 1 + (config.materialize_history ? ring_length(config) : 0);
}

CacheConfig with_defaults(CacheConfig config) {
  if (config.blocks == 0) config.blocks = config.slots;
  if (config.max_rows == 0) config.max_rows = config.slots;
  if (config.max_tokens == 0) config.max_tokens = config.max_rows * config.max_step_tokens;
  return config;
}

}  // namespace replayssm
