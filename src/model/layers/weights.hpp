// Which tensors a checkpoint must hold for a configuration, and typed access to them after the
// check.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.hpp"
#include "model/layers/linear.hpp"
#include "model/safetensors.hpp"
#include "replayssm/model.hpp"
#include "replayssm/status.hpp"

namespace replayssm::model {

struct ExpectedTensor {
  std::string
      name;  // without the "backbone." or "model." in front, for example "layers.0.norm.weight"
  std::vector<std::int64_t> shape;
};

// Every tensor of the model, in the order of a forward pass. Their elements add up to the parameter
// count.
[[nodiscard]] std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config);

// A checkpoint whose tensors are all there, of the right shape and of a type the layers take.
class WeightMap {
 public:
  // Both spellings of the prefix are taken, "embedding" for "embeddings" too. Tensors of a
  // multi-token prediction head ("mtp.") are left out with a notice. Errors name the tensor:
  // kNotFound (missing), kInvalidArgument (shape, or a tensor the model has no place for),
  // kUnsupported (type).
  [[nodiscard]] static Result<WeightMap> check(const ModelConfig& config,
                                               const Checkpoint& checkpoint,
                                               const LogCallback& log);

  // Names as in ExpectedTensor; they must be expected ones.
  [[nodiscard]] MatrixView matrix(std::string_view name) const;
  [[nodiscard]] std::vector<float> vector(std::string_view name) const;

  // Of the model's tensors as stored.
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

 private:
  std::map<std::string, const TensorEntry*, std::less<>> tensors_;
  std::int64_t bytes_ = 0;
};

}  // namespace replayssm::model
