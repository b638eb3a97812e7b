// What a Cache holds: tables, memory, the backend, and where the open forward stands.
#pragma once

#include <memory>
#include <vector>

#include "cache/format.hpp"
#include "core/backend.hpp"
#include "replayssm/cache.hpp"

namespace replayssm {

enum class LayerCall : std::uint8_t { kStep, kPrefill };

// State, rings, conv and control of a configuration with its defaults filled in, and the backend's
// scratch.
[[nodiscard]] CacheBytes count_bytes(const CacheConfig& config, const Backend& backend);

class REPLAYSSM_HIDDEN Cache::Impl {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Impl>> create(const CacheConfig& config);
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl();

  [[nodiscard]] Result<std::int64_t> acquire(std::uint64_t seed, void* stream);
  [[nodiscard]] Status acquire_slot(std::int64_t slot, std::uint64_t seed, void* stream);
  [[nodiscard]] Status release(std::int64_t slot, void* stream);
  [[nodiscard]] Result<std::int64_t> fork(std::int64_t source, void* stream);
  [[nodiscard]] Status materialize(std::span<const MaterializeItem> items, void* stream);
  [[nodiscard]] Status load_state(std::int64_t slot, std::int64_t position,
                                  std::span<const LayerState> layers, void* stream);
  [[nodiscard]] Status store_state(std::int64_t slot, std::span<const LayerState> layers,
                                   void* stream);
  [[nodiscard]] Result<ExportHeader> export_header(std::int64_t slot);
  [[nodiscard]] Result<std::vector<std::byte>> export_slot(std::int64_t slot);
  [[nodiscard]] Result<std::int64_t> import_slot(std::span<const std::byte> bytes);
  [[nodiscard]] Result<SlotInfo> info(std::int64_t slot);
  [[nodiscard]] Result<std::vector<SlotInfo>> info(std::span<const std::int64_t> slots);
  [[nodiscard]] Status clear_errors(std::int64_t slot, std::uint32_t bits, void* stream);

  [[nodiscard]] Status begin(const Rows& rows);
  [[nodiscard]] Status fold(void* stream);
  [[nodiscard]] Status conv(const ConvInputs& inputs);
  [[nodiscard]] Status run_layer(const LayerInputs& inputs, LayerCall call);
  [[nodiscard]] Status commit(const Accepted& accepted);
  [[nodiscard]] Status abort(void* stream);

  [[nodiscard]] CacheBytes bytes() const { return count_bytes(config_, *backend_); }
  [[nodiscard]] const CacheConfig& config() const { return config_; }
  [[nodiscard]] std::int32_t ring_length() const { return table_.ring; }
  [[nodiscard]] std::int64_t free_slots() const;
  [[nodiscard]] std::string_view implementation() const;
  [[nodiscard]] std::string explain() const;

 private:
  // Where the open forward stands.
  enum class Stage : std::uint8_t { kClosed, kBegun, kFolded };
  // Whether a slot id can be handed out; kLeaving: released, but its forward is still open.
  enum class SlotUse : std::uint8_t { kFree, kHeld, kLeaving };
  // Calls a layer has had in the open forward.
  struct LayerProgress {
    bool conv = false;
    bool step = false;
    bool prefill = false;
  };

  Impl() = default;
  [[nodiscard]] Status place_memory();
  [[nodiscard]] Status check_held(std::int64_t slot, const char* call) const;
  [[nodiscard]] Status check_closed(const char* call) const;
  [[nodiscard]] Status check_layer_call(std::int32_t layer, const char* call) const;
  [[nodiscard]] Status read_info(std::int64_t slot, SlotInfo& info);
  [[nodiscard]] Status check_whole(std::int64_t slot, const char* call);
  [[nodiscard]] Status check_fresh(std::int64_t slot, const char* call);
  [[nodiscard]] Status check_states(std::span<const LayerState> layers, const char* call,
                                    bool output) const;
  [[nodiscard]] Status check_all_layers_ran() const;
  [[nodiscard]] Result<std::int64_t> free_slot() const;
  [[nodiscard]] Result<std::vector<std::byte>> folded_elsewhere(
      std::span<const std::byte> bytes) const;
  void close();

  CacheConfig config_;
  CacheTable table_;
  std::vector<LayerTable> layers_;
  std::vector<LayerProgress> progress_;
  std::vector<SlotUse> use_;
  std::vector<void*> owned_;
  std::size_t implementation_ = 0;
  std::string why_;
  std::unique_ptr<Backend> backend_;
  Stage stage_ = Stage::kClosed;
  bool touched_ = false;
};

}  // namespace replayssm
