// Walking rows of any length a vector at a time; shared by the parts of a vector level.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace replayssm::cpu {

template <class V>
struct SimdLanes {
  static constexpr std::int32_t kWidth = V::kWidth;

  // Calls body(offset, lanes) for vectors that cover n elements; n is a multiple of 8.
  template <typename Body>
  static void each(std::int32_t n, Body body) {
    std::int32_t i = 0;
    for (; i + kWidth <= n; i += kWidth) body(i, kWidth);
    if (i < n) body(i, n - i);
  }
  // The same with n known where kKeys is not 0, so that addresses of rows are constants.
  template <std::int32_t kKeys, typename Body>
  static void each_of(std::int32_t n, Body body) {
    if constexpr (kKeys != 0 && kKeys % kWidth == 0) {
      for (std::int32_t i = 0; i < kKeys; i += kWidth)
        body(i, std::integral_constant<std::int32_t, kWidth>());
    } else {
      each(n, body);
    }
  }
  // Calls body with K as a constant for the usual ones, else with 0.
  template <typename Body>
  static auto with_keys(std::int32_t keys, Body body) {
    if (keys == 128) return body(std::integral_constant<std::int32_t, 128>());
    if (keys == 64) return body(std::integral_constant<std::int32_t, 64>());
    return body(std::integral_constant<std::int32_t, 0>());
  }

  static constexpr std::size_t bytes_of(std::int32_t count, std::size_t size) {
    return static_cast<std::size_t>(count) * size;
  }

  static V load_lanes(const float* p, std::int32_t lanes) {
    return lanes == kWidth ? V::load(p) : V::load_part(p, lanes);
  }
  static void store_lanes(V x, float* p, std::int32_t lanes) {
    if (lanes == kWidth) {
      x.store(p);
    } else {
      x.store_part(p, lanes);
    }
  }
};

}  // namespace replayssm::cpu
