// The implementations this build holds.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "replayssm/cache.hpp"
#include "replayssm/export.h"

namespace replayssm {

// One named implementation and what it takes.
struct ImplementationInfo {
  std::string name;    // for CacheConfig::implementation, for example "cpu-scalar"
  std::string device;  // "cpu" or "cuda"
  DecodeMode decode = DecodeMode::kReplay;
  std::vector<Rule> rules;
  std::vector<StateFormat> formats;
  std::vector<DType> activations;
  bool available = false;  // can run on this machine
  std::string unavailable_because;
  int priority = 0;  // among those that fit, the highest is chosen
};

// All implementations of this build, best first.
[[nodiscard]] REPLAYSSM_API std::vector<ImplementationInfo> implementations();

// The library's version, for example "0.1.0".
[[nodiscard]] REPLAYSSM_API std::string_view version();

}  // namespace replayssm
