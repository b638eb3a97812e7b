// The loop: admit, run prompt chunks and steps together, choose, verify drafts, commit, tell.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "core/guard.hpp"
#include "core/text.hpp"
#include "engine/drafter.hpp"
#include "engine/engine_impl.hpp"
#include "engine/model_impl.hpp"

namespace replayssm {
namespace {

// Logits closer than this may come out in the other order when sums are formed differently: some
// tens of roundings of the larger one. (compare() uses a bound of its own that looks at the model.)
bool near_tie(const engine::Choice& choice, ComputeType compute) {
  const float epsilon = compute == ComputeType::kBF16 ? 0x1.0p-7F : 0x1.0p-18F;
  const float size = std::max({std::fabs(choice.best_logit), std::fabs(choice.second_logit), 1.0F});
  return choice.best_logit - choice.second_logit < epsilon * size;
}

}  // namespace

bool Engine::Impl::Job::done() const {
  return admitted && std::all_of(texts.begin(), texts.end(), [](const Text& text) {
           return text.finish != FinishReason::kRunning;
         });
}

// Sequences that admitted requests have still to fork.
std::int64_t Engine::Impl::reserved() const {
  std::int64_t sequences = 0;
  for (const auto& [id, job] : jobs_) {
    if (!job.admitted || job.done()) continue;
    sequences += job.request.continuations - static_cast<std::int64_t>(job.texts.size());
  }
  return sequences;
}

Status Engine::Impl::admit() {
  std::int64_t free = runner_->free_sequences() - reserved();
  for (auto& [id, job] : jobs_) {
    if (job.admitted) continue;
    // First come, first served: a large request is not overtaken for ever by small ones.
    if (free < job.request.continuations) return {};
    // All allocations come first, so that none fails while a sequence belongs to no text.
    job.texts.reserve(static_cast<std::size_t>(job.request.continuations));
    Text text = make_text(job, 0);
    const Result<std::int32_t> sequence = runner_->open(text.sampling.seed);
    if (!sequence.ok()) return sequence.status();
    text.sequence = *sequence;
    job.texts.push_back(std::move(text));
    job.admitted = true;
    free -= job.request.continuations;
  }
  return {};
}

void Engine::Impl::add_step_row(Job& job, std::size_t index) {
  Text& text = job.texts[index];
  text.feed.assign(1, text.tokens.back());
  if (options_.draft == DraftKind::kNgram) {
    // The step itself writes one token; drafts beyond the end would be thrown away.
    const auto length = static_cast<std::int64_t>(text.tokens.size());
    const std::int64_t room =
        std::min(job.request.max_new_tokens - text.new_tokens() - 1, options_.context - length - 1);
    const auto count =
        static_cast<std::int32_t>(std::clamp<std::int64_t>(room, 0, options_.draft_tokens));
    const engine::NgramOptions ngram{options_.ngram_max, options_.ngram_min};
    engine::ngram_drafts(text.tokens, count, ngram, drafts_);
    text.feed.insert(text.feed.end(), drafts_.begin(), drafts_.end());
  }
  engine::RunnerRow row;
  row.sequence = text.sequence;
  row.tokens = text.feed;
  row.want = engine::Want::kAll;
  rows_.push_back(row);
  owners_.push_back(RowOwner{&job, index, false, false});
}

void Engine::Impl::build_rows() {
  rows_.clear();
  owners_.clear();
  std::int64_t prompt_tokens = 0;
  for (auto& [id, job] : jobs_) {
    if (!job.admitted || job.done()) continue;
    const auto prompt = static_cast<std::int64_t>(job.request.prompt.size());
    if (job.prefilled == prompt) {
      for (std::size_t i = 0; i < job.texts.size(); ++i) {
        if (job.texts[i].finish == FinishReason::kRunning) add_step_row(job, i);
      }
      continue;
    }
    // A chunk waits rather than shrinks: where a prompt is cut decides roundings, and may not
    // depend on others.
    const std::int64_t chunk = std::min(options_.prefill_chunk, prompt - job.prefilled);
    if (prompt_tokens + chunk > options_.prefill_chunk) continue;
    prompt_tokens += chunk;
    const bool ends = job.prefilled + chunk == prompt;
    engine::RunnerRow row;
    row.sequence = job.texts.front().sequence;
    row.tokens =
        std::span<const std::int32_t>(job.request.prompt)
            .subspan(static_cast<std::size_t>(job.prefilled), static_cast<std::size_t>(chunk));
    row.prefill = true;
    row.want = ends ? engine::Want::kLast : engine::Want::kNone;
    rows_.push_back(row);
    owners_.push_back(RowOwner{&job, 0, true, ends});
  }
}

engine::Choice Engine::Impl::choose(const Text& text, const Sampling& sampling, std::size_t row,
                                    std::int64_t token, std::int64_t position) {
  const std::span<const float> logits = runner_->logits(row, token);
  finite_ = finite_ &&
            std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); });
  const engine::Choice choice = sampler_.choose(logits, sampling, position);
  if (sampling.temperature == 0.0F && near_tie(choice, model_.info().compute)) ++stats_.near_ties;
  if (observer_) observer_(text, choice, runner_->hidden(row, token));
  return choice;
}

Status Engine::Impl::choose_tokens() {
  emissions_.clear();
  accepted_.clear();
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    const RowOwner& owner = owners_[row];
    const auto fed = static_cast<std::int64_t>(rows_[row].tokens.size());
    if (owner.prefill) {
      accepted_.push_back(static_cast<std::int32_t>(fed));
      continue;
    }
    // A draft stands where the token that is chosen for its place, with that place's own random
    // number, is the draft: the text is the one that plain decoding writes.
    const Text& text = owner.job->texts[owner.text];
    const auto length = static_cast<std::int64_t>(text.tokens.size());
    std::int32_t kept = 0;
    for (std::int64_t i = 0; i < fed; ++i) {
      const std::int32_t token = choose(text, text.sampling, row, i, length + i).token;
      ++kept;
      const bool drafted = i + 1 < fed && text.feed[static_cast<std::size_t>(i + 1)] == token;
      emissions_.push_back(Emission{owner.job, owner.text, token, drafted});
      if (!drafted) break;
    }
    accepted_.push_back(kept);
    ++stats_.sequence_steps;
    stats_.drafted_tokens += fed - 1;
    stats_.accepted_drafts += kept - 1;
  }
  return {};
}

Status Engine::Impl::start_continuations(std::size_t row) {
  Job& job = *owners_[row].job;
  const auto prompt = static_cast<std::int64_t>(job.request.prompt.size());
  for (std::int32_t i = 1; i < job.request.continuations; ++i) {
    Text text = make_text(job, i);
    const Result<std::int32_t> sequence = runner_->fork(job.texts.front().sequence);
    if (!sequence.ok()) return sequence.status();
    text.sequence = *sequence;
    job.texts.push_back(std::move(text));
  }
  for (std::size_t i = 0; i < job.texts.size(); ++i) {
    const Text& text = job.texts[i];
    const engine::Choice choice = choose(
        text, text.sampling, row, static_cast<std::int64_t>(rows_[row].tokens.size()) - 1, prompt);
    emissions_.push_back(Emission{&job, i, choice.token, false});
  }
  return {};
}

Status Engine::Impl::close(Text& text) {
  if (text.sequence < 0) return {};
  const std::int32_t sequence = text.sequence;
  text.sequence = -1;
  return runner_->close(sequence);
}

Status Engine::Impl::finish(Text& text, FinishReason reason, const TokenCallback& callback) {
  text.finish = reason;
  const std::string rest = text.stream ? text.stream->finish() : std::string();
  text.text += rest;
  REPLAYSSM_RETURN_IF_ERROR(close(text));
  if (callback) {
    TokenEvent event;
    event.sequence = text.id;
    event.text = rest;
    event.finish = reason;
    if (callback(event) == Control::kCancelAll) cancelled_ = true;
  }
  return {};
}

Status Engine::Impl::emit(const TokenCallback& callback) {
  for (const Emission& emission : emissions_) {
    Text& text = emission.job->texts[emission.text];
    if (text.finish != FinishReason::kRunning || cancelled_) continue;
    if (std::binary_search(emission.job->stop.begin(), emission.job->stop.end(), emission.token)) {
      REPLAYSSM_RETURN_IF_ERROR(finish(text, FinishReason::kStopToken, callback));
      continue;
    }
    text.tokens.push_back(emission.token);
    ++stats_.generated_tokens;
    if (text.new_tokens() > 1) ++stats_.decode_tokens;
    const std::string piece = text.stream ? text.stream->push(emission.token) : std::string();
    text.text += piece;
    Control control = Control::kContinue;
    if (callback) {
      TokenEvent event;
      event.sequence = text.id;
      event.token = emission.token;
      event.text = piece;
      event.drafted = emission.drafted;
      control = callback(event);
    }
    if (control == Control::kCancelAll) {
      cancelled_ = true;
    } else if (control == Control::kCancelSequence) {
      REPLAYSSM_RETURN_IF_ERROR(finish(text, FinishReason::kCancelled, callback));
    } else if (text.new_tokens() >= emission.job->request.max_new_tokens) {
      REPLAYSSM_RETURN_IF_ERROR(finish(text, FinishReason::kLength, callback));
    } else if (static_cast<std::int64_t>(text.tokens.size()) >= options_.context) {
      REPLAYSSM_RETURN_IF_ERROR(finish(text, FinishReason::kContext, callback));
    }
  }
  return {};
}

void Engine::Impl::account_time(double seconds) {
  std::int64_t prompt = 0;
  std::int64_t decode = 0;
  for (const engine::RunnerRow& row : rows_) {
    (row.prefill ? prompt : decode) += static_cast<std::int64_t>(row.tokens.size());
  }
  // A forward that does both is shared out by tokens.
  const double share = static_cast<double>(prompt) / static_cast<double>(prompt + decode);
  stats_.prompt_tokens += prompt;
  stats_.prefill_seconds += seconds * share;
  stats_.decode_seconds += seconds * (1.0 - share);
  if (decode > 0) ++stats_.steps;
}

Result<bool> Engine::Impl::step(const TokenCallback& callback) {
  cancelled_ = false;
  ran_ = false;
  finite_ = true;
  owners_.clear();
  // Also where a callback throws.
  struct Ending {
    explicit Ending(Impl& of) : engine(of) {}
    Ending(const Ending&) = delete;
    Ending& operator=(const Ending&) = delete;
    ~Ending() {
      if (whole) return;
      (void)guard([this] {
        engine.end_failed_forward();
        return Status();
      });
    }
    Impl& engine;
    bool whole = false;
  } ending(*this);
  Result<bool> more = guard([&] { return advance(callback); });
  ending.whole = more.ok();
  return more;
}

// A request goes on after a failure only where the forward left it as it was: its slot is whole and
// no chosen token of it is lost.
void Engine::Impl::end_failed_forward() {
  runner_->abandon();
  for (const RowOwner& owner : owners_) {
    const std::int32_t sequence = owner.job->texts[owner.text].sequence;
    if (!ran_ && sequence >= 0 && runner_->whole(sequence)) continue;
    // The failure of the step is the one to report.
    (void)guard([&] { return cancel(*owner.job); });
  }
}

Result<bool> Engine::Impl::advance(const TokenCallback& callback) {
  using Clock = std::chrono::steady_clock;
  // A request that cannot begin keeps nobody from going on.
  const Status admitted = guard([&] { return admit(); });
  build_rows();
  if (rows_.empty()) {
    REPLAYSSM_RETURN_IF_ERROR(admitted);
    return false;
  }
  const auto start = Clock::now();
  REPLAYSSM_RETURN_IF_ERROR(runner_->forward(rows_));
  ran_ = true;
  REPLAYSSM_RETURN_IF_ERROR(choose_tokens());
  REPLAYSSM_RETURN_IF_ERROR(runner_->commit(accepted_));
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    if (!owners_[row].prefill) continue;
    owners_[row].job->prefilled += static_cast<std::int64_t>(rows_[row].tokens.size());
    if (owners_[row].prompt_ends) REPLAYSSM_RETURN_IF_ERROR(start_continuations(row));
  }
  if (!finite_) {
    REPLAYSSM_RETURN_IF_ERROR(cancel_all());
    return error(StatusCode::kDataLoss,
                 "engine: logits that are not finite; are the weights whole?");
  }
  account_time(std::chrono::duration<double>(Clock::now() - start).count());
  REPLAYSSM_RETURN_IF_ERROR(emit(callback));
  if (cancelled_) REPLAYSSM_RETURN_IF_ERROR(cancel_all());
  return std::any_of(jobs_.begin(), jobs_.end(),
                     [](const auto& entry) { return !entry.second.done(); });
}

}  // namespace replayssm
