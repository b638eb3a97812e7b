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

// Sizes that version 0.1 was frozen with: what every later library must accept from a program
// compiled against it.
template <typename T>
inline constexpr std::size_t kFrozenSize = 0;
#define REPLAYSSM_FROZEN(type, size)                                                           \
  template <>                                                                                  \
  inline constexpr std::size_t kFrozenSize<type> = sizeof(void*) == 8 ? (size) : sizeof(type); \
  static_assert(sizeof(type) >= kFrozenSize<type>, "a frozen struct has shrunk")
REPLAYSSM_FROZEN(replayssm_error, 1032);
REPLAYSSM_FROZEN(replayssm_stream, 24);
REPLAYSSM_FROZEN(replayssm_tensor, 88);
REPLAYSSM_FROZEN(replayssm_layer, 104);
REPLAYSSM_FROZEN(replayssm_parallel_for, 24);
REPLAYSSM_FROZEN(replayssm_tensor_spec, 40);
REPLAYSSM_FROZEN(replayssm_tensor_memory, 24);
REPLAYSSM_FROZEN(replayssm_config, 120);
REPLAYSSM_FROZEN(replayssm_bytes, 48);
REPLAYSSM_FROZEN(replayssm_slot_info, 48);
REPLAYSSM_FROZEN(replayssm_materialize_item, 32);
REPLAYSSM_FROZEN(replayssm_layer_state, 184);
REPLAYSSM_FROZEN(replayssm_rows, 64);
REPLAYSSM_FROZEN(replayssm_layer_inputs, 624);
REPLAYSSM_FROZEN(replayssm_conv_inputs, 192);
REPLAYSSM_FROZEN(replayssm_accepted, 40);
#undef REPLAYSSM_FROZEN

// No struct will ever be so large; a larger struct_size was never set.
inline constexpr std::size_t kMostSize = 65536;

// Reads a struct whose caller may be older (its missing tail is 0) or newer (its tail must be 0:
// fields that this library does not know would otherwise be ignored silently).
template <typename T>
[[nodiscard]] Status read_sized(const T* given, const char* name, T& known) {
  static_assert(std::is_trivially_copyable_v<T> && kFrozenSize<T> > 0);
  constexpr std::size_t kLeast = kFrozenSize<T>;
  if (given == nullptr) return invalid_argument(name, ": required, given null");
  std::uint32_t size = 0;
  std::memcpy(&size, given, sizeof(size));
  if (size < kLeast || size > kMostSize) {
    return invalid_argument(name, ": struct_size must be ", kLeast, " to ", kMostSize, ", given ",
                            size);
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
  if constexpr (requires { known.reserved; }) {
    if (known.reserved != 0) {
      return invalid_argument(name, ": reserved must be 0, given ", known.reserved);
    }
  }
  return {};
}

// Element i of a caller's array, whose elements are as far apart as the caller's struct is large.
template <typename T>
[[nodiscard]] const T* element_of(const T* array, std::int64_t i) {
  std::uint32_t size = 0;
  std::memcpy(&size, array, sizeof(size));
  return reinterpret_cast<const T*>(reinterpret_cast<const unsigned char*>(array) + i * size);
}

// The same, to be written: the first element's struct_size counts for all. Copied as bytes, since a
// struct_size that is no multiple of the alignment puts elements anywhere.
template <typename T>
[[nodiscard]] T* element_to_write(T* array, std::int64_t i) {
  auto* target = const_cast<T*>(element_of(array, i));
  if (i > 0) {
    std::memcpy(reinterpret_cast<unsigned char*>(target),
                reinterpret_cast<const unsigned char*>(array), sizeof(std::uint32_t));
  }
  return target;
}

// Writes as much of a struct as the caller has room for, zeros where the caller knows more fields;
// struct_size stays the caller's.
template <typename T>
[[nodiscard]] Status write_sized(const T& known, const char* name, T* target) {
  if (target == nullptr) return invalid_argument(name, ": required, given null");
  std::uint32_t size = 0;
  std::memcpy(&size, target, sizeof(size));
  if (size < kFrozenSize<T> || size > kMostSize) {
    return invalid_argument(name, ": struct_size must be ", kFrozenSize<T>, " to ", kMostSize,
                            ", given ", size);
  }
  auto* bytes = reinterpret_cast<unsigned char*>(target);
  const std::size_t common = std::min<std::size_t>(size, sizeof(T));
  std::memcpy(bytes + sizeof(size), reinterpret_cast<const unsigned char*>(&known) + sizeof(size),
              common - sizeof(size));
  std::memset(bytes + common, 0, size - common);
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
