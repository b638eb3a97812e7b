// What several subcommands do: read a prompt, load a model, end.
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "commands.hpp"
#include "exit_code.hpp"
#include "interrupt.hpp"
#include "model_lookup.hpp"

namespace replayssm::app {
namespace {

// No model reads more; without a limit a wrong path such as /dev/zero would fill the memory.
constexpr std::size_t kMaxPromptBytes = std::size_t{256} << 20U;

struct CloseFile {
  void operator()(std::FILE* file) const {
    if (file != stdin) (void)std::fclose(file);
  }
};

}  // namespace

Result<std::string> read_prompt(const PromptOptions& options) {
  std::string prompt;
  if (options.text) {
    prompt = *options.text;
  } else {
    const bool standard_input = options.file == "-";
    const std::string name = standard_input ? "standard input" : "'" + options.file + "'";
    const std::unique_ptr<std::FILE, CloseFile> file(
        standard_input ? stdin : std::fopen(options.file.c_str(), "rb"));
    const auto cannot_read = [&name] {
      return Status(StatusCode::kNotFound,
                    fmt::format("cannot read the prompt from {}: {}", name,
                                std::strerror(errno)));  // NOLINT(concurrency-mt-unsafe)
    };
    if (file == nullptr) return cannot_read();
    char part[1 << 16];
    while (true) {
      const std::size_t count = std::fread(part, 1, sizeof part, file.get());
      prompt.append(part, count);
      if (prompt.size() > kMaxPromptBytes) {
        return Status(StatusCode::kInvalidArgument,
                      fmt::format("the prompt in {} is longer than {} bytes; give a shorter one",
                                  name, kMaxPromptBytes));
      }
      if (count == sizeof part) continue;
      if (std::ferror(file.get()) != 0) return cannot_read();
      break;
    }
  }
  if (prompt.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  "the prompt is empty; give at least one character to continue");
  }
  return prompt;
}

int fail_to_load(Console& console, const Status& status) {
  const bool malformed = status.code() == StatusCode::kInvalidArgument;
  return console.fail(malformed ? kExitFailure : exit_code_of(status.code()), status.message());
}

LogCallback log_to(Console& console) {
  return [&console](LogLevel level, std::string_view message) {
    switch (level) {
      case LogLevel::kDebug:
      case LogLevel::kInfo:
        // What the library does on the way is detail to a user of the program.
        console.debug(message);
        break;
      case LogLevel::kWarning: console.warn(message); break;
    }
  };
}

Result<Model> load_model(Console& console, const ModelOptions& options) {
  const Result<std::string> folder = find_model(options.model);
  if (!folder.ok()) return folder.status();
  console.progress(fmt::format("loading {}", *folder));
  // Held back until the model is there: a failure is one line.
  std::vector<std::pair<LogLevel, std::string>> messages;
  LoadOptions load;
  load.compute = options.compute;
  load.threads = options.threads;
  load.log = [&messages](LogLevel level, std::string_view message) {
    messages.emplace_back(level, message);
  };
  Result<Model> model = Model::load(*folder, load);
  console.end_progress();
  if (!model.ok()) return model;
  if (!model->has_tokenizer()) {
    return Status(
        StatusCode::kNotFound,
        fmt::format(
            "there is neither tokenizer.json nor tiktoken.model in {}, so no text can be read or "
            "written; add one of them to the folder",
            *folder));
  }
  const LogCallback log = log_to(console);
  for (const auto& [level, message] : messages) log(level, message);
  console.debug(fmt::format("loaded {}: {} layers, {} parameters, computed in {}", *folder,
                            model->info().layers.size(), model->info().parameters,
                            compute_type_name(model->info().compute)));
  return model;
}

int finish(Console& console, int exit_code) {
  if (!console.out_open()) return console.out_failed();
  if (interrupted()) return console.fail(kExitInterrupted, "interrupted; stopped after this step");
  return exit_code;
}

}  // namespace replayssm::app
