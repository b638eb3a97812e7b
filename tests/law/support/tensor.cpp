// See tensor.hpp.
#include "tests/law/support/tensor.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace replayssm::laws {
namespace {

std::uint16_t half_bits(double value) {
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return 0x7E00;
  const double magnitude = std::abs(value);
  if (std::isinf(magnitude)) return sign | 0x7C00;
  if (magnitude < 0x1p-14) return sign | static_cast<std::uint16_t>(std::ldexp(magnitude, 24));
  const int exponent = std::ilogb(magnitude);
  const auto mantissa =
      static_cast<std::uint16_t>(std::ldexp(std::ldexp(magnitude, -exponent) - 1.0, 10));
  return static_cast<std::uint16_t>(sign | ((exponent + 15) << 10) | mantissa);
}

double half_value(std::uint16_t bits) {
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  if (exponent == 31) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

}  // namespace

void encode(double value, DType dtype, unsigned char* bytes) {
  if (dtype == DType::kF16) {
    const std::uint16_t bits = half_bits(value);
    std::memcpy(bytes, &bits, sizeof(bits));
    return;
  }
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  if (dtype == DType::kBF16) {
    const auto upper = static_cast<std::uint16_t>(bits >> 16);
    std::memcpy(bytes, &upper, sizeof(upper));
  } else {
    std::memcpy(bytes, &bits, sizeof(bits));
  }
}

double decode(const unsigned char* bytes, DType dtype) {
  if (dtype == DType::kF32) {
    float value = 0.0F;
    std::memcpy(&value, bytes, sizeof(value));
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, bytes, sizeof(bits));
  if (dtype == DType::kF16) return half_value(bits);
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

HostileTensor::HostileTensor(TestDevice& device, Use use, DType dtype, std::int64_t n0,
                             std::int64_t n1, std::int64_t n2, Random* layout)
    : memory_(device) {
  const auto gap = [&](int most) {
    return layout != nullptr && layout->chance(0.6) ? layout->integer(1, most) : 0;
  };
  const auto size = static_cast<std::int64_t>(dtype_bytes(dtype));
  view_.dtype = dtype;
  view_.rank = n2 > 0 ? 3 : 2;
  view_.shape = {n0, n1, n2, 0};
  if (n2 > 0) {
    view_.stride[2] = 1;
    view_.stride[1] = n2 + gap(5);
    view_.stride[0] = n1 * view_.stride[1] + gap(7);
  } else {
    view_.stride[1] = 1;
    view_.stride[0] = n1 + gap(7);
  }
  base_ = gap(9) * size;
  const std::int64_t guard = 64;
  const unsigned char fill = use == Use::kInput ? kNaNByte : kPattern;
  host_.assign(static_cast<std::size_t>(base_ + n0 * view_.stride[0] * size + guard), fill);
  sent_ = host_;
  memory_.reserve(static_cast<std::int64_t>(host_.size()));
  view_.data = static_cast<unsigned char*>(memory_.data()) + base_;
}

std::int64_t HostileTensor::offset(std::int64_t i0, std::int64_t i1) const {
  const std::int64_t element = i0 * view_.stride[0] + (view_.rank == 3 ? i1 * view_.stride[1] : 0);
  return base_ + element * static_cast<std::int64_t>(dtype_bytes(view_.dtype));
}

std::int64_t HostileTensor::row_bytes() const {
  const std::int64_t last = view_.rank == 3 ? view_.shape[2] : view_.shape[1];
  return last * static_cast<std::int64_t>(dtype_bytes(view_.dtype));
}

void HostileTensor::set(std::int64_t i0, std::int64_t i1, const double* values) {
  const auto size = static_cast<std::int64_t>(dtype_bytes(view_.dtype));
  unsigned char* at = host_.data() + offset(i0, i1);
  for (std::int64_t i = 0; i < row_bytes() / size; ++i) {
    encode(values[i], view_.dtype, at + i * size);
  }
}

void HostileTensor::upload() {
  sent_ = host_;
  memory_.device().upload(memory_.data(), host_.data(), static_cast<std::int64_t>(host_.size()));
}

void HostileTensor::download() {
  memory_.device().download(host_.data(), memory_.data(), static_cast<std::int64_t>(host_.size()));
}

std::vector<double> HostileTensor::get(std::int64_t i0, std::int64_t i1) const {
  const auto size = static_cast<std::int64_t>(dtype_bytes(view_.dtype));
  std::vector<double> values(static_cast<std::size_t>(row_bytes() / size));
  const unsigned char* at = host_.data() + offset(i0, i1);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = decode(at + static_cast<std::int64_t>(i) * size, view_.dtype);
  }
  return values;
}

std::vector<double> HostileTensor::token(std::int64_t i0) const {
  std::vector<double> all;
  for (std::int64_t i1 = 0; i1 < rows_per_token(); ++i1) {
    const std::vector<double> row = get(i0, i1);
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

std::vector<unsigned char> HostileTensor::token_bytes(std::int64_t i0) const {
  std::vector<unsigned char> all;
  for (std::int64_t i1 = 0; i1 < rows_per_token(); ++i1) {
    const unsigned char* at = host_.data() + offset(i0, i1);
    all.insert(all.end(), at, at + row_bytes());
  }
  return all;
}

std::string HostileTensor::check_untouched(const std::vector<bool>& written) const {
  std::vector<unsigned char> want = sent_;
  for (std::size_t i0 = 0; i0 < written.size(); ++i0) {
    if (!written[i0]) continue;
    for (std::int64_t i1 = 0; i1 < rows_per_token(); ++i1) {
      const std::int64_t at = offset(static_cast<std::int64_t>(i0), i1);
      std::memcpy(want.data() + at, host_.data() + at, static_cast<std::size_t>(row_bytes()));
    }
  }
  if (want == host_) return {};
  std::size_t at = 0;
  while (want[at] == host_[at]) ++at;
  return "byte " + std::to_string(static_cast<std::int64_t>(at) - base_) +
         " from the tensor's start was written though it belongs to no row of the call";
}

}  // namespace replayssm::laws
