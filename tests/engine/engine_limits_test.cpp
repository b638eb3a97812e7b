// How texts end early and what is refused: cancellations, the context, sequences, options.
#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>

#include "engine/model_impl.hpp"
#include "engine/runner.hpp"
#include "tests/engine/engine_fixture.hpp"

namespace replayssm {
namespace {

using namespace engine_tests;  // NOLINT(google-build-using-namespace): this file's vocabulary

TEST(EngineLimits, ACallbackEndsOneSequenceAndTheOthersGoOn) {
  Engine engine = make_engine(with_sequences(3));
  const auto requests = many_requests(0.0F);
  const auto whole = one_by_one(requests, with_sequences(1));
  const auto generation = engine.generate(requests, [&](const TokenEvent& event) {
    return event.token >= 0 && event.sequence.request == 2 ? Control::kCancelSequence
                                                           : Control::kContinue;
  });
  ASSERT_TRUE(generation.ok());
  EXPECT_FALSE(generation->cancelled);
  EXPECT_EQ(generation->sequences[2].finish, FinishReason::kCancelled);
  EXPECT_EQ(generation->sequences[2].tokens.size(), 1U);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (i == 2) continue;
    EXPECT_EQ(generation->sequences[i].tokens, whole[i]);
  }
}

TEST(EngineLimits, CancellingAllEndsWhatRunsAndWhatWaits) {
  Engine engine = make_engine(with_sequences(2));
  auto requests = many_requests(0.0F);
  requests[6].continuations = 2;
  int tokens = 0;
  const auto generation = engine.generate(requests, [&](const TokenEvent& event) {
    return event.token >= 0 && ++tokens == 5 ? Control::kCancelAll : Control::kContinue;
  });
  ASSERT_TRUE(generation.ok());
  EXPECT_TRUE(generation->cancelled);
  EXPECT_EQ(tokens, 5);
  ASSERT_EQ(generation->sequences.size(), 8U);
  for (const SequenceOutput& output : generation->sequences)
    EXPECT_EQ(output.finish, FinishReason::kCancelled);
  // All sequences are free again.
  EXPECT_EQ(engine.kv_bytes(), 0);
  EXPECT_EQ(outputs(engine, many_requests(0.0F)),
            one_by_one(many_requests(0.0F), with_sequences(1)));
}

std::vector<std::int64_t> submit_all(Engine& engine, const std::vector<Request>& requests) {
  std::vector<std::int64_t> ids;
  for (const Request& request : requests) ids.push_back(*engine.submit(request));
  return ids;
}
// Steps until nothing is left to do.
void run_out(Engine& engine) {
  for (;;) {
    const auto more = engine.step();
    ASSERT_TRUE(more.ok()) << more.status().to_string();
    if (!*more) break;
  }
}

TEST(EngineLimits, RequestsInStepsAndTheirCancellation) {
  Engine engine = make_engine(with_sequences(2));
  const auto requests = many_requests(0.0F);
  const auto whole = one_by_one(requests, with_sequences(1));
  const std::vector<std::int64_t> ids = submit_all(engine, requests);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(engine.step().ok());
  EXPECT_EQ(engine.take(ids[1]).status().code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(engine.cancel(ids[1]).ok());  // running
  ASSERT_TRUE(engine.cancel(ids[5]).ok());  // waiting
  run_out(engine);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto taken = engine.take(ids[i]);
    ASSERT_TRUE(taken.ok());
    const bool cancelled = i == 1 || i == 5;
    EXPECT_EQ(taken->at(0).finish, cancelled ? FinishReason::kCancelled : FinishReason::kLength);
    if (!cancelled) {
      EXPECT_EQ(taken->at(0).tokens, whole[i]);
    }
    EXPECT_EQ(engine.take(ids[i]).status().code(), StatusCode::kNotFound);  // once
  }
  EXPECT_EQ(engine.cancel(999).code(), StatusCode::kNotFound);
}

// Tokens that a callback has kept from being told are lost, so their requests end and are not gone
// on with in silence. Those that waited are whole.
TEST(EngineLimits, ACallbackThatThrowsEndsWhatItInterrupted) {
  Engine engine = make_engine(with_sequences(2));
  const auto requests = many_requests(0.0F);
  const auto whole = one_by_one(requests, with_sequences(1));
  const std::vector<std::int64_t> ids = submit_all(engine, requests);
  int told = 0;
  const auto interrupt = [&told](const TokenEvent&) -> Control {
    if (++told == 3) throw std::runtime_error("interrupted");
    return Control::kContinue;
  };
  EXPECT_THROW(
      {
        while (*engine.step(interrupt)) {
        }
      },
      std::runtime_error);
  run_out(engine);
  int cancelled = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto taken = engine.take(ids[i]);
    ASSERT_TRUE(taken.ok());
    if (taken->at(0).finish == FinishReason::kCancelled) {
      ++cancelled;
    } else {
      EXPECT_EQ(taken->at(0).tokens, whole[i]) << i;
    }
  }
  EXPECT_GE(cancelled, 1);
  EXPECT_LE(cancelled, 2);
}

TEST(EngineLimits, TheContextEndsATextAndRefusesAPrompt) {
  for (const bool drafts : {false, true}) {
    EngineOptions options = drafts ? with_drafts(with_sequences(1)) : with_sequences(1);
    options.context = 32;
    Engine engine = make_engine(options);
    Request request = make_request(random_tokens(20, kVocab, 1), 100);
    const auto generation = engine.generate({&request, 1});
    ASSERT_TRUE(generation.ok()) << generation.status().to_string();
    EXPECT_EQ(generation->sequences[0].finish, FinishReason::kContext);
    EXPECT_EQ(generation->sequences[0].tokens.size(), 12U);
    request.prompt = random_tokens(32, kVocab, 1);
    const auto refused = engine.generate({&request, 1});
    EXPECT_EQ(refused.status().code(), StatusCode::kOutOfRange);
    EXPECT_NE(refused.status().message().find("32"), std::string::npos);
    request.prompt.pop_back();
    EXPECT_TRUE(engine.generate({&request, 1}).ok());
  }
}

TEST(EngineLimits, ContinuationsGiveTheirPlacesBack) {
  Engine engine = make_engine(with_sequences(3));
  Request request = make_request(random_tokens(20, kVocab, 1), 10, 1.0F, 5);
  request.continuations = 3;
  const auto first = outputs(engine, {request, request});  // the second waits for all three places
  ASSERT_EQ(first.size(), 6U);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(first[i], first[i + 3]);
  EXPECT_EQ(outputs(engine, {request}), std::vector<Tokens>(first.begin(), first.begin() + 3));
  EXPECT_EQ(engine.kv_bytes(), 0);
  // Cancelled while its prompt still runs.
  request.prompt = random_tokens(40, kVocab, 1);
  const auto id = engine.submit(request);
  ASSERT_TRUE(id.ok() && engine.step().ok() && engine.cancel(*id).ok());
  EXPECT_EQ(engine.take(*id)->size(), 3U);
  EXPECT_EQ(outputs(engine, {request}).size(), 3U);
}

TEST(EngineLimits, RequestsAreRefusedByNameBeforeAnythingRuns) {
  Engine engine = make_engine(with_sequences(2));
  const Request good = make_request({1, 2, 3}, 4);
  const auto code = [&](auto change) {
    Request bad = good;
    change(bad);
    const Request both[] = {good, bad};
    int events = 0;
    const Status status = engine
                              .generate(both,
                                        [&](const TokenEvent&) {
                                          ++events;
                                          return Control::kContinue;
                                        })
                              .status();
    EXPECT_EQ(events, 0);
    EXPECT_FALSE(status.message().empty());
    return status.code();
  };
  EXPECT_EQ(code([](Request& r) { r.prompt.clear(); }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](Request& r) { r.prompt[1] = kVocab; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](Request& r) { r.prompt[1] = -1; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](Request& r) { r.max_new_tokens = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](Request& r) { r.continuations = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](Request& r) { r.sampling.top_p = 0.0F; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](Request& r) { r.continuations = 3; }), StatusCode::kResourceExhausted);
  EXPECT_TRUE(engine.generate({&good, 1}).ok());
}

TEST(EngineLimits, OptionsAreRefusedByName) {
  const auto refused = [](auto change) {
    EngineOptions options;
    change(options);
    return Engine::create(shared_model(), options).status();
  };
  const auto has = [](const Status& status, const char* part) {
    return status.message().find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(refused([](EngineOptions& o) { o.max_sequences = 0; }), "max_sequences"));
  EXPECT_TRUE(has(refused([](EngineOptions& o) { o.window = 0; }), "window"));
  EXPECT_TRUE(has(refused([](EngineOptions& o) { o.window = kMaxWindow + 1; }), "window"));
  EXPECT_TRUE(has(refused([](EngineOptions& o) { o = with_drafts(o), o.window = 3; }), "window"));
  EXPECT_TRUE(has(refused([](EngineOptions& o) { o = with_drafts(o), o.draft_tokens = 16; }),
                  "draft_tokens"));
  EXPECT_TRUE(
      has(refused([](EngineOptions& o) { o = with_drafts(o), o.ngram_min = 9; }), "ngram_min"));
  EXPECT_TRUE(has(refused([](EngineOptions& o) { o.prefill_chunk = 0; }), "prefill_chunk"));
  EXPECT_TRUE(has(refused([](EngineOptions& o) { o.context = -1; }), "context"));
  const Status unknown = refused([](EngineOptions& o) { o.implementation = "nonsense"; });
  EXPECT_EQ(unknown.code(), StatusCode::kUnsupported);
  EXPECT_TRUE(has(unknown, "nonsense"));
}

TEST(EngineLimits, WeightsThatAreNotFiniteEndTheTextWithAnError) {
  testing_models::RandomModel model;
  model.damage = [](std::vector<testing_models::Tensor>& tensors) {
    for (auto& tensor : tensors) {
      if (tensor.name == "lm_head.weight")
        tensor.values[7] = std::numeric_limits<float>::quiet_NaN();
    }
  };
  const auto loaded = Model::load(testing_models::write_model("not_finite", model), LoadOptions{});
  ASSERT_TRUE(loaded.ok());
  for (const float temperature : {0.0F, 1.0F}) {
    Result<Engine> engine = Engine::create(*loaded, {});
    ASSERT_TRUE(engine.ok());
    Request request;
    request.prompt = {1, 2, 3};
    request.max_new_tokens = 4;
    request.sampling.temperature = temperature;
    const auto generation = engine->generate({&request, 1});
    ASSERT_FALSE(generation.ok());
    EXPECT_EQ(generation.status().code(), StatusCode::kDataLoss);
    EXPECT_NE(generation.status().message().find("not finite"), std::string::npos);
  }
}

TEST(EngineLimits, ANamedImplementationRuns) {
  EngineOptions options = with_sequences(1);
  const std::string name(make_engine(options).implementation());
  options.implementation = name;
  EXPECT_EQ(make_engine(options).implementation(), name);
  EXPECT_NE(make_engine(with_sequences(1, DecodeMode::kConventional)).implementation(), name);
}

TEST(Runner, OutOfSequencesAndOutOfContext) {
  engine::RunnerOptions options;
  options.max_sequences = 2;
  options.context = 8;
  options.threads = 1;
  auto runner = engine::Runner::create(*shared_model().impl().layers, options);
  ASSERT_TRUE(runner.ok()) << runner.status().to_string();
  const auto first = (*runner)->open(0);
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE((*runner)->open(0).ok());
  EXPECT_EQ((*runner)->open(0).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ((*runner)->fork(*first).status().code(), StatusCode::kResourceExhausted);
  const Tokens nine = random_tokens(9, kVocab, 1);
  engine::RunnerRow row;
  row.sequence = *first;
  row.tokens = nine;
  row.prefill = true;
  EXPECT_EQ((*runner)->forward({&row, 1}).code(), StatusCode::kOutOfRange);
  row.tokens = std::span<const std::int32_t>(nine).first(8);
  EXPECT_EQ((*runner)->commit(std::vector<std::int32_t>{8}).code(),
            StatusCode::kFailedPrecondition);
  ASSERT_TRUE((*runner)->forward({&row, 1}).ok());
  EXPECT_EQ((*runner)->commit(std::vector<std::int32_t>{7}).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE((*runner)->commit(std::vector<std::int32_t>{8}).ok());
  EXPECT_EQ((*runner)->length(*first), 8);
  ASSERT_TRUE((*runner)->close(*first).ok());
  EXPECT_EQ((*runner)->close(*first).code(), StatusCode::kOutOfRange);
  EXPECT_TRUE((*runner)->open(0).ok());
}

}  // namespace
}  // namespace replayssm
