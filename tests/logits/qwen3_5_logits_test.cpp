// Logits of qwen3_5 against transformers (tests/logits/suite.hpp).
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "tests/logits/suite.hpp"

namespace replayssm::logits {
namespace {

const Family kFamily = {"qwen3_5",
                        "layers.0.input_layernorm.weight",
                        "linear_attn.norm.weight",
                        {"model.visual.", "mtp."}};

using Case = std::tuple<std::string, DecodeMode, Path>;

class Qwen35Logits : public testing::TestWithParam<Case> {};

TEST_P(Qwen35Logits, MatchTransformers) {
  const auto& [name, decode, path] = GetParam();
  check_path(kFamily, name, decode, path);
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  const auto& [name, decode, path] = info.param;
  return name + "_" + std::string(decode_mode_name(decode)) + "_" + path_name(path);
}

INSTANTIATE_TEST_SUITE_P(
    Fixtures, Qwen35Logits,
    testing::Combine(testing::ValuesIn(fixture_names("qwen3_5")),
                     testing::Values(DecodeMode::kReplay, DecodeMode::kConventional),
                     testing::Values(Path::kOneChunk, Path::kOddChunks, Path::kTokens,
                                     Path::kDrafts, Path::kMixed)),
    case_name);

TEST(Qwen35LogitsFixtures, AreThere) { EXPECT_GE(fixture_names("qwen3_5").size(), 5U); }

TEST(Qwen35LogitsTwins, EveryTensorMatters) { check_every_tensor(kFamily); }

TEST(Qwen35LogitsBf16, StayWithinRounding) { check_bf16(kFamily); }

}  // namespace
}  // namespace replayssm::logits
