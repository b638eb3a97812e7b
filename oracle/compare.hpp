// Comparison for tests. Masks come before numbers: where one side is NaN or infinite the other must
// be the same. Then every element is held to its own tolerance, and the worst one is named by row
// and column with the metrics of its row. A comparison that cannot fail is itself a failure:
// nothing to compare, one buffer with itself, a tolerance that is NaN, negative or infinite.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace replayssm::oracle {

struct Comparison {
  bool ok = false;
  std::string text;     // one or two lines for the test's log, also when ok
  std::size_t row = 0;  // of the worst element
  std::size_t column = 0;
  double worst_ratio = 0.0;    // largest error over tolerance; above 1 fails
  double worst_row_rms = 0.0;  // largest rms error of a row
  explicit operator bool() const { return ok; }
};

// `columns` elements a row; the number of elements must be a multiple of it.
// One tolerance an element, or one a row, or one for all: tolerance.size() says which.
[[nodiscard]] Comparison compare(std::string_view name, const double* got, const double* want,
                                 std::size_t count, std::size_t columns,
                                 const std::vector<double>& tolerance);
[[nodiscard]] Comparison compare(std::string_view name, const std::vector<double>& got,
                                 const std::vector<double>& want, std::size_t columns,
                                 const std::vector<double>& tolerance);
[[nodiscard]] Comparison compare(std::string_view name, const std::vector<float>& got,
                                 const std::vector<double>& want, std::size_t columns,
                                 const std::vector<double>& tolerance);

// The same bits, NaN payloads and signs of zero included; element_bytes of 1, 2, 4 or 8.
[[nodiscard]] Comparison compare_bits(std::string_view name, const void* got, const void* want,
                                      std::size_t count, std::size_t columns,
                                      std::size_t element_bytes);
[[nodiscard]] Comparison compare_bits(std::string_view name, const std::vector<float>& got,
                                      const std::vector<float>& want, std::size_t columns);

// True where every byte of the guard still holds `pattern`; for memory behind outputs and between
// borrowed planes.
[[nodiscard]] Comparison compare_guard(std::string_view name, const void* memory, std::size_t bytes,
                                       unsigned char pattern);

}  // namespace replayssm::oracle
