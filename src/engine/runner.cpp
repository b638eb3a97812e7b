// See runner.hpp.
#include "engine/runner.hpp"

#include <algorithm>
#include <utility>

#include "core/guard.hpp"
#include "core/text.hpp"

namespace replayssm::engine {

namespace {

constexpr float kNoWeight = 0.0F;

}  // namespace

CacheConfig cache_config(std::span<const LayerShape> layers, DType activations, DecodeMode decode,
                         std::int32_t window, std::int32_t max_step_tokens,
                         std::int64_t sequences) {
  CacheConfig config;
  config.layers.assign(layers.begin(), layers.end());
  // Sizes do not depend on the weights, but a configuration without them is refused.
  for (const LayerShape& shape : layers) {
    LayerWeights weights;
    weights.a_log = &kNoWeight;
    if (shape.conv_channels > 0) weights.conv_weight = &kNoWeight;
    config.weights.push_back(weights);
  }
  config.decode = decode;
  config.activations = activations;
  // The updates of the delta rule, as exact as everything else.
  config.update = activations;
  config.window = window;
  config.max_step_tokens = max_step_tokens;
  config.slots = sequences;
  config.threads = 1;  // of a pool that is never used: a runner lends its own
  return config;
}

namespace {

std::int64_t forward_tokens(const RunnerOptions& options) {
  return options.max_prefill_tokens + options.max_sequences * options.max_step_tokens;
}

}  // namespace

Runner::Runner(const model::Network& model, const RunnerOptions& options)
    : model_(model),
      kv_shape_(model.kv_shape()),
      options_(options),
      pool_(options.threads),
      forward_(model, pool_, forward_tokens(options)),
      sequences_(static_cast<std::size_t>(options.max_sequences)) {}

Runner::~Runner() = default;

Result<std::unique_ptr<Runner>> Runner::create(const model::Network& model,
                                               const RunnerOptions& options) {
  const std::vector<model::RecurrentLayer> recurrent = model.recurrent();
  if (recurrent.empty()) {
    return error(StatusCode::kUnsupported,
                 "engine: a model without recurrent layers is not supported; at least one is "
                 "needed");
  }
  std::unique_ptr<Runner> runner(new Runner(model, options));
  std::vector<LayerShape> shapes;
  for (const model::RecurrentLayer& layer : recurrent) shapes.push_back(layer.shape);
  CacheConfig config = cache_config(shapes, model.compute(), options.decode, options.window,
                                    options.max_step_tokens, options.max_sequences);
  for (std::size_t i = 0; i < recurrent.size(); ++i) config.weights[i] = recurrent[i].weights;
  config.implementation = options.implementation;
  config.max_rows = options.max_sequences;
  // Sequences that share a state may all fold in one forward, each into a block of its own, while
  // the shared one is still read: one block more for every group of two or more.
  config.blocks = options.max_sequences + options.max_sequences / 2;
  config.max_tokens = forward_tokens(options);
  config.parallel = runner->pool_.parallel_for();
  Result<Cache> cache = Cache::create(config);
  if (!cache.ok()) return cache.status();
  runner->cache_.emplace(std::move(*cache));
  return runner;
}

Result<std::int32_t> Runner::take_entry(std::int64_t slot, model::KvCache kv) {
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    if (sequences_[i]) continue;
    sequences_[i].emplace(Sequence{slot, std::move(kv)});
    return static_cast<std::int32_t>(i);
  }
  return error(StatusCode::kInternal, "engine: more slots than sequences");
}

Result<std::int32_t> Runner::open(std::uint64_t seed) {
  if (free_sequences() == 0) {
    return error(StatusCode::kResourceExhausted, "engine: all ", options_.max_sequences,
                 " sequences are in use; close one or raise max_sequences");
  }
  model::KvCache kv(kv_shape_);  // first, so that a failed allocation loses no slot
  const Result<std::int64_t> slot = cache_->acquire(seed);
  if (!slot.ok()) return slot.status();
  return take_entry(*slot, std::move(kv));
}

Result<std::int32_t> Runner::fork(std::int32_t sequence) {
  if (free_sequences() == 0) {
    return error(StatusCode::kResourceExhausted, "engine: all ", options_.max_sequences,
                 " sequences are in use; close one or raise max_sequences");
  }
  const Sequence& source = *sequences_[static_cast<std::size_t>(sequence)];
  model::KvCache kv = source.kv.fork();
  const Result<std::int64_t> slot = cache_->fork(source.slot);
  if (!slot.ok()) return slot.status();
  return take_entry(*slot, std::move(kv));
}

Status Runner::close(std::int32_t sequence) {
  auto& entry = sequences_[static_cast<std::size_t>(sequence)];
  if (!entry) return error(StatusCode::kOutOfRange, "engine: sequence ", sequence, " is not open");
  const Status status = cache_->release(entry->slot);
  entry.reset();
  return status;
}

std::int64_t Runner::length(std::int32_t sequence) const {
  return sequences_[static_cast<std::size_t>(sequence)]->kv.length();
}

std::int64_t Runner::free_sequences() const {
  return std::count_if(sequences_.begin(), sequences_.end(),
                       [](const auto& entry) { return !entry; });
}

std::int64_t Runner::kv_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& entry : sequences_) {
    if (entry) bytes += entry->kv.bytes();
  }
  return bytes;
}

Status Runner::check_rows(std::span<const RunnerRow> rows) const {
  std::int64_t prefill_tokens = 0;
  std::vector<bool> seen(sequences_.size(), false);
  for (const RunnerRow& row : rows) {
    const auto index = static_cast<std::size_t>(row.sequence);
    if (row.sequence < 0 || index >= sequences_.size() || !sequences_[index]) {
      return error(StatusCode::kOutOfRange, "engine: sequence ", row.sequence, " is not open");
    }
    if (seen[index])
      return invalid_argument("engine: sequence ", row.sequence, " stands twice in one forward");
    seen[index] = true;
    const auto tokens = static_cast<std::int64_t>(row.tokens.size());
    if (tokens < 1 || (!row.prefill && tokens > options_.max_step_tokens)) {
      return invalid_argument("engine: a step takes 1 to ", options_.max_step_tokens,
                              " tokens, given ", tokens);
    }
    if (row.prefill) prefill_tokens += tokens;
    if (sequences_[index]->kv.length() + tokens > options_.context) {
      return error(StatusCode::kOutOfRange, "engine: the context is ", options_.context,
                   " tokens, sequence ", row.sequence, " holds ", sequences_[index]->kv.length(),
                   " and was given ", tokens, " more");
    }
    for (const std::int32_t token : row.tokens) {
      if (token < 0 || token >= model_.config().vocab_size) {
        return error(StatusCode::kOutOfRange, "engine: token ", token,
                     " is outside the vocabulary of ", model_.config().vocab_size);
      }
    }
  }
  if (prefill_tokens > options_.max_prefill_tokens) {
    return invalid_argument("engine: at most ", options_.max_prefill_tokens,
                            " prompt tokens a forward, given ", prefill_tokens);
  }
  return {};
}

Status Runner::forward(std::span<const RunnerRow> rows) {
  REPLAYSSM_RETURN_IF_ERROR(check_rows(rows));
  rows_.clear();
  tokens_.clear();
  forward_rows_.clear();
  slots_.clear();
  row_tokens_.clear();
  row_prefill_.clear();
  logit_positions_.clear();
  open_ = false;
  for (const RunnerRow& row : rows) {
    Sequence& sequence = *sequences_[static_cast<std::size_t>(row.sequence)];
    OpenRow entry;
    entry.sequence = row.sequence;
    entry.tokens = static_cast<std::int64_t>(row.tokens.size());
    entry.prefill = row.prefill;
    entry.want = row.want;
    entry.first_logits = static_cast<std::int64_t>(logit_positions_.size());
    model::ForwardRow forward_row;
    forward_row.kv = &sequence.kv;
    forward_row.first = static_cast<std::int64_t>(tokens_.size());
    forward_row.tokens = entry.tokens;
    forward_row.prefill = row.prefill;
    const std::int64_t end = forward_row.first + entry.tokens;
    const std::int64_t wanted = row.want == Want::kAll    ? entry.tokens
                                : row.want == Want::kLast ? 1
                                                          : 0;
    for (std::int64_t position = end - wanted; position < end; ++position)
      logit_positions_.push_back(position);
    tokens_.insert(tokens_.end(), row.tokens.begin(), row.tokens.end());
    rows_.push_back(entry);
    forward_rows_.push_back(forward_row);
    slots_.push_back(sequence.slot);
    row_tokens_.push_back(static_cast<std::int32_t>(entry.tokens));
    row_prefill_.push_back(row.prefill ? 1 : 0);
  }

  Rows description;
  description.count = static_cast<std::int64_t>(rows_.size());
  description.slots = slots_.data();
  description.tokens = row_tokens_.data();
  description.prefill = row_prefill_.data();
  REPLAYSSM_RETURN_IF_ERROR(cache_->begin(description));
  const Status status = guard([&] { return run_layers(); });
  if (!status.ok()) {
    (void)cache_->abort();  // the first failure is the one to report
    return status;
  }
  open_ = true;
  return {};
}

Status Runner::run_layers() {
  REPLAYSSM_RETURN_IF_ERROR(cache_->fold());
  REPLAYSSM_RETURN_IF_ERROR(forward_.run(tokens_, forward_rows_, *cache_));
  const std::size_t wanted = logit_positions_.size();
  logits_.resize(wanted * static_cast<std::size_t>(model_.config().vocab_size));
  if (keep_hidden_) hidden_.resize(wanted * static_cast<std::size_t>(model_.config().hidden_size));
  return forward_.logits(logit_positions_, keep_hidden_ ? hidden_.data() : nullptr, logits_.data());
}

void Runner::abandon() {
  open_ = false;
  (void)cache_->abort();  // the failure that led here is the one to report
}

bool Runner::whole(std::int32_t sequence) const {
  const Result<SlotInfo> slot = cache_->info(sequences_[static_cast<std::size_t>(sequence)]->slot);
  return slot.ok() && (slot->error & kSlotTorn) == 0;
}

std::size_t Runner::logits_index(std::size_t row, std::int64_t token) const {
  const OpenRow& entry = rows_[row];
  const std::int64_t skipped = entry.want == Want::kLast ? entry.tokens - 1 : 0;
  return static_cast<std::size_t>(entry.first_logits + token - skipped);
}

std::span<const float> Runner::logits(std::size_t row, std::int64_t token) const {
  const auto vocab = static_cast<std::size_t>(model_.config().vocab_size);
  return std::span<const float>(logits_).subspan(logits_index(row, token) * vocab, vocab);
}

std::span<const float> Runner::hidden(std::size_t row, std::int64_t token) const {
  const auto width = static_cast<std::size_t>(model_.config().hidden_size);
  return std::span<const float>(hidden_).subspan(logits_index(row, token) * width, width);
}

Status Runner::commit(std::span<const std::int32_t> accepted) {
  if (!open_) return error(StatusCode::kFailedPrecondition, "engine: commit without a forward");
  if (accepted.size() != rows_.size()) {
    return invalid_argument("engine: commit needs a count for each of ", rows_.size(),
                            " rows, given ", accepted.size());
  }
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (accepted[i] < 0 || accepted[i] > rows_[i].tokens ||
        (rows_[i].prefill && accepted[i] != rows_[i].tokens)) {
      return invalid_argument("engine: row ", i, " holds ", rows_[i].tokens,
                              rows_[i].prefill ? " prompt" : "", " tokens, ", accepted[i],
                              " cannot be accepted");
    }
  }
  accepted_.assign(accepted.begin(), accepted.end());
  Accepted list;
  list.count = static_cast<std::int64_t>(accepted_.size());
  list.tokens = accepted_.data();
  open_ = false;
  REPLAYSSM_RETURN_IF_ERROR(cache_->commit(list));
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    model::KvCache& kv = sequences_[static_cast<std::size_t>(rows_[i].sequence)]->kv;
    kv.set_length(kv.length() + accepted_[i]);
  }
  return {};
}

}  // namespace replayssm::engine
