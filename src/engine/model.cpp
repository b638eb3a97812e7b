// Model: loads a folder and keeps what its copies share.
#include "replayssm/model.hpp"

#include <algorithm>
#include <utility>

#include "core/guard.hpp"
#include "core/text.hpp"
#include "engine/model_impl.hpp"
#include "engine/model_info.hpp"

namespace replayssm {
namespace {

// Stop tokens: generation_config.json (or config.json), else tokenizer_config.json's eos_token.
Result<std::vector<std::int32_t>> find_stop_tokens(const std::string& path,
                                                   const model::ModelConfig& config,
                                                   const model::Tokenizer* tokenizer) {
  std::vector<std::int32_t> stop;
  for (const std::int64_t token : config.generation.eos_tokens)
    stop.push_back(static_cast<std::int32_t>(token));
  if (stop.empty() && tokenizer != nullptr) {
    const Result<model::SpecialTokens> special = model::load_special_tokens(path, *tokenizer);
    if (!special.ok()) return special.status();
    if (special->eos) stop.push_back(*special->eos);
  }
  return stop;
}

Status load_tokenizer(const std::string& path, const ModelInfo& info, const LogCallback& log,
                      std::shared_ptr<const model::Tokenizer>& out) {
  Result<model::Tokenizer> tokenizer = model::Tokenizer::load(path);
  if (!tokenizer.ok()) {
    if (tokenizer.status().code() != StatusCode::kNotFound) return tokenizer.status();
    if (log)
      log(LogLevel::kWarning,
          "neither tokenizer.json nor tiktoken.model: tokens can be run, texts cannot");
    return {};
  }
  if (tokenizer->vocab_size() > info.vocab) {
    return error(StatusCode::kInvalidArgument, "the tokenizer has tokens up to id ",
                 tokenizer->vocab_size() - 1, ", config.json a vocab_size of ", info.vocab);
  }
  out = std::make_shared<const model::Tokenizer>(std::move(*tokenizer));
  return {};
}

}  // namespace

Model::Model(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Result<Model> Model::load(const std::string& path, const LoadOptions& options) {
  return guard([&]() -> Result<Model> {
    auto impl = std::make_shared<Impl>();
    Result<model::ModelConfig> config = model::load_config(path);
    if (!config.ok()) return config.status();
    impl->config = std::move(*config);
    Result<model::Checkpoint> checkpoint = model::Checkpoint::open(path);
    if (!checkpoint.ok()) return checkpoint.status();
    impl->checkpoint.emplace(std::move(*checkpoint));
    const Result<model::WeightMap> weights =
        model::WeightMap::check(impl->config, *impl->checkpoint, options.log);
    if (!weights.ok()) return weights.status();
    Result<ModelInfo> info = engine::describe_model(path, impl->config, &*weights, options.compute);
    if (!info.ok()) return info.status();
    impl->info = std::move(*info);
    REPLAYSSM_RETURN_IF_ERROR(load_tokenizer(path, impl->info, options.log, impl->tokenizer));
    Result<std::vector<std::int32_t>> stop =
        find_stop_tokens(path, impl->config, impl->tokenizer.get());
    if (!stop.ok()) return stop.status();
    impl->stop_tokens = std::move(*stop);

    model::WorkerPool pool(options.threads);
    Result<model::Network> layers = model::Network::load(
        impl->config, *weights, engine::activation_dtype(impl->info.compute), pool);
    if (!layers.ok()) return layers.status();
    impl->layers.emplace(std::move(*layers));
    impl->info.resident_weight_bytes = impl->layers->bytes();
    if (impl->layers->emulated() && options.log) {
      options.log(LogLevel::kWarning,
                  "this machine has no bf16 products: weights are kept in f32, twice the memory");
    }
    return Model(std::move(impl));
  });
}

const ModelInfo& Model::info() const { return impl_->info; }
bool Model::has_tokenizer() const { return impl_->tokenizer != nullptr; }
std::span<const std::int32_t> Model::stop_tokens() const { return impl_->stop_tokens; }

Result<std::vector<std::int32_t>> Model::encode(std::string_view text, bool special) const {
  return guard([&]() -> Result<std::vector<std::int32_t>> {
    if (!has_tokenizer())
      return error(StatusCode::kNotFound,
                   "model: the folder has neither tokenizer.json nor tiktoken.model");
    return impl_->tokenizer->encode(text, special);
  });
}

Result<std::string> Model::decode(std::span<const std::int32_t> tokens) const {
  return guard([&]() -> Result<std::string> {
    if (!has_tokenizer())
      return error(StatusCode::kNotFound,
                   "model: the folder has neither tokenizer.json nor tiktoken.model");
    return impl_->tokenizer->decode(tokens);
  });
}

class Model::TextStream::Impl {
 public:
  std::shared_ptr<const model::Tokenizer> tokenizer;  // kept alive: the stream refers to it
  std::optional<model::TokenStream> stream;
};

Model::TextStream::TextStream(const Model& model) : impl_(std::make_unique<Impl>()) {
  impl_->tokenizer = model.impl().tokenizer;
  if (impl_->tokenizer != nullptr) impl_->stream.emplace(*impl_->tokenizer);
}
Model::TextStream::TextStream(TextStream&&) noexcept = default;
Model::TextStream& Model::TextStream::operator=(TextStream&&) noexcept = default;
Model::TextStream::~TextStream() = default;

std::string Model::TextStream::push(std::int32_t token) {
  return impl_->stream ? impl_->stream->push(token) : std::string();
}

std::string Model::TextStream::finish() {
  return impl_->stream ? impl_->stream->finish() : std::string();
}

}  // namespace replayssm
