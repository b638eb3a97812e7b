// All implementations of the build.
#include "backend/registry/registry.hpp"

#include <algorithm>

#include "backend/cpu/cpu_backend.hpp"
#if defined(REPLAYSSM_ENABLE_CUDA)
#include "backend/cuda/cuda_backend.hpp"
#endif

namespace replayssm {

std::span<const Implementation> registry() {
  static const std::vector<Implementation> all = [] {
    std::vector<Implementation> list;
    for (const Implementation& implementation : cpu::cpu_implementations())
      list.push_back(implementation);
#if defined(REPLAYSSM_ENABLE_CUDA)
    for (const Implementation& implementation : cuda::cuda_implementations())
      list.push_back(implementation);
#endif
    std::stable_sort(list.begin(), list.end(),
                     [](const Implementation& a, const Implementation& b) {
                       return a.info.priority > b.info.priority;
                     });
    return list;
  }();
  return all;
}

std::vector<ImplementationInfo> implementations() {
  std::vector<ImplementationInfo> list;
  for (const Implementation& implementation : registry()) list.push_back(implementation.info);
  return list;
}

std::string_view version() { return "0.1.0"; }

}  // namespace replayssm
