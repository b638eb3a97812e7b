// The command line. The one file that includes CLI11, which takes long to compile.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "exit_code.hpp"
#include "options.hpp"
#include "replayssm/backends.hpp"
#include "replayssm/layer.hpp"
#include "text.hpp"

namespace replayssm::app {
namespace {

constexpr std::int64_t kMaxTokens = 1'000'000'000;
constexpr std::int64_t kMaxContinuations = 4096;
constexpr std::int64_t kMaxThreads = 1024;
// Below, the logits would leave float's range; above, every token is as likely as every other.
constexpr double kMinTemperature = 0.001;
constexpr double kMaxTemperature = 100.0;
constexpr double kMinTopP = 1e-6;

// An option whose text goes through `read`, which returns what is wrong with it or nothing. Our own
// parsers, because CLI11's take "nan", wrap what is out of range and word each refusal differently.
CLI::Option* add_value(CLI::App& command, const std::string& name, const std::string& type,
                       const std::string& description,
                       std::function<std::string(const std::string&)> read) {
  CLI::Option* option = command.add_option_function<std::string>(
      name,
      [name, read = std::move(read)](const std::string& text) {
        if (const std::string wrong = read(text); !wrong.empty()) {
          throw CLI::ValidationError(fmt::format("{} {}", name, wrong));
        }
      },
      description);
  option->type_name(type);
  return option;
}

template <typename Integer>
CLI::Option* add_integer(CLI::App& command, const std::string& name, std::int64_t lowest,
                         std::int64_t highest, Integer& target, const std::string& description) {
  return add_value(command, name, "N", description, [&target, lowest, highest](const auto& text) {
    std::int64_t value = 0;
    std::string wrong = parse_integer(text, lowest, highest, value);
    if (wrong.empty()) target = static_cast<Integer>(value);
    return wrong;
  });
}

void add_model(CLI::App& command, std::string& model) {
  add_value(
      command, "--model", "DIR", "folder of a checkpoint, or org/name from the Hugging Face cache",
      [&model](const std::string& text) {
        model = text;
        return text.empty() ? std::string("needs a folder or org/name, got ''") : std::string();
      })
      ->required();
}

void add_dtype(CLI::App& command, ComputeType& compute) {
  add_value(
      command, "--dtype", "f32|bf16|auto",
      "type the matrix products compute in (default: auto, f32 up to 1 GiB of weights)",
      [&compute](const std::string& text) -> std::string {
        for (const ComputeType type : {ComputeType::kAuto, ComputeType::kF32, ComputeType::kBF16}) {
          if (text != compute_type_name(type)) continue;
          compute = type;
          return {};
        }
        return fmt::format("needs f32, bf16 or auto, got '{}'", text);
      });
}

void add_compute(CLI::App& command, ModelOptions& options) {
  add_dtype(command, options.compute);
  add_integer(command, "--threads", 1, kMaxThreads, options.threads,
              "threads to compute with (default: one a core)");
}

void add_prompt(CLI::App& command, PromptOptions& options) {
  CLI::Option* text = add_value(command, "--prompt", "TEXT", "text to continue",
                                [&options](const std::string& value) {
                                  options.text = value;
                                  return std::string();
                                });
  CLI::Option* file = add_value(
      command, "--prompt-file", "F", "file with the text to continue; - reads standard input",
      [&options](const std::string& value) {
        options.file = value;
        return value.empty() ? std::string("needs a file name, got ''") : std::string();
      });
  text->excludes(file);
}

void add_decode(CLI::App& command, DecodeOptions& options) {
  add_integer(command, "--max-tokens", 1, kMaxTokens, options.max_tokens,
              "tokens to generate at most (default: 128)");
  add_integer(command, "--window", 1, kMaxWindow, options.window,
              "tokens between two writes of the state (default: 16)");
  add_integer(command, "--draft-tokens", 1, kMaxStepTokens - 1, options.draft_tokens,
              "drafted tokens of a step at most (default: 4)");
}

void add_json(CLI::App& command, bool& json) {
  command.add_flag("--json", json, "print one JSON value on standard output")
      ->disable_flag_override();
}

void add_sampling(CLI::App& command, Sampling& sampling) {
  CLI::Option* temperature = add_value(
      command, "--temperature", "T",
      "0 takes the best token, 1 samples as the model says (default: 0, or 1 with --top-p "
      "or --top-k)",
      [&sampling](const std::string& text) {
        double value = 0.0;
        std::string wrong = parse_real(text, 0.0, kMaxTemperature, value);
        if (wrong.empty() && value != 0.0 && value < kMinTemperature) {
          wrong = fmt::format("needs 0 or a number from {} to {}, got '{}'", kMinTemperature,
                              kMaxTemperature, text);
        }
        if (wrong.empty()) sampling.temperature = static_cast<float>(value);
        return wrong;
      });
  // Asking for a choice among several tokens means sampling, unless the temperature says otherwise.
  const auto imply_sampling = [&sampling, temperature] {
    if (temperature->count() == 0) sampling.temperature = 1.0F;
  };
  add_value(command, "--top-p", "P", "sample from the fewest tokens that hold this probability",
            [&sampling, imply_sampling](const std::string& text) {
              double value = 0.0;
              std::string wrong = parse_real(text, kMinTopP, 1.0, value);
              if (wrong.empty()) {
                sampling.top_p = static_cast<float>(value);
                imply_sampling();
              }
              return wrong;
            });
  add_value(command, "--top-k", "K", "sample from the K best tokens; 0 means all",
            [&sampling, imply_sampling](const std::string& text) {
              std::int64_t value = 0;
              std::string wrong =
                  parse_integer(text, 0, std::numeric_limits<std::int32_t>::max(), value);
              if (wrong.empty()) {
                sampling.top_k = static_cast<std::int32_t>(value);
                imply_sampling();
              }
              return wrong;
            });
  add_value(command, "--seed", "S", "the same seed samples the same text (default: 0)",
            [&sampling](const std::string& text) { return parse_seed(text, sampling.seed); });
}

void build_generate(CLI::App& command, GenerateCommand& options) {
  add_model(command, options.model.model);
  add_prompt(command, options.prompt);
  add_decode(command, options.decode);
  add_value(command, "--decode", "replay|conventional",
            "write the state once a window, or at every token (default: replay)",
            [&options](const std::string& text) -> std::string {
              if (text == "replay") {
                options.mode = DecodeMode::kReplay;
              } else if (text == "conventional") {
                options.mode = DecodeMode::kConventional;
              } else {
                return fmt::format("needs replay or conventional, got '{}'", text);
              }
              return {};
            });
  add_value(command, "--backend", "NAME",
            "implementation of the recurrence (default: the best; `replayssm doctor` lists them)",
            [&options](const std::string& text) -> std::string {
              std::string known;
              for (const ImplementationInfo& implementation : implementations()) {
                if (implementation.name == text) {
                  options.backend = text;
                  return {};
                }
                known += (known.empty() ? "" : ", ") + implementation.name;
              }
              return fmt::format("needs one of: {}; got '{}'", known, text);
            });
  add_value(command, "--draft", "none|ngram",
            "propose tokens by looking up the text so far, verify them in one step",
            [&options](const std::string& text) -> std::string {
              if (text != "none" && text != "ngram") {
                return fmt::format("needs none or ngram, got '{}'", text);
              }
              options.draft = text == "ngram" ? DraftKind::kNgram : DraftKind::kNone;
              return {};
            });
  add_sampling(command, options.sampling);
  add_integer(command, "--n", 1, kMaxContinuations, options.continuations,
              "continuations of the prompt, which is computed once (default: 1)");
  add_compute(command, options.model);
  add_json(command, options.json);
  command.add_flag("--explain", options.explain, "print on standard error what was chosen and why")
      ->disable_flag_override();
  command.footer(
      "\nExamples:\n"
      "  replayssm generate --model models/austen-py-mamba2 --prompt 'It was a truth'\n"
      "  replayssm generate --model DIR --prompt-file story.txt --draft ngram --json\n"
      "  echo 'Once upon a time' | replayssm generate --model DIR --prompt-file - \\\n"
      "      --temperature 0.8 --top-p 0.95 --seed 7 --n 4\n"
      "\nA prompt that begins with a dash is given as --prompt=-text.");
}

void build_compare(CLI::App& command, CompareCommand& options) {
  add_model(command, options.model.model);
  add_prompt(command, options.prompt);
  add_decode(command, options.decode);
  add_compute(command, options.model);
  add_json(command, options.json);
  command.footer(
      "\nExamples:\n"
      "  replayssm compare --model models/austen-py-mamba2 --prompt 'It was a truth' \\\n"
      "      --max-tokens 128\n"
      "  replayssm compare --model DIR --prompt-file story.txt --draft-tokens 7 --json");
}

void build_info(CLI::App& command, InfoCommand& options) {
  add_model(command, options.model);
  add_json(command, options.json);
  command.footer(
      "\nExamples:\n"
      "  replayssm info --model models/austen-py-mamba2\n"
      "  replayssm info --model org/name --json");
}

void build_plan(CLI::App& command, PlanCommand& options) {
  add_model(command, options.model);
  add_value(command, "--memory", "SIZE", "memory to fill: 80GiB, 80GB, 512MiB or plain bytes",
            [&options](const std::string& text) { return parse_size(text, options.memory_bytes); })
      ->required();
  add_integer(command, "--context", 1, kMaxTokens, options.context_tokens,
              "tokens a sequence holds, prompt included")
      ->required();
  add_integer(command, "--window", 1, kMaxWindow, options.window,
              "tokens between two writes of the state (default: 16)");
  add_dtype(command, options.compute);
  add_json(command, options.json);
  command.footer(
      "\nExamples:\n"
      "  replayssm plan --model models/austen-py-mamba2 --memory 1GiB --context 2048\n"
      "  replayssm plan --model org/name --memory 80GiB --context 32768 --window 32 --json");
}

void build_doctor(CLI::App& command, DoctorCommand& options) {
  add_json(command, options.json);
  command.footer(
      "\nExamples:\n"
      "  replayssm doctor\n"
      "  replayssm doctor --json");
}

Parsed leave_with(int exit_code, std::string text) {
  Parsed parsed;
  parsed.leave = true;
  parsed.exit_code = exit_code;
  parsed.text = std::move(text);
  return parsed;
}

// What is wrong with a command line that CLI11 refuses, in our words where its own mislead: it
// names unexpected arguments last first, and says "1 required N missing" where a value is missing.
std::string refusal(const CLI::App& app, const CLI::ParseError& error) {
  constexpr std::string_view kCommands = "generate, compare, info, plan and doctor";
  const bool commanded = !app.get_subcommands().empty();
  std::vector<std::string> unknown = app.remaining(true);
  unknown.erase(std::remove(unknown.begin(), unknown.end(), "--"), unknown.end());
  if (!unknown.empty()) {
    const std::string& first = unknown.front();
    if (first.size() > 1 && first.front() == '-') return fmt::format("unknown option '{}'", first);
    return commanded ? fmt::format("unexpected argument '{}'", first)
                     : fmt::format("'{}' is not a command; the commands are {}", first, kCommands);
  }
  std::string text = error.what();
  if (error.get_name() == "ArgumentMismatch") {
    const std::string option = text.substr(0, text.find(':'));
    if (text.ends_with(" flag override")) {
      return fmt::format("--{} takes no value", text.substr(0, text.find(' ')));
    }
    if (text.ends_with(" missing")) return fmt::format("{} needs a value", option);
    if (text.find(": At Most 1 ") != std::string::npos) {
      return fmt::format("{} may be given once", option);
    }
  }
  if (!commanded && error.get_name() == "RequiredError") {
    return fmt::format("a command is required; the commands are {}", kCommands);
  }
  return text;
}

// Refusals that need more than one option.
std::string check_together(const Options& options) {
  const bool generate = options.command == Command::kGenerate;
  if (!generate && options.command != Command::kCompare) return {};
  const PromptOptions& prompt = generate ? options.generate.prompt : options.compare.prompt;
  if (!prompt.text && prompt.file.empty()) return "--prompt or --prompt-file is required";
  const DecodeOptions& decode = generate ? options.generate.decode : options.compare.decode;
  const bool drafts = !generate || options.generate.draft == DraftKind::kNgram;
  if (drafts && decode.window < decode.draft_tokens + 1) {
    return fmt::format(
        "--window {} is smaller than a step of {} drafts and one token; "
        "give --window {} or more, or fewer --draft-tokens",
        decode.window, decode.draft_tokens, decode.draft_tokens + 1);
  }
  return {};
}

}  // namespace

Parsed parse_command_line(int argc, const char* const* argv) {
  Parsed parsed;
  Options& options = parsed.options;
  CLI::App app(
      "Text from hybrid state-space language models, decoded by caching the inputs of the "
      "recurrent layers instead of writing their state at every token.",
      "replayssm");
  app.set_version_flag("--version", fmt::format("replayssm {}", version()));
  app.require_subcommand(1);
  app.fallthrough();
  app.footer(
      "\nExamples:\n"
      "  replayssm compare --model models/austen-py-mamba2 --prompt 'It was a truth'\n"
      "  replayssm generate --model DIR --prompt 'It was a truth' --max-tokens 64\n"
      "  replayssm generate --help\n"
      "\nExit codes: 0 done, 1 failure, 2 wrong command line, 3 model or shape not supported,\n"
      "4 does not fit, 130 interrupted.");
  add_value(app, "--log-level", "error|warn|info|debug",
            "what to print on standard error (default: info)",
            [&options](const std::string& text) -> std::string {
              if (text == "error") {
                options.log_level = Verbosity::kError;
              } else if (text == "warn") {
                options.log_level = Verbosity::kWarn;
              } else if (text == "info") {
                options.log_level = Verbosity::kInfo;
              } else if (text == "debug") {
                options.log_level = Verbosity::kDebug;
              } else {
                return fmt::format("needs error, warn, info or debug, got '{}'", text);
              }
              return {};
            });

  CLI::App* generate = app.add_subcommand("generate", "continue a prompt");
  CLI::App* compare =
      app.add_subcommand("compare",
                         "continue a prompt conventionally, by replay and by replay "
                         "with drafts, and compare");
  CLI::App* info = app.add_subcommand("info", "what a checkpoint holds and what a sequence costs");
  CLI::App* plan = app.add_subcommand("plan", "how many sequences fit into a memory size");
  CLI::App* doctor = app.add_subcommand("doctor", "what this build and this machine can do");
  build_generate(*generate, options.generate);
  build_compare(*compare, options.compare);
  build_info(*info, options.info);
  build_plan(*plan, options.plan);
  build_doctor(*doctor, options.doctor);

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForVersion& version_call) {
    return leave_with(kExitOk, fmt::format("{}\n", version_call.what()));
  } catch (const CLI::CallForHelp&) {
    return leave_with(kExitOk, app.help());
  } catch (const CLI::ParseError& error) {
    std::string command = "replayssm";
    for (const CLI::App* chosen : app.get_subcommands()) command += ' ' + chosen->get_name();
    return leave_with(kExitUsage, fmt::format("{} (see {} --help)", refusal(app, error), command));
  }
  if (generate->parsed()) options.command = Command::kGenerate;
  if (compare->parsed()) options.command = Command::kCompare;
  if (info->parsed()) options.command = Command::kInfo;
  if (plan->parsed()) options.command = Command::kPlan;
  if (doctor->parsed()) options.command = Command::kDoctor;
  if (std::string wrong = check_together(options); !wrong.empty()) {
    return leave_with(kExitUsage, fmt::format("{} (see replayssm {} --help)", wrong,
                                              app.get_subcommands().front()->get_name()));
  }
  return parsed;
}

}  // namespace replayssm::app
