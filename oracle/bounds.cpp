// Over 400 lines because the derivation and the code that follows it point by point stay together.
//
// Derivation. u = 2^-24 is the unit of f32; every statement is of first order in u, and kSafety
// covers the rest.
//
// 1. One row s of a head's state evolves alone: s_t = (s_{t-1} * a_t)(I - beta k k^T) + beta v k^T
// (delta rules), or
//    s_t = s_{t-1} * a_t + dt x k (mamba2). An error d of s_{t-1} therefore arrives as (d * a_t)(I
//    - beta k k^T), whose norm is at most max(a_t) max(1, |1 - beta |k|^2|) |d|. Following norms of
//    rows, not elements, keeps that factor at most 1 for normalised keys, so bounds add up over
//    tokens and do not explode.
// 2. What one token adds to a row's error, all as norms:
//    - the decayed row, |s * a| (error of a + u), passed through the same (I - beta k k^T);
//    - the error of u times |k|: beta times the error of S k, computed either as one dot product
//    with the state or as the
//      replay sum of point 4 (both are added, so both are covered), the error of beta times |v - S
//      k|, and 3 u |u|;
//    - rounding of k and of the product u k, and of the sum: (error of k + 2 u) |u| |k| + u |s_t|;
//    - on the read track, the rounding of the stored u, of magnitude |u| + beta max(a) |k| (error
//    of the row before).
// 3. The read track's u belong to the state that the replay formulas imply: S0 e^G + sum u_j k_j
// e^{G - G_j}. Its error
//    follows the same recursion. A fold replaces S0's share up to the fold point p by the
//    checkpoint, whose error is e_p where the implied state had r_p; behind p both decay alike, so
//    the bound grows by (e_p + r_p) times the decays.
// 4. A replay sum  S0 (e^G * y) + sum_j u_j ((k_j * e^{G - G_j}) . y)  of n records errs by each
// term's magnitude times:
//    the roundings of a dot product, the errors of k and y, n + 4 further roundings, and the error
//    of the decay.
// 5. A decay over m gates errs relatively by the sum of the gates' own errors, 3 u a gate
// (exponential and product), and
//    m u |G| (rounding of partial sums where a backend sums logarithms), and absolutely by 2^-125 a
//    gate (underflow).
// 6. Functions: expf, log1pf within 2 u relative, divisions and roots correctly rounded (the
// library on a GPU is a little
//    worse; 2 u is two units in the last place, which its exp and log1p keep).
// 7. Element by element an error is at most its row's norm.
#include "oracle/bounds.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "oracle/rounding.hpp"

namespace replayssm::oracle {
namespace {

constexpr double kSafety = 1.1;
constexpr double kUnderflow = 0x1.0p-125;

double norm(const double* values, int count) {
  double sum = 0.0;
  for (int i = 0; i < count; ++i) sum += values[i] * values[i];
  return std::sqrt(sum);
}

// Absolute error of softplus(raw + bias) in f32: the sum's rounding through the slope sigmoid(x),
// then exp and log1p.
double softplus_error(double x, double unit) {
  if (!std::isfinite(x)) return 0.0;
  return unit * (sigmoid(x) * std::abs(x) + 4.0 * softplus(x));
}

// The finished output's error from that of S q: skip, gate, rounding to the output's dtype.
double finish_error(const Layer& layer, const Token& token, int head, int at, double output,
                    double error, const Precision& precision) {
  const double u = precision.unit;
  double bound = error;
  if (!layer.delta_rule()) {
    if (!layer.d.empty()) bound += 2.0 * u * std::abs(layer.d[head] * token.v[at]);
    if (!token.z.empty()) {
      const double gate = std::abs(silu(token.z[at]));
      const double before = gate > 0.0 ? std::abs(output) / gate : 0.0;  // S q + D x
      bound = (bound + u * before) * gate + 6.0 * u * std::abs(output) + kUnderflow * before;
    } else {
      bound += u * std::abs(output);
    }
  }
  return bound + precision.output_unit * (std::abs(output) + bound) + precision.output_floor;
}

}  // namespace

Precision Precision::of(DType update, DType output) {
  Precision precision;
  precision.update_unit = update == DType::kF32 ? 0.0 : unit_roundoff(update);
  precision.output_unit = unit_roundoff(output);
  precision.output_floor = underflow_error(output);
  return precision;
}

double Precision::dot_roundings(int n) const {
  return 1.0 + std::ceil(static_cast<double>(n) / lanes) + std::ceil(std::log2(lanes));
}

BoundedLayer::BoundedLayer(Layer layer, const Precision& precision)
    : layer_(std::move(layer)), precision_(precision) {
  load(zero_state(layer_));
}

void BoundedLayer::load(const State& state) {
  checkpoint_ = state;
  checkpoint_bound_.assign(layer_.heads * layer_.value_dim, 0.0);
  records_.clear();
}

BoundedLayer::Path BoundedLayer::records() const {
  Path path;
  for (const Node& node : records_) path.push_back(&node);
  return path;
}

const State& BoundedLayer::state_of(const Path& path) const {
  return path.empty() ? checkpoint_ : path.back()->state;
}

const State& BoundedLayer::state() const {
  return records_.empty() ? checkpoint_ : records_.back().state;
}

const std::vector<double>& BoundedLayer::state_bound() const {
  return records_.empty() ? checkpoint_bound_ : records_.back().stored_bound;
}

// Relative error of a normalised key or query: the sum of squares counts half under the root; 1e-6,
// root, division, product and the query's scale.
double BoundedLayer::key_error() const {
  if (!layer_.delta_rule()) return 0.0;
  if (!layer_.l2_norm) return precision_.unit;
  return precision_.unit * (0.5 * precision_.dot_roundings(layer_.key_dim) + 5.0);
}

void BoundedLayer::input_errors(Node* node) const {
  const double u = precision_.unit;
  const int width = layer_.gate_width();
  for (int head = 0; head < layer_.heads; ++head) {
    double rate = 0.0;
    if (!layer_.a_log.empty()) rate = std::exp(layer_.a_log[head]);
    if (!layer_.a.empty()) rate = -layer_.a[head];
    double weight_error = 0.0;
    for (int c = 0; c < width; ++c) {
      const int at = head * width + c;
      const double g = std::abs(node->in.log_decay[at]);
      const double x = node->token.gate[at] + (layer_.dt_bias.empty() ? 0.0 : layer_.dt_bias[at]);
      double error = 0.0;  // kLogDecay: exact
      if (layer_.rule == Rule::kMamba2) {
        weight_error = layer_.dt_softplus ? softplus_error(x, u) : u * std::abs(x);
        error = rate * weight_error + 3.0 * u * g;
      } else if (layer_.gate == GateKind::kSoftplus) {
        error = rate * softplus_error(x, u) + 3.0 * u * g;
      } else if (layer_.gate == GateKind::kBounded && std::isfinite(x)) {
        const double s = sigmoid(rate * x);
        error =
            u * std::abs(layer_.lower_bound) * (s * (1.0 - s) * 4.0 * std::abs(rate * x) + 5.0 * s);
      }
      node->gate_error.push_back(std::isfinite(g) ? error : 0.0);
    }
    if (layer_.delta_rule() && !layer_.beta_given) weight_error = 4.0 * u * node->in.weight[head];
    node->weight_error.push_back(weight_error);
  }
}

std::vector<BoundedLayer::Reach> BoundedLayer::reaches(const Path& path, int head,
                                                       const Node* newest) const {
  const double u = precision_.unit;
  const int dim = layer_.key_dim;
  const int width = layer_.gate_width();
  std::vector<double> decay(dim, 1.0);
  std::vector<double> gates(dim, 0.0);      // sum of the gates' own relative errors
  std::vector<double> magnitude(dim, 0.0);  // |G|
  int crossed = 0;
  const auto cross = [&](const Node& node) {
    ++crossed;
    for (int c = 0; c < dim; ++c) {
      const int at = head * width + (width == 1 ? 0 : c);
      decay[c] *= std::exp(node.in.log_decay[at]);
      gates[c] += node.gate_error[at] + 3.0 * u;
      magnitude[c] += std::abs(node.in.log_decay[at]);
    }
  };
  const auto snapshot = [&]() {
    Reach reach{decay, std::vector<double>(dim, 0.0)};
    for (int c = 0; c < dim; ++c) {
      // A gate of -inf leaves nothing to be wrong about.
      if (decay[c] > 0.0) reach.error[c] = decay[c] * (gates[c] + crossed * u * magnitude[c]);
      reach.error[c] += crossed * kUnderflow;
    }
    return reach;
  };
  std::vector<Reach> all;
  if (newest != nullptr) cross(*newest);
  for (auto node = path.rbegin(); node != path.rend(); ++node) {
    all.push_back(snapshot());
    cross(**node);
  }
  all.push_back(snapshot());
  return all;
}

std::vector<double> BoundedLayer::sum_error(const Path& path, int head,
                                            const std::vector<Reach>& reach,
                                            const double* y) const {
  const int dim = layer_.key_dim;
  const int rows = layer_.value_dim;
  const int group = layer_.group_of(head);
  const int count = static_cast<int>(path.size());
  const double each =
      precision_.unit * (precision_.dot_roundings(dim) + count + 4) + 2.0 * key_error();
  std::vector<double> error(rows, 0.0);
  for (int j = 0; j < count; ++j) {
    const Node& node = *path[count - 1 - j];
    double product = 0.0;
    for (int c = 0; c < dim; ++c) {
      product += std::abs(node.in.k[group * dim + c] * y[c]) *
                 (reach[j].decay[c] * each + reach[j].error[c]);
    }
    for (int row = 0; row < rows; ++row)
      error[row] += std::abs(node.u[head * rows + row]) * product;
  }
  for (int row = 0; row < rows; ++row) {
    const double* s = checkpoint_.data() + (head * rows + row) * dim;
    for (int c = 0; c < dim; ++c) {
      error[row] += std::abs(s[c] * y[c]) * (reach[count].decay[c] * each + reach[count].error[c]);
    }
  }
  return error;
}

std::vector<double> BoundedLayer::assembly_error(const Path& path, int head) const {
  const int dim = layer_.key_dim;
  const int rows = layer_.value_dim;
  const int group = layer_.group_of(head);
  const int count = static_cast<int>(path.size());
  const std::vector<Reach> reach = reaches(path, head, nullptr);
  const double each = precision_.unit * (count + 4) + key_error();
  std::vector<double> error(rows, 0.0);
  std::vector<double> term(dim);
  for (int j = 0; j < count; ++j) {
    const Node& node = *path[count - 1 - j];
    for (int c = 0; c < dim; ++c) {
      term[c] = node.in.k[group * dim + c] * (reach[j].decay[c] * each + reach[j].error[c]);
    }
    const double length = norm(term.data(), dim);
    for (int row = 0; row < rows; ++row) error[row] += std::abs(node.u[head * rows + row]) * length;
  }
  for (int row = 0; row < rows; ++row) {
    const double* s = checkpoint_.data() + (head * rows + row) * dim;
    for (int c = 0; c < dim; ++c) {
      term[c] = s[c] * (reach[count].decay[c] * each + reach[count].error[c]);
    }
    error[row] += norm(term.data(), dim);
  }
  return error;
}

BoundedLayer::Node BoundedLayer::extend(const Path& path, const Token& token,
                                        double update_unit) const {
  const double u = precision_.unit;
  const int dim = layer_.key_dim;
  const int rows = layer_.value_dim;
  const int width = layer_.gate_width();
  Node node;
  node.token = token;
  node.in = derive(layer_, token);
  input_errors(&node);
  const State& before = state_of(path);
  node.state = before;
  node.outputs = recurrence_step(layer_, token, &node.state);
  node.u.resize(layer_.heads * rows);
  node.fold_bound.resize(node.u.size());
  node.read_bound.resize(node.u.size());
  node.stored_bound.resize(node.u.size());
  const std::vector<double>& fold_before =
      path.empty() ? checkpoint_bound_ : path.back()->fold_bound;
  const std::vector<double>& read_before =
      path.empty() ? checkpoint_bound_ : path.back()->read_bound;

  for (int head = 0; head < layer_.heads; ++head) {
    const double* k = node.in.k.data() + layer_.group_of(head) * dim;
    const double k_norm = norm(k, dim);
    const double weight = node.in.weight[head];
    const std::vector<Reach> back = reaches(path, head, &node);
    std::vector<double> replay(rows, 0.0);
    if (layer_.delta_rule()) replay = sum_error(path, head, back, k);
    const double growth =
        layer_.delta_rule() ? std::max(1.0, std::abs(1.0 - weight * k_norm * k_norm)) : 1.0;
    double strongest = 0.0;
    for (int c = 0; c < width; ++c) {
      strongest = std::max(strongest, std::exp(node.in.log_decay[head * width + c]));
    }
    std::vector<double> decayed(dim);
    std::vector<double> decay_error(dim);
    for (int row = 0; row < rows; ++row) {
      const int at = head * rows + row;
      const double* s = before.data() + at * dim;
      double predicted = 0.0;
      double magnitude = 0.0;
      for (int c = 0; c < dim; ++c) {
        const int gate = head * width + (width == 1 ? 0 : c);
        decayed[c] = s[c] * std::exp(node.in.log_decay[gate]);
        decay_error[c] = decayed[c] * (node.gate_error[gate] + 4.0 * u) + s[c] * kUnderflow;
        predicted += decayed[c] * k[c];
        magnitude += std::abs(decayed[c] * k[c]);
      }
      const double v = token.v[at];
      const double rest = layer_.delta_rule() ? v - predicted : v;
      node.u[at] = weight * rest;
      double u_error = node.weight_error[head] * std::abs(rest) + 3.0 * u * std::abs(node.u[at]);
      if (layer_.delta_rule()) {
        const double dot = u * precision_.dot_roundings(dim) + key_error();
        u_error += weight * (magnitude * dot + replay[row]);
      }
      const double local = growth * norm(decay_error.data(), dim) + u_error * k_norm +
                           (key_error() + 2.0 * u) * std::abs(node.u[at]) * k_norm +
                           u * norm(node.state.data() + at * dim, dim) + kUnderflow * k_norm;
      const double passed = growth * strongest;
      const double stored = update_unit *
                            (std::abs(node.u[at]) + weight * strongest * k_norm * read_before[at]) *
                            k_norm;
      node.fold_bound[at] = passed * fold_before[at] + kSafety * local;
      node.read_bound[at] = passed * read_before[at] + kSafety * (local + stored);
    }
  }
  Path whole = path;
  whole.push_back(&node);
  for (int head = 0; head < layer_.heads; ++head) {
    const std::vector<double> assembly = assembly_error(whole, head);
    for (int row = 0; row < rows; ++row) {
      const int at = head * rows + row;
      node.stored_bound[at] = node.fold_bound[at] + kSafety * assembly[row];
    }
  }
  return node;
}

std::vector<double> BoundedLayer::output_bound(const Path& path,
                                               const std::vector<double>& read) const {
  const int dim = layer_.key_dim;
  const int rows = layer_.value_dim;
  const Node& node = *path.back();
  std::vector<double> bounds(layer_.heads * rows);
  for (int head = 0; head < layer_.heads; ++head) {
    const double* q = node.in.q.data() + layer_.group_of(head) * dim;
    const std::vector<double> replay = sum_error(path, head, reaches(path, head, nullptr), q);
    const double dot = precision_.unit * (precision_.dot_roundings(dim) + 1.0) + key_error();
    for (int row = 0; row < rows; ++row) {
      const int at = head * rows + row;
      double magnitude = 0.0;
      for (int c = 0; c < dim; ++c) magnitude += std::abs(node.state[at * dim + c] * q[c]);
      const double error = read[at] * norm(q, dim) + kSafety * (replay[row] + magnitude * dot);
      bounds[at] = finish_error(layer_, node.token, head, at, node.outputs[at], error, precision_);
    }
  }
  return bounds;
}

BoundedOutputs BoundedLayer::step(const std::vector<Token>& tokens,
                                  const std::vector<int>& parents) const {
  const double update_unit = layer_.delta_rule() ? precision_.update_unit : 0.0;
  BoundedOutputs out;
  std::vector<Node> nodes(tokens.size());
  std::vector<Path> paths(tokens.size());
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    const int parent = parents.empty() ? static_cast<int>(t) - 1 : parents[t];
    paths[t] = parent < 0 ? records() : paths[parent];
    nodes[t] = extend(paths[t], tokens[t], update_unit);
    paths[t].push_back(&nodes[t]);
    out.values.push_back(nodes[t].outputs);
    out.bounds.push_back(output_bound(paths[t], nodes[t].read_bound));
  }
  return out;
}

void BoundedLayer::commit(const std::vector<Token>& accepted) {
  const double update_unit = layer_.delta_rule() ? precision_.update_unit : 0.0;
  for (const Token& token : accepted) {
    Node node = extend(records(), token, update_unit);
    records_.push_back(std::move(node));
  }
}

void BoundedLayer::fold(int count) {
  if (count == 0) return;
  const double update_unit = layer_.delta_rule() ? precision_.update_unit : 0.0;
  std::vector<Node> old = std::move(records_);
  records_.clear();
  checkpoint_ = old[count - 1].state;
  checkpoint_bound_ = old[count - 1].stored_bound;
  // Point 3: what the implied state of the remaining records is now off by.
  std::vector<double> shift = checkpoint_bound_;
  for (std::size_t at = 0; at < shift.size(); ++at) shift[at] += old[count - 1].read_bound[at];
  const int width = layer_.gate_width();
  for (std::size_t j = count; j < old.size(); ++j) {
    Node node = extend(records(), old[j].token, update_unit);
    for (int head = 0; head < layer_.heads; ++head) {
      double strongest = 0.0;
      for (int c = 0; c < width; ++c) {
        strongest = std::max(strongest, std::exp(node.in.log_decay[head * width + c]));
      }
      for (int row = 0; row < layer_.value_dim; ++row) {
        const int at = head * layer_.value_dim + row;
        shift[at] *= strongest;
        node.read_bound[at] = old[j].read_bound[at] + shift[at];
      }
    }
    records_.push_back(std::move(node));
  }
}

BoundedOutputs BoundedLayer::advance(const std::vector<Token>& tokens) {
  // The committed records enter by the fold's track, and u is never stored.
  std::vector<Node> nodes;
  nodes.reserve(records_.size() + tokens.size());
  for (const Node& record : records_) nodes.push_back(record);
  Path path;
  for (const Node& node : nodes) path.push_back(&node);
  BoundedOutputs out;
  for (const Token& token : tokens) {
    nodes.push_back(extend(path, token, 0.0));
    path.push_back(&nodes.back());
    out.values.push_back(nodes.back().outputs);
    out.bounds.push_back(output_bound(path, nodes.back().stored_bound));
  }
  if (!nodes.empty()) {
    checkpoint_ = nodes.back().state;
    checkpoint_bound_ = nodes.back().stored_bound;
  }
  records_.clear();
  return out;
}

std::vector<double> conv_bound(const Conv& conv, const std::vector<double>& input,
                               const ConvHistory& history, const Precision& precision) {
  std::vector<double> bounds(conv.channels);
  const double u = precision.unit;
  for (int channel = 0; channel < conv.channels; ++channel) {
    double sum = conv.bias.empty() ? 0.0 : conv.bias[channel];
    double magnitude = std::abs(sum);
    for (int j = 0; j < conv.width; ++j) {
      const double x = j + 1 < conv.width ? history[j][channel] : input[channel];
      const double term = conv.weight[channel * conv.width + j] * x;
      sum += term;
      magnitude += std::abs(term);
    }
    double bound = kSafety * u * (conv.width + 1) * magnitude;
    double output = sum;
    if (conv.silu) {
      output = silu(sum);
      // The slope of silu stays below 1.1.
      bound = 1.1 * bound + 6.0 * u * std::abs(output) + kUnderflow * std::abs(sum);
    }
    bounds[channel] =
        bound + precision.output_unit * (std::abs(output) + bound) + precision.output_floor;
  }
  return bounds;
}

}  // namespace replayssm::oracle
