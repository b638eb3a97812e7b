// Agreement: what counts as a near-tie, and that a text which differs elsewhere is called
// different.
#include <gtest/gtest.h>

#include "engine/agreement.hpp"
#include "engine/model_impl.hpp"
#include "replayssm/engine.hpp"
#include "tests/engine/random_model.hpp"

namespace replayssm {
namespace {

using testing_models::random_tokens;
using testing_models::RandomModel;
using testing_models::Tensor;
using testing_models::write_model;
using Tokens = std::vector<std::int32_t>;

TEST(Agreement, EqualUpToTheFirstNearTie) {
  const Tokens reference = {1, 2, 3, 4, 5};
  EXPECT_EQ(engine::first_difference(reference, reference), -1);
  EXPECT_EQ(engine::first_difference(reference, {1, 2, 9, 4, 5}), 2);
  EXPECT_EQ(engine::first_difference(reference, {1, 2, 3}), 3);
  EXPECT_EQ(engine::first_difference(reference, {1, 2, 3, 4, 5, 6}), 5);
  EXPECT_TRUE(engine::agrees(-1, -1));
  EXPECT_FALSE(engine::agrees(2, -1));  // no near-tie excuses anything
  EXPECT_FALSE(engine::agrees(2, 3));   // different before it
  EXPECT_TRUE(engine::agrees(3, 3));
  EXPECT_TRUE(engine::agrees(4, 3));
}

Comparison run(const std::string& folder, ComputeType compute) {
  LoadOptions load;
  load.compute = compute;
  load.threads = 2;
  const auto model = Model::load(folder, load);
  EXPECT_TRUE(model.ok()) << model.status().to_string();
  CompareOptions options;
  options.max_new_tokens = 80;
  options.window = 7;
  options.draft_tokens = 3;
  options.prefill_chunk = 16;
  options.threads = 2;
  const auto comparison = compare(*model, random_tokens(30, 67, 3), options);
  EXPECT_TRUE(comparison.ok()) << comparison.status().to_string();
  return *comparison;
}

TEST(Compare, ThreeDecodingsOfOneModelAgree) {
  const std::string folder = write_model("agree", RandomModel{});
  for (const ComputeType compute : {ComputeType::kF32, ComputeType::kBF16}) {
    const Comparison comparison = run(folder, compute);
    ASSERT_EQ(comparison.runs.size(), 3U);
    EXPECT_EQ(comparison.runs[0].decode, DecodeMode::kConventional);
    EXPECT_EQ(comparison.runs[1].decode, DecodeMode::kReplay);
    EXPECT_EQ(comparison.runs[2].draft, DraftKind::kNgram);
    EXPECT_TRUE(comparison.agree);
    EXPECT_GT(comparison.bound, 0.0);
    for (const ComparedRun& compared : comparison.runs) EXPECT_EQ(compared.tokens.size(), 80U);
    if (compute == ComputeType::kF32) {
      EXPECT_LT(comparison.bound, 1e-2);
      EXPECT_LT(comparison.near_ties, 4);
    }
  }
}

// A head whose rows come in equal pairs ties at every position: the bound must see all of them, and
// the greedy statistics too.
TEST(Compare, TiesAreSeen) {
  RandomModel model;
  model.vocab = 66;
  model.damage = [](std::vector<Tensor>& tensors) {
    for (Tensor& tensor : tensors) {
      if (tensor.name != "lm_head.weight") continue;
      for (std::size_t row = 0; row + 1 < 66; row += 2) {
        for (std::size_t i = 0; i < 40; ++i)
          tensor.values[(row + 1) * 40 + i] = tensor.values[row * 40 + i];
      }
    }
  };
  const auto loaded = Model::load(write_model("ties", model), LoadOptions{});
  ASSERT_TRUE(loaded.ok());
  CompareOptions options;
  options.max_new_tokens = 20;
  const auto comparison = compare(*loaded, random_tokens(5, 66, 1), options);
  ASSERT_TRUE(comparison.ok());
  EXPECT_EQ(comparison->runs[0].stats.near_ties, 20);
  EXPECT_EQ(comparison->near_ties, 20);
  EXPECT_EQ(comparison->first_near_tie, 0);
  EXPECT_TRUE(comparison->agree);
}

// Logits that are no numbers have no gap: calling their positions near-ties would excuse
// everything.
TEST(Compare, LogitsThatAreNotFiniteAreAnError) {
  for (const std::string name : {"backbone.norm_f.weight", "backbone.layers.0.mixer.D"}) {
    RandomModel model;
    bool damaged = false;
    model.damage = [&](std::vector<Tensor>& tensors) {
      for (Tensor& tensor : tensors) {
        if (tensor.name != name) continue;
        tensor.values[0] = std::numeric_limits<float>::quiet_NaN();
        damaged = true;
      }
    };
    const auto loaded = Model::load(write_model("nan", model), LoadOptions{});
    ASSERT_TRUE(damaged) << name;
    ASSERT_TRUE(loaded.ok());
    CompareOptions options;
    options.max_new_tokens = 8;
    const auto comparison = compare(*loaded, random_tokens(5, 67, 1), options);
    ASSERT_FALSE(comparison.ok()) << name;
    EXPECT_NE(comparison.status().message().find("not finite"), std::string::npos)
        << comparison.status().to_string();
  }
}

TEST(Compare, EventsNameTheRunAndCancellingStops) {
  const auto model = Model::load(write_model("cancel", RandomModel{}), LoadOptions{});
  ASSERT_TRUE(model.ok());
  CompareOptions options;
  options.max_new_tokens = 30;
  std::size_t last = 0;
  const auto comparison = compare(
      *model, random_tokens(5, 67, 1), options, [&](std::size_t index, const TokenEvent& event) {
        EXPECT_GE(index, last);
        last = index;
        return index == 1 && event.token >= 0 ? Control::kCancelAll : Control::kContinue;
      });
  ASSERT_TRUE(comparison.ok());
  EXPECT_EQ(comparison->runs.size(), 2U);
  EXPECT_EQ(comparison->runs[1].tokens.size(), 1U);
}

}  // namespace
}  // namespace replayssm
