// See forward.hpp.
#include "model/layers/forward.hpp"

#include <algorithm>

#include "core/text.hpp"
#include "model/layers/norms.hpp"
#include "model/layers/token_loop.hpp"

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
  memory_.head_width = widths.head;
  memory_.heads.resize(static_cast<std::size_t>(pool.workers() * widths.head));
}

void Forward::normalise(const float* in, const std::vector<float>& weight, std::int64_t rows,
                        void* out) {
  const std::int64_t hidden = network_.config().hidden_size;
  const double epsilon = network_.config().norm_epsilon;
  with_element(activations_, [&](auto element) {
    auto* to = static_cast<decltype(element)*>(out);
    for_tokens(products_.pool(), rows, hidden, [&](std::int64_t first, std::int64_t count, int) {
      rms_norm(in + first * hidden, weight.data(), epsilon, count, hidden, to + first * hidden);
    });
  });
}

Status Forward::reserve(std::span<const ForwardRow> rows) {
  std::int64_t required = 0;
  for (const ForwardRow& row : rows) required += row.kv->missing_bytes(row.tokens);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Status status = rows[i].kv->reserve(rows[i].tokens);
    if (!status.ok()) {
      return error(status.code(), status.message(), " (row ", i, " of ", rows.size(),
                   ", which require ", required, " bytes in all; a shorter context or fewer ",
                   "sequences at a time need less)");
    }
  }
  return {};
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
  }
  REPLAYSSM_RETURN_IF_ERROR(reserve(rows));
  rotary_.prepare(positions_, products_.pool());
  WorkerPool& pool = products_.pool();
  for_tokens(pool, count, hidden, [&](std::int64_t first, std::int64_t part, int) {
    for (std::int64_t i = first; i < first + part; ++i) {
      network_.embed(tokens[static_cast<std::size_t>(i)], residual_.data() + i * hidden);
    }
  });
  Pass pass{count,   hidden,          activations_, network_.config().norm_epsilon,
            rows,    attention_rows_, any_step,     any_prefill,
            memory_, rotary_,         attention_,   products_,
            cache};
  for (const Network::Placed& placed : network_.layers()) {
    normalise(residual_.data(), placed.stage.norm, count, memory_.normed.data());
    REPLAYSSM_RETURN_IF_ERROR(placed.stage.layer->run(pass, placed.place));
    for_tokens(pool, count, hidden, [&](std::int64_t first, std::int64_t part, int) {
      add(memory_.mixed.data() + first * hidden, part * hidden, residual_.data() + first * hidden);
    });
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
