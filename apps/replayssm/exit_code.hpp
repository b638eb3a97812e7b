// What the program's exit codes mean (docs/cli.md repeats this table).
#pragma once

#include "replayssm/status.hpp"

namespace replayssm::app {

enum ExitCode : int {
  kExitOk = 0,
  kExitFailure = 1,      // a file is missing or broken, output cannot be written, an internal fault
  kExitUsage = 2,        // the command line is wrong
  kExitUnsupported = 3,  // a model, shape or backend that this build does not take
  kExitDoesNotFit = 4,   // memory, context or slots are too small
  kExitInterrupted = 130,
};

[[nodiscard]] constexpr int exit_code_of(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return kExitOk;
    case StatusCode::kInvalidArgument: return kExitUsage;
    case StatusCode::kUnsupported: return kExitUnsupported;
    case StatusCode::kResourceExhausted: return kExitDoesNotFit;
    case StatusCode::kOutOfRange:
    case StatusCode::kFailedPrecondition:
    case StatusCode::kDataLoss:
    case StatusCode::kNotFound:
    case StatusCode::kDeviceError:
    case StatusCode::kInternal: return kExitFailure;
  }
  return kExitFailure;
}

}  // namespace replayssm::app
