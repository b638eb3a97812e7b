// The report of bench step as JSON and as a table.
#include <cmath>
#include <cstdio>
#include <sstream>

#include "bench/step.hpp"

namespace replayssm::bench {
namespace {

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\"";
}

// JSON knows no infinities.
std::string number(double value) {
  if (!std::isfinite(value)) return "null";
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", value);
  return text;
}

}  // namespace

std::string to_json(const StepReport& report) {
  std::ostringstream out;
  out << "[";
  for (std::size_t i = 0; i < report.rows.size(); ++i) {
    const StepRow& row = report.rows[i];
    out << (i == 0 ? "\n" : ",\n") << "  {\"rule\": " << quoted(rule_name(row.rule))
        << ", \"shape\": " << quoted(row.shape) << ", \"batch\": " << row.batch
        << ", \"tokens\": " << row.tokens
        << ", \"format\": " << quoted(state_format_name(row.format))
        << ", \"activations\": " << quoted(dtype_name(row.activations))
        << ", \"decode\": " << quoted(decode_mode_name(row.decode))
        << ", \"implementation\": " << quoted(row.implementation)
        << ", \"us_per_step\": " << number(row.us_per_step)
        << ", \"bytes_per_step\": " << number(row.bytes_per_step)
        << ", \"gb_per_s\": " << number(row.gb_per_s)
        << ", \"read_gb_per_s\": " << number(report.bandwidth.read_gb_per_s)
        << ", \"copy_gb_per_s\": " << number(report.bandwidth.copy_gb_per_s)
        << ", \"ratio_to_conventional_f32\": " << number(row.ratio_to_conventional_f32)
        << ", \"bytes_per_slot\": " << row.bytes_per_slot
        << ", \"verified\": " << (row.verified ? "true" : "false")
        << ", \"worst_error\": " << number(row.worst_error) << ", \"layers\": " << row.layers
        << ", \"spread\": " << number(row.spread) << ", \"backend\": " << quoted(report.backend)
        << ", \"device\": " << quoted(report.hardware) << ", \"driver\": " << quoted(report.driver)
        << ", \"compiler\": " << quoted(report.compiler)
        << ", \"commit\": " << quoted(report.commit) << ", \"date\": " << quoted(report.date)
        << "}";
  }
  out << "\n]\n";
  return out.str();
}

std::string to_text(const StepReport& report) {
  std::ostringstream out;
  out << report.hardware << ", reading " << number(report.bandwidth.read_gb_per_s)
      << " GB/s, copying " << number(report.bandwidth.copy_gb_per_s) << " GB/s (read + written)\n";
  char line[200];
  std::snprintf(line, sizeof(line), "%-16s %6s %3s %-30s %7s %11s %8s %7s %s\n", "shape", "batch",
                "T", "implementation", "layers", "us a step", "GB/s", "ratio", "verified");
  out << line;
  for (const StepRow& row : report.rows) {
    std::snprintf(line, sizeof(line), "%-16s %6lld %3d %-30s %7lld %11.2f %8.0f %7.2f %s (%.3f)\n",
                  row.shape.c_str(), static_cast<long long>(row.batch), row.tokens,
                  row.implementation.c_str(), static_cast<long long>(row.layers), row.us_per_step,
                  row.gb_per_s, row.ratio_to_conventional_f32, row.verified ? "yes" : "NO",
                  row.worst_error);
    out << line;
  }
  return out.str();
}

std::string batch_one_line(const StepReport& report) {
  // Updating a state in place moves it twice, reading it once.
  const double most = report.bandwidth.copy_gb_per_s > 0.0
                          ? 2.0 * report.bandwidth.read_gb_per_s / report.bandwidth.copy_gb_per_s
                          : 0.0;
  std::string measured;
  for (const StepRow& row : report.rows) {
    if (row.batch != 1 || row.decode != DecodeMode::kReplay || !row.verified) continue;
    char text[160];
    std::snprintf(text, sizeof(text), "%s%.2f times for %s with %d token%s a step",
                  measured.empty() ? "" : ", ", row.ratio_to_conventional_f32, row.shape.c_str(),
                  row.tokens, row.tokens == 1 ? "" : "s");
    measured += text;
  }
  if (measured.empty() || most <= 0.0) return {};
  char bound[64];
  std::snprintf(bound, sizeof(bound), "%.1f", most);
  return std::string("At batch 1 a recurrent layer can gain at most ") + bound +
         " times from reading its state instead of updating it, more only where drafts are "
         "verified; "
         "measured: " +
         measured +
         ". The rest of a model gains nothing: at batch 1 the weights of a large one are most of "
         "what a token moves.\n";
}

}  // namespace replayssm::bench
