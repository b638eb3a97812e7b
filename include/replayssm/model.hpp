// A hybrid language model on disk and in memory: what it is, its tokenizer, its weights.
//
// A model is a Hugging Face folder (config.json, *.safetensors, tokenizer.json or tiktoken.model,
// generation_config.json; docs/formats.md). replayssm/engine.hpp runs one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "replayssm/dtype.hpp"
#include "replayssm/export.h"
#include "replayssm/layer.hpp"
#include "replayssm/status.hpp"

namespace replayssm {

enum class LogLevel : std::uint8_t { kDebug = 0, kInfo = 1, kWarning = 2 };

// Receives one line a message, without a line end. Called from the thread that made the call.
// Absent: silence.
using LogCallback = std::function<void(LogLevel level, std::string_view message)>;

// What matrix products compute in. kF32 keeps f32 weights in memory; kBF16 leaves bf16 weights as
// they are and rounds the inputs of products (and what a recurrent layer takes) to bf16; norms,
// attention scores, gates, states and the residual stay f32 in both. kAuto: kF32 up to 1 GiB of
// weights in the file, else kBF16.
enum class ComputeType : std::uint8_t { kAuto = 0, kF32 = 1, kBF16 = 2 };

[[nodiscard]] constexpr std::string_view compute_type_name(ComputeType type) {
  switch (type) {
    case ComputeType::kAuto: return "auto";
    case ComputeType::kF32: return "f32";
    case ComputeType::kBF16: return "bf16";
  }
  return "unknown";
}

// The sublayers h <- h + f(norm(h)) a model is stacked from; a decoder layer of a mixer and an MLP
// counts as two. mamba2, gdn and kda are recurrent.
enum class LayerKind : std::uint8_t {
  kMamba2 = 0,
  kAttention = 1,
  kMlp = 2,
  kGdn = 3,
  kKda = 4,
  kLatentAttention = 5  // one row of keys and values a token that all heads share
};

[[nodiscard]] constexpr std::string_view layer_kind_name(LayerKind kind) {
  switch (kind) {
    case LayerKind::kMamba2: return "mamba2";
    case LayerKind::kAttention: return "attention";
    case LayerKind::kMlp: return "mlp";
    case LayerKind::kGdn: return "gdn";
    case LayerKind::kKda: return "kda";
    case LayerKind::kLatentAttention: return "latent_attention";
  }
  return "unknown";
}

// Facts of a model folder. Everything here follows from config.json, except weight_bytes and
// weight_dtype, which come from the safetensors headers where those files exist.
struct REPLAYSSM_API ModelInfo {
  std::string path;          // the folder
  std::string architecture;  // config.json's model_type, for example "nemotron_h"
  std::vector<LayerKind> layers;
  std::int64_t hidden = 0;
  std::int64_t vocab = 0;
  std::int64_t max_positions = 0;  // tokens the model was made for; 0: config.json does not say
  bool tied_embeddings = false;
  double norm_epsilon = 0.0;

  std::vector<LayerShape> recurrent;  // one a recurrent layer, in their order
  std::int64_t attention_heads = 0;   // of every attention layer, latent or not
  std::int64_t kv_heads = 0;          // of every attention layer that is not latent
  std::int64_t attention_head_dim = 0;
  std::int64_t rotary_dims = 0;   // first dims of a head that follow the position
  std::int64_t latent_width = 0;  // numbers a token leaves in a latent attention layer
  std::int64_t mlp_width = 0;

  std::int64_t parameters = 0;
  bool has_weights = false;  // the safetensors files exist
  std::int64_t weight_bytes =
      0;  // of the model's tensors as stored; without files: at 2 bytes an element
  DType weight_dtype = DType::kBF16;  // of the matrices

  ComputeType compute = ComputeType::kF32;  // as loaded, or what kAuto would choose; never kAuto
  std::int64_t resident_weight_bytes = 0;   // memory the weights take in that compute type

  [[nodiscard]] std::int64_t count(LayerKind kind) const;
  // Bytes of keys and values one token of one sequence takes, all attention layers, in `compute`.
  [[nodiscard]] std::int64_t kv_bytes_per_token() const;
  // Bytes one sequence takes in conventional decoding of one token at a time, in `compute`.
  [[nodiscard]] std::int64_t state_bytes() const;  // f32 states of all recurrent layers
  [[nodiscard]] std::int64_t conv_bytes() const;   // inputs the convolutions remember
};

// Reads config.json and the headers of the weight files, no weights.
// Errors: kNotFound (no folder, no config.json), kDataLoss (malformed), kUnsupported (names the
// part).
[[nodiscard]] REPLAYSSM_API Result<ModelInfo> inspect_model(
    const std::string& path, ComputeType compute = ComputeType::kAuto);

// Where a model named on a command line lives: an existing folder is taken as it is; "org/name" is
// looked up in `hub_folder`, the Hugging Face cache's "hub" folder. kNotFound: the message names
// the command that fetches it.
[[nodiscard]] REPLAYSSM_API Result<std::string> locate_model(const std::string& name,
                                                             const std::string& hub_folder);

struct LoadOptions {
  ComputeType compute = ComputeType::kAuto;
  int threads = 0;  // for conversion of weights; 0: the machine's
  LogCallback log;
};

// A loaded model: immutable, cheap to copy (copies share the weights), usable from several threads.
class REPLAYSSM_API Model {
 public:
  // Maps the weight files and checks every tensor's name, shape and dtype.
  // Errors: as inspect_model; kNotFound / kDataLoss / kInvalidArgument name the missing or
  // misshaped tensor.
  [[nodiscard]] static Result<Model> load(const std::string& path, const LoadOptions& options = {});

  [[nodiscard]] const ModelInfo& info() const;

  // --- tokenizer
  // False: the folder has neither tokenizer.json nor tiktoken.model; the calls below then fail with
  // kNotFound and text is empty.
  [[nodiscard]] bool has_tokenizer() const;
  // `special`: add what the tokenizer's post-processor adds (a first token), and read "<...>" names
  // of special tokens as these tokens.
  [[nodiscard]] Result<std::vector<std::int32_t>> encode(std::string_view text,
                                                         bool special = true) const;
  // Special tokens leave no text. Bytes that are not UTF-8 come out as U+FFFD.
  [[nodiscard]] Result<std::string> decode(std::span<const std::int32_t> tokens) const;
  // Tokens that end a text: of generation_config.json, or else of config.json, or else the
  // eos_token of tokenizer_config.json.
  [[nodiscard]] std::span<const std::int32_t> stop_tokens() const;

  // Text of a growing sequence in pieces that never cut a character in two.
  class TextStream {
   public:
    explicit TextStream(const Model& model);
    TextStream(TextStream&&) noexcept;
    TextStream& operator=(TextStream&&) noexcept;
    ~TextStream();
    // The text that is complete now; may be empty.
    [[nodiscard]] std::string push(std::int32_t token);
    // What was held back.
    [[nodiscard]] std::string finish();

   private:
    class Impl;
    std::unique_ptr<Impl> impl_;
  };

  class Impl;  // src/engine/model_impl.hpp
  [[nodiscard]] const Impl& impl() const { return *impl_; }

 private:
  explicit Model(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

}  // namespace replayssm
