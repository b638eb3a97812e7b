// See rotary.hpp.
#include "model/layers/rotary.hpp"

#include <cmath>

namespace replayssm::model {

Rotary::Rotary(std::int64_t dims, double theta) : dims_(dims) {
  for (std::int64_t i = 0; i < dims / 2; ++i) {
    frequencies_.push_back(
        std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(dims)));
  }
}

void Rotary::prepare(std::span<const std::int64_t> positions) {
  // In double: a position of some 100,000 times a frequency in f32 would be off by 0.01.
  const std::size_t half = frequencies_.size();
  cosines_.resize(positions.size() * half);
  sines_.resize(positions.size() * half);
  for (std::size_t t = 0; t < positions.size(); ++t) {
    for (std::size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(positions[t]) * frequencies_[i];
      cosines_[t * half + i] = static_cast<float>(std::cos(angle));
      sines_[t * half + i] = static_cast<float>(std::sin(angle));
    }
  }
}

void Rotary::turn(std::int64_t token, float* head) const {
  const std::int64_t half = dims_ / 2;
  const float* cosine = cosines_.data() + token * half;
  const float* sine = sines_.data() + token * half;
  for (std::int64_t i = 0; i < half; ++i) {
    const float a = head[i];
    const float b = head[half + i];
    head[i] = a * cosine[i] - b * sine[i];
    head[half + i] = b * cosine[i] + a * sine[i];
  }
}

}  // namespace replayssm::model
