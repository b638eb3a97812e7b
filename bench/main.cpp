// replayssm-bench: `replayssm-bench step --help` says what it takes.
#include <algorithm>
#include <charconv>
#include <iostream>
#include <string_view>

#include "bench/step.hpp"

namespace {

using replayssm::bench::StepOptions;

constexpr std::string_view kUsage =
    "usage: replayssm-bench step [--backend cpu|cuda] [--model-shape NAME,...] [--batch N,...]\n"
    "           [--tokens T,...] [--window W] [--activations bf16|f32] [--cycles N] [--readable]\n"
    "           [--commit TEXT] [--json]\n\n"
    "Microseconds of one decode step of one layer, conventional and by replay in one run, over\n"
    "whole window cycles with folds; verified against float64 first. Of T > 1 tokens all but one\n"
    "are accepted. Exit code 1: a result did not verify, 2: the command line.\n";

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

int fail(const std::string& what) {
  std::cerr << "error: " << what << "\n";
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string_view> args(argv + 1, argv + argc);
  if (args.empty() || std::find(args.begin(), args.end(), "--help") != args.end()) {
    std::cout << kUsage;
    return args.empty() ? 2 : 0;
  }
  if (args[0] != "step")
    return fail("unknown benchmark " + std::string(args[0]) + "; there is: step");
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
    if (i + 1 >= args.size()) return fail(std::string(name) + ": unknown, or a value is missing");
    const std::string_view value = args[++i];
    std::vector<std::int32_t> one;
    bool good = true;
    if (name == "--backend") {
      options.backend = value;
    } else if (name == "--model-shape") {
      options.shapes = split(value);
    } else if (name == "--batch") {
      good = read_numbers(value, &options.batches);
    } else if (name == "--tokens") {
      good = read_numbers(value, &options.tokens);
    } else if (name == "--window") {
      good = read_numbers(value, &one) && one.size() == 1;
      if (good) options.window = one[0];
    } else if (name == "--cycles") {
      good = read_numbers(value, &one) && one.size() == 1;
      if (good) options.cycles = one[0];
    } else if (name == "--activations") {
      good = value == "bf16" || value == "f32";
      options.activations = value == "f32" ? replayssm::DType::kF32 : replayssm::DType::kBF16;
    } else if (name == "--commit") {
      options.commit = value;
    } else {
      return fail("unknown option " + std::string(name));
    }
    if (!good) return fail(std::string(name) + ": cannot be " + std::string(value));
  }
  const replayssm::Result<replayssm::bench::StepReport> report =
      replayssm::bench::run_step(options);
  if (!report.ok()) {
    std::cerr << "error: " << report.status().to_string() << "\n";
    return report.status().code() == replayssm::StatusCode::kNotFound ? 2 : 1;
  }
  std::cout << (json ? to_json(*report) : to_text(*report) + batch_one_line(*report));
  const bool verified = std::all_of(report->rows.begin(), report->rows.end(),
                                    [](const auto& row) { return row.verified; });
  return verified ? 0 : 1;
}
