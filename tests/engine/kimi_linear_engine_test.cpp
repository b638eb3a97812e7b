// A kimi_linear folder from end to end: a tiktoken vocabulary, batches, forks, drafts, both
// decodings, and tensors that are missing or misshaped, merged or not.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "replayssm/engine.hpp"
#include "tests/engine/engine_fixture.hpp"
#include "tests/engine/random_model.hpp"

namespace replayssm {
namespace {

using engine_tests::random_tokens;
using engine_tests::Tokens;
using engine_tests::with_sequences;
using testing_models::RandomModel;
using testing_models::Tensor;
using testing_models::write_model;

constexpr std::int64_t kVocab = 260;

// K L K: 256 bytes and four special tokens.
RandomModel kimi() {
  RandomModel model;
  model.prefix = "model.";
  model.config = R"({"model_type":"kimi_linear","vocab_size":260,"hidden_size":40,
    "intermediate_size":48,"num_hidden_layers":3,"num_attention_heads":3,"kv_lora_rank":20,
    "q_lora_rank":null,"qk_nope_head_dim":9,"qk_rope_head_dim":5,"v_head_dim":7,
    "rms_norm_eps":1e-5,"model_max_length":512,"first_k_dense_replace":3,"num_experts":8,
    "linear_attn_config":{"num_heads":3,"head_dim":16,"short_conv_kernel_size":4,
      "kda_layers":[1,3],"full_attn_layers":[2]}})";
  return model;
}

Tensor& tensor(std::vector<Tensor>& tensors, const std::string& name) {
  const auto at = std::find_if(tensors.begin(), tensors.end(),
                               [&](const Tensor& each) { return each.name == name; });
  EXPECT_NE(at, tensors.end()) << name;
  return *at;
}

// What transformers makes of layer 0 in memory.
void merge_convolutions(std::vector<Tensor>& tensors) {
  const std::string mixer = "model.layers.0.self_attn.";
  Tensor merged = tensor(tensors, mixer + "q_conv1d.weight");
  merged.name = mixer + "conv1d.weight";
  for (const char* part : {"k", "v"}) {
    const Tensor& other = tensor(tensors, mixer + part + "_conv1d.weight");
    merged.values.insert(merged.values.end(), other.values.begin(), other.values.end());
    merged.shape[0] += other.shape[0];
  }
  std::erase_if(tensors, [&](const Tensor& each) {
    return each.name.starts_with(mixer) && each.name.ends_with("_conv1d.weight");
  });
  tensors.push_back(merged);
  tensor(tensors, mixer + "A_log").name = mixer + "forget_gate.A_log";
}

// Throws, which fails the test, where there is no model; so does generate().
Model load(const std::string& folder, ComputeType compute = ComputeType::kF32) {
  LoadOptions options;
  options.threads = 2;
  options.compute = compute;
  auto model = Model::load(folder, options);
  if (!model.ok()) throw std::runtime_error(model.status().to_string());
  return *model;
}

std::vector<Tokens> generate(const Model& model, EngineOptions options,
                             const std::vector<Request>& requests) {
  options.threads = 2;
  auto engine = Engine::create(model, options);
  if (!engine.ok()) throw std::runtime_error(engine.status().to_string());
  const auto generation = engine->generate(requests);
  if (!generation.ok()) throw std::runtime_error(generation.status().to_string());
  std::vector<Tokens> texts;
  for (const SequenceOutput& output : generation->sequences) texts.push_back(output.tokens);
  return texts;
}

Request request_of(std::uint64_t seed, std::int32_t continuations = 1) {
  Request request;
  request.prompt = random_tokens(20 + 9 * (seed % 3), kVocab, seed);
  request.max_new_tokens = 90;
  request.ignore_model_stop_tokens = true;
  request.continuations = continuations;
  return request;
}

// From config.json alone; its one head size is of keys and of values.
TEST(KimiLinearEngine, HeadsThatNoCacheTakesAreRefused) {
  std::string config = kimi().config;
  const std::string head = "\"head_dim\":16";
  ASSERT_NE(config.find(head), std::string::npos);
  config.replace(config.find(head), head.size(), "\"head_dim\":20");
  const std::filesystem::path folder = std::filesystem::path(REPLAYSSM_TEST_TMP) / "kimi_alone";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << config;
  const Status status = inspect_model(folder.string()).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported) << status.to_string();
  EXPECT_NE(status.message().find(
                "value_dim and key_dim must be multiples of 8 from 8 to 256, given 20 and 20"),
            std::string::npos)
      << status.message();
}

TEST(KimiLinearEngine, BatchesForksAndDraftsWriteTheSameTexts) {
  const Model model = load(write_model("kimi", kimi()));
  std::vector<Tokens> alone;
  for (const std::uint64_t seed : {1, 2, 3}) {
    alone.push_back(generate(model, with_sequences(1), {request_of(seed)}).at(0));
  }
  EXPECT_NE(alone[0], alone[1]);
  for (const DecodeMode decode : {DecodeMode::kReplay, DecodeMode::kConventional}) {
    EXPECT_EQ(
        generate(model, with_sequences(3, decode), {request_of(1), request_of(2), request_of(3)}),
        alone);
    EngineOptions drafts = with_sequences(3, decode);
    drafts.draft = DraftKind::kNgram;
    drafts.draft_tokens = 3;
    EXPECT_EQ(generate(model, drafts, {request_of(1), request_of(2), request_of(3)}), alone);
    // One prompt, forked: each continuation is the text of its own seed.
    Request forked = request_of(2, 3);
    forked.sampling.temperature = 1.0F;
    const auto together = generate(model, with_sequences(3, decode), {forked});
    ASSERT_EQ(together.size(), 3U);
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      Request single = request_of(2);
      single.sampling.temperature = 1.0F;
      single.sampling.seed = seed;
      EXPECT_EQ(generate(model, with_sequences(1, decode), {single}).at(0), together[seed]) << seed;
    }
  }
}

TEST(KimiLinearEngine, DecodingsAgreeInBothTypes) {
  const std::string folder = write_model("kimi_compare", kimi());
  for (const ComputeType compute : {ComputeType::kF32, ComputeType::kBF16}) {
    CompareOptions options;
    options.max_new_tokens = 80;
    options.window = 7;
    options.draft_tokens = 3;
    options.prefill_chunk = 16;
    options.threads = 2;
    const auto comparison = compare(load(folder, compute), random_tokens(30, kVocab, 3), options);
    ASSERT_TRUE(comparison.ok()) << comparison.status().to_string();
    EXPECT_TRUE(comparison->agree);
  }
}

TEST(KimiLinearEngine, TextThroughATiktokenVocabulary) {
  const std::string folder = write_model("kimi_text", kimi());
  std::ofstream ranks(folder + "/tiktoken.model");
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (std::size_t byte = 0; byte < 256; ++byte) {
    ranks << kLetters[byte >> 2U] << kLetters[(byte & 3U) << 4U] << "== " << byte << '\n';
  }
  ranks.close();
  const auto configure = [&](const std::string& last) {
    std::ofstream(folder + "/tokenizer_config.json")
        << R"({"added_tokens_decoder":{"256":{"content":"[BOS]","special":true},)"
        << R"("257":{"content":"[EOS]","special":true},")" << last
        << R"(":{"content":"[PAD]","special":true}},"bos_token":"[BOS]","eos_token":"[EOS]"})";
  };
  configure("259");
  const Model model = load(folder);
  ASSERT_TRUE(model.has_tokenizer());
  EXPECT_EQ(model.stop_tokens().size(), 1U);
  EXPECT_EQ(model.stop_tokens()[0], 257);
  const auto tokens = model.encode("ab[EOS]");
  ASSERT_TRUE(tokens.ok());
  EXPECT_EQ(*tokens, (Tokens{'a', 'b', 257}));  // no [BOS] in front
  EXPECT_EQ(*model.decode(*tokens), "ab");

  // A vocabulary that the embeddings do not hold.
  configure("260");
  const auto larger = Model::load(folder, LoadOptions{});
  ASSERT_FALSE(larger.ok());
  EXPECT_NE(larger.status().message().find("up to id 260"), std::string::npos)
      << larger.status().message();
}

TEST(KimiLinearEngine, MergedTensorsAreTheSameModel) {
  RandomModel merged = kimi();
  merged.damage = merge_convolutions;
  EXPECT_EQ(generate(load(write_model("kimi_merged", merged)), with_sequences(1), {request_of(1)}),
            generate(load(write_model("kimi_apart", kimi())), with_sequences(1), {request_of(1)}));
}

TEST(KimiLinearEngine, DamagedTensorsAreNamed) {
  const std::string mixer = "model.layers.0.self_attn.";
  const auto fault = [](const std::function<void(std::vector<Tensor>&)>& damage, StatusCode code,
                        const std::string& part) {
    RandomModel model = kimi();
    model.damage = damage;
    const auto loaded = Model::load(write_model("kimi_damaged", model), LoadOptions{});
    ASSERT_FALSE(loaded.ok()) << part;
    EXPECT_EQ(loaded.status().code(), code) << loaded.status().to_string();
    EXPECT_NE(loaded.status().message().find(part), std::string::npos)
        << loaded.status().message() << "\nwanted: " << part;
  };
  const auto without = [&](const std::string& name) {
    return [name](std::vector<Tensor>& tensors) {
      std::erase_if(tensors, [&](const Tensor& each) { return each.name == name; });
    };
  };
  for (const std::string name : {"q_conv1d.weight", "A_log", "f_b_proj.weight", "o_norm.weight"}) {
    fault(without(mixer + name), StatusCode::kNotFound, "tensor " + mixer + name);
  }
  fault(without("model.layers.1.self_attn.kv_b_proj.weight"), StatusCode::kNotFound,
        "kv_b_proj.weight [48, 20] is missing");
  // Merged, but not the size of three.
  fault(
      [&](std::vector<Tensor>& tensors) {
        merge_convolutions(tensors);
        Tensor& merged = tensor(tensors, mixer + "conv1d.weight");
        merged.shape[0] -= 1;
        merged.values.resize(merged.values.size() - 4);
      },
      StatusCode::kInvalidArgument, "conv1d.weight has shape [143, 1, 4]; config.json requires");
  // Both at once: the parts count and the whole has no place.
  fault(
      [&](std::vector<Tensor>& tensors) {
        std::vector<Tensor> other = tensors;
        merge_convolutions(other);
        tensors.push_back(tensor(other, mixer + "conv1d.weight"));
      },
      StatusCode::kInvalidArgument, "conv1d.weight [144, 1, 4] has no place");
  fault(
      [&](std::vector<Tensor>& tensors) {
        tensor(tensors, mixer + "A_log").shape = {3, 3};
        tensor(tensors, mixer + "A_log").values.resize(9);
      },
      StatusCode::kInvalidArgument, "A_log has shape [3, 3]; config.json requires [3]");
}

}  // namespace
}  // namespace replayssm
