// Causal attention with grouped queries and no positional encoding, and the keys and values it
// remembers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/layers/worker_pool.hpp"
#include "replayssm/dtype.hpp"
#include "replayssm/status.hpp"

namespace replayssm::model {

struct AttentionShape {
  std::int64_t layers = 0;  // attention layers of the model
  std::int64_t heads = 0;   // of queries; a multiple of kv_heads
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  DType dtype = DType::kF32;  // of queries, keys, values and outputs: f32 or bf16

  [[nodiscard]] std::int64_t kv_bytes_per_token() const {
    return 2 * layers * kv_heads * head_dim * static_cast<std::int64_t>(dtype_bytes(dtype));
  }
};

// Keys and values of one sequence, all attention layers, in pages of kPageTokens tokens that forks
// share until one of them writes. A page is [layer][key, value][kv_head][kPageTokens][head_dim].
class KvCache {
 public:
  static constexpr std::int64_t kPageTokens = 64;

  explicit KvCache(const AttentionShape& shape) : shape_(shape) {}

  // Committed tokens. Those beyond are overwritten by the next write.
  [[nodiscard]] std::int64_t length() const { return length_; }
  void set_length(std::int64_t tokens) { length_ = tokens; }

  // A second cache with the same committed tokens.
  [[nodiscard]] KvCache fork() const;

  // Makes positions length() .. length() + tokens writable: adds pages, copies shared ones. Nothing
  // committed changes. kResourceExhausted: no memory.
  [[nodiscard]] Status reserve(std::int64_t tokens);

  // Writes one reserved position of one layer; key, value: [kv_heads, head_dim].
  void write(std::int64_t layer, std::int64_t position, const void* key, const void* value);

  // [kPageTokens, head_dim] of one page.
  [[nodiscard]] const std::byte* keys(std::int64_t layer, std::int64_t page,
                                      std::int64_t kv_head) const;
  [[nodiscard]] const std::byte* values(std::int64_t layer, std::int64_t page,
                                        std::int64_t kv_head) const;

  // Of the pages, shared ones counted in full.
  [[nodiscard]] std::int64_t bytes() const;

 private:
  using Page = std::shared_ptr<std::vector<std::byte>>;
  [[nodiscard]] std::int64_t page_bytes() const {
    return kPageTokens * shape_.kv_bytes_per_token();
  }
  [[nodiscard]] std::int64_t offset(std::int64_t layer, std::int64_t which,
                                    std::int64_t kv_head) const;

  AttentionShape shape_;
  std::int64_t length_ = 0;
  std::vector<Page> pages_;
};

// The tokens of one sequence in a forward: `tokens` queries at positions length() and on, whose
// keys and values have been written.
struct AttentionRow {
  const KvCache* cache = nullptr;
  std::int64_t first = 0;  // of its tokens in the packed tensors
  std::int64_t tokens = 0;
};

// out[token, head] = sum over the positions up to the token's own of softmax(q k / sqrt(head_dim))
// v. query, out: [all tokens, heads, head_dim], gap-free. Scores, softmax and sums in f32; a
// token's result depends on its own sequence alone.
class Attention {
 public:
  Attention(const AttentionShape& shape, WorkerPool& pool);
  void run(std::int64_t layer, std::span<const AttentionRow> rows, const void* query, void* out);

 private:
  struct Item {
    const KvCache* cache = nullptr;
    std::int64_t token = 0;
    std::int64_t positions = 0;  // that it sees, itself included
    std::int64_t kv_head = 0;
  };
  template <typename Element>
  void run_item(const Item& item, std::int64_t layer, const Element* query, Element* out,
                float* scratch) const;

  AttentionShape shape_;
  WorkerPool& pool_;
  std::vector<Item> items_;
  std::vector<std::vector<float>> scratch_;  // one a worker
};

}  // namespace replayssm::model
