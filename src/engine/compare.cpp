// Decodes one prompt in several ways and says whether the texts agree.
//
// Two correct decodings may differ once the two best logits of a position lie within rounding of
// each other. How close that is follows from the model and its compute type, not from the decodings
// that are judged:
//
//   The gap of tokens a and b is (w_a - w_b) . h, with rows w of the head and the normalised hidden
//   state h. If rounding perturbs h by independent errors of relative size d, the gap's standard
//   deviation is |w_a - w_b| |h| d / sqrt(hidden); the head's own sums in f32 add about
//   2^-24 (|w_a| + |w_b|) |h|. A position is a near-tie when its gap is below
//   6 |h| (|w_a - w_b| d sqrt(2 / hidden) + 2^-24 (|w_a| + |w_b|)): six standard deviations of the
//   difference of two such decodings.
//
//   d is measured on the reference itself: its text is run a second time conventionally, in prompt
//   chunks instead of single tokens, and d is the largest relative distance between the two hidden
//   states of one position, at least u sqrt(2 L) with u the compute type's unit roundoff and L the
//   number of layers (two roundings a layer, as independent errors add).
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "core/guard.hpp"
#include "core/text.hpp"
#include "engine/agreement.hpp"
#include "engine/engine_impl.hpp"
#include "engine/model_impl.hpp"

namespace replayssm {
namespace {

// What the reference saw when it chose the token at one index of its output.
struct Position {
  engine::Choice choice;
  std::vector<float> hidden;
};

double norm(std::span<const float> values) {
  double sum = 0.0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(sum);
}

double distance(std::span<const float> a, std::span<const float> b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += difference * difference;
  }
  return std::sqrt(sum);
}

// Deviations of a few times the least are usual; beyond this it is no rounding.
constexpr double kMostDeviation = 256.0;

double unit_roundoff(ComputeType compute) {
  return compute == ComputeType::kBF16 ? 0x1.0p-9 : 0x1.0p-24;
}

// The largest relative distance between the reference's hidden states and those of the same text in
// chunks.
Result<double> measured_deviation(const Model& model, const engine::RunnerOptions& base,
                                  std::span<const std::int32_t> text, std::size_t prompt,
                                  std::span<const Position> positions) {
  engine::RunnerOptions options = base;
  options.max_sequences = 1;
  // Chunks of the output only; each keeps the logits of all its tokens, so they stay short.
  options.max_prefill_tokens = std::min<std::int64_t>(base.max_prefill_tokens, 64);
  const auto made = engine::Runner::create(*model.impl().layers, options);
  if (!made.ok()) return made.status();
  engine::Runner& runner = **made;
  runner.keep_hidden(true);
  const Result<std::int32_t> sequence = runner.open(0);
  if (!sequence.ok()) return sequence.status();
  double largest = 0.0;
  const std::size_t end = text.size() - 1;  // the last token is never fed
  for (std::size_t done = 0; done < end;) {
    const std::size_t count =
        std::min(end - done, static_cast<std::size_t>(options.max_prefill_tokens));
    engine::RunnerRow row;
    row.sequence = *sequence;
    row.tokens = text.subspan(done, count);
    row.prefill = true;
    row.want = done + count >= prompt ? engine::Want::kAll : engine::Want::kNone;
    REPLAYSSM_RETURN_IF_ERROR(runner.forward({&row, 1}));
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t next = done + i + 1;  // the position whose token this hidden state chooses
      if (next < prompt || next - prompt >= positions.size()) continue;
      const std::span<const float> hidden = runner.hidden(0, static_cast<std::int64_t>(i));
      const Position& position = positions[next - prompt];
      const double size = norm(position.hidden);
      if (size == 0.0) continue;
      const double relative = distance(position.hidden, hidden) / size;
      if (!(relative <= largest)) largest = relative;  // NaN counts as the largest
      if (std::isnan(largest)) return largest;
    }
    const auto accepted = static_cast<std::int32_t>(count);
    REPLAYSSM_RETURN_IF_ERROR(runner.commit({&accepted, 1}));
    done += count;
  }
  return largest;
}

double gap_bound(const model::Network& layers, const Position& position, double deviation) {
  const auto hidden = static_cast<std::size_t>(layers.config().hidden_size);
  std::vector<float> best(hidden);
  std::vector<float> second(hidden);
  layers.head_row(position.choice.token, best.data());
  layers.head_row(position.choice.second, second.data());
  const double perturbed =
      distance(best, second) * deviation * std::sqrt(2.0 / static_cast<double>(hidden));
  const double summed = 0x1.0p-24 * (norm(best) + norm(second));
  return 6.0 * norm(position.hidden) * (perturbed + summed);
}

double gap_of(const Position& position) {
  return static_cast<double>(position.choice.best_logit) -
         static_cast<double>(position.choice.second_logit);
}

class Comparer {
 public:
  Comparer(const Model& model, std::span<const std::int32_t> prompt, const CompareOptions& options,
           const CompareCallback& callback)
      : model_(model),
        prompt_(prompt.begin(), prompt.end()),
        options_(options),
        callback_(callback) {}

  Result<Comparison> run() {
    const std::pair<DecodeMode, DraftKind> ways[] = {{DecodeMode::kConventional, DraftKind::kNone},
                                                     {DecodeMode::kReplay, DraftKind::kNone},
                                                     {DecodeMode::kReplay, DraftKind::kNgram}};
    // Each way once on a few tokens: the first to run would else pay for what is made once,
    // products compiled for their shapes and memory touched for the first time.
    for (const auto& [decode, draft] : ways) warm_up(decode, draft);
    for (const auto& [decode, draft] : ways) {
      REPLAYSSM_RETURN_IF_ERROR(run_one(decode, draft));
      if (cancelled_) break;
      if (comparison_.runs.size() == 1) REPLAYSSM_RETURN_IF_ERROR(find_near_ties());
      judge(comparison_.runs.back());
    }
    return std::move(comparison_);
  }

 private:
  [[nodiscard]] EngineOptions engine_options(DecodeMode decode, DraftKind draft) const {
    EngineOptions chosen;
    chosen.decode = decode;
    chosen.draft = draft;
    chosen.draft_tokens = options_.draft_tokens;
    chosen.window = options_.window;
    chosen.context = options_.context;
    chosen.prefill_chunk = options_.prefill_chunk;
    chosen.threads = options_.threads;
    chosen.log = options_.log;
    return chosen;
  }

  // What fails here fails again where it counts, and is reported there.
  void warm_up(DecodeMode decode, DraftKind draft) {
    constexpr std::size_t kTokens = 8;
    auto made = Engine::Impl::create(model_, engine_options(decode, draft));
    if (!made.ok()) return;
    Request request;
    request.prompt.assign(prompt_.begin(), prompt_.begin() + static_cast<std::ptrdiff_t>(std::min(
                                                                 prompt_.size(), kTokens)));
    // A repetition, so that drafts are found and steps of several tokens run.
    request.prompt.insert(request.prompt.end(), request.prompt.begin(), request.prompt.end());
    request.max_new_tokens = kTokens;
    request.ignore_model_stop_tokens = true;
    (void)(*made)->generate({&request, 1}, {});
  }

  Status run_one(DecodeMode decode, DraftKind draft) {
    auto made = Engine::Impl::create(model_, engine_options(decode, draft));
    if (!made.ok()) return made.status();
    Engine::Impl& engine = **made;
    const std::size_t index = comparison_.runs.size();
    if (index == 0) {
      reference_options_ = engine.runner().options();
      engine.observe([this](const Engine::Impl::Text&, const engine::Choice& choice,
                            std::span<const float> hidden) {
        positions_.push_back(Position{choice, std::vector<float>(hidden.begin(), hidden.end())});
      });
    }
    Request request;
    request.prompt = prompt_;
    request.max_new_tokens = options_.max_new_tokens;
    request.ignore_model_stop_tokens = options_.ignore_stop_tokens;
    TokenCallback callback;
    if (callback_)
      callback = [this, index](const TokenEvent& event) { return callback_(index, event); };
    Result<Generation> generation = engine.generate({&request, 1}, callback);
    if (!generation.ok()) return generation.status();
    SequenceOutput& output = generation->sequences.front();
    cancelled_ = generation->cancelled || output.finish == FinishReason::kCancelled;
    ComparedRun run;
    run.decode = decode;
    run.draft = draft;
    run.implementation = std::string(engine.runner().cache().implementation());
    run.tokens = std::move(output.tokens);
    run.text = std::move(output.text);
    run.finish = output.finish;
    run.stats = generation->stats;
    comparison_.runs.push_back(std::move(run));
    return {};
  }

  // positions_[i] belongs to output token i; a stop token at the end has a position and no output
  // token.
  Status find_near_ties() {
    std::vector<std::int32_t> text = prompt_;
    for (const Position& position : positions_) {
      if (!std::isfinite(position.choice.best_logit) || !std::isfinite(norm(position.hidden))) {
        return error(StatusCode::kDataLoss, "compare: logits that are not finite at output token ",
                     text.size() - prompt_.size(), "; are the weights whole?");
      }
      text.push_back(position.choice.token);
    }
    const Result<double> measured =
        measured_deviation(model_, reference_options_, text, prompt_.size(), positions_);
    if (!measured.ok()) return measured.status();
    const model::Network& layers = *model_.impl().layers;
    const double least = unit_roundoff(model_.info().compute) *
                         std::sqrt(2.0 * static_cast<double>(model_.info().layers.size()));
    // Far beyond rounding the two ways of running the reference compute different things, and a
    // bound made from that would excuse any difference.
    const double most = std::min(kMostDeviation * least, 0.25);
    if (!(*measured <= most)) {
      return error(StatusCode::kInternal,
                   "compare: the reference in chunks and in single tokens differ by ", *measured,
                   " of the hidden state, at most ", most, " is rounding");
    }
    const double deviation = std::max(*measured, least);
    for (std::size_t i = 0; i < positions_.size(); ++i) {
      const double bound = gap_bound(layers, positions_[i], deviation);
      comparison_.bound = std::max(comparison_.bound, bound);
      if (gap_of(positions_[i]) >= bound) continue;
      ++comparison_.near_ties;
      if (comparison_.first_near_tie < 0) comparison_.first_near_tie = static_cast<std::int64_t>(i);
    }
    return {};
  }

  void judge(ComparedRun& run) {
    run.first_difference = engine::first_difference(comparison_.runs.front().tokens, run.tokens);
    run.agrees = engine::agrees(run.first_difference, comparison_.first_near_tie);
    const auto position = static_cast<std::size_t>(run.first_difference);
    if (run.first_difference >= 0 && position < positions_.size())
      run.gap_at_difference = gap_of(positions_[position]);
    comparison_.agree = comparison_.agree && run.agrees;
  }

  const Model& model_;
  std::vector<std::int32_t> prompt_;
  CompareOptions options_;
  const CompareCallback& callback_;
  Comparison comparison_;
  std::vector<Position> positions_;
  engine::RunnerOptions reference_options_;
  bool cancelled_ = false;
};

}  // namespace

Result<Comparison> compare(const Model& model, std::span<const std::int32_t> prompt,
                           const CompareOptions& options, const CompareCallback& callback) {
  return guard([&] { return Comparer(model, prompt, options, callback).run(); });
}

}  // namespace replayssm
