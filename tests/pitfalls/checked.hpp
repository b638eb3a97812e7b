// A cache whose every output is compared with the float64 recurrence as it goes, so that a test of
// a pitfall need only say what happens.
#pragma once

#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "oracle/compare.hpp"
#include "tests/law/support/laws.hpp"
#include "tests/law/support/reference.hpp"

namespace replayssm::laws {

class Checked {
 public:
  // One layer of each rule, conv in front of the first, unless `layers` are given.
  explicit Checked(const std::string& name, int window = 4, int step_tokens = 3,
                   std::vector<CaseLayer> layers = {}, void (*change)(Case&) = nullptr)
      : random(17) {
    const ImplementationInfo info = implementation_named(name);
    made.config.implementation = name;
    made.config.decode = info.decode;
    made.config.window = window;
    made.config.max_step_tokens = step_tokens;
    made.config.slots = 4;
    made.config.blocks = 12;
    made.config.max_rows = 6;
    made.config.max_tokens = 64;
    made.config.threads = 1;
    made.layers = std::move(layers);
    if (made.layers.empty()) {
      for (const Rule rule : {Rule::kMamba2, Rule::kGdn, Rule::kKda}) {
        made.layers.push_back(simple_layer(random, rule, 2, 1, 8, 16));
      }
      add_conv(made.layers[0], 5, 4);
    }
    if (change != nullptr) change(made);
    finish_case(&made);
    machine = make_machine(made, true, false, 23);
  }

  void add_conv(CaseLayer& layer, int channels, int width) {
    layer.shape.conv_channels = channels;
    layer.shape.conv_width = width;
    layer.conv_weight.clear();
    for (int i = 0; i < channels * width; ++i) {
      layer.conv_weight.push_back(static_cast<float>(random.real(-1.0, 1.0)));
    }
  }

  [[nodiscard]] Cache& cache() { return machine->cache(); }
  [[nodiscard]] bool replay() const { return made.config.decode == DecodeMode::kReplay; }
  [[nodiscard]] std::vector<ModelToken> tokens(int count) {
    return random_tokens(random, made, count);
  }
  std::int64_t acquire() {
    const std::int64_t slot = held(*machine);
    references[slot] = std::make_unique<SlotReference>(made, 7);
    return slot;
  }
  void release(std::int64_t slot) {
    EXPECT_TRUE(cache().release(slot).ok());
    references.erase(slot);
  }
  // Another slot with the same history as `source`.
  void same(std::int64_t slot, std::int64_t source) {
    references[slot] = std::make_unique<SlotReference>(*references[source]);
  }

  // The forward is run and committed; every output must be the recurrence's.
  void forward(const std::vector<Row>& list, const std::vector<Keep>& keep) {
    EXPECT_TRUE(open(list));
    for (int layer = 0; layer < static_cast<int>(made.layers.size()); ++layer) run(layer);
    close(keep);
  }
  void step(std::int64_t slot, int count, int accepted) {
    forward({chain_row(slot, tokens(count))}, {{accepted, {}}});
  }
  void prefill(std::int64_t slot, int count) {
    Row row = chain_row(slot, tokens(count));
    row.prefill = true;
    forward({row}, {{count, {}}});
  }

  bool open(const std::vector<Row>& list) {
    rows = list;
    if (!machine->begin(rows).ok() || !machine->fold().ok()) return false;
    for (const Row& row : rows) {
      if (row.slot == machine->padding_slot() || row.prefill) continue;
      SlotReference& reference = *references.at(row.slot);
      if (reference.folds(made.config)) reference.fold(made.config.window);
    }
    return true;
  }
  void run(int layer) {
    std::string written;
    const Status status = machine->run_layer(layer, &written);
    EXPECT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(written, "");
    for (std::size_t i = 0; i < rows.size() && status.ok(); ++i) {
      const Row& row = rows[i];
      if (row.slot == machine->padding_slot() || row.count() == 0) continue;
      const SlotReference& reference = *references.at(row.slot);
      const SlotReference::Expected want = row.prefill
                                               ? reference.prefill(layer, row.tokens)
                                               : reference.step(layer, row.tokens, row.parents);
      const CaseLayer& about = made.layers[layer];
      for (int t = 0; t < row.count(); ++t) {
        expect("out", machine->output(layer, i, t), want.values[t], want.bounds[t],
               about.shape.value_dim);
        if (about.conv.width == 0) continue;
        expect("conv", machine->conv_output(layer, i, t), want.conv_values[t], want.conv_bounds[t],
               about.conv.channels);
      }
    }
  }
  void close(const std::vector<Keep>& keep) {
    const Status status = machine->commit(keep);
    EXPECT_TRUE(status.ok()) << status.to_string();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const Row& row = rows[i];
      if (row.slot == machine->padding_slot()) continue;
      std::vector<ModelToken> accepted;
      for (int j = 0; j < keep[i].count; ++j) {
        accepted.push_back(row.tokens[keep[i].nodes.empty() ? j : keep[i].nodes[j]]);
      }
      SlotReference& reference = *references.at(row.slot);
      row.prefill ? reference.commit_prefill(accepted) : reference.commit_step(accepted);
    }
    for (const auto& [slot, reference] : references) {
      const Result<SlotInfo> info = cache().info(slot);
      EXPECT_TRUE(info.ok() && info->position == reference->position &&
                  info->committed == reference->committed());
    }
  }
  // store_state against the recurrence, conv history bit for bit.
  void check_state(std::int64_t slot) {
    Machine::Stored stored;
    EXPECT_TRUE(machine->store(slot, DType::kF32, false, &stored).ok());
    for (int layer = 0; layer < static_cast<int>(made.layers.size()); ++layer) {
      const SlotReference& reference = *references.at(slot);
      expect("state", stored.state[layer], reference.state(layer), reference.state_bound(layer),
             made.layers[layer].shape.key_dim);
      if (made.layers[layer].conv.width > 0) {
        EXPECT_EQ(stored.conv[layer], reference.conv_history(layer));
      }
    }
  }
  void expect(const char* what, const std::vector<double>& got, const std::vector<double>& want,
              const std::vector<double>& bounds, int columns) {
    const oracle::Comparison found =
        oracle::compare(what, got, want, static_cast<std::size_t>(columns), bounds);
    EXPECT_TRUE(found.ok) << found.text;
  }
  // Poisons every ring of a slot.
  void poison_ring(std::int64_t slot) {
    for (const TensorRole role :
         {TensorRole::kRingValue, TensorRole::kRingKey, TensorRole::kRingGate,
          TensorRole::kRingBeta, TensorRole::kRingInvNorm, TensorRole::kRingUpdate}) {
      machine->lent()->poison(role, slot);
    }
  }

  Random random;
  Case made;
  std::unique_ptr<Machine> machine;
  std::map<std::int64_t, std::unique_ptr<SlotReference>> references;
  std::vector<Row> rows;
};

}  // namespace replayssm::laws
