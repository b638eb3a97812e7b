// Errors as values. Every call of the library that can fail returns a Status or a Result<T>;
// nothing throws across this interface, prints or aborts.
#pragma once

#include <cassert>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace replayssm {

// Why a call was refused. The set is closed within one minor version.
enum class StatusCode {
  kOk = 0,
  kInvalidArgument,  // an argument is malformed whatever the object's state (shape, stride, null,
                     // value)
  kOutOfRange,  // an index or position lies outside what exists (slot id, layer, token position)
  kFailedPrecondition,  // legal at another time (commit before begin, step twice, torn slot)
  kResourceExhausted,   // no slot, no block, no memory left; nothing was changed
  kUnsupported,  // well formed, but no implementation takes it; the message lists what is supported
  kDataLoss,     // bytes that do not form what they claim to be (files, imports)
  kNotFound,     // a file, tensor, name or key that does not exist
  kDeviceError,  // an accelerator call failed
  kInternal,     // a broken invariant of the library itself
};

// Short stable name of a code, for example "invalid_argument".
[[nodiscard]] constexpr std::string_view status_code_name(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return "ok";
    case StatusCode::kInvalidArgument: return "invalid_argument";
    case StatusCode::kOutOfRange: return "out_of_range";
    case StatusCode::kFailedPrecondition: return "failed_precondition";
    case StatusCode::kResourceExhausted: return "resource_exhausted";
    case StatusCode::kUnsupported: return "unsupported";
    case StatusCode::kDataLoss: return "data_loss";
    case StatusCode::kNotFound: return "not_found";
    case StatusCode::kDeviceError: return "device_error";
    case StatusCode::kInternal: return "internal";
  }
  return "unknown";
}

// A code and, unless it is kOk, one line that says what was required, what was given and what is
// supported. An ok status holds no heap memory, so returning one in a forward pass allocates
// nothing.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  [[nodiscard]] bool ok() const { return code_ == StatusCode::kOk; }
  [[nodiscard]] StatusCode code() const { return code_; }
  [[nodiscard]] const std::string& message() const { return message_; }

  // "ok" or "code: message".
  [[nodiscard]] std::string to_string() const {
    if (ok()) return "ok";
    return std::string(status_code_name(code_)) + ": " + message_;
  }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

// A value or the Status that says why there is none. Access to value() without one is a programming
// error.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    assert(!status_.ok() && "a Result without a value needs a failing Status");
  }

  [[nodiscard]] bool ok() const { return value_.has_value(); }
  [[nodiscard]] const Status& status() const { return status_; }
  [[nodiscard]] T& value() & { return *value_; }
  [[nodiscard]] const T& value() const& { return *value_; }
  [[nodiscard]] T&& value() && { return *std::move(value_); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace replayssm

// Returns from the calling function with the failing Status of `expression`, if it fails.
#define REPLAYSSM_RETURN_IF_ERROR(expression)                                                     \
  do {                                                                                            \
    if (auto replayssm_status_ = (expression); !replayssm_status_.ok()) return replayssm_status_; \
  } while (false)
