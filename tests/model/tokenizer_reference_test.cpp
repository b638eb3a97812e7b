// Token for token as the package `tokenizers`: five kinds of real splitting rules on 2,000 random
// texts each (tests/fixtures/tokenizer), and one small tokenizer for each part of the file (data/).
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/tokenizer.hpp"

namespace replayssm::model {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

std::string read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.is_open()) << path;
  return std::string(std::istreambuf_iterator<char>(in), {});
}

void expect_encoding(const Tokenizer& tokenizer, const Json& pair, bool special) {
  const auto ids = tokenizer.encode(pair[0].get<std::string>(), special);
  ASSERT_TRUE(ids.ok()) << ids.status().to_string();
  EXPECT_EQ(*ids, pair[1].get<Ids>()) << pair[0];
}

void expect_text(const Tokenizer& tokenizer, const Ids& ids, const std::string& text, bool skip) {
  EXPECT_EQ(tokenizer.decode(ids, skip), text);
  TokenStream stream(tokenizer, skip);
  std::string streamed;
  for (const std::int32_t id : ids) streamed += stream.push(id);
  streamed += stream.finish();
  EXPECT_EQ(streamed, text);
}

class Fixture : public testing::TestWithParam<const char*> {};

TEST_P(Fixture, TokenForToken) {
  const auto folder = std::filesystem::path(REPLAYSSM_SOURCE_DIR) / "tests/fixtures/tokenizer";
  const std::string name = GetParam();
  const auto tokenizer = Tokenizer::parse(read(folder / ("tokenizer_" + name + ".json")));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  const Json cases = Json::parse(read(folder / ("cases_" + name + ".json")));
  ASSERT_GE(cases["encode"].size(), 2000u);
  for (const Json& pair : cases["encode"]) expect_encoding(*tokenizer, pair, false);
  for (const Json& pair : cases["encode_special"]) expect_encoding(*tokenizer, pair, true);
  for (const Json& pair : cases["decode"]) {
    expect_text(*tokenizer, pair[0].get<Ids>(), pair[1].get<std::string>(), false);
  }
  // A second time over the words that are cached now.
  for (const Json& pair : cases["encode"]) expect_encoding(*tokenizer, pair, false);
}

INSTANTIATE_TEST_SUITE_P(All, Fixture,
                         testing::Values("gpt2", "qwen2", "qwen35", "tekken", "llama3"),
                         [](const auto& param) { return std::string(param.param); });

TEST(Variants, TokenForToken) {
  std::ifstream file(std::string(REPLAYSSM_SOURCE_DIR) +
                     "/tests/model/data/tokenizer_variants.jsonl");
  ASSERT_TRUE(file.is_open());
  std::string line;
  int variants = 0;
  while (std::getline(file, line)) {
    const Json variant = Json::parse(line);
    SCOPED_TRACE(variant["name"].get<std::string>());
    const auto tokenizer = Tokenizer::parse(variant["tokenizer"].dump());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
    for (const Json& pair : variant["cases"]) expect_encoding(*tokenizer, pair, true);
    for (const Json& pair : variant["decoded"]) {
      expect_text(*tokenizer, pair[0].get<Ids>(), pair[1].get<std::string>(), true);
    }
    ++variants;
  }
  EXPECT_GE(variants, 40);
}

TEST(BundledModel, RoundTrips) {
  const auto folder = std::filesystem::path(REPLAYSSM_SOURCE_DIR) / "models/austen-py-mamba2";
  const auto tokenizer = Tokenizer::load(folder);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  const auto special = load_special_tokens(folder, *tokenizer);
  ASSERT_TRUE(special.ok()) << special.status().to_string();
  ASSERT_TRUE(special->bos.has_value());
  ASSERT_TRUE(special->eos.has_value());
  EXPECT_EQ(tokenizer->vocab_size(), 2048);
  const std::string text =
      "It is a truth universally acknowledged, that def f(x): return x\n\xF0\x9F\x98\x80";
  const auto ids = tokenizer->encode(text);
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(ids->front(), *special->bos);
  EXPECT_EQ(tokenizer->decode(*ids), text);
  EXPECT_LT(ids->size(), text.size() / 2);
}

}  // namespace
}  // namespace replayssm::model
