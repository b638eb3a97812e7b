// The tokenizer's own contract: refusals by name, streams, invalid text, long texts, threads.
#include "model/tokenizer.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "model/tokenizer_bpe.hpp"
#include "tests/model/temp_folder.hpp"

namespace replayssm::model {
namespace {

using Ids = std::vector<std::int32_t>;

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

// The parts of a small tokenizer.json: 256 bytes with their own values as ids, "ab" 256, "abc" 257.
struct Parts {
  std::string version = "\"1.0\"";
  std::string added = "[]";
  std::string normalizer = "null";
  std::string pre_tokenizer =
      R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true})";
  std::string post_processor = "null";
  std::string decoder = R"({"type":"ByteLevel"})";
  std::string model_options = R"("type":"BPE")";
  std::string vocab_end = R"(,"ab":256,"abc":257)";
  std::string merges = R"([["a","b"],"ab c"])";

  [[nodiscard]] std::string json() const {
    std::string vocab;
    for (int byte = 0; byte < 256; ++byte) {
      std::string letter;
      append_mapped_byte(letter, static_cast<std::uint8_t>(byte));
      vocab += (byte == 0 ? "\"" : ",\"") + escaped(letter) + "\":" + std::to_string(byte);
    }
    return "{\"version\":" + version + ",\"added_tokens\":" + added +
           ",\"normalizer\":" + normalizer + ",\"pre_tokenizer\":" + pre_tokenizer +
           ",\"post_processor\":" + post_processor + ",\"decoder\":" + decoder + ",\"model\":{" +
           model_options + ",\"vocab\":{" + vocab + vocab_end + "},\"merges\":" + merges + "}}";
  }
};

Tokenizer make(const Parts& parts = {}) {
  Result<Tokenizer> tokenizer = Tokenizer::parse(parts.json());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  return std::move(tokenizer).value();
}

void expect_fault(const Parts& parts, StatusCode code, const std::string& part) {
  const auto tokenizer = Tokenizer::parse(parts.json());
  ASSERT_FALSE(tokenizer.ok()) << part;
  EXPECT_EQ(tokenizer.status().code(), code) << tokenizer.status().to_string();
  EXPECT_NE(tokenizer.status().message().find(part), std::string::npos)
      << tokenizer.status().message();
  EXPECT_EQ(tokenizer.status().message().find('\n'), std::string::npos);
}

TEST(Tokenizer, MergesByRank) {
  const Tokenizer tokenizer = make();
  EXPECT_EQ(*tokenizer.encode("abcab a"), (Ids{257, 256, ' ', 'a'}));
  EXPECT_EQ(*tokenizer.encode(""), Ids{});
  EXPECT_EQ(tokenizer.vocab_size(), 258);
  EXPECT_EQ(tokenizer.token_id("abc"), 257);
  EXPECT_EQ(tokenizer.token_id("zz"), std::nullopt);
  EXPECT_EQ(tokenizer.token_bytes(257), "abc");
  EXPECT_EQ(tokenizer.token_bytes(0xE9), "\xE9");
  EXPECT_EQ(tokenizer.token_bytes(-1), "");
  EXPECT_EQ(tokenizer.token_bytes(258), "");
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8) {
  const Tokenizer tokenizer = make();
  const auto ids = tokenizer.encode("ab\xC3");
  ASSERT_FALSE(ids.ok());
  EXPECT_EQ(ids.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(ids.status().message().find("byte 2"), std::string::npos);
}

TEST(Tokenizer, DecodesAnyIds) {
  const Tokenizer tokenizer = make();
  EXPECT_EQ(tokenizer.decode(Ids{0xC3, 0xA9, 257}),
            "\xC3\xA9"
            "abc");
  EXPECT_EQ(tokenizer.decode(Ids{'x', 0xC3, 'y', -5, 5000, 0xE2, 0x82}),
            "x\xEF\xBF\xBD"
            "y\xEF\xBF\xBD");
}

TEST(TokenStream, HoldsBackIncompleteCharacters) {
  const Tokenizer tokenizer = make();
  TokenStream stream(tokenizer);
  EXPECT_EQ(stream.push('a'), "a");
  EXPECT_EQ(stream.push(0xF0), "");
  EXPECT_EQ(stream.push(0x9F), "");
  EXPECT_EQ(stream.push(0x98), "");
  EXPECT_EQ(stream.push(0x80), "\xF0\x9F\x98\x80");
  EXPECT_EQ(stream.push(0xE2), "");
  EXPECT_EQ(stream.push('b'),
            "\xEF\xBF\xBD"
            "b");
  EXPECT_EQ(stream.push(0xC3), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(stream.finish(), "");
}

TEST(Tokenizer, SpecialTokensAreFoundSkippedAndPutAround) {
  Parts parts;
  parts.added =
      R"([{"id":258,"content":"<s>","special":true},{"id":259,"content":"<x>","special":false}])";
  parts.post_processor =
      R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},)"
      R"({"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{"<s>":{"id":"<s>","ids":[258],"tokens":["<s>"]}}})";
  const Tokenizer tokenizer = make(parts);
  EXPECT_EQ(*tokenizer.encode("a<x><s>"), (Ids{258, 'a', 259, 258}));
  EXPECT_EQ(*tokenizer.encode("a<x>", false), (Ids{'a', 259}));
  EXPECT_EQ(*tokenizer.encode(""), Ids{258});
  EXPECT_EQ(tokenizer.decode(Ids{258, 'a', 259}), "a<x>");
  EXPECT_EQ(tokenizer.decode(Ids{258, 'a', 259}, false), "<s>a<x>");
  EXPECT_TRUE(tokenizer.is_special(258));
  EXPECT_FALSE(tokenizer.is_special(259));
  EXPECT_FALSE(tokenizer.is_special(-1));
  EXPECT_EQ(tokenizer.token_id("<x>"), 259);
  EXPECT_EQ(tokenizer.vocab_size(), 260);

  const auto roles = parse_special_tokens(
      R"({"bos_token":"<s>","eos_token":{"content":"<x>","lstrip":false},"pad_token":null})",
      tokenizer);
  ASSERT_TRUE(roles.ok()) << roles.status().to_string();
  EXPECT_EQ(roles->bos, 258);
  EXPECT_EQ(roles->eos, 259);
  EXPECT_FALSE(roles->pad.has_value());
  EXPECT_FALSE(parse_special_tokens(R"({"bos_token":"<nope>"})", tokenizer).ok());
  EXPECT_FALSE(parse_special_tokens(R"({"bos_token":3})", tokenizer).ok());
}

TEST(Tokenizer, RefusesOtherPartsByName) {
  const auto code = StatusCode::kUnsupported;
  Parts parts;
  expect_fault((parts = {}, parts.version = "\"2.0\"", parts), code, "version the text '2.0'");
  expect_fault((parts = {}, parts.normalizer = R"({"type":"Lowercase"})", parts), code,
               "normalizer: type the text 'Lowercase' is not supported");
  expect_fault((parts = {},
                parts.normalizer = R"({"type":"Sequence","normalizers":[{"type":"NFKC"}]})", parts),
               code, "'NFKC'");
  expect_fault((parts = {}, parts.pre_tokenizer = R"({"type":"Metaspace"})", parts), code,
               "'Metaspace'");
  expect_fault((parts = {}, parts.pre_tokenizer = "null", parts), code, "pre_tokenizer is absent");
  expect_fault((parts = {}, parts.pre_tokenizer = R"({"type":"Digits"})", parts), code,
               "no ByteLevel");
  expect_fault(
      (parts = {},
       parts.pre_tokenizer =
           R"({"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},{"type":"Digits"}]})",
       parts),
      code, "'Digits' after ByteLevel");
  expect_fault(
      (parts = {},
       parts.pre_tokenizer =
           R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"[a&&]"},"behavior":"Isolated","invert":false},{"type":"ByteLevel"}]})",
       parts),
      code, "class intersection &&");
  expect_fault(
      (parts = {},
       parts.pre_tokenizer =
           R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"a"},"behavior":"Sideways","invert":false},{"type":"ByteLevel"}]})",
       parts),
      code, "behavior 'Sideways'");
  expect_fault((parts = {}, parts.post_processor = R"({"type":"BertProcessing"})", parts), code,
               "'BertProcessing'");
  expect_fault((parts = {}, parts.decoder = R"({"type":"Metaspace"})", parts), code, "decoder");
  expect_fault((parts = {}, parts.decoder = "null", parts), code, "decoder");
  expect_fault((parts = {}, parts.model_options = R"("type":"Unigram")", parts), code, "'Unigram'");
  expect_fault((parts = {}, parts.model_options = R"("dropout":0.1)", parts), code, "dropout");
  expect_fault((parts = {}, parts.model_options = R"("continuing_subword_prefix":"##")", parts),
               code, "continuing_subword_prefix");
  expect_fault((parts = {}, parts.model_options = R"("end_of_word_suffix":"</w>")", parts), code,
               "end_of_word_suffix");
  // Options that change nothing are accepted.
  parts = {};
  parts.model_options =
      R"("dropout":0.0,"continuing_subword_prefix":"","end_of_word_suffix":"","byte_fallback":true,"unk_token":"<unk>")";
  EXPECT_EQ(*make(parts).encode("abc"), Ids{257});
  // byte_fallback matters where a byte is missing.
  std::string lacking = parts.json();
  lacking.replace(lacking.find("\"z\":122,"), 8, "");
  const auto tokenizer = Tokenizer::parse(lacking);
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_NE(tokenizer.status().message().find("byte_fallback"), std::string::npos);
}

TEST(Tokenizer, RefusesContradictions) {
  const auto code = StatusCode::kInvalidArgument;
  Parts parts;
  expect_fault((parts = {}, parts.merges = R"([["a","z"]])", parts), code,
               "'az' is not in the vocabulary");
  expect_fault((parts = {}, parts.merges = R"(["a b c"])", parts), code, "merge 0");
  expect_fault((parts = {}, parts.merges = R"(["ab"])", parts), code, "merge 0");
  expect_fault((parts = {}, parts.merges = "{}", parts), code,
               "merges must be a list, given an object");
  expect_fault((parts = {}, parts.vocab_end = R"(,"ab":5,"abc":257)", parts), code,
               "two tokens have the id 5");
  expect_fault((parts = {}, parts.vocab_end = R"(,"ab":-1,"abc":257)", parts), code,
               "an id from 0");
  expect_fault((parts = {}, parts.vocab_end = R"(,"ab":99999999999,"abc":257)", parts), code,
               "an id from 0");
  expect_fault((parts = {}, parts.added = R"([{"id":300,"content":"<s>"}])", parts), code,
               "'<s>' has the id 300; the vocabulary gives 258");
  expect_fault((parts = {}, parts.added = R"([{"id":1,"content":"ab"}])", parts), code,
               "gives 256");
  expect_fault((parts = {},
                parts.added = R"([{"id":258,"content":"<s>"},{"id":259,"content":"<s>"}])", parts),
               code, "'<s>' is there twice");
  expect_fault((parts = {}, parts.vocab_end = R"(,"ab":256,"abc":257,"ab":258)", parts),
               StatusCode::kDataLoss, "appears twice");
}

double seconds(const Tokenizer& tokenizer, const std::string& text, std::size_t tokens) {
  const auto start = std::chrono::steady_clock::now();
  const auto ids = tokenizer.encode(text, false);
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
  EXPECT_TRUE(ids.ok()) << ids.status().to_string();
  EXPECT_EQ(ids->size(), tokens);
  EXPECT_EQ(tokenizer.decode(*ids), text);
  return spent.count();
}

// A quadratic merge loop, mark ordering or search takes minutes to hours for these texts.
TEST(Tokenizer, LongTextsTakeLinearTime) {
  Parts parts;
  parts.normalizer = R"({"type":"NFC"})";
  parts.added = R"([{"id":258,"content":"<|long added token|>","lstrip":true,"special":true}])";
  const Tokenizer tokenizer = make(parts);
  std::string abc;
  std::string marks;
  for (int i = 0; i < 333'333; ++i) abc += "abc";
  for (int i = 0; i < 250'000; ++i) marks += "\xCC\x96";  // U+0316 orders before U+0301
  for (int i = 0; i < 250'000; ++i) marks += "\xCC\x81";
  double spent = seconds(tokenizer, abc, 333'333);
  spent += seconds(tokenizer, std::string(1'000'000, 'x'), 1'000'000);
  spent += seconds(tokenizer, std::string(1'000'000, ' '), 1'000'000);
  spent += seconds(tokenizer, std::string(1'000'000, '<'), 1'000'000);
  spent += seconds(tokenizer, marks, 1'000'000);
  EXPECT_LT(spent, 120.0);
}

TEST(Tokenizer, ThreadsShareOneTokenizer) {
  const Tokenizer tokenizer = make();
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&tokenizer, &wrong, t] {
      for (int i = 0; i < 500; ++i) {
        const auto ids = tokenizer.encode("abc ab" + std::to_string(i % 50));
        if (!ids.ok() || (*ids)[0] != 257 || (*ids)[2] != 256) ++wrong[t];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(Tokenizer, LoadsFromAFolder) {
  TempFolder folder("load");
  EXPECT_EQ(Tokenizer::load(folder.path()).status().code(), StatusCode::kNotFound);
  folder.write("tokenizer.json", Parts{}.json());
  const auto tokenizer = Tokenizer::load(folder.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  EXPECT_EQ(tokenizer->vocab_size(), 258);
  EXPECT_FALSE(load_special_tokens(folder.path(), *tokenizer)->bos.has_value());
  folder.write("tokenizer_config.json", R"({"bos_token":"abc"})");
  EXPECT_EQ(load_special_tokens(folder.path(), *tokenizer)->bos, 257);
  folder.write("tokenizer_config.json", "[");
  EXPECT_EQ(load_special_tokens(folder.path(), *tokenizer).status().code(), StatusCode::kDataLoss);
  folder.write("tokenizer.json", "{");
  EXPECT_EQ(Tokenizer::load(folder.path()).status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace replayssm::model
