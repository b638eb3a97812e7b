// See forward.hpp.
#include "model/layers/forward.hpp"

#include <algorithm>

#include "model/layers/norms.hpp"

namespace replayssm::model {

Forward::Forward(const Network& network, WorkerPool& pool, std::int64_t max_tokens)
    : network_(network),
      products_(pool),
      attention_(pool),
      rotary_(network.config().attention.rotary_dims, network.config().attention.rope_theta),
      max_tokens_(max_tokens),
      activations_(network.compute()) {
  const auto floats = [max_tokens](std::int64_t width) {
    return static_cast<std::size_t>(max_tokens * width);
  };
  const auto elements = [this, floats](std::int64_t width) {
    return floats(width) * dtype_bytes(activations_);
  };
  const std::int64_t hidden = network.config().hidden_size;
  const Widths widths = network.widths();
  residual_.resize(floats(hidden));
  memory_.mixed.resize(floats(hidden));
  memory_.normed.resize(elements(hidden));
  memory_.projected.resize(elements(widths.projected));
  memory_.prepared.resize(elements(widths.prepared));
  memory_.recurred.resize(floats(widths.recurred));
  memory_.inner.resize(elements(widths.inner));
  memory_.keys.resize(elements(widths.keys));
  memory_.values.resize(elements(widths.values));
}

void Forward::normalise(const float* in, const std::vector<float>& weight, std::int64_t rows,
                        void* out) {
  const std::int64_t hidden = network_.config().hidden_size;
  const double epsilon = network_.config().norm_epsilon;
  if (activations_ == DType::kF32) {
    rms_norm(in, weight.data(), epsilon, rows, hidden, static_cast<float*>(out));
  } else {
    rms_norm(in, weight.data(), epsilon, rows, hidden, static_cast<std::uint16_t*>(out));
  }
}

Status Forward::run(std::span<const std::int32_t> tokens, std::span<const ForwardRow> rows,
                    Cache& cache) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  const std::int64_t hidden = network_.config().hidden_size;
  if (count > max_tokens_) {
    return {StatusCode::kInternal, "forward: more tokens than working memory"};
  }
  bool any_step = false;
  bool any_prefill = false;
  attention_rows_.clear();
  positions_.assign(tokens.size(), 0);
  for (const ForwardRow& row : rows) {
    (row.prefill ? any_prefill : any_step) = true;
    AttentionRow attention_row;
    attention_row.cache = row.kv;
    attention_row.first = row.first;
    attention_row.tokens = row.tokens;
    attention_rows_.push_back(attention_row);
    for (std::int64_t i = 0; i < row.tokens; ++i) {
      positions_[static_cast<std::size_t>(row.first + i)] = row.kv->length() + i;
    }
    REPLAYSSM_RETURN_IF_ERROR(row.kv->reserve(row.tokens));
  }
  rotary_.prepare(positions_);
  for (std::int64_t i = 0; i < count; ++i) {
    network_.embed(tokens[static_cast<std::size_t>(i)], residual_.data() + i * hidden);
  }
  Pass pass{count,   hidden,          activations_, network_.config().norm_epsilon,
            rows,    attention_rows_, any_step,     any_prefill,
            memory_, rotary_,         attention_,   products_,
            cache};
  for (const Network::Placed& placed : network_.layers()) {
    normalise(residual_.data(), placed.stage.norm, count, memory_.normed.data());
    REPLAYSSM_RETURN_IF_ERROR(placed.stage.layer->run(pass, placed.place));
    add(memory_.mixed.data(), count * hidden, residual_.data());
  }
  return {};
}

Status Forward::logits(std::span<const std::int64_t> positions, float* hidden_out, float* logits) {
  const std::int64_t hidden = network_.config().hidden_size;
  const std::int64_t vocab = network_.config().vocab_size;
  const auto count = static_cast<std::int64_t>(positions.size());
  float* chosen = memory_.mixed.data();  // holds nothing any more, and max_tokens rows fit
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t rows = std::min(count - done, max_tokens_);
    for (std::int64_t i = 0; i < rows; ++i) {
      const float* from = residual_.data() + positions[static_cast<std::size_t>(done + i)] * hidden;
      std::copy_n(from, hidden, chosen + i * hidden);
    }
    normalise(chosen, network_.final_norm(), rows, memory_.normed.data());
    if (hidden_out != nullptr) {
      rms_norm(chosen, network_.final_norm().data(), network_.config().norm_epsilon, rows, hidden,
               hidden_out + done * hidden);
    }
    REPLAYSSM_RETURN_IF_ERROR(network_.head().run(memory_.normed.data(), rows,
                                                  logits + done * vocab, DType::kF32, products_));
    done += rows;
  }
  return {};
}

}  // namespace replayssm::model
