// Device memory for the law tests. Freed pieces are kept and handed out again by size, because the
// tests take many small ones; under a memory checker they come from the driver one by one, so that
// an access behind an end is seen.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <map>
#include <vector>

#include "tests/law/support/device.hpp"

namespace replayssm::laws {
namespace {

void require(cudaError_t code) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "cuda: %s\n", cudaGetErrorString(code));
  std::abort();  // nothing a later test says could be trusted
}

class CudaDevice final : public TestDevice {
 public:
  void* allocate(std::int64_t bytes) override {
    std::int64_t size = bytes;
    if (!plain_) {
      size = 256;
      while (size < bytes) size *= 2;
      std::vector<void*>& kept = free_[size];
      if (!kept.empty()) {
        void* memory = kept.back();
        kept.pop_back();
        size_[memory] = size;
        return memory;
      }
    }
    void* memory = nullptr;
    require(cudaMalloc(&memory, static_cast<std::size_t>(size)));
    size_[memory] = size;
    return memory;
  }
  void deallocate(void* memory) override {
    const auto found = size_.find(memory);
    if (plain_) {
      require(cudaFree(memory));
    } else {
      free_[found->second].push_back(memory);
    }
    size_.erase(found);
  }
  void upload(void* to, const void* from, std::int64_t bytes) override {
    if (bytes > 0)
      require(cudaMemcpy(to, from, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice));
  }
  void download(void* to, const void* from, std::int64_t bytes) override {
    if (bytes > 0)
      require(cudaMemcpy(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost));
  }
  void fill(void* to, unsigned char value, std::int64_t bytes) override {
    if (bytes > 0) require(cudaMemset(to, value, static_cast<std::size_t>(bytes)));
  }

 private:
  bool plain_ = std::getenv("REPLAYSSM_TEST_PLAIN_MEMORY") != nullptr;
  std::map<std::int64_t, std::vector<void*>> free_;
  std::map<void*, std::int64_t> size_;
};

}  // namespace

TestDevice* cuda_device() {
  static auto* device = new CudaDevice;  // outlives the driver's own teardown
  return device;
}

}  // namespace replayssm::laws
