// A model's layers with their weights, whatever its family: embeddings, sublayers h <- h +
// f(rms_norm(h)), a final norm and the head.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.hpp"
#include "model/layers/families.hpp"
#include "model/layers/kv_cache.hpp"
#include "model/layers/linear.hpp"
#include "model/layers/sublayer.hpp"
#include "model/layers/weights.hpp"
#include "replayssm/layer.hpp"
#include "replayssm/status.hpp"

namespace replayssm::model {

// What follows from a configuration without weights.
struct Outline {
  std::vector<ExpectedTensor> tensors;
  std::vector<LayerShape> recurrent;  // one a recurrent layer
  std::vector<KvLayer> kv;            // one a layer that keeps keys and values
};

[[nodiscard]] Outline outline(const ModelConfig& config);

// Immutable after load().
class Network {
 public:
  // Packs all matrices for `compute` (kF32 or kBF16). The embeddings stay in the checkpoint's
  // mapping, which must outlive the network.
  [[nodiscard]] static Result<Network> load(const ModelConfig& config, const WeightMap& weights,
                                            DType compute, WorkerPool& pool);

  // A stage and its number among the recurrent layers, or among those with keys and values.
  struct Placed {
    Stage stage;
    std::int32_t place = 0;
  };

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] DType compute() const { return compute_; }
  [[nodiscard]] const std::vector<Placed>& layers() const { return layers_; }
  [[nodiscard]] const std::vector<float>& final_norm() const { return final_norm_; }
  [[nodiscard]] const Linear& head() const { return head_; }

  // Row `token` of the embeddings, in f32.
  void embed(std::int32_t token, float* out) const;
  // Row `token` of the head's matrix as stored, in f32.
  void head_row(std::int32_t token, float* out) const;

  // What the layers need of working memory, each width the largest of all.
  [[nodiscard]] Widths widths() const;
  // For CacheConfig, one a recurrent layer; weights point into this object.
  [[nodiscard]] std::vector<RecurrentLayer> recurrent() const;
  [[nodiscard]] KvShape kv_shape() const;

  // Bytes of packed weights and vectors.
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  // A product type that the machine lacks was replaced (see Linear::emulated).
  [[nodiscard]] bool emulated() const { return head_.emulated(); }

 private:
  friend Outline outline(const ModelConfig& config);
  void build(const ModelConfig& config, WeightSource& source);

  ModelConfig config_;
  DType compute_ = DType::kF32;
  MatrixView embeddings_;
  MatrixView head_matrix_;
  std::vector<Placed> layers_;
  std::vector<float> final_norm_;
  Linear head_;
  std::int64_t bytes_ = 0;
};

}  // namespace replayssm::model
