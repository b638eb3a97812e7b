// Element types of tensors that cross the interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace replayssm {

// kBF16 is the upper half of an IEEE float32; kF16 is IEEE binary16.
enum class DType : std::uint8_t { kF32 = 0, kBF16 = 1, kF16 = 2, kI8 = 3, kI32 = 4, kI64 = 5 };

// Bytes of one element.
[[nodiscard]] constexpr std::size_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kBF16:
    case DType::kF16: return 2;
    case DType::kI8: return 1;
    case DType::kI64: return 8;
  }
  return 0;
}

[[nodiscard]] constexpr std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "f32";
    case DType::kBF16: return "bf16";
    case DType::kF16: return "f16";
    case DType::kI8: return "i8";
    case DType::kI32: return "i32";
    case DType::kI64: return "i64";
  }
  return "unknown";
}

// f32, bf16 and f16 may carry activations.
[[nodiscard]] constexpr bool is_activation_dtype(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

}  // namespace replayssm
