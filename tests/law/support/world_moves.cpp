// A world's slots: handing out, forking, moving, checking; see world.hpp.
#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>

#include "oracle/compare.hpp"
#include "oracle/rounding.hpp"
#include "tests/law/support/world_impl.hpp"

namespace replayssm::laws {

World::World(std::uint64_t seed, const WorldOptions& options, WorldCounts* counts)
    : options_(options), counts_(*counts), random_(seed), seed_(seed) {}

void World::fail(const std::string& what) {
  if (problem_.empty()) problem_ = what;
}

void World::expect_ok(const Status& status, const char* call) {
  if (!status.ok()) fail(std::string(call) + ": " + status.to_string());
}

void World::expect_code(const Status& status, StatusCode code, const char* call) {
  ++counts_.refused;
  if (status.code() != code) {
    fail(std::string(call) + ": required " + std::string(status_code_name(code)) + ", got " +
         status.to_string());
  }
}

bool World::plant(Fault fault, double chance) {
  if (options_.fault != fault || fault == Fault::kNone || planted_ || !random_.chance(chance)) {
    return false;
  }
  planted_ = true;
  return true;
}

bool World::make_site(const Case& made) {
  MachineOptions options;
  options.lent = random_.chance(0.6);
  options.caller_threads = random_.chance(0.3);
  options.padding_slot = random_.chance(0.7) ? -1 : random_.integer(-5, -2);
  if (random_.chance(0.1)) options.padding_slot = made.config.slots + 3;
  counts_.lent += options.lent ? 1 : 0;
  Status status;
  Site site;
  site.machine = Machine::create(made, options, random_.bits(), &status);
  expect_ok(status, "create");
  if (site.machine == nullptr) return false;
  // Defaults are filled in by the library; the world plans with what it says.
  site.slots.resize(static_cast<std::size_t>(made.config.slots));
  sites_.push_back(std::move(site));
  return true;
}

std::int64_t World::free_slots(const Site& site) const {
  return std::count_if(site.slots.begin(), site.slots.end(), [](const auto& s) { return !s; });
}

std::int64_t World::unreserved_blocks(const Site& site) const {
  std::set<const int*> blocks;
  std::int64_t reserved = 0;
  for (const auto& slot : site.slots) {
    if (!slot || !blocks.insert(slot->block.get()).second) continue;
    reserved += slot->block.use_count() > 1 ? slot->block.use_count() : 0;
  }
  const std::int64_t all = site.config().blocks > 0 ? site.config().blocks : site.config().slots;
  return all - static_cast<std::int64_t>(blocks.size()) - reserved;
}

std::int64_t World::pick(const Site& site) {
  std::vector<std::int64_t> held;
  for (std::size_t i = 0; i < site.slots.size(); ++i) {
    if (site.slots[i]) held.push_back(static_cast<std::int64_t>(i));
  }
  if (held.empty()) return -1;
  return held[random_.integer(0, static_cast<int>(held.size()) - 1)];
}

void World::acquire(Site& site) {
  const std::uint64_t seed = random_.bits();
  const bool possible = free_slots(site) > 0 && unreserved_blocks(site) > 0;
  std::int64_t slot = -1;
  if (random_.chance(0.3)) {
    slot = random_.integer(0, static_cast<int>(site.slots.size()) - 1);
    const Status status = site.cache().acquire_slot(slot, seed);
    if (site.slots[slot]) {
      return expect_code(status, StatusCode::kFailedPrecondition, "acquire of a taken slot");
    }
    if (!possible) return expect_code(status, StatusCode::kResourceExhausted, "acquire_slot");
    expect_ok(status, "acquire_slot");
  } else {
    const Result<std::int64_t> got = site.cache().acquire(seed);
    if (!possible) return expect_code(got.status(), StatusCode::kResourceExhausted, "acquire");
    expect_ok(got.status(), "acquire");
    if (got.ok()) slot = *got;
  }
  if (!problem_.empty()) return;
  if (site.slots[slot]) return fail("acquire gave a slot that is taken");
  site.slots[slot].emplace(site.machine->made(), seed);
  ++counts_.recycled;
  check_info(site, slot);
}

void World::release(Site& site) {
  const std::int64_t slot = pick(site);
  if (slot < 0) return;
  expect_ok(site.cache().release(slot), "release");
  site.slots[slot].reset();
  expect_code(site.cache().release(slot), StatusCode::kFailedPrecondition,
              "release of a free slot");
}

void World::fork(Site& site) {
  const std::int64_t source = pick(site);
  if (source < 0) return;
  const SlotReference& from = *site.slots[source];
  const auto references = static_cast<std::int64_t>(from.block.use_count());
  const std::int64_t more = references > 1 ? 1 : 2;
  const bool possible = free_slots(site) > 0 && unreserved_blocks(site) >= more;
  const Result<std::int64_t> target = site.cache().fork(source);
  if (!possible) return expect_code(target.status(), StatusCode::kResourceExhausted, "fork");
  expect_ok(target.status(), "fork");
  if (!problem_.empty()) return;
  ++counts_.forks;
  site.slots[*target].emplace(from);
  if (from.committed() > 0 && plant(Fault::kStaleFork, 1.0)) {
    SlotReference stale = from.rewound(1);
    stale.block = from.block;
    site.slots[*target].emplace(std::move(stale));
  }
  check_info(site, source);
  check_info(site, *target);
}

void World::materialize(Site& site) {
  const std::int64_t source = pick(site);
  if (source < 0 || free_slots(site) == 0 || unreserved_blocks(site) < 1) return;
  const SlotReference& from = *site.slots[source];
  const Result<std::int64_t> target = site.cache().acquire();
  expect_ok(target.status(), "acquire");
  if (!problem_.empty()) return;
  const int back = random_.integer(0, from.committed());
  bool convolves = false;
  for (const CaseLayer& layer : site.machine->made().layers) {
    convolves = convolves || layer.conv.width > 0;
  }
  MaterializeItem item;
  item.source = source;
  item.target = *target;
  item.position = from.position - from.committed() - 1;
  expect_code(site.cache().materialize({&item, 1}), StatusCode::kOutOfRange,
              "before the checkpoint");
  item.position = from.position + 1;
  expect_code(site.cache().materialize({&item, 1}), StatusCode::kOutOfRange, "behind the end");
  item.position = from.position - back;
  const Status status = site.cache().materialize({&item, 1});
  if (convolves && back > 0 && !site.config().materialize_history) {
    expect_code(status, StatusCode::kFailedPrecondition, "materialize without history");
    expect_ok(site.cache().release(*target), "release");
    return;
  }
  expect_ok(status, "materialize");
  ++counts_.materialized;
  counts_.rewinds += back > 0 ? 1 : 0;
  site.slots[*target].emplace(from.rewound(back));
  check_info(site, *target);
  check_store(site, *target);
  check_store(site, source);
}

void World::load(Site& site) {
  if (free_slots(site) == 0 || unreserved_blocks(site) < 1) return;
  const std::uint64_t seed = random_.bits();
  const Result<std::int64_t> slot = site.cache().acquire(seed);
  expect_ok(slot.status(), "acquire");
  if (!problem_.empty()) return;
  constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
  const DType dtype = kDTypes[random_.integer(0, 2)];
  const bool conv = random_.chance(0.6);
  Machine::Stored values;
  for (const CaseLayer& layer : site.machine->made().layers) {
    std::vector<double> state = random_.normals(layer.oracle.state_size(), 1.0);
    for (double& value : state) value = oracle::round_to(value, dtype);
    values.state.push_back(std::move(state));
    values.conv.emplace_back();
    for (int j = 0; j + 1 < layer.conv.width; ++j) {
      std::vector<double> input = random_.normals(layer.conv.channels, 1.0);
      for (double& value : input) value = oracle::round_to(value, site.config().activations);
      values.conv.back().push_back(std::move(input));
    }
  }
  const std::int64_t position = random_.chance(0.5) ? random_.integer(0, 100000) : 0;
  expect_ok(site.machine->load(*slot, position, dtype, random_.chance(0.4), conv, values), "load");
  if (!problem_.empty()) return;
  SlotReference fresh(site.machine->made(), seed);
  fresh.load(position, values.state, conv ? &values.conv : nullptr);
  site.slots[*slot].emplace(std::move(fresh));
  ++counts_.loads;
  check_info(site, *slot);
  check_store(site, *slot);
  expect_code(site.machine->load(*slot, position, dtype, false, conv, values),
              StatusCode::kFailedPrecondition, "load into a used slot");
}

void World::transfer(Site& from, Site& to) {
  const std::int64_t source = pick(from);
  if (source < 0) return;
  const Result<std::vector<std::byte>> bytes = from.cache().export_slot(source);
  expect_ok(bytes.status(), "export");
  if (!problem_.empty()) return;
  const bool possible = free_slots(to) > 0 && unreserved_blocks(to) > 0;
  const Result<std::int64_t> target = to.cache().import_slot(*bytes);
  if (!possible) return expect_code(target.status(), StatusCode::kResourceExhausted, "import");
  expect_ok(target.status(), "import");
  if (!problem_.empty()) return;
  ++counts_.imports;
  counts_.moves += &from != &to ? 1 : 0;
  SlotReference copy = *from.slots[source];
  copy.block = std::make_shared<int>(0);
  const bool narrow = !copy.conventional && (to.config().decode == DecodeMode::kConventional ||
                                             from.config().window > to.config().window ||
                                             copy.committed() > to.cache().ring_length());
  if (narrow) {
    counts_.refolds += copy.committed() > 0 ? 1 : 0;
    copy.fold_all();
  }
  copy.conventional = to.config().decode == DecodeMode::kConventional;
  to.slots[*target].emplace(std::move(copy));
  check_info(to, *target);
  check_store(to, *target);
  // Reading leaves no trace: the same bytes again.
  const Result<std::vector<std::byte>> again = from.cache().export_slot(source);
  if (!again.ok() || *again != *bytes) fail("a second export differs");
}

void World::check_store(Site& site, std::int64_t slot) {
  if (!problem_.empty()) return;
  constexpr DType kDTypes[] = {DType::kF32, DType::kF32, DType::kBF16, DType::kF16};
  const DType dtype = kDTypes[random_.integer(0, 3)];
  Machine::Stored stored;
  expect_ok(site.machine->store(slot, dtype, random_.chance(0.4), &stored), "store_state");
  if (!problem_.empty()) return;
  ++counts_.stores;
  const SlotReference& reference = *site.slots[slot];
  for (int layer = 0; layer < static_cast<int>(stored.state.size()); ++layer) {
    const CaseLayer& about = site.machine->made().layers[layer];
    const oracle::State& want = reference.state(layer);
    const std::vector<double>& rows = reference.state_bound(layer);
    std::vector<double> bounds(want.size());
    for (std::size_t i = 0; i < bounds.size(); ++i) {
      const double bound = rows[i / static_cast<std::size_t>(about.shape.key_dim)];
      bounds[i] = bound;
      if (dtype != DType::kF32) {
        bounds[i] += oracle::unit_roundoff(dtype) * (std::abs(want[i]) + bound) +
                     oracle::underflow_error(dtype);
      }
    }
    const std::string where =
        "state of layer " + std::to_string(layer) + " slot " + std::to_string(slot);
    compare(where.c_str(), stored.state[layer], want, bounds, about.shape.key_dim,
            Fault::kStateNudged);
    if (about.conv.width == 0) continue;
    oracle::ConvHistory history = reference.conv_history(layer);
    if (plant(Fault::kConvOfRejected)) history.back()[0] += 1.0;
    if (stored.conv[layer] != history) fail(where + ": the conv history differs");
  }
}

void World::check_info(Site& site, std::int64_t slot) {
  if (!problem_.empty() || options_.fault != Fault::kNone) return;
  const Result<SlotInfo> info = site.cache().info(slot);
  expect_ok(info.status(), "info");
  if (!problem_.empty()) return;
  const SlotReference& want = *site.slots[slot];
  std::ostringstream text;
  const auto same = [&](const char* name, std::int64_t got, std::int64_t wanted) {
    if (got != wanted) text << " " << name << " " << got << " instead of " << wanted;
  };
  same("position", info->position, want.position);
  same("committed", info->committed, want.committed());
  same("zero", info->zero, want.zero);
  same("seed", static_cast<std::int64_t>(info->seed), static_cast<std::int64_t>(want.seed));
  same("references", info->block_references, want.block.use_count());
  same("error", info->error, 0);
  if (!text.str().empty()) fail("slot " + std::to_string(slot) + ":" + text.str());
}

void World::check_torn(Site& site, std::int64_t slot) {
  ++counts_.torn;
  Machine::Stored stored;
  const auto refused = [&](const Status& status, const char* call) {
    expect_code(status, StatusCode::kFailedPrecondition, call);
  };
  refused(site.machine->store(slot, DType::kF32, false, &stored), "store_state of a torn slot");
  refused(site.cache().export_slot(slot).status(), "export of a torn slot");
  if (free_slots(site) > 0) refused(site.cache().fork(slot).status(), "fork of a torn slot");
  Row row;
  row.slot = slot;
  refused(site.machine->begin({row}), "begin with a torn slot");
  expect_ok(site.cache().release(slot), "release of a torn slot");
  site.slots[slot].reset();
}

void World::check_all(Site& site) {
  for (std::size_t slot = 0; slot < site.slots.size(); ++slot) {
    if (!site.slots[slot]) continue;
    check_info(site, static_cast<std::int64_t>(slot));
    check_store(site, static_cast<std::int64_t>(slot));
  }
  if (site.machine->lent() != nullptr) {
    const std::string guards = site.machine->lent()->check_guards();
    if (!guards.empty()) fail(guards);
  }
  if (site.cache().free_slots() != free_slots(site)) fail("free_slots() disagrees");
}

// Whatever nobody may read becomes NaN: rings without records, free slots, free blocks.
void World::poison_unused(Site& site) {
  LentMemory* lent = site.machine->lent();
  if (lent == nullptr) return;
  const std::int64_t blocks = site.config().blocks > 0 ? site.config().blocks : site.config().slots;
  std::vector<bool> used(static_cast<std::size_t>(blocks), false);
  for (std::int64_t slot = 0; slot < site.config().slots; ++slot) {
    const auto& reference = site.slots[slot];
    if (!reference || reference->committed() == 0) {
      for (const TensorRole role :
           {TensorRole::kRingValue, TensorRole::kRingKey, TensorRole::kRingGate,
            TensorRole::kRingBeta, TensorRole::kRingInvNorm, TensorRole::kRingUpdate}) {
        lent->poison(role, slot);
      }
    }
    const bool fresh = reference && reference->zero && reference->position == 0;
    if (!reference || fresh) lent->poison(TensorRole::kConv, slot);
    if (reference && !reference->zero) {
      const Result<SlotInfo> info = site.cache().info(slot);
      if (info.ok()) used[static_cast<std::size_t>(info->block)] = true;
    }
  }
  for (std::int64_t block = 0; block < blocks; ++block) {
    if (!used[static_cast<std::size_t>(block)]) lent->poison(TensorRole::kState, block);
  }
}

std::string World::run() {
  const Case made = random_case(random_, options_.implementation, options_.limits);
  if (!make_site(made)) return made.describe() + ": " + problem_;
  if (random_.chance(0.35)) {
    const std::vector<ImplementationInfo> all = available();
    const auto& info = all[random_.integer(0, static_cast<int>(all.size()) - 1)];
    if (!make_site(sibling_case(random_, made, info))) return problem_;
  }
  for (Site& site : sites_) acquire(site);
  for (int i = 0; i < options_.operations && problem_.empty(); ++i) {
    Site& site = sites_[random_.integer(0, static_cast<int>(sites_.size()) - 1)];
    Site& other = sites_[random_.integer(0, static_cast<int>(sites_.size()) - 1)];
    if (random_.chance(0.4)) poison_unused(site);
    const int kind = random_.integer(0, 99);
    if (kind < 68) {
      forward(site);
    } else if (kind < 76) {
      acquire(site);
    } else if (kind < 79) {
      release(site);
    } else if (kind < 86) {
      fork(site);
    } else if (kind < 90) {
      materialize(site);
    } else if (kind < 93) {
      load(site);
    } else {
      transfer(site, other);
    }
  }
  for (Site& site : sites_) {
    if (problem_.empty()) check_all(site);
  }
  if (problem_.empty()) return {};
  return made.describe() + "\n" + problem_;
}

std::string WorldCounts::text() const {
  std::ostringstream text;
  text << "forwards " << forwards << ", tokens " << tokens << ", comparisons " << outputs
       << ", folds " << folds << " (" << shared_folds << " of shared blocks), trees " << trees
       << " (" << branches << " branches taken), rejected " << rejected << ", accepted none "
       << zero_accepts << "\nprefills " << prefills << ", empty rows " << empty_rows << ", padding "
       << padding << ", forks " << forks << ", materialized " << materialized << " (" << rewinds
       << " back), loads " << loads << ", stores " << stores << ", imports " << imports << " ("
       << moves << " to another cache, " << refolds << " folded)\naborts " << aborts << " ("
       << aborts_after_fold << " after the fold), torn " << torn << ", recycled " << recycled
       << ", released in a forward " << mid_releases << ", refused calls " << refused
       << ", lent memory " << lent << "\nworst error over tolerance " << worst_ratio;
  return text.str();
}

}  // namespace replayssm::laws
