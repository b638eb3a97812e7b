// Random caches: layers in the library's words and in the oracle's, and the tokens they decode.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "oracle/bounds.hpp"
#include "oracle/layer.hpp"
#include "replayssm/backends.hpp"
#include "replayssm/cache.hpp"
#include "tests/law/support/tensor.hpp"

namespace replayssm::laws {

// One layer, said twice. The numbers are the same: every constant is exact in f32.
struct CaseLayer {
  LayerShape shape;
  oracle::Layer oracle;
  oracle::Conv conv;  // width 0: none
  std::vector<float> a_log, a, dt_bias, d, conv_weight, conv_bias;
  DType gate_dtype = DType::kF32;
  DType beta_dtype = DType::kF32;
  DType out_dtype = DType::kF32;
  bool z = false;
};

// One token of one layer: what the library is given and what the oracle is given. They differ only
// where the library documents a rounding (kda's gate record) or a formula of its own (doubled
// beta).
struct LayerToken {
  oracle::Token token;
  std::vector<double> gate;  // [H] or [H, K]
  std::vector<double> beta;
  std::vector<double> conv;  // [channels]
};
using ModelToken = std::shared_ptr<const std::vector<LayerToken>>;

struct Case {
  CacheConfig config;  // weights and memory are filled in where the cache is made
  std::vector<CaseLayer> layers;

  [[nodiscard]] std::string describe() const;
};

struct CaseLimits {
  int max_layers = 3;
  int max_slots = 5;
  bool large_dims = true;  // sometimes 80, 128, 256
};

// A random cache for an implementation, with weights, threads, counts and dtypes it takes.
[[nodiscard]] Case random_case(Random& random, const ImplementationInfo& info,
                               const CaseLimits& limits);
// Another window, T_max, slots, threads and decode mode for the same layers: a place to export to.
[[nodiscard]] Case sibling_case(Random& random, const Case& original,
                                const ImplementationInfo& info);

// A layer of a rule with plain options, for tests that want no surprises.
[[nodiscard]] CaseLayer simple_layer(Random& random, Rule rule, int heads, int groups,
                                     int value_dim, int key_dim);
// Fills config.layers from `layers`.
void finish_case(Case* made);

[[nodiscard]] ModelToken random_token(Random& random, const Case& where);

// The implementations that this machine can run.
[[nodiscard]] std::vector<ImplementationInfo> available(DecodeMode decode);
[[nodiscard]] std::vector<ImplementationInfo> available();
// For parameters of tests: names, and what stands behind one.
[[nodiscard]] std::vector<std::string> available_names();
[[nodiscard]] std::vector<std::string> available_names(DecodeMode decode);
[[nodiscard]] ImplementationInfo implementation_named(const std::string& name);
// A name that a test may carry.
[[nodiscard]] std::string test_name(std::string name);

// Chains are written out or left empty alike; trees by parents.
[[nodiscard]] std::vector<int> tree_parents(Random& random, int tokens);
[[nodiscard]] std::vector<int> tree_path(Random& random, const std::vector<int>& parents,
                                         double stop);

}  // namespace replayssm::laws
