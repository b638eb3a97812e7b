// The library's own threads. Decoding has a barrier at every layer, so workers spin for a moment
// before they sleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "replayssm/parallel.hpp"

namespace replayssm::cpu {

class ThreadPool {
 public:
  // `threads` workers in all, the calling thread among them; at least 1, and fewer where the
  // machine gives no more.
  explicit ThreadPool(int threads);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  // Calls body(argument, index, worker) for every index below count and returns when all have
  // returned.
  void run(std::int64_t count, ParallelFor::Body body, void* argument);
  [[nodiscard]] int workers() const { return static_cast<int>(threads_.size()) + 1; }
  // This pool as the interface's loop.
  [[nodiscard]] ParallelFor parallel_for();

 private:
  void work(int worker);
  void drain(int worker);

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<std::uint64_t> generation_{0};  // counts loops; a change wakes the workers
  std::atomic<std::int64_t> next_{0};
  std::atomic<int> busy_{0};
  std::atomic<bool> stop_{false};
  std::int64_t count_ = 0;
  ParallelFor::Body body_ = nullptr;
  void* argument_ = nullptr;
};

}  // namespace replayssm::cpu
