// See compare.hpp.
#include "oracle/compare.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <sstream>

namespace replayssm::oracle {
namespace {

Comparison refuse(std::string_view name, const std::string& why) {
  Comparison result;
  result.text = std::string(name) + ": not a comparison: " + why;
  return result;
}

std::string place(std::string_view name, std::size_t row, std::size_t column) {
  return std::string(name) + " [row " + std::to_string(row) + ", column " + std::to_string(column) +
         "]";
}

bool overlap(const void* a, const void* b, std::size_t bytes) {
  const auto* x = static_cast<const unsigned char*>(a);
  const auto* y = static_cast<const unsigned char*>(b);
  const std::less<const unsigned char*> before;
  return before(x, y + bytes) && before(y, x + bytes);
}

// Same NaN, same infinity or both finite.
bool same_kind(double got, double want) {
  if (std::isnan(got) || std::isnan(want)) return std::isnan(got) && std::isnan(want);
  if (std::isinf(got) || std::isinf(want)) return got == want;
  return true;
}

}  // namespace

Comparison compare(std::string_view name, const double* got, const double* want, std::size_t count,
                   std::size_t columns, const std::vector<double>& tolerance) {
  if (count == 0 || columns == 0) return refuse(name, "no elements");
  if (count % columns != 0) return refuse(name, "rows of different length");
  if (overlap(got, want, count * sizeof(double))) return refuse(name, "one buffer with itself");
  const std::size_t rows = count / columns;
  if (tolerance.size() != 1 && tolerance.size() != rows && tolerance.size() != count) {
    return refuse(name, "required 1, " + std::to_string(rows) + " or " + std::to_string(count) +
                            " tolerances, given " + std::to_string(tolerance.size()));
  }
  for (const double bound : tolerance) {
    if (!(bound >= 0.0) || std::isinf(bound)) {
      return refuse(name, "a tolerance of " + std::to_string(bound));
    }
  }
  const auto bound_of = [&](std::size_t at) {
    if (tolerance.size() == 1) return tolerance[0];
    return tolerance.size() == count ? tolerance[at] : tolerance[at / columns];
  };

  Comparison result;
  std::size_t wrong_kind = 0;
  std::size_t first_wrong = 0;
  for (std::size_t at = 0; at < count; ++at) {
    if (same_kind(got[at], want[at])) continue;
    if (wrong_kind++ == 0) first_wrong = at;
  }
  std::ostringstream text;
  text.precision(9);
  if (wrong_kind > 0) {
    result.row = first_wrong / columns;
    result.column = first_wrong % columns;
    result.worst_ratio = std::numeric_limits<double>::infinity();
    text << place(name, result.row, result.column) << ": got " << got[first_wrong] << ", want "
         << want[first_wrong] << "; " << wrong_kind << " of " << count
         << " elements differ in being NaN or infinite";
    result.text = text.str();
    return result;
  }

  std::size_t worst = 0;
  std::size_t failed = 0;
  std::size_t failed_rows = 0;
  for (std::size_t row = 0; row < rows; ++row) {
    double squares = 0.0;
    const std::size_t failed_before = failed;
    for (std::size_t at = row * columns; at < (row + 1) * columns; ++at) {
      if (!std::isfinite(want[at])) continue;
      const double error = std::abs(got[at] - want[at]);
      squares += error * error;
      const double bound = bound_of(at);
      double ratio = 0.0;
      if (error > 0.0)
        ratio = bound > 0.0 ? error / bound : std::numeric_limits<double>::infinity();
      failed += ratio > 1.0 ? 1 : 0;
      if (ratio > result.worst_ratio) {
        result.worst_ratio = ratio;
        worst = at;
      }
    }
    failed_rows += failed > failed_before ? 1 : 0;
    result.worst_row_rms =
        std::max(result.worst_row_rms, std::sqrt(squares / static_cast<double>(columns)));
  }
  result.row = worst / columns;
  result.column = worst % columns;
  result.ok = failed == 0;
  double row_error = 0.0;
  double row_size = 0.0;
  for (std::size_t at = result.row * columns; at < (result.row + 1) * columns; ++at) {
    if (!std::isfinite(want[at])) continue;
    row_error += (got[at] - want[at]) * (got[at] - want[at]);
    row_size += want[at] * want[at];
  }
  text << place(name, result.row, result.column) << ": got " << got[worst] << ", want "
       << want[worst] << ", error " << std::abs(got[worst] - want[worst]) << ", tolerance "
       << bound_of(worst) << " (ratio " << result.worst_ratio << ")\n  its row: rms error "
       << std::sqrt(row_error / static_cast<double>(columns)) << ", rms value "
       << std::sqrt(row_size / static_cast<double>(columns)) << "; failed " << failed << " of "
       << count << " elements in " << failed_rows << " of " << rows << " rows";
  result.text = text.str();
  return result;
}

Comparison compare(std::string_view name, const std::vector<double>& got,
                   const std::vector<double>& want, std::size_t columns,
                   const std::vector<double>& tolerance) {
  if (got.size() != want.size()) {
    return refuse(name,
                  std::to_string(got.size()) + " elements with " + std::to_string(want.size()));
  }
  return compare(name, got.data(), want.data(), got.size(), columns, tolerance);
}

Comparison compare(std::string_view name, const std::vector<float>& got,
                   const std::vector<double>& want, std::size_t columns,
                   const std::vector<double>& tolerance) {
  return compare(name, std::vector<double>(got.begin(), got.end()), want, columns, tolerance);
}

Comparison compare_bits(std::string_view name, const void* got, const void* want, std::size_t count,
                        std::size_t columns, std::size_t element_bytes) {
  if (count == 0 || columns == 0 || element_bytes == 0 || element_bytes > 8)
    return refuse(name, "no elements");
  if (overlap(got, want, count * element_bytes)) return refuse(name, "one buffer with itself");
  const auto* a = static_cast<const unsigned char*>(got);
  const auto* b = static_cast<const unsigned char*>(want);
  Comparison result;
  std::size_t different = 0;
  std::size_t first = 0;
  for (std::size_t at = 0; at < count; ++at) {
    if (std::memcmp(a + at * element_bytes, b + at * element_bytes, element_bytes) == 0) continue;
    if (different++ == 0) first = at;
  }
  result.ok = different == 0;
  result.row = first / columns;
  result.column = first % columns;
  result.worst_ratio = result.ok ? 0.0 : std::numeric_limits<double>::infinity();
  std::ostringstream text;
  text << place(name, result.row, result.column) << ": " << different << " of " << count
       << " elements differ in bits";
  if (!result.ok) {
    std::uint64_t x = 0;
    std::uint64_t y = 0;
    std::memcpy(&x, a + first * element_bytes, element_bytes);
    std::memcpy(&y, b + first * element_bytes, element_bytes);
    text << ", the first: got 0x" << std::hex << x << ", want 0x" << y;
    if (element_bytes == 4) {
      float u = 0.0F;
      float v = 0.0F;
      std::memcpy(&u, &x, sizeof(u));
      std::memcpy(&v, &y, sizeof(v));
      text.precision(9);
      text << " (" << u << ", " << v << " as f32)";
    }
  }
  result.text = text.str();
  return result;
}

Comparison compare_bits(std::string_view name, const std::vector<float>& got,
                        const std::vector<float>& want, std::size_t columns) {
  if (got.size() != want.size()) {
    return refuse(name,
                  std::to_string(got.size()) + " elements with " + std::to_string(want.size()));
  }
  return compare_bits(name, got.data(), want.data(), got.size(), columns, sizeof(float));
}

Comparison compare_guard(std::string_view name, const void* memory, std::size_t bytes,
                         unsigned char pattern) {
  if (bytes == 0) return refuse(name, "no bytes");
  const auto* at = static_cast<const unsigned char*>(memory);
  Comparison result;
  const auto* end = at + bytes;
  const auto* first = std::find_if(at, end, [&](unsigned char byte) { return byte != pattern; });
  result.ok = first == end;
  result.column = result.ok ? 0 : static_cast<std::size_t>(first - at);
  result.text = std::string(name) +
                (result.ok ? ": guard untouched"
                           : ": guard byte " + std::to_string(result.column) + " was written");
  return result;
}

}  // namespace replayssm::oracle
