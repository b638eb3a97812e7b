// See weights.hpp.
#include "model/layers/weights.hpp"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "core/text.hpp"
#include "model/layers/bf16.hpp"
#include "model/layers/families.hpp"
#include "model/layers/network.hpp"

namespace replayssm::model {
namespace {

std::vector<std::int64_t> without_ones(std::vector<std::int64_t> shape) {
  std::erase(shape, 1);
  return shape;
}

}  // namespace

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config) {
  return outline(config).tensors;
}

Result<WeightMap> WeightMap::check(const ModelConfig& config, const Checkpoint& checkpoint,
                                   const LogCallback& log) {
  const Family& family = family_of(config.family);
  WeightMap map;
  std::set<std::string_view> used;
  for (const ExpectedTensor& expected : expected_tensors(config)) {
    const std::vector<std::string> spellings = family.spellings(expected.name);
    const TensorEntry* entry = nullptr;
    for (const std::string& name : spellings) {
      entry = checkpoint.find(name);
      if (entry != nullptr) break;
    }
    std::vector<std::int64_t> shape = expected.shape;
    StoredSlice slice;
    if (entry == nullptr && family.slice != nullptr) {
      if (const std::optional<StoredSlice> part = family.slice(expected.name)) {
        slice = *part;
        shape.front() *= slice.parts;
        entry = checkpoint.find(slice.stored);
      }
    }
    if (entry == nullptr) {
      return error(StatusCode::kNotFound, "tensor ", spellings.front(), " ",
                   shape_text(expected.shape), " is missing from the checkpoint");
    }
    if (!entry->dtype || (*entry->dtype != DType::kF32 && *entry->dtype != DType::kBF16)) {
      return error(StatusCode::kUnsupported, "tensor ", entry->name, " has type ",
                   entry->dtype_name, "; supported are BF16 and F32");
    }
    if (without_ones(entry->shape) != without_ones(shape)) {
      return error(StatusCode::kInvalidArgument, "tensor ", entry->name, " has shape ",
                   shape_text(entry->shape), "; config.json requires ", shape_text(shape));
    }
    used.insert(entry->name);
    const std::size_t size = entry->bytes.size() / static_cast<std::size_t>(slice.parts);
    map.bytes_ += static_cast<std::int64_t>(size);
    map.tensors_.emplace(
        expected.name,
        Found{*entry->dtype,
              entry->bytes.subspan(static_cast<std::size_t>(slice.part) * size, size),
              expected.shape.front()});
  }

  const std::vector<std::string> heads = family.spellings(family.head);
  std::map<std::string_view, std::int64_t> left_out;
  for (const TensorEntry& entry : checkpoint.tensors()) {
    if (used.contains(entry.name)) continue;
    if (const std::string_view part = family.left_out(entry.name); !part.empty()) {
      ++left_out[part];
    } else if (config.tied_embeddings &&
               std::find(heads.begin(), heads.end(), entry.name) != heads.end()) {
      // Some writers store the tied matrix twice; the embeddings count, as in the reference.
    } else {
      return error(StatusCode::kInvalidArgument, "tensor ", entry.name, " ",
                   shape_text(entry.shape),
                   " has no place in the model that config.json describes");
    }
  }
  for (const auto& [part, count] : left_out) {
    if (log) log(LogLevel::kInfo, concat("left out ", count, " tensors of ", part));
  }
  return map;
}

MatrixView WeightMap::matrix(std::string_view name) const {
  const Found& found = tensors_.find(name)->second;
  MatrixView view;
  view.data = found.bytes.data();
  view.dtype = found.dtype;
  view.outputs = found.outputs;
  view.inputs =
      static_cast<std::int64_t>(found.bytes.size() / dtype_bytes(view.dtype)) / view.outputs;
  return view;
}

std::vector<float> WeightMap::vector(std::string_view name) const {
  const Found& found = tensors_.find(name)->second;
  const std::size_t size = dtype_bytes(found.dtype);
  std::vector<float> values(found.bytes.size() / size);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (found.dtype == DType::kF32) {
      std::memcpy(&values[i], found.bytes.data() + i * size, size);
    } else {
      std::uint16_t half = 0;
      std::memcpy(&half, found.bytes.data() + i * size, size);
      values[i] = bf16_to_f32(half);
    }
  }
  return values;
}

}  // namespace replayssm::model
