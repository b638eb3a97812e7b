// config.json of kimi_linear: both spellings, ranges, refusals by name, the released model's size.
#include <gtest/gtest.h>

#include <string>

#include "model/config.hpp"
#include "model/layers/network.hpp"
#include "tests/model/config_faults.hpp"

namespace replayssm::model {
namespace {

// Kimi-Linear-48B-A3B with all layers dense.
const std::string kDense = R"({"model_type":"kimi_linear","vocab_size":163840,"hidden_size":2304,
  "intermediate_size":9216,"num_hidden_layers":27,"num_attention_heads":32,"num_key_value_heads":32,
  "head_dim":72,"kv_lora_rank":512,"q_lora_rank":null,"qk_nope_head_dim":128,"qk_rope_head_dim":64,
  "v_head_dim":128,"mla_use_nope":true,"hidden_act":"silu","rms_norm_eps":1e-05,
  "tie_word_embeddings":false,"bos_token_id":163584,"eos_token_id":163586,"pad_token_id":163839,
  "model_max_length":1048576,"rope_theta":10000.0,"rope_scaling":null,"num_experts":256,
  "num_experts_per_token":8,"num_shared_experts":1,"moe_intermediate_size":1024,
  "first_k_dense_replace":27,"moe_layer_freq":1,"num_nextn_predict_layers":0,
  "linear_attn_config":{"num_heads":32,"head_dim":128,"short_conv_kernel_size":4,
    "kda_layers":[1,2,3,5,6,7,9,10,11,13,14,15,17,18,19,21,22,23,25,26],
    "full_attn_layers":[4,8,12,16,20,24,27]}})";

// A small one in the spelling of transformers.
const std::string kSaved = R"({"model_type":"kimi_linear","vocab_size":50,"hidden_size":24,
  "intermediate_size":32,"num_hidden_layers":2,"num_attention_heads":2,"num_key_value_heads":2,
  "kv_lora_rank":16,"q_lora_rank":6,"qk_nope_head_dim":8,"qk_rope_head_dim":4,"v_head_dim":5,
  "rms_norm_eps":1e-6,"max_position_embeddings":512,"num_experts":256,
  "layer_types":["linear_attention","full_attention"],"mlp_layer_types":["dense","dense"],
  "linear_num_heads":2,"linear_head_dim":8,"linear_conv_kernel_dim":3})";

TEST(KimiLinearConfig, TheReleasedShape) {
  const auto config = parse_config(kDense);
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->family, ModelFamily::kKimiLinear);
  EXPECT_EQ(config->layers.size(), 54U);
  EXPECT_EQ(config->layer_count(LayerKind::kKda), 20);
  EXPECT_EQ(config->layer_count(LayerKind::kLatentAttention), 7);
  EXPECT_EQ(config->layers[6], LayerKind::kLatentAttention);  // decoder layer 3, the fourth
  EXPECT_EQ(config->layers[52], LayerKind::kLatentAttention);
  EXPECT_EQ(config->delta.value_heads, 32);
  EXPECT_EQ(config->delta.key_dim, 128);
  EXPECT_EQ(config->delta.conv_dim(), 3 * 4096);
  EXPECT_EQ(config->delta.gate, GateKind::kSoftplus);
  EXPECT_EQ(config->latent.key_dim(), 192);
  EXPECT_EQ(config->latent.q_rank, 0);
  EXPECT_EQ(config->latent.norm_epsilon, 1e-6);
  EXPECT_EQ(config->max_positions, 1048576);
  EXPECT_EQ(config->generation.eos_tokens, std::vector<std::int64_t>{163586});

  const Outline outline = model::outline(*config);
  std::int64_t parameters = 0;
  for (const ExpectedTensor& tensor : outline.tensors) {
    std::int64_t elements = 1;
    for (const std::int64_t extent : tensor.shape) elements *= extent;
    parameters += elements;
  }
  // The released model has experts in all layers but the first.
  const std::int64_t dense = std::int64_t{3} * 9216 * 2304;
  const std::int64_t experts = std::int64_t{257} * 3 * 1024 * 2304 + 256 * 2304 + 256;
  EXPECT_EQ(parameters + 26 * (experts - dense), 49'122'681'728);
  ASSERT_EQ(outline.kv.size(), 7U);
  EXPECT_EQ(outline.kv[0].width(), 576);
  EXPECT_EQ(outline.recurrent[0].heads, 32);
}

TEST(KimiLinearConfig, TheSpellingOfTransformers) {
  const auto config = parse_config(kSaved);
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->layers, (std::vector<LayerKind>{LayerKind::kKda, LayerKind::kMlp,
                                                    LayerKind::kLatentAttention, LayerKind::kMlp}));
  EXPECT_EQ(config->delta.value_heads, 2);
  EXPECT_EQ(config->delta.value_dim, 8);
  EXPECT_EQ(config->delta.conv_width, 3);
  EXPECT_EQ(config->latent.q_rank, 6);
  EXPECT_EQ(config->max_positions, 512);
}

TEST(KimiLinearConfig, TheGateMayHaveALowerBound) {
  for (const std::string& text :
       {changed(kDense, "\"num_heads\":32", "\"gate_lower_bound\":-5.0,\"num_heads\":32"),
        changed(kDense, "\"head_dim\":72", "\"gate_lower_bound\":-5.0")}) {
    const auto config = parse_config(text);
    ASSERT_TRUE(config.ok()) << config.status().to_string();
    EXPECT_EQ(config->delta.gate, GateKind::kBounded);
    EXPECT_EQ(config->delta.gate_lower_bound, -5.0);
  }
  for (const char* bound : {"0", "0.5", "-1e9", "\"x\"", "-1e-50", "NaN", "-Infinity", "true"}) {
    EXPECT_FAULT(kInvalidArgument,
                 changed(kDense, "\"head_dim\":72", std::string("\"gate_lower_bound\":") + bound),
                 "gate_lower_bound: a number from -10000 to below 0 is required, given ");
    EXPECT_FAULT(kInvalidArgument,
                 changed(kDense, "\"num_heads\":32",
                         std::string("\"num_heads\":32,\"gate_lower_bound\":") + bound),
                 "linear_attn_config: gate_lower_bound: a number from -10000 to below 0");
  }
}

TEST(KimiLinearConfig, PartsThatAreNotSupportedAreNamed) {
  const auto refused = [](const std::string& from, const std::string& to, const std::string& part) {
    EXPECT_FAULT(kUnsupported, changed(kDense, from, to), part);
  };
  refused("\"first_k_dense_replace\":27", "\"first_k_dense_replace\":1",
          "layer 1 is a mixture of experts (MoE)");
  refused("\"first_k_dense_replace\":27,", "", "layer 1 is a mixture of experts");
  refused("\"first_k_dense_replace\":27,\"moe_layer_freq\":1",
          "\"first_k_dense_replace\":1,\"moe_layer_freq\":4", "layer 4 is a mixture of experts");
  refused("\"mla_use_nope\":true", "\"mla_use_nope\":false", "mla_use_nope false");
  refused("\"mla_use_nope\":true", "\"mla_use_output_gate\":true", "mla_use_output_gate");
  refused("\"num_heads\":32", "\"num_heads\":32,\"use_full_rank_gate\":true", "use_full_rank_gate");
  refused("\"head_dim\":72", "\"use_full_rank_gate\":true", "use_full_rank_gate");
  refused("\"head_dim\":72", "\"attn_res_block_size\":12", "attn_res_block_size");
  refused("\"head_dim\":72", "\"attention_bias\":true", "attention_bias");
  refused("\"hidden_act\":\"silu\"", "\"hidden_act\":\"situ\"", "hidden_act 'situ'");
  refused("\"head_dim\":72", "\"quantization_config\":{\"quant_method\":\"mxfp4\"}",
          "quantization_config");
  EXPECT_FAULT(kUnsupported, changed(kSaved, "\"dense\",\"dense\"", "\"dense\",\"sparse\""),
               "layer 1 is a mixture of experts");
  // Without experts nothing is one.
  EXPECT_TRUE(parse_config(changed(changed(kDense, "\"first_k_dense_replace\":27,", ""),
                                   "\"num_experts\":256", "\"num_experts\":null"))
                  .ok());
}

TEST(KimiLinearConfig, LayersMustAddUp) {
  const auto invalid = [](const std::string& base, const std::string& from, const std::string& to,
                          const std::string& part) {
    EXPECT_FAULT(kInvalidArgument, changed(base, from, to), part);
  };
  invalid(kDense, "[4,8,", "[4,4,8,", "layer 4 (counted from 1) is listed twice");
  invalid(kDense, "[4,8,", "[4,5,8,", "layer 5 (counted from 1) is listed twice");
  invalid(kDense, "[4,8,", "[4,", "layer 8 (counted from 1) is in neither");
  invalid(kDense, "[4,8,", "[0,8,", "full_attn_layers");
  invalid(kDense, "24,27]", "24,28]", "full_attn_layers");
  invalid(kDense, "24,27]", "24,\"27\"]", "full_attn_layers");
  invalid(kDense, "\"num_hidden_layers\":27", "\"num_hidden_layers\":26", "full_attn_layers");
  invalid(kDense, "\"num_hidden_layers\":27,", "", "num_hidden_layers");
  invalid(kDense, "\"num_hidden_layers\":27", "\"num_hidden_layers\":100000", "num_hidden_layers");
  invalid(kDense, "\"kda_layers\"", "\"kda\"", "layer_types or linear_attn_config with kda_layers");
  invalid(kDense, "\"linear_attn_config\":{", "\"linear_attn_config\":[],\"x\":{",
          "linear_attn_config: an object is required");
  invalid(kSaved, "\"full_attention\"", "\"sliding_attention\"", "layer 1 is 'sliding_attention'");
  invalid(kSaved, "\"full_attention\"", "3", "layer_types: a list of 2 texts");
  invalid(kSaved, "\"linear_attention\",", "", "layer_types: a list of 2 texts");
  invalid(kSaved, "\"dense\",\"dense\"", "\"dense\"", "mlp_layer_types: a list of 2 texts");
  invalid(kSaved, "\"dense\",\"dense\"", "\"dense\",\"thick\"", "layer 1 is 'thick'");
}

TEST(KimiLinearConfig, MissingAndMalformedFieldsAreNamed) {
  for (const char* name : {"vocab_size", "hidden_size", "intermediate_size", "num_attention_heads",
                           "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
                           "rms_norm_eps", "num_heads", "short_conv_kernel_size"}) {
    const std::string quoted = "\"" + std::string(name) + "\"";
    EXPECT_FAULT(kInvalidArgument, changed(kDense, quoted, "\"other\""),
                 name == std::string("num_heads")                ? "linear_num_heads"
                 : name == std::string("short_conv_kernel_size") ? "linear_conv_kernel_dim"
                                                                 : name);
    for (const char* value : {"-1", "\"x\"", "1e300", "99999999999"}) {
      const std::size_t at = kDense.find(quoted) + quoted.size() + 1;
      const std::size_t end = kDense.find_first_of(",}", at);
      EXPECT_FAULT(kInvalidArgument, kDense.substr(0, at) + value + kDense.substr(end), name);
    }
  }
  const auto invalid = [](const std::string& from, const std::string& to, const std::string& part) {
    EXPECT_FAULT(kInvalidArgument, changed(kDense, from, to), part);
  };
  invalid("\"num_key_value_heads\":32", "\"num_key_value_heads\":8",
          "num_key_value_heads must be num_attention_heads, given 8 and 32");
  invalid("\"q_lora_rank\":null", "\"q_lora_rank\":0", "q_lora_rank");
  invalid("\"kv_lora_rank\":512", "\"kv_lora_rank\":500000", "at most 1048576");
  invalid("\"num_heads\":32", "\"num_heads\":60000", "at most 1048576");
  invalid("\"eos_token_id\":163586", "\"eos_token_id\":163840", "eos_token_id");
}

}  // namespace
}  // namespace replayssm::model
