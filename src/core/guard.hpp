// The edge where exceptions end: what the standard library throws (failed allocations, threads that
// could not start) becomes a Status.
#pragma once

#include <new>
#include <stdexcept>
#include <string>
#include <system_error>

#include "replayssm/status.hpp"

namespace replayssm {

// What `function` returns, or kResourceExhausted. A user's callback may still throw through it.
template <typename Function>
auto guard(Function&& function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kResourceExhausted, "out of memory");
  } catch (const std::length_error&) {
    return Status(StatusCode::kResourceExhausted, "more elements than memory can address");
  } catch (const std::system_error& failure) {
    return Status(StatusCode::kResourceExhausted, failure.what());
  }
}

}  // namespace replayssm
