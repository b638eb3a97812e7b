// Hostile tensors: strided, shifted by elements, with poison in every gap and a guard behind.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "replayssm/tensor.hpp"
#include "tests/law/support/device.hpp"
#include "tests/oracle/random_layers.hpp"

namespace replayssm::laws {

using oracle::testing::Random;

// The bits of a value that the dtype holds exactly, and back.
void encode(double value, DType dtype, unsigned char* bytes);
[[nodiscard]] double decode(const unsigned char* bytes, DType dtype);

// A [n0, n1, n2] tensor (n2 = 0: rank 2) in device memory with a copy on the host.
class HostileTensor {
 public:
  enum class Use { kInput, kOutput };
  // Poison of inputs is NaN in every dtype; outputs start as a pattern that no result has.
  static constexpr unsigned char kNaNByte = 0xFF;
  static constexpr unsigned char kPattern = 0xA5;

  // `layout` null: gap-free.
  HostileTensor(TestDevice& device, Use use, DType dtype, std::int64_t n0, std::int64_t n1,
                std::int64_t n2, Random* layout);

  [[nodiscard]] TensorView view() const { return view_; }
  // Row (i0, i1) of rank 3, row i0 of rank 2: all values of the last axis.
  void set(std::int64_t i0, std::int64_t i1, const double* values);
  void upload();
  void download();
  [[nodiscard]] std::vector<double> get(std::int64_t i0, std::int64_t i1) const;
  // All values of index i0, and their bytes.
  [[nodiscard]] std::vector<double> token(std::int64_t i0) const;
  [[nodiscard]] std::vector<unsigned char> token_bytes(std::int64_t i0) const;
  // Empty when, of the device's copy just downloaded, no byte outside the rows marked as written
  // differs from what was uploaded.
  [[nodiscard]] std::string check_untouched(const std::vector<bool>& written) const;

 private:
  [[nodiscard]] std::int64_t offset(std::int64_t i0, std::int64_t i1) const;
  [[nodiscard]] std::int64_t row_bytes() const;
  [[nodiscard]] std::int64_t rows_per_token() const { return view_.rank == 3 ? view_.shape[1] : 1; }

  TensorView view_;
  std::int64_t base_ = 0;  // bytes from the start of the memory to element 0
  std::vector<unsigned char> sent_;
  std::vector<unsigned char> host_;
  DeviceBuffer memory_;
};

}  // namespace replayssm::laws
