// The unrolled sums, one after the other as the design's section 2 states them.
#include "oracle/replay.hpp"

#include <cmath>
#include <utility>

namespace replayssm::oracle {

HeadReplay::HeadReplay(const Layer& layer, const double* checkpoint, std::vector<Item> items,
                       Fault fault)
    : rows_(layer.value_dim),
      dim_(layer.key_dim),
      width_(layer.gate_width()),
      delta_(layer.delta_rule()),
      checkpoint_(checkpoint),
      items_(std::move(items)),
      fault_(fault) {
  const int count = static_cast<int>(items_.size());
  updates_.resize(count);
  keys_.resize(count * dim_);
  decays_.resize(count * width_);
  for (int i = 0; i < count; ++i) {
    if (items_[i].u != nullptr) updates_[i].assign(items_[i].u, items_[i].u + rows_);
    for (int c = 0; c < dim_; ++c) keys_[i * dim_ + c] = items_[i].k[c] * items_[i].k_scale;
    for (int c = 0; c < width_; ++c) decays_[i * width_ + c] = std::exp(items_[i].log_decay[c]);
  }
  if (fault_ == Fault::kPrefixSums) {
    prefix_.resize(count * width_);
    for (int i = 0; i < count; ++i) {
      for (int c = 0; c < width_; ++c) {
        const int parent = items_[i].parent;
        prefix_[i * width_ + c] =
            items_[i].log_decay[c] + (parent < 0 ? 0.0 : prefix_[parent * width_ + c]);
      }
    }
  }
}

template <typename Visit>
void HeadReplay::walk(int item, std::vector<double>* decay, Visit visit) const {
  const std::vector<double> newest = *decay;
  for (int j = item; j >= 0; j = items_[j].parent) {
    visit(j, *decay);
    for (int c = 0; c < dim_; ++c) (*decay)[c] *= a(j, c);
    const int parent = items_[j].parent;
    if (fault_ == Fault::kPrefixSums && parent >= 0) {
      for (int c = 0; c < dim_; ++c) {
        const int at = width_ == 1 ? 0 : c;
        (*decay)[c] =
            newest[c] * std::exp(prefix_[item * width_ + at] - prefix_[parent * width_ + at]);
      }
    }
  }
}

void HeadReplay::add_checkpoint(const std::vector<double>& decay, const double* q, double scale,
                                double* out) const {
  if (checkpoint_ == nullptr) return;
  for (int row = 0; row < rows_; ++row) {
    double sum = 0.0;
    for (int c = 0; c < dim_; ++c) sum += checkpoint_[row * dim_ + c] * (decay[c] * q[c]);
    out[row] += scale * sum;
  }
}

void HeadReplay::solve() {
  const int count = static_cast<int>(items_.size());
  std::vector<double> decay(dim_);
  for (int i = 0; i < count; ++i) {
    if (items_[i].u != nullptr) continue;
    const Item& item = items_[i];
    std::vector<double>& u = updates_[i];
    u.assign(item.v, item.v + rows_);
    if (delta_) {
      // e^{G_i - G_j} k_j . k_i over the strict ancestors j of i: the decay starts with a_i.
      for (int c = 0; c < dim_; ++c) decay[c] = a(i, c);
      walk(item.parent, &decay, [&](int j, const std::vector<double>& between) {
        double product = 0.0;
        for (int c = 0; c < dim_; ++c) product += (key(j)[c] * between[c]) * key(i)[c];
        for (int row = 0; row < rows_; ++row) u[row] -= updates_[j][row] * product;
      });
      add_checkpoint(decay, key(i), -1.0, u.data());
    }
    for (int row = 0; row < rows_; ++row) u[row] *= item.weight;
  }
}

void HeadReplay::read(int item, const double* q, double* out) const {
  for (int row = 0; row < rows_; ++row) out[row] = 0.0;
  std::vector<double> decay(dim_, 1.0);
  walk(item, &decay, [&](int j, const std::vector<double>& between) {
    double product = 0.0;
    for (int c = 0; c < dim_; ++c) product += (key(j)[c] * between[c]) * q[c];
    for (int row = 0; row < rows_; ++row) out[row] += updates_[j][row] * product;
  });
  if (fault_ == Fault::kForgetDecay && item >= 0) {
    for (int c = 0; c < dim_; ++c) decay[c] /= a(item, c);
  }
  add_checkpoint(decay, q, 1.0, out);
}

void HeadReplay::fold(double* state) const {
  const bool untouched =
      items_.empty() && checkpoint_ != nullptr;  // then the same bits, even of -0
  for (int at = 0; at < rows_ * dim_; ++at) state[at] = untouched ? checkpoint_[at] : 0.0;
  if (untouched) return;
  std::vector<double> decay(dim_, 1.0);
  walk(static_cast<int>(items_.size()) - 1, &decay, [&](int j, const std::vector<double>& between) {
    for (int row = 0; row < rows_; ++row) {
      for (int c = 0; c < dim_; ++c) {
        state[row * dim_ + c] += updates_[j][row] * (key(j)[c] * between[c]);
      }
    }
  });
  if (checkpoint_ == nullptr) return;
  for (int row = 0; row < rows_; ++row) {
    for (int c = 0; c < dim_; ++c) state[row * dim_ + c] += checkpoint_[row * dim_ + c] * decay[c];
  }
}

}  // namespace replayssm::oracle
