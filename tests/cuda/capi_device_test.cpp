// The C interface on a device: arrays, tensors and weights in device memory, calls on a stream of
// the caller's. Outputs and exports must be bit for bit those of the C++ interface given the same.
#include "tests/cuda/device_rig.hpp"

#include "replayssm/replayssm.h"

namespace replayssm::device_tests {
namespace {

constexpr int kForwards = 9;
constexpr int kHeads = 4;
constexpr int kGroups = 2;
constexpr int kValue = 32;
constexpr int kKey = 128;

std::vector<float> numbers(int count, int salt) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i)
    values[static_cast<std::size_t>(i)] = 0.6F * std::sin(static_cast<float>(i * 5 + salt * 17));
  return values;
}

// What both sides read: one layer, two rows of up to T_max tokens.
struct Inputs {
  Copy a_log{numbers(kHeads, 1)};
  Copy slots{std::vector<std::int64_t>{0, 1}};
  Copy tokens{std::vector<std::int32_t>{kSteps, 2}};
  Copy parents{std::vector<std::int32_t>{-1, 0, 0, -1, 0}};
  Copy accepted{std::vector<std::int32_t>{2, 1}};
  Copy nodes{std::vector<std::int32_t>{0, 2, 99, 0, 99, 99}};
  Copy value{numbers(5 * kHeads * kValue, 2)};
  Copy key{numbers(5 * kGroups * kKey, 3)};
  Copy query{numbers(5 * kGroups * kKey, 4)};
  Copy gate{numbers(5 * kHeads, 5)};
};

class CudaCInterface : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string why = why_skipped(GetParam());
    if (!why.empty()) GTEST_SKIP() << why;
    require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    on_.struct_size = sizeof on_;
    on_.device = REPLAYSSM_DEVICE_CUDA;
    on_.handle = stream_;
    error_.struct_size = sizeof error_;
    make();
  }
  void TearDown() override {
    replayssm_cache_destroy(cache_);
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  }
  void ok(replayssm_code code) { ASSERT_EQ(code, REPLAYSSM_OK) << error_.message; }

  static replayssm_tensor view(const Copy& data, std::initializer_list<std::int64_t> extents) {
    replayssm_tensor tensor{};
    tensor.struct_size = sizeof tensor;
    tensor.dtype = REPLAYSSM_F32;
    tensor.data = data.data();
    tensor.rank = static_cast<std::int32_t>(extents.size());
    std::copy(extents.begin(), extents.end(), tensor.shape);
    std::int64_t stride = 1;
    for (int axis = tensor.rank - 1; axis >= 0; --axis) {
      tensor.stride[axis] = stride;
      stride *= tensor.shape[axis];
    }
    return tensor;
  }
  void make() {
    layer_.struct_size = sizeof layer_;
    layer_.rule = REPLAYSSM_RULE_MAMBA2;
    layer_.heads = kHeads;
    layer_.groups = kGroups;
    layer_.value_dim = kValue;
    layer_.key_dim = kKey;
    layer_.a_log = inputs_.a_log.as<float>();
    config_.struct_size = sizeof config_;
    config_.layer_count = 1;
    config_.layers = &layer_;
    config_.activations = REPLAYSSM_F32;
    config_.window = kWindow;
    config_.max_step_tokens = kSteps;
    config_.slots = 4;
    config_.blocks = 8;
    config_.max_rows = 2;
    config_.device = REPLAYSSM_DEVICE_CUDA;
    config_.implementation = implementation_.c_str();
    ok(replayssm_cache_create(&config_, &cache_, &error_));
  }
  // One forward with a tree; its outputs.
  std::vector<float> forward() {
    const Copy out(std::vector<float>(5 * kHeads * kValue));
    replayssm_rows rows{};
    rows.struct_size = sizeof rows;
    rows.count = 2;
    rows.slots = inputs_.slots.as<std::int64_t>();
    rows.tokens = inputs_.tokens.as<std::int32_t>();
    rows.parents = inputs_.parents.as<std::int32_t>();
    ok(replayssm_begin(cache_, &rows, &on_, &error_));
    ok(replayssm_fold(cache_, &on_, &error_));
    replayssm_layer_inputs inputs{};
    inputs.struct_size = sizeof inputs;
    inputs.value = view(inputs_.value, {5, kHeads, kValue});
    inputs.key = view(inputs_.key, {5, kGroups, kKey});
    inputs.query = view(inputs_.query, {5, kGroups, kKey});
    inputs.gate = view(inputs_.gate, {5, kHeads});
    inputs.out = view(out, {5, kHeads, kValue});
    for (replayssm_tensor* absent : {&inputs.beta, &inputs.z}) absent->struct_size = sizeof *absent;
    ok(replayssm_step(cache_, &inputs, &on_, &error_));
    replayssm_accepted accepted{};
    accepted.struct_size = sizeof accepted;
    accepted.count = 2;
    accepted.tokens = inputs_.accepted.as<std::int32_t>();
    accepted.nodes = inputs_.nodes.as<std::int32_t>();
    accepted.node_stride = 3;
    ok(replayssm_commit(cache_, &accepted, &on_, &error_));
    require(cudaStreamSynchronize(stream_));
    return out.host<float>(5 * kHeads * kValue);
  }

  const std::string implementation_ = GetParam();
  Inputs inputs_;
  replayssm_layer layer_{};
  replayssm_config config_{};
  replayssm_cache* cache_ = nullptr;
  cudaStream_t stream_ = nullptr;
  replayssm_stream on_{};
  replayssm_error error_{};
};

TEST_P(CudaCInterface, SaysWhatTheOtherInterfaceSays) {
  CacheConfig config;
  config.layers.resize(1);
  config.layers[0].heads = kHeads;
  config.layers[0].groups = kGroups;
  config.layers[0].value_dim = kValue;
  config.layers[0].key_dim = kKey;
  config.weights.resize(1);
  config.weights[0].a_log = inputs_.a_log.as<float>();
  config.window = kWindow;
  config.max_step_tokens = kSteps;
  config.slots = 4;
  config.blocks = 8;
  config.max_rows = 2;
  config.implementation = GetParam();
  Result<Cache> made = Cache::create(config);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  Cache& cache = *made;
  const Copy out(std::vector<float>(5 * kHeads * kValue));
  for (std::int64_t slot = 0; slot < 2; ++slot) {
    std::int64_t given = -1;
    ok(replayssm_acquire(cache_, 7, &given, &on_, &error_));
    ASSERT_EQ(given, slot);
    ASSERT_TRUE(cache.acquire(7, stream_).ok());
  }
  for (int f = 0; f < kForwards; ++f) {
    Rows rows;
    rows.count = 2;
    rows.slots = inputs_.slots.as<std::int64_t>();
    rows.tokens = inputs_.tokens.as<std::int32_t>();
    rows.parents = inputs_.parents.as<std::int32_t>();
    rows.stream = stream_;
    LayerInputs inputs;
    inputs.value = TensorView::contiguous(inputs_.value.data(), DType::kF32, 5, kHeads, kValue);
    inputs.key = TensorView::contiguous(inputs_.key.data(), DType::kF32, 5, kGroups, kKey);
    inputs.query = TensorView::contiguous(inputs_.query.data(), DType::kF32, 5, kGroups, kKey);
    inputs.gate = TensorView::contiguous(inputs_.gate.data(), DType::kF32, 5, kHeads);
    inputs.out = TensorView::contiguous(out.data(), DType::kF32, 5, kHeads, kValue);
    inputs.stream = stream_;
    Accepted accepted;
    accepted.count = 2;
    accepted.tokens = inputs_.accepted.as<std::int32_t>();
    accepted.nodes = inputs_.nodes.as<std::int32_t>();
    accepted.node_stride = 3;
    accepted.stream = stream_;
    for (const Status& status :
         {cache.begin(rows), cache.fold(stream_), cache.step(inputs), cache.commit(accepted)}) {
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
    require(cudaStreamSynchronize(stream_));
    const std::vector<float> want = out.host<float>(5 * kHeads * kValue);
    const std::vector<float> got = forward();
    ASSERT_FALSE(HasFatalFailure());
    ASSERT_EQ(got, want) << "forward " << f;
    ASSERT_NE(*std::max_element(want.begin(), want.end()), 0.0F);
  }
  // Many slots at once, then exports, and an import's future.
  replayssm_slot_info infos[2] = {};
  infos[0].struct_size = sizeof infos[0];
  const std::int64_t slots[2] = {0, 1};
  ok(replayssm_slots(cache_, slots, 2, infos, &on_, &error_));
  for (std::int64_t slot = 0; slot < 2; ++slot) {
    const Result<SlotInfo> facts = cache.info(slot);
    ASSERT_TRUE(facts.ok());
    EXPECT_EQ(infos[slot].position, facts->position);
    EXPECT_EQ(infos[slot].position, kForwards * (slot == 0 ? 2 : 1));
    EXPECT_EQ(infos[slot].committed, facts->committed);
    EXPECT_EQ(infos[slot].error, 0U);
    std::size_t size = 0;
    ok(replayssm_export(cache_, slot, nullptr, 0, &size, &on_, &error_));
    std::vector<std::byte> bytes(size);
    ok(replayssm_export(cache_, slot, bytes.data(), size, &size, &on_, &error_));
    const Result<std::vector<std::byte>> other = cache.export_slot(slot);
    ASSERT_TRUE(other.ok());
    EXPECT_EQ(bytes, *other);
    std::int64_t imported = -1;
    ok(replayssm_import(cache_, bytes.data(), size, &imported, &on_, &error_));
    std::vector<std::byte> again(size);
    ok(replayssm_export(cache_, imported, again.data(), size, &size, &on_, &error_));
    EXPECT_EQ(again, bytes);
    ok(replayssm_release(cache_, imported, &on_, &error_));
  }
}

// A row that is not legal is marked, read with many others, and its mark taken back in stream
// order.
TEST_P(CudaCInterface, MarksAreReadAndTakenBack) {
  std::int64_t slot = -1;
  ok(replayssm_acquire(cache_, 7, &slot, &on_, &error_));
  ASSERT_EQ(slot, 0);
  (void)forward();  // names slot 1, which is not held
  std::int64_t other = -1;
  ok(replayssm_acquire(cache_, 7, &other, &on_, &error_));
  ASSERT_EQ(other, 1);
  const Copy wrong(std::vector<std::int32_t>{1, kSteps + 1});
  replayssm_rows rows{};
  rows.struct_size = sizeof rows;
  rows.count = 2;
  rows.slots = inputs_.slots.as<std::int64_t>();
  rows.tokens = wrong.as<std::int32_t>();
  ok(replayssm_begin(cache_, &rows, &on_, &error_));
  ok(replayssm_abort(cache_, &on_, &error_));
  replayssm_slot_info infos[2] = {};
  infos[0].struct_size = sizeof infos[0];
  const std::int64_t slots[2] = {0, 1};
  ok(replayssm_slots(cache_, slots, 2, infos, &on_, &error_));
  EXPECT_EQ(infos[0].error, 0U);
  EXPECT_EQ(infos[0].position, 2);
  EXPECT_EQ(infos[1].error, static_cast<std::uint32_t>(REPLAYSSM_SLOT_OUT_OF_RANGE));
  EXPECT_EQ(infos[1].position, 0);
  EXPECT_EQ(replayssm_clear_errors(cache_, 1, REPLAYSSM_SLOT_TORN, &on_, &error_),
            REPLAYSSM_INVALID_ARGUMENT);
  ok(replayssm_clear_errors(cache_, 1, REPLAYSSM_SLOT_OUT_OF_RANGE, &on_, &error_));
  ok(replayssm_slots(cache_, slots, 2, infos, &on_, &error_));
  EXPECT_EQ(infos[1].error, 0U);
}

TEST_P(CudaCInterface, StreamsOfAnotherDeviceAreRefused) {
  std::int64_t slot = -1;
  replayssm_stream other = on_;
  other.device = REPLAYSSM_DEVICE_CPU;
  EXPECT_EQ(replayssm_acquire(cache_, 7, &slot, &other, &error_), REPLAYSSM_INVALID_ARGUMENT);
  other = on_;
  other.device_index = 1;
  EXPECT_NE(replayssm_acquire(cache_, 7, &slot, &other, &error_), REPLAYSSM_OK);
  EXPECT_EQ(slot, -1);
  ok(replayssm_acquire(cache_, 7, &slot, &on_, &error_));
  EXPECT_EQ(slot, 0);
}

INSTANTIATE_TEST_SUITE_P(Implementations, CudaCInterface,
                         ::testing::Values("cuda", "cuda-reference"), test_name);

}  // namespace
}  // namespace replayssm::device_tests
