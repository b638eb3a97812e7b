// replayssm doctor: what this build and this machine can do.
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "commands.hpp"
#include "exit_code.hpp"
#include "json_output.hpp"
#include "model_lookup.hpp"
#include "replayssm/backends.hpp"
#include "text.hpp"

namespace replayssm::app {
namespace {

bool exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

// The first value of a field of /proc/cpuinfo; empty where there is none.
std::string cpu_field(std::string_view field) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || line.compare(0, field.size(), field) != 0) continue;
    // "model" is also the beginning of "model name".
    const std::size_t name_end = line.find_last_not_of(" \t", colon - 1);
    if (colon == 0 || name_end + 1 != field.size()) continue;
    const std::size_t value = line.find_first_not_of(" \t", colon + 1);
    return value == std::string::npos ? "" : line.substr(value);
  }
  return {};
}

std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> list;
  for (std::string word; stream >> word;) list.push_back(word);
  return list;
}

// The levels of the x86-64 psABI, by the names the kernel gives the features. The kernel lists what
// the processor has and the system saves, which is what a program may use.
std::string cpu_level(const std::vector<std::string>& flags) {
  const auto has = [&flags](std::initializer_list<std::string_view> names) {
    return std::all_of(names.begin(), names.end(), [&flags](std::string_view name) {
      return std::find(flags.begin(), flags.end(), name) != flags.end();
    });
  };
  if (!has({"lm", "sse2"})) return {};
  if (!has({"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"})) return "x86-64-v1";
  if (!has({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"})) return "x86-64-v2";
  if (!has({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})) return "x86-64-v3";
  return "x86-64-v4";
}

// The features that matter to kernels of this kind, of all the kernel lists.
std::vector<std::string> kernel_features(const std::vector<std::string>& flags) {
  constexpr std::array<std::string_view, 14> kNames = {
      "avx2",        "fma",         "f16c",        "avx_vnni", "avx512f", "avx512bw", "avx512vl",
      "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "asimd",   "sve",      "bf16"};
  std::vector<std::string> found;
  for (const std::string_view name : kNames) {
    if (std::find(flags.begin(), flags.end(), name) != flags.end()) found.emplace_back(name);
  }
  return found;
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

std::int64_t memory_bytes() {
  const auto pages = sysconf(_SC_PHYS_PAGES);
  const auto page = sysconf(_SC_PAGE_SIZE);
  return pages > 0 && page > 0 ? std::int64_t{pages} * page : 0;
}

DoctorReport examine() {
  DoctorReport report;
  report.version = version();
  report.cpu_model = cpu_field("model name");
  const std::vector<std::string> flags =
      words(cpu_field("flags").empty() ? cpu_field("Features") : cpu_field("flags"));
  report.cpu_level = cpu_level(flags);
  report.cpu_features = kernel_features(flags);
  report.cores = usable_cores();
  report.memory_bytes = memory_bytes();
  report.model_cache = hub_folder();
  report.model_cache_exists = exists(report.model_cache);
  report.implementations = implementations();

  if (!report.model_cache_exists) {
    report.missing.push_back(fmt::format(
        "no Hugging Face cache at {}: --model org/name finds nothing; fill it with `hf download "
        "org/name`, set HF_HUB_CACHE to where it is, or give --model a folder",
        report.model_cache));
  }
  const bool cuda = std::any_of(
      report.implementations.begin(), report.implementations.end(),
      [](const ImplementationInfo& implementation) { return implementation.device == "cuda"; });
  if (!cuda) {
    report.missing.emplace_back(
        exists("/proc/driver/nvidia/version")
            ? "an NVIDIA driver is here, but this build has no CUDA backend: it computes on the "
              "CPU; -DREPLAYSSM_ENABLE_CUDA=ON builds one for the cache"
            : "this build has no CUDA backend, which an NVIDIA GPU would need");
  }
  for (const ImplementationInfo& implementation : report.implementations) {
    if (implementation.available) continue;
    report.missing.push_back(fmt::format("{} cannot run here: {}", implementation.name,
                                         implementation.unavailable_because));
  }
  return report;
}

template <typename List, typename Name>
std::string joined(const List& list, Name name) {
  std::string text;
  for (const auto& item : list) {
    if (!text.empty()) text += ' ';
    text += name(item);
  }
  return text;
}

std::string doctor_text(const DoctorReport& report) {
  const auto same = [](const std::string& text) { return text; };
  std::string text = fmt::format("replayssm {}\n", report.version);
  text += fmt::format("cpu      {}{}, {} cores usable, {} of memory\n",
                      report.cpu_model.empty() ? "unknown" : one_line(report.cpu_model),
                      report.cpu_level.empty() ? "" : ", " + report.cpu_level, report.cores,
                      format_bytes(static_cast<double>(report.memory_bytes)));
  text += fmt::format("features {}\n", joined(report.cpu_features, same));
  text += fmt::format("models   {}{}\n", report.model_cache,
                      report.model_cache_exists ? "" : " (does not exist)");
  text += "\nimplementations, the first that fits is used:\n";
  for (const ImplementationInfo& implementation : report.implementations) {
    text += fmt::format("  {:<23} {:<13} {}  state {}  activations {}{}\n", implementation.name,
                        decode_mode_name(implementation.decode),
                        joined(implementation.rules, rule_name),
                        joined(implementation.formats, state_format_name),
                        joined(implementation.activations, dtype_name),
                        implementation.available ? "" : "  (not available)");
  }
  text += report.missing.empty() ? "\nnothing is missing\n" : "\nmissing:\n";
  for (const std::string& missing : report.missing) text += fmt::format("  {}\n", missing);
  return text;
}

}  // namespace

int run_doctor(Console& console, const DoctorCommand& command) {
  const DoctorReport report = examine();
  console.out(command.json ? to_json(report) : doctor_text(report));
  return finish(console, kExitOk);
}

}  // namespace replayssm::app
