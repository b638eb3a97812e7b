// A world's forwards; see world.hpp.
#include "tests/law/support/world.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <sstream>

#include "oracle/compare.hpp"
#include "tests/law/support/world_impl.hpp"

namespace replayssm::laws {

std::string run_world(std::uint64_t seed, const WorldOptions& options, WorldCounts* counts,
                      bool* planted) {
  World world(seed, options, counts);
  std::string problem = world.run();
  if (planted != nullptr) *planted = world.planted();
  return problem;
}

Row World::plan_row(Site& site, std::int64_t slot, std::int64_t* room) {
  const CacheConfig& config = site.config();
  Row row;
  row.slot = slot;
  row.prefill = random_.chance(0.12);
  int most = config.max_step_tokens;
  if (row.prefill) most = random_.chance(0.1) ? 40 : 8;
  most = static_cast<int>(std::min<std::int64_t>(most, *room));
  const int tokens = random_.chance(0.35) ? most : random_.integer(0, most);
  *room -= tokens;
  if (slot == site.machine->padding_slot()) {
    row.padding_tokens = tokens;
    row.prefill = false;
    if (tokens > config.max_step_tokens) row.padding_tokens = config.max_step_tokens;
    return row;
  }
  for (int i = 0; i < tokens; ++i)
    row.tokens.push_back(random_token(random_, site.machine->made()));
  return row;
}

World::Forward World::plan_forward(Site& site) {
  const CacheConfig& config = site.config();
  Forward forward;
  std::vector<std::int64_t> slots;
  for (std::int64_t slot = 0; slot < config.slots; ++slot) {
    if (site.slots[slot] && random_.chance(0.75)) slots.push_back(slot);
  }
  while (random_.chance(0.2)) slots.push_back(site.machine->padding_slot());
  for (std::size_t i = slots.size(); i > 1; --i) {
    std::swap(slots[i - 1], slots[random_.integer(0, static_cast<int>(i) - 1)]);
  }
  if (static_cast<std::int64_t>(slots.size()) > config.max_rows) {
    slots.resize(static_cast<std::size_t>(config.max_rows));
  }
  std::int64_t room = config.max_tokens;
  const bool trees = config.max_step_tokens > 1 && random_.chance(0.4);
  for (const std::int64_t slot : slots) {
    Row row = plan_row(site, slot, &room);
    const bool padding = slot == site.machine->padding_slot();
    if (trees && !row.prefill && !padding && row.count() > 0) {
      row.parents = tree_parents(random_, row.count());
      ++counts_.trees;
    }
    counts_.padding += padding ? 1 : 0;
    counts_.prefills += row.prefill && row.count() > 0 ? 1 : 0;
    counts_.empty_rows += !padding && row.count() == 0 ? 1 : 0;
    counts_.tokens += row.count();
    forward.rows.push_back(std::move(row));
  }
  forward.released.assign(forward.rows.size(), false);
  return forward;
}

void World::fold(Site& site, const Forward& forward) {
  expect_ok(site.machine->fold(), "fold");
  for (std::size_t i = 0; i < forward.rows.size(); ++i) {
    const Row& row = forward.rows[i];
    if (row.slot == site.machine->padding_slot() || row.prefill) continue;
    SlotReference& slot = *site.slots[row.slot];
    if (!slot.folds(site.config())) continue;
    ++counts_.folds;
    counts_.shared_folds += slot.block.use_count() > 1 ? 1 : 0;
    slot.fold(site.config().window);
  }
}

void World::compare(const char* what, const std::vector<double>& got,
                    const std::vector<double>& want, const std::vector<double>& bounds, int columns,
                    Fault nudge) {
  std::vector<double> given = got;
  const auto at = static_cast<std::size_t>(random_.integer(0, static_cast<int>(got.size()) - 1));
  const double off =
      4.0 * bounds[bounds.size() == got.size() ? at : at / static_cast<std::size_t>(columns)];
  if (off > 0.0 && plant(nudge)) given[at] += got[at] < want[at] ? -off : off;
  const oracle::Comparison found = oracle::compare(what, given, want, columns, bounds);
  counts_.worst_ratio = std::max(counts_.worst_ratio, found.worst_ratio);
  ++counts_.outputs;
  if (!found) return fail(found.text);
  if (nudge != Fault::kStateNudged && !random_.chance(0.02)) return;
  // The twin: the same comparison must see one element that is off.
  given[at] = want[at] + (off > 0.0 ? off : 1.0);
  if (oracle::compare(what, given, want, columns, bounds)) fail(std::string(what) + ": blind");
}

void World::compare_layer(Site& site, const Forward& forward, int layer) {
  const CaseLayer& about = site.machine->made().layers[layer];
  for (std::size_t i = 0; i < forward.rows.size(); ++i) {
    const Row& row = forward.rows[i];
    if (row.slot == site.machine->padding_slot() || row.count() == 0 || forward.released[i])
      continue;
    const SlotReference* slot = &*site.slots[row.slot];
    const Row& other = forward.rows[i == 0 ? forward.rows.size() - 1 : 0];
    if (other.slot != site.machine->padding_slot() &&
        site.slots[other.slot]->position != slot->position && plant(Fault::kOtherSlot)) {
      slot = &*site.slots[other.slot];
    }
    std::vector<int> parents = row.parents;
    bool chain = true;
    for (int t = 0; t < static_cast<int>(parents.size()); ++t) chain = chain && parents[t] == t - 1;
    if (!chain && plant(Fault::kTreeAsChain)) parents.clear();
    const SlotReference::Expected expected =
        row.prefill ? slot->prefill(layer, row.tokens) : slot->step(layer, row.tokens, parents);
    for (int t = 0; t < row.count() && problem_.empty(); ++t) {
      const std::string where = "layer " + std::to_string(layer) + " row " + std::to_string(i) +
                                " slot " + std::to_string(row.slot) + " token " +
                                std::to_string(t) + (row.prefill ? " prefill" : " step");
      compare((where + " out").c_str(), site.machine->output(layer, i, t), expected.values[t],
              expected.bounds[t], about.shape.value_dim, Fault::kOutputNudged);
      if (about.conv.width == 0) continue;
      compare((where + " conv").c_str(), site.machine->conv_output(layer, i, t),
              expected.conv_values[t], expected.conv_bounds[t], about.conv.channels,
              Fault::kConvNudged);
    }
  }
}

void World::run_layers(Site& site, Forward& forward, int layers, const std::vector<int>& order) {
  for (int i = 0; i < layers && problem_.empty(); ++i) {
    std::string written;
    expect_ok(site.machine->run_layer(order[i], &written), "layer call");
    if (!written.empty()) return fail(written);
    forward.touched = true;
    if (problem_.empty()) compare_layer(site, forward, order[i]);
    if (random_.chance(0.03)) release_in_forward(site, forward);
  }
}

void World::release_in_forward(Site& site, Forward& forward) {
  if (forward.rows.empty()) return;
  const auto i =
      static_cast<std::size_t>(random_.integer(0, static_cast<int>(forward.rows.size()) - 1));
  const std::int64_t slot = forward.rows[i].slot;
  if (slot == site.machine->padding_slot() || forward.released[i]) return;
  expect_ok(site.cache().release(slot), "release in a forward");
  forward.released[i] = true;
  ++counts_.mid_releases;
  expect_code(site.cache().release(slot), StatusCode::kFailedPrecondition, "release twice");
  expect_code(site.cache().acquire_slot(slot), StatusCode::kFailedPrecondition,
              "acquire of a slot that is still in a forward");
}

void World::end_released(Site& site, const Forward& forward) {
  for (std::size_t i = 0; i < forward.rows.size(); ++i) {
    if (forward.released[i]) site.slots[forward.rows[i].slot].reset();
  }
}

Keep World::choose_keep(Site& site, const Row& row) {
  Keep keep;
  keep.count = row.count();
  if (row.prefill || row.slot == site.machine->padding_slot()) return keep;
  if (!row.parents.empty()) {
    keep.nodes = tree_path(random_, row.parents, 0.2);
    keep.count = static_cast<int>(keep.nodes.size());
    for (int i = 0; i < keep.count; ++i) counts_.branches += keep.nodes[i] != i ? 1 : 0;
  } else if (!random_.chance(0.5)) {
    keep.count = random_.integer(0, row.count());
  }
  const SlotReference& slot = *site.slots[row.slot];
  const bool overwritten = slot.conventional && row.count() == site.config().max_step_tokens &&
                           !slot.zero && slot.block.use_count() == 1;
  if (keep.count == 0 && row.count() > 0 && overwritten) {
    keep.count = 1;  // conventional decoding cannot take all tokens of a full step back
    keep.nodes.clear();
    if (!row.parents.empty()) keep.nodes = {0};
  }
  return keep;
}

void World::finish(Site& site, Forward& forward) {
  std::vector<Keep> keep;
  for (const Row& row : forward.rows) keep.push_back(choose_keep(site, row));
  expect_ok(site.machine->commit(keep), "commit");
  if (!problem_.empty()) return;
  expect_code(site.machine->commit(keep), StatusCode::kFailedPrecondition, "commit twice");
  for (std::size_t i = 0; i < forward.rows.size(); ++i) {
    const Row& row = forward.rows[i];
    if (row.slot == site.machine->padding_slot() || forward.released[i]) continue;
    SlotReference& slot = *site.slots[row.slot];
    if (row.prefill) {
      slot.commit_prefill(row.tokens);
      continue;
    }
    std::vector<ModelToken> accepted;
    for (int j = 0; j < keep[i].count; ++j) {
      accepted.push_back(row.tokens[keep[i].nodes.empty() ? j : keep[i].nodes[j]]);
    }
    counts_.rejected += row.count() - keep[i].count;
    counts_.zero_accepts += row.count() > 0 && keep[i].count == 0 ? 1 : 0;
    if (accepted.size() > 1 && plant(Fault::kTokensSwapped)) std::swap(accepted[0], accepted[1]);
    if (keep[i].count > 0 && keep[i].count < row.count() && plant(Fault::kRejectedKept)) {
      accepted.back() =
          row.tokens[row.count() - 1] != accepted.back() ? row.tokens.back() : row.tokens[0];
    }
    if (!accepted.empty() && plant(Fault::kTokenLost)) accepted.pop_back();
    slot.commit_step(accepted);
  }
  end_released(site, forward);
}

// The forward is given up: nothing of it may show, except that folds that ran stay folded, and that
// rows whose state was being written in place may be torn.
void World::forget(Site& site, Forward& forward, bool folded) {
  ++counts_.aborts;
  counts_.aborts_after_fold += folded ? 1 : 0;
  if (random_.chance(0.5)) {
    expect_ok(site.cache().abort(), "abort");
    expect_ok(site.cache().abort(), "abort of nothing");
  } else {
    expect_ok(site.machine->begin({}), "begin over an open forward");
    expect_ok(site.machine->fold(), "fold of no rows");
    expect_ok(site.machine->commit({}), "commit of no rows");
  }
  end_released(site, forward);
  for (const Row& row : forward.rows) {
    if (row.slot == site.machine->padding_slot() || !site.slots[row.slot]) continue;
    const Result<SlotInfo> info = site.cache().info(row.slot);
    expect_ok(info.status(), "info");
    if (!problem_.empty()) return;
    if ((info->error & kSlotTorn) != 0) {
      const bool in_place = row.prefill || site.slots[row.slot]->conventional;
      if (!in_place || !forward.touched || row.count() == 0) return fail("torn without a reason");
      check_torn(site, row.slot);
    } else if (!row.prefill && row.count() > 0 && row.parents.empty() &&
               plant(Fault::kAbortLeavesTrace)) {
      site.slots[row.slot]->commit_step(row.tokens);
    }
  }
}

void World::forward(Site& site) {
  Forward forward = plan_forward(site);
  ++counts_.forwards;
  expect_ok(site.machine->begin(forward.rows), "begin");
  if (!problem_.empty()) return;
  const int layers = static_cast<int>(site.machine->made().layers.size());
  std::vector<int> order(layers);
  std::iota(order.begin(), order.end(), 0);
  if (random_.chance(0.3)) std::reverse(order.begin(), order.end());
  const int abort_at = random_.chance(0.12) ? random_.integer(-1, layers) : layers + 1;
  if (random_.chance(0.03)) release_in_forward(site, forward);
  if (abort_at < 0) return forget(site, forward, false);
  fold(site, forward);
  if (!problem_.empty()) return;
  run_layers(site, forward, std::min(abort_at, layers), order);
  if (!problem_.empty()) return;
  if (abort_at <= layers) return forget(site, forward, true);
  if (random_.chance(0.05)) release_in_forward(site, forward);
  finish(site, forward);
  for (const Row& row : forward.rows) {
    if (row.slot == site.machine->padding_slot() || !site.slots[row.slot]) continue;
    check_info(site, row.slot);
    if (random_.chance(0.25)) check_store(site, row.slot);
  }
}

}  // namespace replayssm::laws
