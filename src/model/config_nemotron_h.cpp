// config.json of model_type nemotron_h: Mamba-2, attention and relu2 MLP layers.
//
// Two generations of the file exist. The older spells the layers as hybrid_override_pattern
// ("M-M*-"), the newer as layers_block_type (a list); num_hidden_layers may be absent. Fields that
// only matter for training (time_step_min/max/floor, initializer_range, dropout) or that the model
// does not use (expand, rope_theta, partial_rotary_factor) are not read.
#include <string>
#include <utility>

#include "model/config_families.hpp"
#include "model/utf8.hpp"

namespace replayssm::model {
namespace {

constexpr std::string_view kSupportedLayers =
    "supported are Mamba-2 (M, mamba), attention (*, attention) "
    "and MLP (-, mlp)";

class NemotronReader {
 public:
  NemotronReader(const JsonValue& root, std::string_view source)
      : fields_(root, std::string(source)) {}

  Result<ModelConfig> read() {
    config_.family = ModelFamily::kNemotronH;
    config_.model_type = fields_.text({"model_type"});
    read_layers();
    refuse_unsupported();
    config_.vocab_size = fields_.integer({"vocab_size"}, {1, kMaxVocab});
    config_.hidden_size = fields_.integer({"hidden_size"}, {1, kMaxDim});
    config_.norm_epsilon =
        fields_.real({"layer_norm_epsilon", "norm_eps", "rms_norm_eps"}, {1e-30, 1});
    config_.tied_embeddings = fields_.boolean_or({"tie_word_embeddings"}, false);
    config_.residual_in_fp32 = fields_.boolean_or({"residual_in_fp32"}, false);
    config_.max_positions =
        fields_.integer_or({"max_position_embeddings"}, {1, std::int64_t{1} << 40}, 0);
    REPLAYSSM_RETURN_IF_ERROR(fields_.status());
    read_token_ids(fields_, config_.vocab_size, config_.generation);
    if (config_.layer_count(LayerKind::kMamba2) > 0) read_mamba2();
    if (config_.layer_count(LayerKind::kAttention) > 0) {
      read_attention_heads(fields_, config_.hidden_size, config_.attention);
    }
    if (config_.layer_count(LayerKind::kMlp) > 0) {
      config_.mlp.width = fields_.integer({"intermediate_size"}, {1, kMaxDim});
    }
    REPLAYSSM_RETURN_IF_ERROR(fields_.status());
    return std::move(config_);
  }

 private:
  void unsupported(const std::string& message) { fields_.fail(StatusCode::kUnsupported, message); }
  void invalid(const std::string& message) { fields_.fail(StatusCode::kInvalidArgument, message); }

  void add_layer(const std::string& spelling, std::size_t index) {
    if (spelling == "M" || spelling == "mamba" || spelling == "linear_attention") {
      config_.layers.push_back(LayerKind::kMamba2);
    } else if (spelling == "*" || spelling == "attention" || spelling == "full_attention") {
      config_.layers.push_back(LayerKind::kAttention);
    } else if (spelling == "-" || spelling == "mlp") {
      config_.layers.push_back(LayerKind::kMlp);
    } else if (spelling == "E" || spelling == "moe") {
      unsupported("layer " + std::to_string(index) + " is a mixture of experts (MoE); " +
                  std::string(kSupportedLayers));
    } else {
      invalid("layer " + std::to_string(index) + " is " + in_quotes(spelling) + "; " +
              std::string(kSupportedLayers));
    }
  }

  void read_layers() {
    const JsonValue* list = fields_.get({"layers_block_type"});
    const std::string list_name = list != nullptr ? "layers_block_type" : "layer_types";
    if (list == nullptr) list = fields_.get({"layer_types"});
    const JsonValue* pattern = fields_.get({"hybrid_override_pattern"});
    if (list != nullptr) {
      const JsonValue::Array* layers = list->as_array();
      if (layers == nullptr)
        return invalid(list_name + ": a list of texts is required, given " + list->describe());
      if (static_cast<std::int64_t>(layers->size()) > kMaxLayers)
        return refuse_count(layers->size());
      for (std::size_t i = 0; i < layers->size(); ++i) {
        const std::string* kind = (*layers)[i].as_string();
        if (kind == nullptr)
          return invalid(list_name + ": a text is required, given " + (*layers)[i].describe());
        add_layer(*kind, i);
      }
    } else if (pattern != nullptr) {
      const std::string* letters = pattern->as_string();
      if (letters == nullptr)
        return invalid("hybrid_override_pattern: a text is required, given " + pattern->describe());
      if (static_cast<std::int64_t>(letters->size()) > kMaxLayers)
        return refuse_count(letters->size());
      for (std::size_t i = 0; i < letters->size(); ++i) add_layer(std::string(1, (*letters)[i]), i);
    } else {
      return invalid("layers_block_type, layer_types or hybrid_override_pattern is missing");
    }
    if (!fields_.status().ok()) return;
    if (config_.layers.empty()) return invalid("at least one layer is required");
    const std::int64_t count = static_cast<std::int64_t>(config_.layers.size());
    const std::int64_t claimed = fields_.integer_or({"num_hidden_layers"}, {1, kMaxLayers}, count);
    if (claimed != count) {
      invalid("num_hidden_layers is " + std::to_string(claimed) + ", but " + std::to_string(count) +
              " layers are listed");
    }
  }

  void refuse_count(std::size_t count) {
    invalid("at most " + std::to_string(kMaxLayers) + " layers are accepted, given " +
            std::to_string(count));
  }

  void refuse_unsupported() {
    for (const std::string_view bias :
         {"use_bias", "mamba_proj_bias", "attention_bias", "mlp_bias"}) {
      refuse_flag(fields_, bias);
    }
    require_text(fields_, "mlp_hidden_act", "relu2");
    require_text(fields_, "mamba_hidden_act", "silu");
    if (const JsonValue* window = fields_.get({"sliding_window"})) {
      unsupported("sliding_window " + window->describe() + " is not supported; supported is null");
    }
    refuse_quantization(fields_);
  }

  void read_mamba2() {
    Mamba2Config& mamba = config_.mamba2;
    mamba.heads = fields_.integer({"mamba_num_heads"}, {1, kMaxHeads});
    mamba.head_dim = fields_.integer({"mamba_head_dim"}, {1, kMaxHeads});
    mamba.groups = fields_.integer({"n_groups", "mamba_n_groups"}, {1, kMaxHeads});
    mamba.state_dim = fields_.integer({"ssm_state_size"}, {1, kMaxHeads});
    mamba.conv_width = fields_.integer_or({"conv_kernel", "mamba_d_conv"}, {2, 64}, 4);
    mamba.conv_bias = fields_.boolean_or({"use_conv_bias", "mamba_conv_bias"}, true);
    mamba.chunk_size = fields_.integer_or({"chunk_size", "mamba_chunk_size"}, {1, kMaxDim}, 128);
    if (const JsonValue* limit = fields_.get({"time_step_limit", "mamba_dt_limit"}))
      read_limit(*limit);
    if (!fields_.status().ok()) return;
    if (mamba.heads % mamba.groups != 0) {
      invalid("mamba_num_heads must be a multiple of n_groups, given " +
              std::to_string(mamba.heads) + " and " + std::to_string(mamba.groups));
    }
    if (mamba.d_inner() > kMaxDim || mamba.groups * mamba.state_dim > kMaxDim) {
      invalid("mamba_num_heads * mamba_head_dim and n_groups * ssm_state_size may be at most " +
              std::to_string(kMaxDim) + ", given " + std::to_string(mamba.d_inner()) + " and " +
              std::to_string(mamba.groups * mamba.state_dim));
    }
  }

  void read_limit(const JsonValue& value) {
    const JsonValue::Array* pair = value.as_array();
    double limits[2] = {0, 0};
    bool numbers = pair != nullptr && pair->size() == 2;
    for (std::size_t i = 0; numbers && i < 2; ++i) {
      const std::optional<double> limit = number_of((*pair)[i]);
      numbers = limit.has_value();
      limits[i] = limit.value_or(0);
    }
    // Written so that NaN fails. The lower limit is below the upper and dt cannot be held infinite.
    if (!numbers || !(limits[0] >= 0 && limits[0] <= limits[1] &&
                      limits[0] < std::numeric_limits<double>::infinity())) {
      return invalid("time_step_limit: two numbers from 0, the lower first, are required, given " +
                     value.describe());
    }
    config_.mamba2.dt_min = limits[0];
    config_.mamba2.dt_max = limits[1];
  }

  JsonFields fields_;
  ModelConfig config_;
};

}  // namespace

Result<ModelConfig> parse_nemotron_h(const JsonValue& root, std::string_view source) {
  return NemotronReader(root, source).read();
}

}  // namespace replayssm::model
