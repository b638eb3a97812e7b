// Folders of qwen3_5: the parameters of published sizes, parts left out, tensors named as stored.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "replayssm/engine.hpp"

namespace replayssm {
namespace {

namespace fs = std::filesystem;

std::string fixture(const std::string& name) {
  return std::string(REPLAYSSM_SOURCE_DIR) + "/tests/fixtures/qwen3_5/" + name;
}

// A copy of a fixture's folder whose config.json is `edit` of the fixture's.
std::string copied(const std::string& name, const std::string& from, const std::string& to) {
  const fs::path folder = fs::path(REPLAYSSM_TEST_TMP) / "copied";
  fs::remove_all(folder);
  fs::create_directories(folder);
  fs::copy_file(fixture(name) + "/model.safetensors", folder / "model.safetensors");
  std::ifstream in(fixture(name) + "/config.json");
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  std::ofstream(folder / "config.json") << text.replace(at, from.size(), to);
  return folder.string();
}

struct Size {
  std::string name;
  std::int64_t hidden, layers, value_heads, heads, kv_heads, width;
  bool tied;
  std::int64_t parameters;  // of the text part without the prediction head
};

ModelInfo inspect(const Size& size) {
  const fs::path folder = fs::path(REPLAYSSM_TEST_TMP) / size.name;
  fs::create_directories(folder);
  std::ofstream(folder / "config.json")
      << R"({"model_type": "qwen3_5", "text_config": {"vocab_size": 248320, "hidden_size": )"
      << size.hidden << ", \"num_hidden_layers\": " << size.layers
      << ", \"linear_num_value_heads\": " << size.value_heads
      << ", \"num_attention_heads\": " << size.heads
      << ", \"num_key_value_heads\": " << size.kv_heads << ", \"intermediate_size\": " << size.width
      << ", \"tie_word_embeddings\": " << (size.tied ? "true" : "false")
      << R"(, "linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
          "head_dim": 256, "rms_norm_eps": 1e-6, "max_position_embeddings": 262144,
          "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25}}})";
  const auto info = inspect_model(folder.string());
  EXPECT_TRUE(info.ok()) << info.status().to_string();
  return info.ok() ? *info : ModelInfo{};
}

TEST(Qwen35Info, ParametersOfPublishedSizes) {
  for (const Size& size : {Size{"0.8B", 1024, 24, 16, 8, 2, 3584, true, 752393024},
                           Size{"2B", 2048, 24, 16, 8, 2, 6144, true, 1881825088},
                           Size{"4B", 2560, 32, 32, 16, 4, 9216, true, 4205751296},
                           Size{"9B", 4096, 32, 32, 16, 4, 12288, false, 8953803264},
                           Size{"27B", 5120, 64, 48, 24, 4, 17408, false, 26895998464}}) {
    const ModelInfo info = inspect(size);
    EXPECT_EQ(info.parameters, size.parameters) << size.name;
    EXPECT_EQ(info.count(LayerKind::kGdn), size.layers / 4 * 3);
    EXPECT_EQ(info.count(LayerKind::kMlp), size.layers);
    ASSERT_EQ(info.recurrent.size(), static_cast<std::size_t>(size.layers / 4 * 3));
    EXPECT_EQ(info.recurrent[0].rule, Rule::kGdn);
    EXPECT_EQ(info.state_bytes(), size.layers / 4 * 3 * size.value_heads * 128 * 128 * 4);
    EXPECT_EQ(info.rotary_dims, 64);
  }
}

TEST(Qwen35Info, BytesAndPlanOfFourBillion) {
  const ModelInfo info = inspect({"4B", 2560, 32, 32, 16, 4, 9216, true, 0});
  EXPECT_EQ(info.compute, ComputeType::kBF16);
  EXPECT_EQ(info.kv_bytes_per_token(), 32 * 1024);
  EXPECT_EQ(info.conv_bytes(), 24 * 3 * 8192 * 2);
  PlanOptions options;
  options.memory_bytes = std::int64_t{80} << 30;
  options.context = 8192;
  const auto made = plan(info, options);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  EXPECT_EQ(made->rows[0].kv_bytes, std::int64_t{8192} * 32 * 1024);
  EXPECT_GE(made->rows[0].state_bytes, info.state_bytes());
  EXPECT_GT(made->rows[5].sequences, 2 * made->rows[2].sequences);
}

TEST(Qwen35Load, VisionAndPredictionHeadAreLeftOutWithANotice) {
  std::vector<std::string> log;
  LoadOptions options;
  options.threads = 1;
  options.log = [&log](LogLevel, std::string_view line) { log.emplace_back(line); };
  const auto model = Model::load(fixture("k128_v128_r2"), options);
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  const auto noticed = [&log](const std::string& part) {
    for (const std::string& line : log) {
      if (line.find("left out") != std::string::npos && line.find(part) != std::string::npos)
        return true;
    }
    return false;
  };
  EXPECT_TRUE(noticed("vision"));
  EXPECT_TRUE(noticed("4 tensors of the multi-token prediction head"));
  // The packed weights take what the description says.
  const auto info = inspect_model(fixture("k128_v128_r2"));
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->parameters, model->info().parameters);
  EXPECT_EQ(info->weight_bytes, 2 * info->parameters);
  EXPECT_EQ(model->stop_tokens().size(), 1U);
}

TEST(Qwen35Load, TensorsAreNamedAsTheyAreStored) {
  const std::string missing =
      copied("k64_v64_r1_tied", "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false");
  const Status head = Model::load(missing).status();
  EXPECT_EQ(head.code(), StatusCode::kNotFound);
  EXPECT_NE(head.message().find("lm_head.weight [53, 20]"), std::string::npos) << head.message();

  const Status shape = Model::load(copied("k64_v64_r1_tied", "\"intermediate_size\": 28",
                                          "\"intermediate_size\": 27"))
                           .status();
  EXPECT_EQ(shape.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(shape.message().find("model.layers.0.mlp.gate_proj.weight has shape [28, 20]"),
            std::string::npos)
      << shape.message();

  const Status layers =
      Model::load(copied("sigmoid_gate", "\"num_hidden_layers\": 4", "\"num_hidden_layers\": 2"))
          .status();
  EXPECT_EQ(layers.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(layers.message().find("model.layers.2."), std::string::npos) << layers.message();
  EXPECT_NE(layers.message().find("has no place"), std::string::npos) << layers.message();
}

// From config.json alone: with weights their shapes would be refused first.
TEST(Qwen35Load, HeadsThatNoCacheTakesAreRefused) {
  const auto refused = [](const std::string& from, const std::string& to,
                          const std::string& given) {
    const std::string folder = copied("k64_v64_r1_tied", from, to);
    fs::remove(fs::path(folder) / "model.safetensors");
    const Status status = inspect_model(folder).status();
    EXPECT_EQ(status.code(), StatusCode::kUnsupported) << status.to_string();
    EXPECT_NE(status.message().find("value_dim and key_dim must be multiples of 8"),
              std::string::npos)
        << status.message();
    EXPECT_NE(status.message().find(given), std::string::npos) << status.message();
  };
  refused("\"linear_key_head_dim\": 64", "\"linear_key_head_dim\": 60", "given 64 and 60");
  refused("\"linear_value_head_dim\": 64", "\"linear_value_head_dim\": 60", "given 60 and 64");
}

// Drafts, chunks and both decodings write the same text.
TEST(Qwen35Engine, DecodingsAgree) {
  for (const char* name : {"k128_v128_r2", "k16_v24_r3", "no_attention"}) {
    LoadOptions load;
    load.threads = 1;
    const auto model = Model::load(fixture(name), load);
    ASSERT_TRUE(model.ok()) << model.status().to_string();
    CompareOptions options;
    options.max_new_tokens = 60;
    options.ignore_stop_tokens = true;
    options.threads = 1;
    const std::vector<std::int32_t> prompt = {9, 10, 11, 12, 9, 10, 11, 12, 9};
    const auto compared = compare(*model, prompt, options);
    ASSERT_TRUE(compared.ok()) << compared.status().to_string();
    EXPECT_TRUE(compared->agree) << name;
    ASSERT_EQ(compared->runs.size(), 3U);
    EXPECT_EQ(compared->runs[0].tokens.size(), 60U);
    EXPECT_LT(compared->near_ties, 30) << name;
  }
}

}  // namespace
}  // namespace replayssm
