// exp, softplus, sigmoid and silu on vectors, for gates. Errors are a few units in the last place,
// measured in tests/simd; a level is consistent with itself, since steps and folds call the same
// code.
#pragma once

namespace replayssm::cpu {

// e^x: x = n ln 2 + r with |r| <= ln 2 / 2, e^r by its Taylor sum to r^7 (next term below 2^-28),
// scaled by 2^n in two halves so that results down to the smallest subnormal come out. Below -104:
// 0. NaN stays NaN.
template <class V>
[[nodiscard]] inline V vector_exp(V x) {
  const V bounded = V::min(V::all(89.0F), V::max(V::all(-104.0F), x));
  const V n = V::round(bounded * V::all(1.44269504F));
  V r = V::fma(n, V::all(-0.693359375F), bounded);
  r = V::fma(n, V::all(2.12194440e-4F), r);
  V sum = V::all(1.0F / 5040.0F);
  sum = V::fma(sum, r, V::all(1.0F / 720.0F));
  sum = V::fma(sum, r, V::all(1.0F / 120.0F));
  sum = V::fma(sum, r, V::all(1.0F / 24.0F));
  sum = V::fma(sum, r, V::all(1.0F / 6.0F));
  sum = V::fma(sum, r, V::all(0.5F));
  sum = V::fma(sum, r, V::all(1.0F));
  sum = V::fma(sum, r, V::all(1.0F));
  const V half = V::round(n * V::all(0.5F));
  const V result = sum * V::power_of_two(half) * V::power_of_two(n - half);
  return V::select_less(x, V::all(-104.0F), V::zero(), result);
}

template <class V>
[[nodiscard]] inline V vector_sigmoid(V x) {
  return V::all(1.0F) / (V::all(1.0F) + vector_exp(V::negate(x)));
}

// log(1 + e^x) = max(x, 0) + log1p(e^-|x|); log1p(y) = 2 atanh(s) with s = y / (2 + y) <= 1/3, odd
// terms to s^15.
template <class V>
[[nodiscard]] inline V vector_softplus(V x) {
  const V y = vector_exp(V::negate(V::absolute(x)));
  const V s = y / (V::all(2.0F) + y);
  const V square = s * s;
  V sum = V::all(1.0F / 15.0F);
  sum = V::fma(sum, square, V::all(1.0F / 13.0F));
  sum = V::fma(sum, square, V::all(1.0F / 11.0F));
  sum = V::fma(sum, square, V::all(1.0F / 9.0F));
  sum = V::fma(sum, square, V::all(1.0F / 7.0F));
  sum = V::fma(sum, square, V::all(1.0F / 5.0F));
  sum = V::fma(sum, square, V::all(1.0F / 3.0F));
  sum = V::fma(sum, square, V::all(1.0F));
  // max() takes its second operand for NaN, so a NaN input stays one.
  return V::max(V::zero(), x) + (s + s) * sum;
}

}  // namespace replayssm::cpu
