// The model, options and requests that the engine's tests share.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "replayssm/engine.hpp"
#include "tests/engine/random_model.hpp"

namespace replayssm::engine_tests {

using testing_models::random_tokens;
using Tokens = std::vector<std::int32_t>;

inline const Model& shared_model() {
  static const Model kModel = [] {
    LoadOptions options;
    options.threads = 2;
    return *Model::load(testing_models::write_model("engine", testing_models::RandomModel{}),
                        options);
  }();
  return kModel;
}

constexpr std::int64_t kVocab = 67;

inline Engine make_engine(EngineOptions options) {
  options.threads = 2;
  Result<Engine> engine = Engine::create(shared_model(), options);
  EXPECT_TRUE(engine.ok()) << engine.status().to_string();
  return std::move(*engine);
}

inline EngineOptions with_sequences(std::int64_t sequences,
                                    DecodeMode decode = DecodeMode::kReplay) {
  EngineOptions options;
  options.max_sequences = sequences;
  options.decode = decode;
  options.prefill_chunk = 16;
  options.window = 7;
  return options;
}

inline EngineOptions with_drafts(EngineOptions options) {
  options.draft = DraftKind::kNgram;
  options.draft_tokens = 3;
  options.ngram_min = 1;
  return options;
}

inline Request make_request(Tokens prompt, std::int64_t tokens, float temperature = 0.0F,
                            std::uint64_t seed = 0) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_new_tokens = tokens;
  request.sampling.temperature = temperature;
  request.sampling.seed = seed;
  return request;
}

inline std::vector<Request> many_requests(float temperature) {
  std::vector<Request> requests;
  for (std::size_t i = 0; i < 7; ++i) {
    const std::size_t lengths[] = {1, 40, 3, 17, 16, 33, 5};
    requests.push_back(make_request(random_tokens(lengths[i], kVocab, i),
                                    static_cast<std::int64_t>(20 + 5 * i), temperature, 100 + i));
  }
  return requests;
}

inline std::vector<Tokens> outputs(Engine& engine, const std::vector<Request>& requests) {
  const auto generation = engine.generate(requests);
  EXPECT_TRUE(generation.ok()) << generation.status().to_string();
  std::vector<Tokens> tokens;
  if (!generation.ok()) return tokens;
  for (const SequenceOutput& output : generation->sequences) tokens.push_back(output.tokens);
  return tokens;
}

inline std::vector<Tokens> one_by_one(const std::vector<Request>& requests, EngineOptions options) {
  std::vector<Tokens> tokens;
  for (const Request& request : requests) {
    options.max_sequences = 1;
    Engine engine = make_engine(options);
    tokens.push_back(outputs(engine, {request}).at(0));
  }
  return tokens;
}

}  // namespace replayssm::engine_tests
