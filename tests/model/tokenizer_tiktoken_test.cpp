// tiktoken files: token for token as the package `tiktoken` (tests/fixtures/tokenizer/tiktoken),
// special tokens from tokenizer_config.json, folders, and faults of the files by name.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer.hpp"
#include "tests/model/temp_folder.hpp"

namespace replayssm::model {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

std::string base64(const std::string& bytes) {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t bits = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      const auto byte = i + k < bytes.size() ? static_cast<std::uint8_t>(bytes[i + k]) : 0U;
      bits = (bits << 8U) | byte;
    }
    for (std::size_t k = 0; k < 4; ++k) {
      out += i + k > bytes.size() ? '=' : kLetters[(bits >> (18U - 6U * k)) & 63U];
    }
  }
  return out;
}

std::string line(const std::string& token, int rank) {
  return base64(token) + " " + std::to_string(rank) + "\n";
}

// Each byte with its own value as rank.
std::string bytes_file() {
  std::string text;
  for (int byte = 0; byte < 256; ++byte)
    text += line(std::string(1, static_cast<char>(byte)), byte);
  return text;
}

Tokenizer make(const std::string& more, std::optional<std::string_view> config = std::nullopt) {
  Result<Tokenizer> tokenizer = Tokenizer::parse_tiktoken(bytes_file() + more, config);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  return std::move(tokenizer).value();
}

void expect_fault(const std::string& ranks, std::optional<std::string_view> config, StatusCode code,
                  const std::string& part) {
  const auto tokenizer = Tokenizer::parse_tiktoken(ranks, config);
  ASSERT_FALSE(tokenizer.ok()) << part;
  EXPECT_EQ(tokenizer.status().code(), code) << tokenizer.status().to_string();
  EXPECT_NE(tokenizer.status().message().find(part), std::string::npos)
      << tokenizer.status().message() << "\nwanted: " << part;
  EXPECT_EQ(tokenizer.status().message().find('\n'), std::string::npos);
}

std::string read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.is_open()) << path;
  return std::string(std::istreambuf_iterator<char>(in), {});
}

TEST(Tiktoken, TokenForToken) {
  const auto folder =
      std::filesystem::path(REPLAYSSM_SOURCE_DIR) / "tests/fixtures/tokenizer/tiktoken";
  const auto tokenizer = Tokenizer::load(folder);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  const Json cases = Json::parse(read(folder / "cases.json"));
  ASSERT_GE(cases["encode"].size(), 2000U);
  int special = 0;
  // Twice: the second time over the words that are cached then.
  for (int turn = 0; turn < 2; ++turn) {
    for (const Json& pair : cases["encode"]) {
      const auto text = pair[0].get<std::string>();
      const auto ids = tokenizer->encode(text);
      ASSERT_TRUE(ids.ok()) << ids.status().to_string();
      EXPECT_EQ(*ids, pair[1].get<Ids>()) << pair[0];
      EXPECT_EQ(tokenizer->decode(*ids, false), text);
      for (const std::int32_t id : *ids) special += id >= 2000 ? 1 : 0;
    }
  }
  EXPECT_GT(special, 100);
  for (const Json& pair : cases["decode"]) {
    EXPECT_EQ(tokenizer->decode(pair[0].get<Ids>(), false), pair[1].get<std::string>());
  }

  const auto roles = load_special_tokens(folder, *tokenizer);
  ASSERT_TRUE(roles.ok()) << roles.status().to_string();
  EXPECT_EQ(roles->bos, 2000);
  EXPECT_EQ(roles->eos, 2001);
  EXPECT_EQ(roles->pad, 2009);
  EXPECT_EQ(tokenizer->vocab_size(), 2010);
}

TEST(Tiktoken, MergesTheLowestRankWithoutAListOfMerges) {
  // "bc" goes before "ab"; "abc" is built from either side.
  const Tokenizer tokenizer = make(line("bc", 256) + line("abc", 257) + line("ab", 258));
  EXPECT_EQ(*tokenizer.encode("abcd"), (Ids{257, 'd'}));
  EXPECT_EQ(*tokenizer.encode("abbc"), (Ids{258, 256}));
  // No pair builds "xyz", but a word that is a token is found whole.
  const Tokenizer whole = make(line("xyz", 256));
  EXPECT_EQ(*whole.encode("xyz"), Ids{256});
  EXPECT_EQ(*whole.encode("xyzx"), (Ids{'x', 'y', 'z', 'x'}));
  EXPECT_EQ(whole.token_id("xyz"), 256);
}

TEST(Tiktoken, LinesMayStandInAnyOrderWithEitherLineEnd) {
  std::string shuffled = line("ab", 256);
  shuffled.insert(shuffled.size() - 1, "\r");
  const auto tokenizer = Tokenizer::parse_tiktoken(shuffled + "\n" + bytes_file(), std::nullopt);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  EXPECT_EQ(*tokenizer->encode("ab"), Ids{256});
}

TEST(Tiktoken, SpecialTokensStandBehindTheRanks) {
  const std::string config =
      R"({"added_tokens_decoder":{"259":{"content":"<tool>"},"256":{"content":"[BOS]","special":true}},)"
      R"("bos_token":"[BOS]","eos_token":null})";
  const Tokenizer tokenizer = make("", config);
  EXPECT_EQ(tokenizer.vocab_size(), 260);
  // Nothing is put around a text.
  EXPECT_EQ(*tokenizer.encode("a[BOS]b<tool>"), (Ids{'a', 256, 'b', 259}));
  EXPECT_EQ(*tokenizer.encode("<|reserved_token_257|>"), Ids{257});
  EXPECT_TRUE(tokenizer.is_special(256));
  EXPECT_TRUE(tokenizer.is_special(258));
  EXPECT_FALSE(tokenizer.is_special(259));
  EXPECT_EQ(tokenizer.decode(Ids{256, 'a', 259}), "a<tool>");

  std::string around = config;
  around.insert(1, R"("add_bos_token":true,)");
  EXPECT_EQ(*make("", around).encode("a"), (Ids{256, 'a'}));
  EXPECT_EQ(*make("", around).encode("a", false), Ids{'a'});
  around.insert(1, R"("add_eos_token":true,)");
  expect_fault(bytes_file(), around, StatusCode::kInvalidArgument,
               "add_eos_token is true, but eos_token is missing");
  expect_fault(bytes_file(), R"({"add_bos_token":true})", StatusCode::kInvalidArgument,
               "add_bos_token is true, but bos_token is missing");
}

TEST(Tiktoken, FaultsOfTheRanks) {
  const auto data = StatusCode::kDataLoss;
  const auto argument = StatusCode::kInvalidArgument;
  const std::string bytes = bytes_file();
  expect_fault("", std::nullopt, argument, "byte 0 is missing");
  expect_fault(bytes.substr(bytes.find('\n') + 1), std::nullopt, argument, "rank 0 is missing");
  expect_fault(line("ab", 0) + bytes, std::nullopt, argument, "rank 0 is there twice");
  expect_fault(bytes + line("ab", 257), std::nullopt, argument, "rank 256 is missing");
  expect_fault(bytes + line("a", 256), std::nullopt, argument,
               "the token 'a' has the rank 97 already");
  expect_fault(bytes + " 256\n", std::nullopt, argument,
               "line 257: a token of 1 to 1024 bytes is required, given 0");
  expect_fault(bytes + line(std::string(1025, 'a'), 256), std::nullopt, argument,
               "line 257: a token of 1 to 1024 bytes is required, given 1025");
  EXPECT_TRUE(
      Tokenizer::parse_tiktoken(bytes + line(std::string(1024, 'a'), 256), std::nullopt).ok());
  std::string other = bytes;  // 255 bytes and a pair
  other.replace(other.find(line("z", 'z')), line("z", 'z').size(), line("zz", 'z'));
  expect_fault(other, std::nullopt, argument, "byte 122 is missing");

  for (const char* token :
       {"YWI", "YW=I", "YW==YWIj", "====", "Y===", "YWJ=", "YX==", "Y-I=", "\xFF"}) {
    expect_fault(bytes + token + " 256\n", std::nullopt, data,
                 "line 257: a token in base64 is required");
  }
  for (const char* rank : {"", " ", " x", " -1", " 0256", " 256 ", " 256x", "  256", " 4194304",
                           " 99999999999999999999"}) {
    expect_fault(bytes + "YWI=" + rank, std::nullopt, data,
                 "line 257: behind the token a space and a rank");
  }
}

// Lines are refused where they stand, not after all of them were kept.
TEST(Tiktoken, ManyLinesAreRefusedEarly) {
  const auto repeated = [](std::string_view line, std::size_t count) {
    std::string text;
    text.reserve(line.size() * count);
    for (std::size_t i = 0; i < count; ++i) text += line;
    return text;
  };
  const auto argument = StatusCode::kInvalidArgument;
  expect_fault(repeated(" 0\n", 1'000'000), std::nullopt, argument,
               "line 1: a token of 1 to 1024 bytes is required, given 0");
  expect_fault(repeated("YQ== 0\n", (std::size_t{1} << 22U) + 1), std::nullopt, argument,
               "line 4194305: at most 4194304 tokens are accepted");
}

TEST(Tiktoken, FaultsOfTheConfiguration) {
  const auto argument = StatusCode::kInvalidArgument;
  const auto decoder = [](const std::string& inner) {
    return R"({"added_tokens_decoder":)" + inner + "}";
  };
  const std::string bytes = bytes_file();
  expect_fault(bytes, "{", StatusCode::kDataLoss, "tokenizer_config.json");
  expect_fault(bytes, std::string_view(), StatusCode::kDataLoss, "tokenizer_config.json");
  expect_fault(bytes, decoder("[]"), argument, "an object of tokens by id");
  for (const char* id : {"255", "-1", "x", "", "0256", "65792", "99999999999999999999"}) {
    expect_fault(bytes, decoder(R"({")" + std::string(id) + R"(":{"content":"<a>"}})"), argument,
                 "an id from 256, behind the ranks, to 65791");
  }
  expect_fault(bytes, decoder(R"({"256":{"content":""}})"), argument, "is empty");
  expect_fault(bytes, decoder(R"({"256":{}})"), argument, "content");
  expect_fault(bytes, decoder(R"({"256":{"content":3}})"), argument, "content");
  expect_fault(bytes, decoder(R"({"256":{"content":"<a>"},"257":{"content":"<a>"}})"), argument,
               "'<a>' is there twice");
  expect_fault(bytes,
               decoder(R"({"256":{"content":"<|reserved_token_257|>"},"258":{"content":"x"}})"),
               argument, "'<|reserved_token_257|>' is there twice");
  EXPECT_TRUE(Tokenizer::parse_tiktoken(bytes, decoder("null")).ok());
  EXPECT_TRUE(Tokenizer::parse_tiktoken(bytes, "{}").ok());
  EXPECT_EQ(make("", decoder(R"({"65791":{"content":"<a>"}})")).vocab_size(), 65792);
}

TEST(Tiktoken, FoldersWithoutTokenizerJsonUseIt) {
  TempFolder folder("tiktoken");
  const auto nothing = Tokenizer::load(folder.path());
  EXPECT_EQ(nothing.status().code(), StatusCode::kNotFound);
  EXPECT_NE(nothing.status().message().find("tiktoken.model"), std::string::npos);
  folder.write("tiktoken.model", bytes_file());
  EXPECT_EQ(Tokenizer::load(folder.path())->vocab_size(), 256);
  folder.write("tokenizer_config.json", R"({"added_tokens_decoder":{"256":{"content":"<a>"}}})");
  EXPECT_EQ(Tokenizer::load(folder.path())->vocab_size(), 257);
  // A file that is there and empty is damaged, not absent.
  folder.write("tokenizer_config.json", "");
  EXPECT_EQ(Tokenizer::load(folder.path()).status().code(), StatusCode::kDataLoss);
  folder.write("tokenizer_config.json", "{}");
  folder.write("tiktoken.model", "!");
  EXPECT_EQ(Tokenizer::load(folder.path()).status().code(), StatusCode::kDataLoss);
  // A tokenizer.json goes before it, even a broken one.
  folder.write("tiktoken.model", bytes_file());
  folder.write("tokenizer.json", "{}");
  EXPECT_FALSE(Tokenizer::load(folder.path()).ok());
}

// A quadratic merge loop takes minutes for these words.
TEST(Tiktoken, LongWordsTakeLinearTime) {
  const Tokenizer tokenizer =
      make(line("aa", 256) + line("aaaa", 257) + line("\xE6\xBC", 258) + line("\xE6\xBC\xA2", 259));
  EXPECT_EQ(tokenizer.encode(std::string(1'000'000, 'a'))->size(), 250'000U);
  std::string han;
  for (int i = 0; i < 300'000; ++i) han += "\xE6\xBC\xA2";
  EXPECT_EQ(tokenizer.encode(han)->size(), 300'000U);
  EXPECT_EQ(tokenizer.encode(std::string(1'000'000, ' '))->size(), 1'000'000U);
}

}  // namespace
}  // namespace replayssm::model
