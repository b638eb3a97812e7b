// The one way a kernel is started and a CUDA call is checked. Every error becomes a Status; nothing
// waits for the device.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "backend/cuda/common/grid_limits.hpp"
#include "core/text.hpp"
#include "replayssm/status.hpp"

namespace replayssm::cuda {

// Ok, or kDeviceError with what was tried and what the runtime says. Takes the error off the
// runtime's record, so that the next call does not report it again.
[[nodiscard]] inline Status check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return {};
  (void)cudaGetLastError();
  return error(StatusCode::kDeviceError, "cuda: ", what, ": ", cudaGetErrorString(code));
}

struct LaunchShape {
  std::int64_t blocks = 0;
  unsigned threads = 0;
  std::size_t shared_bytes = 0;
  void* stream = nullptr;  // a cudaStream_t; null: the default stream
  std::int64_t rows = 1;   // the grid's second axis
};

// An empty grid is no launch; one that is too large is refused (see grid_limits.hpp).
template <typename... Params, typename... Args>
[[nodiscard]] Status launch(const char* name, void (*kernel)(Params...), const LaunchShape& shape,
                            Args&&... args) {
  if (shape.blocks == 0 || shape.threads == 0 || shape.rows == 0) return {};
  REPLAYSSM_RETURN_IF_ERROR(check_grid(name, shape.blocks, shape.rows));
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks), static_cast<unsigned>(shape.rows));
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = static_cast<cudaStream_t>(shape.stream);
  return check(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...), name);
}

}  // namespace replayssm::cuda
