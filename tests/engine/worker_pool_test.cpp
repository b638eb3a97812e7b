// The engine's threads: every index once, no worker twice at a time, thousands of jobs with sleeps
// between.
#include "model/layers/worker_pool.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "model/layers/token_loop.hpp"

namespace replayssm::model {
namespace {

TEST(WorkerPool, EveryIndexOnce) {
  for (const int threads : {1, 2, 5}) {
    WorkerPool pool(threads);
    EXPECT_EQ(pool.workers(), threads);
    for (const std::int64_t count : {0, 1, 2, 3, 100, 1000}) {
      std::vector<int> seen(static_cast<std::size_t>(count), 0);
      std::vector<std::atomic<int>> inside(static_cast<std::size_t>(threads));
      pool.for_each(count, [&](std::int64_t index, int worker) {
        ASSERT_TRUE(worker >= 0 && worker < threads);
        EXPECT_EQ(inside[static_cast<std::size_t>(worker)].fetch_add(1), 0);
        ++seen[static_cast<std::size_t>(index)];
        inside[static_cast<std::size_t>(worker)].fetch_sub(1);
      });
      for (const int times : seen) EXPECT_EQ(times, 1);
    }
  }
}

TEST(WorkerPool, JobsFollowEachOtherAwakeOrAsleep) {
  WorkerPool pool(3);
  std::int64_t expected = 0;
  std::vector<std::int64_t> sums(3, 0);
  for (int job = 0; job < 3000; ++job) {
    const std::int64_t count = job % 7;
    pool.for_each(count, [&](std::int64_t index, int worker) {
      sums[static_cast<std::size_t>(worker)] += index + job;
    });
    for (std::int64_t index = 0; index < count; ++index) expected += index + job;
    if (job % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_EQ(sums[0] + sums[1] + sums[2], expected);
}

TEST(WorkerPool, TokensAreSharedOutInPiecesWorthTheWaking) {
  WorkerPool pool(3);
  const auto caller = std::this_thread::get_id();
  for (const std::int64_t numbers :
       {std::int64_t{0}, std::int64_t{1}, std::int64_t{100}, kPieceNumbers, 3 * kPieceNumbers}) {
    for (const std::int64_t tokens : {0, 1, 2, 163, 164, 1000}) {
      std::vector<int> seen(static_cast<std::size_t>(tokens), 0);
      std::atomic<int> pieces{0};
      for_tokens(pool, tokens, numbers, [&](std::int64_t first, std::int64_t count, int) {
        ++pieces;
        for (std::int64_t t = first; t < first + count; ++t) ++seen[static_cast<std::size_t>(t)];
        if (first + count < tokens) {
          EXPECT_GT((count + 1) * numbers, kPieceNumbers);
        }
        if (count == tokens) {
          EXPECT_EQ(std::this_thread::get_id(), caller);
        }
      });
      for (const int times : seen) EXPECT_EQ(times, 1);
      if (tokens * numbers > 2 * kPieceNumbers && tokens > 1) {
        EXPECT_GT(pieces.load(), 1);
      }
    }
  }
}

TEST(WorkerPool, ServesTheCachesInterface) {
  WorkerPool pool(2);
  const ParallelFor parallel = pool.parallel_for();
  EXPECT_EQ(parallel.workers, 2);
  std::atomic<std::int64_t> sum{0};
  parallel.run(
      parallel.context, 100,
      [](void* argument, std::int64_t index, int) {
        static_cast<std::atomic<std::int64_t>*>(argument)->fetch_add(index);
      },
      &sum);
  EXPECT_EQ(sum.load(), 4950);
}

}  // namespace
}  // namespace replayssm::model
