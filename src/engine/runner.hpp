// Sequences and forwards of one model: the recurrent cache's slots, the attention's keys and
// values, and one call that runs a ragged batch of prompt chunks and steps through both. Sampling
// and drafting stand above it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/layers/forward.hpp"
#include "replayssm/cache.hpp"
#include "replayssm/engine.hpp"
#include "replayssm/status.hpp"

namespace replayssm::engine {

struct RunnerOptions {
  DecodeMode decode = DecodeMode::kReplay;
  std::int32_t window = 16;
  std::int32_t max_step_tokens = 1;
  std::string implementation;
  std::int64_t max_sequences = 1;
  std::int64_t max_prefill_tokens = 256;  // of one forward, all prompt chunks together
  std::int64_t context = 0;               // tokens a sequence may hold; at least 1
  int threads = 0;
};

// Which tokens of a row give logits.
enum class Want : std::uint8_t { kNone = 0, kLast = 1, kAll = 2 };

struct RunnerRow {
  std::int32_t sequence = 0;
  std::span<const std::int32_t> tokens;
  bool prefill = false;
  Want want = Want::kAll;
};

// What the recurrent cache is asked for, complete but for the weights: those it names are good for
// counting bytes only. Also used by plan().
[[nodiscard]] CacheConfig cache_config(std::span<const LayerShape> layers, DType activations,
                                       DecodeMode decode, std::int32_t window,
                                       std::int32_t max_step_tokens, std::int64_t sequences);

class Runner {
 public:
  // `model` must outlive the runner.
  [[nodiscard]] static Result<std::unique_ptr<Runner>> create(const model::Network& model,
                                                              const RunnerOptions& options);
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;
  ~Runner();

  // A new empty sequence. kResourceExhausted: max_sequences are open.
  [[nodiscard]] Result<std::int32_t> open(std::uint64_t seed);
  // A second sequence with the same committed tokens.
  [[nodiscard]] Result<std::int32_t> fork(std::int32_t sequence);
  [[nodiscard]] Status close(std::int32_t sequence);

  // Committed tokens of a sequence.
  [[nodiscard]] std::int64_t length(std::int32_t sequence) const;
  [[nodiscard]] std::int64_t free_sequences() const;

  // Runs the rows; each sequence at most once, at least one token a row, at most max_step_tokens in
  // a step row. Errors, before anything is written: kInvalidArgument, kOutOfRange (a token outside
  // the vocabulary, a row that passes the context). The pass stays open until commit(); forwarding
  // again forgets it.
  [[nodiscard]] Status forward(std::span<const RunnerRow> rows);
  // Logits [vocab] after token `token` of row `row` of the last forward, which must have been
  // wanted; valid until the next forward. hidden(): what the head saw, [hidden].
  [[nodiscard]] std::span<const float> logits(std::size_t row, std::int64_t token) const;
  [[nodiscard]] std::span<const float> hidden(std::size_t row, std::int64_t token) const;
  void keep_hidden(bool keep) { keep_hidden_ = keep; }
  // Keeps the first accepted[row] tokens of each row (prefill rows: all of them).
  [[nodiscard]] Status commit(std::span<const std::int32_t> accepted);
  // Ends the open pass without a commit, if there is one.
  void abandon();
  // False: a pass that failed or was abandoned has torn the sequence; it can only be closed.
  [[nodiscard]] bool whole(std::int32_t sequence) const;

  [[nodiscard]] const Cache& cache() const { return *cache_; }
  [[nodiscard]] std::int64_t kv_bytes() const;
  [[nodiscard]] const RunnerOptions& options() const { return options_; }
  [[nodiscard]] int threads() const { return pool_.workers(); }

 private:
  struct Sequence {
    std::int64_t slot = -1;
    model::KvCache kv;
  };
  struct OpenRow {
    std::int32_t sequence = 0;
    std::int64_t tokens = 0;
    bool prefill = false;
    Want want = Want::kNone;
    std::int64_t first_logits = 0;
  };

  Runner(const model::Network& model, const RunnerOptions& options);
  [[nodiscard]] Result<std::int32_t> take_entry(std::int64_t slot, model::KvCache kv);
  [[nodiscard]] Status check_rows(std::span<const RunnerRow> rows) const;
  [[nodiscard]] Status run_layers();
  [[nodiscard]] std::size_t logits_index(std::size_t row, std::int64_t token) const;

  const model::Network& model_;
  model::KvShape kv_shape_;
  RunnerOptions options_;
  model::WorkerPool pool_;
  model::Forward forward_;
  std::optional<Cache> cache_;
  std::vector<std::optional<Sequence>> sequences_;

  bool open_ = false;
  bool keep_hidden_ = false;
  std::vector<OpenRow> rows_;
  std::vector<std::int32_t> tokens_;
  std::vector<model::ForwardRow> forward_rows_;
  std::vector<std::int64_t> slots_;
  std::vector<std::int32_t> row_tokens_;
  std::vector<std::uint8_t> row_prefill_;
  std::vector<std::int32_t> accepted_;
  std::vector<std::int64_t> logit_positions_;
  std::vector<float> logits_;
  std::vector<float> hidden_;
};

}  // namespace replayssm::engine
