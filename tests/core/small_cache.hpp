// A small cache with one layer of each rule on lent memory, and calls that are right, for tests
// that make one of them wrong. Implementations on the host only: a device reports what only its
// arrays show in its own time, and has tests of its own for that.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/law/support/laws.hpp"

namespace replayssm::laws {

[[nodiscard]] inline std::vector<std::string> host_names() {
  std::vector<std::string> names;
  for (const ImplementationInfo& info : available()) {
    if (info.device == "cpu") names.push_back(info.name);
  }
  return names;
}

[[nodiscard]] inline Case small_case(const ImplementationInfo& info) {
  Random random(11);
  Case made;
  made.config.implementation = info.name;
  made.config.decode = info.decode;
  made.layers.push_back(simple_layer(random, Rule::kMamba2, 4, 2, 16, 8));
  made.layers.push_back(simple_layer(random, Rule::kGdn, 2, 1, 8, 16));
  made.layers.push_back(simple_layer(random, Rule::kKda, 2, 2, 8, 8));
  CaseLayer& first = made.layers[0];
  first.shape.conv_channels = 6;
  first.shape.conv_width = 3;
  for (int i = 0; i < 18; ++i) first.conv_weight.push_back(0.25F * static_cast<float>(i % 5 - 2));
  made.config.window = 5;
  made.config.max_step_tokens = 4;
  made.config.slots = 4;
  made.config.blocks = 6;
  made.config.max_rows = 4;
  made.config.max_tokens = 24;
  made.config.threads = 1;
  finish_case(&made);
  return made;
}

// Tensors of one layer for `tokens` tokens, gap-free, on the test device.
class PlainTensors {
 public:
  PlainTensors(TestDevice& device, const CaseLayer& layer, std::int64_t tokens)
      : device_(device), layer_(layer) {
    const LayerShape& shape = layer.shape;
    inputs.value = add(tokens, shape.heads, shape.value_dim);
    inputs.key = add(tokens, shape.groups, shape.key_dim);
    inputs.query = add(tokens, shape.groups, shape.key_dim);
    inputs.gate = add(tokens, shape.heads, shape.rule == Rule::kKda ? shape.key_dim : 0);
    if (shape.rule != Rule::kMamba2) inputs.beta = add(tokens, shape.heads, 0);
    inputs.out = add(tokens, shape.heads, shape.value_dim);
    if (shape.conv_channels > 0) {
      conv.in = add(tokens, shape.conv_channels, 0);
      conv.out = add(tokens, shape.conv_channels, 0);
    }
  }
  LayerInputs inputs;
  ConvInputs conv;

 private:
  TensorView add(std::int64_t n0, std::int64_t n1, std::int64_t n2) {
    const std::int64_t count = n0 * n1 * (n2 > 0 ? n2 : 1);
    std::vector<float> values(static_cast<std::size_t>(count + 1));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = 0.125F * static_cast<float>(static_cast<int>(i * 7 % 17) - 8);
    }
    memory_.push_back(std::make_unique<DeviceBuffer>(device_));
    const void* data = memory_.back()->hold(values);
    return n2 > 0 ? TensorView::contiguous(data, DType::kF32, n0, n1, n2)
                  : TensorView::contiguous(data, DType::kF32, n0, n1);
  }
  TestDevice& device_;
  const CaseLayer& layer_;
  std::vector<std::unique_ptr<DeviceBuffer>> memory_;
};

// The cache, two slots with history (0 and 1), one fresh (2), one free (3).
class SmallCache {
 public:
  explicit SmallCache(const std::string& implementation) {
    const ImplementationInfo info = implementation_named(implementation);
    device = device_for(info);
    made = small_case(info);
    machine = make_machine(made, true, false, 5);
    Random random(3);
    for (int slot = 0; slot < 3; ++slot) EXPECT_EQ(held(*machine, 40 + slot), slot);
    std::string problem;
    for (int slot = 0; slot < 2; ++slot) {
      for (int step = 0; step < 3; ++step) {
        (void)decode_row(*machine, chain_row(slot, random_tokens(random, made, 2)), {2, {}},
                         &problem);
      }
    }
    EXPECT_EQ(problem, "");
    for (const CaseLayer& layer : made.layers) {
      tensors.push_back(std::make_unique<PlainTensors>(*device, layer, 12));
      tensors.back()->inputs.layer = static_cast<std::int32_t>(tensors.size()) - 1;
    }
  }

  [[nodiscard]] Cache& cache() const { return machine->cache(); }

  // The call was refused as required, its message holds what it must, no byte changed.
  void expect_refused(const Status& status, StatusCode code,
                      std::initializer_list<std::string_view> parts) {
    EXPECT_EQ(status_code_name(status.code()), status_code_name(code)) << status.message();
    for (const std::string_view part : parts) {
      EXPECT_NE(status.message().find(part), std::string::npos)
          << "'" << part << "' is missing in: " << status.message();
    }
    EXPECT_EQ(status.message().find('\n'), std::string::npos) << "one line: " << status.message();
    EXPECT_TRUE(machine->lent()->snapshot() == before) << "memory changed: " << status.message();
    EXPECT_EQ(cache().free_slots(), free_before);
  }
  void remember() {
    before = machine->lent()->snapshot();
    free_before = cache().free_slots();
  }

  // begin for the given rows, fold done.
  Status open(const std::vector<std::int64_t>& row_slots,
              const std::vector<std::int32_t>& row_tokens, bool fold = true) {
    set_rows(row_slots, row_tokens);
    REPLAYSSM_RETURN_IF_ERROR(cache().begin(rows));
    return fold ? cache().fold() : Status{};
  }
  // The same for a prompt of one slot.
  Status open_prompt(std::int64_t slot, std::int32_t count) {
    set_rows({slot}, {count});
    rows.prefill = kPrefill.data();
    REPLAYSSM_RETURN_IF_ERROR(cache().begin(rows));
    return cache().fold();
  }
  Status run_layers() {
    for (auto& t : tensors) {
      if (t->conv.in.present()) {
        t->conv.layer = t->inputs.layer;
        REPLAYSSM_RETURN_IF_ERROR(cache().conv(t->conv));
      }
      REPLAYSSM_RETURN_IF_ERROR(rows.prefill != nullptr ? cache().prefill(t->inputs)
                                                        : cache().step(t->inputs));
    }
    return {};
  }

  TestDevice* device = nullptr;
  Case made;
  std::unique_ptr<Machine> machine;
  std::vector<std::unique_ptr<PlainTensors>> tensors;
  std::vector<unsigned char> before;
  std::int64_t free_before = 0;
  std::vector<std::int64_t> slots;
  std::vector<std::int32_t> tokens;
  Rows rows;

 private:
  void set_rows(const std::vector<std::int64_t>& row_slots,
                const std::vector<std::int32_t>& row_tokens) {
    slots = row_slots;
    tokens = row_tokens;
    rows = {};
    rows.count = static_cast<std::int64_t>(slots.size());
    rows.slots = slots.data();
    rows.tokens = tokens.data();
  }
  static constexpr std::array<std::uint8_t, 1> kPrefill = {1};
};

}  // namespace replayssm::laws
