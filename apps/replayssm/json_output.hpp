// The results of the subcommands as JSON: one line, UTF-8, with a line end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "replayssm/backends.hpp"
#include "replayssm/engine.hpp"
#include "replayssm/model.hpp"

namespace replayssm::app {

struct GenerateReport {
  DecodeMode decode = DecodeMode::kReplay;
  DraftKind draft = DraftKind::kNone;
  std::vector<SequenceOutput> outputs;
  Stats stats;  // of all outputs together
};

struct DoctorReport {
  std::string version;
  std::string cpu_model;
  std::string cpu_level;  // "x86-64-v3"; empty on other processors
  std::vector<std::string> cpu_features;
  int cores = 0;
  std::int64_t memory_bytes = 0;
  std::string model_cache;  // the Hugging Face cache folder
  bool model_cache_exists = false;
  std::vector<ImplementationInfo> implementations;
  std::vector<std::string> missing;  // what is not there and how to get it
};

// One object; a list of objects for several continuations.
[[nodiscard]] std::string to_json(const GenerateReport& report);
[[nodiscard]] std::string to_json(const Comparison& comparison);
[[nodiscard]] std::string to_json(const ModelInfo& info);
[[nodiscard]] std::string to_json(const Plan& plan);
[[nodiscard]] std::string to_json(const DoctorReport& report);

}  // namespace replayssm::app
