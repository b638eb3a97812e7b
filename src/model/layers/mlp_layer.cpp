// See mlp_layer.hpp.
#include "model/layers/mlp_layer.hpp"

#include <array>

#include "model/layers/norms.hpp"
#include "model/layers/token_loop.hpp"

namespace replayssm::model {
namespace {

class ReluSquaredLayer final : public Sublayer {
 public:
  ReluSquaredLayer(const ModelConfig& config, const std::string& prefix, WeightSource& source)
      : width_(config.mlp.width),
        up_(source.linear(prefix + "up_proj.weight", width_, config.hidden_size)),
        down_(source.linear(prefix + "down_proj.weight", config.hidden_size, width_)) {}

  [[nodiscard]] Widths widths() const override {
    Widths widths;
    widths.projected = width_;
    return widths;
  }

  [[nodiscard]] Status run(Pass& pass, std::int32_t /*place*/) const override {
    Workspace& memory = pass.memory;
    void* projected = memory.projected.data();
    REPLAYSSM_RETURN_IF_ERROR(
        up_.run(memory.normed.data(), pass.tokens, projected, pass.activations, pass.products));
    with_element(pass.activations, [&](auto element) {
      auto* numbers = static_cast<decltype(element)*>(projected);
      for_tokens(pass.products.pool(), pass.tokens, width_,
                 [&](std::int64_t first, std::int64_t count, int) {
                   relu_squared(numbers + first * width_, count * width_);
                 });
    });
    return down_.run(projected, pass.tokens, memory.mixed.data(), DType::kF32, pass.products);
  }

 private:
  std::int64_t width_;
  Linear up_;
  Linear down_;
};

class SwiGluLayer final : public Sublayer {
 public:
  SwiGluLayer(const ModelConfig& config, const std::string& prefix, WeightSource& source)
      : width_(config.mlp.width) {
    const std::array<MatrixPart, 2> parts = {MatrixPart{prefix + "gate_proj.weight", width_},
                                             MatrixPart{prefix + "up_proj.weight", width_}};
    gate_up_ = source.stacked(parts, config.hidden_size);
    down_ = source.linear(prefix + "down_proj.weight", config.hidden_size, width_);
  }

  [[nodiscard]] Widths widths() const override {
    Widths widths;
    widths.projected = 2 * width_;
    widths.inner = width_;
    return widths;
  }

  [[nodiscard]] Status run(Pass& pass, std::int32_t /*place*/) const override {
    Workspace& memory = pass.memory;
    REPLAYSSM_RETURN_IF_ERROR(gate_up_.run(memory.normed.data(), pass.tokens,
                                           memory.projected.data(), pass.activations,
                                           pass.products));
    with_element(pass.activations, [&](auto element) { activate<decltype(element)>(pass); });
    return down_.run(memory.inner.data(), pass.tokens, memory.mixed.data(), DType::kF32,
                     pass.products);
  }

 private:
  template <typename Element>
  void activate(Pass& pass) const {
    const auto* projected = reinterpret_cast<const Element*>(pass.memory.projected.data());
    auto* inner = reinterpret_cast<Element*>(pass.memory.inner.data());
    for_tokens(pass.products.pool(), pass.tokens, width_,
               [&](std::int64_t first, std::int64_t count, int) {
                 for (std::int64_t token = first; token < first + count; ++token) {
                   const Element* gate = projected + token * 2 * width_;
                   const Element* up = gate + width_;
                   for (std::int64_t i = 0; i < width_; ++i) {
                     store(silu(load(gate[i])) * load(up[i]), inner + token * width_ + i);
                   }
                 }
               });
  }

  std::int64_t width_;
  Linear gate_up_;  // outputs gate, up
  Linear down_;
};

}  // namespace

std::unique_ptr<Sublayer> load_mlp(const ModelConfig& config, const std::string& prefix,
                                   WeightSource& source) {
  if (config.mlp.activation == MlpActivation::kSwiGlu) {
    return std::make_unique<SwiGluLayer>(config, prefix, source);
  }
  return std::make_unique<ReluSquaredLayer>(config, prefix, source);
}

}  // namespace replayssm::model
