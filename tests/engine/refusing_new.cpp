// See refusing_new.hpp. In a file of its own: a compiler that sees both ends of a pair inlines them
// and calls the pair mismatched.
#include "tests/engine/refusing_new.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::size_t> refused_size{0};
std::atomic<int> granted{0};

void* allocate(std::size_t size) noexcept {
  if (size != 0 && size == refused_size.load() && granted.fetch_sub(1) <= 0) return nullptr;
  return std::malloc(size > 0 ? size : 1);
}

void* allocate_or_throw(std::size_t size) {
  if (void* memory = allocate(size)) return memory;
  throw std::bad_alloc();
}

}  // namespace

namespace replayssm::testing_models {

Refusal::Refusal(std::size_t size, int grant) {
  granted.store(grant);
  refused_size.store(size);
}

Refusal::~Refusal() { refused_size.store(0); }

}  // namespace replayssm::testing_models

// All pairs but the aligned ones, which stay the library's.
void* operator new(std::size_t size) { return allocate_or_throw(size); }
void* operator new[](std::size_t size) { return allocate_or_throw(size); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return allocate(size); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return allocate(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
