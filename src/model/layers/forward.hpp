// One forward pass over a packed batch: tokens in, logits out.
//
// The caller has opened the recurrent cache's forward (begin, fold) and commits it afterwards.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/layers/attention.hpp"
#include "model/layers/linear.hpp"
#include "model/layers/network.hpp"
#include "model/layers/rotary.hpp"
#include "model/layers/sublayer.hpp"
#include "replayssm/cache.hpp"
#include "replayssm/status.hpp"

namespace replayssm::model {

class Forward {
 public:
  // Allocates working memory for `max_tokens` tokens a pass. `network` and `pool` must outlive it.
  Forward(const Network& network, WorkerPool& pool, std::int64_t max_tokens);

  // Runs all layers. tokens: ids inside the vocabulary, max_tokens at most. After a failure the
  // caller aborts the cache's forward; the keys and values written lie beyond every committed
  // length.
  [[nodiscard]] Status run(std::span<const std::int32_t> tokens, std::span<const ForwardRow> rows,
                           Cache& cache);

  // The final norm and the head for some tokens of the last run. hidden: [positions, hidden] after
  // the norm, f32, or null; logits: [positions, vocab].
  [[nodiscard]] Status logits(std::span<const std::int64_t> positions, float* hidden,
                              float* logits);

 private:
  // Room for the keys and values of all rows.
  [[nodiscard]] static Status reserve(std::span<const ForwardRow> rows);
  void normalise(const float* in, const std::vector<float>& weight, std::int64_t rows, void* out);

  const Network& network_;
  ProductContext products_;
  Attention attention_;
  Rotary rotary_;
  std::int64_t max_tokens_;
  DType activations_;
  std::vector<AttentionRow> attention_rows_;
  std::vector<std::int64_t> positions_;
  std::vector<float> residual_;  // [max_tokens, hidden]
  Workspace memory_;
};

}  // namespace replayssm::model
