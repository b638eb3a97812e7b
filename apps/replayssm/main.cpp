// replayssm: the command line of the engine. Results go to standard output, everything else to
// standard error; docs/cli.md states what each subcommand prints and returns.
#include <exception>
#include <new>

#include "commands.hpp"
#include "console.hpp"
#include "exit_code.hpp"
#include "interrupt.hpp"
#include "options.hpp"

namespace {

using replayssm::app::Command;
using replayssm::app::Console;
using replayssm::app::Options;

int dispatch(Console& console, const Options& options) {
  switch (options.command) {
    case Command::kGenerate: return replayssm::app::run_generate(console, options.generate);
    case Command::kCompare: return replayssm::app::run_compare(console, options.compare);
    case Command::kInfo: return replayssm::app::run_info(console, options.info);
    case Command::kPlan: return replayssm::app::run_plan(console, options.plan);
    case Command::kDoctor: return replayssm::app::run_doctor(console, options.doctor);
    case Command::kNone: break;
  }
  return console.fail(replayssm::app::kExitUsage, "no command was given; see replayssm --help");
}

}  // namespace

int main(int argc, char** argv) {
  replayssm::app::prepare_process();
  Console console;
  // The library returns its errors; what can still be thrown here is the program's own running out
  // of memory.
  try {
    const replayssm::app::Parsed parsed = replayssm::app::parse_command_line(argc, argv);
    if (parsed.leave && parsed.exit_code != replayssm::app::kExitOk) {
      return console.fail(parsed.exit_code, parsed.text);
    }
    if (parsed.leave) {
      console.out(parsed.text);
      return replayssm::app::finish(console, replayssm::app::kExitOk);
    }
    console.set_level(parsed.options.log_level);
    return dispatch(console, parsed.options);
  } catch (const std::bad_alloc&) {
    return console.fail(replayssm::app::kExitDoesNotFit,
                        "out of memory; give fewer --n or --max-tokens, or a smaller model");
  } catch (const std::exception& error) {
    return console.fail(replayssm::app::kExitFailure, error.what());
  }
}
