// Memory for keys and values that cannot be had: what the error says, and that nothing is lost.
#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "engine/model_impl.hpp"
#include "engine/runner.hpp"
#include "model/layers/kv_cache.hpp"
#include "tests/engine/random_model.hpp"
#include "tests/engine/refusing_new.hpp"

namespace replayssm {
namespace {

using testing_models::Refusal;

bool has(const Status& status, const std::string& part) {
  return status.message().find(part) != std::string::npos;
}

// One layer of 3 heads, keys of 7 and values of 5 numbers: 64 * 3 * 12 * 4 bytes a page.
const model::KvShape kShape{{model::KvLayer{3, 7, 5}}, DType::kF32};
constexpr std::size_t kPageBytes = 9216;

TEST(KvMemory, TheErrorSaysWhatIsRequiredGivenAndSupported) {
  model::KvCache cache(kShape);
  ASSERT_TRUE(cache.reserve(70).ok());
  cache.set_length(70);
  EXPECT_EQ(cache.missing_bytes(58), 0);
  EXPECT_EQ(cache.missing_bytes(59), static_cast<std::int64_t>(kPageBytes));
  EXPECT_EQ(cache.missing_bytes(200), 3 * static_cast<std::int64_t>(kPageBytes));
  {
    const Refusal refusal(kPageBytes, 1);
    const Status status = cache.reserve(200);
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_TRUE(has(status,
                    "27648 bytes are required beyond the 18432 held, given a context of 70 tokens "
                    "and 200 more; there is room for 192 tokens"))
        << status.message();
  }
  EXPECT_EQ(cache.length(), 70);
  EXPECT_EQ(cache.bytes(), 3 * static_cast<std::int64_t>(kPageBytes));  // the one that was had
  EXPECT_TRUE(cache.reserve(200).ok());
}

TEST(KvMemory, AForkThatCannotCopyItsPageHasRoomForWhatItHolds) {
  model::KvCache cache(kShape);
  ASSERT_TRUE(cache.reserve(70).ok());
  const std::vector<float> row(21, 5.0F);
  cache.write(0, 69, row.data(), row.data());
  cache.set_length(70);
  model::KvCache fork = cache.fork();
  EXPECT_EQ(fork.missing_bytes(1), static_cast<std::int64_t>(kPageBytes));
  {
    const Refusal refusal(kPageBytes, 0);
    const Status status = fork.reserve(1);
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_TRUE(has(status, "9216 bytes are required")) << status.message();
    EXPECT_TRUE(has(status, "there is room for 70 tokens")) << status.message();
  }
  EXPECT_EQ(fork.keys(0, 1, 0), cache.keys(0, 1, 0));
  ASSERT_TRUE(fork.reserve(1).ok());
  EXPECT_NE(fork.keys(0, 1, 0), cache.keys(0, 1, 0));
}

// Two prompts of 100 tokens; the second finds no memory for its second page.
TEST(KvMemory, AForwardThatFindsNoneSaysForHowManyRowsAndLosesNothing) {
  LoadOptions load;
  load.threads = 1;
  const auto model =
      Model::load(testing_models::write_model("kv_memory", testing_models::RandomModel{}), load);
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  // One attention layer: 2 heads of 12 numbers, keys and values, f32.
  const std::size_t page_bytes = 64UL * 2 * 12 * 2 * 4;
  engine::RunnerOptions options;
  options.context = 256;
  options.max_sequences = 2;
  options.threads = 1;
  auto runner = engine::Runner::create(*model->impl().layers, options);
  ASSERT_TRUE(runner.ok()) << runner.status().to_string();
  const auto tokens = testing_models::random_tokens(200, 67, 1);
  std::vector<engine::RunnerRow> rows(2);
  for (std::size_t i = 0; i < 2; ++i) {
    const auto opened = (*runner)->open(0);
    ASSERT_TRUE(opened.ok());
    rows[i].sequence = *opened;
    rows[i].tokens = std::span<const std::int32_t>(tokens).subspan(100 * i, 100);
    rows[i].prefill = true;
    rows[i].want = engine::Want::kLast;
  }
  {
    const Refusal refusal(page_bytes, 3);
    const Status status = (*runner)->forward(rows);
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_TRUE(has(status,
                    "24576 bytes are required beyond the 0 held, given a context of 0 tokens and "
                    "100 more; there is room for 64 tokens (row 1 of 2, which require 49152 bytes "
                    "in all"))
        << status.message();
  }
  EXPECT_EQ((*runner)->length(rows[0].sequence), 0);
  ASSERT_TRUE((*runner)->forward(rows).ok());
  const auto second = (*runner)->logits(1, 99);
  const std::vector<float> logits(second.begin(), second.end());
  ASSERT_TRUE((*runner)->commit(std::vector<std::int32_t>{100, 100}).ok());

  auto fresh = engine::Runner::create(*model->impl().layers, options);
  ASSERT_TRUE(fresh.ok());
  for (engine::RunnerRow& row : rows) row.sequence = (*fresh)->open(0).value();
  ASSERT_TRUE((*fresh)->forward(rows).ok());
  const auto again = (*fresh)->logits(1, 99);
  EXPECT_EQ(logits, std::vector<float>(again.begin(), again.end()));
}

}  // namespace
}  // namespace replayssm
