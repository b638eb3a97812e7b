// Logits of nemotron_h against transformers (tests/logits/suite.hpp).
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "tests/logits/suite.hpp"

namespace replayssm::logits {
namespace {

const Family kFamily = {"nemotron_h", "layers.0.norm.weight", "layers.0.mixer.norm.weight", {}};

using Case = std::tuple<std::string, DecodeMode, Path>;

class NemotronHLogits : public testing::TestWithParam<Case> {};

TEST_P(NemotronHLogits, MatchTransformers) {
  const auto& [name, decode, path] = GetParam();
  check_path(kFamily, name, decode, path);
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  const auto& [name, decode, path] = info.param;
  return name + "_" + std::string(decode_mode_name(decode)) + "_" + path_name(path);
}

INSTANTIATE_TEST_SUITE_P(
    Fixtures, NemotronHLogits,
    testing::Combine(testing::ValuesIn(fixture_names("nemotron_h")),
                     testing::Values(DecodeMode::kReplay, DecodeMode::kConventional),
                     testing::Values(Path::kOneChunk, Path::kOddChunks, Path::kTokens,
                                     Path::kDrafts, Path::kMixed)),
    case_name);

TEST(NemotronHLogitsFixtures, AreThere) { EXPECT_GE(fixture_names("nemotron_h").size(), 5U); }

TEST(NemotronHLogitsTwins, EveryTensorMatters) { check_every_tensor(kFamily); }

TEST(NemotronHLogitsBf16, StayWithinRounding) { check_bf16(kFamily); }

}  // namespace
}  // namespace replayssm::logits
