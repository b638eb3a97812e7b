// Rounding by scaling to integers: nothing here looks at bits, so nothing can share a bit trick
// with the library.
#include "oracle/rounding.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace replayssm::oracle {
namespace {

struct Format {
  int digits;        // significant bits, the hidden one included
  int min_exponent;  // of the smallest normal number 2^min_exponent
  int max_exponent;  // of the largest number's leading bit
};

Format format_of(DType dtype) {
  if (dtype == DType::kBF16) return {8, -126, 127};
  if (dtype == DType::kF16) return {11, -14, 15};
  return {24, -126, 127};
}

void round_all(std::vector<double>* values, DType dtype) {
  for (double& value : *values) value = round_to(value, dtype);
}

}  // namespace

double round_to(double x, DType dtype) {
  if (!is_activation_dtype(dtype) || x == 0.0 || !std::isfinite(x)) return x;
  const Format format = format_of(dtype);
  const int exponent = std::max(std::ilogb(x), format.min_exponent);
  const int step = exponent - (format.digits - 1);  // the format's spacing here is 2^step
  const double rounded = std::scalbn(std::nearbyint(std::scalbn(x, -step)), step);
  // The first number past the largest finite one is 2^(max_exponent + 1).
  if (std::abs(rounded) >= std::scalbn(1.0, format.max_exponent + 1)) {
    return std::copysign(std::numeric_limits<double>::infinity(), x);
  }
  return rounded;
}

double unit_roundoff(DType dtype) { return std::scalbn(1.0, -format_of(dtype).digits); }

double underflow_error(DType dtype) {
  const Format format = format_of(dtype);
  return std::scalbn(1.0, format.min_exponent - format.digits);
}

Layer round_layer(Layer layer) {
  for (std::vector<double>* values : {&layer.a_log, &layer.a, &layer.dt_bias, &layer.d}) {
    round_all(values, DType::kF32);
  }
  for (double* value : {&layer.lower_bound, &layer.dt_min, &layer.dt_max, &layer.q_scale}) {
    *value = round_to(*value, DType::kF32);
  }
  return layer;
}

Token round_token(const Layer& layer, Token token, DType activations, DType gates) {
  for (std::vector<double>* values : {&token.q, &token.k, &token.v, &token.z}) {
    round_all(values, activations);
  }
  const bool gate_given = layer.delta_rule() && layer.gate == GateKind::kLogDecay;
  round_all(&token.gate, gate_given ? DType::kF32 : gates);
  round_all(&token.beta, layer.beta_given ? DType::kF32 : gates);
  return token;
}

}  // namespace replayssm::oracle
