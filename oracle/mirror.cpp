// See mirror.hpp for the order of operations; every float expression here has one operation a
// statement where it matters.
#include "oracle/mirror.hpp"

#include <algorithm>
#include <cmath>

namespace replayssm::oracle {
namespace {

float exact(double x) { return static_cast<float>(x); }

float softplus_f32(float x) { return x > 20.0F ? x : std::log1p(std::exp(x)); }

float sigmoid_f32(float x) { return 1.0F / (1.0F + std::exp(-x)); }

}  // namespace

float dot16(const float* a, const float* b, int count) {
  float lanes[16] = {};
  for (int i = 0; i < count; ++i) {
    const float product = a[i] * b[i];
    lanes[i % 16] = lanes[i % 16] + product;
  }
  for (int distance = 8; distance >= 1; distance /= 2) {
    for (int i = 0; i < distance; ++i) lanes[i] = lanes[i] + lanes[i + distance];
  }
  return lanes[0];
}

MirrorRecord mirror_record(const Layer& layer, const Token& token) {
  MirrorRecord record;
  const int width = layer.gate_width();
  for (int head = 0; head < layer.heads; ++head) {
    // -A; the sign is exact, so it does not matter where it is applied.
    float rate = 0.0F;
    if (!layer.a_log.empty()) rate = std::exp(exact(layer.a_log[head]));
    if (!layer.a.empty()) rate = -exact(layer.a[head]);
    float weight = 0.0F;
    for (int i = 0; i < width; ++i) {
      const int at = head * width + i;
      const float raw = exact(token.gate[at]);
      const float biased = layer.dt_bias.empty() ? raw : raw + exact(layer.dt_bias[at]);
      float g = raw;  // kLogDecay
      if (layer.rule == Rule::kMamba2) {
        const float dt = layer.dt_softplus ? softplus_f32(biased) : biased;
        weight = std::min(std::max(dt, exact(layer.dt_min)), exact(layer.dt_max));
        g = weight * -rate;
      } else if (layer.gate == GateKind::kSoftplus) {
        g = -rate * softplus_f32(biased);
      } else if (layer.gate == GateKind::kBounded) {
        const float scaled = rate * biased;
        g = exact(layer.lower_bound) * sigmoid_f32(scaled);
      }
      record.log_decay.push_back(g);
    }
    if (layer.delta_rule()) {
      const float b = exact(token.beta[head]);
      weight = layer.beta_given ? b : sigmoid_f32(b);
      if (!layer.beta_given && layer.double_beta) weight = weight * 2.0F;
    }
    record.weight.push_back(weight);
  }
  for (int group = 0; group < layer.groups; ++group) {
    float inverse = 1.0F;
    if (layer.delta_rule() && layer.l2_norm) {
      std::vector<float> k(layer.key_dim);
      for (int i = 0; i < layer.key_dim; ++i) k[i] = exact(token.k[group * layer.key_dim + i]);
      const float sum = dot16(k.data(), k.data(), layer.key_dim) + 1e-6F;
      inverse = 1.0F / std::sqrt(sum);
    }
    record.inv_norm.push_back(inverse);
  }
  return record;
}

void mirror_step(const Layer& layer, const Token& token, std::vector<float>* state) {
  const MirrorRecord record = mirror_record(layer, token);
  const int dim = layer.key_dim;
  const int width = layer.gate_width();
  std::vector<float> key(dim);
  std::vector<float> decay(dim);
  for (int head = 0; head < layer.heads; ++head) {
    const int group = layer.group_of(head);
    for (int i = 0; i < dim; ++i) {
      key[i] = exact(token.k[group * dim + i]) * record.inv_norm[group];
      decay[i] = std::exp(record.log_decay[head * width + (width == 1 ? 0 : i)]);
    }
    const float weight = record.weight[head];
    for (int row = 0; row < layer.value_dim; ++row) {
      const int at = head * layer.value_dim + row;
      float* s = state->data() + at * dim;
      const float v = exact(token.v[at]);
      for (int i = 0; i < dim; ++i) s[i] = s[i] * decay[i];
      float update = weight * v;
      if (layer.delta_rule()) {
        const float rest = v - dot16(s, key.data(), dim);
        update = weight * rest;
      }
      for (int i = 0; i < dim; ++i) {
        const float added = update * key[i];
        s[i] = s[i] + added;
      }
    }
  }
}

void mirror_fold(const Layer& layer, const std::vector<Token>& tokens, std::vector<float>* state) {
  for (const Token& token : tokens) mirror_step(layer, token, state);
}

}  // namespace replayssm::oracle
