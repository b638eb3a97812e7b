// Where a benchmark runs: memory, a stream, time, and what the machine itself can move.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "replayssm/status.hpp"

namespace replayssm::bench {

class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  [[nodiscard]] virtual std::string name() const = 0;      // "cpu" or "cuda"
  [[nodiscard]] virtual std::string hardware() const = 0;  // what it is
  [[nodiscard]] virtual std::string driver() const = 0;
  [[nodiscard]] virtual std::string compiler() const = 0;
  [[nodiscard]] virtual std::int64_t cache_bytes() const = 0;   // the last level
  [[nodiscard]] virtual std::int64_t memory_bytes() const = 0;  // that a benchmark may take

  [[nodiscard]] virtual void* allocate(std::int64_t bytes) = 0;  // null: none
  virtual void deallocate(void* memory) = 0;
  virtual void upload(void* to, const void* from, std::int64_t bytes) = 0;
  virtual void download(void* to, const void* from, std::int64_t bytes) = 0;
  virtual void* stream() = 0;
  // Microseconds of each of `repeats` runs of `work`, after one that is not counted. On a GPU the
  // calls are recorded in a graph once and the graph is what runs.
  [[nodiscard]] virtual Result<std::vector<double>> time_us(const std::function<Status()>& work,
                                                            int repeats) = 0;
  [[nodiscard]] virtual Status wait() = 0;

  struct Bandwidth {
    double read_gb_per_s = 0.0;
    double copy_gb_per_s = 0.0;  // bytes read plus bytes written
  };
  [[nodiscard]] virtual Result<Bandwidth> measure_bandwidth() = 0;
};

[[nodiscard]] std::unique_ptr<Device> make_host_device();
// kUnsupported where the build or the machine has none.
[[nodiscard]] Result<std::unique_ptr<Device>> make_cuda_device();

[[nodiscard]] double median(std::vector<double> values);

}  // namespace replayssm::bench
