// Runs a model: batches of sequences, sampling, drafts, and the decode loop over the replay cache.
//
//   auto model = replayssm::Model::load("models/austen-py-mamba2");
//   auto engine = replayssm::Engine::create(*model, {});
//   replayssm::Request request;
//   request.prompt = *model->encode("It was");
//   auto generation = engine->generate({&request, 1});
//
// An engine is used from one thread at a time. Results do not depend on how sequences are batched,
// except that matrix products of another batch size may round differently.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "replayssm/cache.hpp"
#include "replayssm/export.h"
#include "replayssm/model.hpp"
#include "replayssm/status.hpp"

namespace replayssm {

// Where drafts come from. kNgram: prompt lookup, the tokens that followed the longest earlier
// occurrence of the sequence's last few tokens in its own prompt and output.
enum class DraftKind : std::uint8_t { kNone = 0, kNgram = 1 };

[[nodiscard]] constexpr std::string_view draft_kind_name(DraftKind kind) {
  return kind == DraftKind::kNone ? "none" : "ngram";
}

struct EngineOptions {
  DecodeMode decode = DecodeMode::kReplay;
  std::int32_t window = 16;  // W; at least 1 + draft_tokens, at most kMaxWindow
  DraftKind draft = DraftKind::kNone;
  std::int32_t draft_tokens = 4;   // drafts a step with kNgram, 1 to kMaxStepTokens - 1
  std::int32_t ngram_max = 4;      // longest suffix looked up
  std::int32_t ngram_min = 2;      // shortest
  std::string implementation;      // of replayssm::implementations(); empty: the best for `decode`
  std::int64_t max_sequences = 1;  // that run at the same time, continuations counted
  std::int64_t context =
      0;  // tokens of one sequence, prompt and output; 0: the model's max_positions
  std::int64_t prefill_chunk = 256;  // prompt tokens of one forward
  int threads = 0;                   // 0: the machine's
  LogCallback log;
};

// How the next token is chosen from the logits. temperature 0: the largest logit (the lowest id of
// equals). Otherwise: logits / temperature, the top_k largest (0: all), of these the fewest whose
// probabilities reach top_p, softmax, and one draw with the number that (seed, position of the
// token) gives.
struct Sampling {
  float temperature = 0.0F;  // 0 or more
  std::int32_t top_k = 0;    // 0 or more
  float top_p = 1.0F;        // above 0, at most 1
  std::uint64_t seed = 0;
};

struct Request {
  std::vector<std::int32_t> prompt;  // at least one token
  std::int64_t max_new_tokens = 128;
  Sampling sampling;
  std::vector<std::int32_t> stop_tokens;  // besides the model's
  bool ignore_model_stop_tokens = false;
  // Continuations of the prompt, which is run once and forked. Continuation i samples with seed +
  // i.
  std::int32_t continuations = 1;
};

enum class FinishReason : std::uint8_t {
  kRunning = 0,
  kLength = 1,
  kStopToken = 2,
  kCancelled = 3,
  kContext = 4
};

[[nodiscard]] constexpr std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kRunning: return "running";
    case FinishReason::kLength: return "length";         // max_new_tokens were written
    case FinishReason::kStopToken: return "stop_token";  // not part of the output
    case FinishReason::kCancelled: return "cancelled";
    case FinishReason::kContext: return "context";  // the sequence holds `context` tokens
  }
  return "unknown";
}

// Names one running text: continuation `continuation` of request number `request` (its index in
// generate(), or the id that submit() returned).
struct SequenceId {
  std::int64_t request = 0;
  std::int32_t continuation = 0;
  friend bool operator==(const SequenceId&, const SequenceId&) = default;
};

// One new token, or the end of a sequence: then token is -1, `text` what the text stream had held
// back and `finish` why.
struct TokenEvent {
  SequenceId sequence;
  std::int32_t token = -1;
  std::string_view text;  // may be empty: a character is not complete yet
  bool drafted = false;   // the token had been drafted and was accepted
  FinishReason finish = FinishReason::kRunning;
};

enum class Control : std::uint8_t { kContinue = 0, kCancelSequence = 1, kCancelAll = 2 };

using TokenCallback = std::function<Control(const TokenEvent& event)>;

// Counts and times. Tokens of a step: the one that is certain and its drafts.
struct Stats {
  std::int64_t prompt_tokens = 0;     // run through prefill (a forked prompt counts once)
  std::int64_t generated_tokens = 0;  // written out
  std::int64_t decode_tokens =
      0;  // of these, by decode steps (the first of each sequence comes from prefill)
  std::int64_t steps = 0;           // decode forwards
  std::int64_t sequence_steps = 0;  // rows of these
  std::int64_t drafted_tokens = 0;
  std::int64_t accepted_drafts = 0;
  double prefill_seconds = 0.0;
  double decode_seconds = 0.0;
  // State, ring and control bytes a generated token moved (state_bytes_per_token() of cache.hpp
  // with the measured step and acceptance lengths).
  double state_bytes_per_token = 0.0;
  // Steps whose two best logits lay within the rounding of the compute type of each other (greedy
  // only): there another order of summation may choose the other token.
  std::int64_t near_ties = 0;

  [[nodiscard]] double prefill_tokens_per_second() const {
    return prefill_seconds > 0.0 ? static_cast<double>(prompt_tokens) / prefill_seconds : 0.0;
  }
  [[nodiscard]] double decode_tokens_per_second() const {
    return decode_seconds > 0.0 ? static_cast<double>(decode_tokens) / decode_seconds : 0.0;
  }
  // Tokens written a step and sequence: 1 without drafts.
  [[nodiscard]] double accepted_per_step() const {
    return sequence_steps > 0
               ? static_cast<double>(decode_tokens) / static_cast<double>(sequence_steps)
               : 0.0;
  }
};

struct SequenceOutput {
  SequenceId sequence;
  std::vector<std::int32_t> tokens;  // new ones, stop token left out
  std::string text;                  // of these; empty without a tokenizer
  FinishReason finish = FinishReason::kRunning;
};

struct Generation {
  std::vector<SequenceOutput> sequences;  // by request, then continuation
  Stats stats;
  bool cancelled = false;  // by Control::kCancelAll
};

class REPLAYSSM_API Engine {
 public:
  // Errors: kInvalidArgument (a limit), kUnsupported (an implementation or a decode mode),
  // kResourceExhausted.
  [[nodiscard]] static Result<Engine> create(const Model& model, const EngineOptions& options);

  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;
  ~Engine();

  // Runs requests to their end. Sequences beyond max_sequences wait until others finish.
  // Errors, before anything runs: kInvalidArgument (empty prompt, token outside the vocabulary,
  // sampling values), kOutOfRange (a prompt that leaves no room in the context), kResourceExhausted
  // (more continuations than max_sequences).
  [[nodiscard]] Result<Generation> generate(std::span<const Request> requests,
                                            const TokenCallback& callback = {});

  // The same in steps, for a server.

  // Queues a request. Errors as generate().
  [[nodiscard]] Result<std::int64_t> submit(const Request& request);
  // One forward: prompt chunks of newly admitted requests and one step of every running sequence,
  // then the callbacks. False: nothing is left to do. When it fails, the requests in it that
  // cannot go on exactly where they were are cancelled, as when a callback throws, which passes
  // through; the others go on with the next call. Where memory stays short the next call may fail
  // alike, until a request is cancelled.
  [[nodiscard]] Result<bool> step(const TokenCallback& callback = {});
  // Ends a request's sequences; legal between steps. kNotFound: no such request.
  [[nodiscard]] Status cancel(std::int64_t request);
  // Outputs of a finished request, which is then forgotten. kFailedPrecondition: still running.
  [[nodiscard]] Result<std::vector<SequenceOutput>> take(std::int64_t request);
  [[nodiscard]] Stats stats() const;  // since create() or reset_stats()
  void reset_stats();

  // --- facts
  [[nodiscard]] const EngineOptions& options() const;  // as given, zeros filled in
  [[nodiscard]] std::string_view implementation() const;
  [[nodiscard]] CacheBytes cache_bytes() const;  // for all max_sequences
  [[nodiscard]] std::int64_t kv_bytes() const;   // in use now
  // What was chosen and why, one line each.
  [[nodiscard]] std::string explain() const;

  class Impl;  // src/engine/engine_impl.hpp

 private:
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// --- do the decodings agree?

struct CompareOptions {
  std::int64_t max_new_tokens = 128;
  std::int32_t window = 16;
  std::int32_t draft_tokens = 4;
  std::int64_t context = 0;
  std::int64_t prefill_chunk = 256;
  int threads = 0;
  bool ignore_stop_tokens = false;
  LogCallback log;
};

// One decoding of the prompt, compared with the first one.
struct ComparedRun {
  DecodeMode decode = DecodeMode::kConventional;
  DraftKind draft = DraftKind::kNone;
  std::string implementation;
  std::vector<std::int32_t> tokens;
  std::string text;
  FinishReason finish = FinishReason::kRunning;
  Stats stats;
  std::int64_t first_difference = -1;  // index of the first other token; -1: all tokens equal
  double gap_at_difference = 0.0;      // between the reference's two best logits there
  bool agrees = true;  // no difference, or none before the first near-tie of the reference
};

struct Comparison {
  std::vector<ComparedRun> runs;  // conventional (the reference), replay, replay with ngram drafts
  double bound = 0.0;             // the largest of all positions' near-tie bounds
  std::int64_t near_ties = 0;     // such positions of the reference's output
  std::int64_t first_near_tie = -1;  // index of the first; -1: none
  bool agree = true;                 // of all runs
};

// Named as they start, so that a caller may print them: run number in `runs`, then its tokens.
using CompareCallback = std::function<Control(std::size_t run, const TokenEvent& event)>;

// Decodes one prompt greedily in each way. How the bound follows from the model's own rounding is
// written in src/engine/compare.cpp and docs/numerics.md. A cancelled comparison returns the runs
// made so far.
[[nodiscard]] REPLAYSSM_API Result<Comparison> compare(const Model& model,
                                                       std::span<const std::int32_t> prompt,
                                                       const CompareOptions& options,
                                                       const CompareCallback& callback = {});

// --- what fits?

struct PlanOptions {
  std::int64_t memory_bytes = 0;
  std::int64_t context = 0;  // tokens of a sequence; 0: the model's max_positions
  std::int32_t window = 16;
  std::vector<std::int32_t> step_tokens = {1, 4, 8};  // T: drafts plus one
};

// One way to decode. Bytes are of one sequence.
struct PlanRow {
  DecodeMode decode = DecodeMode::kReplay;
  std::int32_t step_tokens = 1;
  std::int32_t window = 16;  // as used: at least step_tokens
  std::int64_t kv_bytes = 0;
  std::int64_t state_bytes = 0;
  std::int64_t ring_bytes = 0;
  std::int64_t conv_bytes = 0;
  std::int64_t control_bytes = 0;
  std::int64_t sequence_bytes = 0;  // their sum
  std::int64_t sequences = 0;       // that fit beside the weights; 0: none, or not even the weights
};

struct Plan {
  std::int64_t weight_bytes = 0;
  std::int64_t memory_bytes = 0;
  std::int64_t context = 0;
  std::vector<PlanRow> rows;  // conventional for each T, then replay for each T
};

// Pure arithmetic: needs inspect_model() only. Errors: kInvalidArgument.
[[nodiscard]] REPLAYSSM_API Result<Plan> plan(const ModelInfo& model, const PlanOptions& options);

}  // namespace replayssm
