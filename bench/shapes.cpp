// Layer shapes of published models, by name.
#include "bench/shapes.hpp"

#include <array>

namespace replayssm::bench {
namespace {

constexpr std::array<ModelShape, 16> kShapes = {{
    {"super-120b", Rule::kMamba2, 128, 8, 64, 128},
    {"super-120b-tp8", Rule::kMamba2, 16, 1, 64, 128},
    {"ultra-550b", Rule::kMamba2, 256, 8, 64, 128},
    {"nano-30b", Rule::kMamba2, 64, 8, 64, 128},
    {"nano-4b", Rule::kMamba2, 96, 8, 80, 128},
    {"granite-350m", Rule::kMamba2, 48, 1, 32, 128},
    {"granite-small", Rule::kMamba2, 128, 1, 64, 128},
    {"zamba2-2.7b", Rule::kMamba2, 80, 1, 64, 64},
    {"nemotron-h-56b", Rule::kMamba2, 256, 8, 64, 256},
    {"qwen3.5-4b", Rule::kGdn, 32, 16, 128, 128},
    {"qwen3.5-27b", Rule::kGdn, 48, 16, 128, 128},
    {"qwen3.5-122b", Rule::kGdn, 64, 16, 128, 128},
    {"kimi-linear", Rule::kKda, 32, 32, 128, 128},
    {"kimi-k3-tp8", Rule::kKda, 12, 12, 128, 128, GateKind::kBounded},
    {"tiny", Rule::kMamba2, 4, 2, 16, 128},
    {"tiny-gdn", Rule::kGdn, 4, 2, 32, 32},
}};

}  // namespace

std::span<const ModelShape> model_shapes() { return kShapes; }

Result<ModelShape> model_shape(std::string_view name) {
  std::string names;
  for (const ModelShape& shape : kShapes) {
    if (shape.name == name) return shape;
    names += (names.empty() ? "" : ", ") + std::string(shape.name);
  }
  return Status(StatusCode::kNotFound,
                "no model shape is named " + std::string(name) + "; known: " + names);
}

LayerShape layer_shape(const ModelShape& model) {
  LayerShape shape;
  shape.rule = model.rule;
  shape.heads = model.heads;
  shape.groups = model.groups;
  shape.value_dim = model.value_dim;
  shape.key_dim = model.key_dim;
  shape.gate = model.gate;
  if (model.gate == GateKind::kBounded) shape.gate_lower_bound = -5.0F;
  return shape;
}

}  // namespace replayssm::bench
