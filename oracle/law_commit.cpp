// The end of a forward pass: commit and abort.
#include <algorithm>
#include <string>
#include <utility>

#include "oracle/law.hpp"

namespace replayssm::oracle {
namespace {

Status refuse(const std::string& message) { return {StatusCode::kInvalidArgument, message}; }
Status too_early(const std::string& message) { return {StatusCode::kFailedPrecondition, message}; }

}  // namespace

Result<std::vector<int>> Law::accepted_path(const LawDescriptor& row,
                                            const Accepted& accepted) const {
  std::vector<int> path;
  if (accepted.nodes.has_value()) {
    if (row.prefill) return refuse("a prompt chunk is a chain: give a count");
    int last = -1;
    for (const int node : *accepted.nodes) {
      if (node <= last || node >= row.tokens ||
          (row.parents[node] != last && config_.fault != Fault::kTreeAsChain)) {
        return refuse("accepted nodes must lead from a root from parent to child; " +
                      std::to_string(node) + " does not follow " + std::to_string(last));
      }
      path.push_back(node);
      last = node;
    }
    if (config_.fault == Fault::kKeepRejected) {
      for (std::size_t i = 0; i < path.size(); ++i) path[i] = static_cast<int>(i);
    }
    return path;
  }
  if (accepted.count < 0 || accepted.count > row.tokens) {
    return refuse("required 0 to " + std::to_string(row.tokens) + " accepted tokens, given " +
                  std::to_string(accepted.count));
  }
  if (row.prefill && accepted.count != 0 && accepted.count != row.tokens) {
    return refuse("a prompt chunk is accepted whole or not at all");
  }
  for (int t = 0; t < accepted.count; ++t) {
    if (row.parents[t] != t - 1) return refuse("a tree needs the accepted nodes, not a count");
    path.push_back(t);
  }
  return path;
}

Status Law::commit(const std::vector<Accepted>& accepted) {
  if (phase_ != Phase::kFolded) return too_early("commit closes a forward, once");
  if (accepted.size() != rows_.size()) return refuse("required one entry a row");
  for (std::size_t layer = 0; layer < config_.layers.size(); ++layer) {
    if (!stepped_[layer] || (config_.layers[layer].conv.width > 0 && !convolved_[layer])) {
      return too_early("layer " + std::to_string(layer) + " has not run");
    }
  }
  std::vector<std::vector<int>> paths(rows_.size());
  for (std::size_t index = 0; index < rows_.size(); ++index) {
    if (rows_[index].padding) continue;
    auto path = accepted_path(rows_[index], accepted[index]);
    if (!path.ok()) return path.status();
    paths[index] = std::move(path.value());
  }
  for (std::size_t index = 0; index < rows_.size(); ++index) {
    if (!rows_[index].padding) commit_row(index, paths[index]);
  }
  end_forward();
  return {};
}

void Law::commit_row(std::size_t index, const std::vector<int>& path) {
  LawDescriptor& row = rows_[index];
  Slot& slot = slots_[row.slot];
  const int count = static_cast<int>(path.size());
  if (count == 0) {
    // An unused block of a prefill goes back in end_forward; records of this step are dead.
    poison_free_records(row.slot, slot.committed);
    return;
  }
  const int ring = conv_ring();
  for (std::size_t layer = 0; layer < config_.layers.size(); ++layer) {
    if (config_.layers[layer].conv.width == 0) continue;
    std::vector<std::vector<double>>& inputs = conv_[layer][row.slot];
    for (int i = 0; i < count; ++i) {
      inputs[(slot.conv_head + i) % ring] =
          row.prefill ? chunks_[index][layer][i] : inputs[(slot.conv_head + path[i]) % ring];
    }
  }
  slot.conv_head = (slot.conv_head + count) % ring;
  slot.conv_valid = std::min(slot.conv_valid + count, conv_kept());
  slot.position += count;

  if (row.prefill) {
    for (std::size_t layer = 0; layer < config_.layers.size(); ++layer) {
      checkpoints_[layer][row.write_block] = std::move(prefilled_[index][layer]);
    }
    if (row.write_block != row.read_block) blocks_to_drop_.push_back(row.read_block);
    slot.block = row.write_block;
    slot.zero = false;
    slot.committed = 0;
  } else {
    // No record moves: the accepted places follow the committed ones, the rejected come after.
    const int first = slot.committed;
    std::vector<int> kept;
    std::vector<int> rest;
    for (int t = 0; t < config_.ring() - first; ++t) {
      const bool taken = std::find(path.begin(), path.end(), t) != path.end();
      (taken ? kept : rest).push_back(slot.order[first + t]);
    }
    std::copy(kept.begin(), kept.end(), slot.order.begin() + first);
    std::copy(rest.begin(), rest.end(), slot.order.begin() + first + count);
    slot.committed += count;
  }
  poison_free_records(row.slot, slot.committed);
}

void Law::end_forward() {
  for (const LawDescriptor& row : rows_) {
    // A block that was reserved and not used, by an abort before the fold or a prompt chunk not
    // taken.
    if (!row.padding && slots_[row.slot].block != row.write_block) drop_block(row.write_block);
  }
  for (const int block : blocks_to_drop_) drop_block(block);
  blocks_to_drop_.clear();
  rows_.clear();
  prefilled_.clear();
  chunks_.clear();
  phase_ = Phase::kIdle;
}

Status Law::abort() {
  if (phase_ == Phase::kIdle) return too_early("no forward is running");
  for (const LawDescriptor& row : rows_) {
    if (!row.padding) poison_free_records(row.slot, slots_[row.slot].committed);
  }
  end_forward();
  return {};
}

}  // namespace replayssm::oracle
