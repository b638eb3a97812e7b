// The one table of supported cases. The build, dispatch, error texts, tests and docs read it;
// nothing else says what an implementation takes. Head dims and T are run-time values of the CPU
// code, so a case is a row here and not a compiled instance.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "replayssm/cache.hpp"

namespace replayssm::instances {

struct Case {
  std::string_view implementation;
  DecodeMode decode;
  std::span<const Rule> rules;
  std::span<const StateFormat> formats;
  std::span<const DType> activations;
};

inline constexpr std::array<Rule, 3> kAllRules = {Rule::kMamba2, Rule::kGdn, Rule::kKda};
inline constexpr std::array<StateFormat, 1> kF32Only = {StateFormat::kF32};
inline constexpr std::array<DType, 3> kAllActivations = {DType::kF32, DType::kBF16, DType::kF16};

inline constexpr Case kCpuScalar = {"cpu-scalar", DecodeMode::kReplay, kAllRules, kF32Only,
                                    kAllActivations};
inline constexpr Case kCpuConventional = {"cpu-scalar-conventional", DecodeMode::kConventional,
                                          kAllRules, kF32Only, kAllActivations};

}  // namespace replayssm::instances
