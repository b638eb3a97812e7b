// Scalar formulas of the three rules and the checks of what a test hands in.
#include "oracle/layer.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>

namespace replayssm::oracle {
namespace {

Status expect_size(const char* name, const std::vector<double>& values, std::size_t required) {
  if (values.size() == required) return {};
  return {StatusCode::kInvalidArgument, std::string(name) + ": required " +
                                            std::to_string(required) + " values, given " +
                                            std::to_string(values.size())};
}

Status refuse(const std::string& message) { return {StatusCode::kInvalidArgument, message}; }

}  // namespace

Status check_layer(const Layer& layer) {
  if (layer.heads < 1 || layer.groups < 1 || layer.value_dim < 1 || layer.key_dim < 1) {
    return refuse("heads, groups, value_dim and key_dim must be at least 1");
  }
  if (layer.heads % layer.groups != 0) {
    return refuse("heads must be a multiple of groups, given " + std::to_string(layer.heads) +
                  " and " + std::to_string(layer.groups));
  }
  const int heads = layer.heads;
  const bool reads_parameters = !layer.delta_rule() || layer.gate != GateKind::kLogDecay;
  if (reads_parameters) {
    if (layer.a_log.empty() == layer.a.empty())
      return refuse("exactly one of a_log and a must be given");
    if (layer.a.empty()) REPLAYSSM_RETURN_IF_ERROR(expect_size("a_log", layer.a_log, heads));
    if (layer.a_log.empty()) REPLAYSSM_RETURN_IF_ERROR(expect_size("a", layer.a, heads));
    if (!layer.dt_bias.empty()) {
      const int width = layer.gate_width();
      REPLAYSSM_RETURN_IF_ERROR(expect_size("dt_bias", layer.dt_bias, heads * width));
    }
  }
  if (layer.delta_rule()) {
    if (!layer.d.empty()) return refuse("d belongs to mamba2");
    if (layer.gate == GateKind::kBounded && layer.rule != Rule::kKda)
      return refuse("the bounded gate belongs to kda");
    if (layer.gate == GateKind::kBounded && !(layer.lower_bound < 0))
      return refuse("lower_bound must be below 0");
  } else {
    if (layer.gate != GateKind::kSoftplus) return refuse("mamba2 takes no gate kind");
    if (!(layer.dt_min <= layer.dt_max)) return refuse("dt_min must not exceed dt_max");
    if (!layer.d.empty()) REPLAYSSM_RETURN_IF_ERROR(expect_size("d", layer.d, heads));
  }
  return {};
}

Status check_token(const Layer& layer, const Token& token) {
  const int heads = layer.heads;
  const int keys = layer.groups * layer.key_dim;
  const int values = layer.heads * layer.value_dim;
  REPLAYSSM_RETURN_IF_ERROR(expect_size("q", token.q, keys));
  REPLAYSSM_RETURN_IF_ERROR(expect_size("k", token.k, keys));
  REPLAYSSM_RETURN_IF_ERROR(expect_size("v", token.v, values));
  REPLAYSSM_RETURN_IF_ERROR(expect_size("gate", token.gate, heads * layer.gate_width()));
  REPLAYSSM_RETURN_IF_ERROR(expect_size("beta", token.beta, layer.delta_rule() ? heads : 0));
  if (!token.z.empty())
    REPLAYSSM_RETURN_IF_ERROR(expect_size("z", token.z, layer.delta_rule() ? 0 : values));
  return {};
}

Status check_conv(const Conv& conv) {
  if (conv.width == 0) return {};
  if (conv.width < 0 || conv.channels < 1)
    return refuse("a conv needs a positive width and channels");
  const int channels = conv.channels;
  REPLAYSSM_RETURN_IF_ERROR(expect_size("conv weight", conv.weight, channels * conv.width));
  if (!conv.bias.empty()) REPLAYSSM_RETURN_IF_ERROR(expect_size("conv bias", conv.bias, channels));
  return {};
}

double softplus(double x) { return x > 20.0 ? x : std::log1p(std::exp(x)); }
double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double silu(double x) { return x / (1.0 + std::exp(-x)); }

Derived derive(const Layer& layer, const Token& token) {
  Derived out;
  const int dim = layer.key_dim;
  out.q = token.q;
  out.k = token.k;
  out.inv_norm.assign(layer.groups, 1.0);
  if (layer.delta_rule()) {
    for (int group = 0; group < layer.groups; ++group) {
      double* q = out.q.data() + group * dim;
      double* k = out.k.data() + group * dim;
      double q_factor = 1.0;
      double k_factor = 1.0;
      if (layer.l2_norm) {
        double q_sum = 0.0;
        double k_sum = 0.0;
        for (int i = 0; i < dim; ++i) {
          q_sum += q[i] * q[i];
          k_sum += k[i] * k[i];
        }
        q_factor = 1.0 / std::sqrt(q_sum + 1e-6);
        k_factor = 1.0 / std::sqrt(k_sum + 1e-6);
      }
      for (int i = 0; i < dim; ++i) {
        q[i] *= q_factor * layer.q_scale;
        k[i] *= k_factor;
      }
      out.inv_norm[group] = k_factor;
    }
  }

  const int width = layer.gate_width();
  out.log_decay.resize(layer.heads * width);
  out.weight.resize(layer.heads);
  for (int head = 0; head < layer.heads; ++head) {
    double rate = 0.0;  // -A
    if (!layer.a_log.empty()) rate = std::exp(layer.a_log[head]);
    if (!layer.a.empty()) rate = -layer.a[head];
    for (int i = 0; i < width; ++i) {
      const int at = head * width + i;
      const double raw = token.gate[at];
      const double biased = layer.dt_bias.empty() ? raw : raw + layer.dt_bias[at];
      if (layer.rule == Rule::kMamba2) {
        const double dt = layer.dt_softplus ? softplus(biased) : biased;
        out.weight[head] = std::clamp(dt, layer.dt_min, layer.dt_max);
        out.log_decay[at] = -rate * out.weight[head];
      } else if (layer.gate == GateKind::kSoftplus) {
        out.log_decay[at] = -rate * softplus(biased);
      } else if (layer.gate == GateKind::kBounded) {
        out.log_decay[at] = layer.lower_bound * sigmoid(rate * biased);
      } else {
        out.log_decay[at] = raw;
      }
    }
    if (layer.delta_rule()) {
      const double b = token.beta[head];
      out.weight[head] = layer.beta_given ? b : sigmoid(b) * (layer.double_beta ? 2.0 : 1.0);
    }
  }
  return out;
}

void finish_output(const Layer& layer, const Token& token, int head, double* out) {
  if (layer.delta_rule()) return;
  const int dim = layer.value_dim;
  for (int i = 0; i < dim; ++i) {
    const int at = head * dim + i;
    if (!layer.d.empty()) out[i] += layer.d[head] * token.v[at];
    if (!token.z.empty()) out[i] *= silu(token.z[at]);
  }
}

}  // namespace replayssm::oracle
