// Calls on slots that are refused: the code, what the message names, and that no byte has changed.
#include <cstring>

#include "tests/core/small_cache.hpp"

namespace replayssm::laws {
namespace {

constexpr StatusCode kArgument = StatusCode::kInvalidArgument;
constexpr StatusCode kPrecondition = StatusCode::kFailedPrecondition;
constexpr StatusCode kRange = StatusCode::kOutOfRange;
constexpr StatusCode kExhausted = StatusCode::kResourceExhausted;

class CoreSlots : public ::testing::TestWithParam<std::string> {};

std::vector<LayerState> states_of(SmallCache& small,
                                  std::vector<std::unique_ptr<DeviceBuffer>>* memory) {
  std::vector<LayerState> states;
  for (const CaseLayer& layer : small.made.layers) {
    const LayerShape& shape = layer.shape;
    LayerState state;
    memory->push_back(std::make_unique<DeviceBuffer>(*small.device));
    const std::vector<float> values(static_cast<std::size_t>(layer.oracle.state_size() + 1), 0.5F);
    state.state = TensorView::contiguous(memory->back()->hold(values), DType::kF32, shape.heads,
                                         shape.value_dim, shape.key_dim);
    if (shape.conv_channels > 0) {
      memory->push_back(std::make_unique<DeviceBuffer>(*small.device));
      const std::vector<float> inputs(static_cast<std::size_t>(shape.conv_channels * 8), 0.25F);
      state.conv = TensorView::contiguous(memory->back()->hold(inputs), DType::kF32,
                                          shape.conv_width - 1, shape.conv_channels);
    }
    states.push_back(state);
  }
  return states;
}

TEST_P(CoreSlots, SlotIdsAreChecked) {
  SmallCache small(GetParam());
  small.remember();
  std::vector<std::unique_ptr<DeviceBuffer>> memory;
  const std::vector<LayerState> states = states_of(small, &memory);
  Cache& cache = small.cache();
  for (const std::int64_t slot : {std::int64_t{-1}, std::int64_t{4}, std::int64_t{1} << 40,
                                  std::numeric_limits<std::int64_t>::min()}) {
    const std::string given = std::to_string(slot);
    small.expect_refused(cache.acquire_slot(slot), kRange, {"0 to 3", given});
    small.expect_refused(cache.release(slot), kRange, {"0 to 3", given});
    small.expect_refused(cache.fork(slot).status(), kRange, {"0 to 3", given});
    small.expect_refused(cache.info(slot).status(), kRange, {"0 to 3", given});
    small.expect_refused(cache.export_slot(slot).status(), kRange, {"0 to 3", given});
    small.expect_refused(cache.load_state(slot, 0, states), kRange, {"0 to 3", given});
    small.expect_refused(cache.store_state(slot, states), kRange, {"0 to 3", given});
    for (const MaterializeItem& item : {MaterializeItem{slot, 6, 2}, MaterializeItem{0, 6, slot}}) {
      small.expect_refused(cache.materialize({&item, 1}), kRange, {"0 to 3", given});
    }
  }
  small.expect_refused(cache.acquire_slot(1), kPrecondition, {"slot 1", "taken"});
  small.expect_refused(cache.release(3), kPrecondition, {"slot 3", "not acquired"});
  small.expect_refused(cache.fork(3).status(), kPrecondition, {"slot 3", "not acquired"});
  small.expect_refused(cache.info(3).status(), kPrecondition, {"slot 3"});
  small.expect_refused(cache.export_slot(3).status(), kPrecondition, {"slot 3"});
  small.expect_refused(cache.load_state(3, 0, states), kPrecondition, {"slot 3"});
  small.expect_refused(cache.store_state(3, states), kPrecondition, {"slot 3"});
  for (const MaterializeItem& item : {MaterializeItem{3, 6, 2}, MaterializeItem{0, 6, 3}}) {
    small.expect_refused(cache.materialize({&item, 1}), kPrecondition, {"slot 3"});
  }
}

TEST_P(CoreSlots, NoSlotOrBlockIsLeft) {
  SmallCache small(GetParam());
  Cache& cache = small.cache();
  ASSERT_TRUE(cache.acquire().ok());
  small.remember();
  const Result<std::vector<std::byte>> bytes = cache.export_slot(0);
  small.expect_refused(cache.acquire().status(), kExhausted, {"all 4 slots"});
  small.expect_refused(cache.fork(0).status(), kExhausted, {"all 4 slots"});
  small.expect_refused(cache.import_slot(*bytes).status(), kExhausted, {"all 4 slots"});
  // 6 blocks, 3 slots with their own: a fork needs two more in reserve, a second one a third.
  ASSERT_TRUE(cache.release(3).ok());
  ASSERT_TRUE(cache.fork(0).ok());
  ASSERT_TRUE(cache.release(2).ok());
  const Result<std::int64_t> second = cache.fork(0);
  ASSERT_TRUE(second.ok()) << second.status().to_string();
  EXPECT_EQ(cache.info(0)->block_references, 3);
  ASSERT_TRUE(cache.release(1).ok());
  ASSERT_TRUE(cache.fork(0).ok());  // one block with four sharers, four in reserve
  ASSERT_TRUE(cache.release(3).ok());
  small.remember();
  const Result<std::int64_t> slot = cache.acquire();  // 6 - 1 - 3 = 2 are free
  ASSERT_TRUE(slot.ok());
  ASSERT_TRUE(cache.release(*slot).ok());
}

TEST_P(CoreSlots, ABlockForEveryFoldIsKept) {
  const ImplementationInfo info = implementation_named(GetParam());
  Case made = small_case(info);
  made.config.blocks = 4;
  auto machine = make_machine(made, true, false, 5);
  Cache& cache = machine->cache();
  ASSERT_TRUE(cache.acquire().ok());
  ASSERT_TRUE(cache.fork(0).ok());  // 1 used, 2 of 3 free ones reserved
  ASSERT_TRUE(cache.acquire().ok());
  const Status acquire = cache.acquire().status();
  EXPECT_EQ(acquire.code(), kExhausted);
  EXPECT_NE(acquire.message().find("reserved for forked"), std::string::npos) << acquire.message();
  EXPECT_EQ(cache.acquire_slot(3).code(), kExhausted);
  EXPECT_EQ(cache.fork(2).status().code(), kExhausted);
  EXPECT_EQ(cache.fork(0).status().code(), kExhausted);
  EXPECT_EQ(cache.info(0)->block_references, 2);
  EXPECT_EQ(cache.free_slots(), 1);
  ASSERT_TRUE(cache.release(1).ok());
  EXPECT_TRUE(cache.acquire().ok());
}

TEST_P(CoreSlots, StatesAreChecked) {
  SmallCache small(GetParam());
  Cache& cache = small.cache();
  small.remember();
  std::vector<std::unique_ptr<DeviceBuffer>> memory;
  const std::vector<LayerState> good = states_of(small, &memory);
  const auto both = [&](const std::vector<LayerState>& states, StatusCode code,
                        std::initializer_list<std::string_view> parts) {
    small.expect_refused(cache.load_state(2, 0, states), code, parts);
    small.expect_refused(cache.store_state(0, states), code, parts);
  };
  std::vector<LayerState> states(good.begin(), good.end() - 1);
  both(states, kArgument, {"3", "given 2"});
  states = good;
  states[1].state = {};
  both(states, kArgument, {"layer 1", "none"});
  states = good;
  states[0].key_major = true;  // 16 x 8 is not 8 x 16
  both(states, kArgument, {"layer 0", "required shape"});
  states = good;
  states[2].state.dtype = DType::kI32;
  both(states, kArgument, {"layer 2", "i32"});
  states = good;
  states[2].state.stride[2] = 2;
  both(states, kArgument, {"layer 2", "stride 1"});
  states = good;
  states[1].conv = good[0].conv;
  both(states, kArgument, {"layer 1", "convolution"});
  states = good;
  states[0].conv.shape[1] = 5;
  both(states, kArgument, {"layer 0", "conv", "6", "5"});
  states = good;
  states[0].conv.dtype = DType::kF16;
  both(states, kArgument, {"layer 0", "conv", "f16"});
  states = good;
  states[0].state.data = static_cast<char*>(good[0].state.data) + 2;
  both(states, kArgument, {"layer 0", "aligned"});
  states = good;
  states[1].state.stride[0] = 0;  // heads on top of each other
  small.expect_refused(cache.store_state(0, states), kArgument, {"layer 1", "axis 0"});

  small.expect_refused(cache.load_state(2, -1, good), kArgument, {"position", "-1"});
  small.expect_refused(cache.load_state(2, std::numeric_limits<std::int64_t>::max(), good),
                       kArgument, {"position", "9223372036854775807"});
  small.expect_refused(cache.load_state(0, 0, good), kPrecondition, {"slot 0", "fresh", "6"});
  EXPECT_TRUE(cache.load_state(2, 5, good).ok());
  EXPECT_EQ(cache.info(2)->position, 5);
  small.remember();
  small.expect_refused(cache.load_state(2, 5, good), kPrecondition, {"slot 2", "fresh"});
}

TEST_P(CoreSlots, MaterializeIsAllOrNothing) {
  SmallCache small(GetParam());
  Cache& cache = small.cache();
  ASSERT_TRUE(cache.acquire_slot(3).ok());
  small.remember();
  const MaterializeItem good{0, 6, 2};
  const auto refused = [&](MaterializeItem bad, StatusCode code,
                           std::initializer_list<std::string_view> parts) {
    for (const std::vector<MaterializeItem>& items :
         {std::vector<MaterializeItem>{good, bad}, std::vector<MaterializeItem>{bad, good}}) {
      small.expect_refused(cache.materialize(items), code, parts);
    }
  };
  refused({0, 7, 3}, kRange, {"position", "given 7"});
  refused({0, -1, 3}, kRange, {"position", "given -1"});
  refused({0, 6, 1}, kPrecondition, {"slot 1", "fresh"});
  refused({0, 6, 2}, kArgument, {"slot 2"});
  refused({2, 0, 3}, kArgument, {"slot 2"});
  const MaterializeItem self{3, 0, 3};
  small.expect_refused(cache.materialize({&self, 1}), kArgument, {"slot 3"});
  if (small.made.config.decode == DecodeMode::kReplay) {
    // The conv inputs behind an earlier position are gone unless the cache keeps them.
    refused({0, 5, 3}, kPrecondition, {"materialize_history"});
  }
  const std::vector<MaterializeItem> items = {good, {1, 6, 3}};
  EXPECT_TRUE(cache.materialize(items).ok());
  EXPECT_EQ(cache.info(3)->position, 6);
}

TEST_P(CoreSlots, ImportsAreChecked) {
  SmallCache small(GetParam());
  Cache& cache = small.cache();
  const Result<std::vector<std::byte>> good = cache.export_slot(0);
  ASSERT_TRUE(good.ok());
  small.remember();
  const auto refused = [&](const std::vector<std::byte>& bytes, StatusCode code) {
    small.expect_refused(cache.import_slot(bytes).status(), code, {"import"});
  };
  refused({}, StatusCode::kDataLoss);
  for (const std::size_t size :
       {std::size_t{1}, std::size_t{8}, std::size_t{40}, good->size() - 1}) {
    refused({good->begin(), good->begin() + static_cast<std::ptrdiff_t>(size)},
            StatusCode::kDataLoss);
  }
  std::vector<std::byte> longer = *good;
  longer.push_back(std::byte{0});
  refused(longer, StatusCode::kDataLoss);
  // Any single damaged byte is found: in magic, version, sizes, fields, payload.
  for (std::size_t at = 0; at < good->size(); at += at < 200 ? 1 : 61) {
    std::vector<std::byte> damaged = *good;
    damaged[at] ^= std::byte{0x10};
    const Status status = cache.import_slot(damaged).status();
    EXPECT_TRUE(status.code() == StatusCode::kDataLoss || status.code() == StatusCode::kUnsupported)
        << "byte " << at << ": " << status.to_string();
    EXPECT_TRUE(small.machine->lent()->snapshot() == small.before) << "byte " << at;
  }
  EXPECT_TRUE(cache.import_slot(*good).ok());
}

TEST_P(CoreSlots, ImportsOfOtherCachesAreUnsupported) {
  SmallCache small(GetParam());
  const Result<std::vector<std::byte>> bytes = small.cache().export_slot(0);
  ASSERT_TRUE(bytes.ok());
  const ImplementationInfo info = implementation_named(GetParam());
  const auto refused = [&](void (*change)(Case&), std::string_view part) {
    Case made = small_case(info);
    change(made);
    finish_case(&made);
    auto machine = make_machine(made, true, false, 5);
    ASSERT_TRUE(machine);
    const std::vector<unsigned char> before = machine->lent()->snapshot();
    const Status status = machine->cache().import_slot(*bytes).status();
    EXPECT_EQ(status.code(), StatusCode::kUnsupported) << status.to_string();
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    EXPECT_TRUE(machine->lent()->snapshot() == before);
  };
  refused([](Case& c) { c.layers.pop_back(); }, "3 layers");
  refused([](Case& c) { c.layers[1].shape.value_dim = 16; }, "layer 1");
  refused([](Case& c) { c.layers[0].shape.conv_width = 2; }, "layer 0");
  refused([](Case& c) { c.layers[2].shape.gate = GateKind::kLogDecay; }, "layer 2");
  refused([](Case& c) { std::swap(c.layers[1], c.layers[2]); }, "layer 1");
  refused([](Case& c) { c.config.activations = DType::kBF16; }, "dtype");
  refused([](Case& c) { c.config.update = DType::kF32; }, "update");
}

INSTANTIATE_TEST_SUITE_P(All, CoreSlots, ::testing::ValuesIn(host_names()), law_name);

}  // namespace
}  // namespace replayssm::laws
