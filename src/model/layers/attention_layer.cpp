// See attention_layer.hpp.
#include "model/layers/attention_layer.hpp"

#include <cmath>
#include <vector>

#include "model/layers/norms.hpp"
#include "model/layers/token_loop.hpp"

namespace replayssm::model {
namespace {

class AttentionLayer final : public Sublayer {
 public:
  AttentionLayer(const ModelConfig& config, const std::string& prefix, WeightSource& source)
      : shape_(config.attention) {
    const std::int64_t hidden = config.hidden_size;
    query_ = source.linear(prefix + "q_proj.weight", shape_.heads * query_stride(), hidden);
    key_ = source.linear(prefix + "k_proj.weight", keys(), hidden);
    value_ = source.linear(prefix + "v_proj.weight", keys(), hidden);
    out_ = source.linear(prefix + "o_proj.weight", hidden, queries());
    if (shape_.qk_norm) {
      query_norm_ = source.norm(prefix + "q_norm.weight", shape_.head_dim);
      key_norm_ = source.norm(prefix + "k_norm.weight", shape_.head_dim);
    }
  }

  [[nodiscard]] Widths widths() const override {
    Widths widths;
    widths.projected = shape_.heads * query_stride();
    widths.prepared = changes_queries() ? queries() : 0;
    widths.inner = queries();
    widths.keys = keys();
    widths.values = keys();
    widths.head = changes_queries() ? shape_.head_dim : 0;
    return widths;
  }

  [[nodiscard]] std::optional<KvLayer> kv() const override {
    return KvLayer{shape_.kv_heads, shape_.head_dim, shape_.head_dim};
  }

  [[nodiscard]] Status run(Pass& pass, std::int32_t place) const override {
    const DType type = pass.activations;
    Workspace& memory = pass.memory;
    const void* normed = memory.normed.data();
    REPLAYSSM_RETURN_IF_ERROR(
        query_.run(normed, pass.tokens, memory.projected.data(), type, pass.products));
    REPLAYSSM_RETURN_IF_ERROR(
        key_.run(normed, pass.tokens, memory.keys.data(), type, pass.products));
    REPLAYSSM_RETURN_IF_ERROR(
        value_.run(normed, pass.tokens, memory.values.data(), type, pass.products));
    if (changes_queries())
      with_element(type, [&](auto element) { prepare<decltype(element)>(pass); });
    remember(pass, place, keys(), keys());
    AttentionShape shape;
    shape.heads = shape_.heads;
    shape.kv_heads = shape_.kv_heads;
    shape.key_dim = shape_.head_dim;
    shape.value_dim = shape_.head_dim;
    shape.scale = 1.0F / std::sqrt(static_cast<float>(shape_.head_dim));
    shape.dtype = type;
    pass.attention.run(shape, place, pass.attention_rows,
                       changes_queries() ? memory.prepared.data() : memory.projected.data(),
                       memory.inner.data());
    if (shape_.output_gate)
      with_element(type, [&](auto element) { gate<decltype(element)>(pass); });
    return out_.run(memory.inner.data(), pass.tokens, memory.mixed.data(), DType::kF32,
                    pass.products);
  }

 private:
  [[nodiscard]] std::int64_t queries() const { return shape_.heads * shape_.head_dim; }
  [[nodiscard]] std::int64_t keys() const { return shape_.kv_heads * shape_.head_dim; }
  // Elements from one head's query to the next in a projected row.
  [[nodiscard]] std::int64_t query_stride() const {
    return shape_.head_dim * (shape_.output_gate ? 2 : 1);
  }
  // Whether projected queries are anything but what the scores take.
  [[nodiscard]] bool changes_queries() const {
    return shape_.output_gate || shape_.qk_norm || shape_.rotary_dims > 0;
  }

  // The norm and the turn of one head, in f32.
  template <typename Element>
  void prepare_head(const Pass& pass, std::int64_t token, const Element* in,
                    const std::vector<float>& norm, float* head, Element* out) const {
    const std::int64_t dim = shape_.head_dim;
    for (std::int64_t i = 0; i < dim; ++i) head[i] = load(in[i]);
    if (shape_.qk_norm) rms_norm(head, norm.data(), pass.norm_epsilon, 1, dim, head);
    if (shape_.rotary_dims > 0) pass.rotary.turn(token, head);
    for (std::int64_t i = 0; i < dim; ++i) store(head[i], out + i);
  }

  // Queries into memory.prepared, keys in place.
  template <typename Element>
  void prepare(Pass& pass) const {
    const auto* projected = reinterpret_cast<const Element*>(pass.memory.projected.data());
    auto* prepared = reinterpret_cast<Element*>(pass.memory.prepared.data());
    auto* key = reinterpret_cast<Element*>(pass.memory.keys.data());
    const std::int64_t dim = shape_.head_dim;
    for_tokens(pass.products.pool(), pass.tokens, queries() + keys(),
               [&](std::int64_t first, std::int64_t count, int worker) {
                 float* head = pass.memory.head(worker);
                 for (std::int64_t token = first; token < first + count; ++token) {
                   for (std::int64_t h = 0; h < shape_.heads; ++h) {
                     const std::int64_t at = token * shape_.heads + h;
                     prepare_head(pass, token, projected + at * query_stride(), query_norm_, head,
                                  prepared + at * dim);
                   }
                   for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
                     Element* at = key + (token * shape_.kv_heads + h) * dim;
                     prepare_head(pass, token, at, key_norm_, head, at);
                   }
                 }
               });
  }

  // memory.inner times sigmoid of the gates.
  template <typename Element>
  void gate(Pass& pass) const {
    const auto* projected = reinterpret_cast<const Element*>(pass.memory.projected.data());
    auto* inner = reinterpret_cast<Element*>(pass.memory.inner.data());
    const std::int64_t dim = shape_.head_dim;
    for_tokens(pass.products.pool(), pass.tokens, queries(),
               [&](std::int64_t first, std::int64_t count, int) {
                 const std::int64_t end = (first + count) * shape_.heads;
                 for (std::int64_t at = first * shape_.heads; at < end; ++at) {
                   const Element* gates = projected + at * query_stride() + dim;
                   for (std::int64_t i = 0; i < dim; ++i) {
                     Element* value = inner + at * dim + i;
                     store(load(*value) * sigmoid(load(gates[i])), value);
                   }
                 }
               });
  }

  AttentionConfig shape_;
  Linear query_;
  Linear key_;
  Linear value_;
  Linear out_;
  std::vector<float> query_norm_;  // [head_dim], or empty
  std::vector<float> key_norm_;
};

}  // namespace

std::unique_ptr<Sublayer> load_attention(const ModelConfig& config, const std::string& prefix,
                                         WeightSource& source) {
  return std::make_unique<AttentionLayer>(config, prefix, source);
}

}  // namespace replayssm::model
