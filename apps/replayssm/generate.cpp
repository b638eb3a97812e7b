// replayssm generate: continue a prompt.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "commands.hpp"
#include "exit_code.hpp"
#include "interrupt.hpp"
#include "json_output.hpp"
#include "replayssm/backends.hpp"
#include "replayssm/engine.hpp"
#include "text.hpp"

namespace replayssm::app {
namespace {

// Prints texts in the order of the continuations: the first unfinished one as it comes, the later
// ones when their turn is there.
class TextPrinter {
 public:
  TextPrinter(Console& console, std::size_t count, bool silent)
      : console_(console), silent_(silent), waiting_(count), done_(count, false) {}

  void add(std::size_t continuation, std::string_view text) {
    if (silent_) return;
    if (continuation == current_) {
      print(text);
    } else {
      waiting_[continuation] += text;
    }
  }

  void end(std::size_t continuation) {
    done_[continuation] = true;
    while (current_ < done_.size() && done_[current_]) {
      close();
      if (++current_ < done_.size()) open();
    }
  }

  // Whatever is still held back, when generation stops early.
  void end_all() {
    for (std::size_t at = current_; at < done_.size(); ++at) end(at);
  }

 private:
  void print(std::string_view text) {
    if (silent_ || text.empty()) return;
    console_.out(text);
    at_line_start_ = text.back() == '\n';
  }
  void close() {
    if (!at_line_start_) print("\n");
  }
  void open() {
    print("---\n");
    print(waiting_[current_]);
    waiting_[current_].clear();
  }

  Console& console_;
  bool silent_;
  bool at_line_start_ = false;
  std::size_t current_ = 0;
  std::vector<std::string> waiting_;
  std::vector<bool> done_;
};

// An implementation decodes in one way; say so before anything is loaded.
Status check_backend(const GenerateCommand& command) {
  for (const ImplementationInfo& implementation : implementations()) {
    if (command.backend != implementation.name) continue;
    if (implementation.decode != command.mode) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("--backend {} needs --decode {}; give that, or another backend "
                                "(replayssm doctor lists them)",
                                command.backend, decode_mode_name(implementation.decode)));
    }
    if (implementation.device != "cpu") {
      return Status(
          StatusCode::kUnsupported,
          fmt::format("--backend {} takes arrays on device {}, but models run on the CPU; "
                      "give a backend whose name begins with cpu",
                      command.backend, implementation.device));
    }
    if (!implementation.available) {
      return Status(StatusCode::kUnsupported,
                    fmt::format("--backend {} cannot run here: {}; leave --backend out",
                                command.backend, implementation.unavailable_because));
    }
  }
  return {};
}

EngineOptions engine_options(Console& console, const GenerateCommand& command) {
  EngineOptions options;
  options.decode = command.mode;
  options.draft = command.draft;
  if (command.draft != DraftKind::kNone) options.draft_tokens = command.decode.draft_tokens;
  options.window = command.decode.window;
  options.implementation = command.backend;
  options.max_sequences = command.continuations;
  options.threads = command.model.threads;
  options.log = log_to(console);
  return options;
}

void print_summary(Console& console, const Stats& stats) {
  const std::string prompt =
      fmt::format("prompt {}, {:.1f} tokens/s", counted(stats.prompt_tokens, "token"),
                  stats.prefill_tokens_per_second());
  const std::string written = counted(stats.generated_tokens, "token");
  // The first token comes of the prompt: without a step there is nothing to say of steps.
  if (stats.steps == 0) return console.info(written + "; " + prompt);
  console.info(
      fmt::format("{}, {:.1f} tokens/s; {}; {} of state moved a token, {:.2f} tokens a step",
                  written, stats.decode_tokens_per_second(), prompt,
                  format_bytes(stats.state_bytes_per_token), stats.accepted_per_step()));
}

}  // namespace

int run_generate(Console& console, const GenerateCommand& command) {
  if (Status status = check_backend(command); !status.ok()) return console.fail(status);
  Result<std::string> prompt = read_prompt(command.prompt);
  if (!prompt.ok()) return console.fail(prompt.status());
  Result<Model> model = load_model(console, command.model);
  if (!model.ok()) return fail_to_load(console, model.status());
  Result<std::vector<std::int32_t>> tokens = model->encode(*prompt);
  if (!tokens.ok()) return console.fail(tokens.status());

  Result<Engine> engine = Engine::create(*model, engine_options(console, command));
  if (!engine.ok()) return console.fail(engine.status());
  if (command.explain) console.note(engine->explain());
  if (command.continuations > 1 && command.sampling.temperature == 0.0F) {
    console.warn("all continuations are the same at temperature 0; give --temperature");
  }

  Request request;
  request.prompt = *std::move(tokens);
  request.max_new_tokens = command.decode.max_tokens;
  request.sampling = command.sampling;
  request.continuations = command.continuations;

  std::vector<SequenceOutput> outputs(static_cast<std::size_t>(command.continuations));
  TextPrinter printer(console, outputs.size(), command.json);
  std::int64_t written = 0;
  const auto stop_now = [&console] { return interrupted() || !console.out_open(); };
  const TokenCallback receive = [&](const TokenEvent& event) {
    const auto index = static_cast<std::size_t>(event.sequence.continuation);
    SequenceOutput& output = outputs[index];
    output.text += event.text;
    printer.add(index, event.text);
    if (event.finish == FinishReason::kRunning) {
      output.tokens.push_back(event.token);
      ++written;
    } else {
      output.finish = event.finish;
      printer.end(index);
    }
    return stop_now() ? Control::kCancelAll : Control::kContinue;
  };

  // Step by step instead of Engine::generate(), so that a long prompt can be interrupted too.
  const Result<std::int64_t> id = engine->submit(request);
  if (!id.ok()) {
    // The prompt does not fit into the context.
    if (id.status().code() == StatusCode::kOutOfRange) {
      return console.fail(kExitDoesNotFit, id.status().message());
    }
    return console.fail(id.status());
  }
  while (!stop_now()) {
    console.progress(written == 0 ? fmt::format("prompt, {} tokens", request.prompt.size())
                                  : fmt::format("{} tokens", written));
    const Result<bool> more = engine->step(receive);
    if (!more.ok()) {
      printer.end_all();
      return console.fail(more.status());
    }
    if (!*more) break;
  }
  console.end_progress();
  printer.end_all();

  const Stats stats = engine->stats();
  const bool context_full = std::any_of(
      outputs.begin(), outputs.end(),
      [](const SequenceOutput& output) { return output.finish == FinishReason::kContext; });
  if (command.json) {
    GenerateReport report;
    report.decode = command.mode;
    report.draft = command.draft;
    for (SequenceOutput& output : outputs) {
      if (output.finish == FinishReason::kRunning) output.finish = FinishReason::kCancelled;
    }
    report.outputs = std::move(outputs);
    report.stats = stats;
    console.out(to_json(report));
  }
  if (console.out_open()) {
    if (context_full) {
      console.warn(fmt::format("stopped: the text fills the model's context of {} tokens",
                               engine->options().context));
    }
    print_summary(console, stats);
  }
  return finish(console, kExitOk);
}

}  // namespace replayssm::app
