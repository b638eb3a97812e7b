// bf16 to f32 and back, one element or a row.
#pragma once

#include <bit>
#include <cstdint>

namespace replayssm::model {

[[nodiscard]] inline float bf16_to_f32(std::uint16_t value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16U);
}

// To nearest, ties to even; a NaN stays one.
[[nodiscard]] inline std::uint16_t f32_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>((bits >> 16U) | 0x40U);
  const std::uint32_t rounding = 0x7fffU + ((bits >> 16U) & 1U);
  return static_cast<std::uint16_t>((bits + rounding) >> 16U);
}

inline void bf16_to_f32(const std::uint16_t* in, float* out, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = bf16_to_f32(in[i]);
}

inline void f32_to_bf16(const float* in, std::uint16_t* out, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = f32_to_bf16(in[i]);
}

}  // namespace replayssm::model
