// See float_replay.hpp.
#include "tests/oracle/float_replay.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "oracle/mirror.hpp"
#include "oracle/rounding.hpp"

namespace replayssm::oracle::testing {
namespace {

float rounded(float x, DType dtype) { return static_cast<float>(round_to(x, dtype)); }

}  // namespace

FloatReplay::FloatReplay(Layer layer, DType update, DType output, bool exp_of_sums,
                         FloatFault fault)
    : layer_(std::move(layer)),
      update_(update),
      output_(output),
      exp_of_sums_(exp_of_sums),
      fault_(fault),
      state_(layer_.state_size(), 0.0F) {}

FloatReplay::Record FloatReplay::take(const Token& token) const {
  Record record;
  record.token = token;
  const MirrorRecord f32 = mirror_record(layer_, token);
  record.g = f32.log_decay;
  record.weight = f32.weight;
  Token swapped = token;
  std::swap(swapped.q, swapped.k);
  const MirrorRecord q = mirror_record(layer_, swapped);
  const auto scale = static_cast<float>(layer_.q_scale);
  for (int i = 0; i < layer_.groups * layer_.key_dim; ++i) {
    const int group = i / layer_.key_dim;
    record.k.push_back(static_cast<float>(token.k[i]) * f32.inv_norm[group]);
    const float raw = static_cast<float>(token.q[i]) * q.inv_norm[group];
    record.q.push_back(layer_.delta_rule() ? raw * scale : raw);
  }
  if (fault_ == FloatFault::kGateInBf16) {
    for (float& g : record.g) g = rounded(g, DType::kBF16);
  }
  if (fault_ == FloatFault::kBetaInBf16) {
    for (float& weight : record.weight) weight = rounded(weight, DType::kBF16);
  }
  if (fault_ == FloatFault::kNormInBf16) {
    for (float& k : record.k) k = rounded(k, DType::kBF16);
  }
  return record;
}

std::vector<float> FloatReplay::read(const std::vector<Record>& items, int head, int at,
                                     const float* y, const std::vector<float>* newest) const {
  const int dim = layer_.key_dim;
  const int rows = layer_.value_dim;
  const int width = layer_.gate_width();
  const int group = layer_.group_of(head);
  std::vector<float> out(rows, 0.0F);
  std::vector<float> product(dim, 1.0F);
  std::vector<float> sum(dim, 0.0F);
  const auto cross = [&](const std::vector<float>& g) {
    for (int c = 0; c < dim; ++c) {
      const float gate = g[head * width + (width == 1 ? 0 : c)];
      product[c] *= std::exp(gate);
      sum[c] += gate;
    }
  };
  const auto decay = [&](int c) { return exp_of_sums_ ? std::exp(sum[c]) : product[c]; };
  // Differences of prefix sums, the way that goes wrong.
  std::vector<float> total(dim, 0.0F);
  if (fault_ == FloatFault::kPrefixSums) {
    if (newest != nullptr) cross(*newest);
    for (int j = at; j >= 0; j = items[j].parent) cross(items[j].g);
    total = sum;
    std::fill(sum.begin(), sum.end(), 0.0F);
    std::fill(product.begin(), product.end(), 1.0F);
  }
  const auto used = [&](int j, int c) {
    if (fault_ != FloatFault::kPrefixSums) return decay(c);
    float prefix = 0.0F;
    for (int i = j; i >= 0; i = items[i].parent)
      prefix += items[i].g[head * width + (width == 1 ? 0 : c)];
    return std::exp(total[c] - prefix);
  };
  if (newest != nullptr) cross(*newest);
  for (int j = at; j >= 0; j = items[j].parent) {
    const Record& item = items[j];
    if (!(fault_ == FloatFault::kDropOldest && item.parent < 0 && j != at)) {
      float dot = 0.0F;
      for (int c = 0; c < dim; ++c) dot += item.k[group * dim + c] * used(j, c) * y[c];
      for (int row = 0; row < rows; ++row) out[row] += item.u[head * rows + row] * dot;
    }
    if (!(fault_ == FloatFault::kNoNewestDecay && j == at && newest == nullptr)) cross(item.g);
  }
  for (int row = 0; row < rows; ++row) {
    float dot = 0.0F;
    for (int c = 0; c < dim; ++c)
      dot += state_[(head * rows + row) * dim + c] * (used(-1, c) * y[c]);
    out[row] += dot;
  }
  return out;
}

void FloatReplay::solve(std::vector<Record>* items, int item, bool round) const {
  Record& record = (*items)[item];
  const int rows = layer_.value_dim;
  record.u.assign(layer_.heads * rows, 0.0F);
  for (int head = 0; head < layer_.heads; ++head) {
    const float weight = record.weight[head];
    std::vector<float> predicted(rows, 0.0F);
    if (layer_.delta_rule()) {
      const float* k = record.k.data() + layer_.group_of(head) * layer_.key_dim;
      predicted = read(*items, head, record.parent, k, &record.g);
    }
    for (int row = 0; row < rows; ++row) {
      const int at = head * rows + row;
      const float u = weight * (static_cast<float>(record.token.v[at]) - predicted[row]);
      record.u[at] = round && layer_.delta_rule() ? rounded(u, update_) : u;
    }
  }
}

std::vector<std::vector<double>> FloatReplay::step(const std::vector<Token>& tokens,
                                                   const std::vector<int>& parents) {
  std::vector<Record> items = records_;
  const int before = committed();
  std::vector<std::vector<double>> outputs;
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    Record record = take(tokens[t]);
    const int parent = parents.empty() ? static_cast<int>(t) - 1 : parents[t];
    record.parent = before + parent;  // -1 continues the committed records
    items.push_back(std::move(record));
    const int here = before + static_cast<int>(t);
    solve(&items, here, true);
    std::vector<double> out;
    for (int head = 0; head < layer_.heads; ++head) {
      const float* q = items[here].q.data() + layer_.group_of(head) * layer_.key_dim;
      const std::vector<float> y = read(items, head, here, q, nullptr);
      for (int row = 0; row < layer_.value_dim; ++row) {
        const int at = head * layer_.value_dim + row;
        float value = y[row];
        if (!layer_.d.empty())
          value += static_cast<float>(layer_.d[head]) * static_cast<float>(tokens[t].v[at]);
        if (!tokens[t].z.empty()) {
          const auto z = static_cast<float>(tokens[t].z[at]);
          value *= z / (1.0F + std::exp(-z));
        }
        out.push_back(rounded(value, output_));
      }
    }
    outputs.push_back(std::move(out));
  }
  pending_.assign(items.begin() + before, items.end());
  return outputs;
}

void FloatReplay::commit(const std::vector<int>& path) {
  for (const int node : path) {
    records_.push_back(pending_[node]);
    records_.back().parent = committed() - 2;
  }
  pending_.clear();
}

void FloatReplay::fold(int count) {
  std::vector<Record> items(records_.begin(), records_.begin() + count);
  if (fault_ != FloatFault::kFoldStoredU) {
    for (int i = 0; i < count; ++i) solve(&items, i, false);
  }
  const int dim = layer_.key_dim;
  const int rows = layer_.value_dim;
  std::vector<float> after(state_.size());
  std::vector<float> unit(dim);
  for (int head = 0; head < layer_.heads; ++head) {
    for (int c = 0; c < dim; ++c) {
      // Column c of the state is what a unit query reads.
      std::fill(unit.begin(), unit.end(), 0.0F);
      unit[c] = 1.0F;
      const std::vector<float> column = read(items, head, count - 1, unit.data(), nullptr);
      for (int row = 0; row < rows; ++row) after[(head * rows + row) * dim + c] = column[row];
    }
  }
  state_ = std::move(after);
  records_.erase(records_.begin(), records_.begin() + count);
  for (int i = 0; i < committed(); ++i) records_[i].parent = i - 1;
}

}  // namespace replayssm::oracle::testing
