// The seam between the cache's host side and the code that runs its operations. A backend instance
// belongs to one cache. All array arguments are in the backend's memory; the host side has already
// checked shapes and call order, the backend checks what only the arrays' contents show.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/tables.hpp"
#include "replayssm/backends.hpp"

namespace replayssm {

class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  // Memory the backend's operations can reach, at least 64-byte aligned; null when there is none.
  [[nodiscard]] virtual void* allocate(std::int64_t bytes) = 0;
  virtual void deallocate(void* memory) = 0;
  // Working memory beyond the cache's tensors.
  [[nodiscard]] virtual std::int64_t scratch_bytes() const = 0;
  // How work is spread, one line.
  [[nodiscard]] virtual std::string explain() const = 0;

  // Whether the cursors can be read without waiting for a device. Where not, the host side leaves
  // checks of a slot's state to the backend, which makes them in stream order.
  [[nodiscard]] virtual bool cursors_on_host() const { return true; }

  // Puts the slot table into its first state: all slots free, all blocks free.
  [[nodiscard]] virtual Status initialize(CacheTable& table) = 0;

  [[nodiscard]] virtual Status acquire(CacheTable& table, std::int64_t slot, std::uint64_t seed,
                                       void* stream) = 0;
  [[nodiscard]] virtual Status release(CacheTable& table, std::int64_t slot, void* stream) = 0;
  [[nodiscard]] virtual Status fork(CacheTable& table, std::int64_t source, std::int64_t target,
                                    void* stream) = 0;
  [[nodiscard]] virtual Status materialize(CacheTable& table,
                                           std::span<const MaterializeItem> items,
                                           void* stream) = 0;
  [[nodiscard]] virtual Status load_state(CacheTable& table, std::int64_t slot,
                                          std::int64_t position, std::span<const LayerState> layers,
                                          void* stream) = 0;
  [[nodiscard]] virtual Status store_state(const CacheTable& table, std::int64_t slot,
                                           std::span<const LayerState> layers, void* stream) = 0;
  // infos[i] of slot of[i], all read at the same time.
  [[nodiscard]] virtual Status info(const CacheTable& table, std::span<const std::int64_t> of,
                                    std::span<SlotInfo> infos) = 0;
  // Clears bits of a slot's error word, in stream order; the host side has refused kSlotTorn.
  [[nodiscard]] virtual Status clear_errors(CacheTable& table, std::int64_t slot,
                                            std::uint32_t bits, void* stream) = 0;
  // The slot's tensors in export order (docs/formats.md) to and from host bytes of exactly the
  // right size.
  [[nodiscard]] virtual Status export_payload(const CacheTable& table, std::int64_t slot,
                                              std::span<std::byte> bytes) = 0;
  [[nodiscard]] virtual Status import_payload(CacheTable& table, std::int64_t slot,
                                              const SlotInfo& info, std::int32_t conv_valid,
                                              std::span<const std::byte> bytes) = 0;
  // Conv inputs that exist in a slot's history.
  [[nodiscard]] virtual Status conv_valid(const CacheTable& table, std::int64_t slot,
                                          std::int32_t& valid) = 0;
  // Folds every record of a slot into its checkpoint (an import under a smaller window).
  [[nodiscard]] virtual Status fold_all(CacheTable& table, std::int64_t slot) = 0;

  // Whether begin() would take the rows, asked while a forward is open, so that a refused begin
  // leaves that forward as it is. A backend that cannot tell without waiting for its device agrees.
  [[nodiscard]] virtual Status check_begin(CacheTable& /*table*/, const Rows& /*rows*/) {
    return {};
  }
  [[nodiscard]] virtual Status begin(CacheTable& table, const Rows& rows) = 0;
  [[nodiscard]] virtual Status fold(CacheTable& table, void* stream) = 0;
  [[nodiscard]] virtual Status conv(CacheTable& table, const ConvInputs& inputs) = 0;
  [[nodiscard]] virtual Status step(CacheTable& table, const LayerInputs& inputs) = 0;
  [[nodiscard]] virtual Status prefill(CacheTable& table, const LayerInputs& inputs) = 0;
  [[nodiscard]] virtual Status commit(CacheTable& table, const Accepted& accepted) = 0;
  // Ends the forward without a commit. `touched`: some layer's conv, step or prefill has run.
  [[nodiscard]] virtual Status abandon(CacheTable& table, bool touched, void* stream) = 0;
};

// What a backend instance is made from.
struct BackendOptions {
  const CacheConfig* config = nullptr;
  std::int32_t ring = 0;
};

// A named way to make one; the registry holds all of them.
struct Implementation {
  ImplementationInfo info;
  Result<std::unique_ptr<Backend>> (*create)(const BackendOptions& options) = nullptr;
};

}  // namespace replayssm
