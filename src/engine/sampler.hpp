// Chooses a token from logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "replayssm/engine.hpp"
#include "replayssm/status.hpp"

namespace replayssm::engine {

// The number in [0, 1) that belongs to a position of a sequence. It depends on (seed, position)
// alone, so neither the batch nor drafts change what is drawn.
[[nodiscard]] double position_number(std::uint64_t seed, std::int64_t position);

[[nodiscard]] Status check_sampling(const Sampling& sampling);

struct Choice {
  std::int32_t token = 0;
  // Greedy only: the largest logit and the next one (-inf in a vocabulary of one).
  std::int32_t second = 0;
  float best_logit = 0.0F;
  float second_logit = 0.0F;
};

// Keeps working memory between calls.
class Sampler {
 public:
  // logits: all finite, or the result is the first token that is not NaN by order of ids. position:
  // of the token that is chosen, counted from the start of the prompt.
  [[nodiscard]] Choice choose(std::span<const float> logits, const Sampling& sampling,
                              std::int64_t position);

 private:
  [[nodiscard]] std::int32_t draw(std::span<const float> logits, const Sampling& sampling,
                                  double number);

  struct Candidate {
    float logit = 0.0F;
    std::int32_t token = 0;
  };
  std::vector<Candidate> candidates_;
  std::vector<double> weights_;
};

}  // namespace replayssm::engine
