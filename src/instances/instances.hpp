// The one table of supported cases. The build, dispatch, error texts, tests and docs read it;
// nothing else says what an implementation takes. Head dims and T are run-time values of the CPU
// code, so a case is a row here and not a compiled instance.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "replayssm/cache.hpp"

namespace replayssm::instances {

inline constexpr std::array<Rule, 3> kAllRules = {Rule::kMamba2, Rule::kGdn, Rule::kKda};
inline constexpr std::array<StateFormat, 1> kF32Only = {StateFormat::kF32};
inline constexpr std::array<DType, 3> kAllActivations = {DType::kF32, DType::kBF16, DType::kF16};

// A level of the CPU backend: the names of its two implementations. Each takes every rule, format
// f32 and every activation dtype.
struct CpuLevel {
  std::string_view replay;
  std::string_view conventional;
  std::string_view needs;  // instructions of the machine
  int priority;            // the highest that runs is chosen
};

inline constexpr CpuLevel kScalar = {"cpu-scalar", "cpu-scalar-conventional", "nothing", 10};
inline constexpr CpuLevel kAvx2 = {"cpu-avx2", "cpu-avx2-conventional", "AVX2, FMA and F16C", 20};
inline constexpr CpuLevel kAvx512 = {"cpu-avx512", "cpu-avx512-conventional",
                                     "AVX-512 F, BW, DQ and VL", 30};

// One implementation and what it takes.
struct Case {
  std::string_view implementation;
  DecodeMode decode;
  std::span<const Rule> rules;
  std::span<const StateFormat> formats;
  std::span<const DType> activations;
};

// CUDA. Layers that the fast kernels do not take run by the readable ones (see explain()).
inline constexpr Case kCuda = {"cuda", DecodeMode::kReplay, kAllRules, kF32Only, kAllActivations};
inline constexpr Case kCudaConventional = {"cuda-conventional", DecodeMode::kConventional,
                                           kAllRules, kF32Only, kAllActivations};
inline constexpr Case kCudaReference = {"cuda-reference", DecodeMode::kReplay, kAllRules, kF32Only,
                                        kAllActivations};
inline constexpr Case kCudaReferenceConventional = {
    "cuda-reference-conventional", DecodeMode::kConventional, kAllRules, kF32Only, kAllActivations};

}  // namespace replayssm::instances
