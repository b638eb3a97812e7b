// The library's own threads.
#include "backend/cpu/thread_pool.hpp"

#include <algorithm>
#include <exception>

namespace replayssm::cpu {
namespace {

// Polls of the generation counter before a worker sleeps: some tens of microseconds, about a
// layer's gap.
constexpr int kSpins = 4000;

}  // namespace

ThreadPool::ThreadPool(int threads) {
  const int extra = std::max(threads, 1) - 1;
  threads_.reserve(static_cast<std::size_t>(extra));
  for (int i = 0; i < extra; ++i) {
    try {
      threads_.emplace_back([this, i] { work(i + 1); });
    } catch (const std::exception&) {
      break;  // the machine gives no more; the loop runs on those it gave
    }
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_.store(true);
    generation_.fetch_add(1);
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(std::int64_t count, ParallelFor::Body body, void* argument) {
  if (threads_.empty() || count <= 1) {
    for (std::int64_t i = 0; i < count; ++i) body(argument, i, 0);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    count_ = count;
    body_ = body;
    argument_ = argument;
    next_.store(0);
    busy_.store(static_cast<int>(threads_.size()));
    generation_.fetch_add(1);
  }
  wake_.notify_all();
  drain(0);
  // The last worker out has finished its last index; until then the loop's state must stay.
  while (busy_.load() != 0) std::this_thread::yield();
}

void ThreadPool::drain(int worker) {
  for (std::int64_t i = next_.fetch_add(1); i < count_; i = next_.fetch_add(1)) {
    body_(argument_, i, worker);
  }
}

void ThreadPool::work(int worker) {
  std::uint64_t seen = 0;
  while (true) {
    for (int spin = 0; spin < kSpins && generation_.load() == seen; ++spin) {
      if (spin % 64 == 63) std::this_thread::yield();
    }
    if (generation_.load() == seen) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return generation_.load() != seen; });
    }
    seen = generation_.load();
    if (stop_.load()) return;
    drain(worker);
    busy_.fetch_sub(1);
  }
}

ParallelFor ThreadPool::parallel_for() {
  ParallelFor loop;
  loop.context = this;
  loop.workers = workers();
  loop.run = [](void* context, std::int64_t count, ParallelFor::Body body, void* argument) {
    static_cast<ThreadPool*>(context)->run(count, body, argument);
  };
  return loop;
}

}  // namespace replayssm::cpu
