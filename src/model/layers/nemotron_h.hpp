// The layers of nemotron_h: weights as the forward pass takes them, and what the recurrent cache
// and the attention need to know of them.
//
// Every layer is h <- h + mixer(rms_norm(h)); after the last one a norm and the head.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.hpp"
#include "model/layers/attention.hpp"
#include "model/layers/linear.hpp"
#include "model/layers/weights.hpp"
#include "replayssm/layer.hpp"
#include "replayssm/model.hpp"
#include "replayssm/status.hpp"

namespace replayssm::model {

struct Mamba2Layer {
  Linear in_proj;  // outputs z, x, B, C, dt
  Linear out_proj;
  std::vector<float> conv_weight;  // [conv_dim, conv_width]
  std::vector<float> conv_bias;    // [conv_dim], or empty
  std::vector<float> a_log;        // [heads]
  std::vector<float> d;            // [heads]
  std::vector<float> dt_bias;      // [heads]
  std::vector<float> norm;         // [d_inner]
};

struct AttentionLayer {
  Linear query, key, value, out;
};

struct MlpLayer {
  Linear up, down;
};

// Where a layer's weights stand: index into the vector of its kind.
struct LayerPlace {
  LayerKind kind = LayerKind::kMamba2;
  std::size_t index = 0;
  std::vector<float> norm;  // [hidden]
};

// The geometry that the recurrent cache sees; heads 0 where the model has no such layer.
[[nodiscard]] LayerShape recurrent_shape(const ModelConfig& config);
[[nodiscard]] AttentionShape attention_shape(const ModelConfig& config, DType activations);

// Immutable after load().
class NemotronH {
 public:
  // Packs all matrices for `compute` (kF32 or kBF16). The embeddings stay in the checkpoint's
  // mapping, which must outlive the model.
  [[nodiscard]] static Result<NemotronH> load(const ModelConfig& config, const WeightMap& weights,
                                              DType compute, WorkerPool& pool);

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] DType compute() const { return compute_; }
  [[nodiscard]] const std::vector<LayerPlace>& layers() const { return layers_; }
  [[nodiscard]] const std::vector<Mamba2Layer>& mamba2() const { return mamba2_; }
  [[nodiscard]] const std::vector<AttentionLayer>& attention() const { return attention_; }
  [[nodiscard]] const std::vector<MlpLayer>& mlp() const { return mlp_; }
  [[nodiscard]] const std::vector<float>& final_norm() const { return final_norm_; }
  [[nodiscard]] const Linear& head() const { return head_; }

  // Row `token` of the embeddings, in f32.
  void embed(std::int32_t token, float* out) const;
  // Row `token` of the head's matrix as stored, in f32.
  void head_row(std::int32_t token, float* out) const;

  // One entry a recurrent layer, for CacheConfig; points into this object.
  [[nodiscard]] std::vector<LayerWeights> recurrent_weights() const;

  // Bytes of packed weights and vectors.
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  // A product type that the machine lacks was replaced (see Linear::emulated).
  [[nodiscard]] bool emulated() const { return head_.emulated(); }

 private:
  ModelConfig config_;
  DType compute_ = DType::kF32;
  MatrixView embeddings_;
  MatrixView head_matrix_;
  std::vector<LayerPlace> layers_;
  std::vector<Mamba2Layer> mamba2_;
  std::vector<AttentionLayer> attention_;
  std::vector<MlpLayer> mlp_;
  std::vector<float> final_norm_;
  Linear head_;
  std::int64_t bytes_ = 0;
};

}  // namespace replayssm::model
