// Conversions between f32 and the 16-bit activation types, exact upwards, round to nearest even
// downwards.
#pragma once

#include <bit>
#include <cstdint>

#include "math/host_device.hpp"

namespace replayssm {

// Distinct types, so that a kernel's template argument names the storage.
struct BFloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};

[[nodiscard]] REPLAYSSM_HOST_DEVICE inline float to_float(float value) { return value; }

[[nodiscard]] REPLAYSSM_HOST_DEVICE inline float to_float(BFloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16U);
}

[[nodiscard]] REPLAYSSM_HOST_DEVICE inline float to_float(Float16 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000U) << 16U;
  const std::uint32_t exponent = (value.bits >> 10U) & 0x1FU;
  const std::uint32_t mantissa = value.bits & 0x3FFU;
  if (exponent == 0x1FU) return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13U));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112U) << 23U) | (mantissa << 13U));
  // Subnormals are mantissa * 2^-24, exact in f32.
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
}

template <typename T>
[[nodiscard]] REPLAYSSM_HOST_DEVICE T from_float(float value);

template <>
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline float from_float<float>(float value) {
  return value;
}

template <>
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline BFloat16 from_float<BFloat16>(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U)
    return {static_cast<std::uint16_t>((bits >> 16U) | 0x40U)};  // quiet NaN
  const std::uint32_t even = (bits >> 16U) & 1U;
  return {static_cast<std::uint16_t>((bits + 0x7FFFU + even) >> 16U)};
}

template <>
[[nodiscard]] REPLAYSSM_HOST_DEVICE inline Float16 from_float<Float16>(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16U) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return {static_cast<std::uint16_t>(sign | 0x7E00U)};
  if (magnitude >= 0x47800000U)
    return {static_cast<std::uint16_t>(sign | 0x7C00U)};  // 65536 and above
  if (magnitude < 0x38800000U) {
    // Below 2^-14 the unit is 2^-24: adding 0.5 aligns the mantissa so that the addition itself
    // rounds to it.
    const float aligned = std::bit_cast<float>(magnitude) + 0.5F;
    return {
        static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(aligned) - 0x3F000000U))};
  }
  const std::uint32_t even = (magnitude >> 13U) & 1U;
  const std::uint32_t rounded = magnitude - (112U << 23U) + 0xFFFU + even;
  return {static_cast<std::uint16_t>(sign | (rounded >> 13U))};
}

}  // namespace replayssm
