// Numbers and sizes as people type and read them.
#include "text.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <system_error>

namespace replayssm::app {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// -1 for a unit that is not known.
double unit_bytes(std::string_view unit) {
  std::string name;
  for (const char c : unit) name += lower(c);
  if (name.empty() || name == "b") return 1.0;
  constexpr std::string_view kPrefixes = "kmgt";
  const auto power = kPrefixes.find(name.front());
  if (power == std::string_view::npos) return -1.0;
  const std::string_view rest = std::string_view(name).substr(1);
  if (rest == "ib") return std::pow(1024.0, static_cast<double>(power) + 1.0);
  if (rest == "b") return std::pow(1000.0, static_cast<double>(power) + 1.0);
  return -1.0;
}

}  // namespace

std::string parse_integer(std::string_view text, std::int64_t lowest, std::int64_t highest,
                          std::int64_t& value) {
  std::int64_t parsed = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, parsed);
  const bool whole = error != std::errc::invalid_argument && stop == end && !text.empty();
  if (!whole || error == std::errc::result_out_of_range || parsed < lowest || parsed > highest) {
    return fmt::format("needs a whole number from {} to {}, got '{}'", lowest, highest, text);
  }
  value = parsed;
  return {};
}

std::string parse_seed(std::string_view text, std::uint64_t& value) {
  const bool hex = text.size() > 2 && text[0] == '0' && lower(text[1]) == 'x';
  const std::string_view digits = hex ? text.substr(2) : text;
  std::uint64_t parsed = 0;
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, parsed, hex ? 16 : 10);
  if (error != std::errc{} || stop != end) {
    return fmt::format("needs a whole number from 0 to {} (or 0x and hexadecimal digits), got '{}'",
                       std::numeric_limits<std::uint64_t>::max(), text);
  }
  value = parsed;
  return {};
}

std::string parse_real(std::string_view text, double lowest, double highest, double& value) {
  double parsed = 0.0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, parsed);
  // Not a number compares false with everything, so it is refused here too.
  if (error != std::errc{} || stop != end || !(parsed >= lowest && parsed <= highest)) {
    return fmt::format("needs a number from {} to {}, got '{}'", lowest, highest, text);
  }
  value = parsed;
  return {};
}

std::string parse_size(std::string_view text, std::int64_t& bytes) {
  const std::string refusal = fmt::format(
      "needs a size above 0 such as 80GiB, 80GB, 512MiB or plain bytes, got '{}'", text);
  const char* end = text.data() + text.size();
  // Plain bytes first: a double cannot hold every 64-bit count.
  std::int64_t plain = 0;
  const auto [plain_stop, plain_error] = std::from_chars(text.data(), end, plain);
  if (plain_error == std::errc{} && plain_stop == end) {
    if (plain <= 0) return refusal;
    bytes = plain;
    return {};
  }
  double number = 0.0;
  const auto [stop, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (error != std::errc{} || !std::isfinite(number)) return refusal;
  const double unit = unit_bytes(std::string_view(stop, static_cast<std::size_t>(end - stop)));
  const double total = number * unit;
  // 2^63 is the first double that no longer fits.
  if (unit < 0.0 || !(total >= 1.0) || total >= 9223372036854775808.0) return refusal;
  bytes = static_cast<std::int64_t>(total);
  return {};
}

std::string format_bytes(double bytes) {
  constexpr std::array<std::string_view, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (std::abs(bytes) >= 1024.0 && unit + 1 < kUnits.size()) {
    bytes /= 1024.0;
    ++unit;
  }
  if (unit == 0) return fmt::format("{:.0f} {}", bytes, kUnits[unit]);
  return fmt::format("{:.2f} {}", bytes, kUnits[unit]);
}

std::string format_count(std::int64_t count) {
  std::string digits = fmt::format("{}", count);
  const std::size_t first = digits.front() == '-' ? 1 : 0;
  for (std::size_t at = digits.size(); at > first + 3;) {
    at -= 3;
    digits.insert(at, 1, ',');
  }
  return digits;
}

std::string counted(std::int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", format_count(count), noun, count == 1 ? "" : "s");
}

std::string one_line(std::string_view text) {
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      line += "\\n";
    } else if (c == '\r') {
      line += "\\r";
    } else if (c == '\t') {
      line += ' ';
    } else if (byte < 0x20 || byte == 0x7F) {
      line += fmt::format("\\x{:02x}", byte);
    } else {
      line += c;
    }
  }
  return line;
}

}  // namespace replayssm::app
