// A forward captured once in a CUDA graph and replayed thousands of times, while slots, drafts,
// accepts, forks and releases change between the replays and the host reads nothing back. What must
// come out are the bits of the same calls made one by one.
// It has over 400 lines because the script, its runner and the one test make sense only together.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "oracle/compare.hpp"
#include "replayssm/backends.hpp"
#include "replayssm/cache.hpp"
#include "tests/oracle/random_layers.hpp"

namespace replayssm {
namespace {

using oracle::testing::Random;

constexpr int kForwards = 3000;
constexpr int kRows = 6;
constexpr int kSteps = 4;  // T_max
constexpr int kTokens = kRows * kSteps;
constexpr int kSlots = 9;
constexpr int kInputSets = 64;
constexpr int kChannels = 40;

void require(cudaError_t code) { ASSERT_EQ(code, cudaSuccess) << cudaGetErrorString(code); }

class Buffer {
 public:
  explicit Buffer(std::size_t bytes) : bytes_(bytes) {
    require(cudaMalloc(&data_, bytes));
    require(cudaMemset(data_, 0xA5, bytes));
  }
  explicit Buffer(const std::vector<unsigned char>& from) : Buffer(from.size()) {
    require(cudaMemcpy(data_, from.data(), from.size(), cudaMemcpyHostToDevice));
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { (void)cudaFree(data_); }
  template <typename T = unsigned char>
  [[nodiscard]] T* at(std::size_t byte = 0) const {
    return reinterpret_cast<T*>(static_cast<unsigned char*>(data_) + byte);
  }
  [[nodiscard]] std::vector<unsigned char> host() const {
    std::vector<unsigned char> bytes(bytes_);
    require(cudaMemcpy(bytes.data(), data_, bytes_, cudaMemcpyDeviceToHost));
    return bytes;
  }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

// What a forward reads from device memory, in one piece.
struct Arrays {
  std::array<std::int64_t, kRows> slots;
  std::array<std::int32_t, kRows> tokens;
  std::array<std::int32_t, kTokens> parents;
  std::array<std::int32_t, kRows> accepted;
  std::array<std::int32_t, kRows * kSteps> nodes;
};

enum class Move { kNone, kFork, kRelease, kAcquire, kForkAndRelease, kAbort };
struct Turn {
  Move move = Move::kNone;
  std::int64_t slot = 0;  // of a fork or release
  Arrays arrays{};
};

// Which slots are held is all that the host has to know.
std::vector<Turn> make_script(Random& random) {
  std::vector<Turn> script;
  std::vector<bool> held(kSlots, false);
  const auto pick = [&](bool wanted) {
    std::vector<std::int64_t> list;
    for (int i = 0; i < kSlots; ++i)
      if (held[i] == wanted) list.push_back(i);
    return list.empty() ? std::int64_t{-1}
                        : list[random.integer(0, static_cast<int>(list.size()) - 1)];
  };
  const auto lowest_free = [&] {
    return std::find(held.begin(), held.end(), false) - held.begin();
  };
  for (int f = 0; f < kForwards; ++f) {
    Turn turn;
    const int kind = random.integer(0, 99);
    const auto count = std::count(held.begin(), held.end(), true);
    if (count < 3 || (kind < 5 && count < kSlots - 1)) {
      turn.move = Move::kAcquire;
      held[lowest_free()] = true;
    } else if (kind < 15 && count < kSlots - 1) {
      turn.move = Move::kFork;
      turn.slot = pick(true);
      held[lowest_free()] = true;
    } else if (kind < 25) {
      turn.move = Move::kRelease;
      turn.slot = pick(true);
      held[turn.slot] = false;
    } else if (kind < 30) {
      turn.move = Move::kAbort;
    } else if (kind < 35 && held[0]) {
      turn.move = Move::kForkAndRelease;
    }
    std::vector<std::int64_t> slots;
    for (int i = 0; i < kSlots; ++i)
      if (held[i] && random.chance(0.7)) slots.push_back(i);
    for (std::size_t i = slots.size(); i > 1; --i)
      std::swap(slots[i - 1], slots[random.integer(0, static_cast<int>(i) - 1)]);
    Arrays& arrays = turn.arrays;
    arrays.slots.fill(-1);
    arrays.tokens.fill(0);
    arrays.parents.fill(-1);
    arrays.nodes.fill(-77);
    int next = 0;
    for (int row = 0; row < kRows; ++row) {
      if (row < static_cast<int>(slots.size())) arrays.slots[row] = slots[row];
      const int tokens = random.integer(0, kSteps);
      arrays.tokens[row] = tokens;
      const bool tree = random.chance(0.4);
      std::vector<int> parents(tokens);
      for (int i = 0; i < tokens; ++i) parents[i] = tree ? random.integer(-1, i - 1) : i - 1;
      std::copy(parents.begin(), parents.end(), arrays.parents.begin() + next);
      next += tokens;
      // A random path from a root.
      int kept = 0;
      for (int i = 0, last = -1; i < tokens; ++i) {
        if (parents[i] != last || random.chance(0.3)) continue;
        arrays.nodes[row * kSteps + kept++] = last = i;
      }
      arrays.accepted[row] = kept;
    }
    script.push_back(turn);
  }
  return script;
}

struct LayerData {
  LayerShape shape;
  std::unique_ptr<Buffer> a_log, dt_bias, d, conv_weight;
};

// A cache, the arrays its calls name, and logs of what it answered.
class Runner {
 public:
  Runner(const std::string& implementation, const std::vector<LayerData>& layers,
         const std::vector<std::unique_ptr<Buffer>>& inputs, const std::vector<Turn>& script)
      : layers_(layers), inputs_(inputs), arrays_(sizeof(Arrays)) {
    CacheConfig config;
    for (const LayerData& layer : layers) {
      config.layers.push_back(layer.shape);
      LayerWeights weights;
      weights.a_log = layer.a_log->at<float>();
      weights.dt_bias = layer.dt_bias->at<float>();
      weights.d = layer.d->at<float>();
      weights.conv_weight = layer.conv_weight->at<float>();
      config.weights.push_back(weights);
    }
    config.activations = DType::kBF16;
    config.window = 7;
    config.max_step_tokens = kSteps;
    config.slots = kSlots;
    config.blocks = 2 * kSlots + 4;
    config.max_rows = kRows;
    config.implementation = implementation;
    Result<Cache> cache = Cache::create(config);
    EXPECT_TRUE(cache.ok()) << cache.status().to_string();
    cache_.emplace(std::move(cache).value());
    require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    std::vector<unsigned char> all(script.size() * sizeof(Arrays));
    for (std::size_t f = 0; f < script.size(); ++f)
      std::memcpy(all.data() + f * sizeof(Arrays), &script[f].arrays, sizeof(Arrays));
    scripts_ = std::make_unique<Buffer>(all);
    std::size_t most = 0;
    for (const LayerData& layer : layers) {
      tensors_.push_back(std::make_unique<Buffer>(input_bytes(layer.shape)));
      outputs_.push_back(std::make_unique<Buffer>(output_bytes(layer.shape)));
      most += output_bytes(layer.shape);
    }
    log_ = std::make_unique<Buffer>(most * script.size());
    // What filled the buffers is the legacy stream's work, for which a non-blocking one does not
    // wait.
    require(cudaStreamSynchronize(cudaStreamLegacy));
  }
  ~Runner() {
    (void)cudaStreamSynchronize(stream_);
    for (cudaGraphExec_t graph : graphs_) (void)cudaGraphExecDestroy(graph);
    cache_.reset();
    (void)cudaStreamDestroy(stream_);
  }

  static std::size_t input_elements(const LayerShape& s) {
    return static_cast<std::size_t>(s.heads * s.value_dim * 2 + s.groups * s.key_dim * 2 + s.heads +
                                    kChannels) *
           kTokens;
  }
  static std::size_t input_bytes(const LayerShape& s) { return input_elements(s) * 2; }
  static std::size_t output_bytes(const LayerShape& s) {
    return static_cast<std::size_t>(s.heads * s.value_dim + kChannels) * kTokens * 2;
  }

  [[nodiscard]] Cache& cache() { return *cache_; }
  [[nodiscard]] cudaStream_t stream() const { return stream_; }
  [[nodiscard]] const Buffer& log() const { return *log_; }

  void move(const Turn& turn, bool graphs) {
    switch (turn.move) {
      case Move::kNone: return;
      case Move::kAcquire: ok(cache_->acquire(11, stream_).status()); return;
      case Move::kFork: ok(cache_->fork(turn.slot, stream_).status()); return;
      case Move::kRelease: ok(cache_->release(turn.slot, stream_)); return;
      case Move::kForkAndRelease:
        if (!graphs) return fork_and_release();
        require(cudaGraphLaunch(graphs_[1], stream_));
        return;
      case Move::kAbort:
        if (!graphs) return begun_and_aborted();
        require(cudaGraphLaunch(graphs_[2], stream_));
        return;
    }
  }

  // Arrays and inputs of the turn into the fixed places that the graphs read.
  void place(std::size_t f) {
    require(cudaMemcpyAsync(arrays_.at(), scripts_->at(f * sizeof(Arrays)), sizeof(Arrays),
                            cudaMemcpyDeviceToDevice, stream_));
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const Buffer& from = *inputs_[(f * layers_.size() + i) % inputs_.size()];
      require(cudaMemcpyAsync(tensors_[i]->at(), from.at(), input_bytes(layers_[i].shape),
                              cudaMemcpyDeviceToDevice, stream_));
    }
  }
  void keep(std::size_t f) {
    std::size_t at = 0;
    std::size_t all = 0;
    for (const LayerData& layer : layers_) all += output_bytes(layer.shape);
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const std::size_t bytes = output_bytes(layers_[i].shape);
      require(cudaMemcpyAsync(log_->at(f * all + at), outputs_[i]->at(), bytes,
                              cudaMemcpyDeviceToDevice, stream_));
      at += bytes;
    }
  }

  void capture() {
    record([this] { forward(); });
    record([this] { fork_and_release(); });
    record([this] { begun_and_aborted(); });
  }
  void replay() { require(cudaGraphLaunch(graphs_[0], stream_)); }

  void forward() {
    ok(cache_->begin(rows()));
    ok(cache_->fold(stream_));
    layers();
    Accepted accepted;
    accepted.count = kRows;
    accepted.tokens = arrays_.at<std::int32_t>(offsetof(Arrays, accepted));
    accepted.nodes = arrays_.at<std::int32_t>(offsetof(Arrays, nodes));
    accepted.stream = stream_;
    ok(cache_->commit(accepted));
  }
  void finish() { require(cudaStreamSynchronize(stream_)); }

 private:
  static void ok(const Status& status) { ASSERT_TRUE(status.ok()) << status.to_string(); }

  [[nodiscard]] Rows rows() const {
    Rows rows;
    rows.count = kRows;
    rows.slots = arrays_.at<std::int64_t>(offsetof(Arrays, slots));
    rows.tokens = arrays_.at<std::int32_t>(offsetof(Arrays, tokens));
    rows.parents = arrays_.at<std::int32_t>(offsetof(Arrays, parents));
    rows.stream = stream_;
    return rows;
  }
  void layers() {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const LayerShape& s = layers_[i].shape;
      std::size_t at = 0;
      const auto take = [&](const Buffer& buffer, auto... extents) {
        const TensorView view =
            TensorView::contiguous(static_cast<void*>(buffer.at(at)), DType::kBF16, extents...);
        at += 2 * (static_cast<std::size_t>(extents) * ...);
        return view;
      };
      LayerInputs inputs;
      inputs.layer = static_cast<std::int32_t>(i);
      inputs.value = take(*tensors_[i], kTokens, s.heads, s.value_dim);
      inputs.z = take(*tensors_[i], kTokens, s.heads, s.value_dim);
      inputs.key = take(*tensors_[i], kTokens, s.groups, s.key_dim);
      inputs.query = take(*tensors_[i], kTokens, s.groups, s.key_dim);
      inputs.gate = take(*tensors_[i], kTokens, s.heads);
      ConvInputs conv;
      conv.layer = inputs.layer;
      conv.in = take(*tensors_[i], kTokens, kChannels);
      at = 0;
      inputs.out = take(*outputs_[i], kTokens, s.heads, s.value_dim);
      conv.out = take(*outputs_[i], kTokens, kChannels);
      inputs.stream = conv.stream = stream_;
      ok(cache_->conv(conv));
      ok(cache_->step(inputs));
    }
  }
  void fork_and_release() {
    const Result<std::int64_t> slot = cache_->fork(0, stream_);
    ok(slot.status());
    if (slot.ok()) ok(cache_->release(*slot, stream_));
  }
  void begun_and_aborted() {
    ok(cache_->begin(rows()));
    ok(cache_->abort(stream_));
  }
  template <typename Body>
  void record(Body body) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    require(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    body();
    require(cudaStreamEndCapture(stream_, &graph));
    require(cudaGraphInstantiate(&exec, graph, 0));
    require(cudaGraphDestroy(graph));
    graphs_.push_back(exec);
  }

  const std::vector<LayerData>& layers_;
  const std::vector<std::unique_ptr<Buffer>>& inputs_;
  Buffer arrays_;
  std::optional<Cache> cache_;
  cudaStream_t stream_ = nullptr;
  std::vector<cudaGraphExec_t> graphs_;
  std::unique_ptr<Buffer> scripts_, log_;
  std::vector<std::unique_ptr<Buffer>> tensors_, outputs_;
};

std::unique_ptr<Buffer> floats(Random& random, int count, double low, double high) {
  std::vector<unsigned char> bytes(static_cast<std::size_t>(count) * 4);
  for (int i = 0; i < count; ++i) {
    const auto value = static_cast<float>(random.real(low, high));
    std::memcpy(bytes.data() + 4 * i, &value, 4);
  }
  return std::make_unique<Buffer>(bytes);
}

std::unique_ptr<Buffer> bf16_inputs(Random& random, std::size_t count) {
  std::vector<unsigned char> bytes(count * 2);
  for (std::size_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(random.real(-1.5, 1.5));
    std::memcpy(bytes.data() + 2 * i, reinterpret_cast<const unsigned char*>(&value) + 2, 2);
  }
  return std::make_unique<Buffer>(bytes);
}

class CudaGraph : public ::testing::TestWithParam<std::string> {};

TEST_P(CudaGraph, ReplaysLeaveTheBitsOfSingleCalls) {
  for (const ImplementationInfo& info : implementations()) {
    if (info.name == GetParam() && !info.available)
      GTEST_SKIP() << "no CUDA device: " << info.unavailable_because;
  }
  Random random(0x96a9);
  std::vector<LayerData> layers(2);
  for (LayerData& layer : layers) {
    layer.shape.heads = 4;
    layer.shape.groups = 2;
    layer.shape.value_dim = 32;
    layer.shape.key_dim = 128;
    layer.shape.conv_channels = kChannels;
    layer.shape.conv_width = 4;
    layer.a_log = floats(random, 4, -2.0, 0.5);
    layer.dt_bias = floats(random, 4, -2.0, 0.0);
    layer.d = floats(random, 4, -1.0, 1.0);
    layer.conv_weight = floats(random, kChannels * 4, -1.0, 1.0);
  }
  std::vector<std::unique_ptr<Buffer>> inputs;
  for (int i = 0; i < kInputSets; ++i)
    inputs.push_back(bf16_inputs(random, Runner::input_elements(layers[0].shape)));
  const std::vector<Turn> script = make_script(random);

  Runner single(GetParam(), layers, inputs, script);
  Runner graphs(GetParam(), layers, inputs, script);
  // The captured fork goes to the last slot, which the script leaves free, and every replay must
  // find it so. While they are captured the calls change nothing.
  for (int slot = 0; slot + 1 < kSlots; ++slot)
    ASSERT_TRUE(graphs.cache().acquire(11, graphs.stream()).ok());
  graphs.capture();
  ASSERT_FALSE(HasFailure());
  for (int slot = 0; slot + 1 < kSlots; ++slot)
    ASSERT_TRUE(graphs.cache().release(slot, graphs.stream()).ok());

  for (std::size_t f = 0; f < script.size(); ++f) {
    for (Runner* runner : {&single, &graphs}) {
      runner->place(f);
      runner->move(script[f], runner == &graphs);
      runner == &graphs ? runner->replay() : runner->forward();
      runner->keep(f);
      ASSERT_FALSE(HasFailure()) << "forward " << f;
    }
  }
  single.finish();
  graphs.finish();
  const std::vector<unsigned char> want = single.log().host();
  const std::vector<unsigned char> got = graphs.log().host();
  const oracle::Comparison same = oracle::compare_bits("outputs", got.data(), want.data(),
                                                       want.size(), want.size() / script.size(), 1);
  EXPECT_TRUE(same.ok) << same.text;
  // The twin: a comparison that cannot see one bit would prove nothing.
  std::vector<unsigned char> twin = got;
  twin[twin.size() / 2] ^= 1;
  EXPECT_FALSE(oracle::compare_bits("outputs", twin.data(), want.data(), want.size(),
                                    want.size() / script.size(), 1)
                   .ok);

  std::int64_t positions = 0;
  int held = 0;
  for (std::int64_t slot = 0; slot < kSlots; ++slot) {
    const Result<SlotInfo> one = single.cache().info(slot);
    const Result<SlotInfo> other = graphs.cache().info(slot);
    ASSERT_EQ(one.ok(), other.ok());
    if (!one.ok()) continue;
    ++held;
    positions = std::max(positions, one->position);
    EXPECT_EQ(one->position, other->position);
    EXPECT_EQ(one->error, 0U);
    EXPECT_EQ(other->error, 0U);
    const auto a = single.cache().export_slot(slot);
    const auto b = graphs.cache().export_slot(slot);
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_EQ(*a, *b) << "slot " << slot;
  }
  EXPECT_GE(held, 2);
  EXPECT_GT(positions, 14) << "nothing has folded twice";
}

INSTANTIATE_TEST_SUITE_P(Implementations, CudaGraph, ::testing::Values("cuda", "cuda-reference"),
                         [](const auto& about) {
                           return about.param == "cuda" ? std::string("fast")
                                                        : std::string("reference");
                         });

}  // namespace
}  // namespace replayssm
