// Long prompts through every kind of layer, on one worker and on several: the same logits to the
// last bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/model_impl.hpp"
#include "engine/runner.hpp"
#include "model/layers/token_loop.hpp"
#include "tests/engine/random_model.hpp"

namespace replayssm {
namespace {

using testing_models::RandomModel;

constexpr std::int64_t kVocab = 67;
constexpr std::int64_t kHidden = 40;
// So many that even the narrowest loop over them, of rows of kHidden, comes in several pieces.
constexpr std::size_t kTokens = 2 * model::kPieceNumbers / kHidden + 7;

// Mamba-2, an MLP of relu squared, attention.
RandomModel nemotron() { return {}; }

// Gated DeltaNet, attention with norms, turning and a gate, SwiGLU.
RandomModel qwen() {
  RandomModel model;
  model.prefix = "model.language_model.";
  model.config = R"({"model_type":"qwen3_5_text","vocab_size":67,"hidden_size":40,
    "intermediate_size":48,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,
    "head_dim":16,"linear_num_key_heads":2,"linear_num_value_heads":4,"linear_key_head_dim":16,
    "linear_value_head_dim":16,"linear_conv_kernel_dim":4,"rms_norm_eps":1e-6,
    "max_position_embeddings":2048,"hidden_act":"silu","attn_output_gate":true,
    "tie_word_embeddings":false,"layer_types":["linear_attention","full_attention"],
    "rope_parameters":{"rope_type":"default","rope_theta":10000,"partial_rotary_factor":0.5}})";
  return model;
}

// Kimi Delta Attention and latent attention.
RandomModel kimi() {
  RandomModel model;
  model.prefix = "model.";
  model.config = R"({"model_type":"kimi_linear","vocab_size":67,"hidden_size":40,
    "intermediate_size":48,"num_hidden_layers":2,"num_attention_heads":3,"kv_lora_rank":20,
    "q_lora_rank":12,"qk_nope_head_dim":9,"qk_rope_head_dim":16,"v_head_dim":7,
    "rms_norm_eps":1e-5,"model_max_length":2048,"first_k_dense_replace":2,"num_experts":8,
    "linear_attn_config":{"num_heads":3,"head_dim":16,"short_conv_kernel_size":4,
      "kda_layers":[1],"full_attn_layers":[2]}})";
  return model;
}

// After every token of a prompt in chunks; throws, which fails the test, on an error.
std::vector<float> logits_of(const Model& model, int threads, std::size_t chunk) {
  engine::RunnerOptions options;
  options.context = kTokens;
  options.max_prefill_tokens = static_cast<std::int64_t>(chunk);
  options.threads = threads;
  auto runner = engine::Runner::create(*model.impl().layers, options);
  if (!runner.ok()) throw std::runtime_error(runner.status().to_string());
  const auto tokens = testing_models::random_tokens(kTokens, kVocab, 5);
  engine::RunnerRow row;
  row.sequence = (*runner)->open(0).value();
  row.prefill = true;
  std::vector<float> all;
  for (std::size_t first = 0; first < kTokens; first += chunk) {
    row.tokens = std::span(tokens).subspan(first, std::min(chunk, kTokens - first));
    Status status = (*runner)->forward({&row, 1});
    if (status.ok()) {
      for (std::size_t i = 0; i < row.tokens.size(); ++i) {
        const auto logits = (*runner)->logits(0, static_cast<std::int64_t>(i));
        all.insert(all.end(), logits.begin(), logits.end());
      }
      const auto count = static_cast<std::int32_t>(row.tokens.size());
      status = (*runner)->commit({&count, 1});
    }
    if (!status.ok()) throw std::runtime_error(status.to_string());
  }
  return all;
}

// |a - b| / |b|.
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double apart = 0.0, size = 0.0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    apart += std::pow(static_cast<double>(a[i]) - b[i], 2.0);
    size += std::pow(b[i], 2.0);
  }
  return std::sqrt(apart / size);
}

TEST(Threads, ALongPromptIsTheSameOnAnyNumberOfWorkersAndInShortChunks) {
  const std::pair<const char*, RandomModel> models[] = {
      {"nemotron", nemotron()}, {"qwen", qwen()}, {"kimi", kimi()}};
  for (const auto& [name, random] : models) {
    const std::string folder = testing_models::write_model(std::string("threads_") + name, random);
    for (const ComputeType compute : {ComputeType::kF32, ComputeType::kBF16}) {
      LoadOptions load;
      load.threads = 2;
      load.compute = compute;
      const auto model = Model::load(folder, load);
      ASSERT_TRUE(model.ok()) << name << ": " << model.status().to_string();
      const std::vector<float> one = logits_of(*model, 1, kTokens);
      for (const int threads : {2, 3}) EXPECT_EQ(logits_of(*model, threads, kTokens), one) << name;
      if (compute != ComputeType::kF32) continue;
      // A number is the end of sums of at most kTokens + 100 terms in each of 6 layers, in another
      // order where chunks differ, each term rounded once.
      const double bound = 6.0 * (kTokens + 100.0) * 0x1.0p-24;
      EXPECT_LE(distance(one, logits_of(*model, 1, 64)), bound) << name;
    }
  }
}

}  // namespace
}  // namespace replayssm
