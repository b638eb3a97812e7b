// See network.hpp.
#include "model/layers/network.hpp"

#include <cstring>
#include <string>
#include <utility>

#include "model/layers/bf16.hpp"
#include "model/layers/weight_source.hpp"

namespace replayssm::model {
namespace {

void widen_row(const MatrixView& matrix, std::int64_t row, float* out) {
  const std::int64_t offset = row * matrix.inputs;
  if (matrix.dtype == DType::kF32) {
    std::memcpy(out, static_cast<const float*>(matrix.data) + offset,
                static_cast<std::size_t>(matrix.inputs) * sizeof(float));
  } else {
    bf16_to_f32(static_cast<const std::uint16_t*>(matrix.data) + offset, out, matrix.inputs);
  }
}

}  // namespace

void Network::build(const ModelConfig& config, WeightSource& source) {
  const Family& family = family_of(config.family);
  config_ = config;
  compute_ = source.compute();
  const std::string embeddings(family.embeddings);
  embeddings_ = source.matrix(embeddings, config.vocab_size, config.hidden_size);
  std::int32_t recurrent = 0;
  std::int32_t kv = 0;
  for (std::size_t i = 0; i < config.layers.size() && source.status().ok(); ++i) {
    Placed placed;
    placed.stage = family.load(config, i, source);
    if (placed.stage.layer == nullptr) break;  // the source knows why
    if (placed.stage.layer->recurrent()) placed.place = recurrent++;
    if (placed.stage.layer->kv()) placed.place = kv++;
    layers_.push_back(std::move(placed));
  }
  final_norm_ = source.norm(std::string(family.final_norm), config.hidden_size);
  const std::string head = config.tied_embeddings ? embeddings : std::string(family.head);
  head_matrix_ = source.matrix(head, config.vocab_size, config.hidden_size);
  head_ = source.packed(head_matrix_, head);
  bytes_ = source.bytes();
}

Result<Network> Network::load(const ModelConfig& config, const WeightMap& weights, DType compute,
                              WorkerPool& pool) {
  WeightSource source(weights, compute, pool, family_of(config.family).centred_norms);
  Network network;
  network.build(config, source);
  REPLAYSSM_RETURN_IF_ERROR(source.status());
  return network;
}

Outline outline(const ModelConfig& config) {
  WeightSource source;
  Network network;
  network.build(config, source);
  Outline outline;
  outline.tensors = source.asked();
  for (const RecurrentLayer& layer : network.recurrent()) outline.recurrent.push_back(layer.shape);
  outline.kv = network.kv_shape().layers;
  return outline;
}

void Network::embed(std::int32_t token, float* out) const { widen_row(embeddings_, token, out); }

void Network::head_row(std::int32_t token, float* out) const {
  widen_row(head_matrix_, token, out);
}

Widths Network::widths() const {
  Widths widths;
  for (const Placed& placed : layers_) widths.grow(placed.stage.layer->widths());
  return widths;
}

std::vector<RecurrentLayer> Network::recurrent() const {
  std::vector<RecurrentLayer> list;
  for (const Placed& placed : layers_) {
    if (const auto layer = placed.stage.layer->recurrent()) list.push_back(*layer);
  }
  return list;
}

KvShape Network::kv_shape() const {
  KvShape shape;
  shape.dtype = compute_;
  for (const Placed& placed : layers_) {
    if (const auto layer = placed.stage.layer->kv()) shape.layers.push_back(*layer);
  }
  return shape;
}

}  // namespace replayssm::model
