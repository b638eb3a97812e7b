// See rotary.hpp.
#include "model/layers/rotary.hpp"

#include <cmath>

#include "model/layers/token_loop.hpp"

namespace replayssm::model {
namespace {

// A sine and a cosine take as long as about as many of the numbers that for_tokens counts.
constexpr std::int64_t kAngleNumbers = 16;

}  // namespace

Rotary::Rotary(std::int64_t dims, double theta) : dims_(dims) {
  for (std::int64_t i = 0; i < dims / 2; ++i) {
    frequencies_.push_back(
        std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(dims)));
  }
}

void Rotary::prepare(std::span<const std::int64_t> positions, WorkerPool& pool) {
  // In double: a position of some 100,000 times a frequency in f32 would be off by 0.01.
  const std::size_t half = frequencies_.size();
  cosines_.resize(positions.size() * half);
  sines_.resize(positions.size() * half);
  const auto turn = [&](std::int64_t first, std::int64_t count, int) {
    const auto end = static_cast<std::size_t>(first + count);
    for (auto t = static_cast<std::size_t>(first); t < end; ++t) {
      for (std::size_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(positions[t]) * frequencies_[i];
        cosines_[t * half + i] = static_cast<float>(std::cos(angle));
        sines_[t * half + i] = static_cast<float>(std::sin(angle));
      }
    }
  };
  for_tokens(pool, static_cast<std::int64_t>(positions.size()), dims_ / 2 * kAngleNumbers, turn);
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
