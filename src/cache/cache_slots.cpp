// Slots: handing out, forking, moving in and out.
#include <algorithm>

#include "backend/registry/registry.hpp"
#include "cache/cache_impl.hpp"
#include "cache/format.hpp"
#include "core/checks.hpp"
#include "core/layout.hpp"
#include "core/text.hpp"

namespace replayssm {

Status Cache::Impl::check_held(std::int64_t slot, const char* call) const {
  if (slot < 0 || slot >= config_.slots) {
    return error(StatusCode::kOutOfRange, call, ": slot must be 0 to ", config_.slots - 1,
                 ", given ", slot);
  }
  if (use_[static_cast<std::size_t>(slot)] != SlotUse::kHeld) {
    return failed_precondition(call, ": slot ", slot, " is not acquired");
  }
  return {};
}

Status Cache::Impl::check_closed(const char* call) const {
  if (stage_ == Stage::kClosed) return {};
  return failed_precondition(call, ": a forward is open; commit or abort it first");
}

Status Cache::Impl::check_whole(std::int64_t slot, const char* call) {
  if (!backend_->cursors_on_host()) return {};
  SlotInfo facts;
  REPLAYSSM_RETURN_IF_ERROR(read_info(slot, facts));
  if ((facts.error & kSlotTorn) == 0) return {};
  return failed_precondition(call, ": slot ", slot,
                             " is torn by an abandoned forward; only release is legal");
}

Status Cache::Impl::check_fresh(std::int64_t slot, const char* call) {
  if (!backend_->cursors_on_host()) return {};
  SlotInfo facts;
  REPLAYSSM_RETURN_IF_ERROR(read_info(slot, facts));
  if (facts.position == 0 && facts.committed == 0 && facts.zero && facts.block_references == 1)
    return {};
  return failed_precondition(call, ": slot ", slot, " must be fresh, given one at position ",
                             facts.position);
}

Result<std::int64_t> Cache::Impl::free_slot() const {
  const auto found = std::find(use_.begin(), use_.end(), SlotUse::kFree);
  if (found != use_.end()) return static_cast<std::int64_t>(found - use_.begin());
  return error(StatusCode::kResourceExhausted, "all ", config_.slots,
               " slots are taken; release one");
}

Result<std::int64_t> Cache::Impl::acquire(std::uint64_t seed, void* stream) {
  const Result<std::int64_t> slot = free_slot();
  if (!slot.ok()) return slot.status();
  REPLAYSSM_RETURN_IF_ERROR(acquire_slot(*slot, seed, stream));
  return *slot;
}

Status Cache::Impl::acquire_slot(std::int64_t slot, std::uint64_t seed, void* stream) {
  if (slot < 0 || slot >= config_.slots) {
    return error(StatusCode::kOutOfRange, "acquire_slot: slot must be 0 to ", config_.slots - 1,
                 ", given ", slot);
  }
  if (use_[static_cast<std::size_t>(slot)] != SlotUse::kFree) {
    return failed_precondition("acquire_slot: slot ", slot,
                               " is taken or still part of the open forward");
  }
  REPLAYSSM_RETURN_IF_ERROR(backend_->acquire(table_, slot, seed, stream));
  use_[static_cast<std::size_t>(slot)] = SlotUse::kHeld;
  return {};
}

Status Cache::Impl::release(std::int64_t slot, void* stream) {
  REPLAYSSM_RETURN_IF_ERROR(check_held(slot, "release"));
  REPLAYSSM_RETURN_IF_ERROR(backend_->release(table_, slot, stream));
  use_[static_cast<std::size_t>(slot)] =
      stage_ == Stage::kClosed ? SlotUse::kFree : SlotUse::kLeaving;
  return {};
}

Result<std::int64_t> Cache::Impl::fork(std::int64_t source, void* stream) {
  REPLAYSSM_RETURN_IF_ERROR(check_closed("fork"));
  REPLAYSSM_RETURN_IF_ERROR(check_held(source, "fork"));
  const Result<std::int64_t> target = free_slot();
  if (!target.ok()) return target.status();
  REPLAYSSM_RETURN_IF_ERROR(backend_->fork(table_, source, *target, stream));
  use_[static_cast<std::size_t>(*target)] = SlotUse::kHeld;
  return *target;
}

Status Cache::Impl::materialize(std::span<const MaterializeItem> items, void* stream) {
  REPLAYSSM_RETURN_IF_ERROR(check_closed("materialize"));
  for (const MaterializeItem& item : items) {
    REPLAYSSM_RETURN_IF_ERROR(check_held(item.source, "materialize"));
    REPLAYSSM_RETURN_IF_ERROR(check_held(item.target, "materialize"));
  }
  return backend_->materialize(table_, items, stream);
}

Status Cache::Impl::check_states(std::span<const LayerState> layers, const char* call,
                                 bool output) const {
  if (layers.size() != layers_.size()) {
    return invalid_argument(call, ": required one LayerState a layer, ", layers_.size(), ", given ",
                            layers.size());
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerShape& shape = layers_[i].shape;
    ViewRule rule;
    const std::string name = concat(call, ": layer ", i, " state");
    rule.name = name;
    rule.tokens = shape.heads;
    rule.d1 = layers[i].key_major ? shape.key_dim : shape.value_dim;
    rule.d2 = layers[i].key_major ? shape.value_dim : shape.key_dim;
    rule.any_activation = true;
    rule.output = output;
    REPLAYSSM_RETURN_IF_ERROR(check_view(layers[i].state, rule));
    if (!layers[i].conv.present()) continue;
    if (shape.conv_channels == 0) {
      return invalid_argument(call, ": layer ", i,
                              " has no convolution, but a conv tensor was given");
    }
    ViewRule conv_rule;
    const std::string conv_name = concat(call, ": layer ", i, " conv");
    conv_rule.name = conv_name;
    conv_rule.tokens = shape.conv_width - 1;
    conv_rule.d1 = shape.conv_channels;
    conv_rule.dtype = config_.activations;
    conv_rule.output = output;
    REPLAYSSM_RETURN_IF_ERROR(check_view(layers[i].conv, conv_rule));
  }
  return {};
}

Status Cache::Impl::load_state(std::int64_t slot, std::int64_t position,
                               std::span<const LayerState> layers, void* stream) {
  REPLAYSSM_RETURN_IF_ERROR(check_closed("load_state"));
  REPLAYSSM_RETURN_IF_ERROR(check_held(slot, "load_state"));
  if (position < 0 || position > kMaxPosition) {
    return invalid_argument("load_state: position must be 0 to ", kMaxPosition, ", given ",
                            position);
  }
  REPLAYSSM_RETURN_IF_ERROR(check_states(layers, "load_state", false));
  REPLAYSSM_RETURN_IF_ERROR(check_fresh(slot, "load_state"));
  return backend_->load_state(table_, slot, position, layers, stream);
}

Status Cache::Impl::store_state(std::int64_t slot, std::span<const LayerState> layers,
                                void* stream) {
  REPLAYSSM_RETURN_IF_ERROR(check_closed("store_state"));
  REPLAYSSM_RETURN_IF_ERROR(check_held(slot, "store_state"));
  REPLAYSSM_RETURN_IF_ERROR(check_states(layers, "store_state", true));
  REPLAYSSM_RETURN_IF_ERROR(check_whole(slot, "store_state"));
  return backend_->store_state(table_, slot, layers, stream);
}

Result<ExportHeader> Cache::Impl::export_header(std::int64_t slot) {
  REPLAYSSM_RETURN_IF_ERROR(check_closed("export_slot"));
  REPLAYSSM_RETURN_IF_ERROR(check_held(slot, "export_slot"));
  REPLAYSSM_RETURN_IF_ERROR(check_whole(slot, "export_slot"));
  ExportHeader header;
  REPLAYSSM_RETURN_IF_ERROR(read_info(slot, header.info));
  REPLAYSSM_RETURN_IF_ERROR(backend_->conv_valid(table_, slot, header.conv_valid));
  // Conventional decoding has no window and no records that another one could be too small for.
  header.window = config_.decode == DecodeMode::kReplay ? config_.window : 1;
  header.payload_bytes = export_payload_bytes(config_, header);
  return header;
}

Result<std::vector<std::byte>> Cache::Impl::export_slot(std::int64_t slot) {
  const Result<ExportHeader> header = export_header(slot);
  if (!header.ok()) return header.status();
  const std::int64_t head = export_header_bytes(config_);
  std::vector<std::byte> bytes(static_cast<std::size_t>(head + header->payload_bytes));
  REPLAYSSM_RETURN_IF_ERROR(backend_->export_payload(
      table_, slot, std::span(bytes).subspan(static_cast<std::size_t>(head))));
  write_export_header(config_, *header, bytes);
  return bytes;
}

// A larger window's records may not fit this ring, and folding at this window's phase would be a
// third history: fold all of them in a cache wide enough for any window, and take the result.
Result<std::vector<std::byte>> Cache::Impl::folded_elsewhere(
    std::span<const std::byte> bytes) const {
  CacheConfig wide = config_;
  wide.decode = DecodeMode::kReplay;
  wide.device = registry()[implementation_].info.device;  // where the weights are
  wide.implementation.clear();
  wide.memory.clear();
  wide.slots = wide.blocks = wide.max_rows = 1;
  wide.max_tokens = 0;
  wide.window = kMaxWindow;
  wide.max_step_tokens = kMaxStepTokens;
  wide.materialize_history = true;  // any conv history fits
  Result<std::unique_ptr<Impl>> cache = create(wide);
  if (!cache.ok()) return cache.status();
  const Result<std::int64_t> slot = (*cache)->import_slot(bytes);
  if (!slot.ok()) return slot.status();
  REPLAYSSM_RETURN_IF_ERROR((*cache)->backend_->fold_all((*cache)->table_, *slot));
  Result<std::vector<std::byte>> folded = (*cache)->export_slot(*slot);
  return folded;
}

Result<std::int64_t> Cache::Impl::import_slot(std::span<const std::byte> bytes) {
  REPLAYSSM_RETURN_IF_ERROR(check_closed("import_slot"));
  Result<ExportHeader> header = read_export_header(config_, bytes);
  if (!header.ok()) return header.status();
  if (header->info.committed > 0 &&
      (header->window > config_.window || header->info.committed > table_.ring)) {
    const Result<std::vector<std::byte>> folded = folded_elsewhere(bytes);
    if (!folded.ok()) return folded.status();
    return import_slot(*folded);
  }
  const Result<std::int64_t> slot = acquire(header->info.seed, nullptr);
  if (!slot.ok()) return slot.status();
  const auto head = static_cast<std::size_t>(export_header_bytes(config_));
  const Status status = backend_->import_payload(table_, *slot, header->info, header->conv_valid,
                                                 bytes.subspan(head));
  if (!status.ok()) {
    (void)release(*slot, nullptr);  // the first failure is the one to report
    return status;
  }
  return *slot;
}

Status Cache::Impl::read_info(std::int64_t slot, SlotInfo& info) {
  return backend_->info(table_, {&slot, 1}, {&info, 1});
}

Result<SlotInfo> Cache::Impl::info(std::int64_t slot) {
  REPLAYSSM_RETURN_IF_ERROR(check_held(slot, "info"));
  SlotInfo facts;
  REPLAYSSM_RETURN_IF_ERROR(read_info(slot, facts));
  return facts;
}

Result<std::vector<SlotInfo>> Cache::Impl::info(std::span<const std::int64_t> slots) {
  for (const std::int64_t slot : slots) REPLAYSSM_RETURN_IF_ERROR(check_held(slot, "info"));
  std::vector<SlotInfo> facts(slots.size());
  if (!slots.empty()) REPLAYSSM_RETURN_IF_ERROR(backend_->info(table_, slots, facts));
  return facts;
}

Status Cache::Impl::clear_errors(std::int64_t slot, std::uint32_t bits, void* stream) {
  REPLAYSSM_RETURN_IF_ERROR(check_held(slot, "clear_errors"));
  constexpr std::uint32_t kClearable = kSlotNonFinite | kSlotOutOfRange;
  if ((bits & ~kClearable) != 0) {
    return invalid_argument("clear_errors: bits must be of ", kClearable,
                            " (not finite, out of range; a torn slot can only be released), given ",
                            bits);
  }
  return backend_->clear_errors(table_, slot, bits, stream);
}

std::int64_t Cache::Impl::free_slots() const {
  return std::count(use_.begin(), use_.end(), SlotUse::kFree);
}

}  // namespace replayssm
