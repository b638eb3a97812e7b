// The replay formulas of one head: outputs, updates and the folded state from a checkpoint and the
// inputs since, without ever forming a state in between. They are written from the unrolled sum, so
// that agreeing with recurrence.hpp is a theorem and not a copy.
//
// Items are the tokens since the checkpoint: first the committed records, oldest first, then the
// tokens of this step. An item names its parent, an earlier item or -1 for the checkpoint; the path
// of an item is the way back over parents.
//
//   o_i = S0 (e^{G_i} * q) + sum over j on i's path of u_j ((k_j * e^{G_i - G_j}) . q)
//
// Decays are products taken backwards along the path, newest first. They never exceed 1, survive a
// gate of -inf, and no prefix sum is ever subtracted.
#pragma once

#include <vector>

#include "oracle/layer.hpp"

namespace replayssm::oracle {

// Mistakes that this field has made, switched on by tests to prove that they would be noticed.
enum class Fault {
  kNone,
  kFoldTooFew,      // a fold takes W - 1 records and drops the oldest of them
  kForgetDecay,     // the checkpoint's part of an output is not decayed by the newest token
  kTreeAsChain,     // parents are ignored
  kCursorPerLayer,  // the second layer onwards sees the cursor already advanced
  kPrefixSums,      // decays are e^{prefix_i - prefix_j}
  kFoldStoredU,     // a fold takes u from the read track
  kIgnoreZeroFlag,  // a fresh slot reads what its block holds
  kFoldInPlace,     // a shared block is folded in place
  kKeepRejected,    // commit takes the first tokens of a step, not the accepted nodes
};

// One token as one head sees it. Pointers are borrowed.
struct Item {
  const double* k = nullptr;          // [K], raw
  double k_scale = 1.0;               // its inverse norm
  const double* log_decay = nullptr;  // [gate_width]
  const double* v = nullptr;          // [V]
  double weight = 0.0;                // dt or beta
  const double* u = nullptr;          // [V]: the update, where it is known
  int parent = -1;
};

// The checkpoint and the items of one head.
class HeadReplay {
 public:
  // checkpoint [V, K]; null counts as 0 and nothing is read.
  HeadReplay(const Layer& layer, const double* checkpoint, std::vector<Item> items, Fault fault);

  // Finds u of every item that has none: dt x for mamba2; for the delta rules row i of the unit
  // lower-triangular system (I + M) U = R, solved forwards. An item's own u is never read before it
  // is found.
  void solve();
  [[nodiscard]] const std::vector<double>& update(int item) const { return updates_[item]; }

  // out [V] = S_i q, with q [K].
  void read(int item, const double* q, double* out) const;

  // state [V, K] = the state after the last item; items must form a chain. Without items: the
  // checkpoint.
  void fold(double* state) const;

 private:
  // Calls visit(j, decay) for j from `item` back to the root with decay = e^{G_item - G_j} *
  // newest, newest [K] being the decay behind `item`; leaves e^{G_item - G_root} * newest in
  // `decay`.
  template <typename Visit>
  void walk(int item, std::vector<double>* decay, Visit visit) const;
  void add_checkpoint(const std::vector<double>& decay, const double* q, double scale,
                      double* out) const;
  [[nodiscard]] const double* key(int item) const { return keys_.data() + item * dim_; }
  [[nodiscard]] double a(int item, int channel) const {
    return decays_[item * width_ + (width_ == 1 ? 0 : channel)];
  }

  int rows_;
  int dim_;
  int width_;
  bool delta_;
  const double* checkpoint_;
  std::vector<Item> items_;
  std::vector<double> keys_;                  // [items, K], normalised
  std::vector<double> decays_;                // [items, gate_width], e^g
  std::vector<double> prefix_;                // [items, gate_width], only for Fault::kPrefixSums
  std::vector<std::vector<double>> updates_;  // [items][V]
  Fault fault_;
};

}  // namespace replayssm::oracle
