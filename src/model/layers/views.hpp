// Views of parts of the rows of working memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "replayssm/tensor.hpp"

namespace replayssm::model {

// Columns `first` to first + outer * inner of a row-major [tokens, width] tensor, as [tokens,
// outer, inner].
[[nodiscard]] inline TensorView columns(const void* data, DType dtype, std::int64_t tokens,
                                        std::int64_t width, std::int64_t first, std::int64_t outer,
                                        std::int64_t inner) {
  TensorView view = TensorView::contiguous(data, dtype, tokens, outer, inner);
  view.data =
      static_cast<std::byte*>(view.data) + first * static_cast<std::int64_t>(dtype_bytes(dtype));
  view.stride[0] = width;
  return view;
}

// The same as [tokens, count].
[[nodiscard]] inline TensorView columns(const void* data, DType dtype, std::int64_t tokens,
                                        std::int64_t width, std::int64_t first,
                                        std::int64_t count) {
  TensorView view = TensorView::contiguous(data, dtype, tokens, count);
  view.data =
      static_cast<std::byte*>(view.data) + first * static_cast<std::int64_t>(dtype_bytes(dtype));
  view.stride[0] = width;
  return view;
}

}  // namespace replayssm::model
