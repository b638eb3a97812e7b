// Where layers get their weights from while a model is built.
//
// The same code builds a model from a checkpoint and its outline from a configuration alone: an
// outline source writes down which tensors were asked for and hands out empty weights. So names and
// shapes stand in one place, the loader of each layer.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/layers/linear.hpp"
#include "model/layers/weights.hpp"
#include "model/layers/worker_pool.hpp"
#include "replayssm/dtype.hpp"
#include "replayssm/status.hpp"

namespace replayssm::model {

// Some rows of a merged matrix.
struct MatrixPart {
  std::string name;
  std::int64_t outputs = 0;
};

// The first failure is kept; what is asked for after it comes back empty.
class WeightSource {
 public:
  // An outline.
  WeightSource() = default;
  // weights: checked against the outline of the same configuration. compute: of products. centred:
  // norms are stored as w and mean 1 + w.
  WeightSource(const WeightMap& weights, DType compute, WorkerPool& pool, bool centred)
      : weights_(&weights), compute_(compute), pool_(&pool), centred_(centred) {}

  [[nodiscard]] bool outline() const { return weights_ == nullptr; }
  [[nodiscard]] DType compute() const { return compute_; }

  // y = W x with W [outputs, inputs], packed.
  [[nodiscard]] Linear linear(const std::string& name, std::int64_t outputs, std::int64_t inputs);
  // Several matrices of the same inputs, one above the other, as one product.
  [[nodiscard]] Linear stacked(std::span<const MatrixPart> parts, std::int64_t inputs);
  // A matrix that a loader has computed itself from matrix() or vector(); `name` for messages.
  [[nodiscard]] Linear packed(const MatrixView& matrix, const std::string& name);
  // As stored, in the checkpoint's mapping; no data in an outline.
  [[nodiscard]] MatrixView matrix(const std::string& name, std::int64_t outputs,
                                  std::int64_t inputs);
  // In f32, whatever is stored; empty in an outline.
  [[nodiscard]] std::vector<float> vector(const std::string& name, std::vector<std::int64_t> shape);
  // The weights of an RMSNorm, as they are multiplied.
  [[nodiscard]] std::vector<float> norm(const std::string& name, std::int64_t size);

  // A failure of a loader itself.
  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  [[nodiscard]] const Status& status() const { return status_; }
  // Of packed matrices and of vectors, in memory.
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  // In the order in which they were first asked for.
  [[nodiscard]] const std::vector<ExpectedTensor>& asked() const { return asked_; }

 private:
  void note(const std::string& name, std::vector<std::int64_t> shape);
  [[nodiscard]] bool empty() const { return outline() || !status_.ok(); }

  const WeightMap* weights_ = nullptr;
  DType compute_ = DType::kF32;
  WorkerPool* pool_ = nullptr;
  bool centred_ = false;
  Status status_;
  std::int64_t bytes_ = 0;
  std::vector<ExpectedTensor> asked_;
  std::set<std::string, std::less<>> names_;
};

}  // namespace replayssm::model
