// See sampler.hpp.
#include "engine/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/text.hpp"

namespace replayssm::engine {
namespace {

// The finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators,
// 2014): a bijection of 64 bits in which each input bit flips each output bit with probability
// close to one half.
std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27U)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31U);
}

constexpr std::uint64_t kGolden =
    0x9e3779b97f4a7c15U;  // 2^64 / golden ratio, SplitMix64's increment

Choice best_two(std::span<const float> logits) {
  Choice choice;
  choice.best_logit = -std::numeric_limits<float>::infinity();
  choice.second_logit = -std::numeric_limits<float>::infinity();
  choice.token = -1;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const float logit = logits[i];
    if (logit > choice.best_logit || (choice.token < 0 && logit == logit)) {
      choice.second = choice.token;
      choice.second_logit = choice.best_logit;
      choice.token = static_cast<std::int32_t>(i);
      choice.best_logit = logit;
    } else if (logit > choice.second_logit) {
      choice.second = static_cast<std::int32_t>(i);
      choice.second_logit = logit;
    }
  }
  choice.token = std::max(choice.token, 0);
  choice.second = std::max(choice.second, 0);
  return choice;
}

}  // namespace

double position_number(std::uint64_t seed, std::int64_t position) {
  // Two rounds with the seed spread first: neighbouring seeds (continuations use seed + i) and
  // neighbouring positions must not give related numbers.
  const std::uint64_t stream = mix(seed + kGolden);
  const std::uint64_t bits =
      mix(mix(stream + (static_cast<std::uint64_t>(position) + 1) * kGolden) ^ stream);
  return static_cast<double>(bits >> 11U) * 0x1.0p-53;
}

Status check_sampling(const Sampling& sampling) {
  if (!(sampling.temperature >= 0.0F) || !std::isfinite(sampling.temperature)) {
    return invalid_argument("sampling: temperature must be a number from 0, given ",
                            sampling.temperature);
  }
  if (sampling.top_k < 0) {
    return invalid_argument("sampling: top_k must be 0 (all) or more, given ", sampling.top_k);
  }
  if (!(sampling.top_p > 0.0F && sampling.top_p <= 1.0F)) {
    return invalid_argument("sampling: top_p must be above 0 and at most 1, given ",
                            sampling.top_p);
  }
  return {};
}

Choice Sampler::choose(std::span<const float> logits, const Sampling& sampling,
                       std::int64_t position) {
  if (sampling.temperature == 0.0F) return best_two(logits);
  Choice choice;
  choice.token = draw(logits, sampling, position_number(sampling.seed, position));
  return choice;
}

std::int32_t Sampler::draw(std::span<const float> logits, const Sampling& sampling, double number) {
  const double inverse = 1.0 / static_cast<double>(sampling.temperature);
  const auto count = logits.size();
  const bool filtered = (sampling.top_k > 0 && static_cast<std::size_t>(sampling.top_k) < count) ||
                        sampling.top_p < 1.0F;
  candidates_.clear();
  for (std::size_t i = 0; i < count; ++i) {
    if (logits[i] != logits[i]) continue;
    Candidate candidate;
    candidate.logit = logits[i];
    candidate.token = static_cast<std::int32_t>(i);
    candidates_.push_back(candidate);
  }
  if (candidates_.empty()) return 0;
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
  };
  if (filtered) {
    if (sampling.top_k > 0 && static_cast<std::size_t>(sampling.top_k) < candidates_.size()) {
      std::nth_element(candidates_.begin(), candidates_.begin() + sampling.top_k, candidates_.end(),
                       before);
      candidates_.resize(static_cast<std::size_t>(sampling.top_k));
    }
    std::sort(candidates_.begin(), candidates_.end(), before);
  }
  float largest = candidates_.front().logit;
  for (const Candidate& candidate : candidates_) largest = std::max(largest, candidate.logit);

  weights_.clear();
  double total = 0.0;
  for (const Candidate& candidate : candidates_) {
    // Equal infinities would make a NaN of their difference.
    const double difference = candidate.logit == largest ? 0.0
                                                         : static_cast<double>(candidate.logit) -
                                                               static_cast<double>(largest);
    weights_.push_back(std::exp(difference * inverse));
    total += weights_.back();
  }
  if (sampling.top_p < 1.0F) {
    const double wanted = total * static_cast<double>(sampling.top_p);
    double kept = 0.0;
    std::size_t keep = 0;
    while (keep < weights_.size() && kept < wanted) kept += weights_[keep++];
    weights_.resize(std::max<std::size_t>(keep, 1));
    total = kept;
  }
  double rest = number * total;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    rest -= weights_[i];
    if (rest < 0.0) return candidates_[i].token;
  }
  // Rounding can leave a hair's breadth; it belongs to the last token of any weight.
  for (std::size_t i = weights_.size(); i-- > 0;) {
    if (weights_[i] > 0.0) return candidates_[i].token;
  }
  return candidates_.front().token;
}

}  // namespace replayssm::engine
