// Normalisations and activations of the layers, in f32.
#pragma once

#include <cmath>
#include <cstdint>

#include "model/layers/bf16.hpp"
#include "replayssm/dtype.hpp"

namespace replayssm::model {

inline void store(float value, float* out) { *out = value; }
inline void store(float value, std::uint16_t* out) { *out = f32_to_bf16(value); }
inline float load(float value) { return value; }
inline float load(std::uint16_t value) { return bf16_to_f32(value); }

// function(element) with a number of the type that holds activations: float, or std::uint16_t for
// the bits of bf16.
template <typename Function>
decltype(auto) with_element(DType activations, Function&& function) {
  if (activations == DType::kF32) return function(float());
  return function(std::uint16_t());
}

// exp of -x overflows to infinity for small x, and the quotient is 0 then, as it should be.
[[nodiscard]] inline float sigmoid(float x) { return 1.0F / (1.0F + std::exp(-x)); }
[[nodiscard]] inline float silu(float x) { return x / (1.0F + std::exp(-x)); }

// Sum of squares of a row, in double: long rows (d_inner beyond 10,000) would lose digits that the
// tests of the logits see.
[[nodiscard]] double sum_of_squares(const float* in, std::int64_t width);

// out = in * rsqrt(mean(in^2) + epsilon) * weight over rows of `width`. Out: f32 or bf16 (as its 16
// bits); may be `in` itself.
template <typename Out>
void rms_norm(const float* in, const float* weight, double epsilon, std::int64_t rows,
              std::int64_t width, Out* out);

// The same with the mean over each of `groups` equal parts of a row (the gated norm of Mamba-2,
// whose gate the cache has already multiplied in: gate first, then the norm).
template <typename Out>
void group_rms_norm(const float* in, const float* weight, double epsilon, std::int64_t rows,
                    std::int64_t width, std::int64_t groups, Out* out);

// max(x, 0)^2 in place.
void relu_squared(float* values, std::int64_t count);
void relu_squared(std::uint16_t* values, std::int64_t count);

// out += in.
void add(const float* in, std::int64_t count, float* out);

}  // namespace replayssm::model
