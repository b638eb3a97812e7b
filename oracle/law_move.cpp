// States and sequences that enter, leave or are copied inside a cache.
#include <algorithm>
#include <string>
#include <utility>

#include "oracle/law.hpp"

namespace replayssm::oracle {
namespace {

Status refuse(const std::string& message) { return {StatusCode::kInvalidArgument, message}; }

}  // namespace

Result<std::vector<State>> Law::store_state(std::int64_t slot) const {
  REPLAYSSM_RETURN_IF_ERROR(check_slot(slot));
  std::vector<State> states;
  for (int layer = 0; layer < static_cast<int>(config_.layers.size()); ++layer) {
    const Slot& here = slots_[slot];
    states.push_back(
        folded(layer, read_checkpoint(layer, slot), oldest(layer, here, slot, here.committed)));
  }
  return states;
}

Result<ConvHistory> Law::store_conv(std::int64_t slot, int layer) const {
  REPLAYSSM_RETURN_IF_ERROR(check_slot(slot));
  if (layer < 0 || layer >= static_cast<int>(config_.layers.size())) {
    return Status(StatusCode::kOutOfRange, "layer " + std::to_string(layer));
  }
  const Conv& conv = config_.layers[layer].conv;
  ConvHistory history = zero_history(conv);
  for (int back = 1; back < conv.width; ++back) {
    const std::vector<double>* input = conv_input(layer, slot, back);
    if (input != nullptr) history[conv.width - 1 - back] = *input;
  }
  return history;
}

void Law::adopt(std::int64_t slot_id, const Snapshot& snapshot) {
  const int block = own_block(slot_id);
  Slot& slot = slots_[slot_id];
  slot.zero = snapshot.zero;
  slot.position = snapshot.position;
  slot.committed = static_cast<int>(snapshot.records[0].size());
  poison_free_records(slot_id, 0);
  int valid = 0;
  for (std::size_t layer = 0; layer < config_.layers.size(); ++layer) {
    if (!snapshot.zero) checkpoints_[layer][block] = snapshot.checkpoints[layer];
    for (int i = 0; i < slot.committed; ++i) {
      records_[layer][slot_id][slot.order[i]] = snapshot.records[layer][i];
    }
    // The newest inputs that fit, ending just before the head. Rings of layers without a conv stay
    // unused.
    const auto& inputs = snapshot.conv_inputs[layer];
    const int given = static_cast<int>(inputs.size());
    const int kept = std::min(given, conv_kept());
    if (config_.layers[layer].conv.width > 0) valid = kept;
    for (int i = 0; i < kept; ++i) conv_[layer][slot_id][i] = inputs[given - kept + i];
  }
  slot.conv_valid = valid;
  slot.conv_head = valid % conv_ring();
}

Status Law::load_state(std::int64_t slot, const std::vector<State>& states,
                       const std::vector<ConvHistory>& conv, std::int64_t position) {
  REPLAYSSM_RETURN_IF_ERROR(check_idle());
  REPLAYSSM_RETURN_IF_ERROR(check_slot(slot));
  const std::size_t layers = config_.layers.size();
  if (states.size() != layers || conv.size() != layers) {
    return refuse("required one state and one conv history a layer");
  }
  Snapshot snapshot;
  snapshot.position = position;
  snapshot.records.resize(layers);
  snapshot.checkpoints = states;
  snapshot.conv_inputs.resize(layers);
  int longest = 0;
  for (const LawLayer& layer : config_.layers) longest = std::max(longest, layer.conv.width - 1);
  for (std::size_t layer = 0; layer < layers; ++layer) {
    const LawLayer& shape = config_.layers[layer];
    if (states[layer].size() != static_cast<std::size_t>(shape.layer.state_size())) {
      return refuse("state of layer " + std::to_string(layer) + " has another size");
    }
    if (shape.conv.width == 0) continue;
    bool fits = conv[layer].size() == static_cast<std::size_t>(shape.conv.width - 1);
    for (const auto& input : conv[layer]) {
      fits = fits && input.size() == static_cast<std::size_t>(shape.conv.channels);
    }
    if (!fits)
      return refuse("conv history of layer " + std::to_string(layer) + " has another size");
    // Layers share one fill: a narrower conv never reads the zeros put before its history.
    snapshot.conv_inputs[layer] = ConvHistory(longest - (shape.conv.width - 1),
                                              std::vector<double>(shape.conv.channels, 0.0));
    snapshot.conv_inputs[layer].insert(snapshot.conv_inputs[layer].end(), conv[layer].begin(),
                                       conv[layer].end());
  }
  adopt(slot, snapshot);
  return {};
}

Result<Snapshot> Law::export_slot(std::int64_t slot_id) const {
  REPLAYSSM_RETURN_IF_ERROR(check_idle());
  REPLAYSSM_RETURN_IF_ERROR(check_slot(slot_id));
  const Slot& slot = slots_[slot_id];
  Snapshot out;
  out.window = config_.window;
  out.position = slot.position;
  out.zero = slot.zero;
  for (int layer = 0; layer < static_cast<int>(config_.layers.size()); ++layer) {
    out.checkpoints.push_back(slot.zero ? State{} : checkpoints_[layer][slot.block]);
    out.records.emplace_back();
    for (const Record* record : oldest(layer, slot, slot_id, slot.committed)) {
      out.records.back().push_back(*record);
    }
    out.conv_inputs.emplace_back();
    if (config_.layers[layer].conv.width == 0) continue;
    for (int back = slot.conv_valid; back >= 1; --back) {
      out.conv_inputs.back().push_back(*conv_input(layer, slot_id, back));
    }
  }
  return out;
}

Status Law::import_slot(std::int64_t slot, const Snapshot& snapshot) {
  REPLAYSSM_RETURN_IF_ERROR(check_idle());
  REPLAYSSM_RETURN_IF_ERROR(check_slot(slot));
  const std::size_t layers = config_.layers.size();
  if (snapshot.checkpoints.size() != layers || snapshot.records.size() != layers ||
      snapshot.conv_inputs.size() != layers) {
    return refuse("the snapshot has another number of layers");
  }
  for (std::size_t layer = 0; layer < layers; ++layer) {
    const std::size_t required = snapshot.zero ? 0 : config_.layers[layer].layer.state_size();
    if (snapshot.checkpoints[layer].size() != required ||
        snapshot.records[layer].size() != snapshot.records[0].size()) {
      return refuse("the snapshot's layer " + std::to_string(layer) + " has another shape");
    }
  }
  Snapshot taken = snapshot;
  int count = static_cast<int>(taken.records[0].size());
  while (count > 0 && (snapshot.window > config_.window || count >= config_.window)) {
    const int folds = snapshot.window > config_.window ? count : config_.window;
    for (std::size_t layer = 0; layer < layers; ++layer) {
      std::vector<Record>& records = taken.records[layer];
      Records oldest_records;
      for (int i = 0; i < folds; ++i) oldest_records.push_back(&records[i]);
      taken.checkpoints[layer] =
          folded(static_cast<int>(layer), taken.zero ? nullptr : &taken.checkpoints[layer],
                 oldest_records);
      records.erase(records.begin(), records.begin() + folds);
    }
    taken.zero = false;
    count -= folds;
  }
  adopt(slot, taken);
  return {};
}

Status Law::materialize(std::int64_t source, std::int64_t position, std::int64_t destination) {
  REPLAYSSM_RETURN_IF_ERROR(check_idle());
  REPLAYSSM_RETURN_IF_ERROR(check_slot(source));
  REPLAYSSM_RETURN_IF_ERROR(check_slot(destination));
  if (source == destination) return refuse("source and destination are the same slot");
  const Slot& from = slots_[source];
  const std::int64_t oldest_position = from.position - from.committed;
  if (position < oldest_position || position > from.position) {
    return {StatusCode::kOutOfRange, "required a position from " + std::to_string(oldest_position) +
                                         " to " + std::to_string(from.position) + ", given " +
                                         std::to_string(position)};
  }
  const int back = static_cast<int>(from.position - position);
  const int longest = conv_kept() - (config_.conv_keeps_ring ? config_.ring() : 0);  // width - 1
  const bool has_conv = longest > 0;
  if (back > 0 && has_conv && !config_.conv_keeps_ring) {
    return {StatusCode::kUnsupported, "an earlier position needs conv_keeps_ring"};
  }
  const bool from_start = from.conv_valid == from.position;
  if (back > 0 && has_conv && !from_start && from.conv_valid < back + longest) {
    return {StatusCode::kUnsupported, "the conv inputs before that position were not imported"};
  }
  Snapshot out;
  out.position = position;
  const int count = from.committed - back;
  out.zero = from.zero && count == 0;
  for (int layer = 0; layer < static_cast<int>(config_.layers.size()); ++layer) {
    out.records.emplace_back();
    out.checkpoints.push_back(
        folded(layer, read_checkpoint(layer, source), oldest(layer, from, source, count)));
    out.conv_inputs.emplace_back();
    if (config_.layers[layer].conv.width == 0) continue;
    for (int at = from.conv_valid; at > back; --at) {
      out.conv_inputs.back().push_back(*conv_input(layer, source, at));
    }
  }
  adopt(destination, out);
  return {};
}

}  // namespace replayssm::oracle
