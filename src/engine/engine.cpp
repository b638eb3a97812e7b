// The public face of the engine: options and requests are checked here, requests queued, outputs
// handed out.
#include "replayssm/engine.hpp"

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

#include "core/guard.hpp"
#include "core/text.hpp"
#include "engine/engine_impl.hpp"
#include "engine/model_impl.hpp"
#include "model/layers/linear.hpp"

namespace replayssm {
namespace {

Status check_options(const EngineOptions& options) {
  if (options.max_sequences < 1) {
    return invalid_argument("engine: max_sequences must be 1 or more, given ",
                            options.max_sequences);
  }
  if (options.prefill_chunk < 1) {
    return invalid_argument("engine: prefill_chunk must be 1 or more, given ",
                            options.prefill_chunk);
  }
  if (options.context < 0) {
    return invalid_argument("engine: context must be 0 (the model's) or more, given ",
                            options.context);
  }
  if (options.threads < 0) {
    return invalid_argument("engine: threads must be 0 (the machine's) or more, given ",
                            options.threads);
  }
  if (options.draft == DraftKind::kNgram) {
    if (options.draft_tokens < 1 || options.draft_tokens > kMaxStepTokens - 1) {
      return invalid_argument("engine: draft_tokens must be 1 to ", kMaxStepTokens - 1, ", given ",
                              options.draft_tokens);
    }
    if (options.ngram_min < 1 || options.ngram_max < options.ngram_min) {
      return invalid_argument("engine: 1 <= ngram_min <= ngram_max is required, given ",
                              options.ngram_min, " and ", options.ngram_max);
    }
  }
  const std::int32_t step = options.draft == DraftKind::kNone ? 1 : 1 + options.draft_tokens;
  if (options.window < step || options.window > kMaxWindow) {
    return invalid_argument("engine: window must be ", step, " (a step's tokens) to ", kMaxWindow,
                            ", given ", options.window);
  }
  return {};
}

// Where neither the options nor the model name a limit.
constexpr std::int64_t kNoContextLimit = std::int64_t{1} << 40;

SequenceOutput output_of(const Engine::Impl::Text& text) {
  SequenceOutput output;
  output.sequence = text.id;
  output.tokens.assign(text.tokens.begin() + static_cast<std::ptrdiff_t>(text.prompt_tokens),
                       text.tokens.end());
  output.text = text.text;
  output.finish = text.finish;
  return output;
}

}  // namespace

Result<std::unique_ptr<Engine::Impl>> Engine::Impl::create(const Model& model,
                                                           const EngineOptions& options) {
  REPLAYSSM_RETURN_IF_ERROR(check_options(options));
  std::unique_ptr<Impl> impl(new Impl(model));
  impl->options_ = options;
  const std::int64_t positions = model.info().max_positions;
  if (options.context == 0) {
    impl->options_.context = positions > 0 ? positions : kNoContextLimit;
  } else if (positions > 0 && options.context > positions && options.log) {
    options.log(LogLevel::kWarning, concat("context ", options.context, " is beyond the ",
                                           positions, " tokens that the model was made for"));
  }
  engine::RunnerOptions runner;
  runner.decode = options.decode;
  runner.window = options.window;
  runner.max_step_tokens = impl->step_tokens();
  runner.implementation = options.implementation;
  runner.max_sequences = options.max_sequences;
  // A context shorter than the chunk never fills it.
  runner.max_prefill_tokens = std::min(options.prefill_chunk, impl->options_.context);
  impl->options_.prefill_chunk = runner.max_prefill_tokens;
  runner.context = impl->options_.context;
  runner.threads = options.threads;
  Result<std::unique_ptr<engine::Runner>> made =
      engine::Runner::create(*model.impl().layers, runner);
  if (!made.ok()) return made.status();
  impl->runner_ = std::move(*made);
  impl->options_.threads = impl->runner_->threads();
  return impl;
}

Status Engine::Impl::check(const Request& request) const {
  if (request.prompt.empty())
    return invalid_argument("request: the prompt needs at least one token");
  if (request.max_new_tokens < 1) {
    return invalid_argument("request: max_new_tokens must be 1 or more, given ",
                            request.max_new_tokens);
  }
  if (request.continuations < 1) {
    return invalid_argument("request: continuations must be 1 or more, given ",
                            request.continuations);
  }
  for (const std::int32_t token : request.prompt) {
    if (token < 0 || token >= model_.info().vocab) {
      return invalid_argument("request: token ", token, " is outside the vocabulary of ",
                              model_.info().vocab);
    }
  }
  REPLAYSSM_RETURN_IF_ERROR(engine::check_sampling(request.sampling));
  const auto prompt = static_cast<std::int64_t>(request.prompt.size());
  if (prompt >= options_.context) {
    return error(StatusCode::kOutOfRange, "request: the prompt holds ", prompt,
                 " tokens, the context ", options_.context,
                 "; at least one must be left for the output");
  }
  if (request.continuations > options_.max_sequences) {
    return error(StatusCode::kResourceExhausted, "request: ", request.continuations,
                 " continuations need as many sequences; the engine was made for ",
                 options_.max_sequences, " (max_sequences)");
  }
  return {};
}

Engine::Impl::Text Engine::Impl::make_text(const Job& job, std::int32_t continuation) const {
  Text text;
  text.id.request = job.event_request;
  text.id.continuation = continuation;
  text.tokens = job.request.prompt;
  text.prompt_tokens = static_cast<std::int64_t>(text.tokens.size());
  text.sampling = job.request.sampling;
  text.sampling.seed += static_cast<std::uint64_t>(continuation);
  if (model_.has_tokenizer()) text.stream.emplace(model_);
  return text;
}

std::int64_t Engine::Impl::submit(const Request& request,
                                  std::optional<std::int64_t> event_request) {
  const std::int64_t id = next_job_++;
  Job job;
  job.event_request = event_request.value_or(id);
  job.request = request;
  job.stop = request.stop_tokens;
  if (!request.ignore_model_stop_tokens) {
    const std::span<const std::int32_t> stop = model_.stop_tokens();
    job.stop.insert(job.stop.end(), stop.begin(), stop.end());
  }
  std::sort(job.stop.begin(), job.stop.end());
  jobs_.emplace(id, std::move(job));
  return id;
}

Status Engine::Impl::cancel(std::int64_t request) {
  const auto found = jobs_.find(request);
  if (found == jobs_.end())
    return error(StatusCode::kNotFound, "engine: there is no request ", request);
  return cancel(found->second);
}

Status Engine::Impl::cancel(Job& job) {
  job.admitted = true;
  Status first;
  for (Text& text : job.texts) {
    if (text.finish == FinishReason::kRunning) text.finish = FinishReason::kCancelled;
    Status status = close(text);
    if (first.ok()) first = std::move(status);
  }
  // Continuations that have not been forked yet, or a request that never ran, end as empty texts.
  for (auto i = static_cast<std::int32_t>(job.texts.size()); i < job.request.continuations; ++i) {
    Text text = make_text(job, i);
    text.finish = FinishReason::kCancelled;
    job.texts.push_back(std::move(text));
  }
  return first;
}

Status Engine::Impl::cancel_all() {
  Status first;
  for (auto& [id, job] : jobs_) {
    Status status = cancel(job);
    if (first.ok()) first = std::move(status);
  }
  return first;
}

void Engine::Impl::drop(std::int64_t request) {
  const auto found = jobs_.find(request);
  if (found == jobs_.end()) return;
  for (Text& text : found->second.texts) (void)close(text);
  jobs_.erase(found);
}

Result<std::vector<SequenceOutput>> Engine::Impl::take(std::int64_t request) {
  const auto found = jobs_.find(request);
  if (found == jobs_.end())
    return error(StatusCode::kNotFound, "engine: there is no request ", request);
  if (!found->second.done())
    return failed_precondition("engine: request ", request, " is still running");
  std::vector<SequenceOutput> outputs;
  for (const Text& text : found->second.texts) outputs.push_back(output_of(text));
  jobs_.erase(found);
  return outputs;
}

Result<Generation> Engine::Impl::generate(std::span<const Request> requests,
                                          const TokenCallback& callback) {
  for (const Request& request : requests) REPLAYSSM_RETURN_IF_ERROR(check(request));
  // However the call ends, nothing of it stays behind.
  struct Call {
    explicit Call(Impl& of) : engine(of), before(std::exchange(of.stats_, Stats{})) {}
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    ~Call() {
      for (const std::int64_t id : ids) engine.drop(id);
      engine.stats_ = before;
    }
    Impl& engine;
    Stats before;
    std::vector<std::int64_t> ids;
  } call(*this);
  std::vector<std::int64_t>& ids = call.ids;
  ids.reserve(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    ids.push_back(submit(requests[i], static_cast<std::int64_t>(i)));
  }
  Generation generation;
  const auto unfinished = [&] {
    return std::any_of(ids.begin(), ids.end(),
                       [&](std::int64_t id) { return !jobs_.at(id).done(); });
  };
  while (unfinished()) {
    Result<bool> more = step(callback);
    if (more.ok() && !*more && unfinished()) {
      more = error(StatusCode::kInternal, "engine: requests are left and none can run");
    }
    if (!more.ok()) return more.status();
    generation.cancelled = generation.cancelled || cancelled_;
  }
  generation.stats = stats();
  for (const std::int64_t id : ids) {
    Result<std::vector<SequenceOutput>> outputs = take(id);
    if (!outputs.ok()) return outputs.status();
    for (SequenceOutput& output : *outputs) generation.sequences.push_back(std::move(output));
  }
  return generation;
}

Stats Engine::Impl::stats() const {
  Stats stats = stats_;
  if (stats.sequence_steps > 0) {
    const auto rows = static_cast<double>(stats.sequence_steps);
    const Result<double> bytes = replayssm::state_bytes_per_token(
        runner_->cache().config(), (rows + static_cast<double>(stats.drafted_tokens)) / rows,
        (rows + static_cast<double>(stats.accepted_drafts)) / rows);
    if (bytes.ok()) stats.state_bytes_per_token = *bytes;
  }
  return stats;
}

std::string Engine::Impl::explain() const {
  const bool bf16 = model_.info().compute == ComputeType::kBF16;
  std::string text = runner_->cache().explain();
  if (!text.empty() && text.back() != '\n') text += '\n';
  text += concat(
      "products: oneDNN ", model::product_kernel_name(bf16 ? DType::kBF16 : DType::kF32),
      ", weights ", compute_type_name(model_.info().compute), ", ",
      model_.info().resident_weight_bytes, " bytes, packed at load",
      model_.impl().layers->emulated() ? " as f32: this machine has no bf16 products" : "", "\n");
  text +=
      concat("threads: ", options_.threads, ", one pool for products, attention and the cache\n");
  text += concat("batch: ", options_.max_sequences, " sequences, ", options_.prefill_chunk,
                 " prompt tokens a forward, context ", options_.context, "\n");
  text += concat("drafts: ", draft_kind_name(options_.draft));
  if (options_.draft == DraftKind::kNgram) {
    text += concat(", up to ", options_.draft_tokens, " a step from matches of ",
                   options_.ngram_min, " to ", options_.ngram_max, " tokens");
  }
  return text + "\n";
}

// --- the interface: nothing thrown leaves it
// ------------------------------------------------------------------

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;
Engine::~Engine() = default;

Result<Engine> Engine::create(const Model& model, const EngineOptions& options) {
  return guard([&]() -> Result<Engine> {
    Result<std::unique_ptr<Impl>> impl = Impl::create(model, options);
    if (!impl.ok()) return impl.status();
    return Engine(std::move(*impl));
  });
}

Result<Generation> Engine::generate(std::span<const Request> requests,
                                    const TokenCallback& callback) {
  return guard([&] { return impl_->generate(requests, callback); });
}

Result<std::int64_t> Engine::submit(const Request& request) {
  return guard([&]() -> Result<std::int64_t> {
    REPLAYSSM_RETURN_IF_ERROR(impl_->check(request));
    return impl_->submit(request, std::nullopt);
  });
}

Result<bool> Engine::step(const TokenCallback& callback) {
  return guard([&] { return impl_->step(callback); });
}

Status Engine::cancel(std::int64_t request) {
  return guard([&] { return impl_->cancel(request); });
}

Result<std::vector<SequenceOutput>> Engine::take(std::int64_t request) {
  return guard([&] { return impl_->take(request); });
}

Stats Engine::stats() const { return impl_->stats(); }
void Engine::reset_stats() { impl_->reset_stats(); }
const EngineOptions& Engine::options() const { return impl_->options(); }
std::string_view Engine::implementation() const { return impl_->runner().cache().implementation(); }
CacheBytes Engine::cache_bytes() const { return impl_->runner().cache().bytes(); }
std::int64_t Engine::kv_bytes() const { return impl_->runner().kv_bytes(); }
std::string Engine::explain() const { return impl_->explain(); }

}  // namespace replayssm
