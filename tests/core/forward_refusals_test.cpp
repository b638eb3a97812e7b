// Calls of a forward that are refused: the code, what the message names, and that no byte of the
// cache's memory, cursors and tables included, has changed.
#include "tests/core/small_cache.hpp"

namespace replayssm::laws {
namespace {

constexpr StatusCode kArgument = StatusCode::kInvalidArgument;
constexpr StatusCode kPrecondition = StatusCode::kFailedPrecondition;
constexpr StatusCode kRange = StatusCode::kOutOfRange;
constexpr StatusCode kExhausted = StatusCode::kResourceExhausted;

class CoreForward : public ::testing::TestWithParam<std::string> {};

TEST_P(CoreForward, BeginRefuses) {
  SmallCache small(GetParam());
  small.remember();
  const auto refused = [&](std::vector<std::int64_t> slots, std::vector<std::int32_t> tokens,
                           StatusCode code, std::initializer_list<std::string_view> parts) {
    small.expect_refused(small.open(slots, tokens, false), code, parts);
  };
  refused({0, 1, 2, 0, 1}, {1, 1, 1, 1, 1}, kArgument, {"max_rows = 4", "given 5"});
  refused({4}, {1}, kRange, {"row 0", "0 to 3", "given 4"});
  refused({0, -2}, {1, 1}, kRange, {"row 1", "-2", "padding id -1"});
  refused({std::numeric_limits<std::int64_t>::min()}, {1}, kRange, {"row 0"});
  refused({0, 3}, {1, 1}, kPrecondition, {"row 1", "slot 3", "not acquired"});
  refused({0, 1, 0}, {1, 1, 1}, kArgument, {"rows 0 and 2", "slot 0"});
  refused({0}, {-1}, kArgument, {"row 0", "max_step_tokens = 4", "given -1"});
  refused({1, 0}, {1, 5}, kArgument, {"row 1", "max_step_tokens = 4", "given 5"});
  Rows rows;
  rows.count = -1;
  small.expect_refused(small.cache().begin(rows), kArgument, {"given -1"});
  rows.count = 1;
  small.expect_refused(small.cache().begin(rows), kArgument, {"slots", "given none"});
  const std::vector<std::int64_t> two = {0, 1};
  const std::vector<std::int32_t> many = {13, 12};
  const std::vector<std::uint8_t> prefill = {1, 1};
  rows.count = 2;
  rows.slots = two.data();
  rows.tokens = many.data();
  rows.prefill = prefill.data();
  small.expect_refused(small.cache().begin(rows), kExhausted,
                       {"row 1 ends at token 25", "at most 24 tokens of one forward"});
  const std::vector<std::int32_t> longer = {25, 0};
  rows.tokens = longer.data();
  small.expect_refused(small.cache().begin(rows), kArgument, {"max_tokens = 24", "given 25"});
  // Offsets: within the tensors and behind the row before.
  const std::vector<std::int32_t> three = {3, 3};
  rows.tokens = three.data();
  rows.prefill = nullptr;
  for (const std::vector<std::int64_t>& offsets : {std::vector<std::int64_t>{0, 2},
                                                   {-1, 3},
                                                   {4, 0},
                                                   {0, 25},
                                                   {0, 22},
                                                   {0, std::numeric_limits<std::int64_t>::max()}}) {
    rows.offsets = offsets.data();
    const Status status = small.cache().begin(rows);
    const bool behind = offsets[1] == 22;
    small.expect_refused(status, behind ? kExhausted : kArgument,
                         {behind ? "row 1 ends at token 25" : "offset must be at least"});
  }
  rows.offsets = nullptr;
  for (const std::vector<std::int32_t>& parents : {std::vector<std::int32_t>{-1, 1, 0, -1, 0, 1},
                                                   {-1, 0, 1, 0, 0, 1},
                                                   {-2, 0, 1, -1, 0, 1},
                                                   {-1, 0, 1, -1, 0, 2},
                                                   {-1, 0, 1, -1, 0, 77}}) {
    rows.parents = parents.data();
    small.expect_refused(small.cache().begin(rows), kArgument, {"parent"});
  }
}

// A forward that is open survives a begin that is refused.
TEST_P(CoreForward, RefusedBeginKeepsTheOpenForward) {
  SmallCache small(GetParam());
  ASSERT_TRUE(small.open({0, 1}, {2, 1}).ok());
  ASSERT_TRUE(small.run_layers().ok());
  small.remember();
  Rows bad = small.rows;
  const std::vector<std::int64_t> slots = {0, 9};
  bad.slots = slots.data();
  small.expect_refused(small.cache().begin(bad), kRange, {"row 1"});
  const std::vector<std::int64_t> twice = {1, 1};
  bad.slots = twice.data();
  small.expect_refused(small.cache().begin(bad), kArgument, {"rows 0 and 1"});
  Accepted accepted;
  accepted.count = 2;
  const Status status = small.cache().commit(accepted);
  EXPECT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(small.cache().info(0)->position, 8);
}

TEST_P(CoreForward, OrderIsChecked) {
  SmallCache small(GetParam());
  small.remember();
  Accepted accepted;
  LayerInputs& inputs = small.tensors[1]->inputs;
  ConvInputs& conv = small.tensors[0]->conv;
  small.expect_refused(small.cache().fold(), kPrecondition, {"begin"});
  small.expect_refused(small.cache().step(inputs), kPrecondition, {"step", "begin"});
  small.expect_refused(small.cache().prefill(inputs), kPrecondition, {"prefill", "begin"});
  small.expect_refused(small.cache().conv(conv), kPrecondition, {"conv", "begin"});
  small.expect_refused(small.cache().commit(accepted), kPrecondition, {"no forward"});
  EXPECT_TRUE(small.cache().abort().ok()) << "there is nothing to abort";

  ASSERT_TRUE(small.open({0, 1}, {2, 1}, false).ok());
  small.remember();
  accepted.count = 2;
  small.expect_refused(small.cache().step(inputs), kPrecondition, {"fold first"});
  small.expect_refused(small.cache().conv(conv), kPrecondition, {"fold first"});
  small.expect_refused(small.cache().commit(accepted), kPrecondition, {"fold"});
  ASSERT_TRUE(small.cache().fold().ok());
  small.remember();
  small.expect_refused(small.cache().fold(), kPrecondition, {"already"});
  small.expect_refused(small.cache().step(small.tensors[0]->inputs), kPrecondition,
                       {"conv", "layer 0"});
  small.expect_refused(small.cache().commit(accepted), kPrecondition, {"layer 0", "stepped"});
  ConvInputs wrong = conv;
  wrong.layer = 1;
  small.expect_refused(small.cache().conv(wrong), kPrecondition, {"layer 1", "conv_channels"});
  for (const std::int32_t layer : {-1, 3, 1 << 30}) {
    wrong.layer = layer;
    LayerInputs other = inputs;
    other.layer = layer;
    small.expect_refused(small.cache().conv(wrong), kRange, {"0 to 2", std::to_string(layer)});
    small.expect_refused(small.cache().step(other), kRange, {"0 to 2", std::to_string(layer)});
    small.expect_refused(small.cache().prefill(other), kRange, {"0 to 2"});
  }
  ASSERT_TRUE(small.cache().step(inputs).ok());
  ASSERT_TRUE(small.cache().conv(conv).ok());
  small.remember();
  small.expect_refused(small.cache().step(inputs), kPrecondition, {"layer 1", "has run"});
  small.expect_refused(small.cache().conv(conv), kPrecondition, {"layer 0", "convolved"});
  small.expect_refused(small.cache().commit(accepted), kPrecondition, {"layer 0"});
  for (const auto& call : {small.cache().fork(0).status(), small.cache().export_slot(0).status(),
                           small.cache().import_slot({}).status(), small.cache().materialize({})}) {
    small.expect_refused(call, kPrecondition, {"forward is open"});
  }
}

TEST_P(CoreForward, CommitRefuses) {
  SmallCache small(GetParam());
  const std::vector<std::int32_t> parents = {-1, 0, 0, -1, 0};
  small.slots = {0, 1};
  small.tokens = {3, 2};
  Rows rows;
  rows.count = 2;
  rows.slots = small.slots.data();
  rows.tokens = small.tokens.data();
  rows.parents = parents.data();
  ASSERT_TRUE(small.cache().begin(rows).ok());
  ASSERT_TRUE(small.cache().fold().ok());
  ASSERT_TRUE(small.run_layers().ok());
  small.remember();
  Accepted accepted;
  const auto refused = [&](std::vector<std::int32_t> tokens, std::vector<std::int32_t> nodes,
                           std::initializer_list<std::string_view> parts) {
    accepted.tokens = tokens.empty() ? nullptr : tokens.data();
    accepted.nodes = nodes.empty() ? nullptr : nodes.data();
    small.expect_refused(small.cache().commit(accepted), kArgument, parts);
  };
  accepted.count = 1;
  refused({1}, {}, {"required 2 rows", "given 1"});
  accepted.count = 3;
  refused({1, 1, 1}, {}, {"required 2 rows", "given 3"});
  accepted.count = 2;
  refused({4, 1}, {}, {"row 0", "0 to 3", "given 4"});
  refused({1, -1}, {}, {"row 1", "0 to 2", "given -1"});
  refused({3, 1}, {}, {"row 0", "path"});  // nodes 0, 1, 2 are no path
  refused({}, {}, {"row 0"});
  refused({2, 0}, {1, 2, 0, 0, 0, 0, 0, 0}, {"row 0", "root"});
  refused({2, 0}, {0, 0, 0, 0, 0, 0, 0, 0}, {"row 0"});
  refused({2, 0}, {0, 3, 0, 0, 0, 0, 0, 0}, {"row 0"});
  refused({2, 0}, {0, -1, 0, 0, 0, 0, 0, 0}, {"row 0"});
  refused({2, 2}, {0, 1, 0, 0, 1, 0, 0, 0}, {"row 1"});
  accepted.node_stride = -4;
  refused({1, 1}, {0, 0, 0, 0, 0, 0, 0, 0}, {"node_stride", "-4"});
  accepted.node_stride = std::numeric_limits<std::int64_t>::max();  // a row's place would overflow
  refused({1, 1}, {0, 0, 0, 0, 0, 0, 0, 0}, {"node_stride", "9223372036854775807"});
  accepted.node_stride = 1;  // two nodes do not fit a row of one
  refused({2, 1}, {0, 1}, {"row 0", "node_stride", "1"});
  accepted.node_stride = 0;
  const std::vector<std::int32_t> tokens = {2, 1};
  const std::vector<std::int32_t> nodes = {0, 2, 0, 0, 0, 0, 0, 0};
  accepted.tokens = tokens.data();
  accepted.nodes = nodes.data();
  const Status status = small.cache().commit(accepted);
  EXPECT_TRUE(status.ok()) << status.to_string();
  small.remember();
  small.expect_refused(small.cache().commit(accepted), kPrecondition, {"committed already"});
}

// Nodes that are given for chains must be the chain.
TEST_P(CoreForward, CommitOfAChainByNodes) {
  SmallCache small(GetParam());
  ASSERT_TRUE(small.open({0}, {3}).ok());
  ASSERT_TRUE(small.run_layers().ok());
  small.remember();
  Accepted accepted;
  accepted.count = 1;
  const std::vector<std::int32_t> two = {2};
  std::vector<std::int32_t> nodes = {0, 2, 0, 0};
  accepted.tokens = two.data();
  accepted.nodes = nodes.data();
  small.expect_refused(small.cache().commit(accepted), kArgument, {"row 0", "path"});
  nodes = {0, 1, 0, 0};
  EXPECT_TRUE(small.cache().commit(accepted).ok());
}

TEST_P(CoreForward, PrefillRowsAreAcceptedWhole) {
  SmallCache small(GetParam());
  ASSERT_TRUE(small.open_prompt(2, 7).ok());
  Accepted accepted;
  accepted.count = 1;
  small.remember();
  small.expect_refused(small.cache().commit(accepted), kPrecondition, {"layer 0", "prefilled"});
  ASSERT_TRUE(small.run_layers().ok());
  small.remember();
  for (const std::int32_t count : {0, 6}) {
    accepted.tokens = &count;
    small.expect_refused(small.cache().commit(accepted), kPrecondition,
                         {"row 0", "required 7", "given " + std::to_string(count)});
  }
  accepted.tokens = nullptr;
  EXPECT_TRUE(small.cache().commit(accepted).ok());
}

struct ViewMistake {
  const char* name;
  TensorView LayerInputs::*view;
  void (*make)(TensorView&);
  std::vector<std::string> parts;
};

TEST_P(CoreForward, TensorsAreChecked) {
  SmallCache small(GetParam());
  ASSERT_TRUE(small.open({0, 1}, {2, 1}).ok());
  ASSERT_TRUE(small.cache().conv(small.tensors[0]->conv).ok());
  small.remember();
  const std::vector<ViewMistake> mistakes = {
      {"value absent",
       &LayerInputs::value,
       [](TensorView& v) { v = {}; },
       {"value", "required, given none"}},
      {"out absent", &LayerInputs::out, [](TensorView& v) { v = {}; }, {"out", "none"}},
      {"gate absent", &LayerInputs::gate, [](TensorView& v) { v = {}; }, {"gate", "none"}},
      {"rank", &LayerInputs::key, [](TensorView& v) { v.rank = 2; }, {"key", "required shape"}},
      {"rank 0", &LayerInputs::key, [](TensorView& v) { v.rank = 0; }, {"key", "given []"}},
      {"rank 99", &LayerInputs::key, [](TensorView& v) { v.rank = 99; }, {"key"}},
      {"rank -1", &LayerInputs::key, [](TensorView& v) { v.rank = -1; }, {"key"}},
      {"tokens",
       &LayerInputs::query,
       [](TensorView& v) { v.shape[0] = 2; },
       {"query", "at least 3", "given [2"}},
      {"heads",
       &LayerInputs::value,
       [](TensorView& v) { v.shape[1] += 1; },
       {"value", "required shape"}},
      {"dim", &LayerInputs::out, [](TensorView& v) { v.shape[2] -= 1; }, {"out", "required"}},
      {"last stride",
       &LayerInputs::value,
       [](TensorView& v) { v.stride[2] = 2; },
       {"value", "stride 1", "given 2"}},
      {"negative",
       &LayerInputs::key,
       [](TensorView& v) { v.stride[0] = -8; },
       {"key", "negative", "-8", "axis 0"}},
      {"out overlaps itself",
       &LayerInputs::out,
       [](TensorView& v) { v.stride[0] = 0; },
       {"out", "axis 0", "0"}},
      {"heads of out overlap",
       &LayerInputs::out,
       [](TensorView& v) { v.stride[1] = 0; },
       {"out", "axis 1", "0"}},
      {"dtype",
       &LayerInputs::value,
       [](TensorView& v) { v.dtype = DType::kBF16; },
       {"value", "required dtype f32", "given bf16"}},
      {"dtype of out",
       &LayerInputs::out,
       [](TensorView& v) { v.dtype = DType::kI32; },
       {"out", "f32", "given i32"}},
      {"dtype of gate",
       &LayerInputs::gate,
       [](TensorView& v) { v.dtype = DType::kF16; },
       {"gate", "given f16"}},
      {"odd address",
       &LayerInputs::value,
       [](TensorView& v) { v.data = static_cast<char*>(v.data) + 1; },
       {"value", "aligned"}},
      {"odd output",
       &LayerInputs::out,
       [](TensorView& v) { v.data = static_cast<char*>(v.data) + 2; },
       {"out", "aligned"}},
  };
  for (std::size_t layer = 0; layer < small.tensors.size(); ++layer) {
    for (const ViewMistake& mistake : mistakes) {
      SCOPED_TRACE(std::string(mistake.name) + " in layer " + std::to_string(layer));
      LayerInputs inputs = small.tensors[layer]->inputs;
      mistake.make(inputs.*mistake.view);
      const Status status = small.cache().step(inputs);
      EXPECT_EQ(status.code(), kArgument) << status.to_string();
      for (const std::string& part : mistake.parts) {
        EXPECT_NE(status.message().find(part), std::string::npos)
            << part << ": " << status.message();
      }
      EXPECT_TRUE(small.machine->lent()->snapshot() == small.before);
    }
  }
  LayerInputs inputs = small.tensors[1]->inputs;
  inputs.z = inputs.value;
  small.expect_refused(small.cache().step(inputs), kArgument, {"z", "mamba2", "gdn"});
  inputs = small.tensors[1]->inputs;
  inputs.beta = {};
  small.expect_refused(small.cache().step(inputs), kArgument, {"beta", "none"});
  inputs = small.tensors[0]->inputs;
  inputs.z = inputs.key;
  small.expect_refused(small.cache().step(inputs), kArgument, {"z", "required shape"});
  for (TensorView LayerInputs::*input :
       {&LayerInputs::value, &LayerInputs::key, &LayerInputs::gate}) {
    inputs = small.tensors[0]->inputs;
    inputs.out.data = (inputs.*input).data;
    small.expect_refused(small.cache().step(inputs), kArgument, {"out", "overlap"});
  }
  EXPECT_TRUE(small.cache().step(small.tensors[0]->inputs).ok());
}

TEST_P(CoreForward, ConvTensorsAreChecked) {
  SmallCache small(GetParam());
  ASSERT_TRUE(small.open({0, 1}, {2, 1}).ok());
  small.remember();
  ConvInputs conv = small.tensors[0]->conv;
  conv.out = conv.in;
  small.expect_refused(small.cache().conv(conv), kArgument, {"overlap"});
  conv = small.tensors[0]->conv;
  conv.in = {};
  small.expect_refused(small.cache().conv(conv), kArgument, {"in", "none"});
  conv = small.tensors[0]->conv;
  conv.out = {};
  small.expect_refused(small.cache().conv(conv), kArgument, {"out", "none"});
  conv = small.tensors[0]->conv;
  conv.in.shape[1] = 7;
  small.expect_refused(small.cache().conv(conv), kArgument, {"in", "6", "7"});
  conv = small.tensors[0]->conv;
  conv.out.dtype = DType::kBF16;
  small.expect_refused(small.cache().conv(conv), kArgument, {"out", "f32", "bf16"});
  conv = small.tensors[0]->conv;
  conv.out.stride[0] = 0;
  small.expect_refused(small.cache().conv(conv), kArgument, {"out", "axis 0"});
}

INSTANTIATE_TEST_SUITE_P(All, CoreForward, ::testing::ValuesIn(host_names()), law_name);

}  // namespace
}  // namespace replayssm::laws
