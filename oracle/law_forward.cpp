// One forward pass up to its outputs: begin, fold, conv, step.
#include <algorithm>
#include <string>
#include <utility>

#include "oracle/law.hpp"

namespace replayssm::oracle {
namespace {

Status refuse(const std::string& message) { return {StatusCode::kInvalidArgument, message}; }
Status too_early(const std::string& message) { return {StatusCode::kFailedPrecondition, message}; }

}  // namespace

Status Law::begin(const std::vector<LawRow>& rows) {
  // Everything is checked before anything is touched, the forward that may still be open included.
  std::vector<bool> seen(config_.slots, false);
  for (std::size_t index = 0; index < rows.size(); ++index) {
    const LawRow& row = rows[index];
    const std::string where = "row " + std::to_string(index) + ": ";
    const bool prefill = row.prefill;
    if (row.tokens < 0 || (!prefill && row.tokens > config_.max_tokens)) {
      return refuse(where + "required 0 to " + std::to_string(config_.max_tokens) +
                    " tokens, given " + std::to_string(row.tokens));
    }
    if (!row.parents.empty()) {
      if (prefill) return refuse(where + "a prompt chunk is a chain");
      if (row.parents.size() != static_cast<std::size_t>(row.tokens)) {
        return refuse(where + "required one parent a token");
      }
      for (int t = 0; t < row.tokens; ++t) {
        if (row.parents[t] < -1 || row.parents[t] >= t) {
          return refuse(where + "the parent of token " + std::to_string(t) +
                        " must be -1 or an earlier token, given " + std::to_string(row.parents[t]));
        }
      }
    }
    if (row.slot == config_.padding_slot) continue;
    REPLAYSSM_RETURN_IF_ERROR(check_slot(row.slot));
    if (seen[row.slot]) return refuse(where + "slot " + std::to_string(row.slot) + " occurs twice");
    seen[row.slot] = true;
  }
  if (phase_ != Phase::kIdle) REPLAYSSM_RETURN_IF_ERROR(abort());

  // Sharers are counted as they are at the start of the forward: two of one block both move away.
  const std::vector<int> references = references_;
  int offset = 0;
  for (const LawRow& row : rows) {
    LawDescriptor out;
    out.slot = row.slot;
    out.padding = row.slot == config_.padding_slot;
    out.prefill = row.prefill;
    out.tokens = row.tokens;
    out.token_offset = offset;
    offset += row.tokens;
    out.parents = row.parents;
    if (out.parents.empty() || config_.fault == Fault::kTreeAsChain) {
      out.parents.resize(row.tokens);
      for (int t = 0; t < row.tokens; ++t) out.parents[t] = t - 1;
    }
    if (!out.padding) {
      const Slot& slot = slots_[row.slot];
      out.zero = slot.zero;
      out.committed = slot.committed;
      out.order = slot.order;
      out.read_block = slot.block;
      out.write_block = slot.block;
      if (!row.prefill && slot.committed >= config_.window) {
        out.fold = config_.window;
        out.committed -= config_.window;
        // The folded places become free and go to the end of the table.
        std::rotate(out.order.begin(), out.order.begin() + config_.window, out.order.end());
      }
      const bool writes = out.fold > 0 || out.prefill;
      const bool shared = references[slot.block] > 1 && config_.fault != Fault::kFoldInPlace;
      if (writes && shared) out.write_block = take_block();
    }
    rows_.push_back(std::move(out));
  }
  const std::size_t layers = config_.layers.size();
  stepped_.assign(layers, false);
  convolved_.assign(layers, false);
  prefilled_.assign(rows_.size(), std::vector<State>(layers));
  chunks_.assign(rows_.size(), std::vector<std::vector<std::vector<double>>>(layers));
  phase_ = Phase::kBegun;
  return {};
}

HeadReplay Law::replay(int layer, int head, const double* checkpoint, const Records& records,
                       const std::vector<int>& parents, bool stored_u) const {
  const Layer& shape = config_.layers[layer].layer;
  const int group = shape.group_of(head);
  std::vector<Item> items(records.size());
  for (std::size_t i = 0; i < records.size(); ++i) {
    const Record& record = *records[i];
    Item& item = items[i];
    item.k = record.k.data() + group * shape.key_dim;
    item.k_scale = record.inv_norm[group];
    item.log_decay = record.log_decay.data() + head * shape.gate_width();
    item.v = record.v.data() + head * shape.value_dim;
    item.weight = record.weight[head];
    // Tokens of the running step have no u yet.
    if (stored_u && !record.u.empty()) item.u = record.u.data() + head * shape.value_dim;
    item.parent = parents[i];
  }
  return {shape, checkpoint, std::move(items), config_.fault};
}

Law::Records Law::oldest(int layer, const Slot& slot, std::int64_t id, int count) const {
  Records records;
  for (int i = 0; i < count; ++i) records.push_back(&records_[layer][id][slot.order[i]]);
  return records;
}

const State* Law::read_checkpoint(int layer, std::int64_t slot) const {
  const bool zero = slots_[slot].zero && config_.fault != Fault::kIgnoreZeroFlag;
  return zero ? nullptr : &checkpoints_[layer][slots_[slot].block];
}

State Law::folded(int layer, const State* checkpoint, const Records& records) const {
  const Layer& shape = config_.layers[layer].layer;
  std::vector<int> parents(records.size());
  for (std::size_t i = 0; i < records.size(); ++i) parents[i] = static_cast<int>(i) - 1;
  State after(shape.state_size());
  const int size = shape.value_dim * shape.key_dim;
  for (int head = 0; head < shape.heads; ++head) {
    const double* before = checkpoint == nullptr ? nullptr : checkpoint->data() + head * size;
    // The fold's own track: u is found again from v, beta, k and g against the full checkpoint.
    HeadReplay work =
        replay(layer, head, before, records, parents, config_.fault == Fault::kFoldStoredU);
    work.solve();
    work.fold(after.data() + head * size);
  }
  return after;
}

Status Law::fold() {
  if (phase_ != Phase::kBegun) return too_early("fold follows begin, once");
  // All reads before all writes, as if every block of the launch ran at the same time.
  std::vector<std::vector<State>> results(rows_.size());
  for (std::size_t index = 0; index < rows_.size(); ++index) {
    const LawDescriptor& row = rows_[index];
    if (row.padding || row.fold == 0) continue;
    const int count = config_.fault == Fault::kFoldTooFew ? row.fold - 1 : row.fold;
    for (std::size_t layer = 0; layer < config_.layers.size(); ++layer) {
      const int at = static_cast<int>(layer);
      results[index].push_back(
          folded(at, read_checkpoint(at, row.slot), oldest(at, slots_[row.slot], row.slot, count)));
    }
  }
  for (std::size_t index = 0; index < rows_.size(); ++index) {
    const LawDescriptor& row = rows_[index];
    if (row.padding || row.fold == 0) continue;
    for (std::size_t layer = 0; layer < config_.layers.size(); ++layer) {
      checkpoints_[layer][row.write_block] = std::move(results[index][layer]);
    }
    Slot& slot = slots_[row.slot];
    if (row.write_block != row.read_block) blocks_to_drop_.push_back(row.read_block);
    slot.block = row.write_block;
    slot.zero = false;
    slot.committed = row.committed;
    slot.order = row.order;
    poison_free_records(row.slot, slot.committed);
  }
  phase_ = Phase::kFolded;
  return {};
}

const std::vector<double>* Law::conv_input(int layer, std::int64_t slot, int back) const {
  const Slot& here = slots_[slot];
  if (back > here.conv_valid) return nullptr;
  const int ring = conv_ring();
  return &conv_[layer][slot][(here.conv_head - back + ring) % ring];
}

Result<RowValues> Law::conv(int layer, const RowValues& inputs) {
  if (phase_ != Phase::kFolded) return too_early("conv follows fold");
  if (layer < 0 || layer >= static_cast<int>(config_.layers.size())) {
    return Status(StatusCode::kOutOfRange, "layer " + std::to_string(layer));
  }
  const Conv& shape = config_.layers[layer].conv;
  if (shape.width == 0) return refuse("layer " + std::to_string(layer) + " has no conv");
  if (convolved_[layer]) return too_early("conv runs once a layer and forward");
  if (inputs.size() != rows_.size()) return refuse("required one entry a row");
  for (std::size_t index = 0; index < rows_.size(); ++index) {
    if (rows_[index].padding) continue;
    bool fits = inputs[index].size() == static_cast<std::size_t>(rows_[index].tokens);
    for (const auto& input : inputs[index])
      fits = fits && input.size() == static_cast<std::size_t>(shape.channels);
    if (!fits) return refuse("conv inputs of row " + std::to_string(index) + " have another shape");
  }

  RowValues outputs(rows_.size());
  for (std::size_t index = 0; index < rows_.size(); ++index) {
    const LawDescriptor& row = rows_[index];
    outputs[index].assign(row.tokens, std::vector<double>(shape.channels, 0.0));
    if (row.padding) continue;
    for (int t = 0; t < row.tokens; ++t) {
      // The path's newest `width` inputs, newest first: ancestors, then history; null counts as 0.
      std::vector<const std::vector<double>*> seen;
      int node = t;
      int back = 0;
      for (int j = 0; j < shape.width; ++j) {
        if (node >= 0) {
          seen.push_back(&inputs[index][node]);
          node = row.parents[node];
        } else {
          seen.push_back(conv_input(layer, row.slot, ++back));
        }
      }
      for (int channel = 0; channel < shape.channels; ++channel) {
        double sum = shape.bias.empty() ? 0.0 : shape.bias[channel];
        for (int j = 0; j < shape.width; ++j) {
          if (seen[j] == nullptr) continue;
          sum += shape.weight[channel * shape.width + shape.width - 1 - j] * (*seen[j])[channel];
        }
        outputs[index][t][channel] = shape.silu ? silu(sum) : sum;
      }
    }
    if (row.prefill) {
      chunks_[index][layer] = inputs[index];
    } else {
      for (int t = 0; t < row.tokens; ++t) {
        conv_[layer][row.slot][(slots_[row.slot].conv_head + t) % conv_ring()] = inputs[index][t];
      }
    }
  }
  convolved_[layer] = true;
  return outputs;
}

Result<RowValues> Law::step(int layer, const std::vector<std::vector<Token>>& tokens) {
  if (phase_ != Phase::kFolded) return too_early("step follows fold");
  if (layer < 0 || layer >= static_cast<int>(config_.layers.size())) {
    return Status(StatusCode::kOutOfRange, "layer " + std::to_string(layer));
  }
  if (stepped_[layer]) return too_early("step runs once a layer and forward");
  if (tokens.size() != rows_.size()) return refuse("required one entry a row");
  const Layer& shape = config_.layers[layer].layer;
  for (std::size_t index = 0; index < rows_.size(); ++index) {
    if (rows_[index].padding) continue;
    if (tokens[index].size() != static_cast<std::size_t>(rows_[index].tokens)) {
      return refuse("row " + std::to_string(index) + " has another number of tokens");
    }
    for (const Token& token : tokens[index]) REPLAYSSM_RETURN_IF_ERROR(check_token(shape, token));
  }

  RowValues outputs(rows_.size());
  for (std::size_t index = 0; index < rows_.size(); ++index) {
    const LawDescriptor& row = rows_[index];
    outputs[index].assign(row.tokens, std::vector<double>(shape.heads * shape.value_dim, 0.0));
    if (!row.padding) run_row(layer, index, tokens[index], &outputs[index]);
  }
  stepped_[layer] = true;
  return outputs;
}

void Law::run_row(int layer, std::size_t index, const std::vector<Token>& tokens,
                  std::vector<std::vector<double>>* outputs) {
  const LawDescriptor& row = rows_[index];
  const Layer& shape = config_.layers[layer].layer;
  const Slot& slot = slots_[row.slot];
  const int size = shape.value_dim * shape.key_dim;

  // Items: the committed records, then the tokens.
  Records records = oldest(layer, slot, row.slot, row.committed);
  std::vector<Record> fresh(row.tokens);
  std::vector<int> parents;
  std::vector<Derived> derived;
  for (int i = 0; i < row.committed; ++i) parents.push_back(i - 1);
  for (int t = 0; t < row.tokens; ++t) {
    derived.push_back(derive(shape, tokens[t]));
    Record& record = fresh[t];
    record.k = tokens[t].k;
    record.inv_norm = derived[t].inv_norm;
    record.v = tokens[t].v;
    record.log_decay = derived[t].log_decay;
    record.weight = derived[t].weight;
    records.push_back(&record);
    parents.push_back(row.committed + row.parents[t]);  // a root follows the last committed record
  }

  if (row.prefill) prefilled_[index][layer].assign(shape.state_size(), 0.0);
  std::vector<std::vector<double>> updates(row.tokens);
  for (int head = 0; head < shape.heads; ++head) {
    const State* state = read_checkpoint(layer, row.slot);
    const double* checkpoint = state == nullptr ? nullptr : state->data() + head * size;
    // A step reads with the stored u. A prefill row rewrites the state, so it follows the fold's
    // track.
    HeadReplay work = replay(layer, head, checkpoint, records, parents, !row.prefill);
    work.solve();
    for (int t = 0; t < row.tokens; ++t) {
      double* out = (*outputs)[t].data() + head * shape.value_dim;
      work.read(row.committed + t, derived[t].q.data() + shape.group_of(head) * shape.key_dim, out);
      finish_output(shape, tokens[t], head, out);
      const std::vector<double>& u = work.update(row.committed + t);
      updates[t].insert(updates[t].end(), u.begin(), u.end());
    }
    if (row.prefill) work.fold(prefilled_[index][layer].data() + head * size);
  }
  if (row.prefill) return;
  const int ahead = config_.fault == Fault::kCursorPerLayer ? layer * row.tokens : 0;
  for (int t = 0; t < row.tokens; ++t) {
    fresh[t].u = std::move(updates[t]);
    const int place = row.order[(row.committed + ahead + t) % config_.ring()];
    records_[layer][row.slot][place] = std::move(fresh[t]);
  }
}

}  // namespace replayssm::oracle
