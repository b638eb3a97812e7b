// Text through the engine, with the bundled model: pieces as they come, the same text from every
// decoding.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "replayssm/engine.hpp"

namespace replayssm {
namespace {

const Model& bundled() {
  static const Model kModel = [] {
    LoadOptions options;
    options.threads = 2;
    auto model =
        Model::load(std::string(REPLAYSSM_SOURCE_DIR) + "/models/austen-py-mamba2", options);
    EXPECT_TRUE(model.ok()) << model.status().to_string();
    return *model;
  }();
  return kModel;
}

TEST(EngineText, PiecesJoinToTheTextOfTheTokens) {
  EngineOptions options;
  options.max_sequences = 3;
  options.threads = 2;
  auto engine = Engine::create(bundled(), options);
  ASSERT_TRUE(engine.ok()) << engine.status().to_string();
  Request request;
  const auto prompt = bundled().encode("Elizabeth said to her sister");
  ASSERT_TRUE(prompt.ok());
  request.prompt = *prompt;
  request.max_new_tokens = 120;
  request.sampling.temperature = 1.5F;  // hot enough for odd bytes
  request.continuations = 3;
  std::map<std::int32_t, std::string> told;
  const auto generation = engine->generate({&request, 1}, [&](const TokenEvent& event) {
    told[event.sequence.continuation] += event.text;
    return Control::kContinue;
  });
  ASSERT_TRUE(generation.ok()) << generation.status().to_string();
  for (std::int32_t i = 0; i < 3; ++i) {
    const SequenceOutput& output = generation->sequences[static_cast<std::size_t>(i)];
    const auto text = bundled().decode(output.tokens);
    ASSERT_TRUE(text.ok());
    EXPECT_EQ(output.text, *text);
    EXPECT_EQ(told[i], *text);
    EXPECT_FALSE(output.text.empty());
  }
}

TEST(EngineText, PromptsGoThereAndBack) {
  const std::string text = "It is a truth universally acknowledged.";
  const auto tokens = bundled().encode(text);
  ASSERT_TRUE(tokens.ok());
  const auto back = bundled().decode(*tokens);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(*back, text);
}

TEST(EngineText, TheBundledModelAgreesWithItself) {
  const auto prompt = bundled().encode("The module provides");
  ASSERT_TRUE(prompt.ok());
  CompareOptions options;
  options.max_new_tokens = 150;
  options.threads = 2;
  options.ignore_stop_tokens = true;
  const auto comparison = compare(bundled(), *prompt, options);
  ASSERT_TRUE(comparison.ok()) << comparison.status().to_string();
  ASSERT_EQ(comparison->runs.size(), 3U);
  EXPECT_TRUE(comparison->agree);
  EXPECT_GT(comparison->runs[2].stats.accepted_drafts, 0);
  EXPECT_FALSE(comparison->runs[0].text.empty());
  // Few positions of a trained model may hide behind the bound.
  EXPECT_LT(comparison->near_ties, 15);
}

}  // namespace
}  // namespace replayssm
