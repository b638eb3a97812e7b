// replayssm plan: how many sequences fit into a memory size, by decode mode and tokens a step.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "commands.hpp"
#include "exit_code.hpp"
#include "json_output.hpp"
#include "model_lookup.hpp"
#include "replayssm/engine.hpp"
#include "text.hpp"

namespace replayssm::app {
namespace {

std::string size(std::int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

std::string plan_text(const Plan& plan) {
  std::string text = fmt::format(
      "memory {}, weights {}, context {} tokens; bytes are of one sequence, T is the tokens of a "
      "step (drafts and one)\n\n",
      size(plan.memory_bytes), size(plan.weight_bytes), plan.context);
  text +=
      fmt::format("{:<13} {:>3} {:>4} {:>12} {:>12} {:>12} {:>12} {:>12} {:>12} {:>10}\n", "decode",
                  "T", "W", "kv", "state", "rings", "conv", "control", "sum", "sequences");
  for (const PlanRow& row : plan.rows) {
    const std::string window =
        row.decode == DecodeMode::kReplay ? fmt::format("{}", row.window) : "-";
    text +=
        fmt::format("{:<13} {:>3} {:>4} {:>12} {:>12} {:>12} {:>12} {:>12} {:>12} {:>10}\n",
                    decode_mode_name(row.decode), row.step_tokens, window, size(row.kv_bytes),
                    size(row.state_bytes), size(row.ring_bytes), size(row.conv_bytes),
                    size(row.control_bytes), size(row.sequence_bytes), format_count(row.sequences));
  }
  return text;
}

}  // namespace

int run_plan(Console& console, const PlanCommand& command) {
  const Result<std::string> folder = find_model(command.model);
  if (!folder.ok()) return fail_to_load(console, folder.status());
  const Result<ModelInfo> info = inspect_model(*folder, command.compute);
  if (!info.ok()) return fail_to_load(console, info.status());
  PlanOptions options;
  options.memory_bytes = command.memory_bytes;
  options.context = command.context_tokens;
  options.window = command.window;
  const Result<Plan> plan = replayssm::plan(*info, options);
  if (!plan.ok()) return console.fail(plan.status());
  console.out(command.json ? to_json(*plan) : plan_text(*plan));
  const bool fits = std::any_of(plan->rows.begin(), plan->rows.end(),
                                [](const PlanRow& row) { return row.sequences > 0; });
  if (!fits && console.out_open()) {
    return console.fail(
        kExitDoesNotFit,
        plan->weight_bytes > plan->memory_bytes
            ? fmt::format("the weights take {}, but --memory is {}; give more memory",
                          size(plan->weight_bytes), size(plan->memory_bytes))
            : fmt::format("no sequence of {} tokens fits beside the weights; give more memory or a "
                          "shorter --context",
                          plan->context));
  }
  return finish(console, kExitOk);
}

}  // namespace replayssm::app
