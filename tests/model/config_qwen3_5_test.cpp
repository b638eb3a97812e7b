// config.json of qwen3_5: whole models and their text part alone, both spellings of the positions,
// ranges, refusals by name.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "model/config.hpp"
#include "tests/model/config_faults.hpp"

namespace replayssm::model {
namespace {

// The text part of Qwen3.5-4B.
const std::string kText = R"({"model_type":"qwen3_5_text","vocab_size":248320,"hidden_size":2560,
  "intermediate_size":9216,"num_hidden_layers":8,"rms_norm_eps":1e-6,"hidden_act":"silu",
  "layer_types":["linear_attention","linear_attention","linear_attention","full_attention",
    "linear_attention","linear_attention","linear_attention","full_attention"],
  "linear_num_key_heads":16,"linear_num_value_heads":32,"linear_key_head_dim":128,
  "linear_value_head_dim":128,"linear_conv_kernel_dim":4,"num_attention_heads":16,
  "num_key_value_heads":4,"head_dim":256,"attn_output_gate":true,"attention_bias":false,
  "full_attention_interval":4,"tie_word_embeddings":true,"max_position_embeddings":262144,
  "mtp_num_hidden_layers":1,"eos_token_id":248044,"bos_token_id":null,
  "rope_parameters":{"rope_type":"default","rope_theta":10000000,"partial_rotary_factor":0.25,
    "mrope_interleaved":true,"mrope_section":[11,11,10]}})";

// kText with the first `from` exchanged for `to`.
std::string changed(const std::string& from, const std::string& to) {
  return model::changed(kText, from, to);
}

void expect_four_billion(const ModelConfig& config) {
  EXPECT_EQ(config.family, ModelFamily::kQwen35);
  // Each decoder layer is a mixer and an MLP.
  ASSERT_EQ(config.layers.size(), 16U);
  EXPECT_EQ(config.layers[0], LayerKind::kGdn);
  EXPECT_EQ(config.layers[1], LayerKind::kMlp);
  EXPECT_EQ(config.layers[6], LayerKind::kAttention);
  EXPECT_EQ(config.layer_count(LayerKind::kGdn), 6);
  EXPECT_EQ(config.layer_count(LayerKind::kAttention), 2);
  EXPECT_EQ(config.delta.conv_dim(), 8192);
  EXPECT_EQ(config.delta.key_heads, 16);
  EXPECT_EQ(config.delta.value_heads, 32);
  EXPECT_FALSE(config.delta.sigmoid_gate);
  EXPECT_EQ(config.attention.head_dim, 256);
  EXPECT_EQ(config.attention.rotary_dims, 64);
  EXPECT_EQ(config.attention.rope_theta, 1e7);
  EXPECT_TRUE(config.attention.qk_norm);
  EXPECT_TRUE(config.attention.output_gate);
  EXPECT_EQ(config.mlp.activation, MlpActivation::kSwiGlu);
  EXPECT_EQ(config.mlp.width, 9216);
  EXPECT_EQ(config.norm_epsilon, 1e-6);
  EXPECT_EQ(config.max_positions, 262144);
  EXPECT_EQ(config.generation.eos_tokens, std::vector<std::int64_t>{248044});
  EXPECT_FALSE(config.generation.bos_token.has_value());
}

TEST(ConfigQwen35, TheTextPartAlone) {
  const auto config = parse_config(kText);
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  expect_four_billion(*config);
  EXPECT_TRUE(config->tied_embeddings);
  EXPECT_EQ(config->model_type, "qwen3_5_text");
}

TEST(ConfigQwen35, TheTextPartOfAWholeModel) {
  const auto config =
      parse_config(R"({"model_type":"qwen3_5","tie_word_embeddings":false,"text_config":)" + kText +
                   R"(,"vision_config":{"depth":27},"image_token_id":248056})");
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  expect_four_billion(*config);
  EXPECT_EQ(config->model_type, "qwen3_5");
  EXPECT_FALSE(config->tied_embeddings);  // the whole model's word counts
  const auto inherited = parse_config(R"({"model_type":"qwen3_5","text_config":)" + kText + "}");
  ASSERT_TRUE(inherited.ok());
  EXPECT_TRUE(inherited->tied_embeddings);
  EXPECT_FAULT(
      kInvalidArgument,
      R"({"model_type":"qwen3_5","text_config":)" + changed("\"hidden_size\"", "\"hidden\"") + "}",
      "text_config: hidden_size is missing");
  EXPECT_FAULT(kDataLoss, R"({"model_type":"qwen3_5","text_config":[1]})", "an object is required");
  EXPECT_FAULT(kInvalidArgument, R"({"model_type":"qwen3_5"})", "is missing");
}

TEST(ConfigQwen35, LayersFollowFromTheInterval) {
  const auto config = parse_config(changed("\"layer_types\"", "\"x\""));
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  expect_four_billion(*config);
  std::string text = changed("\"layer_types\"", "\"x\"");
  text.replace(text.find("\"full_attention_interval\":4"), 27, "\"full_attention_interval\":2");
  EXPECT_EQ(parse_config(text)->layer_count(LayerKind::kAttention), 4);
  text.replace(text.find("\"full_attention_interval\":2"), 27, "\"full_attention_interval\":0");
  EXPECT_FAULT(kInvalidArgument, text, "full_attention_interval");
}

TEST(ConfigQwen35, OlderSpellingsOfThePositions) {
  const std::string old =
      R"("rope_theta":1e5,"partial_rotary_factor":0.5,"rope_scaling":null,"x":{"rope_type":"yarn")";
  const auto config = parse_config(changed(R"("rope_parameters":{"rope_type":"default")", old));
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->attention.rotary_dims, 128);
  EXPECT_EQ(config->attention.rope_theta, 1e5);
  // rope_parameters count where both are given.
  const auto both = parse_config(changed("\"hidden_act\"", "\"rope_theta\":5,\"hidden_act\""));
  ASSERT_TRUE(both.ok());
  EXPECT_EQ(both->attention.rope_theta, 1e7);
  const auto plain = parse_config(changed("\"partial_rotary_factor\":0.25,", ""));
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->attention.rotary_dims, 64);
  EXPECT_FAULT(kInvalidArgument, changed("\"rope_theta\":10000000,", ""), "rope_theta is missing");
  EXPECT_FAULT(kInvalidArgument, changed("0.25", "0.001"), "an even number of 2 or more, given 0");
  EXPECT_FAULT(kInvalidArgument, changed("0.25", "0.13"), "an even number of 2 or more, given 33");
  EXPECT_FAULT(kInvalidArgument, changed("0.25", "1.5"), "partial_rotary_factor");
  EXPECT_FAULT(kInvalidArgument, changed("0.25", "NaN"), "partial_rotary_factor");
  EXPECT_FAULT(kInvalidArgument, changed("10000000", "Infinity"), "rope_theta");
  EXPECT_FAULT(kInvalidArgument, changed("10000000", "0"), "rope_theta");
  EXPECT_FAULT(kInvalidArgument, changed(R"("rope_parameters":{)", R"("rope_parameters":3,"x":{)"),
               "rope_parameters: an object is required");
  EXPECT_FAULT(kUnsupported, changed("\"default\"", "\"yarn\""), "rope_type 'yarn'");
  EXPECT_FAULT(kUnsupported,
               changed("\"hidden_act\"", R"("rope_scaling":{"type":"linear"},"hidden_act")"),
               "rope_scaling: rope_type 'linear'");
}

TEST(ConfigQwen35, TheOutputGate) {
  const auto with = [](const std::string& gate) {
    return changed("\"hidden_act\"", "\"output_gate_type\":" + gate + ",\"hidden_act\"");
  };
  EXPECT_TRUE(parse_config(with("\"sigmoid\""))->delta.sigmoid_gate);
  EXPECT_FALSE(parse_config(with("\"swish\""))->delta.sigmoid_gate);
  EXPECT_FALSE(parse_config(with("\"silu\""))->delta.sigmoid_gate);
  EXPECT_FAULT(kUnsupported, with("\"gelu\""), "output_gate_type 'gelu'");
  EXPECT_FAULT(kInvalidArgument, with("1"), "output_gate_type");
  EXPECT_FALSE(parse_config(changed("\"attn_output_gate\":true", "\"attn_output_gate\":false"))
                   ->attention.output_gate);
}

TEST(ConfigQwen35, PartsThatAreNotSupportedAreNamed) {
  EXPECT_FAULT(kUnsupported, R"({"model_type":"qwen3_5_moe"})", "mixture of experts (MoE)");
  EXPECT_FAULT(kUnsupported, R"({"model_type":"qwen3_5_moe_text"})", "mixture of experts (MoE)");
  EXPECT_FAULT(kUnsupported, changed("\"hidden_act\"", "\"num_experts\":256,\"hidden_act\""),
               "num_experts 256 makes it a mixture of experts (MoE)");
  EXPECT_TRUE(parse_config(changed("\"hidden_act\"", "\"num_experts\":0,\"hidden_act\"")).ok());
  EXPECT_FAULT(kUnsupported, changed("\"attention_bias\":false", "\"attention_bias\":true"),
               "attention_bias true");
  EXPECT_FAULT(kUnsupported, changed("\"silu\"", "\"gelu\""), "hidden_act 'gelu'");
  EXPECT_FAULT(kUnsupported, changed("\"hidden_act\"", R"("quantization_config":{},"hidden_act")"),
               "quantization_config");
  EXPECT_FAULT(kUnsupported,
               R"({"model_type":"qwen3_5","quantization_config":{"quant_method":"fp8"},)"
               R"("text_config":)" +
                   kText + "}",
               "quant_method the text 'fp8'");
}

TEST(ConfigQwen35, MissingAndMalformedFieldsAreNamed) {
  for (const char* name : {"vocab_size", "hidden_size", "intermediate_size", "rms_norm_eps",
                           "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
                           "linear_value_head_dim", "num_attention_heads"}) {
    const std::string quoted_name = "\"" + std::string(name) + "\":";
    EXPECT_FAULT(kInvalidArgument, changed(quoted_name, "\"_" + std::string(name) + "\":"), name);
    for (const char* bad : {"-1", "0", "\"8\"", "1e18", "NaN", "true", "[4]"}) {
      EXPECT_FAULT(kInvalidArgument, changed(quoted_name, quoted_name + bad + ",\"y\":"), name);
    }
  }
  EXPECT_FAULT(kInvalidArgument, changed("_kernel_dim\":4", "_kernel_dim\":1"), "kernel_dim");
  EXPECT_FAULT(kInvalidArgument, changed("_kernel_dim\":4", "_kernel_dim\":65"), "kernel_dim");
  EXPECT_FAULT(kInvalidArgument, changed("\"num_hidden_layers\":8", "\"num_hidden_layers\":7"),
               "is 7, but 8 layer_types are listed");
  EXPECT_FAULT(kInvalidArgument, changed("\"full_attention\",", "\"sliding\","), "'sliding'");
  EXPECT_FAULT(kInvalidArgument, changed("\"full_attention\",", "4,"), "a text is required");
  EXPECT_FAULT(kInvalidArgument, changed("\"layer_types\":", "\"layer_types\":[],\"y\":"),
               "1 to 4096 layers");
  EXPECT_FAULT(kInvalidArgument, changed("\"layer_types\":", "\"layer_types\":\"x\",\"y\":"),
               "a list of texts");
  std::string text = changed("\"layer_types\"", "\"x\"");
  text.replace(text.find("\"num_hidden_layers\""), 19, "\"y\"");
  EXPECT_FAULT(kInvalidArgument, text, "layer_types or num_hidden_layers is missing");
  EXPECT_FAULT(kInvalidArgument, changed("248044", "248320"), "eos_token_id");
}

TEST(ConfigQwen35, DimensionsMustDivide) {
  EXPECT_FAULT(kInvalidArgument,
               changed("\"linear_num_value_heads\":32", "\"linear_num_value_heads\":24"),
               "multiple of linear_num_key_heads, given 24 and 16");
  EXPECT_FAULT(kInvalidArgument, changed("\"num_key_value_heads\":4", "\"num_key_value_heads\":3"),
               "multiple of num_key_value_heads, given 16 and 3");
  EXPECT_FAULT(kInvalidArgument,
               changed("\"linear_key_head_dim\":128", "\"linear_key_head_dim\":65537"),
               "linear_key_head_dim");
  EXPECT_FAULT(kInvalidArgument,
               changed("\"linear_value_head_dim\":128", "\"linear_value_head_dim\":65536"),
               "at most 1048576");
  EXPECT_FAULT(
      kInvalidArgument,
      changed(
          R"("linear_num_key_heads":16,"linear_num_value_heads":32,"linear_key_head_dim":128)",
          R"("linear_num_key_heads":32,"linear_num_value_heads":32,"linear_key_head_dim":65536)"),
      "at most 1048576");
}

TEST(ConfigQwen35, EveryFixture) {
  const auto folder = std::filesystem::path(REPLAYSSM_SOURCE_DIR) / "tests/fixtures/qwen3_5";
  int loaded = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (!entry.is_directory()) continue;
    const auto config = load_config(entry.path());
    EXPECT_TRUE(config.ok()) << config.status().to_string();
    ++loaded;
  }
  EXPECT_GE(loaded, 5);
}

}  // namespace
}  // namespace replayssm::model
