// The machine's own processors.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <fstream>
#include <new>
#include <thread>

#include "bench/device.hpp"

namespace replayssm::bench {
namespace {

using Clock = std::chrono::steady_clock;

double since_us(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// Calls body(i) on one thread a processor.
template <typename Body>
void on_all_threads(unsigned threads, Body body) {
  std::vector<std::thread> running;
  for (unsigned i = 0; i < threads; ++i) running.emplace_back(body, i);
  for (std::thread& thread : running) thread.join();
}

class HostDevice final : public Device {
 public:
  std::string name() const override { return "cpu"; }
  std::string hardware() const override {
    std::ifstream file("/proc/cpuinfo");
    std::string line;
    while (std::getline(file, line)) {
      if (line.rfind("model name", 0) != 0) continue;
      return std::to_string(threads_) + " x " + line.substr(line.find(':') + 2);
    }
    return std::to_string(threads_) + " processors";
  }
  std::string driver() const override { return ""; }
  std::string compiler() const override { return __VERSION__; }
  std::int64_t cache_bytes() const override {
    const std::int64_t known = sysconf(_SC_LEVEL3_CACHE_SIZE);
    // Virtual machines often report the whole socket's, which is not theirs alone.
    return std::clamp(known, std::int64_t{8} << 20, std::int64_t{32} << 20);
  }
  std::int64_t memory_bytes() const override {
    return static_cast<std::int64_t>(sysconf(_SC_AVPHYS_PAGES)) * sysconf(_SC_PAGESIZE) / 4;
  }
  void* allocate(std::int64_t bytes) override {
    return ::operator new (static_cast<std::size_t>(bytes), std::align_val_t{64}, std::nothrow);
  }
  void deallocate(void* memory) override { ::operator delete (memory, std::align_val_t{64}); }
  void upload(void* to, const void* from, std::int64_t bytes) override {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
  void download(void* to, const void* from, std::int64_t bytes) override {
    upload(to, from, bytes);
  }
  void* stream() override { return nullptr; }
  Status wait() override { return {}; }
  Result<std::vector<double>> time_us(const std::function<Status()>& work, int repeats) override {
    REPLAYSSM_RETURN_IF_ERROR(work());
    std::vector<double> times;
    for (int i = 0; i < repeats; ++i) {
      const Clock::time_point start = Clock::now();
      REPLAYSSM_RETURN_IF_ERROR(work());
      times.push_back(since_us(start));
    }
    return times;
  }
  Result<Bandwidth> measure_bandwidth() override {
    const std::size_t words = std::size_t{32} << 20;  // 256 MiB in all
    std::vector<std::uint64_t> from(words, 3);
    std::vector<std::uint64_t> to(words, 5);
    const std::size_t share = words / threads_;
    std::vector<double> read;
    std::vector<double> copy;
    std::uint64_t seen = 0;
    for (int i = 0; i < 5; ++i) {
      Clock::time_point start = Clock::now();
      std::vector<std::uint64_t> sums(threads_ * 8);
      on_all_threads(threads_, [&](unsigned t) {
        std::array<std::uint64_t, 8> sum{};
        const std::uint64_t* part = from.data() + t * share;
        for (std::size_t j = 0; j + 8 <= share; j += 8) {
          for (std::size_t k = 0; k < 8; ++k) sum[k] ^= part[j + k];
        }
        for (std::size_t k = 0; k < 8; ++k) sums[t * 8] ^= sum[k];
      });
      read.push_back(since_us(start));
      for (const std::uint64_t sum : sums) seen ^= sum;
      start = Clock::now();
      on_all_threads(threads_, [&](unsigned t) {
        std::memcpy(to.data() + t * share, from.data() + t * share, share * 8);
      });
      copy.push_back(since_us(start));
    }
    from[0] = seen;  // what was read is used
    const double bytes = static_cast<double>(words) * 8.0;
    return Bandwidth{bytes / median(read) / 1e3, 2.0 * bytes / median(copy) / 1e3};
  }

 private:
  unsigned threads_ = std::max(std::thread::hardware_concurrency(), 1U);
};

}  // namespace

std::unique_ptr<Device> make_host_device() { return std::make_unique<HostDevice>(); }

double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 != 0 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
}

#if !defined(REPLAYSSM_ENABLE_CUDA)
Result<std::unique_ptr<Device>> make_cuda_device() {
  return Status(StatusCode::kUnsupported,
                "this build has no CUDA; configure with -DREPLAYSSM_ENABLE_CUDA=ON");
}
#endif

}  // namespace replayssm::bench
