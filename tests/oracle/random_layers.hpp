// Random layers, tokens, trees and accepted paths for tests of the oracles. Small shapes, nasty
// gates.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "oracle/layer.hpp"

namespace replayssm::oracle::testing {

// splitmix64: the same numbers on every platform.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t bits() {
    state_ += 0x9e3779b97f4a7c15ULL;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  // Both ends included.
  int integer(int low, int high) {
    return low + static_cast<int>(bits() % static_cast<std::uint64_t>(high - low + 1));
  }
  double real(double low, double high) {
    return low + (high - low) * (static_cast<double>(bits() >> 11) * 0x1.0p-53);
  }
  double normal() {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - real(0.0, 1.0)));
    return radius * std::cos(6.283185307179586 * real(0.0, 1.0));
  }
  bool chance(double probability) { return real(0.0, 1.0) < probability; }
  std::vector<double> normals(int count, double scale) {
    std::vector<double> values(count);
    for (double& value : values) value = scale * normal();
    return values;
  }

 private:
  std::uint64_t state_;
};

// How many random cases a test runs and where it starts; REPLAYSSM_TEST_CASES and
// REPLAYSSM_TEST_SEED replay a failure.
inline std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

inline Layer random_layer(Random& random, Rule rule, int largest_dim = 6) {
  Layer layer;
  layer.rule = rule;
  layer.groups = random.integer(1, 2);
  layer.heads = layer.groups * random.integer(1, 2);
  layer.value_dim = random.integer(1, largest_dim);
  layer.key_dim = random.integer(1, largest_dim);
  if (random.chance(0.2)) {
    for (int head = 0; head < layer.heads; ++head) layer.a.push_back(-random.real(0.01, 3.0));
  } else {
    layer.a_log = random.normals(layer.heads, 1.0);
  }
  if (random.chance(0.8)) layer.dt_bias = random.normals(layer.heads * layer.gate_width(), 1.0);
  if (rule == Rule::kMamba2) {
    if (random.chance(0.7)) layer.d = random.normals(layer.heads, 1.0);
    if (random.chance(0.3)) {
      layer.dt_min = 0.01;
      layer.dt_max = 0.5;
    }
    return layer;
  }
  const int kind = random.integer(0, rule == Rule::kKda ? 2 : 1);
  layer.gate = kind == 0   ? GateKind::kSoftplus
               : kind == 1 ? GateKind::kLogDecay
                           : GateKind::kBounded;
  if (layer.gate == GateKind::kLogDecay) {
    layer.a_log.clear();
    layer.a.clear();
    layer.dt_bias.clear();
  }
  layer.l2_norm = random.chance(0.7);
  layer.beta_given = random.chance(0.3);
  layer.double_beta = random.chance(0.3);
  layer.q_scale = random.chance(0.5) ? 1.0 : 1.0 / std::sqrt(layer.key_dim);
  return layer;
}

// A gate input: mostly ordinary, sometimes strong, sometimes one that forgets everything (decay 0)
// or nothing (decay 1).
inline double random_gate(Random& random, const Layer& layer) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const int kind = random.integer(0, 9);
  if (layer.rule == Rule::kMamba2) {
    if (kind == 0) return 1e4;
    if (kind == 1) return -kInfinity;
    return random.real(-5.0, kind == 2 ? 30.0 : 1.0);
  }
  if (layer.gate == GateKind::kLogDecay) {
    if (kind == 0) return -kInfinity;
    if (kind == 1) return 0.0;
    return -std::exp(random.real(-8.0, kind == 2 ? 6.0 : 0.0));
  }
  if (kind == 0) return kInfinity;
  if (kind == 1) return -kInfinity;
  return random.real(-5.0, kind == 2 ? 40.0 : 1.0);
}

inline Token random_token(Random& random, const Layer& layer) {
  Token token;
  // Without normalisation keys stay below unit length, as models that go without it keep them.
  const double scale = layer.l2_norm ? 1.0 : 0.5 / std::sqrt(layer.key_dim);
  token.q = random.normals(layer.groups * layer.key_dim, 1.0);
  token.k = random.normals(layer.groups * layer.key_dim, scale);
  token.v = random.normals(layer.heads * layer.value_dim, 1.0);
  for (int i = 0; i < layer.heads * layer.gate_width(); ++i) {
    token.gate.push_back(random_gate(random, layer));
  }
  if (layer.delta_rule()) {
    for (int head = 0; head < layer.heads; ++head) {
      token.beta.push_back(layer.beta_given ? random.real(0.0, 1.0) : random.real(-4.0, 4.0));
    }
  } else if (random.chance(0.5)) {
    token.z = random.normals(layer.heads * layer.value_dim, 1.0);
  }
  return token;
}

inline Conv random_conv(Random& random) {
  Conv conv;
  if (random.chance(0.3)) return conv;
  conv.channels = random.integer(1, 4);
  conv.width = random.integer(1, 4);
  conv.silu = random.chance(0.8);
  conv.weight = random.normals(conv.channels * conv.width, 1.0);
  if (random.chance(0.5)) conv.bias = random.normals(conv.channels, 1.0);
  return conv;
}

// A forest: several roots are legal.
inline std::vector<int> random_parents(Random& random, int tokens) {
  std::vector<int> parents(tokens);
  for (int t = 0; t < tokens; ++t) parents[t] = random.integer(-1, t - 1);
  return parents;
}

// A random path from a root downwards, possibly empty, possibly ending before a leaf.
inline std::vector<int> random_path(Random& random, const std::vector<int>& parents) {
  std::vector<int> path;
  int last = -1;
  while (true) {
    std::vector<int> children;
    for (int t = 0; t < static_cast<int>(parents.size()); ++t) {
      if (parents[t] == last) children.push_back(t);
    }
    if (children.empty() || random.chance(0.25)) return path;
    last = children[random.integer(0, static_cast<int>(children.size()) - 1)];
    path.push_back(last);
  }
}

}  // namespace replayssm::oracle::testing
