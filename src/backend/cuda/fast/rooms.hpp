// The fast operations: mamba2 with K = 128, f32 checkpoints. A layer outside of what fits() says is
// run by the readable kernels, and explain() says so.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cuda/common/tables.cuh"
#include "backend/cuda/reference/rooms.hpp"
#include "replayssm/status.hpp"

namespace replayssm::cuda {

// Empty, or why the fast kernels do not take the layer.
[[nodiscard]] std::string why_not_fast(const CacheConfig& config, const LayerShape& shape);

// Whether eight neighbouring elements can be loaded at once (f32: in two loads) wherever a row of
// the view begins.
[[nodiscard]] bool wide(const TensorView& view);

// A layer's part of the items of one folding row.
struct FoldSpan {
  std::int64_t first = 0;  // items of the layers before
  std::int32_t layer = 0;
  std::int32_t parts = 0;  // V / 16
};

// Working memory a step may use, of the layer with the most groups; 0: none.
[[nodiscard]] std::int64_t dots_bytes(const CacheConfig& config, std::int32_t groups);
// `dots`: so much device memory, or null.
[[nodiscard]] Status step_fast(const Tables& tables, const LayerTable& layer,
                               const LayerInputs& inputs, float* dots);
[[nodiscard]] Status step_conventional_fast(const Tables& tables, const LayerTable& layer,
                                            const LayerInputs& inputs);
// Folds begin's list in the layers of `spans` (device memory, `count` of them, `items` a row;
// `each` of one layer where all have as many, else 0).
[[nodiscard]] Status fold_fast(const Tables& tables, const DeviceFacts& facts,
                               const FoldSpan* spans, std::int32_t count, std::int64_t items,
                               std::int64_t each, void* stream);

}  // namespace replayssm::cuda
