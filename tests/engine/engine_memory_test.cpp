// Allocations that fail: the engine says so, loses no sequence and no token, and goes on.
#include "tests/core/counted_new.hpp"
#include "tests/engine/engine_fixture.hpp"

namespace replayssm::engine_tests {
namespace {

using laws::allocations;
using laws::failing;

// Each point costs an engine: a sample of them, of a step that no loop of the engine divides.
constexpr std::int64_t kStride = 31;

class Memory : public testing::TestWithParam<DecodeMode> {
 protected:
  Memory() {
    request_ = make_request(random_tokens(21, kVocab, 3), 14);
    request_.continuations = 3;
    request_.ignore_model_stop_tokens = true;
    // Repeats itself, so that drafts are taken.
    request_.prompt.insert(request_.prompt.end(), request_.prompt.begin(), request_.prompt.end());
    Engine engine = warm_engine();
    expected_ = outputs(engine, {request_});
  }

  // Has run once, so that the products' own memory is there; alone in its thread.
  Engine warm_engine() {
    EngineOptions options = with_drafts(with_sequences(4, GetParam()));
    options.threads = 1;
    Result<Engine> engine = Engine::create(shared_model(), options);
    EXPECT_TRUE(engine.ok()) << engine.status().to_string();
    (void)outputs(*engine, {request_});
    return std::move(*engine);
  }

  void expect_as_new(Engine& engine, std::int64_t nth) {
    EXPECT_EQ(engine.kv_bytes(), 0) << nth;
    EXPECT_EQ(outputs(engine, {request_}), expected_) << nth;
    Request all = request_;
    all.continuations = 4;  // no sequence is lost
    EXPECT_EQ(outputs(engine, {all}).size(), 4U) << nth;
  }

  Request request_;
  std::vector<Tokens> expected_;
};

TEST_P(Memory, AGenerationThatFailsLeavesNothingBehind) {
  std::int64_t failures = 0;
  for (std::int64_t nth = 1;; nth += kStride) {
    Engine engine = warm_engine();
    failing = allocations.load() + nth;
    const auto generation = engine.generate({&request_, 1});
    const bool reached = allocations.load() >= failing.load();
    failing = 0;
    if (!reached) break;
    if (!generation.ok()) {
      ++failures;
      EXPECT_EQ(generation.status().code(), StatusCode::kResourceExhausted)
          << nth << ": " << generation.status().to_string();
    }
    expect_as_new(engine, nth);
  }
  EXPECT_GT(failures, 10);
}

TEST_P(Memory, AStepThatFailsCancelsOrGoesOn) {
  std::int64_t cancelled = 0;
  for (std::int64_t nth = 1;; nth += kStride) {
    Engine engine = warm_engine();
    const Result<std::int64_t> id = engine.submit(request_);
    ASSERT_TRUE(id.ok());
    failing = allocations.load() + nth;
    Result<bool> more = true;
    while (more.ok() && *more) more = engine.step();
    const bool reached = allocations.load() >= failing.load();
    failing = 0;
    if (!reached) break;
    do {
      more = engine.step();
      ASSERT_TRUE(more.ok()) << nth << ": " << more.status().to_string();
    } while (*more);
    const auto taken = engine.take(*id);
    ASSERT_TRUE(taken.ok()) << nth << ": " << taken.status().to_string();
    ASSERT_EQ(taken->size(), expected_.size()) << nth;
    for (std::size_t i = 0; i < taken->size(); ++i) {
      const SequenceOutput& output = (*taken)[i];
      if (output.finish == FinishReason::kCancelled) {
        ++cancelled;
      } else {
        EXPECT_EQ(output.tokens, expected_[i]) << nth;
      }
    }
    expect_as_new(engine, nth);
  }
  EXPECT_GT(cancelled, 10);
}

INSTANTIATE_TEST_SUITE_P(Modes, Memory,
                         testing::Values(DecodeMode::kReplay, DecodeMode::kConventional),
                         [](const auto& mode) {
                           return std::string(decode_mode_name(mode.param));
                         });

}  // namespace
}  // namespace replayssm::engine_tests
