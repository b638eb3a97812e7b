// The one way a kernel is started and a CUDA call is checked. Every error becomes a Status; nothing
// waits for the device.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

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
  unsigned blocks = 0;
  unsigned threads = 0;
  std::size_t shared_bytes = 0;
  void* stream = nullptr;  // a cudaStream_t; null: the default stream
  unsigned rows = 1;       // the grid's second axis
};

// An empty grid is no launch.
template <typename... Params, typename... Args>
[[nodiscard]] Status launch(const char* name, void (*kernel)(Params...), const LaunchShape& shape,
                            Args&&... args) {
  if (shape.blocks == 0 || shape.threads == 0 || shape.rows == 0) return {};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(shape.blocks, shape.rows);
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = static_cast<cudaStream_t>(shape.stream);
  return check(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...), name);
}

}  // namespace replayssm::cuda
