// The error word of a slot: written by what makes a state that is not finite, read one by one and
// all at once, taken back bit by bit, carried along by materialize and fork.
#include <limits>

#include "tests/core/small_cache.hpp"

namespace replayssm::laws {
namespace {

class CoreErrors : public ::testing::TestWithParam<std::string> {
 protected:
  // A prompt of one token with an infinite input into the fresh slot 2.
  static void spoil(SmallCache& small) {
    ASSERT_TRUE(small.open_prompt(2, 1).ok());
    *static_cast<float*>(small.tensors[0]->inputs.value.data) =
        std::numeric_limits<float>::infinity();
    ASSERT_TRUE(small.run_layers().ok());
    Accepted accepted;
    accepted.count = 1;
    ASSERT_TRUE(small.cache().commit(accepted).ok());
  }
};

TEST_P(CoreErrors, ManySlotsAtOnce) {
  SmallCache small(GetParam());
  spoil(small);
  Cache& cache = small.cache();
  small.remember();
  const std::vector<std::int64_t> slots = {2, 0, 1, 0};
  const Result<std::vector<SlotInfo>> all = cache.info(slots);
  ASSERT_TRUE(all.ok()) << all.status().to_string();
  ASSERT_EQ(all->size(), slots.size());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Result<SlotInfo> one = cache.info(slots[i]);
    ASSERT_TRUE(one.ok());
    EXPECT_EQ((*all)[i].position, one->position);
    EXPECT_EQ((*all)[i].committed, one->committed);
    EXPECT_EQ((*all)[i].block, one->block);
    EXPECT_EQ((*all)[i].block_references, one->block_references);
    EXPECT_EQ((*all)[i].zero, one->zero);
    EXPECT_EQ((*all)[i].seed, one->seed);
    EXPECT_EQ((*all)[i].error, one->error);
  }
  EXPECT_EQ((*all)[0].error, std::uint32_t{kSlotNonFinite});
  EXPECT_EQ((*all)[1].error, 0U);
  EXPECT_EQ(cache.info(std::span<const std::int64_t>())->size(), 0U);
  const std::vector<std::int64_t> wrong = {0, 3};
  small.expect_refused(cache.info(wrong).status(), StatusCode::kFailedPrecondition,
                       {"slot 3", "not acquired"});
  const std::vector<std::int64_t> far = {0, 4};
  small.expect_refused(cache.info(far).status(), StatusCode::kOutOfRange, {"0 to 3", "4"});
}

TEST_P(CoreErrors, BitsAreTakenBack) {
  SmallCache small(GetParam());
  spoil(small);
  Cache& cache = small.cache();
  small.remember();
  for (const std::uint32_t bits : {std::uint32_t{kSlotTorn}, ~0U, 8U}) {
    small.expect_refused(cache.clear_errors(2, bits), StatusCode::kInvalidArgument,
                         {"torn", std::to_string(bits)});
  }
  small.expect_refused(cache.clear_errors(3, kSlotNonFinite), StatusCode::kFailedPrecondition,
                       {"slot 3"});
  small.expect_refused(cache.clear_errors(-1, kSlotNonFinite), StatusCode::kOutOfRange, {"-1"});
  ASSERT_TRUE(cache.clear_errors(2, kSlotOutOfRange).ok());
  EXPECT_EQ(cache.info(2)->error, std::uint32_t{kSlotNonFinite}) << "another bit";
  ASSERT_TRUE(cache.clear_errors(0, kSlotNonFinite).ok());
  EXPECT_EQ(cache.info(2)->error, std::uint32_t{kSlotNonFinite}) << "another slot";
  ASSERT_TRUE(cache.clear_errors(2, kSlotNonFinite | kSlotOutOfRange).ok());
  EXPECT_EQ(cache.info(2)->error, 0U);
}

// A state that is not finite says so wherever it is copied to.
TEST_P(CoreErrors, CopiesAreMarkedToo) {
  SmallCache small(GetParam());
  spoil(small);
  Cache& cache = small.cache();
  ASSERT_TRUE(cache.release(0).ok());
  const Result<std::int64_t> target = cache.acquire(1);
  ASSERT_TRUE(target.ok());
  const MaterializeItem item = {2, 1, *target};
  ASSERT_TRUE(cache.materialize({&item, 1}).ok());
  EXPECT_EQ(cache.info(*target)->error, std::uint32_t{kSlotNonFinite});
  const Result<std::int64_t> fork = cache.fork(2);
  ASSERT_TRUE(fork.ok()) << fork.status().to_string();
  EXPECT_EQ(cache.info(*fork)->error, std::uint32_t{kSlotNonFinite});
}

INSTANTIATE_TEST_SUITE_P(All, CoreErrors, ::testing::ValuesIn(host_names()), law_name);

}  // namespace
}  // namespace replayssm::laws
