// Error bounds computed from the data: how far a correct float32 implementation may be from the
// exact result. Tests compare a backend with the float64 value here and take the bound as the
// tolerance of each element.
//
// The derivation stands in bounds.cpp. The bounds are of first order in the units times 1.1; they
// hold for any order of summation, for stepping and for replay, for decays taken as products or as
// exponentials of sums, fused or not.
//
// Use, for one layer of one slot:
//   BoundedLayer bounded(layer, precision);
//   per forward: if (bounded.committed() >= W) bounded.fold(W);
//                auto want = bounded.step(tokens, parents);   // values and bounds of the outputs
//                bounded.commit(accepted tokens in order);
//   a prompt chunk or conventional decoding: auto want = bounded.advance(tokens);
//   state: bounded.state() against bounded.state_bound(), any time; a fork is a copy of the object.
#pragma once

#include <vector>

#include "oracle/layer.hpp"
#include "oracle/recurrence.hpp"
#include "replayssm/dtype.hpp"

namespace replayssm::oracle {

// The roundings of an implementation. Activations are exact and not counted.
struct Precision {
  double unit = 0x1.0p-24;           // arithmetic in f32
  double update_unit = 0.0;          // of u stored for the read track
  double output_unit = 0x1.0p-24;    // of the output's dtype
  double output_floor = 0x1.0p-150;  // its absolute error near 0
  int lanes = 16;                    // accumulators of a dot product; 1 covers any order

  // u stored as `update` (mamba2 stores no u and ignores it), outputs as `output`.
  [[nodiscard]] static Precision of(DType update, DType output);
  // Roundings that one term of a dot product of n meets: its product, its lane, the tree over
  // lanes.
  [[nodiscard]] double dot_roundings(int n) const;
};

struct BoundedOutputs {
  std::vector<std::vector<double>> values;  // [T][heads * V], exact
  std::vector<std::vector<double>> bounds;  // [T][heads * V], absolute
};

class BoundedLayer {
 public:
  BoundedLayer(Layer layer, const Precision& precision);

  // Starts over from a state that the implementation holds exactly, for example the f32 bits that
  // it was given.
  void load(const State& state);

  [[nodiscard]] int committed() const { return static_cast<int>(records_.size()); }
  void fold(int count);  // the oldest records; at most committed()
  [[nodiscard]] BoundedOutputs step(const std::vector<Token>& tokens,
                                    const std::vector<int>& parents) const;
  void commit(const std::vector<Token>& accepted);
  // Folds everything, then runs the tokens in full precision and folds them: prefill, and
  // conventional decoding.
  BoundedOutputs advance(const std::vector<Token>& tokens);

  // The exact logical state and, for each row [heads * V], how far any element of that row of a
  // stored state may be.
  [[nodiscard]] const State& state() const;
  [[nodiscard]] const std::vector<double>& state_bound() const;
  // The same of the checkpoint alone.
  [[nodiscard]] const State& checkpoint() const { return checkpoint_; }
  [[nodiscard]] const std::vector<double>& checkpoint_bound() const { return checkpoint_bound_; }

 private:
  // A token with everything the bounds need: its exact inputs, their errors, and the state behind
  // it.
  struct Node {
    Token token;
    Derived in;
    std::vector<double> outputs;       // [heads, V] exact, finished
    std::vector<double> gate_error;    // [heads, gate_width], absolute error of the log decay
    std::vector<double> weight_error;  // [heads], absolute
    std::vector<double> u;             // [heads, V] exact
    State state;                       // exact
    std::vector<double> fold_bound;    // [heads, V], row norms of the error on the fold's track
    std::vector<double> read_bound;    // [heads, V], and on the read track
    std::vector<double> stored_bound;  // [heads, V], fold_bound and the assembly of a stored state
  };
  using Path = std::vector<const Node*>;  // oldest first, from the checkpoint

  [[nodiscard]] Path records() const;
  [[nodiscard]] const State& state_of(const Path& path) const;
  // The node of a token behind `path`; `update_unit` is 0 where u is used as computed.
  [[nodiscard]] Node extend(const Path& path, const Token& token, double update_unit) const;
  void input_errors(Node* node) const;
  // Bounds [heads, V] of the finished outputs of the last node of `path`, given the error of the
  // state it reads.
  [[nodiscard]] std::vector<double> output_bound(const Path& path,
                                                 const std::vector<double>& read) const;
  // What a walk back over a path meets: for each node, newest first, and last for the checkpoint,
  // what lies between.
  struct Reach {
    std::vector<double> decay;  // [K], e^G
    std::vector<double> error;  // [K], absolute error of that decay
  };
  [[nodiscard]] std::vector<Reach> reaches(const Path& path, int head, const Node* newest) const;
  [[nodiscard]] std::vector<double> sum_error(const Path& path, int head,
                                              const std::vector<Reach>& reach,
                                              const double* y) const;
  [[nodiscard]] std::vector<double> assembly_error(const Path& path, int head) const;
  [[nodiscard]] double key_error() const;

  Layer layer_;
  Precision precision_;
  State checkpoint_;
  std::vector<double> checkpoint_bound_;
  std::vector<Node> records_;
};

// Bound of conv outputs [channels] in f32, rounded to the output dtype, from the exact inputs.
[[nodiscard]] std::vector<double> conv_bound(const Conv& conv, const std::vector<double>& input,
                                             const ConvHistory& history,
                                             const Precision& precision);

}  // namespace replayssm::oracle
