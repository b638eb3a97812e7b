// What fits: the numbers of a published model, and arithmetic that adds up.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "replayssm/engine.hpp"

namespace replayssm {
namespace {

// Nemotron-3-Nano-4B's dimensions.
ModelInfo nano() {
  const std::filesystem::path folder = std::filesystem::path(REPLAYSSM_TEST_TMP) / "nano";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << R"({"model_type": "nemotron_h",
    "hybrid_override_pattern": "M-M-M-MM-M-M*-M-M*-M-M-M*-M-M-MM*-MMM-M-M-", "vocab_size": 131072,
    "hidden_size": 3136, "layer_norm_epsilon": 1e-5, "mamba_num_heads": 96, "mamba_head_dim": 80, "n_groups": 8,
    "ssm_state_size": 128, "conv_kernel": 4, "use_conv_bias": true, "num_attention_heads": 40,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12544, "tie_word_embeddings": false})";
  const auto info = inspect_model(folder.string());
  EXPECT_TRUE(info.ok()) << info.status().to_string();
  return *info;
}

TEST(Inspect, ReproducesTheParametersOfAPublishedModel) {
  const ModelInfo info = nano();
  EXPECT_EQ(info.parameters, 3973556832);  // its model card
  EXPECT_EQ(info.count(LayerKind::kMamba2), 21);
  EXPECT_EQ(info.count(LayerKind::kAttention), 4);
  EXPECT_EQ(info.count(LayerKind::kMlp), 17);
  EXPECT_EQ(info.state_bytes(), 21 * 3932160);  // 78.75 MiB
  EXPECT_EQ(info.recurrent.at(0).conv_channels, 9728);
  EXPECT_EQ(info.compute, ComputeType::kBF16);  // too large for f32 by default
  EXPECT_EQ(info.kv_bytes_per_token(), 4 * 2 * 8 * 128 * 2);
}

TEST(Plan, AddsUp) {
  const ModelInfo info = nano();
  PlanOptions options;
  options.memory_bytes = std::int64_t{80} << 30;
  options.context = 8192;
  const auto made = plan(info, options);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  ASSERT_EQ(made->rows.size(), 6U);
  EXPECT_EQ(made->weight_bytes, info.resident_weight_bytes);
  for (const PlanRow& row : made->rows) {
    EXPECT_EQ(row.sequence_bytes,
              row.kv_bytes + row.state_bytes + row.ring_bytes + row.conv_bytes + row.control_bytes);
    EXPECT_EQ(row.kv_bytes, 8192 * info.kv_bytes_per_token());
    EXPECT_EQ(row.sequences, (options.memory_bytes - made->weight_bytes) / row.sequence_bytes);
    // Replay holds one state whatever T; conventional decoding one a draft.
    const std::int64_t states = row.decode == DecodeMode::kReplay ? 1 : row.step_tokens;
    EXPECT_GE(row.state_bytes, states * info.state_bytes());
    EXPECT_LT(row.state_bytes, states * info.state_bytes() * 11 / 10);
    if (row.decode == DecodeMode::kConventional) {
      EXPECT_EQ(row.ring_bytes, 0);
    } else {
      EXPECT_GT(row.ring_bytes, 0);
    }
  }
  // With eight tokens a step, replay fits several times as many.
  EXPECT_GT(made->rows[5].sequences, 2 * made->rows[2].sequences);
  // Each T in order, conventional first.
  EXPECT_EQ(made->rows[0].decode, DecodeMode::kConventional);
  EXPECT_EQ(made->rows[4].step_tokens, 4);
}

TEST(Plan, NothingFitsIntoLittle) {
  PlanOptions options;
  options.memory_bytes = 1 << 20;
  options.context = 100;
  const auto made = plan(nano(), options);
  ASSERT_TRUE(made.ok());
  for (const PlanRow& row : made->rows) EXPECT_EQ(row.sequences, 0);
}

TEST(Plan, RefusesByName) {
  const ModelInfo info = nano();
  const auto refused = [&](auto change) {
    PlanOptions options;
    options.memory_bytes = 1 << 30;
    options.context = 100;
    change(options);
    const Status status = plan(info, options).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_NE(refused([](PlanOptions& o) { o.memory_bytes = 0; }).find("memory"), std::string::npos);
  EXPECT_NE(refused([](PlanOptions& o) { o.context = 0; }).find("context"), std::string::npos);
  EXPECT_NE(refused([](PlanOptions& o) { o.window = 0; }).find("window"), std::string::npos);
  EXPECT_NE(refused([](PlanOptions& o) { o.step_tokens = {17}; }).find("step"), std::string::npos);
}

// 4095 attention layers of 1 MiB keys a token, for 2^40 tokens.
TEST(Plan, HostileContextsAreRefused) {
  const std::filesystem::path folder = std::filesystem::path(REPLAYSSM_TEST_TMP) / "hostile";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json")
      << R"({"model_type": "nemotron_h", "hybrid_override_pattern": "M)" << std::string(4095, '*')
      << R"(", "vocab_size": 8, "hidden_size": 8, "layer_norm_epsilon": 1e-5,
    "mamba_num_heads": 1, "mamba_head_dim": 8, "n_groups": 1, "ssm_state_size": 8,
    "num_attention_heads": 65536, "num_key_value_heads": 65536, "head_dim": 16,
    "max_position_embeddings": 1099511627776})";
  const auto hostile = inspect_model(folder.string());
  ASSERT_TRUE(hostile.ok()) << hostile.status().to_string();
  PlanOptions options;
  options.memory_bytes = std::int64_t{80} << 30;
  const auto refused = [&options](const ModelInfo& info, const std::string& part) {
    const Status status = plan(info, options).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.to_string();
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  };
  // Keys and values of less than 2^62 bytes, in whole pages.
  const std::int64_t most = (std::int64_t{1} << 62) / (64 * hostile->kv_bytes_per_token()) * 64;
  const std::string limit = "context must be 1 to " + std::to_string(most) + " tokens, given ";
  refused(*hostile, limit + "1099511627776");
  options.context = most + 1;
  refused(*hostile, limit + std::to_string(most + 1));
  options.context = most;
  const auto largest = plan(*hostile, options);
  ASSERT_TRUE(largest.ok()) << largest.status().to_string();
  EXPECT_EQ(largest->rows[0].kv_bytes, most * hostile->kv_bytes_per_token());
  EXPECT_GT(largest->rows[5].sequence_bytes, largest->rows[5].kv_bytes);
  EXPECT_EQ(largest->rows[5].sequences, 0);

  const std::int64_t named = std::int64_t{1} << 40;
  options.context = std::numeric_limits<std::int64_t>::max();
  refused(nano(), "context must be 1 to " + std::to_string(named) + " tokens, given " +
                      std::to_string(options.context));
  options.context = named;
  EXPECT_TRUE(plan(nano(), options).ok());
}

}  // namespace
}  // namespace replayssm
