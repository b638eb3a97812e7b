// See weights.hpp. Names: the nemotron_h checkpoints (docs/formats.md).
#include "model/layers/weights.hpp"

#include <cstring>
#include <set>
#include <utility>

#include "core/text.hpp"
#include "model/layers/bf16.hpp"

namespace replayssm::model {
namespace {

constexpr std::string_view kEmbeddings = "embeddings.weight";
constexpr std::string_view kHead = "lm_head.weight";

std::string layer_name(std::size_t layer, std::string_view part) {
  return concat("layers.", layer, ".", part);
}

bool starts_with_any(std::string_view name, std::initializer_list<std::string_view> prefixes) {
  for (const std::string_view prefix : prefixes) {
    if (name.starts_with(prefix)) return true;
  }
  return false;
}

// The spellings of one expected name that checkpoints use.
std::vector<std::string> spellings(const std::string& name) {
  if (name == kHead) return {name};
  std::vector<std::string> all = {"backbone." + name, "model." + name};
  if (name == kEmbeddings) {
    all.emplace_back("backbone.embedding.weight");
    all.emplace_back("model.embedding.weight");
  }
  return all;
}

}  // namespace

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config) {
  const std::int64_t hidden = config.hidden_size;
  std::vector<ExpectedTensor> list;
  const auto expect = [&list](std::string name, std::vector<std::int64_t> shape) {
    list.push_back(ExpectedTensor{std::move(name), std::move(shape)});
  };
  expect(std::string(kEmbeddings), {config.vocab_size, hidden});
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    expect(layer_name(i, "norm.weight"), {hidden});
    switch (config.layers[i]) {
      case LayerKind::kMamba2: {
        const Mamba2Config& mamba = config.mamba2;
        expect(layer_name(i, "mixer.in_proj.weight"), {mamba.projection_dim(), hidden});
        expect(layer_name(i, "mixer.conv1d.weight"), {mamba.conv_dim(), 1, mamba.conv_width});
        if (mamba.conv_bias) expect(layer_name(i, "mixer.conv1d.bias"), {mamba.conv_dim()});
        expect(layer_name(i, "mixer.A_log"), {mamba.heads});
        expect(layer_name(i, "mixer.D"), {mamba.heads});
        expect(layer_name(i, "mixer.dt_bias"), {mamba.heads});
        expect(layer_name(i, "mixer.norm.weight"), {mamba.d_inner()});
        expect(layer_name(i, "mixer.out_proj.weight"), {hidden, mamba.d_inner()});
        break;
      }
      case LayerKind::kAttention: {
        const AttentionConfig& attention = config.attention;
        const std::int64_t queries = attention.heads * attention.head_dim;
        const std::int64_t keys = attention.kv_heads * attention.head_dim;
        expect(layer_name(i, "mixer.q_proj.weight"), {queries, hidden});
        expect(layer_name(i, "mixer.k_proj.weight"), {keys, hidden});
        expect(layer_name(i, "mixer.v_proj.weight"), {keys, hidden});
        expect(layer_name(i, "mixer.o_proj.weight"), {hidden, queries});
        break;
      }
      case LayerKind::kMlp:
        expect(layer_name(i, "mixer.up_proj.weight"), {config.mlp.width, hidden});
        expect(layer_name(i, "mixer.down_proj.weight"), {hidden, config.mlp.width});
        break;
    }
  }
  expect("norm_f.weight", {hidden});
  if (!config.tied_embeddings) expect(std::string(kHead), {config.vocab_size, hidden});
  return list;
}

Result<WeightMap> WeightMap::check(const ModelConfig& config, const Checkpoint& checkpoint,
                                   const LogCallback& log) {
  WeightMap map;
  std::set<std::string_view> used;
  for (const ExpectedTensor& expected : expected_tensors(config)) {
    const TensorEntry* entry = nullptr;
    for (const std::string& name : spellings(expected.name)) {
      entry = checkpoint.find(name);
      if (entry != nullptr) break;
    }
    if (entry == nullptr) {
      return error(StatusCode::kNotFound, "tensor ", spellings(expected.name).front(), " ",
                   shape_text(expected.shape), " is missing from the checkpoint");
    }
    if (!entry->dtype || (*entry->dtype != DType::kF32 && *entry->dtype != DType::kBF16)) {
      return error(StatusCode::kUnsupported, "tensor ", entry->name, " has type ",
                   entry->dtype_name, "; supported are BF16 and F32");
    }
    if (entry->shape != expected.shape) {
      return error(StatusCode::kInvalidArgument, "tensor ", entry->name, " has shape ",
                   shape_text(entry->shape), "; config.json requires ", shape_text(expected.shape));
    }
    used.insert(entry->name);
    map.bytes_ += static_cast<std::int64_t>(entry->bytes.size());
    map.tensors_.emplace(expected.name, entry);
  }

  std::int64_t skipped = 0;
  for (const TensorEntry& entry : checkpoint.tensors()) {
    if (used.contains(entry.name)) continue;
    if (starts_with_any(entry.name, {"mtp.", "model.mtp.", "backbone.mtp."})) {
      ++skipped;
    } else if (config.tied_embeddings && entry.name == kHead) {
      // Some writers store the tied matrix twice; the embeddings count, as in the reference.
    } else {
      return error(StatusCode::kInvalidArgument, "tensor ", entry.name, " ",
                   shape_text(entry.shape),
                   " has no place in the model that config.json describes");
    }
  }
  if (skipped > 0 && log) {
    log(LogLevel::kInfo,
        concat("left out ", skipped, " tensors of the multi-token prediction head (mtp.*)"));
  }
  return map;
}

MatrixView WeightMap::matrix(std::string_view name) const {
  const TensorEntry& entry = *tensors_.find(name)->second;
  MatrixView view;
  view.data = entry.bytes.data();
  view.dtype = *entry.dtype;
  view.outputs = entry.shape[0];
  view.inputs =
      static_cast<std::int64_t>(entry.bytes.size() / dtype_bytes(view.dtype)) / view.outputs;
  return view;
}

std::vector<float> WeightMap::vector(std::string_view name) const {
  const TensorEntry& entry = *tensors_.find(name)->second;
  const std::size_t size = dtype_bytes(*entry.dtype);
  std::vector<float> values(entry.bytes.size() / size);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (*entry.dtype == DType::kF32) {
      std::memcpy(&values[i], entry.bytes.data() + i * size, size);
    } else {
      std::uint16_t half = 0;
      std::memcpy(&half, entry.bytes.data() + i * size, size);
      values[i] = bf16_to_f32(half);
    }
  }
  return values;
}

}  // namespace replayssm::model
