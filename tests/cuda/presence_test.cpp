// Says whether this machine can run the CUDA implementations at all, so that a run without a device
// is seen to have tested nothing.
#include <gtest/gtest.h>

#include "replayssm/backends.hpp"

namespace replayssm {
namespace {

TEST(CudaDevice, IsPresent) {
  std::string why = "this build has no CUDA implementation";
  for (const ImplementationInfo& info : implementations()) {
    if (info.device != "cuda") continue;
    if (info.available) return;
    why = info.unavailable_because;
  }
  GTEST_SKIP() << "no CUDA device that can be tested: " << why;
}

}  // namespace
}  // namespace replayssm
