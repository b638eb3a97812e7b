// See latent_attention_layer.hpp.
#include "model/layers/latent_attention_layer.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "model/layers/norms.hpp"
#include "model/layers/token_loop.hpp"

namespace replayssm::model {
namespace {

// The transpose of [rows, columns], elements of `size` bytes.
std::vector<std::byte> transposed(const std::byte* from, std::int64_t rows, std::int64_t columns,
                                  std::int64_t size) {
  std::vector<std::byte> to(static_cast<std::size_t>(rows * columns * size));
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      std::memcpy(to.data() + (column * rows + row) * size, from + (row * columns + column) * size,
                  static_cast<std::size_t>(size));
    }
  }
  return to;
}

class LatentAttentionLayer final : public Sublayer {
 public:
  LatentAttentionLayer(const ModelConfig& config, const std::string& prefix, WeightSource& source)
      : shape_(config.latent) {
    const std::int64_t hidden = config.hidden_size;
    const std::int64_t queries = shape_.heads * shape_.key_dim();
    if (shape_.q_rank == 0) {
      query_ = source.linear(prefix + "q_proj.weight", queries, hidden);
    } else {
      query_a_ = source.linear(prefix + "q_a_proj.weight", shape_.q_rank, hidden);
      query_norm_ = source.norm(prefix + "q_a_layernorm.weight", shape_.q_rank);
      query_ = source.linear(prefix + "q_b_proj.weight", queries, shape_.q_rank);
    }
    row_ = source.linear(prefix + "kv_a_proj_with_mqa.weight", row_width(), hidden);
    row_norm_ = source.norm(prefix + "kv_a_layernorm.weight", shape_.kv_rank);
    load_factors(prefix + "kv_b_proj.weight", source);
    out_ = source.linear(prefix + "o_proj.weight", hidden, shape_.heads * shape_.value_dim);
  }

  [[nodiscard]] Widths widths() const override {
    Widths widths;
    widths.projected = shape_.heads * std::max(shape_.key_dim(), shape_.value_dim);
    widths.prepared = std::max(shape_.heads * row_width(), shape_.q_rank);
    widths.recurred = std::max(row_width(), shape_.q_rank);
    widths.inner = shape_.heads * shape_.kv_rank;
    widths.keys = row_width();
    return widths;
  }

  [[nodiscard]] std::optional<KvLayer> kv() const override { return KvLayer{1, row_width(), 0}; }

  [[nodiscard]] Status run(Pass& pass, std::int32_t place) const override {
    Workspace& memory = pass.memory;
    REPLAYSSM_RETURN_IF_ERROR(project(pass));
    remember(pass, place, row_width(), 0);
    REPLAYSSM_RETURN_IF_ERROR(absorb_queries(pass));
    AttentionShape shape;
    shape.heads = shape_.heads;
    shape.kv_heads = 1;
    shape.key_dim = row_width();
    shape.value_dim = shape_.kv_rank;
    shape.scale = 1.0F / std::sqrt(static_cast<float>(shape_.key_dim()));
    shape.dtype = pass.activations;
    pass.attention.run(shape, place, pass.attention_rows, memory.prepared.data(),
                       memory.inner.data());
    REPLAYSSM_RETURN_IF_ERROR(expand_outputs(pass));
    return out_.run(memory.projected.data(), pass.tokens, memory.mixed.data(), DType::kF32,
                    pass.products);
  }

 private:
  [[nodiscard]] std::int64_t row_width() const { return shape_.kv_rank + shape_.rope_dim; }
  static std::int64_t element_size(const Pass& pass) {
    return static_cast<std::int64_t>(dtype_bytes(pass.activations));
  }

  // kv_b holds for each head nope_dim rows of W_k and then value_dim rows of W_v.
  void load_factors(const std::string& name, WeightSource& source) {
    const std::int64_t head_rows = shape_.nope_dim + shape_.value_dim;
    const MatrixView both = source.matrix(name, shape_.heads * head_rows, shape_.kv_rank);
    if (source.outline()) return;
    const auto size = static_cast<std::int64_t>(dtype_bytes(both.dtype));
    for (std::int64_t head = 0; head < shape_.heads && source.status().ok(); ++head) {
      const std::byte* rows =
          static_cast<const std::byte*>(both.data) + head * head_rows * shape_.kv_rank * size;
      const std::vector<std::byte> turned = transposed(rows, shape_.nope_dim, shape_.kv_rank, size);
      MatrixView keys = both;
      keys.data = turned.data();
      keys.outputs = shape_.kv_rank;
      keys.inputs = shape_.nope_dim;
      keys_.push_back(source.packed(keys, name));
      MatrixView values = both;
      values.data = rows + shape_.nope_dim * shape_.kv_rank * size;
      values.outputs = shape_.value_dim;
      values_.push_back(source.packed(values, name));
    }
  }

  // Queries into memory.projected, the rows to remember into memory.keys.
  [[nodiscard]] Status project(Pass& pass) const {
    Workspace& memory = pass.memory;
    const void* normed = memory.normed.data();
    const void* in = normed;
    // What is normed stays in f32 until then.
    float* wide = memory.recurred.data();
    if (shape_.q_rank > 0) {
      REPLAYSSM_RETURN_IF_ERROR(
          query_a_.run(normed, pass.tokens, wide, DType::kF32, pass.products));
      norm_rows(pass, query_norm_, shape_.q_rank, shape_.q_rank, memory.prepared.data());
      in = memory.prepared.data();
    }
    REPLAYSSM_RETURN_IF_ERROR(
        query_.run(in, pass.tokens, memory.projected.data(), pass.activations, pass.products));
    REPLAYSSM_RETURN_IF_ERROR(row_.run(normed, pass.tokens, wide, DType::kF32, pass.products));
    norm_rows(pass, row_norm_, shape_.kv_rank, row_width(), memory.keys.data());
    return {};
  }

  // The norm of the first `normed` of each `width` numbers of memory.recurred, the others as they
  // are.
  void norm_rows(Pass& pass, const std::vector<float>& weight, std::int64_t normed,
                 std::int64_t width, std::byte* out) const {
    with_element(pass.activations, [&](auto element) {
      for_tokens(pass.products.pool(), pass.tokens, width,
                 [&](std::int64_t first, std::int64_t count, int) {
                   const float* from = pass.memory.recurred.data() + first * width;
                   auto* to = reinterpret_cast<decltype(element)*>(out) + first * width;
                   for (std::int64_t i = 0; i < count; ++i, from += width, to += width) {
                     rms_norm(from, weight.data(), shape_.norm_epsilon, 1, normed, to);
                     for (std::int64_t k = normed; k < width; ++k) store(from[k], to + k);
                   }
                 });
    });
  }

  // memory.prepared = (W_k^T q_nope, q_rope) of each head.
  [[nodiscard]] Status absorb_queries(Pass& pass) const {
    Workspace& memory = pass.memory;
    const std::int64_t from_stride = shape_.heads * shape_.key_dim();
    const std::int64_t to_stride = shape_.heads * row_width();
    REPLAYSSM_RETURN_IF_ERROR(Linear::run_each(
        keys_, {memory.projected.data(), from_stride, shape_.key_dim()}, pass.tokens,
        {memory.prepared.data(), to_stride, row_width()}, pass.activations, pass.products));
    const std::int64_t element = element_size(pass);
    const std::int64_t rope = shape_.heads * shape_.rope_dim;
    for_tokens(pass.products.pool(), pass.tokens, rope, [&](auto first, auto count, int) {
      for (std::int64_t at = first * shape_.heads; at < (first + count) * shape_.heads; ++at) {
        std::memcpy(memory.prepared.data() + (at * row_width() + shape_.kv_rank) * element,
                    memory.projected.data() + (at * shape_.key_dim() + shape_.nope_dim) * element,
                    static_cast<std::size_t>(shape_.rope_dim * element));
      }
    });
    return {};
  }

  // memory.projected = W_v of each head times its sums in memory.inner.
  [[nodiscard]] Status expand_outputs(Pass& pass) const {
    Workspace& memory = pass.memory;
    return Linear::run_each(
        values_, {memory.inner.data(), shape_.heads * shape_.kv_rank, shape_.kv_rank}, pass.tokens,
        {memory.projected.data(), shape_.heads * shape_.value_dim, shape_.value_dim},
        pass.activations, pass.products);
  }

  LatentAttentionConfig shape_;
  Linear query_a_;                 // with q_rank: its first factor
  std::vector<float> query_norm_;  // [q_rank], or empty
  Linear query_;
  Linear row_;                   // kv_a: outputs c, r
  std::vector<float> row_norm_;  // [kv_rank]
  std::vector<Linear> keys_;     // one a head, W_k^T: nope_dim to kv_rank
  std::vector<Linear> values_;   // one a head, W_v: kv_rank to value_dim
  Linear out_;
};

}  // namespace

std::unique_ptr<Sublayer> load_latent_attention(const ModelConfig& config,
                                                const std::string& prefix, WeightSource& source) {
  return std::make_unique<LatentAttentionLayer>(config, prefix, source);
}

}  // namespace replayssm::model
