// Short f32 vectors. The order of every sum is written down here, because checkpoint bits and
// outputs must not depend on how a compiler or an instruction set would like to add.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "math/convert.hpp"
#include "replayssm/dtype.hpp"

namespace replayssm::cpu {

// Sum of a[i] * b[i]: lane i mod 16 collects its products in ascending i, then lanes 8 apart are
// added, then 4, 2, 1. n is a multiple of 8.
[[nodiscard]] inline float dot16(const float* a, const float* b, std::int32_t n) {
  std::array<float, 16> lanes{};
  std::int32_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (std::size_t lane = 0; lane < 16; ++lane) {
      lanes[lane] +=
          a[i + static_cast<std::int32_t>(lane)] * b[i + static_cast<std::int32_t>(lane)];
    }
  }
  for (std::size_t lane = 0; i + static_cast<std::int32_t>(lane) < n; ++lane) {
    lanes[lane] += a[i + static_cast<std::int32_t>(lane)] * b[i + static_cast<std::int32_t>(lane)];
  }
  for (std::size_t width = 8; width > 0; width /= 2) {
    for (std::size_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

// y += s * x
inline void add_scaled(float* y, float s, const float* x, std::int32_t n) {
  for (std::int32_t i = 0; i < n; ++i) y[i] = y[i] + s * x[i];
}

inline void scale(float* y, float s, std::int32_t n) {
  for (std::int32_t i = 0; i < n; ++i) y[i] *= s;
}

// y *= x, element by element
inline void multiply(float* y, const float* x, std::int32_t n) {
  for (std::int32_t i = 0; i < n; ++i) y[i] *= x[i];
}

[[nodiscard]] inline bool all_finite(const float* x, std::int32_t n) {
  bool finite = true;
  for (std::int32_t i = 0; i < n; ++i) finite = finite && std::isfinite(x[i]);
  return finite;
}

[[nodiscard]] inline float load_one(const void* source, DType dtype) {
  switch (dtype) {
    case DType::kBF16: return to_float(*static_cast<const BFloat16*>(source));
    case DType::kF16: return to_float(*static_cast<const Float16*>(source));
    default: break;
  }
  float value = 0.0F;
  std::memcpy(&value, source, sizeof(value));
  return value;
}

inline void load(const void* source, DType dtype, std::int32_t n, float* values) {
  switch (dtype) {
    case DType::kBF16: {
      const auto* from = static_cast<const BFloat16*>(source);
      for (std::int32_t i = 0; i < n; ++i) values[i] = to_float(from[i]);
      return;
    }
    case DType::kF16: {
      const auto* from = static_cast<const Float16*>(source);
      for (std::int32_t i = 0; i < n; ++i) values[i] = to_float(from[i]);
      return;
    }
    default: break;
  }
  std::memcpy(values, source, static_cast<std::size_t>(n) * sizeof(float));
}

// Rounds to nearest even where `dtype` is narrower than f32.
inline void store(const float* values, std::int32_t n, void* target, DType dtype) {
  switch (dtype) {
    case DType::kBF16: {
      auto* to = static_cast<BFloat16*>(target);
      for (std::int32_t i = 0; i < n; ++i) to[i] = from_float<BFloat16>(values[i]);
      return;
    }
    case DType::kF16: {
      auto* to = static_cast<Float16*>(target);
      for (std::int32_t i = 0; i < n; ++i) to[i] = from_float<Float16>(values[i]);
      return;
    }
    default: break;
  }
  std::memcpy(target, values, static_cast<std::size_t>(n) * sizeof(float));
}

// What storing in `dtype` and loading again makes of a value.
inline void round_through(float* values, std::int32_t n, DType dtype) {
  if (dtype == DType::kBF16) {
    for (std::int32_t i = 0; i < n; ++i) values[i] = to_float(from_float<BFloat16>(values[i]));
  } else if (dtype == DType::kF16) {
    for (std::int32_t i = 0; i < n; ++i) values[i] = to_float(from_float<Float16>(values[i]));
  }
}

}  // namespace replayssm::cpu
