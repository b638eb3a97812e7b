// Rounding to the dtypes of the library, in plain arithmetic on doubles: ties to even, subnormals
// kept, overflow to infinity, NaN stays NaN.
#pragma once

#include "oracle/layer.hpp"
#include "replayssm/dtype.hpp"

namespace replayssm::oracle {

// The nearest value of the dtype (f32, bf16, f16); other dtypes return x unchanged.
[[nodiscard]] double round_to(double x, DType dtype);

// Largest relative error of round_to where the result is normal: 2^-24, 2^-8, 2^-11.
[[nodiscard]] double unit_roundoff(DType dtype);
// Largest absolute error of round_to near 0: half the smallest subnormal.
[[nodiscard]] double underflow_error(DType dtype);

// A layer and a token as a backend can hold them: parameters in f32; q, k, v, z in the activation
// dtype; the gate and beta inputs in `gates`. A value the caller computed itself (g, beta given) is
// f32.
[[nodiscard]] Layer round_layer(Layer layer);
[[nodiscard]] Token round_token(const Layer& layer, Token token, DType activations, DType gates);

}  // namespace replayssm::oracle
