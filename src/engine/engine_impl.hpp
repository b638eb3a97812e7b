// What stands behind Engine: requests, their texts, and the loop that runs them through a Runner.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/runner.hpp"
#include "engine/sampler.hpp"
#include "replayssm/engine.hpp"

namespace replayssm {

class REPLAYSSM_HIDDEN Engine::Impl {
 public:
  // One running text. While it runs, the runner has committed every token but the last.
  struct Text {
    SequenceId id;
    std::int32_t sequence = -1;        // of the runner; -1: not open
    std::vector<std::int32_t> tokens;  // prompt and output
    std::int64_t prompt_tokens = 0;
    Sampling sampling;
    std::optional<Model::TextStream> stream;
    std::string text;
    FinishReason finish = FinishReason::kRunning;
    std::vector<std::int32_t> feed;  // of the current step: the last token and its drafts

    [[nodiscard]] std::int64_t new_tokens() const {
      return static_cast<std::int64_t>(tokens.size()) - prompt_tokens;
    }
  };

  struct Job {
    std::int64_t event_request = 0;  // what events call it
    Request request;
    std::vector<std::int32_t> stop;  // sorted
    std::int64_t prefilled = 0;
    bool admitted = false;
    std::vector<Text> texts;  // one until the prompt has been run, then one a continuation
    [[nodiscard]] bool done() const;
  };

  // Sees every choice: the text it is for and what the head was given. For compare().
  using Observer = std::function<void(const Text& text, const engine::Choice& choice,
                                      std::span<const float> hidden)>;

  [[nodiscard]] static Result<std::unique_ptr<Impl>> create(const Model& model,
                                                            const EngineOptions& options);

  [[nodiscard]] Status check(const Request& request) const;
  [[nodiscard]] std::int64_t submit(const Request& request,
                                    std::optional<std::int64_t> event_request);
  [[nodiscard]] Result<bool> step(const TokenCallback& callback);
  [[nodiscard]] Status cancel(std::int64_t request);
  // Closes what a request runs and forgets it.
  void drop(std::int64_t request);
  [[nodiscard]] Result<std::vector<SequenceOutput>> take(std::int64_t request);
  [[nodiscard]] Result<Generation> generate(std::span<const Request> requests,
                                            const TokenCallback& callback);
  [[nodiscard]] Stats stats() const;
  void reset_stats() { stats_ = Stats{}; }
  [[nodiscard]] std::string explain() const;

  [[nodiscard]] const EngineOptions& options() const { return options_; }
  [[nodiscard]] const engine::Runner& runner() const { return *runner_; }
  void observe(Observer observer) {
    observer_ = std::move(observer);
    runner_->keep_hidden(true);
  }

 private:
  // A token chosen in this step, for the callbacks after the commit.
  struct Emission {
    Job* job = nullptr;
    std::size_t text = 0;
    std::int32_t token = 0;
    bool drafted = false;
  };
  struct RowOwner {
    Job* job = nullptr;
    std::size_t text = 0;
    bool prefill = false;
    bool prompt_ends = false;
  };

  explicit Impl(const Model& model) : model_(model) {}
  [[nodiscard]] std::int32_t step_tokens() const {
    return options_.draft == DraftKind::kNone ? 1 : 1 + options_.draft_tokens;
  }
  [[nodiscard]] Text make_text(const Job& job, std::int32_t continuation) const;
  [[nodiscard]] std::int64_t reserved() const;
  [[nodiscard]] Status cancel(Job& job);
  [[nodiscard]] Status admit();
  [[nodiscard]] Result<bool> advance(const TokenCallback& callback);
  void end_failed_forward();
  void build_rows();
  void add_step_row(Job& job, std::size_t index);
  [[nodiscard]] Status choose_tokens();
  [[nodiscard]] engine::Choice choose(const Text& text, const Sampling& sampling, std::size_t row,
                                      std::int64_t token, std::int64_t position);
  [[nodiscard]] Status start_continuations(std::size_t row);
  [[nodiscard]] Status emit(const TokenCallback& callback);
  [[nodiscard]] Status finish(Text& text, FinishReason reason, const TokenCallback& callback);
  [[nodiscard]] Status close(Text& text);
  [[nodiscard]] Status cancel_all();
  void account_time(double seconds);

  Model model_;
  EngineOptions options_;
  std::unique_ptr<engine::Runner> runner_;
  engine::Sampler sampler_;
  Stats stats_;
  Observer observer_;

  std::map<std::int64_t, Job> jobs_;  // by id, which is the order of arrival
  std::int64_t next_job_ = 0;
  bool finite_ = true;      // every logit of the current step is a number
  bool cancelled_ = false;  // by a callback, in the current step
  bool ran_ = false;        // the layers of the current step have run

  // The current step.
  std::vector<engine::RunnerRow> rows_;
  std::vector<RowOwner> owners_;
  std::vector<std::int32_t> accepted_;
  std::vector<Emission> emissions_;
  std::vector<std::int32_t> drafts_;
};

}  // namespace replayssm
