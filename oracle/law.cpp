// Slots, blocks and what keeps them consistent outside a forward.
#include "oracle/law.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

namespace replayssm::oracle {
namespace {

constexpr double kPoison = std::numeric_limits<double>::quiet_NaN();

Status refuse(const std::string& message) { return {StatusCode::kInvalidArgument, message}; }

}  // namespace

Result<Law> Law::create(LawConfig config) {
  if (config.layers.empty()) return refuse("a cache needs at least one layer");
  if (config.max_tokens < 1 || config.window < config.max_tokens) {
    return refuse("required window >= max_tokens >= 1, given window " +
                  std::to_string(config.window) + " and max_tokens " +
                  std::to_string(config.max_tokens));
  }
  if (config.slots < 1 || config.blocks < 1) return refuse("a cache needs slots and blocks");
  for (const LawLayer& layer : config.layers) {
    REPLAYSSM_RETURN_IF_ERROR(check_layer(layer.layer));
    REPLAYSSM_RETURN_IF_ERROR(check_conv(layer.conv));
  }
  return Law(std::move(config));
}

Law::Law(LawConfig config) : config_(std::move(config)) {
  slots_.resize(config_.slots);
  references_.assign(config_.blocks, 0);
  for (int block = config_.blocks - 1; block >= 0; --block) free_blocks_.push_back(block);
  const int layers = static_cast<int>(config_.layers.size());
  checkpoints_.resize(layers);
  records_.resize(layers);
  conv_.resize(layers);
  for (int layer = 0; layer < layers; ++layer) {
    const LawLayer& shape = config_.layers[layer];
    checkpoints_[layer].assign(config_.blocks, State(shape.layer.state_size(), kPoison));
    records_[layer].assign(config_.slots, std::vector<Record>(config_.ring()));
    const std::vector<double> input(shape.conv.channels, kPoison);
    conv_[layer].assign(config_.slots, std::vector<std::vector<double>>(conv_ring(), input));
  }
  for (int slot = 0; slot < config_.slots; ++slot) reset_slot(slot);
}

Status Law::check_slot(std::int64_t slot) const {
  if (slot < 0 || slot >= config_.slots) {
    return {StatusCode::kOutOfRange,
            "slot " + std::to_string(slot) + " of " + std::to_string(config_.slots)};
  }
  if (!slots_[slot].used) {
    return {StatusCode::kFailedPrecondition, "slot " + std::to_string(slot) + " is not in use"};
  }
  return {};
}

Status Law::check_idle() const {
  if (phase_ == Phase::kIdle) return {};
  return {StatusCode::kFailedPrecondition, "a forward is running: commit or abort it first"};
}

int Law::conv_kept() const {
  int width = 1;
  for (const LawLayer& layer : config_.layers) width = std::max(width, layer.conv.width);
  return width - 1 + (config_.conv_keeps_ring ? config_.ring() : 0);
}

int Law::conv_ring() const { return conv_kept() + config_.max_tokens; }

int Law::needed_blocks() const {
  int needed = 0;
  for (const int count : references_) needed += count >= 2 ? count : 0;
  return needed;
}

int Law::take_block() {
  const int block = free_blocks_.back();
  free_blocks_.pop_back();
  references_[block] = 1;
  return block;
}

void Law::drop_block(int block) {
  if (--references_[block] > 0) return;
  for (std::vector<State>& states : checkpoints_) {
    std::fill(states[block].begin(), states[block].end(), kPoison);
  }
  free_blocks_.push_back(block);
}

int Law::own_block(std::int64_t slot) {
  Slot& here = slots_[slot];
  if (references_[here.block] > 1) {
    const int old = here.block;
    here.block = take_block();
    drop_block(old);
  }
  return here.block;
}

void Law::reset_slot(std::int64_t slot) {
  Slot& here = slots_[slot];
  here = Slot{};
  here.order.resize(config_.ring());
  for (int i = 0; i < config_.ring(); ++i) here.order[i] = i;
  poison_free_records(slot, 0);
  for (auto& layer : conv_) {
    for (std::vector<double>& input : layer[slot]) std::fill(input.begin(), input.end(), kPoison);
  }
}

void Law::poison_free_records(std::int64_t slot, int live) {
  for (std::size_t layer = 0; layer < records_.size(); ++layer) {
    const Layer& shape = config_.layers[layer].layer;
    for (int place = live; place < config_.ring(); ++place) {
      Record& record = records_[layer][slot][slots_[slot].order[place]];
      record.k.assign(shape.groups * shape.key_dim, kPoison);
      record.inv_norm.assign(shape.groups, kPoison);
      record.v.assign(shape.heads * shape.value_dim, kPoison);
      record.log_decay.assign(shape.heads * shape.gate_width(), kPoison);
      record.weight.assign(shape.heads, kPoison);
      record.u.assign(shape.heads * shape.value_dim, kPoison);
    }
  }
}

Result<std::int64_t> Law::allocate() {
  REPLAYSSM_RETURN_IF_ERROR(check_idle());
  if (free_blocks() - 1 < needed_blocks()) {
    return Status(StatusCode::kResourceExhausted,
                  "no block to spare: " + std::to_string(free_blocks()) + " free, " +
                      std::to_string(needed_blocks()) + " kept for shared blocks");
  }
  for (int slot = 0; slot < config_.slots; ++slot) {
    if (slots_[slot].used) continue;
    // The block keeps its old bytes and the ring its old records: the zero flag and the cursors
    // must suffice.
    slots_[slot].used = true;
    slots_[slot].block = take_block();
    return std::int64_t{slot};
  }
  return Status(StatusCode::kResourceExhausted,
                "all " + std::to_string(config_.slots) + " slots are in use");
}

Status Law::release(std::int64_t slot) {
  REPLAYSSM_RETURN_IF_ERROR(check_slot(slot));
  for (LawDescriptor& row : rows_) {
    if (row.padding || row.slot != slot) continue;
    row.padding = true;
    if (slots_[slot].block != row.write_block) drop_block(row.write_block);
  }
  drop_block(slots_[slot].block);
  reset_slot(slot);
  return {};
}

Result<std::int64_t> Law::fork(std::int64_t source) {
  REPLAYSSM_RETURN_IF_ERROR(check_idle());
  REPLAYSSM_RETURN_IF_ERROR(check_slot(source));
  const int block = slots_[source].block;
  const int more = references_[block] == 1 ? 2 : 1;
  if (free_blocks() < needed_blocks() + more) {
    return Status(StatusCode::kResourceExhausted,
                  "every sharer of a block must be able to fold: " + std::to_string(free_blocks()) +
                      " blocks free, " + std::to_string(needed_blocks() + more) + " required");
  }
  for (int slot = 0; slot < config_.slots; ++slot) {
    if (slots_[slot].used) continue;
    slots_[slot] = slots_[source];
    ++references_[block];
    for (std::size_t layer = 0; layer < records_.size(); ++layer) {
      records_[layer][slot] = records_[layer][source];
      conv_[layer][slot] = conv_[layer][source];
    }
    return std::int64_t{slot};
  }
  return Status(StatusCode::kResourceExhausted,
                "all " + std::to_string(config_.slots) + " slots are in use");
}

void Law::poison_updates(std::int64_t slot) {
  for (auto& layer : records_) {
    for (Record& record : layer[slot]) std::fill(record.u.begin(), record.u.end(), kPoison);
  }
}

}  // namespace replayssm::oracle
