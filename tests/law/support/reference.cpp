// See reference.hpp.
#include "tests/law/support/reference.hpp"

#include <algorithm>

namespace replayssm::laws {
namespace {

// Longer than any conv ring: a window, its pending tokens and the widest convolution.
constexpr std::size_t kKeptInputs = 320;

std::vector<oracle::Token> tokens_of(int layer, const std::vector<ModelToken>& tokens) {
  std::vector<oracle::Token> list;
  for (const ModelToken& token : tokens) list.push_back((*token)[layer].token);
  return list;
}

}  // namespace

SlotReference::SlotReference(const Case& made, std::uint64_t with_seed) : seed(with_seed) {
  conventional = made.config.decode == DecodeMode::kConventional;
  for (const CaseLayer& layer : made.layers) {
    const auto precision = oracle::Precision::of(made.config.update, layer.out_dtype);
    const auto conv_precision = oracle::Precision::of(DType::kF32, made.config.activations);
    LayerReference reference{layer.oracle,
                             layer.conv,
                             precision,
                             conv_precision,
                             oracle::BoundedLayer(layer.oracle, precision),
                             oracle::BoundedLayer(layer.oracle, precision),
                             {}};
    if (layer.conv.width > 0) reference.conv_inputs = oracle::zero_history(layer.conv);
    layers_.push_back(std::move(reference));
  }
}

oracle::ConvHistory SlotReference::conv_history(int layer) const {
  const LayerReference& reference = layers_[layer];
  return {reference.conv_inputs.end() - (reference.conv.width - 1), reference.conv_inputs.end()};
}

void SlotReference::expect_conv(int layer, const std::vector<ModelToken>& tokens,
                                const std::vector<int>& parents, Expected* expected) const {
  const LayerReference& reference = layers_[layer];
  if (reference.conv.width == 0) return;
  std::vector<std::vector<double>> inputs;
  for (const ModelToken& token : tokens) inputs.push_back((*token)[layer].conv);
  const oracle::ConvHistory history = conv_history(layer);
  const oracle::ConvRun run = oracle::conv_run(reference.conv, history, inputs, parents);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const int parent = parents.empty() ? static_cast<int>(i) - 1 : parents[i];
    const oracle::ConvHistory& before = parent < 0 ? history : run.histories[parent];
    expected->conv_values.push_back(run.outputs[i]);
    expected->conv_bounds.push_back(
        oracle::conv_bound(reference.conv, inputs[i], before, reference.conv_precision));
  }
}

oracle::BoundedOutputs SlotReference::walk(int layer, const std::vector<oracle::Token>& tokens,
                                           const std::vector<int>& parents) const {
  oracle::BoundedOutputs all;
  std::vector<oracle::BoundedLayer> behind;  // the state after each token
  behind.reserve(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const int parent = parents.empty() ? static_cast<int>(i) - 1 : parents[i];
    behind.push_back(parent < 0 ? layers_[layer].bounded : behind[parent]);
    oracle::BoundedOutputs one = behind.back().advance({tokens[i]});
    all.values.push_back(std::move(one.values[0]));
    all.bounds.push_back(std::move(one.bounds[0]));
  }
  return all;
}

SlotReference::Expected SlotReference::step(int layer, const std::vector<ModelToken>& tokens,
                                            const std::vector<int>& parents) const {
  Expected expected;
  const std::vector<oracle::Token> list = tokens_of(layer, tokens);
  oracle::BoundedOutputs run =
      conventional ? walk(layer, list, parents) : layers_[layer].bounded.step(list, parents);
  expected.values = std::move(run.values);
  expected.bounds = std::move(run.bounds);
  expect_conv(layer, tokens, parents, &expected);
  return expected;
}

SlotReference::Expected SlotReference::prefill(int layer,
                                               const std::vector<ModelToken>& tokens) const {
  Expected expected;
  oracle::BoundedLayer copy = layers_[layer].bounded;
  oracle::BoundedOutputs run = copy.advance(tokens_of(layer, tokens));
  expected.values = std::move(run.values);
  expected.bounds = std::move(run.bounds);
  expect_conv(layer, tokens, {}, &expected);
  return expected;
}

bool SlotReference::folds(const CacheConfig& config) const {
  return !conventional && committed() >= config.window;
}

void SlotReference::fold(int records) {
  const std::vector<ModelToken> folded(ring_.begin(), ring_.begin() + records);
  ring_.erase(ring_.begin(), ring_.begin() + records);
  for (int i = 0; i < static_cast<int>(layers_.size()); ++i) {
    layers_[i].bounded.fold(records);
    layers_[i].checkpoint.commit(tokens_of(i, folded));
    layers_[i].checkpoint.fold(records);
  }
  zero = false;
  block = std::make_shared<int>(0);
}

void SlotReference::fold_all() {
  if (committed() > 0) fold(committed());
}

void SlotReference::remember(const std::vector<ModelToken>& tokens) {
  position += static_cast<std::int64_t>(tokens.size());
  for (int i = 0; i < static_cast<int>(layers_.size()); ++i) {
    if (layers_[i].conv.width == 0) continue;
    auto& inputs = layers_[i].conv_inputs;
    for (const ModelToken& token : tokens) inputs.push_back((*token)[i].conv);
    if (inputs.size() > kKeptInputs) {
      inputs.erase(inputs.begin(), inputs.end() - static_cast<std::ptrdiff_t>(kKeptInputs));
    }
  }
}

void SlotReference::commit_step(const std::vector<ModelToken>& accepted) {
  if (accepted.empty()) return;
  remember(accepted);
  for (int i = 0; i < static_cast<int>(layers_.size()); ++i) {
    if (conventional) {
      for (const ModelToken& token : accepted) {
        (void)layers_[i].bounded.advance({(*token)[i].token});
      }
      layers_[i].checkpoint = layers_[i].bounded;
    } else {
      layers_[i].bounded.commit(tokens_of(i, accepted));
    }
  }
  if (conventional) {
    zero = false;
    block = std::make_shared<int>(0);
  } else {
    ring_.insert(ring_.end(), accepted.begin(), accepted.end());
  }
}

void SlotReference::commit_prefill(const std::vector<ModelToken>& tokens) {
  if (tokens.empty()) return;
  remember(tokens);
  for (int i = 0; i < static_cast<int>(layers_.size()); ++i) {
    (void)layers_[i].bounded.advance(tokens_of(i, tokens));
    layers_[i].checkpoint = layers_[i].bounded;
  }
  ring_.clear();
  zero = false;
  block = std::make_shared<int>(0);
}

void SlotReference::load(std::int64_t at, const std::vector<std::vector<double>>& states,
                         const std::vector<std::vector<std::vector<double>>>* conv) {
  for (int i = 0; i < static_cast<int>(layers_.size()); ++i) {
    layers_[i].bounded.load(states[i]);
    layers_[i].checkpoint.load(states[i]);
    if (layers_[i].conv.width == 0) continue;
    layers_[i].conv_inputs = conv != nullptr ? (*conv)[i] : oracle::zero_history(layers_[i].conv);
  }
  ring_.clear();
  position = at;
  zero = false;
}

SlotReference SlotReference::rewound(int back) const {
  SlotReference past = *this;
  past.position -= back;
  past.block = std::make_shared<int>(0);
  const std::vector<ModelToken> kept(ring_.begin(), ring_.end() - back);
  past.ring_.clear();
  for (int i = 0; i < static_cast<int>(layers_.size()); ++i) {
    LayerReference& layer = past.layers_[i];
    layer.checkpoint.commit(tokens_of(i, kept));
    layer.checkpoint.fold(static_cast<int>(kept.size()));
    layer.bounded = layer.checkpoint;
    if (layer.conv.width > 0) layer.conv_inputs.resize(layer.conv_inputs.size() - back);
  }
  past.zero = zero && kept.empty();
  return past;
}

}  // namespace replayssm::laws
