// config.json of model_type qwen3_5 and qwen3_5_text: decoder layers of Gated DeltaNet or gated
// attention, each with a SwiGLU MLP.
//
// Whole models have a vision part; what describes the text stands in text_config. transformers
// saves the text part alone as qwen3_5_text, whose fields stand at the top. Position encoding: a
// token of text has the same position in all three sections of the interleaved rotary encoding
// (mrope_*), so that their sizes do not matter.
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "model/config_families.hpp"
#include "model/utf8.hpp"

namespace replayssm::model {
namespace {

class Qwen35Reader {
 public:
  // top: the whole file; text: what describes the text part, the same or a member of it.
  Qwen35Reader(const JsonValue& top, const JsonValue& text, std::string_view source)
      : top_(top, std::string(source)),
        fields_(text, &top == &text ? std::string(source) : std::string(source) + ": text_config") {
  }

  Result<ModelConfig> read() {
    config_.family = ModelFamily::kQwen35;
    config_.model_type = top_.text({"model_type"});
    refuse_quantization(top_);
    // Of the whole model, where it is given there.
    const bool tied = top_.boolean_or({"tie_word_embeddings"},
                                      fields_.boolean_or({"tie_word_embeddings"}, false));
    config_.tied_embeddings = tied;
    REPLAYSSM_RETURN_IF_ERROR(top_.status());
    refuse_unsupported();
    read_layers();
    config_.vocab_size = fields_.integer({"vocab_size"}, {1, kMaxVocab});
    config_.hidden_size = fields_.integer({"hidden_size"}, {1, kMaxDim});
    config_.norm_epsilon = fields_.real({"rms_norm_eps"}, {1e-30, 1});
    config_.max_positions =
        fields_.integer_or({"max_position_embeddings"}, {1, std::int64_t{1} << 40}, 0);
    config_.mlp.width = fields_.integer({"intermediate_size"}, {1, kMaxDim});
    config_.mlp.activation = MlpActivation::kSwiGlu;
    REPLAYSSM_RETURN_IF_ERROR(fields_.status());
    read_token_ids(top_, config_.vocab_size, config_.generation);
    read_token_ids(fields_, config_.vocab_size, config_.generation);
    REPLAYSSM_RETURN_IF_ERROR(top_.status());
    if (config_.layer_count(LayerKind::kGdn) > 0) read_delta();
    if (config_.layer_count(LayerKind::kAttention) > 0) read_attention();
    REPLAYSSM_RETURN_IF_ERROR(fields_.status());
    return std::move(config_);
  }

 private:
  void unsupported(const std::string& message) { fields_.fail(StatusCode::kUnsupported, message); }
  void invalid(const std::string& message) { fields_.fail(StatusCode::kInvalidArgument, message); }

  void refuse_unsupported() {
    for (const std::string_view experts :
         {"num_experts", "num_local_experts", "n_routed_experts"}) {
      const auto count = fields_.optional_integer({experts}, {0, kMaxDim});
      if (count.value_or(0) > 0) {
        unsupported(std::string(experts) + " " + std::to_string(*count) +
                    " makes it a mixture of experts (MoE), which is not supported; supported is a "
                    "dense MLP");
      }
    }
    refuse_flag(fields_, "attention_bias");
    require_text(fields_, "hidden_act", "silu");
    refuse_quantization(fields_);
  }

  void add_layer(LayerKind mixer) {
    config_.layers.push_back(mixer);
    config_.layers.push_back(LayerKind::kMlp);
  }

  void read_layers() {
    const auto claimed = fields_.optional_integer({"num_hidden_layers"}, {1, kMaxLayers});
    const JsonValue* list = fields_.get({"layer_types"});
    if (!fields_.status().ok()) return;
    if (list != nullptr) {
      read_layer_types(*list);
    } else if (claimed) {
      const std::int64_t interval =
          fields_.integer_or({"full_attention_interval"}, {1, kMaxLayers}, 4);
      for (std::int64_t i = 1; i <= *claimed && fields_.status().ok(); ++i) {
        add_layer(i % interval == 0 ? LayerKind::kAttention : LayerKind::kGdn);
      }
    } else {
      return invalid("layer_types or num_hidden_layers is missing");
    }
    if (!fields_.status().ok()) return;
    const auto count = static_cast<std::int64_t>(config_.layers.size() / 2);
    if (claimed.value_or(count) != count) {
      invalid("num_hidden_layers is " + std::to_string(*claimed) + ", but " +
              std::to_string(count) + " layer_types are listed");
    }
  }

  void read_layer_types(const JsonValue& list) {
    const JsonValue::Array* types = list.as_array();
    if (types == nullptr) {
      return invalid("layer_types: a list of texts is required, given " + list.describe());
    }
    if (types->empty() || static_cast<std::int64_t>(types->size()) > kMaxLayers) {
      return invalid("layer_types: 1 to " + std::to_string(kMaxLayers) +
                     " layers are accepted, given " + std::to_string(types->size()));
    }
    for (const JsonValue& type : *types) {
      const std::string* text = type.as_string();
      if (text == nullptr) {
        return invalid("layer_types: a text is required, given " + type.describe());
      }
      if (*text == "linear_attention") {
        add_layer(LayerKind::kGdn);
      } else if (*text == "full_attention") {
        add_layer(LayerKind::kAttention);
      } else {
        return invalid("layer_types: " + in_quotes(*text) +
                       " is not known; supported are linear_attention and full_attention");
      }
    }
  }

  void read_delta() {
    DeltaConfig& delta = config_.delta;
    delta.key_heads = fields_.integer({"linear_num_key_heads"}, {1, kMaxHeads});
    delta.value_heads = fields_.integer({"linear_num_value_heads"}, {1, kMaxHeads});
    delta.key_dim = fields_.integer({"linear_key_head_dim"}, {1, kMaxHeads});
    delta.value_dim = fields_.integer({"linear_value_head_dim"}, {1, kMaxHeads});
    delta.conv_width = fields_.integer_or({"linear_conv_kernel_dim"}, {2, 64}, 4);
    const std::string gate = fields_.optional_text({"output_gate_type"}).value_or("silu");
    if (!fields_.status().ok()) return;
    delta.sigmoid_gate = gate == "sigmoid";
    if (gate != "sigmoid" && gate != "silu" && gate != "swish") {
      unsupported("output_gate_type " + in_quotes(gate) +
                  " is not supported; supported are silu, swish and sigmoid");
    }
    if (delta.value_heads % delta.key_heads != 0) {
      invalid("linear_num_value_heads must be a multiple of linear_num_key_heads, given " +
              std::to_string(delta.value_heads) + " and " + std::to_string(delta.key_heads));
    }
    if (delta.keys() > kMaxDim || delta.values() > kMaxDim) {
      invalid(
          "linear_num_key_heads * linear_key_head_dim and linear_num_value_heads * "
          "linear_value_head_dim may be at most " +
          std::to_string(kMaxDim) + ", given " + std::to_string(delta.keys()) + " and " +
          std::to_string(delta.values()));
    }
  }

  void read_attention() {
    AttentionConfig& attention = config_.attention;
    read_attention_heads(fields_, config_.hidden_size, attention);
    attention.qk_norm = true;
    attention.output_gate = fields_.boolean_or({"attn_output_gate"}, true);
    if (fields_.status().ok()) read_rotary();
  }

  // rope_parameters, or as older files have it: rope_theta, partial_rotary_factor and rope_scaling
  // beside each other.
  void read_rotary() {
    AttentionConfig& attention = config_.attention;
    std::optional<double> theta = fields_.optional_real({"rope_theta"}, {1, 1e30});
    std::optional<double> factor = fields_.optional_real({"partial_rotary_factor"}, {0, 1});
    for (const std::string_view name : {"rope_parameters", "rope_scaling"}) {
      const JsonValue* value = fields_.get({name});
      if (value == nullptr) continue;
      if (value->as_object() == nullptr) {
        return invalid(std::string(name) + ": an object is required, given " + value->describe());
      }
      JsonFields rope(*value, std::string(name));
      const std::string type = rope.optional_text({"rope_type", "type"}).value_or("default");
      if (const auto given = rope.optional_real({"rope_theta"}, {1, 1e30})) theta = given;
      if (const auto given = rope.optional_real({"partial_rotary_factor"}, {0, 1})) factor = given;
      if (!rope.status().ok()) return invalid(rope.status().message());
      if (type != "default" && type != "mrope") {
        return unsupported(std::string(name) + ": rope_type " + in_quotes(type) +
                           " is not supported; supported are default and mrope");
      }
    }
    if (!fields_.status().ok()) return;
    if (!theta) return invalid("rope_theta is missing, in rope_parameters or beside it");
    // Cut to a whole number, as the reference does.
    const double dims = std::floor(static_cast<double>(attention.head_dim) * factor.value_or(0.25));
    attention.rope_theta = *theta;
    attention.rotary_dims = static_cast<std::int64_t>(dims);
    if (attention.rotary_dims < 2 || attention.rotary_dims % 2 != 0) {
      invalid("head_dim * partial_rotary_factor must be an even number of 2 or more, given " +
              std::to_string(attention.rotary_dims));
    }
  }

  JsonFields top_;
  JsonFields fields_;
  ModelConfig config_;
};

}  // namespace

Result<ModelConfig> parse_qwen3_5(const JsonValue& root, std::string_view source) {
  const JsonValue* text = root.find("text_config");
  if (text == nullptr || text->is_null()) text = &root;
  return Qwen35Reader(root, *text, source).read();
}

}  // namespace replayssm::model
