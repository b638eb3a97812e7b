// The subcommands; each returns the program's exit code and has a file of its own.
#pragma once

#include <string>

#include "console.hpp"
#include "options.hpp"
#include "replayssm/model.hpp"
#include "replayssm/status.hpp"

namespace replayssm::app {

int run_generate(Console& console, const GenerateCommand& command);
int run_compare(Console& console, const CompareCommand& command);
int run_info(Console& console, const InfoCommand& command);
int run_plan(Console& console, const PlanCommand& command);
int run_doctor(Console& console, const DoctorCommand& command);

// --- what several of them do (session.cpp)
// --------------------------------------------------------

// The prompt, from the command line, a file or standard input; never empty.
[[nodiscard]] Result<std::string> read_prompt(const PromptOptions& options);

// Finds and loads the model, with progress on a terminal.
[[nodiscard]] Result<Model> load_model(Console& console, const ModelOptions& options);

// Reports why a model could not be found, inspected or loaded. A malformed file is a failure, not a
// wrong command line, whatever the library calls it.
int fail_to_load(Console& console, const Status& status);

// Sends the library's messages to the console.
[[nodiscard]] LogCallback log_to(Console& console);

// Ends a command whose results were just printed: kExitInterrupted after SIGINT, kExitFailure if
// the output is gone, else `exit_code`.
[[nodiscard]] int finish(Console& console, int exit_code);

}  // namespace replayssm::app
