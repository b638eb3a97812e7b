// An NVIDIA GPU: one stream, graphs, events.
#include <cuda_runtime.h>

#include <algorithm>

#include "bench/device.hpp"

namespace replayssm::bench {
namespace {

Status check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return {};
  (void)cudaGetLastError();
  return {StatusCode::kDeviceError, std::string(what) + ": " + cudaGetErrorString(code)};
}

__global__ void read_kernel(const uint4* from, std::int64_t count, unsigned* seen) {
  unsigned sum = 0;
  const std::int64_t threads = std::int64_t{gridDim.x} * blockDim.x;
  std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + 3 * threads < count; i += 4 * threads) {
    uint4 word[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) word[k] = __ldcs(from + i + k * threads);
#pragma unroll
    for (int k = 0; k < 4; ++k) sum ^= word[k].x ^ word[k].y ^ word[k].z ^ word[k].w;
  }
  if (sum == 0x12345678U) *seen = sum;  // what was read is used
}

__global__ void copy_kernel(const uint4* from, std::int64_t count, uint4* to) {
  const std::int64_t threads = std::int64_t{gridDim.x} * blockDim.x;
  std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + 3 * threads < count; i += 4 * threads) {
    uint4 word[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) word[k] = __ldcs(from + i + k * threads);
#pragma unroll
    for (int k = 0; k < 4; ++k) __stcs(to + i + k * threads, word[k]);
  }
}

class CudaDevice final : public Device {
 public:
  ~CudaDevice() override {
    for (cudaEvent_t event : events_) (void)cudaEventDestroy(event);
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  }
  Status open() {
    REPLAYSSM_RETURN_IF_ERROR(check(cudaGetDeviceProperties(&facts_, 0), "the device's facts"));
    for (cudaEvent_t& event : events_)
      REPLAYSSM_RETURN_IF_ERROR(check(cudaEventCreate(&event), "an event"));
    return check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
  }

  std::string name() const override { return "cuda"; }
  std::string hardware() const override { return facts_.name; }
  std::string driver() const override {
    int version = 0;
    (void)cudaDriverGetVersion(&version);
    return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
  }
  std::string compiler() const override {
    return "nvcc " + std::to_string(__CUDACC_VER_MAJOR__) + "." +
           std::to_string(__CUDACC_VER_MINOR__) + "." + std::to_string(__CUDACC_VER_BUILD__);
  }
  std::int64_t cache_bytes() const override { return facts_.l2CacheSize; }
  std::int64_t memory_bytes() const override {
    std::size_t free = 0;
    std::size_t all = 0;
    (void)cudaMemGetInfo(&free, &all);
    return static_cast<std::int64_t>(free / 10 * 9);
  }
  void* allocate(std::int64_t bytes) override {
    void* memory = nullptr;
    if (cudaMalloc(&memory, static_cast<std::size_t>(bytes)) == cudaSuccess) return memory;
    (void)cudaGetLastError();
    return nullptr;
  }
  void deallocate(void* memory) override { (void)cudaFree(memory); }
  void upload(void* to, const void* from, std::int64_t bytes) override {
    (void)cudaMemcpy(to, from, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice);
    (void)cudaDeviceSynchronize();
  }
  void download(void* to, const void* from, std::int64_t bytes) override {
    (void)cudaDeviceSynchronize();
    (void)cudaMemcpy(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost);
  }
  void* stream() override { return stream_; }
  Status wait() override { return check(cudaStreamSynchronize(stream_), "the stream"); }

  Result<std::vector<double>> time_us(const std::function<Status()>& work, int repeats) override {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    REPLAYSSM_RETURN_IF_ERROR(
        check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture"));
    const Status recorded = work();
    REPLAYSSM_RETURN_IF_ERROR(check(cudaStreamEndCapture(stream_, &graph), "end of the capture"));
    REPLAYSSM_RETURN_IF_ERROR(recorded);
    REPLAYSSM_RETURN_IF_ERROR(check(cudaGraphInstantiate(&exec, graph, 0), "the graph"));
    std::vector<double> times;
    Status status;
    for (int i = 0; i <= repeats && status.ok(); ++i) {
      (void)cudaEventRecord(events_[0], stream_);
      status = check(cudaGraphLaunch(exec, stream_), "a graph's launch");
      (void)cudaEventRecord(events_[1], stream_);
      if (status.ok()) status = check(cudaEventSynchronize(events_[1]), "the graph");
      float ms = 0.0F;
      (void)cudaEventElapsedTime(&ms, events_[0], events_[1]);
      if (i > 0) times.push_back(ms * 1e3);
    }
    (void)cudaGraphExecDestroy(exec);
    (void)cudaGraphDestroy(graph);
    if (!status.ok()) return status;
    return times;
  }
  Result<Bandwidth> measure_bandwidth() override {
    const std::int64_t bytes = std::int64_t{2} << 30;
    void* from = allocate(bytes);
    void* to = allocate(bytes);
    if (from == nullptr || to == nullptr)
      return Status(StatusCode::kResourceExhausted, "no memory to measure the bandwidth");
    (void)cudaMemset(from, 0x5B, static_cast<std::size_t>(bytes));
    (void)cudaDeviceSynchronize();
    // Whichever grid is the fastest: the figure is the machine's, not a kernel's.
    double best_read = 0.0;
    double best_copy = 0.0;
    const auto size = static_cast<double>(bytes);
    Status status;
    for (const int blocks : {4, 8, 16, 32}) {
      cudaLaunchConfig_t config = {};
      config.gridDim = dim3(static_cast<unsigned>(facts_.multiProcessorCount * blocks));
      config.blockDim = dim3(256);
      config.stream = stream_;
      const auto read = time_us(
          [&] {
            return check(cudaLaunchKernelEx(&config, read_kernel, static_cast<const uint4*>(from),
                                            bytes / 16, static_cast<unsigned*>(to)),
                         "the read kernel");
          },
          7);
      const auto copy = time_us(
          [&] {
            return check(cudaLaunchKernelEx(&config, copy_kernel, static_cast<const uint4*>(from),
                                            bytes / 16, static_cast<uint4*>(to)),
                         "the copy kernel");
          },
          7);
      if (!read.ok()) status = read.status();
      if (!copy.ok()) status = copy.status();
      if (!status.ok()) break;
      best_read = std::max(best_read, size / median(*read) / 1e3);
      best_copy = std::max(best_copy, 2.0 * size / median(*copy) / 1e3);
    }
    deallocate(from);
    deallocate(to);
    if (!status.ok()) return status;
    return Bandwidth{best_read, best_copy};
  }

 private:
  cudaDeviceProp facts_ = {};
  cudaStream_t stream_ = nullptr;
  cudaEvent_t events_[2] = {};
};

}  // namespace

Result<std::unique_ptr<Device>> make_cuda_device() {
  int count = 0;
  const Status status = check(cudaGetDeviceCount(&count), "looking for a CUDA device");
  if (!status.ok()) return Status(StatusCode::kUnsupported, status.message());
  auto device = std::make_unique<CudaDevice>();
  REPLAYSSM_RETURN_IF_ERROR(device->open());
  return std::unique_ptr<Device>(std::move(device));
}

}  // namespace replayssm::bench
