// One forward pass over a packed batch: tokens in, logits out.
//
// The caller has opened the recurrent cache's forward (begin, fold) and commits it afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/layers/attention.hpp"
#include "model/layers/linear.hpp"
#include "model/layers/nemotron_h.hpp"
#include "replayssm/cache.hpp"
#include "replayssm/status.hpp"

namespace replayssm::model {

// The tokens of one sequence, in the order of the cache's rows.
struct ForwardRow {
  KvCache* kv = nullptr;
  std::int64_t first = 0;  // of its tokens in the packed list
  std::int64_t tokens = 0;
  bool prefill = false;
};

class Forward {
 public:
  // Allocates working memory for `max_tokens` tokens a pass. `model` and `pool` must outlive it.
  Forward(const NemotronH& model, WorkerPool& pool, std::int64_t max_tokens);

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
  [[nodiscard]] Status run_mamba2(std::int32_t layer, const Mamba2Layer& weights,
                                  std::int64_t tokens, Cache& cache);
  [[nodiscard]] Status run_attention(std::int64_t layer, const AttentionLayer& weights,
                                     std::int64_t tokens, std::span<const ForwardRow> rows);
  [[nodiscard]] Status run_mlp(const MlpLayer& weights, std::int64_t tokens);
  void normalise(const float* in, const std::vector<float>& weight, std::int64_t rows, void* out);

  const NemotronH& model_;
  ProductContext products_;
  Attention attention_;
  std::int64_t max_tokens_;
  DType activations_;
  bool any_step_ = false;
  bool any_prefill_ = false;
  std::vector<AttentionRow> attention_rows_;

  // [max_tokens, ...]; "activations" means f32 or bf16 elements.
  std::vector<float> residual_;       // [hidden]
  std::vector<float> mixed_;          // [hidden], a mixer's output
  std::vector<std::byte> normed_;     // [hidden] activations
  std::vector<std::byte> projected_;  // [widest projection] activations
  std::vector<std::byte> convolved_;  // [conv_dim] activations
  std::vector<float> recurred_;       // [d_inner], the cache's output
  std::vector<std::byte> inner_;      // [widest inner] activations
  std::vector<std::byte> keys_;       // [kv_heads, head_dim] activations
  std::vector<std::byte> values_;
};

}  // namespace replayssm::model
