// Loops over the tokens of a pass, for what stands between the products: norms, gates, turns,
// copies.
#pragma once

#include <algorithm>
#include <cstdint>

#include "model/layers/worker_pool.hpp"

namespace replayssm::model {

// About the numbers of a piece of such a loop. A number takes 0.3 ns (a sum) to 2 ns (a
// sigmoid), so a piece 4 to 30 us, beside which the workers' part in it costs little.
constexpr std::int64_t kPieceNumbers = 16384;

// body(first, count, worker) for pieces of the tokens [0, tokens), each token `numbers` numbers. A
// single piece, as of one token, runs on the calling thread. The pieces are the same for any number
// of workers, and a body that keeps to its own tokens gives the same result.
template <typename Body>
void for_tokens(WorkerPool& pool, std::int64_t tokens, std::int64_t numbers, Body&& body) {
  const std::int64_t piece =
      std::max<std::int64_t>(1, kPieceNumbers / std::max<std::int64_t>(1, numbers));
  pool.for_each((tokens + piece - 1) / piece, [&](std::int64_t index, int worker) {
    const std::int64_t first = index * piece;
    body(first, std::min(piece, tokens - first), worker);
  });
}

}  // namespace replayssm::model
