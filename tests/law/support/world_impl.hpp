// The inside of world.hpp, shared by world.cpp (forwards) and world_moves.cpp (everything else).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/law/support/machine.hpp"
#include "tests/law/support/reference.hpp"
#include "tests/law/support/world.hpp"

namespace replayssm::laws {

class World {
 public:
  World(std::uint64_t seed, const WorldOptions& options, WorldCounts* counts);
  std::string run();
  [[nodiscard]] bool planted() const { return planted_; }

 private:
  // A cache and what its slots must hold; empty: the slot is free.
  struct Site {
    std::unique_ptr<Machine> machine;
    std::vector<std::optional<SlotReference>> slots;
    [[nodiscard]] const CacheConfig& config() const { return machine->made().config; }
    [[nodiscard]] Cache& cache() const { return machine->cache(); }
  };
  struct Forward {
    std::vector<Row> rows;
    std::vector<bool> released;  // [row] in the middle of it
    bool touched = false;        // a layer call has run
  };

  // --- world.cpp
  void forward(Site& site);
  [[nodiscard]] Forward plan_forward(Site& site);
  [[nodiscard]] Row plan_row(Site& site, std::int64_t slot, std::int64_t* room);
  void fold(Site& site, const Forward& forward);
  void run_layers(Site& site, Forward& forward, int layers, const std::vector<int>& order);
  void compare_layer(Site& site, const Forward& forward, int layer);
  void compare(const char* what, const std::vector<double>& got, const std::vector<double>& want,
               const std::vector<double>& bounds, int columns, Fault nudge);
  void finish(Site& site, Forward& forward);
  [[nodiscard]] Keep choose_keep(Site& site, const Row& row);
  void forget(Site& site, Forward& forward, bool folded);
  void release_in_forward(Site& site, Forward& forward);
  void end_released(Site& site, const Forward& forward);

  // --- world_moves.cpp
  bool make_site(const Case& made);
  void acquire(Site& site);
  void release(Site& site);
  void fork(Site& site);
  void materialize(Site& site);
  void load(Site& site);
  void transfer(Site& from, Site& to);
  void check_store(Site& site, std::int64_t slot);
  void check_info(Site& site, std::int64_t slot);
  void check_all(Site& site);
  void poison_unused(Site& site);
  void check_torn(Site& site, std::int64_t slot);
  [[nodiscard]] std::int64_t free_slots(const Site& site) const;
  [[nodiscard]] std::int64_t unreserved_blocks(const Site& site) const;
  // A held slot, or -1.
  [[nodiscard]] std::int64_t pick(const Site& site);

  void fail(const std::string& what);
  void expect_ok(const Status& status, const char* call);
  void expect_code(const Status& status, StatusCode code, const char* call);
  // Once, at a random opportunity.
  bool plant(Fault fault, double chance = 0.3);

  WorldOptions options_;
  WorldCounts& counts_;
  Random random_;
  std::uint64_t seed_;
  std::vector<Site> sites_;
  std::string problem_;
  bool planted_ = false;
};

}  // namespace replayssm::laws
