// Causal attention with grouped queries over the keys and values of a KvCache: scores, softmax,
// sums.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/layers/kv_cache.hpp"
#include "model/layers/worker_pool.hpp"
#include "replayssm/dtype.hpp"

namespace replayssm::model {

struct AttentionShape {
  std::int64_t heads = 0;     // of queries; a multiple of kv_heads
  std::int64_t kv_heads = 0;  // as in the layer of the KvCache
  std::int64_t key_dim = 0;
  std::int64_t value_dim = 0;  // where the KvCache keeps no values: the first dims of a key
  float scale = 0.0F;          // of scores
  DType dtype = DType::kF32;   // of queries, keys, values and outputs: f32 or bf16
};

// The tokens of one sequence in a forward: `tokens` queries at positions length() and on, whose
// keys and values have been written.
struct AttentionRow {
  const KvCache* cache = nullptr;
  std::int64_t first = 0;  // of its tokens in the packed tensors
  std::int64_t tokens = 0;
};

// out[token, head] = sum over the positions up to the token's own of softmax(scale q k) v. query:
// [all tokens, heads, key_dim], out: [all tokens, heads, value_dim], both gap-free. Scores, softmax
// and sums in f32; a token's result depends on its own sequence alone.
class Attention {
 public:
  explicit Attention(WorkerPool& pool);
  // layer: of the KvCache.
  void run(const AttentionShape& shape, std::int64_t layer, std::span<const AttentionRow> rows,
           const void* query, void* out);

 private:
  struct Item {
    const KvCache* cache = nullptr;
    std::int64_t token = 0;
    std::int64_t positions = 0;  // that it sees, itself included
    std::int64_t kv_head = 0;
    std::int64_t first = 0;  // of its query heads, among those of the key head
    std::int64_t heads = 0;
  };
  template <typename Element>
  void run_item(const AttentionShape& shape, const Item& item, std::int64_t layer,
                const Element* query, Element* out, float* scratch) const;

  WorkerPool& pool_;
  std::vector<Item> items_;
  std::vector<std::vector<float>> scratch_;  // one a worker
};

}  // namespace replayssm::model
