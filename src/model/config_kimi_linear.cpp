// config.json of model_type kimi_linear: Kimi Delta Attention and latent attention without
// positional encoding, dense feed-forward layers.
//
// Two spellings exist: released files list the layers of each kind from 1 in linear_attn_config,
// transformers writes layer_types, mlp_layer_types and linear_* instead. Fields that the model does
// not use (head_dim, rope_theta, moe_* of a dense model) are not read.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "model/config_families.hpp"
#include "model/utf8.hpp"

namespace replayssm::model {
namespace {

// kv_a_layernorm and q_a_layernorm are built without an epsilon; the default of their class counts
// (transformers 5.17, KimiLinearRMSNorm).
constexpr double kLatentEpsilon = 1e-6;

class KimiReader {
 public:
  KimiReader(const JsonValue& root, std::string_view source)
      : source_(source), fields_(root, source_) {}

  Result<ModelConfig> read() {
    config_.family = ModelFamily::kKimiLinear;
    config_.model_type = fields_.text({"model_type"});
    if (const JsonValue* linear = fields_.get({"linear_attn_config"})) {
      if (linear->as_object() == nullptr) {
        invalid("linear_attn_config: an object is required, given " + linear->describe());
      } else {
        linear_.emplace(*linear, source_ + ": linear_attn_config");
      }
    }
    REPLAYSSM_RETURN_IF_ERROR(status());
    refuse_unsupported();
    read_layers();
    config_.vocab_size = fields_.integer({"vocab_size"}, {1, kMaxVocab});
    config_.hidden_size = fields_.integer({"hidden_size"}, {1, kMaxDim});
    config_.norm_epsilon = fields_.real({"rms_norm_eps"}, {1e-30, 1});
    config_.tied_embeddings = fields_.boolean_or({"tie_word_embeddings"}, false);
    config_.max_positions = fields_.integer_or({"model_max_length", "max_position_embeddings"},
                                               {1, std::int64_t{1} << 40}, 0);
    config_.mlp.width = fields_.integer({"intermediate_size"}, {1, kMaxDim});
    config_.mlp.activation = MlpActivation::kSwiGlu;
    REPLAYSSM_RETURN_IF_ERROR(status());
    read_token_ids(fields_, config_.vocab_size, config_.generation);
    if (config_.layer_count(LayerKind::kKda) > 0) read_delta();
    if (config_.layer_count(LayerKind::kLatentAttention) > 0) read_latent();
    REPLAYSSM_RETURN_IF_ERROR(status());
    return std::move(config_);
  }

 private:
  void unsupported(const std::string& message) { fields_.fail(StatusCode::kUnsupported, message); }
  void invalid(const std::string& message) { fields_.fail(StatusCode::kInvalidArgument, message); }
  [[nodiscard]] const Status& status() const {
    return !fields_.status().ok() || !linear_ ? fields_.status() : linear_->status();
  }

  void refuse_unsupported() {
    require_text(fields_, "hidden_act", "silu");
    if (!fields_.boolean_or({"mla_use_nope"}, true)) {
      unsupported(
          "mla_use_nope false (latent attention with rotary positions) is not supported; "
          "supported is true");
    }
    refuse_flag(fields_, "attention_bias");
    refuse_flag(fields_, "mla_use_output_gate");
    refuse_flag(fields_, "use_full_rank_gate");
    if (linear_) refuse_flag(*linear_, "use_full_rank_gate");
    for (const std::string_view name : {"attn_res_block_size", "sliding_window"}) {
      if (const JsonValue* value = fields_.get({name})) {
        unsupported(std::string(name) + ": " + value->describe() +
                    " is not supported; supported is null");
      }
    }
    refuse_quantization(fields_);
  }

  // The layers of one kind in linear_attn_config, counted from 1.
  void place(std::string_view name, LayerKind kind, std::vector<std::optional<LayerKind>>& kinds) {
    const auto count = static_cast<std::int64_t>(kinds.size());
    for (const std::int64_t number : linear_->integers({name}, {1, count})) {
      std::optional<LayerKind>& layer = kinds[static_cast<std::size_t>(number - 1)];
      if (layer) {
        return invalid("linear_attn_config: layer " + std::to_string(number) +
                       " (counted from 1) is listed twice");
      }
      layer = kind;
    }
  }

  // The list `name` of one text a decoder layer; null where it is absent or at fault.
  const JsonValue::Array* texts(std::string_view name, std::int64_t count) {
    const JsonValue* value = fields_.get({name});
    if (value == nullptr) return nullptr;
    const JsonValue::Array* list = value->as_array();
    bool right = list != nullptr && static_cast<std::int64_t>(list->size()) == count;
    for (std::size_t i = 0; right && i < list->size(); ++i) {
      right = (*list)[i].as_string() != nullptr;
    }
    if (right) return list;
    invalid(std::string(name) + ": a list of " + std::to_string(count) +
            " texts (num_hidden_layers) is required, given " + value->describe());
    return nullptr;
  }

  void read_layers() {
    const std::int64_t count = fields_.integer({"num_hidden_layers"}, {1, kMaxLayers});
    if (!status().ok()) return;
    std::vector<std::optional<LayerKind>> kinds(static_cast<std::size_t>(count));
    if (fields_.get({"layer_types"}) != nullptr) {
      const JsonValue::Array* list = texts("layer_types", count);
      for (std::size_t i = 0; list != nullptr && i < list->size(); ++i) {
        const std::string& type = *(*list)[i].as_string();
        if (type == "linear_attention") kinds[i] = LayerKind::kKda;
        if (type == "full_attention") kinds[i] = LayerKind::kLatentAttention;
        if (!kinds[i]) {
          return invalid("layer " + std::to_string(i) + " is " + in_quotes(type) +
                         "; supported are linear_attention and full_attention");
        }
      }
    } else if (linear_ && linear_->get({"kda_layers"}) != nullptr) {
      place("kda_layers", LayerKind::kKda, kinds);
      place("full_attn_layers", LayerKind::kLatentAttention, kinds);
    } else {
      return invalid(
          "layer_types or linear_attn_config with kda_layers and full_attn_layers is "
          "required");
    }
    if (!status().ok()) return;
    const JsonValue::Array* feed_forward = texts("mlp_layer_types", count);
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      if (!kinds[i]) {
        return invalid("linear_attn_config: layer " + std::to_string(i + 1) +
                       " (counted from 1) is in neither kda_layers nor full_attn_layers");
      }
      check_dense(i, feed_forward);
      config_.layers.push_back(*kinds[i]);
      config_.layers.push_back(LayerKind::kMlp);
    }
  }

  // Without a list, layers from first_k_dense_replace on hold experts if there are any.
  void check_dense(std::size_t layer, const JsonValue::Array* list) {
    const auto index = static_cast<std::int64_t>(layer);
    bool experts = false;
    if (list != nullptr) {
      const std::string& type = *(*list)[layer].as_string();
      experts = type == "sparse";
      if (!experts && type != "dense") {
        return invalid("mlp_layer_types: layer " + std::to_string(layer) + " is " +
                       in_quotes(type) + "; known are dense and sparse");
      }
    } else {
      const std::int64_t count =
          fields_.integer_or({"num_experts", "num_local_experts"}, {0, kMaxDim}, 0);
      const std::int64_t first = fields_.integer_or({"first_k_dense_replace"}, {0, kMaxDim}, 1);
      const std::int64_t every = fields_.integer_or({"moe_layer_freq"}, {1, kMaxDim}, 1);
      experts = count > 0 && index >= first && index % every == 0;
    }
    if (experts) {
      unsupported("layer " + std::to_string(layer) +
                  " is a mixture of experts (MoE); supported are dense feed-forward layers");
    }
  }

  std::int64_t linear(std::string_view nested, std::string_view flat, IntegerRange range) {
    return linear_ && linear_->get({nested}) != nullptr ? linear_->integer({nested}, range)
                                                        : fields_.integer({flat}, range);
  }

  void read_delta() {
    DeltaConfig& delta = config_.delta;
    delta.value_heads = linear("num_heads", "linear_num_heads", {1, kMaxHeads});
    delta.value_dim = linear("head_dim", "linear_head_dim", {1, kMaxHeads});
    delta.conv_width = linear("short_conv_kernel_size", "linear_conv_kernel_dim", {2, 64});
    delta.key_heads = delta.value_heads;
    delta.key_dim = delta.value_dim;
    delta.gate_rank = delta.value_dim;
    delta.sigmoid_gate = true;
    const bool nested = linear_ && linear_->get({"gate_lower_bound"}) != nullptr;
    JsonFields& fields = nested ? *linear_ : fields_;
    if (const JsonValue* given = fields.get({"gate_lower_bound"})) {
      const double bound = number_of(*given).value_or(0);
      // As the layers take it, in f32, which makes 0 of a tiny number: a bound of 0 would make
      // every decay 1. Written so that NaN fails.
      if (!(bound >= -1e4 && bound < 0 && static_cast<float>(bound) < 0)) {
        fields.fail(StatusCode::kInvalidArgument,
                    "gate_lower_bound: a number from -10000 to below 0 is required, given " +
                        given->describe());
        return;
      }
      delta.gate = GateKind::kBounded;
      delta.gate_lower_bound = bound;
    }
    if (status().ok() && delta.values() > kMaxDim) {
      invalid("the number of heads of the delta rule times their size may be at most " +
              std::to_string(kMaxDim) + ", given " + std::to_string(delta.values()));
    }
  }

  void read_latent() {
    LatentAttentionConfig& latent = config_.latent;
    latent.heads = fields_.integer({"num_attention_heads"}, {1, kMaxHeads});
    const std::int64_t kv_heads =
        fields_.integer_or({"num_key_value_heads"}, {1, kMaxHeads}, latent.heads);
    latent.q_rank = fields_.optional_integer({"q_lora_rank"}, {1, kMaxDim}).value_or(0);
    latent.kv_rank = fields_.integer({"kv_lora_rank"}, {1, kMaxDim});
    latent.nope_dim = fields_.integer({"qk_nope_head_dim"}, {1, kMaxHeads});
    latent.rope_dim = fields_.integer({"qk_rope_head_dim"}, {0, kMaxHeads});
    latent.value_dim = fields_.integer({"v_head_dim"}, {1, kMaxHeads});
    latent.norm_epsilon = kLatentEpsilon;
    if (!status().ok()) return;
    if (kv_heads != latent.heads) {
      return invalid("num_key_value_heads must be num_attention_heads, given " +
                     std::to_string(kv_heads) + " and " + std::to_string(latent.heads));
    }
    const std::int64_t widest =
        latent.heads * std::max({latent.key_dim(), latent.nope_dim + latent.value_dim,
                                 latent.kv_rank + latent.rope_dim});
    if (widest > kMaxDim) {
      invalid("num_attention_heads times the size of a head or of the latent row may be at most " +
              std::to_string(kMaxDim) + ", given " + std::to_string(widest));
    }
  }

  std::string source_;
  JsonFields fields_;
  std::optional<JsonFields> linear_;
  ModelConfig config_;
};

}  // namespace

Result<ModelConfig> parse_kimi_linear(const JsonValue& root, std::string_view source) {
  return KimiReader(root, source).read();
}

}  // namespace replayssm::model
