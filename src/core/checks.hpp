// Checks of shapes, strides and configurations. Each message says what is required and what was
// given.
#pragma once

#include <cstdint>
#include <string_view>

#include "replayssm/cache.hpp"

namespace replayssm {

// Limits every implementation shares: dims, divisibility, gate options, weights present.
[[nodiscard]] Status check_layer(const LayerShape& shape, const LayerWeights& weights,
                                 std::int32_t layer);

// Window, T_max, counts, dtypes, one weights entry a layer.
[[nodiscard]] Status check_config(const CacheConfig& config);

// A view [axis 0 >= tokens, d1, d2] (rank 2: d2 = 0) in activation dtype (or f32 where `or_f32`),
// last axis gap-free, strides not negative, data aligned to the dtype. An absent view fails unless
// `optional`.
struct ViewRule {
  std::string_view name;
  std::int64_t tokens = 0;
  std::int64_t d1 = 0;
  std::int64_t d2 = 0;
  DType dtype = DType::kF32;
  bool or_f32 = false;
  bool any_activation = false;  // any activation dtype will do
  bool optional = false;
  bool output = false;  // written from several threads: its elements must not overlap
};
[[nodiscard]] Status check_view(const TensorView& view, const ViewRule& rule);

// R = W - 1 + T_max: a fold leaves at most W - 1 records behind the T_max pending ones
// (conventional: 0).
[[nodiscard]] std::int32_t ring_length(const CacheConfig& config);

// Inputs the conv ring keeps behind the newest; 0 when no layer convolves.
[[nodiscard]] std::int32_t conv_history(const CacheConfig& config);

// Zero-valued counts of the configuration replaced by their documented defaults.
[[nodiscard]] CacheConfig with_defaults(CacheConfig config);

}  // namespace replayssm
