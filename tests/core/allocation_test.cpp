// No allocation in a forward, bytes() is what is allocated, and one that fails leaves nothing
// behind: operator new is counted.
#include <new>

#include "core/text.hpp"
#include "tests/core/counted_new.hpp"
#include "tests/core/small_cache.hpp"

namespace replayssm::laws {
namespace {

class CoreMemory : public ::testing::TestWithParam<std::string> {};

TEST_P(CoreMemory, AForwardAllocatesNothing) {
  SmallCache small(GetParam());
  Case made = small.made;
  made.config.threads = 2;
  auto machine = make_machine(made, false, false, 5);
  ASSERT_TRUE(machine);
  Cache& cache = machine->cache();
  for (int slot = 0; slot < 3; ++slot) ASSERT_TRUE(cache.acquire().ok());
  const std::vector<std::int64_t> slots = {0, -1, 1, 2};
  const std::vector<std::int32_t> tokens = {3, 1, 2, 5};
  const std::vector<std::int32_t> parents = {-1, 0, 0, -1, -1, -1, -1, -1, -1, -1, -1};
  const std::vector<std::uint8_t> prefill = {0, 0, 0, 1};
  const std::vector<std::int32_t> accept = {2, 0, 1, 5};
  const std::vector<std::int32_t> nodes = {0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  Rows rows;
  rows.count = 4;
  rows.slots = slots.data();
  rows.tokens = tokens.data();
  rows.parents = parents.data();
  rows.prefill = prefill.data();
  Accepted accepted;
  accepted.count = 4;
  accepted.tokens = accept.data();
  accepted.nodes = nodes.data();
  bool ok = true;
  const std::int64_t before = allocations.load();
  for (int i = 0; i < 12; ++i) {  // folds happen on the way
    ok = ok && cache.begin(rows).ok() && cache.fold().ok();
    for (auto& t : small.tensors) {
      if (t->conv.in.present()) ok = ok && cache.conv(t->conv).ok();
      ok = ok && cache.step(t->inputs).ok() && cache.prefill(t->inputs).ok();
    }
    ok = ok && cache.commit(accepted).ok();
    // A forward that is forgotten: begun over, then aborted.
    ok = ok && cache.begin(rows).ok() && cache.begin(rows).ok() && cache.fold().ok() &&
         cache.abort().ok();
  }
  const std::int64_t during = allocations.load() - before;
  EXPECT_TRUE(ok);
  EXPECT_EQ(during, 0);
  EXPECT_EQ(cache.info(0)->position, 24);
  // The counter works: a refusal may allocate its message.
  const std::int64_t then = allocations.load();
  EXPECT_FALSE(cache.fold().ok());
  EXPECT_GT(allocations.load(), then);
}

// Fails each allocation of `run` in turn, until none is left to fail, and gives the outcomes to
// `check`.
template <typename Run, typename Check>
void fail_each_allocation(Run run, Check check) {
  for (std::int64_t nth = 1;; ++nth) {
    const std::int64_t before = unreturned.load();
    failing = allocations.load() + nth;
    {
      const auto outcome = run();
      const bool failed = allocations.load() >= failing.load();
      failing = 0;
      if (!failed) return;
      check(outcome, nth);
    }
    ASSERT_EQ(unreturned.load(), before)
        << "allocation " << nth << " failed and something was leaked";
  }
}

TEST_P(CoreMemory, ACacheThatGetsNoMemoryLeaksNone) {
  const SmallCache small(GetParam());
  ASSERT_TRUE(small.machine);
  CacheConfig config = small.machine->cache().config();
  config.memory.clear();
  config.threads = 1;
  ASSERT_TRUE(Cache::create(config).ok());  // what lives as long as the program is there now
  fail_each_allocation([&config] { return Cache::create(config); },
                       [](const Result<Cache>& cache, std::int64_t nth) {
                         EXPECT_EQ(cache.status().code(), StatusCode::kResourceExhausted) << nth;
                       });
}

TEST(CoreText, IsWholeOrThrows) {
  const std::string part(200, 'a');
  const auto run = [&part]() -> std::string {
    try {
      return concat(part, 7, part, part);
    } catch (const std::bad_alloc&) {
      return {};
    }
  };
  fail_each_allocation(
      run, [](const std::string& text, std::int64_t nth) { EXPECT_EQ(text, "") << nth; });
}

TEST_P(CoreMemory, BytesAreWhatIsAllocated) {
  const ImplementationInfo info = implementation_named(GetParam());
  Random random(21);
  for (int i = 0; i < 60; ++i) {
    const Case made = random_case(random, info, {});
    SCOPED_TRACE(made.describe());
    auto weights = make_machine(made, false, false, 5);  // for its weights
    CacheConfig config = weights->cache().config();
    config.memory.clear();
    const std::int64_t before = aligned_bytes.load();
    const Result<Cache> cache = Cache::create(config);
    const std::int64_t during = aligned_bytes.load() - before;
    ASSERT_TRUE(cache.ok());
    const CacheBytes bytes = cache->bytes();
    if (info.device == "cpu") {
      EXPECT_EQ(bytes.total(), during);
    }

    const Result<std::vector<TensorSpec>> specs = cache_tensors(config);
    const Result<CacheBytes> counted_bytes = cache_bytes(config);
    ASSERT_TRUE(specs.ok() && counted_bytes.ok());
    EXPECT_EQ(counted_bytes->total(), bytes.total());
    std::int64_t state = 0;
    std::int64_t rings = 0;
    std::int64_t conv = 0;
    std::int64_t control = 0;
    for (const TensorSpec& spec : *specs) {
      const std::int64_t all =
          spec.count * ((spec.bytes + spec.alignment - 1) / spec.alignment * spec.alignment);
      EXPECT_GT(all, 0);
      if (spec.role == TensorRole::kState) {
        state += all;
      } else if (spec.role == TensorRole::kConv) {
        conv += all;
      } else if (spec.role == TensorRole::kControl) {
        control += all;
      } else {
        rings += all;
      }
    }
    EXPECT_EQ(bytes.state, state);
    EXPECT_EQ(bytes.rings, rings);
    EXPECT_EQ(bytes.conv, conv);
    EXPECT_EQ(bytes.control, control);
    EXPECT_GT(bytes.scratch, 0);
    if (config.decode == DecodeMode::kReplay) {
      EXPECT_GT(bytes.rings, 0);
    } else {
      EXPECT_EQ(bytes.rings, 0);
    }
    // The state by the formula of the specification: V K floats a head, a block each.
    std::int64_t want = 0;
    const std::int64_t blocks = config.blocks > 0 ? config.blocks : config.slots;
    const bool replay = config.decode == DecodeMode::kReplay;
    for (const LayerShape& layer : config.layers) {
      want += blocks * (replay ? 1 : config.max_step_tokens) * layer.heads * layer.value_dim *
              layer.key_dim * 4;
    }
    EXPECT_EQ(bytes.state, want);
  }
}

INSTANTIATE_TEST_SUITE_P(All, CoreMemory, ::testing::ValuesIn(host_names()), law_name);

}  // namespace
}  // namespace replayssm::laws
