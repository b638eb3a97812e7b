// Logits of kimi_linear against transformers (tests/logits/suite.hpp), and what a folder says of
// itself.
#include <gtest/gtest.h>

#include "tests/logits/suite.hpp"

namespace replayssm::logits {

const Family& family() {
  static const Family kFamily = {"KimiLinearLogits",
                                 "kimi_linear",
                                 6,
                                 "layers.0.input_layernorm.weight",
                                 "self_attn.o_norm.weight",
                                 {}};
  return kFamily;
}

namespace {

// A latent layer remembers one row of kv_lora_rank + qk_rope_head_dim numbers a token, whatever its
// number of heads.
TEST(KimiLinearInfo, CountsTheLatentRows) {
  const auto info = inspect_model(fixture_folder("kimi_linear", "k8_h5"), ComputeType::kBF16);
  ASSERT_TRUE(info.ok()) << info.status().to_string();
  EXPECT_EQ(info->architecture, "kimi_linear");
  EXPECT_EQ(info->count(LayerKind::kKda), 2);
  EXPECT_EQ(info->count(LayerKind::kLatentAttention), 2);
  EXPECT_EQ(info->count(LayerKind::kMlp), 4);
  EXPECT_EQ(info->kv_bytes_per_token(), 2 * (17 + 3) * 2);
  ASSERT_EQ(info->recurrent.size(), 2U);
  EXPECT_EQ(info->recurrent[1].rule, Rule::kKda);
  EXPECT_EQ(info->recurrent[1].heads, 5);
  EXPECT_EQ(info->recurrent[1].conv_channels, 3 * 5 * 8);
  EXPECT_EQ(info->state_bytes(), 2 * 5 * 8 * 8 * 4);
}

// The three convolutions and the forget gate, named as transformers has them in memory, are the
// same tensors.
TEST(KimiLinearInfo, CountsMergedTensorsOnce) {
  const auto info = inspect_model(fixture_folder("kimi_linear", "k64_saved"));
  ASSERT_TRUE(info.ok()) << info.status().to_string();
  // bf16, but for A_log [2] and dt_bias [128] of two layers.
  EXPECT_EQ(info->weight_bytes, 2 * info->parameters + 2 * 2 * (2 + 128));
}

}  // namespace
}  // namespace replayssm::logits
