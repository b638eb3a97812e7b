// Tiny models with the logits that transformers computes for them
// (tools/fixtures/make_<family>.py), and the comparison that judges ours.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/runner.hpp"
#include "replayssm/model.hpp"

namespace replayssm::logits {

// One text of a fixture. Logits are [tokens, vocab].
struct Expected {
  std::vector<std::int32_t> tokens;
  std::vector<double> exact;     // float64
  std::vector<float> reference;  // transformers in float32, whole text at once
  std::int64_t vocab = 0;
};

[[nodiscard]] std::string fixture_folder(const std::string& family, const std::string& name);
[[nodiscard]] std::vector<std::string> fixture_names(const std::string& family);
// Empty with a test failure where the file is not as expected.
[[nodiscard]] std::vector<Expected> read_expected(const std::string& folder);

// Copies a fixture to `target` with every element of `tensor` (empty: of all tensors) replaced by
// change(element).
void write_changed(const std::string& folder, const std::string& target, const std::string& tensor,
                   const std::function<float(float)>& change);
// Names of all tensors of a folder.
[[nodiscard]] std::vector<std::string> tensor_names(const std::string& folder);

// The largest |ours - exact| - tolerance of all positions, in units of the position's tolerance.
struct Verdict {
  double worst = 0.0;  // error / tolerance; infinity for NaN where the exact value has none
  std::int64_t token = 0;
  std::int64_t entry = 0;
  double ours = 0.0;
  double exact = 0.0;
  double tolerance = 0.0;
  [[nodiscard]] bool accepted() const { return worst <= 1.0; }
  [[nodiscard]] std::string text() const;
};

// Tolerance of a position t, for compute in f32:
//   4 max over the text of |reference - exact|       what another correct float32 evaluation is off
//                                                    by, and
//   + 8 u sqrt(2 L) |exact[t]|_2 / sqrt(vocab)       independent roundings, two a layer, of the
//                                                    typical logit, u = 2^-24.
[[nodiscard]] Verdict judge(const Expected& expected, const std::vector<float>& ours,
                            std::int64_t layers);
// The same with one tolerance for all logits.
[[nodiscard]] Verdict judge_within(const Expected& expected, const std::vector<float>& ours,
                                   double tolerance);

}  // namespace replayssm::logits
