// Non-owning views of the caller's tensors.
#pragma once

#include <array>
#include <cstdint>

#include "replayssm/dtype.hpp"

namespace replayssm {

// A strided view of at most four axes. Shapes and strides count elements, not bytes. The memory
// belongs to the caller and must stay valid for the call (on a GPU: until the stream has passed
// it). A default-constructed view is absent: optional inputs are left so.
struct TensorView {
  static constexpr int kMaxRank = 4;

  void* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> stride{};

  [[nodiscard]] bool present() const { return data != nullptr; }

  // A row-major, gap-free view.
  template <typename... Extents>
  [[nodiscard]] static TensorView contiguous(void* data, DType dtype, Extents... extents) {
    static_assert(sizeof...(Extents) >= 1 && sizeof...(Extents) <= kMaxRank);
    TensorView view;
    view.data = data;
    view.dtype = dtype;
    view.rank = static_cast<int>(sizeof...(Extents));
    view.shape = {static_cast<std::int64_t>(extents)...};
    std::int64_t stride = 1;
    for (int axis = view.rank - 1; axis >= 0; --axis) {
      view.stride[static_cast<std::size_t>(axis)] = stride;
      stride *= view.shape[static_cast<std::size_t>(axis)];
    }
    return view;
  }

  // Inputs are read only; the library never writes through a view that a parameter calls an input.
  template <typename... Extents>
  [[nodiscard]] static TensorView contiguous(const void* data, DType dtype, Extents... extents) {
    return contiguous(const_cast<void*>(data), dtype, extents...);
  }
};

}  // namespace replayssm
