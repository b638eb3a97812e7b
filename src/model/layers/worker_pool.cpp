// See worker_pool.hpp.
#include "model/layers/worker_pool.hpp"

#include <algorithm>
#include <exception>

namespace replayssm::model {
namespace {

// Roughly 50 us awake: longer than the gap between two products of a decode step, short enough not
// to be seen in the load of an idle machine.
constexpr int kSpins = 2000;

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

WorkerPool::WorkerPool(int threads) {
  if (threads <= 0) threads = static_cast<int>(std::thread::hardware_concurrency());
  threads = std::clamp(threads, 1, 1024);
  threads_.reserve(static_cast<std::size_t>(threads - 1));
  for (int worker = 1; worker < threads; ++worker) {
    try {
      threads_.emplace_back([this, worker] { work(worker); });
    } catch (const std::exception&) {
      break;  // the machine gives no more; the loops run on those it gave
    }
  }
}

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_.store(true);
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::drain(int worker) {
  for (;;) {
    const std::int64_t index = next_.fetch_add(1, std::memory_order_relaxed);
    if (index >= count_) return;
    body_(argument_, index, worker);
  }
}

void WorkerPool::run(std::int64_t count, ParallelFor::Body body, void* argument) {
  if (count <= 0) return;
  if (count == 1 || threads_.empty()) {
    for (std::int64_t index = 0; index < count; ++index) body(argument, index, 0);
    return;
  }
  body_ = body;
  argument_ = argument;
  count_ = count;
  next_.store(0, std::memory_order_relaxed);
  busy_.store(static_cast<int>(threads_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1);  // sequentially consistent: orders with sleepers_ below
  if (sleepers_.load() > 0) {
    // The lock makes sure that a worker between its last look and its wait is not missed.
    { const std::lock_guard lock(mutex_); }
    wake_.notify_all();
  }
  drain(0);
  int spins = 0;
  while (busy_.load(std::memory_order_acquire) != 0) {
    if (++spins < kSpins) {
      pause_cpu();
    } else {
      std::this_thread::yield();
    }
  }
}

void WorkerPool::work(int worker) {
  std::uint64_t seen = 0;
  for (;;) {
    int spins = 0;
    while (generation_.load(std::memory_order_acquire) == seen && !stop_.load()) {
      if (++spins < kSpins) {
        pause_cpu();
        continue;
      }
      std::unique_lock lock(mutex_);
      sleepers_.fetch_add(1);
      wake_.wait(lock, [&] { return generation_.load() != seen || stop_.load(); });
      sleepers_.fetch_sub(1);
    }
    if (stop_.load()) return;
    ++seen;
    drain(worker);
    busy_.fetch_sub(1, std::memory_order_release);
  }
}

ParallelFor WorkerPool::parallel_for() {
  ParallelFor parallel;
  parallel.run = [](void* context, std::int64_t count, ParallelFor::Body body, void* argument) {
    static_cast<WorkerPool*>(context)->run(count, body, argument);
  };
  parallel.context = this;
  parallel.workers = workers();
  return parallel;
}

}  // namespace replayssm::model
