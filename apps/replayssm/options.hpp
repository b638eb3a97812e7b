// What each subcommand was asked to do. Every value is checked when it is read from the command
// line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "console.hpp"
#include "replayssm/engine.hpp"

namespace replayssm::app {

enum class Command { kNone, kGenerate, kCompare, kInfo, kPlan, kDoctor };

// Of every subcommand that loads weights.
struct ModelOptions {
  std::string model;
  ComputeType compute = ComputeType::kAuto;
  int threads = 0;  // 0: as many as the machine has cores
};

struct PromptOptions {
  std::optional<std::string> text;
  std::string file;  // "-": standard input
};

struct DecodeOptions {
  std::int64_t max_tokens = 128;
  std::int32_t window = 16;
  std::int32_t draft_tokens = 4;
};

struct GenerateCommand {
  ModelOptions model;
  std::string backend;  // empty: the best that fits
  PromptOptions prompt;
  DecodeOptions decode;
  DecodeMode mode = DecodeMode::kReplay;
  DraftKind draft = DraftKind::kNone;
  Sampling sampling;
  std::int32_t continuations = 1;
  bool json = false;
  bool explain = false;
};

struct CompareCommand {
  ModelOptions model;
  PromptOptions prompt;
  DecodeOptions decode;
  bool json = false;
};

struct InfoCommand {
  std::string model;
  bool json = false;
};

struct PlanCommand {
  std::string model;
  std::int64_t memory_bytes = 0;
  std::int64_t context_tokens = 0;
  std::int32_t window = 16;
  ComputeType compute = ComputeType::kAuto;
  bool json = false;
};

struct DoctorCommand {
  bool json = false;
};

struct Options {
  Command command = Command::kNone;
  Verbosity log_level = Verbosity::kInfo;
  GenerateCommand generate;
  CompareCommand compare;
  InfoCommand info;
  PlanCommand plan;
  DoctorCommand doctor;
};

// What reading the command line came to: go on with `options`, or print `text` and leave. An exit
// code other than kExitOk makes `text` an error line.
struct Parsed {
  Options options;
  bool leave = false;
  int exit_code = 0;
  std::string text;
};

[[nodiscard]] Parsed parse_command_line(int argc, const char* const* argv);

}  // namespace replayssm::app
