// replayssm-bench: `replayssm-bench step --help` says what it takes.
#include <algorithm>
#include <array>
#include <charconv>
#include <iostream>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "bench/step.hpp"

namespace {

using replayssm::bench::StepOptions;

constexpr std::string_view kUsage =
    "usage: replayssm-bench step [OPTIONS]\n\n"
    "Microseconds of one decode step of one layer, conventional and by replay in one run, over\n"
    "whole window cycles with folds; verified against float64 first. Of T > 1 tokens all but one\n"
    "are accepted. Exit code 1: a result did not verify or could not be measured, 2: the command\n"
    "line.\n\n"
    "  --backend cpu|cuda      where it computes (default: cpu)\n"
    "  --model-shape NAME,...  whose layer (default: super-120b); names are below\n"
    "  --batch N,...           rows of a step (default: 1)\n"
    "  --tokens T,...          tokens of a row and step, 1 to 16 (default: 1)\n"
    "  --window W              tokens between two writes of the state, T to 256 (default: 16)\n"
    "  --activations bf16|f32  type of the inputs (default: bf16)\n"
    "  --cycles N              timed window cycles, of which the median counts (default: 5)\n"
    "  --readable              cuda: the readable kernels instead of the fast ones\n"
    "  --commit TEXT           a name of the source, for the JSON report\n"
    "  --json                  a JSON list instead of a table\n\n"
    "model shapes:";

std::string usage() {
  std::string text(kUsage);
  std::size_t width = text.size() - text.rfind('\n');
  for (const replayssm::bench::ModelShape& shape : replayssm::bench::model_shapes()) {
    if (width + shape.name.size() > 96) {
      text += "\n ";
      width = 1;
    }
    text += ' ' + std::string(shape.name);
    width += shape.name.size() + 1;
  }
  return text + "\n";
}

constexpr std::array<std::string_view, 8> kWithValue = {
    "--backend", "--model-shape", "--batch",  "--tokens",
    "--window",  "--activations", "--cycles", "--commit"};

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts;
  while (true) {
    const std::size_t comma = text.find(',');
    parts.emplace_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

template <typename T>
bool read_numbers(std::string_view text, std::vector<T>* numbers) {
  numbers->clear();
  for (const std::string& part : split(text)) {
    T value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (error != std::errc() || end != part.data() + part.size() || value < 1) return false;
    numbers->push_back(value);
  }
  return true;
}

int fail(const std::string& what, int exit_code = 2) {
  std::cerr << "replayssm-bench: error: " << what << "\n";
  return exit_code;
}

int run(const std::vector<std::string_view>& args) {
  const auto given = [&args](std::string_view name) {
    return std::find(args.begin(), args.end(), name) != args.end();
  };
  if (given("--help") || given("-h")) {
    std::cout << usage();
    return 0;
  }
  if (args.empty()) return fail("a benchmark is required; there is: step (see --help)");
  if (args[0] != "step")
    return fail("unknown benchmark '" + std::string(args[0]) + "'; there is: step (see --help)");
  StepOptions options;
  bool json = false;
  for (std::size_t i = 1; i < args.size(); ++i) {
    const std::string_view name = args[i];
    if (name == "--json") {
      json = true;
      continue;
    }
    if (name == "--readable") {
      options.readable = true;
      continue;
    }
    if (std::find(kWithValue.begin(), kWithValue.end(), name) == kWithValue.end())
      return fail("unknown option '" + std::string(name) + "' (see --help)");
    if (i + 1 >= args.size()) return fail(std::string(name) + " needs a value");
    const std::string_view value = args[++i];
    std::vector<std::int32_t> one;
    bool good = true;
    std::string_view needs = "a whole number of 1 or more";
    if (name == "--backend") {
      options.backend = value;
    } else if (name == "--model-shape") {
      options.shapes = split(value);
    } else if (name == "--batch") {
      needs = "whole numbers of 1 or more, with commas between them";
      good = read_numbers(value, &options.batches);
    } else if (name == "--tokens") {
      needs = "whole numbers of 1 or more, with commas between them";
      good = read_numbers(value, &options.tokens);
    } else if (name == "--window") {
      good = read_numbers(value, &one) && one.size() == 1;
      if (good) options.window = one[0];
    } else if (name == "--cycles") {
      good = read_numbers(value, &one) && one.size() == 1;
      if (good) options.cycles = one[0];
    } else if (name == "--activations") {
      needs = "bf16 or f32";
      good = value == "bf16" || value == "f32";
      options.activations = value == "f32" ? replayssm::DType::kF32 : replayssm::DType::kBF16;
    } else {
      options.commit = value;
    }
    if (!good) {
      return fail(std::string(name) + " needs " + std::string(needs) + ", got '" +
                  std::string(value) + "'");
    }
  }
  const replayssm::Result<replayssm::bench::StepReport> report =
      replayssm::bench::run_step(options);
  if (!report.ok()) {
    const replayssm::StatusCode code = report.status().code();
    const bool usage_error =
        code == replayssm::StatusCode::kNotFound || code == replayssm::StatusCode::kInvalidArgument;
    return fail(report.status().message(), usage_error ? 2 : 1);
  }
  std::cout << (json ? to_json(*report) : to_text(*report) + batch_one_line(*report));
  const bool verified = std::all_of(report->rows.begin(), report->rows.end(),
                                    [](const auto& row) { return row.verified; });
  return verified ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::bad_alloc&) {
    return fail("out of memory; give a smaller --batch", 1);
  }
}
