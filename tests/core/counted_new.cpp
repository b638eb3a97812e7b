// Replaces operator new and delete of the whole program by ones that count and may fail once. In a
// file of its own: a compiler that sees both ends of a pair inlines them and calls the pair
// mismatched.
#include "tests/core/counted_new.hpp"

#include <cstddef>
#include <cstdlib>
#include <new>

std::atomic<std::int64_t> replayssm::laws::allocations{0};
std::atomic<std::int64_t> replayssm::laws::aligned_bytes{0};
std::atomic<std::int64_t> replayssm::laws::unreturned{0};
std::atomic<std::int64_t> replayssm::laws::failing{0};

namespace {

void* counted(std::size_t size, std::size_t alignment) noexcept {
  if (replayssm::laws::allocations.fetch_add(1) + 1 == replayssm::laws::failing.load()) {
    return nullptr;
  }
  replayssm::laws::unreturned.fetch_add(1);
  if (alignment <= alignof(std::max_align_t)) return std::malloc(size > 0 ? size : 1);
  replayssm::laws::aligned_bytes.fetch_add(static_cast<std::int64_t>(size));
  return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

void give_back(void* memory) noexcept {
  if (memory != nullptr) replayssm::laws::unreturned.fetch_sub(1);
  std::free(memory);
}

void* or_throw(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t size) { return or_throw(counted(size, 1)); }
void* operator new[](std::size_t size) { return or_throw(counted(size, 1)); }
void* operator new(std::size_t size, std::align_val_t at) {
  return or_throw(counted(size, static_cast<std::size_t>(at)));
}
void* operator new[](std::size_t size, std::align_val_t at) {
  return or_throw(counted(size, static_cast<std::size_t>(at)));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return counted(size, 1); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return counted(size, 1); }
void* operator new(std::size_t size, std::align_val_t at, const std::nothrow_t&) noexcept {
  return counted(size, static_cast<std::size_t>(at));
}
void* operator new[](std::size_t size, std::align_val_t at, const std::nothrow_t&) noexcept {
  return counted(size, static_cast<std::size_t>(at));
}
void operator delete(void* memory) noexcept { give_back(memory); }
void operator delete[](void* memory) noexcept { give_back(memory); }
void operator delete(void* memory, std::size_t) noexcept { give_back(memory); }
void operator delete[](void* memory, std::size_t) noexcept { give_back(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { give_back(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { give_back(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { give_back(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { give_back(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { give_back(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { give_back(memory); }
