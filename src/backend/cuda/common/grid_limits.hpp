// How many blocks a launch may have, checked where they are counted and, for everything a cache can
// be asked later, when it is created. Needs no CUDA.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/layout.hpp"
#include "core/text.hpp"

namespace replayssm::cuda {

inline constexpr std::int64_t kMaxGridBlocks = (std::int64_t{1} << 31) - 1;  // the first axis
inline constexpr std::int64_t kMaxGridRows = 65535;                          // the second

[[nodiscard]] inline Status check_grid(const char* name, std::int64_t blocks, std::int64_t rows) {
  if (blocks >= 0 && blocks <= kMaxGridBlocks && rows >= 0 && rows <= kMaxGridRows) return {};
  return error(StatusCode::kUnsupported, "cuda: ", name, ": a launch has at most ", kMaxGridBlocks,
               " x ", kMaxGridRows, " blocks, given ", blocks, " x ", rows);
}

// Blocks of the convolution for one row: groups of channels times parts of its tokens.
inline constexpr std::int32_t kConvThreads = 128;  // a channel each
[[nodiscard]] constexpr std::int64_t conv_groups(const LayerShape& shape) {
  return (std::int64_t{shape.conv_channels} + kConvThreads - 1) / kConvThreads;
}
[[nodiscard]] constexpr std::int64_t conv_parts(std::int64_t max_step_tokens,
                                                std::int64_t max_tokens, bool prefill) {
  return prefill ? std::min<std::int64_t>(std::max(max_tokens, max_step_tokens), 64)
                 : std::min<std::int64_t>(max_step_tokens, 16);
}

// The first launch that a forward of max_rows rows could not make. `config` has its defaults filled
// in.
[[nodiscard]] inline Status check_grids(const CacheConfig& config) {
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    const LayerShape& shape = config.layers[i];
    const std::int64_t of_row =
        std::max(std::int64_t{shape.heads},
                 conv_groups(shape) * conv_parts(config.max_step_tokens, config.max_tokens, true));
    if (config.max_rows > kMaxGridBlocks / of_row) {
      return error(StatusCode::kUnsupported, "cuda: max_rows must be at most ",
                   kMaxGridBlocks / of_row, ", since layer ", i, " takes ", of_row,
                   " blocks of threads a row and a launch has at most ", kMaxGridBlocks, ", given ",
                   config.max_rows);
    }
  }
  if (config.max_rows <= kMaxGridBlocks) return {};
  return error(StatusCode::kUnsupported, "cuda: max_rows must be at most ", kMaxGridBlocks,
               ", the blocks of a launch, given ", config.max_rows);
}

}  // namespace replayssm::cuda
