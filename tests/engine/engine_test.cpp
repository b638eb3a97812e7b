// Generation: batches of different lengths, drafts, forks, seeds, stop tokens, events and counts,
// on a small random model.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/engine/engine_fixture.hpp"

namespace replayssm {
namespace {

using namespace engine_tests;  // NOLINT(google-build-using-namespace): this file's vocabulary

class Decodes : public testing::TestWithParam<DecodeMode> {};

TEST_P(Decodes, ABatchOfDifferentLengthsEqualsOneByOne) {
  for (const float temperature : {0.0F, 1.0F}) {
    const auto requests = many_requests(temperature);
    const auto expected = one_by_one(requests, with_sequences(1, GetParam()));
    // As many sequences as requests, and fewer, so that some wait for others to leave.
    for (const std::int64_t sequences : {7, 3, 1}) {
      Engine engine = make_engine(with_sequences(sequences, GetParam()));
      EXPECT_EQ(outputs(engine, requests), expected)
          << sequences << " sequences, temperature " << temperature;
    }
    for (std::size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(expected[i].size(), static_cast<std::size_t>(requests[i].max_new_tokens));
    }
  }
}

TEST_P(Decodes, DraftsChangeNoText) {
  for (const float temperature : {0.0F, 0.7F}) {
    const auto requests = many_requests(temperature);
    const auto expected = one_by_one(requests, with_sequences(1, GetParam()));
    Engine engine = make_engine(with_drafts(with_sequences(4, GetParam())));
    const auto generation = engine.generate(requests);
    ASSERT_TRUE(generation.ok()) << generation.status().to_string();
    for (std::size_t i = 0; i < requests.size(); ++i)
      EXPECT_EQ(generation->sequences[i].tokens, expected[i]);
    // The test means something only where drafts were taken and refused.
    EXPECT_GT(generation->stats.accepted_drafts, 0);
    EXPECT_GT(generation->stats.drafted_tokens, generation->stats.accepted_drafts);
    EXPECT_GT(generation->stats.accepted_per_step(), 1.0);
  }
}

TEST_P(Decodes, ContinuationsEqualSeparateRunsWithTheirSeeds) {
  Request request = make_request(random_tokens(37, kVocab, 5), 30, 1.0F, 42);
  request.continuations = 4;
  std::vector<Request> separate;
  for (std::uint64_t i = 0; i < 4; ++i)
    separate.push_back(make_request(request.prompt, 30, 1.0F, 42 + i));
  const auto expected = one_by_one(separate, with_sequences(1, GetParam()));
  for (const bool drafts : {false, true}) {
    Engine engine = make_engine(drafts ? with_drafts(with_sequences(4, GetParam()))
                                       : with_sequences(4, GetParam()));
    const auto generation = engine.generate({&request, 1});
    ASSERT_TRUE(generation.ok()) << generation.status().to_string();
    ASSERT_EQ(generation->sequences.size(), 4U);
    for (std::int32_t i = 0; i < 4; ++i) {
      const auto& sequence = generation->sequences[static_cast<std::size_t>(i)];
      EXPECT_EQ(sequence.sequence, (SequenceId{0, i}));
      EXPECT_EQ(sequence.tokens, expected[static_cast<std::size_t>(i)]) << i;
    }
    EXPECT_EQ(generation->stats.prompt_tokens, 37);  // run once
    EXPECT_NE(generation->sequences[0].tokens, generation->sequences[1].tokens);
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, Decodes,
                         testing::Values(DecodeMode::kReplay, DecodeMode::kConventional),
                         [](const auto& mode) {
                           return std::string(decode_mode_name(mode.param));
                         });

TEST(Engine, ForksTextsOfAModelWithoutAttention) {
  testing_models::RandomModel recurrent;
  recurrent.pattern = "M-M-";
  const auto model = Model::load(testing_models::write_model("recurrent", recurrent));
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  Request request = make_request(random_tokens(37, kVocab, 5), 30);
  request.continuations = 3;
  Result<Engine> engine = Engine::create(*model, with_sequences(3));
  ASSERT_TRUE(engine.ok()) << engine.status().to_string();
  const auto generation = engine->generate({&request, 1});
  ASSERT_TRUE(generation.ok()) << generation.status().to_string();
  ASSERT_EQ(generation->sequences.size(), 3U);
  for (const SequenceOutput& output : generation->sequences) {
    EXPECT_EQ(output.tokens.size(), 30U);
    EXPECT_EQ(output.tokens, generation->sequences.front().tokens);
  }
  EXPECT_EQ(engine->kv_bytes(), 0);
}

TEST(Engine, ReplayAndConventionalWriteTheSameText) {
  const auto requests = many_requests(0.0F);
  Engine replay = make_engine(with_sequences(4));
  Engine conventional = make_engine(with_sequences(4, DecodeMode::kConventional));
  EXPECT_EQ(outputs(replay, requests), outputs(conventional, requests));
}

TEST(Engine, SeedsDecideAndRepeat) {
  const Tokens prompt = random_tokens(9, kVocab, 1);
  Engine engine = make_engine(with_sequences(2));
  const auto first = outputs(engine, {make_request(prompt, 40, 1.0F, 7)});
  EXPECT_EQ(outputs(engine, {make_request(prompt, 40, 1.0F, 7)}), first);
  EXPECT_NE(outputs(engine, {make_request(prompt, 40, 1.0F, 8)}), first);
}

TEST(Engine, StopTokensEndATextAndAreLeftOut) {
  for (const bool drafts : {false, true}) {
    Engine engine = make_engine(drafts ? with_drafts(with_sequences(1)) : with_sequences(1));
    Request request = make_request(random_tokens(9, kVocab, 1), 40, 1.0F, 3);
    const Tokens whole = outputs(engine, {request}).at(0);
    request.stop_tokens = {whole[20]};
    const auto first =
        static_cast<std::size_t>(std::find(whole.begin(), whole.end(), whole[20]) - whole.begin());
    const auto generation = engine.generate({&request, 1});
    ASSERT_TRUE(generation.ok());
    EXPECT_EQ(generation->sequences[0].finish, FinishReason::kStopToken);
    EXPECT_EQ(generation->sequences[0].tokens,
              Tokens(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(first)));
  }
}

TEST(Engine, TheModelsStopTokensCountUnlessIgnored) {
  Engine free_engine = make_engine(with_sequences(1));
  Request request = make_request(random_tokens(9, kVocab, 1), 40);
  const Tokens whole = outputs(free_engine, {request}).at(0);
  testing_models::RandomModel stopping;
  stopping.generation_config = "{\"eos_token_id\": " + std::to_string(whole[5]) + "}";
  const auto model = Model::load(testing_models::write_model("stopping", stopping), LoadOptions{});
  ASSERT_TRUE(model.ok());
  auto engine = Engine::create(*model, with_sequences(1));
  ASSERT_TRUE(engine.ok());
  const auto stopped = engine->generate({&request, 1});
  ASSERT_TRUE(stopped.ok());
  EXPECT_EQ(stopped->sequences[0].finish, FinishReason::kStopToken);
  EXPECT_LE(stopped->sequences[0].tokens.size(), 5U);
  request.ignore_model_stop_tokens = true;
  const auto ignored = engine->generate({&request, 1});
  ASSERT_TRUE(ignored.ok());
  EXPECT_EQ(ignored->sequences[0].tokens, whole);
}

TEST(Engine, EventsTellEveryTokenInOrderAndTheEnd) {
  for (const bool drafts : {false, true}) {
    Engine engine = make_engine(drafts ? with_drafts(with_sequences(3)) : with_sequences(3));
    const auto requests = many_requests(0.0F);
    std::map<std::int64_t, Tokens> told;
    std::map<std::int64_t, FinishReason> ends;
    std::int64_t drafted = 0;
    const auto generation = engine.generate(requests, [&](const TokenEvent& event) {
      EXPECT_FALSE(ends.contains(event.sequence.request)) << "a token after the end";
      if (event.token >= 0) {
        told[event.sequence.request].push_back(event.token);
        drafted += event.drafted ? 1 : 0;
      } else {
        ends[event.sequence.request] = event.finish;
      }
      return Control::kContinue;
    });
    ASSERT_TRUE(generation.ok());
    EXPECT_FALSE(generation->cancelled);
    std::int64_t total = 0;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const auto id = static_cast<std::int64_t>(i);
      EXPECT_EQ(told[id], generation->sequences[i].tokens);
      EXPECT_EQ(ends[id], FinishReason::kLength);
      total += static_cast<std::int64_t>(told[id].size());
    }
    const Stats& stats = generation->stats;
    EXPECT_EQ(stats.generated_tokens, total);
    EXPECT_EQ(stats.decode_tokens, total - 7);  // the first of each comes from its prompt
    EXPECT_EQ(drafted, stats.accepted_drafts);
    EXPECT_EQ(stats.decode_tokens, stats.sequence_steps + stats.accepted_drafts);
    EXPECT_EQ(stats.prompt_tokens, 1 + 40 + 3 + 17 + 16 + 33 + 5);
    EXPECT_GT(stats.decode_seconds, 0.0);
    EXPECT_GT(stats.state_bytes_per_token, 0.0);
  }
}

TEST(Engine, ReplayMovesFewerStateBytesThanConventional) {
  const auto requests = many_requests(0.0F);
  Engine replay = make_engine(with_sequences(4));
  Engine conventional = make_engine(with_sequences(4, DecodeMode::kConventional));
  const auto less = replay.generate(requests);
  const auto more = conventional.generate(requests);
  ASSERT_TRUE(less.ok() && more.ok());
  EXPECT_LT(less->stats.state_bytes_per_token, more->stats.state_bytes_per_token);
}

}  // namespace
}  // namespace replayssm
