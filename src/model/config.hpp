// What a model is: dimensions, layers and defaults, from a Hugging Face folder's config.json and
// generation_config.json.
//
// ModelConfig is layered: what every family has stands at the top, one struct for each kind of
// layer below it, and `layers` says which kind stands where. Another family adds its kinds and
// structs and leaves these alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "replayssm/layer.hpp"
#include "replayssm/model.hpp"
#include "replayssm/status.hpp"

namespace replayssm::model {

// A family names its tensors and reads its config.json in its own way (layers/families.hpp).
enum class ModelFamily : std::uint8_t { kNemotronH, kQwen35, kKimiLinear };

// A sublayer h <- h + f(rmsnorm(h)); a decoder layer of a mixer and an MLP is two of them.
using replayssm::LayerKind;

// Mamba-2 mixer. d_inner is heads * head_dim: the field `expand` of config.json does not say it.
struct Mamba2Config {
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;   // V
  std::int64_t groups = 0;     // heads is a multiple of it
  std::int64_t state_dim = 0;  // K
  std::int64_t conv_width = 0;
  bool conv_bias = true;
  // Limits of dt after softplus; by default no limit.
  double dt_min = 0;
  double dt_max = std::numeric_limits<double>::infinity();
  std::int64_t chunk_size = 0;  // tile of the reference's prefill; does not change the mathematics

  [[nodiscard]] std::int64_t d_inner() const { return heads * head_dim; }
  // Channels of the convolution: x, B, C.
  [[nodiscard]] std::int64_t conv_dim() const { return d_inner() + 2 * groups * state_dim; }
  // Rows of in_proj: z, x, B, C, dt.
  [[nodiscard]] std::int64_t projection_dim() const { return d_inner() + conv_dim() + heads; }
};

// The mixer of the delta rule: Gated DeltaNet (gdn) or Kimi Delta Attention (kda).
struct DeltaConfig {
  std::int64_t key_heads = 0;
  std::int64_t value_heads = 0;  // a multiple of key_heads; kda: the same
  std::int64_t key_dim = 0;      // K, of a head
  std::int64_t value_dim = 0;    // V
  std::int64_t conv_width = 0;
  bool sigmoid_gate = false;  // the output times sigmoid(z), else silu(z)
  GateKind gate = GateKind::kSoftplus;
  double gate_lower_bound = 0;  // kBounded
  std::int64_t gate_rank = 0;   // kda: of the two factors of each gate's projection; 0: one matrix

  [[nodiscard]] std::int64_t keys() const { return key_heads * key_dim; }
  [[nodiscard]] std::int64_t values() const { return value_heads * value_dim; }
  // Channels of the convolution: q, k, v.
  [[nodiscard]] std::int64_t conv_dim() const { return 2 * keys() + values(); }
};

// Grouped-query attention, causal, scale head_dim^-0.5.
struct AttentionConfig {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  // heads is a multiple of it
  std::int64_t head_dim = 0;
  bool output_gate = false;      // the output times sigmoid of a gate that stands behind each query
  bool qk_norm = false;          // an RMSNorm over each head of queries and keys
  std::int64_t rotary_dims = 0;  // first dims of a head, which follow the position; even; 0: none
  double rope_theta = 0;         // where rotary_dims is not 0
};

// Multi-head latent attention, causal, without positional encoding: keys and values of a token are
// linear in one row of kv_rank numbers that all heads share, and rope_dim more key dims.
struct LatentAttentionConfig {
  std::int64_t heads = 0;
  std::int64_t q_rank = 0;  // of the factors of the queries' projection; 0: one matrix
  std::int64_t kv_rank = 0;
  std::int64_t nope_dim = 0;   // key dims of a head from the latent row
  std::int64_t rope_dim = 0;   // key dims that all heads share
  std::int64_t value_dim = 0;  // of a head
  double norm_epsilon = 0;     // of the norms between the factors

  [[nodiscard]] std::int64_t key_dim() const { return nope_dim + rope_dim; }
};

// kReluSquared: W_down(relu(W_up x)^2). kSwiGlu: W_down(silu(W_gate x) * W_up x).
enum class MlpActivation : std::uint8_t { kReluSquared, kSwiGlu };

struct MlpConfig {
  std::int64_t width = 0;
  MlpActivation activation = MlpActivation::kReluSquared;
};

// Defaults for generation. Absent fields were not given.
struct GenerationConfig {
  std::optional<std::int64_t> bos_token;
  std::vector<std::int64_t> eos_tokens;  // any of them ends a text; may be empty
  std::optional<std::int64_t> pad_token;
  std::optional<bool> do_sample;
  std::optional<double> temperature;  // 0 means greedy
  std::optional<double> top_p;
  std::optional<std::int64_t> top_k;  // 0 means no limit
  std::optional<double> repetition_penalty;
  std::optional<std::int64_t> max_new_tokens;
};

struct ModelConfig {
  ModelFamily family = ModelFamily::kNemotronH;
  std::string model_type;  // as config.json spells it
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  double norm_epsilon = 0;  // of every RMSNorm
  bool tied_embeddings = false;
  bool residual_in_fp32 = false;
  std::int64_t max_positions = 0;  // what the model was trained for, 0 where not given
  std::vector<LayerKind> layers;
  // Of all layers of a kind; all zero where there is none.
  Mamba2Config mamba2;
  DeltaConfig delta;
  AttentionConfig attention;
  LatentAttentionConfig latent;
  MlpConfig mlp;
  GenerationConfig generation;

  [[nodiscard]] std::int64_t layer_count(LayerKind kind) const;
};

// Reads the text of a config.json; generation holds its token ids. kDataLoss where the text is no
// JSON, kInvalidArgument where a field is missing, of another type or outside of its range,
// kUnsupported (with the part's name and what is supported) where the model needs a part that does
// not exist here. `source` opens each message.
[[nodiscard]] Result<ModelConfig> parse_config(std::string_view json,
                                               std::string_view source = "config.json");

// Reads the text of a generation_config.json. `vocab_size` bounds the token ids.
[[nodiscard]] Result<GenerationConfig> parse_generation_config(
    std::string_view json, std::int64_t vocab_size,
    std::string_view source = "generation_config.json");

// Both files of a folder; generation_config.json may be absent, and what it gives goes before
// config.json. kNotFound where config.json is absent.
[[nodiscard]] Result<ModelConfig> load_config(const std::filesystem::path& folder);

}  // namespace replayssm::model
