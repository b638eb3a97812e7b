// Building the one-line messages that errors and plans carry.
#pragma once

#include <sstream>
#include <string>

#include "replayssm/status.hpp"

namespace replayssm {

// The parts one after the other, as operator<< prints them.
template <typename... Parts>
[[nodiscard]] std::string concat(const Parts&... parts) {
  std::ostringstream stream;
  stream.exceptions(std::ios::badbit);  // a failed allocation must not shorten the text silently
  (stream << ... << parts);
  return stream.str();
}

template <typename... Parts>
[[nodiscard]] Status error(StatusCode code, const Parts&... parts) {
  return {code, concat(parts...)};
}

template <typename... Parts>
[[nodiscard]] Status invalid_argument(const Parts&... parts) {
  return error(StatusCode::kInvalidArgument, parts...);
}

template <typename... Parts>
[[nodiscard]] Status failed_precondition(const Parts&... parts) {
  return error(StatusCode::kFailedPrecondition, parts...);
}

}  // namespace replayssm
