// The tensors a configuration asks for, found in a checkpoint and checked, and typed access to them
// afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
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
  // Without what checkpoints put in front ("backbone.", "model."), for example
  // "layers.0.norm.weight".
  std::string name;
  std::vector<std::int64_t> shape;
};

// Every tensor of the model, in the order of a forward pass. Their elements add up to the parameter
// count.
[[nodiscard]] std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config);

// A checkpoint whose tensors are all there, of the right shape and of a type the layers take.
class WeightMap {
 public:
  // Every spelling that the family knows of a name is taken (layers/families.hpp). Extents of 1 do
  // not count in a shape. Tensors of parts that the layers leave out, such as a multi-token
  // prediction head, are passed over with a notice. Errors name the tensor: kNotFound (missing),
  // kInvalidArgument (shape, or a tensor the model has no place for), kUnsupported (type).
  [[nodiscard]] static Result<WeightMap> check(const ModelConfig& config,
                                               const Checkpoint& checkpoint,
                                               const LogCallback& log);

  // Names as in ExpectedTensor; they must be expected ones. As [first extent, all others].
  [[nodiscard]] MatrixView matrix(std::string_view name) const;
  [[nodiscard]] std::vector<float> vector(std::string_view name) const;

  // Of the model's tensors as stored.
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

 private:
  struct Found {
    DType dtype = DType::kF32;
    std::span<const std::byte> bytes;
    std::int64_t outputs = 0;  // first extent of the expected shape
  };
  std::map<std::string, Found, std::less<>> tensors_;
  std::int64_t bytes_ = 0;
};

}  // namespace replayssm::model
