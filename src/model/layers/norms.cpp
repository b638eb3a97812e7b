// See norms.hpp.
#include "model/layers/norms.hpp"

#include <cmath>

namespace replayssm::model {

double sum_of_squares(const float* in, std::int64_t width) {
  // Eight running sums let the compiler use vector registers without reordering anything on its
  // own.
  double sums[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= width; i += 8) {
    for (std::int64_t lane = 0; lane < 8; ++lane) {
      const double value = in[i + lane];
      sums[lane] += value * value;
    }
  }
  double total = 0.0;
  for (; i < width; ++i) total += static_cast<double>(in[i]) * in[i];
  for (const double sum : sums) total += sum;
  return total;
}

template <typename Out>
void group_rms_norm(const float* in, const float* weight, double epsilon, std::int64_t rows,
                    std::int64_t width, std::int64_t groups, Out* out) {
  const std::int64_t part = width / groups;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t group = 0; group < groups; ++group) {
      const std::int64_t offset = row * width + group * part;
      const double mean = sum_of_squares(in + offset, part) / static_cast<double>(part);
      const auto scale = static_cast<float>(1.0 / std::sqrt(mean + epsilon));
      const float* w = weight + group * part;
      for (std::int64_t i = 0; i < part; ++i)
        store(in[offset + i] * scale * w[i], out + offset + i);
    }
  }
}

template <typename Out>
void rms_norm(const float* in, const float* weight, double epsilon, std::int64_t rows,
              std::int64_t width, Out* out) {
  group_rms_norm(in, weight, epsilon, rows, width, 1, out);
}

template void rms_norm(const float*, const float*, double, std::int64_t, std::int64_t, float*);
template void rms_norm(const float*, const float*, double, std::int64_t, std::int64_t,
                       std::uint16_t*);
template void group_rms_norm(const float*, const float*, double, std::int64_t, std::int64_t,
                             std::int64_t, float*);
template void group_rms_norm(const float*, const float*, double, std::int64_t, std::int64_t,
                             std::int64_t, std::uint16_t*);

void relu_squared(float* values, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float positive = values[i] > 0.0F ? values[i] : 0.0F;
    // A NaN compares false above and must not turn into 0.
    values[i] = values[i] != values[i] ? values[i] : positive * positive;
  }
}

void relu_squared(std::uint16_t* values, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    float value = bf16_to_f32(values[i]);
    relu_squared(&value, 1);
    values[i] = f32_to_bf16(value);
  }
}

void add(const float* in, std::int64_t count, float* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] += in[i];
}

}  // namespace replayssm::model
