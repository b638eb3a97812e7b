// config.json and generation_config.json of nemotron_h: both spellings, ranges, refusals by name.
#include "model/config.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "tests/model/config_faults.hpp"
#include "tests/model/temp_folder.hpp"

namespace replayssm::model {
namespace {

// The dimensions of Nemotron-3-Nano-4B, whose tensors count 3,973,556,832 parameters.
const std::string kNano4b = R"({"model_type":"nemotron_h","vocab_size":131072,"hidden_size":3136,
  "hybrid_override_pattern":"M-M-M-MM-M-M*-M-M*-M-M-M*-M-M-MM*-MMM-M-M-","num_hidden_layers":42,
  "layer_norm_epsilon":1e-5,"conv_kernel":4,"use_conv_bias":true,"n_groups":8,"ssm_state_size":128,
  "mamba_num_heads":96,"mamba_head_dim":80,"chunk_size":256,"expand":2,"mamba_hidden_act":"silu",
  "num_attention_heads":40,"num_key_value_heads":8,"attention_head_dim":128,"intermediate_size":12544,
  "mlp_hidden_act":"relu2","use_bias":false,"mlp_bias":false,"attention_bias":false,
  "mamba_proj_bias":false,"sliding_window":null,"tie_word_embeddings":false,"residual_in_fp32":false,
  "time_step_limit":[0.0,Infinity],"bos_token_id":1,"eos_token_id":2,"pad_token_id":0,
  "rope_theta":10000,"partial_rotary_factor":1.0,"max_position_embeddings":262144})";

// kNano4b with the first `from` exchanged for `to`.
std::string changed(const std::string& from, const std::string& to) {
  return model::changed(kNano4b, from, to);
}

std::int64_t parameters(const ModelConfig& c) {
  std::int64_t sum = c.vocab_size * c.hidden_size * (c.tied_embeddings ? 1 : 2) + c.hidden_size;
  for (const LayerKind kind : c.layers) {
    sum += c.hidden_size;
    if (kind == LayerKind::kMamba2) {
      const Mamba2Config& m = c.mamba2;
      sum += m.projection_dim() * c.hidden_size +
             m.conv_dim() * (m.conv_width + (m.conv_bias ? 1 : 0)) + 3 * m.heads + m.d_inner() +
             m.d_inner() * c.hidden_size;
    } else if (kind == LayerKind::kAttention) {
      sum +=
          (2 * c.attention.heads + 2 * c.attention.kv_heads) * c.attention.head_dim * c.hidden_size;
    } else {
      sum += 2 * c.mlp.width * c.hidden_size;
    }
  }
  return sum;
}

TEST(Config, NanoFourBillion) {
  const auto config = parse_config(kNano4b);
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->layers.size(), 42u);
  EXPECT_EQ(config->layer_count(LayerKind::kMamba2), 21);
  EXPECT_EQ(config->layer_count(LayerKind::kAttention), 4);
  EXPECT_EQ(config->layer_count(LayerKind::kMlp), 17);
  EXPECT_EQ(config->mamba2.d_inner(), 7680);  // not expand * hidden_size
  EXPECT_EQ(config->mamba2.conv_dim(), 9728);
  EXPECT_EQ(config->mamba2.projection_dim(), 17504);
  EXPECT_EQ(config->attention.head_dim, 128);
  EXPECT_EQ(config->norm_epsilon, 1e-5);
  EXPECT_EQ(config->mamba2.dt_min, 0.0);
  EXPECT_EQ(config->mamba2.dt_max, INFINITY);
  EXPECT_EQ(config->generation.bos_token, 1);
  EXPECT_EQ(config->generation.eos_tokens, std::vector<std::int64_t>{2});
  EXPECT_EQ(parameters(*config), 3'973'556'832);
}

TEST(Config, TheNewerSpellingMeansTheSame) {
  std::string text = changed(
      R"("hybrid_override_pattern":"M-M-M-MM-M-M*-M-M*-M-M-M*-M-M-MM*-MMM-M-M-","num_hidden_layers":42)",
      R"("layers_block_type":["mamba","linear_attention","attention","full_attention","mlp"])");
  const auto replace = [&text](const std::string& from, const std::string& to) {
    text.replace(text.find(from), from.size(), to);
  };
  replace("layer_norm_epsilon", "norm_eps");
  replace("attention_head_dim", "head_dim");
  replace("[0.0,Infinity]", "[0.0,1e308]");
  const auto config = parse_config(text);
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->layers,
            (std::vector<LayerKind>{LayerKind::kMamba2, LayerKind::kMamba2, LayerKind::kAttention,
                                    LayerKind::kAttention, LayerKind::kMlp}));
  EXPECT_EQ(config->norm_epsilon, 1e-5);
  EXPECT_EQ(config->attention.head_dim, 128);
  EXPECT_EQ(config->mamba2.dt_max, 1e308);
}

TEST(Config, OptionalFields) {
  const auto config = parse_config(R"({"model_type":"nemotron_h","vocab_size":10,"hidden_size":48,
    "hybrid_override_pattern":"M*","layer_norm_epsilon":1e-6,"n_groups":1,"ssm_state_size":16,
    "mamba_num_heads":3,"mamba_head_dim":24,"num_attention_heads":4,"use_conv_bias":false,
    "eos_token_id":[2,3],"tie_word_embeddings":true,"residual_in_fp32":true})");
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->attention.kv_heads, 4);
  EXPECT_EQ(config->attention.head_dim, 12);
  EXPECT_FALSE(config->mamba2.conv_bias);
  EXPECT_EQ(config->mamba2.conv_width, 4);
  EXPECT_EQ(config->mamba2.dt_max, INFINITY);
  EXPECT_EQ(config->mlp.width, 0);  // no such layer, no such field
  EXPECT_TRUE(config->tied_embeddings);
  EXPECT_TRUE(config->residual_in_fp32);
  EXPECT_EQ(config->generation.eos_tokens, (std::vector<std::int64_t>{2, 3}));
  EXPECT_FALSE(config->generation.bos_token.has_value());
  EXPECT_EQ(config->max_positions, 0);
}

TEST(Config, PartsThatAreNotSupportedAreNamed) {
  EXPECT_FAULT(
      kUnsupported, R"({"model_type":"llama"})",
      "model_type 'llama' is not supported; supported are kimi_linear, nemotron_h, qwen3_5");
  EXPECT_FAULT(kUnsupported, changed("M-M-M-MM", "M-M-M-ME"), "layer 7 is a mixture of experts");
  EXPECT_FAULT(
      kUnsupported,
      changed(R"("hybrid_override_pattern")", R"("layers_block_type":["mamba","moe"],"x")"),
      "layer 1 is a mixture of experts");
  for (const char* bias : {"use_bias", "mlp_bias", "attention_bias", "mamba_proj_bias"}) {
    const std::string field = "\"" + std::string(bias) + "\":";
    EXPECT_FAULT(kUnsupported, changed(field + "false", field + "true"),
                 std::string(bias) + " true");
  }
  EXPECT_FAULT(kUnsupported, changed("relu2", "silu"), "mlp_hidden_act 'silu'");
  EXPECT_FAULT(kUnsupported, changed("\"silu\"", "\"gelu\""), "mamba_hidden_act 'gelu'");
  EXPECT_FAULT(kUnsupported, changed("\"sliding_window\":null", "\"sliding_window\":4096"),
               "sliding_window the number 4096");
  EXPECT_FAULT(
      kUnsupported,
      changed("\"sliding_window\":null", R"("quantization_config":{"quant_method":"fp8"})"),
      "quantization_config with quant_method the text 'fp8'");
}

TEST(Config, MissingAndMalformedFieldsAreNamed) {
  EXPECT_FAULT(kDataLoss, "[", "malformed");
  EXPECT_FAULT(kDataLoss, "[]", "an object is required");
  EXPECT_FAULT(kInvalidArgument, "{}", "model_type is missing");
  EXPECT_FAULT(kInvalidArgument, R"({"model_type":3})", "model_type");
  for (const char* name :
       {"vocab_size", "hidden_size", "layer_norm_epsilon", "n_groups", "ssm_state_size",
        "mamba_num_heads", "mamba_head_dim", "num_attention_heads", "intermediate_size"}) {
    const std::string quoted_name = "\"" + std::string(name) + "\":";
    EXPECT_FAULT(kInvalidArgument, changed(quoted_name, "\"_" + std::string(name) + "\":"), name);
    EXPECT_FAULT(kInvalidArgument, changed(quoted_name, quoted_name + "-1,\"y\":"), name);
    EXPECT_FAULT(kInvalidArgument, changed(quoted_name, quoted_name + "0,\"y\":"), name);
    EXPECT_FAULT(kInvalidArgument, changed(quoted_name, quoted_name + "\"8\",\"y\":"), name);
    EXPECT_FAULT(kInvalidArgument, changed(quoted_name, quoted_name + "1e18,\"y\":"), name);
    EXPECT_FAULT(kInvalidArgument, changed(quoted_name, quoted_name + "NaN,\"y\":"), name);
  }
  EXPECT_FAULT(kInvalidArgument, changed("hybrid_override_pattern", "z"), "is missing");
  for (const std::string name : {"layers_block_type", "layer_types"}) {
    EXPECT_FAULT(kInvalidArgument, changed("hybrid_override_pattern", name),
                 name + ": a list of texts is required, given the text");
  }
  EXPECT_FAULT(kInvalidArgument, changed("M-M-M-MM", "M-M-M-MX"), "layer 7 is 'X'");
  EXPECT_FAULT(kInvalidArgument, changed("\"M-M-M-MM-M-M*-M-M*-M-M-M*-M-M-MM*-MMM-M-M-\"", "\"\""),
               "at least one layer");
  EXPECT_FAULT(kInvalidArgument, changed("\"M-M-M-MM-M-M*-M-M*-M-M-M*-M-M-MM*-MMM-M-M-\"", "7"),
               "a text");
  EXPECT_FAULT(kInvalidArgument, changed("\"num_hidden_layers\":42", "\"num_hidden_layers\":41"),
               "is 41, but 42 layers are listed");
  EXPECT_FAULT(kDataLoss, changed("{\"model_type\"", "{\"vocab_size\":7,\"model_type\""),
               "appears twice");
}

TEST(Config, DimensionsMustDivide) {
  EXPECT_FAULT(kInvalidArgument, changed("\"n_groups\":8", "\"n_groups\":7"),
               "multiple of n_groups, given 96 and 7");
  EXPECT_FAULT(kInvalidArgument, changed("\"num_key_value_heads\":8", "\"num_key_value_heads\":7"),
               "multiple of num_key_value_heads, given 40 and 7");
  EXPECT_FAULT(kInvalidArgument, changed("\"attention_head_dim\":128,", "\"num_heads\":1,"),
               "head_dim is missing and hidden_size 3136 is no multiple");
  EXPECT_FAULT(kInvalidArgument, changed("\"mamba_head_dim\":80", "\"mamba_head_dim\":65536"),
               "at most 1048576");
  EXPECT_FAULT(kInvalidArgument,
               changed("\"attention_head_dim\":128", "\"attention_head_dim\":65536"),
               "at most 1048576");
}

TEST(Config, TimeStepLimit) {
  for (const char* bad : {"[0.0,NaN]", "[1.0,0.5]", "[-1,2]", "[0]", "3", "[0,\"inf\"]",
                          "[Infinity,Infinity]", "[-Infinity,Infinity]"}) {
    EXPECT_FAULT(kInvalidArgument, changed("[0.0,Infinity]", bad), "time_step_limit");
  }
  const auto config = parse_config(changed("[0.0,Infinity]", "[0.001,0.1]"));
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(
      parse_config(changed("[0.0,Infinity]", R"([0.0,{"__float__":"Infinity"}])"))->mamba2.dt_max,
      INFINITY);
  EXPECT_FAULT(kInvalidArgument, changed("[0.0,Infinity]", R"([0.0,{"__float__":"NaN"}])"),
               "time_step");
  EXPECT_FAULT(kInvalidArgument, changed("[0.0,Infinity]", R"([0.0,{"__float__":"inf"}])"),
               "time_step");
  EXPECT_EQ(config->mamba2.dt_min, 0.001);
  EXPECT_EQ(config->mamba2.dt_max, 0.1);
}

TEST(Config, TokenIdsLieInTheVocabulary) {
  EXPECT_FAULT(kInvalidArgument, changed("\"bos_token_id\":1", "\"bos_token_id\":131072"),
               "bos_token_id");
  EXPECT_FAULT(kInvalidArgument, changed("\"eos_token_id\":2", "\"eos_token_id\":[2,131072]"),
               "eos_token_id");
  EXPECT_FAULT(kInvalidArgument, changed("\"pad_token_id\":0", "\"pad_token_id\":-1"),
               "pad_token_id");
}

TEST(GenerationConfig, FieldsAndRanges) {
  const auto config = parse_generation_config(
      R"({"bos_token_id":1,"eos_token_id":[2,11],"do_sample":true,"temperature":0.7,"top_p":0.95,
          "top_k":50,"max_new_tokens":128,"repetition_penalty":1.1,"transformers_version":"4.57"})",
      12);
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->eos_tokens, (std::vector<std::int64_t>{2, 11}));
  EXPECT_EQ(config->do_sample, true);
  EXPECT_EQ(config->temperature, 0.7);
  EXPECT_EQ(config->top_p, 0.95);
  EXPECT_EQ(config->top_k, 50);
  EXPECT_EQ(config->max_new_tokens, 128);
  EXPECT_EQ(config->repetition_penalty, 1.1);
  EXPECT_FALSE(config->pad_token.has_value());
  const auto none = parse_generation_config("{}", 12);
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->do_sample.has_value() || none->temperature.has_value());
  for (const char* bad :
       {R"({"eos_token_id":12})", R"({"temperature":-1})", R"({"top_p":1.5})", R"({"top_k":-1})",
        R"({"max_new_tokens":0})", R"({"do_sample":1})", R"({"temperature":NaN})", "[]"}) {
    EXPECT_FALSE(parse_generation_config(bad, 12).ok()) << bad;
  }
}

TEST(LoadConfig, GenerationConfigGoesFirst) {
  TempFolder folder("load_config");
  EXPECT_EQ(load_config(folder.path()).status().code(), StatusCode::kNotFound);
  folder.write("config.json", kNano4b);
  auto config = load_config(folder.path());
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->generation.eos_tokens, std::vector<std::int64_t>{2});
  folder.write("generation_config.json", R"({"eos_token_id":[7,8],"temperature":0.5})");
  config = load_config(folder.path());
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->generation.eos_tokens, (std::vector<std::int64_t>{7, 8}));
  EXPECT_EQ(config->generation.bos_token, 1);
  EXPECT_EQ(config->generation.temperature, 0.5);
  folder.write("generation_config.json", "{");
  EXPECT_EQ(load_config(folder.path()).status().code(), StatusCode::kDataLoss);
}

TEST(LoadConfig, EveryFixture) {
  const auto folder = std::filesystem::path(REPLAYSSM_SOURCE_DIR) / "tests/fixtures/nemotron_h";
  int loaded = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (!entry.is_directory()) continue;
    const auto config = load_config(entry.path());
    EXPECT_TRUE(config.ok()) << config.status().to_string();
    ++loaded;
  }
  EXPECT_GE(loaded, 6);
}

}  // namespace
}  // namespace replayssm::model
