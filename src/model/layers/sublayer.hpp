// What a layer of a model is to the forward pass: something that turns normalised inputs into an
// addend of the residual. One file a kind: mamba2_layer, gdn_layer, kda_layer, attention_layer,
// latent_attention_layer, mlp_layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/layers/attention.hpp"
#include "model/layers/kv_cache.hpp"
#include "model/layers/linear.hpp"
#include "model/layers/rotary.hpp"
#include "replayssm/cache.hpp"
#include "replayssm/layer.hpp"
#include "replayssm/status.hpp"

namespace replayssm::model {

// The tokens of one sequence, in the order of the cache's rows.
struct ForwardRow {
  KvCache* kv = nullptr;
  std::int64_t first = 0;  // of its tokens in the packed list
  std::int64_t tokens = 0;
  bool prefill = false;
};

// Elements a token that a layer needs of the working memory that all layers share.
struct Widths {
  std::int64_t projected = 0;  // activations: what the first products give
  std::int64_t prepared = 0;   // activations: convolved inputs, queries that have turned
  std::int64_t recurred = 0;   // f32: what the recurrent cache gives
  std::int64_t inner = 0;      // activations: what the last product takes
  std::int64_t keys = 0;       // activations
  std::int64_t values = 0;     // activations
  std::int64_t head = 0;       // f32, a worker instead of a token: a head that is normed and turned

  // The larger of each.
  void grow(const Widths& other);
};

// That memory, [max_tokens, width] each, gap-free for as many tokens as a pass has.
struct Workspace {
  std::vector<std::byte> normed;  // [tokens, hidden] activations: the layer's input
  std::vector<float> mixed;       // [tokens, hidden]: the layer's output
  std::vector<std::byte> projected, prepared, inner, keys, values;
  std::vector<float> recurred;
  std::vector<float> heads;  // [workers, head_width]
  std::int64_t head_width = 0;

  [[nodiscard]] float* head(int worker) { return heads.data() + worker * head_width; }
};

// One forward of a batch as a layer sees it.
struct Pass {
  std::int64_t tokens = 0;
  std::int64_t hidden = 0;
  DType activations = DType::kF32;
  double norm_epsilon = 0.0;
  std::span<const ForwardRow> rows;
  std::span<const AttentionRow> attention_rows;  // the same rows
  bool any_step = false;
  bool any_prefill = false;
  Workspace& memory;
  const Rotary& rotary;  // of the tokens' positions
  Attention& attention;
  ProductContext& products;
  Cache& cache;
};

// Writes the keys [tokens, key_width] and values [tokens, value_width] of working memory into the
// caches of their sequences; value_width 0: keys alone. place: the layer's in those caches.
void remember(Pass& pass, std::int32_t place, std::int64_t key_width, std::int64_t value_width);

// What the recurrent cache has to know of a layer. The weights point into the layer.
struct RecurrentLayer {
  LayerShape shape;
  LayerWeights weights;
};

// Immutable once loaded, used by several passes at a time. A layer that was made from an outline
// (weight_source.hpp) answers every question but cannot run.
class Sublayer {
 public:
  Sublayer() = default;
  Sublayer(const Sublayer&) = delete;
  Sublayer& operator=(const Sublayer&) = delete;
  virtual ~Sublayer() = default;

  [[nodiscard]] virtual Widths widths() const = 0;
  // Of layers with a recurrent state, and of those that keep keys and values; at most one of the
  // two.
  [[nodiscard]] virtual std::optional<RecurrentLayer> recurrent() const { return std::nullopt; }
  [[nodiscard]] virtual std::optional<KvLayer> kv() const { return std::nullopt; }

  // memory.mixed = f(memory.normed) for all tokens of the pass. `place`: the layer's number among
  // the recurrent layers, or among those with keys and values.
  [[nodiscard]] virtual Status run(Pass& pass, std::int32_t place) const = 0;
};

}  // namespace replayssm::model
