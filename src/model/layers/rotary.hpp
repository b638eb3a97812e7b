// Rotary position encoding: dims i and i + dims / 2 of a head turn together by an angle that grows
// with the token's position (arXiv 2104.09864, in the half-split form of GPT-NeoX).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/layers/worker_pool.hpp"

namespace replayssm::model {

// The angles of the tokens of one pass.
class Rotary {
 public:
  // dims: even, 0: nothing turns. The frequency of pair i is theta^(-2 i / dims).
  Rotary(std::int64_t dims, double theta);

  [[nodiscard]] std::int64_t dims() const { return dims_; }

  // positions: of the pass's tokens.
  void prepare(std::span<const std::int64_t> positions, WorkerPool& pool);

  // Turns the first dims() elements of a head of token number `token` of the pass.
  void turn(std::int64_t token, float* head) const;

 private:
  std::int64_t dims_;
  std::vector<double> frequencies_;  // [dims / 2]
  std::vector<float> cosines_;       // [tokens, dims / 2]
  std::vector<float> sines_;
};

}  // namespace replayssm::model
