// Shared pieces of the C interface: reading sized structs, turning statuses into codes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>
#include <type_traits>

#include "core/text.hpp"
#include "replayssm/cache.hpp"
#include "replayssm/replayssm.h"

namespace replayssm::capi {

// Reads a struct whose caller may be older (its missing tail is 0) or newer (its tail must be 0:
// fields that this library does not know would otherwise be ignored silently).
template <typename T>
[[nodiscard]] Status read_sized(const T* given, const char* name, std::size_t least, T& known) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (given == nullptr) return invalid_argument(name, ": required, given null");
  std::uint32_t size = 0;
  std::memcpy(&size, given, sizeof(size));
  if (size < least) {
    return invalid_argument(name, ": struct_size must be at least ", least, ", given ", size);
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (std::size_t i = sizeof(T); i < size; ++i) {
    if (bytes[i] != 0) {
      return error(StatusCode::kUnsupported, name, ": a field beyond byte ", sizeof(T),
                   " is set, which this library (0.1) does not know");
    }
  }
  known = T{};
  std::memcpy(&known, given, std::min<std::size_t>(size, sizeof(T)));
  return {};
}

// Element i of a caller's array, whose elements are as far apart as the caller's struct is large.
template <typename T>
[[nodiscard]] const T* element_of(const T* array, std::int64_t i) {
  std::uint32_t size = 0;
  std::memcpy(&size, array, sizeof(size));
  return reinterpret_cast<const T*>(reinterpret_cast<const unsigned char*>(array) + i * size);
}

// Writes as much of a struct as the caller has room for; struct_size stays the caller's.
template <typename T>
[[nodiscard]] Status write_sized(const T& known, const char* name, std::size_t least, T* target) {
  if (target == nullptr) return invalid_argument(name, ": required, given null");
  std::uint32_t size = 0;
  std::memcpy(&size, target, sizeof(size));
  if (size < least) {
    return invalid_argument(name, ": struct_size must be at least ", least, ", given ", size);
  }
  std::memcpy(reinterpret_cast<unsigned char*>(target) + sizeof(size),
              reinterpret_cast<const unsigned char*>(&known) + sizeof(size),
              std::min<std::size_t>(size, sizeof(T)) - sizeof(size));
  return {};
}

// The code of a status; its message goes to `error`, where there is one.
[[nodiscard]] replayssm_code report(const Status& status, replayssm_error* error);

// Runs a body that returns a Status; nothing it throws (memory) crosses the interface.
template <typename Body>
[[nodiscard]] replayssm_code guarded(replayssm_error* error, Body body) {
  try {
    return report(body(), error);
  } catch (const std::bad_alloc&) {
    return report(Status(StatusCode::kResourceExhausted, "no memory"), error);
  } catch (...) {
    return report(Status(StatusCode::kInternal, "an exception reached the C interface"), error);
  }
}

[[nodiscard]] Status read_config(const replayssm_config* given, CacheConfig& config);
[[nodiscard]] Status read_tensor(const replayssm_tensor& given, const char* name, TensorView& view);
// The stream's handle, once its device is the cache's.
[[nodiscard]] Status read_stream(const replayssm_stream* given, std::int32_t device, void*& stream);

}  // namespace replayssm::capi

// What the opaque handle points to.
struct replayssm_cache {
  replayssm::Cache cache;
  std::int32_t device = REPLAYSSM_DEVICE_CPU;
};
