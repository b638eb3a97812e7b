// A cache on a device and the arrays of its calls, for tests that make single calls wrong: two
// layers (mamba2 with a convolution, as the fast kernels take it, and gdn, which they do not), all
// inputs a function of the slot and the token, so that two caches can be given the same sequence.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "replayssm/backends.hpp"
#include "replayssm/cache.hpp"

namespace replayssm::device_tests {

inline void require(cudaError_t code) { ASSERT_EQ(code, cudaSuccess) << cudaGetErrorString(code); }

// Device memory that holds a copy of an array, exactly as large.
class Copy {
 public:
  Copy() = default;
  template <typename T>
  explicit Copy(const std::vector<T>& from) {
    const std::size_t bytes = std::max<std::size_t>(from.size(), 1) * sizeof(T);
    require(cudaMalloc(&data_, bytes));
    if (!from.empty())
      require(cudaMemcpy(data_, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
    // Small copies may return before they have arrived, and a non-blocking stream does not wait.
    require(cudaStreamSynchronize(cudaStreamLegacy));
  }
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;
  ~Copy() { (void)cudaFree(data_); }
  [[nodiscard]] void* data() const { return data_; }
  template <typename T>
  [[nodiscard]] const T* as() const {
    return static_cast<const T*>(data_);
  }
  template <typename T>
  [[nodiscard]] std::vector<T> host(std::size_t count) const {
    std::vector<T> values(count);
    require(cudaMemcpy(values.data(), data_, count * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  void* data_ = nullptr;
};

inline constexpr int kSteps = 3;  // T_max
inline constexpr int kWindow = 4;
inline constexpr int kSlots = 6;
inline constexpr int kMaxRows = 4;
inline constexpr int kMaxTokens = 10;
inline constexpr int kChannels = 40;

inline LayerShape layer_shape(int layer) {
  LayerShape shape;
  shape.rule = layer == 0 ? Rule::kMamba2 : Rule::kGdn;
  shape.heads = layer == 0 ? 4 : 2;
  shape.groups = layer == 0 ? 2 : 1;
  shape.value_dim = layer == 0 ? 32 : 16;
  shape.key_dim = layer == 0 ? 128 : 24;
  shape.conv_channels = layer == 0 ? kChannels : 0;
  shape.conv_width = layer == 0 ? 3 : 0;
  return shape;
}

// What a test may get wrong in one layer of a forward.
struct Mistake {
  int layer = -1;                           // none
  TensorView LayerInputs::*view = nullptr;  // of step and prefill; null: the convolution's input
  std::int64_t extent = 0;                  // tokens the view has; -1: the view is absent
  float poison = 0.0F;                      // not 0: this value in the layer's first input instead
};

// The rows of a forward, on the host. Empty arrays are not given.
struct RowArrays {
  std::vector<std::int64_t> slots;
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> parents;
  std::vector<std::int64_t> offsets;
  std::vector<std::uint8_t> prefill;
};

class Rig {
 public:
  Rig(const std::string& implementation, bool checked) {
    CacheConfig config;
    for (int layer = 0; layer < 2; ++layer) {
      const LayerShape shape = layer_shape(layer);
      config.layers.push_back(shape);
      LayerWeights weights;
      weights.a_log = hold(wave(static_cast<std::size_t>(shape.heads), 0.7F, -1.0F));
      weights.dt_bias = hold(wave(static_cast<std::size_t>(shape.heads), 0.5F, -1.0F));
      if (layer == 0) {
        weights.d = hold(wave(static_cast<std::size_t>(shape.heads), 1.0F, 0.0F));
        weights.conv_weight = hold(wave(static_cast<std::size_t>(kChannels) * 3, 0.6F, 0.1F));
      }
      config.weights.push_back(weights);
    }
    for (const ImplementationInfo& info : implementations()) {
      if (info.name == implementation) config.decode = info.decode;
    }
    config.window = kWindow;
    config.max_step_tokens = kSteps;
    config.slots = kSlots;
    config.blocks = 2 * kSlots;
    config.max_rows = kMaxRows;
    config.max_tokens = kMaxTokens;
    config.materialize_history = true;
    config.implementation = implementation;
    config.checked = checked;
    Result<Cache> made = Cache::create(config);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    if (made.ok()) cache_ = std::make_unique<Cache>(std::move(made).value());
    conventional_ = config.decode == DecodeMode::kConventional;
    require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;
  ~Rig() {
    (void)cudaStreamSynchronize(stream_);
    cache_.reset();
    (void)cudaStreamDestroy(stream_);
  }

  [[nodiscard]] Cache& cache() { return *cache_; }
  [[nodiscard]] cudaStream_t stream() const { return stream_; }
  [[nodiscard]] bool conventional() const { return conventional_; }

  [[nodiscard]] Status begin(const RowArrays& arrays) {
    rows_ = arrays;
    Rows rows;
    rows.count = static_cast<std::int64_t>(arrays.slots.size());
    rows.slots = lend(arrays.slots);
    rows.tokens = lend(arrays.tokens);
    rows.parents = lend(arrays.parents);
    rows.offsets = lend(arrays.offsets);
    rows.prefill = lend(arrays.prefill);
    rows.stream = stream_;
    return cache_->begin(rows);
  }
  // fold and all layers, inputs for kMaxTokens tokens but for the mistake.
  [[nodiscard]] Status layers(const Mistake& mistake = {}) {
    REPLAYSSM_RETURN_IF_ERROR(cache_->fold(stream_));
    for (int layer = 0; layer < 2; ++layer) REPLAYSSM_RETURN_IF_ERROR(run(layer, mistake));
    return {};
  }
  [[nodiscard]] Status run(int layer, const Mistake& mistake = {}) {
    const LayerShape shape = layer_shape(layer);
    const bool here = mistake.layer == layer;
    LayerInputs inputs;
    inputs.layer = layer;
    inputs.stream = stream_;
    int salt = layer * 10;
    const auto add = [&](auto... extents) {
      const std::int64_t width = (std::int64_t{1} * ... * extents);
      std::vector<float> values(static_cast<std::size_t>(kMaxTokens * width));
      fill(values, width, salt++);
      if (here && mistake.poison != 0.0F && salt == layer * 10 + 1) values[0] = mistake.poison;
      return TensorView::contiguous(static_cast<const void*>(lend(values)), DType::kF32, kMaxTokens,
                                    extents...);
    };
    inputs.value = add(shape.heads, shape.value_dim);
    inputs.key = add(shape.groups, shape.key_dim);
    inputs.query = add(shape.groups, shape.key_dim);
    inputs.gate = add(shape.heads);
    if (layer == 1) inputs.beta = add(shape.heads);
    inputs.out = add(shape.heads, shape.value_dim);
    out_[layer] = static_cast<const float*>(inputs.out.data);
    ConvInputs conv;
    conv.layer = layer;
    conv.in = add(kChannels);
    conv.out = add(kChannels);
    conv.stream = stream_;
    if (here && mistake.poison == 0.0F) {
      TensorView& view = mistake.view != nullptr ? inputs.*mistake.view : conv.in;
      if (mistake.extent < 0) {
        view = {};
      } else {
        view.shape[0] = mistake.extent;
      }
    }
    if (layer == 0) REPLAYSSM_RETURN_IF_ERROR(cache_->conv(conv));
    REPLAYSSM_RETURN_IF_ERROR(cache_->step(inputs));
    return rows_.prefill.empty() ? Status() : cache_->prefill(inputs);
  }
  [[nodiscard]] Status commit(const std::vector<std::int32_t>& tokens,
                              const std::vector<std::int32_t>& nodes = {},
                              std::int64_t stride = 0) {
    Accepted accepted;
    accepted.count = static_cast<std::int64_t>(rows_.slots.size());
    accepted.tokens = lend(tokens);
    accepted.nodes = lend(nodes);
    accepted.node_stride = stride;
    accepted.stream = stream_;
    return cache_->commit(accepted);
  }
  [[nodiscard]] Status forward(const RowArrays& arrays,
                               const std::vector<std::int32_t>& accepted = {}) {
    REPLAYSSM_RETURN_IF_ERROR(begin(arrays));
    REPLAYSSM_RETURN_IF_ERROR(layers());
    return commit(accepted);
  }
  // Three slots with a history of 5 tokens, so that the next forward folds; a fourth that is fresh.
  void start() {
    for (std::int64_t slot = 0; slot < 4; ++slot)
      ASSERT_TRUE(cache_->acquire_slot(slot, 40 + static_cast<std::uint64_t>(slot), stream_).ok());
    for (const std::int32_t tokens : {3, 2}) {
      RowArrays arrays;
      arrays.slots = {0, 1, 2};
      arrays.tokens = {tokens, tokens, tokens};
      const Status status = forward(arrays);
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
  }

  [[nodiscard]] SlotInfo info(std::int64_t slot) {
    const Result<SlotInfo> facts = cache_->info(slot);
    EXPECT_TRUE(facts.ok()) << facts.status().to_string();
    return facts.ok() ? *facts : SlotInfo{};
  }
  // Everything that decides the slot's future, errors taken back first.
  [[nodiscard]] std::vector<std::byte> future(std::int64_t slot) {
    EXPECT_TRUE(cache_->clear_errors(slot, kSlotNonFinite | kSlotOutOfRange, stream_).ok());
    const Result<std::vector<std::byte>> bytes = cache_->export_slot(slot);
    EXPECT_TRUE(bytes.ok()) << bytes.status().to_string();
    return bytes.ok() ? *bytes : std::vector<std::byte>{};
  }
  // Outputs of one token of the last forward in a layer.
  [[nodiscard]] std::vector<float> output(int layer, std::int64_t token) {
    const LayerShape shape = layer_shape(layer);
    const auto width = static_cast<std::size_t>(shape.heads * shape.value_dim);
    std::vector<float> values(width);
    require(cudaStreamSynchronize(stream_));
    require(cudaMemcpy(values.data(), out_[layer] + static_cast<std::size_t>(token) * width,
                       width * 4, cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  static std::vector<float> wave(std::size_t count, float scale, float shift) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i)
      values[i] = scale * std::sin(0.37F * static_cast<float>(i) + 0.2F) + shift;
    return values;
  }
  // The input of a row's token depends on slot and token, wherever the row stands. Where hostile
  // rows overlap, the first one has its own.
  void fill(std::vector<float>& values, std::int64_t width, int salt) const {
    std::vector<std::int64_t> offsets = rows_.offsets;
    std::int64_t next = 0;
    for (std::size_t r = 0; r < rows_.slots.size(); ++r) {
      if (rows_.offsets.empty()) offsets.push_back(next);
      const std::int32_t count = rows_.tokens.empty() ? 1 : rows_.tokens[r];
      if (count > 0 && count <= kMaxTokens) next += count;
    }
    for (std::size_t r = rows_.slots.size(); r-- > 0;) {
      const std::int32_t count = rows_.tokens.empty() ? 1 : rows_.tokens[r];
      for (std::int64_t t = 0; t < count && count <= kMaxTokens; ++t) {
        if (offsets[r] < 0 || offsets[r] >= kMaxTokens - t) break;
        for (std::int64_t i = 0; i < width; ++i) {
          const auto phase =
              static_cast<float>((rows_.slots[r] & 63) * 31 + t * 7 + i * 3 + salt * 13);
          values[static_cast<std::size_t>((offsets[r] + t) * width + i)] = 0.5F * std::sin(phase);
        }
      }
    }
  }
  template <typename T>
  const T* lend(const std::vector<T>& array) {
    if (array.empty()) return nullptr;
    lent_.push_back(std::make_unique<Copy>(array));
    return lent_.back()->as<T>();
  }
  const float* hold(const std::vector<float>& values) { return lend(values); }

  std::vector<std::unique_ptr<Copy>> lent_;  // launches may still read them
  std::unique_ptr<Cache> cache_;
  cudaStream_t stream_ = nullptr;
  bool conventional_ = false;
  RowArrays rows_;
  const float* out_[2] = {nullptr, nullptr};
};

// Empty, or why an implementation cannot be tested here.
inline std::string why_skipped(const std::string& implementation) {
  for (const ImplementationInfo& info : implementations()) {
    if (info.name == implementation && !info.available)
      return "no CUDA device: " + info.unavailable_because;
  }
  return {};
}

inline std::string test_name(const ::testing::TestParamInfo<std::string>& about) {
  std::string name = about.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

}  // namespace replayssm::device_tests
