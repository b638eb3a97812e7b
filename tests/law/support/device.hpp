// The one place where tests of the cache touch memory that a backend works on. Today every
// implementation lives on the host; a backend with memory of its own adds a class here, and all
// tests of this room run on it unchanged.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "replayssm/backends.hpp"

namespace replayssm::laws {

class TestDevice {
 public:
  TestDevice() = default;
  TestDevice(const TestDevice&) = delete;
  TestDevice& operator=(const TestDevice&) = delete;
  virtual ~TestDevice() = default;
  // Aligned to 64 bytes; contents unspecified.
  [[nodiscard]] virtual void* allocate(std::int64_t bytes) = 0;
  virtual void deallocate(void* memory) = 0;
  virtual void upload(void* to, const void* from, std::int64_t bytes) = 0;
  virtual void download(void* to, const void* from, std::int64_t bytes) = 0;
  virtual void fill(void* to, unsigned char value, std::int64_t bytes) = 0;
};

class HostDevice final : public TestDevice {
 public:
  void* allocate(std::int64_t bytes) override {
    return ::operator new (static_cast<std::size_t>(bytes), std::align_val_t{64});
  }
  void deallocate(void* memory) override { ::operator delete (memory, std::align_val_t{64}); }
  void upload(void* to, const void* from, std::int64_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
  void download(void* to, const void* from, std::int64_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
  void fill(void* to, unsigned char value, std::int64_t bytes) override {
    if (bytes > 0) std::memset(to, value, static_cast<std::size_t>(bytes));
  }
};

#if defined(REPLAYSSM_LAW_CUDA)
[[nodiscard]] TestDevice* cuda_device();  // tests/cuda/cuda_device.cpp
inline constexpr const char* kDeviceUnderTest = "cuda";
#else
inline constexpr const char* kDeviceUnderTest = "cpu";
#endif

// The memory an implementation's calls expect; null for a device these tests do not know, which
// every test reports as a failure.
[[nodiscard]] inline TestDevice* device_for(const ImplementationInfo& info) {
  static HostDevice host;
#if defined(REPLAYSSM_LAW_CUDA)
  if (info.device == "cuda") return cuda_device();
#endif
  return info.device == "cpu" ? &host : nullptr;
}

// Device memory of a size that may change, owned.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(TestDevice& device) : device_(&device) {}
  DeviceBuffer(TestDevice& device, std::int64_t bytes) : device_(&device) { reserve(bytes); }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : device_(other.device_),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&&) = delete;
  ~DeviceBuffer() {
    if (data_ != nullptr) device_->deallocate(data_);
  }

  // At least so many bytes; the contents are lost where it grows.
  void reserve(std::int64_t bytes) {
    if (bytes <= bytes_ && data_ != nullptr) return;
    if (data_ != nullptr) device_->deallocate(data_);
    bytes_ = bytes > 0 ? bytes : 1;
    data_ = device_->allocate(bytes_);
  }
  [[nodiscard]] void* data() const { return data_; }
  [[nodiscard]] TestDevice& device() const { return *device_; }

  // Copies an array in and returns where it lies; null for an empty one.
  template <typename Array>
  [[nodiscard]] const typename Array::value_type* hold(const Array& array) {
    using Value = typename Array::value_type;
    if (array.empty()) return nullptr;
    const auto bytes = static_cast<std::int64_t>(array.size() * sizeof(Value));
    reserve(bytes);
    device_->upload(data_, array.data(), bytes);
    return static_cast<const Value*>(data_);
  }

 private:
  TestDevice* device_;
  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace replayssm::laws
