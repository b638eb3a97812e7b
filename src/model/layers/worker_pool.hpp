// The engine's threads: matrix products, attention and the recurrent cache all run on this one
// pool, so that no two pools wait for each other's cores.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "replayssm/parallel.hpp"

namespace replayssm::model {

// Workers wait awake for a moment after a job, since decoding brings the next one within
// microseconds, and then sleep. One job runs at a time, started from one thread, which takes part
// as worker 0.
class WorkerPool {
 public:
  // threads: workers, the caller's thread included; 0 or less: what the machine has.
  explicit WorkerPool(int threads);
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;
  ~WorkerPool();

  [[nodiscard]] int workers() const { return static_cast<int>(threads_.size()) + 1; }

  // body(argument, index, worker) for every index in [0, count); returns when all have returned.
  void run(std::int64_t count, ParallelFor::Body body, void* argument);

  // The same for a callable `function(index, worker)`.
  template <typename Function>
  void for_each(std::int64_t count, Function&& function) {
    auto call = [](void* argument, std::int64_t index, int worker) {
      (*static_cast<std::remove_reference_t<Function>*>(argument))(index, worker);
    };
    run(count, call, &function);
  }

  // This pool as the cache takes it; the pool must outlive its use.
  [[nodiscard]] ParallelFor parallel_for();

 private:
  void work(int worker);
  void drain(int worker);

  std::vector<std::thread> threads_;

  // A job. Written by the caller before `generation_` moves on, read by workers after they saw it
  // move.
  ParallelFor::Body body_ = nullptr;
  void* argument_ = nullptr;
  std::int64_t count_ = 0;
  std::atomic<std::int64_t> next_{0};

  std::atomic<std::uint64_t> generation_{0};
  std::atomic<int> busy_{0};  // workers that have not finished the current job
  std::atomic<bool> stop_{false};
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace replayssm::model
