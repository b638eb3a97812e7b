// See random_model.hpp.
#include "tests/engine/random_model.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "model/config.hpp"
#include "model/layers/bf16.hpp"
#include "model/layers/weights.hpp"

namespace replayssm::testing_models {
namespace {

std::string config_text(const RandomModel& m) {
  std::ostringstream out;
  out << R"({"model_type": "nemotron_h", "hybrid_override_pattern": ")" << m.pattern
      << R"(", "vocab_size": )" << m.vocab << ", \"hidden_size\": " << m.hidden
      << ", \"layer_norm_epsilon\": 1e-5"
      << ", \"mamba_num_heads\": " << m.mamba_heads << ", \"mamba_head_dim\": " << m.mamba_head_dim
      << ", \"n_groups\": " << m.groups << ", \"ssm_state_size\": " << m.state
      << ", \"conv_kernel\": 4, \"use_conv_bias\": true, \"num_attention_heads\": "
      << m.attention_heads << ", \"num_key_value_heads\": " << m.kv_heads
      << ", \"head_dim\": " << m.head_dim << ", \"intermediate_size\": " << m.mlp_width
      << ", \"max_position_embeddings\": " << m.max_positions
      << ", \"tie_word_embeddings\": " << (m.tied ? "true" : "false")
      << ", \"mlp_hidden_act\": \"relu2\", \"mamba_hidden_act\": \"silu\"" << m.extra_config << "}";
  return out.str();
}

// Values that keep a random model lively: decays between 0.5 and 0.999, norms near 1, logits of a
// few units.
float value_of(const std::string& name, std::int64_t inputs, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform;
  if (name.ends_with("A_log")) return std::log(1.0F + 3.0F * uniform(random));
  if (name.ends_with("dt_bias")) return -3.0F + 2.0F * uniform(random);
  if (name.ends_with("norm.weight") || name.ends_with("layernorm.weight") ||
      name.ends_with("norm_f.weight") || name.ends_with(".D")) {
    return 1.0F + 0.2F * normal(random);
  }
  if (name.ends_with("embeddings.weight") || name.ends_with("embed_tokens.weight"))
    return normal(random);
  const float scale = name.ends_with("lm_head.weight") ? 2.0F : 1.0F;
  return scale * normal(random) / std::sqrt(static_cast<float>(inputs));
}

void append(std::string& out, const Tensor& tensor) {
  for (const float value : tensor.values) {
    if (tensor.dtype == "F32") {
      char bytes[4];
      std::memcpy(bytes, &value, 4);
      out.append(bytes, 4);
    } else {
      // F16 content does not matter: the type is refused.
      const std::uint16_t half = model::f32_to_bf16(value);
      char bytes[2];
      std::memcpy(bytes, &half, 2);
      out.append(bytes, 2);
    }
  }
}

void write_file(const std::filesystem::path& path, const std::string& content) {
  std::ofstream out(path, std::ios::binary);
  out.write(content.data(), static_cast<std::streamsize>(content.size()));
  ASSERT_TRUE(out.good()) << path;
}

}  // namespace

std::string write_model(const std::string& name, const RandomModel& m) {
  const std::filesystem::path folder = std::filesystem::path(REPLAYSSM_TEST_TMP) / name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const std::string config = m.config.empty() ? config_text(m) : m.config;
  write_file(folder / "config.json", config);
  if (!m.generation_config.empty())
    write_file(folder / "generation_config.json", m.generation_config);
  const auto parsed = model::parse_config(config);
  if (!parsed.ok()) return folder.string();  // a configuration that is to be refused

  std::mt19937_64 random(m.seed);
  std::vector<Tensor> tensors;
  for (const model::ExpectedTensor& expected : model::expected_tensors(*parsed)) {
    Tensor tensor;
    tensor.name = expected.name == "lm_head.weight" ? expected.name : m.prefix + expected.name;
    tensor.dtype = m.dtype;
    tensor.shape = expected.shape;
    std::int64_t count = 1;
    for (const std::int64_t extent : expected.shape) count *= extent;
    for (std::int64_t i = 0; i < count; ++i) {
      float value = value_of(expected.name, expected.shape.back(), random);
      // Values that bf16 holds, so that both types store the same model.
      value = model::bf16_to_f32(model::f32_to_bf16(value));
      tensor.values.push_back(value);
    }
    tensors.push_back(std::move(tensor));
  }
  if (m.damage) m.damage(tensors);

  std::ostringstream header;
  std::string data;
  header << "{";
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::size_t begin = data.size();
    append(data, tensors[i]);
    header << (i == 0 ? "" : ",") << "\"" << tensors[i].name << "\":{\"dtype\":\""
           << tensors[i].dtype << "\",\"shape\":[";
    for (std::size_t d = 0; d < tensors[i].shape.size(); ++d)
      header << (d == 0 ? "" : ",") << tensors[i].shape[d];
    header << "],\"data_offsets\":[" << begin << "," << data.size() << "]}";
  }
  header << "}";
  std::string head = header.str();
  while (head.size() % 8 != 0) head += ' ';
  const std::uint64_t length = head.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  write_file(folder / "model.safetensors", file + head + data);
  return folder.string();
}

std::vector<std::int32_t> random_tokens(std::size_t count, std::int64_t vocab, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::int32_t> tokens(count);
  for (std::int32_t& token : tokens) {
    token = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(vocab));
  }
  return tokens;
}

}  // namespace replayssm::testing_models
