// See weight_source.hpp.
#include "model/layers/weight_source.hpp"

#include <cstring>
#include <utility>

#include "core/text.hpp"
#include "model/layers/bf16.hpp"

namespace replayssm::model {

void WeightSource::note(const std::string& name, std::vector<std::int64_t> shape) {
  if (names_.insert(name).second) asked_.push_back(ExpectedTensor{name, std::move(shape)});
}

Linear WeightSource::packed(const MatrixView& matrix, const std::string& name) {
  Linear made;
  if (empty()) return made;
  Result<Linear> result = Linear::create(matrix, compute_, *pool_);
  if (!result.ok()) {
    status_ = error(result.status().code(), "tensor ", name, ": ", result.status().message());
    return made;
  }
  made = std::move(*result);
  bytes_ += made.bytes();
  return made;
}

Linear WeightSource::linear(const std::string& name, std::int64_t outputs, std::int64_t inputs) {
  return packed(matrix(name, outputs, inputs), name);
}

Linear WeightSource::stacked(std::span<const MatrixPart> parts, std::int64_t inputs) {
  std::vector<MatrixView> views;
  MatrixView whole;
  whole.dtype = DType::kBF16;
  whole.inputs = inputs;
  for (const MatrixPart& part : parts) {
    views.push_back(matrix(part.name, part.outputs, inputs));
    whole.outputs += part.outputs;
    if (views.back().dtype == DType::kF32) whole.dtype = DType::kF32;  // which holds both types
  }
  if (empty()) return {};
  const std::size_t element = dtype_bytes(whole.dtype);
  std::vector<std::byte> data(static_cast<std::size_t>(whole.outputs * inputs) * element);
  std::byte* to = data.data();
  for (const MatrixView& view : views) {
    const auto count = static_cast<std::size_t>(view.outputs * inputs);
    if (view.dtype == whole.dtype) {
      std::memcpy(to, view.data, count * element);
    } else {
      bf16_to_f32(static_cast<const std::uint16_t*>(view.data), reinterpret_cast<float*>(to),
                  static_cast<std::int64_t>(count));
    }
    to += count * element;
  }
  whole.data = data.data();
  return packed(whole, parts.front().name);
}

MatrixView WeightSource::matrix(const std::string& name, std::int64_t outputs,
                                std::int64_t inputs) {
  note(name, {outputs, inputs});
  if (!empty()) return weights_->matrix(name);
  MatrixView view;
  view.outputs = outputs;
  view.inputs = inputs;
  return view;
}

std::vector<float> WeightSource::vector(const std::string& name, std::vector<std::int64_t> shape) {
  note(name, std::move(shape));
  if (empty()) return {};
  std::vector<float> values = weights_->vector(name);
  bytes_ += static_cast<std::int64_t>(values.size() * sizeof(float));
  return values;
}

std::vector<float> WeightSource::norm(const std::string& name, std::int64_t size) {
  std::vector<float> values = vector(name, {size});
  if (centred_) {
    for (float& value : values) value += 1.0F;
  }
  return values;
}

}  // namespace replayssm::model
