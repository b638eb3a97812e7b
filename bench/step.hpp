// bench step: what one decode step of one layer costs, replay beside the conventional way, in one
// run and verified first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/device.hpp"
#include "bench/shapes.hpp"
#include "replayssm/cache.hpp"

namespace replayssm::bench {

struct StepOptions {
  std::string backend = "cpu";
  std::vector<std::string> shapes = {"super-120b"};
  std::vector<std::int64_t> batches = {1};
  std::vector<std::int32_t> tokens = {1};  // T; of T > 1 all but one are accepted
  std::int32_t window = 16;
  DType activations = DType::kBF16;
  int cycles = 5;         // timed window cycles; the median counts
  bool readable = false;  // the readable kernels instead of the best
  std::string commit;     // of the source, for the report
};

// One measured implementation. Times are for one layer and forward: the whole cycle of W forwards,
// with begin, folds and commit, over W times the layers.
struct StepRow {
  Rule rule = Rule::kMamba2;
  std::string shape;
  std::int64_t batch = 0;
  std::int32_t tokens = 0;
  StateFormat format = StateFormat::kF32;
  DType activations = DType::kBF16;
  DecodeMode decode = DecodeMode::kReplay;
  std::string implementation;
  std::int64_t layers = 0;
  double us_per_step = 0.0;
  double spread = 0.0;          // (slowest - fastest cycle) / median
  double bytes_per_step = 0.0;  // counted: state, ring, inputs, outputs, folds
  double gb_per_s = 0.0;
  double ratio_to_conventional_f32 = 0.0;
  std::int64_t bytes_per_slot = 0;  // of one layer
  bool verified = false;
  double worst_error = 0.0;  // over the tolerance
};

struct StepReport {
  std::vector<StepRow> rows;
  Device::Bandwidth bandwidth;
  std::string backend, hardware, driver, compiler, commit, date;
};

// A row that does not verify is reported with verified = false and no time.
[[nodiscard]] Result<StepReport> run_step(const StepOptions& options);

[[nodiscard]] std::string to_json(const StepReport& report);
[[nodiscard]] std::string to_text(const StepReport& report);
// What replay gained at batch 1 and what it cannot gain there, one line; empty without such rows.
[[nodiscard]] std::string batch_one_line(const StepReport& report);

// --- pieces that run_step is made of

// A layer's constants and inputs in the device's memory, random but repeatable.
class LayerData {
 public:
  LayerData(Device& device, const LayerShape& shape, DType activations, std::int64_t tokens,
            std::uint64_t seed);
  LayerData(const LayerData&) = delete;
  LayerData& operator=(const LayerData&) = delete;
  ~LayerData();
  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] LayerWeights weights() const;
  [[nodiscard]] LayerInputs inputs(std::int32_t layer) const;

  // The same numbers on the host.
  std::vector<float> a_log, dt_bias, d;
  std::vector<float> value, key, query, gate, beta;
  // [tokens, H, V] of the outputs.
  [[nodiscard]] std::vector<float> outputs() const;

 private:
  struct Piece {
    void* data = nullptr;
    std::int64_t count = 0;
    DType dtype = DType::kF32;
  };
  Piece put(std::vector<float>* values, DType dtype);
  Device& device_;
  LayerShape shape_;
  std::int64_t tokens_;
  bool ok_ = true;
  Piece a_log_, dt_bias_, d_, value_, key_, query_, gate_, beta_, out_;
};

// Runs a cache of one layer and three rows against the float64 recurrence; the largest error over
// its tolerance.
[[nodiscard]] Result<double> verify(Device& device, const CacheConfig& config, std::int32_t tokens,
                                    std::int32_t accepted);

}  // namespace replayssm::bench
