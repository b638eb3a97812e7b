// exp, softplus, sigmoid and silu on vectors, for gates. Errors are a few units in the last place,
// measured in tests/simd; a level is consistent with itself, since steps and folds call the same
// code. tools/fit_elementary.py finds the coefficients of the fitted sums.
#pragma once

namespace replayssm::cpu {

// e^x: x = n ln 2 + r with |r| <= ln 2 / 2, e^r by its Taylor sum to r^7 (within 8e-9), scaled by
// 2^n down to the smallest subnormal. Below -104: 0. NaN stays NaN.
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
  return V::select_less(x, V::all(-104.0F), V::zero(), V::scale_by_power(sum, n));
}

template <class V>
[[nodiscard]] inline V vector_sigmoid(V x) {
  return V::all(1.0F) / (V::all(1.0F) + vector_exp(V::negate(x)));
}

// 2^t from -200 to 127, for exponents that carry a rounding of their own: the sum is fitted to
// 2^r on |r| <= 1/2 within 3e-9. NaN stays NaN.
template <class V>
[[nodiscard]] inline V vector_exp2(V t) {
  const V bounded = V::min(V::all(127.0F), V::max(V::all(-200.0F), t));
  const V n = V::round(bounded);
  const V r = bounded - n;
  V sum = V::all(1.53264540e-4F);
  sum = V::fma(sum, r, V::all(1.33908074e-3F));
  sum = V::fma(sum, r, V::all(9.61850584e-3F));
  sum = V::fma(sum, r, V::all(5.55035993e-2F));
  sum = V::fma(sum, r, V::all(2.40226477e-1F));
  sum = V::fma(sum, r, V::all(6.93147182e-1F));
  return V::scale_by_power(V::fma(sum, r, V::all(1.0F)), n);
}

// log(1 + y) on 0..1 as y + y^2 q(y), q fitted so that the error is below 6e-9 of the whole.
template <class V>
[[nodiscard]] inline V vector_log1p(V y) {
  V sum = V::all(-3.30757536e-3F);
  sum = V::fma(sum, y, V::all(2.01519988e-2F));
  sum = V::fma(sum, y, V::all(-5.75595945e-2F));
  sum = V::fma(sum, y, V::all(1.06693648e-1F));
  sum = V::fma(sum, y, V::all(-1.53484777e-1F));
  sum = V::fma(sum, y, V::all(1.96929038e-1F));
  sum = V::fma(sum, y, V::all(-2.49580890e-1F));
  sum = V::fma(sum, y, V::all(3.33304644e-1F));
  sum = V::fma(sum, y, V::all(-4.99999315e-1F));
  return V::fma(sum, y * y, y);
}

// log(1 + e^x) = max(x, 0) + log(1 + e^-|x|)
template <class V>
[[nodiscard]] inline V vector_softplus(V x) {
  const V y = vector_exp2(V::absolute(x) * V::all(-1.44269504F));
  // max() takes its second operand for NaN, so a NaN input stays one.
  return V::max(V::zero(), x) + vector_log1p(y);
}

}  // namespace replayssm::cpu
