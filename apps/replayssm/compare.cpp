// replayssm compare: the same prompt decoded conventionally, by replay and by replay with drafts.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "commands.hpp"
#include "exit_code.hpp"
#include "interrupt.hpp"
#include "json_output.hpp"
#include "replayssm/engine.hpp"
#include "text.hpp"

namespace replayssm::app {
namespace {

std::string run_name(DecodeMode decode, DraftKind draft) {
  std::string name(decode_mode_name(decode));
  if (draft != DraftKind::kNone) name += fmt::format(" with {} drafts", draft_kind_name(draft));
  return name;
}

// The runs of a Comparison in their fixed order (engine.hpp); a title is due before a run ends.
std::string title(std::size_t run) {
  switch (run) {
    case 0: return run_name(DecodeMode::kConventional, DraftKind::kNone);
    case 1: return run_name(DecodeMode::kReplay, DraftKind::kNone);
    default: return run_name(DecodeMode::kReplay, DraftKind::kNgram);
  }
}

std::string verdict(const Comparison& comparison, const ComparedRun& run) {
  if (&run == &comparison.runs.front()) return "reference";
  if (run.finish == FinishReason::kCancelled) return "interrupted";
  if (run.first_difference < 0) return "equal";
  return run.agrees ? fmt::format("equal up to a near-tie at token {}", run.first_difference)
                    : fmt::format("differs at token {}", run.first_difference);
}

std::string table(const Comparison& comparison) {
  std::string text = fmt::format("{:<26} {:>10} {:>20} {:>14}  {}\n", "decoding", "tokens/s",
                                 "state bytes a token", "tokens a step", "output");
  for (const ComparedRun& run : comparison.runs) {
    text += fmt::format("{:<26} {:>10.1f} {:>20} {:>14.2f}  {}\n", run_name(run.decode, run.draft),
                        run.stats.decode_tokens_per_second(),
                        format_count(static_cast<std::int64_t>(run.stats.state_bytes_per_token)),
                        run.stats.accepted_per_step(), verdict(comparison, run));
  }
  return text;
}

std::string agreement(const Comparison& comparison) {
  const std::string first = comparison.first_near_tie < 0
                                ? ""
                                : fmt::format(", the first at token {}", comparison.first_near_tie);
  return fmt::format(
      "{}\nNear-ties of the reference (two best logits within rounding, at most {:.2g} apart): {} "
      "of {} "
      "tokens{}.\n",
      comparison.agree ? "The decodings agree." : "The decodings do not agree.", comparison.bound,
      comparison.near_ties, comparison.runs.front().tokens.size(), first);
}

}  // namespace

int run_compare(Console& console, const CompareCommand& command) {
  const Result<std::string> prompt = read_prompt(command.prompt);
  if (!prompt.ok()) return console.fail(prompt.status());
  const Result<Model> model = load_model(console, command.model);
  if (!model.ok()) return fail_to_load(console, model.status());
  const Result<std::vector<std::int32_t>> tokens = model->encode(*prompt);
  if (!tokens.ok()) return console.fail(tokens.status());

  CompareOptions options;
  options.max_new_tokens = command.decode.max_tokens;
  options.window = command.decode.window;
  options.draft_tokens = command.decode.draft_tokens;
  options.threads = command.model.threads;
  options.log = log_to(console);

  std::size_t titled = 0;
  const auto stop_now = [&console] { return interrupted() || !console.out_open(); };
  const CompareCallback receive = [&](std::size_t run, const TokenEvent& event) {
    if (!command.json) {
      for (; titled <= run; ++titled) {
        console.out(fmt::format("{}== {}\n{}", titled == 0 ? "" : "\n\n", title(titled), *prompt));
      }
      console.out(event.text);
    }
    return stop_now() ? Control::kCancelAll : Control::kContinue;
  };
  const Result<Comparison> comparison = compare(*model, *tokens, options, receive);
  if (!comparison.ok()) {
    if (titled > 0) console.out("\n");
    if (comparison.status().code() == StatusCode::kOutOfRange) {
      return console.fail(kExitDoesNotFit, comparison.status().message());
    }
    return console.fail(comparison.status());
  }
  if (command.json) {
    console.out(to_json(*comparison));
  } else {
    if (titled > 0) console.out("\n\n");
    // After an interruption there may be no finished run to say anything about.
    if (!comparison->runs.empty()) console.out(table(*comparison));
    if (!comparison->runs.empty() && !interrupted()) console.out(agreement(*comparison));
  }
  if (!comparison->agree && !stop_now()) {
    return console.fail(kExitFailure,
                        "the decodings differ where no near-tie explains it; please report this "
                        "with the output of `replayssm doctor`");
  }
  return finish(console, kExitOk);
}

}  // namespace replayssm::app
