// A cache with everything around it: weights, lent or own memory, tensors of one forward. Calls are
// those of the library, one to one; all arrays and tensors pass through the test device.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "replayssm/cache.hpp"
#include "tests/law/support/case.hpp"
#include "tests/law/support/lent_memory.hpp"

namespace replayssm::laws {

struct Row {
  std::int64_t slot = 0;
  std::vector<ModelToken> tokens;
  std::vector<int> parents;  // [tokens] or empty: a chain
  bool prefill = false;
  int padding_tokens = 0;  // T of a padding row, whose tokens are NaN

  [[nodiscard]] int count() const {
    return tokens.empty() ? padding_tokens : static_cast<int>(tokens.size());
  }
};

// What of a row is kept: the leading `count` tokens, or tree nodes.
struct Keep {
  int count = 0;
  std::vector<int> nodes;
};

struct MachineOptions {
  bool lent = false;
  bool hostile_layout = true;   // strides, shifts, offsets between rows
  bool caller_threads = false;  // a shuffled serial loop instead of the library's pool
  std::int64_t padding_slot = -1;
};

class Machine {
 public:
  // Null and `error` set where the cache cannot be created.
  static std::unique_ptr<Machine> create(const Case& made, const MachineOptions& options,
                                         std::uint64_t seed, Status* error);
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  [[nodiscard]] Cache& cache() { return *cache_; }
  [[nodiscard]] const Case& made() const { return case_; }
  [[nodiscard]] LentMemory* lent() { return lent_.get(); }
  [[nodiscard]] std::int64_t padding_slot() const { return options_.padding_slot; }

  Status begin(const std::vector<Row>& rows);
  Status fold() { return cache_->fold(); }
  // conv where the layer has one, then step and prefill as the rows need. `problem` tells of memory
  // that was written and should not have been.
  Status run_layer(int layer, std::string* problem);
  Status commit(const std::vector<Keep>& keep);
  // begin, fold, all layers, commit.
  Status forward(const std::vector<Row>& rows, const std::vector<Keep>& keep, std::string* problem);

  // Of the last forward: values and bytes of one token's outputs.
  [[nodiscard]] std::vector<double> output(int layer, std::size_t row, int token) const;
  [[nodiscard]] std::vector<unsigned char> output_bytes(int layer, std::size_t row,
                                                        int token) const;
  [[nodiscard]] std::vector<double> conv_output(int layer, std::size_t row, int token) const;
  [[nodiscard]] std::vector<unsigned char> conv_bytes(int layer, std::size_t row, int token) const;

  // store_state as f32 [V, K] of every layer, and the conv history [width - 1][channels].
  struct Stored {
    std::vector<std::vector<double>> state;
    std::vector<std::vector<unsigned char>> state_bytes;
    std::vector<std::vector<std::vector<double>>> conv;
  };
  Status store(std::int64_t slot, DType dtype, bool key_major, Stored* stored);
  Status load(std::int64_t slot, std::int64_t position, DType dtype, bool key_major, bool conv,
              const Stored& values);
  // The stored bits of a slot's checkpoint in one layer; lent memory only. Conventional decoding
  // with drafts keeps several states: then use store().
  [[nodiscard]] std::vector<unsigned char> checkpoint(std::int64_t slot, int layer);

 private:
  struct LayerTensors {
    std::optional<HostileTensor> value, key, query, gate, beta, z, out, conv_in, conv_out;
  };
  Machine(const Case& made, const MachineOptions& options, std::uint64_t seed, TestDevice& device);
  [[nodiscard]] const float* hold(const std::vector<float>& values);
  Status make(std::uint64_t seed);
  void fill(int layer);
  std::string run_checks(int layer);

  Case case_;
  MachineOptions options_;
  Random random_;
  TestDevice& device_;
  std::vector<std::unique_ptr<DeviceBuffer>> weights_;
  std::unique_ptr<LentMemory> lent_;
  std::optional<Cache> cache_;

  std::vector<Row> rows_;
  std::vector<std::int64_t> offsets_;
  std::int64_t tokens_ = 0;  // length of axis 0
  bool any_step_ = false;
  bool any_prefill_ = false;
  std::vector<LayerTensors> tensors_;
  DeviceBuffer slot_array_, token_array_, parent_array_, offset_array_, prefill_array_;
  DeviceBuffer accept_array_, node_array_;
};

}  // namespace replayssm::laws
