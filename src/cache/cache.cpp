// The host side of the cache: call order, shapes, memory. What happens to slots and tensors is the
// backend's.
#include "replayssm/cache.hpp"

#include <algorithm>
#include <cstring>

#include "backend/registry/registry.hpp"
#include "cache/cache_impl.hpp"
#include "cache/format.hpp"
#include "core/checks.hpp"
#include "core/guard.hpp"
#include "core/layout.hpp"
#include "core/text.hpp"
#include "plan/choose.hpp"
#include "plan/traffic.hpp"

namespace replayssm {

Result<std::vector<TensorSpec>> cache_tensors(const CacheConfig& config) {
  return guard([&]() -> Result<std::vector<TensorSpec>> {
    REPLAYSSM_RETURN_IF_ERROR(check_config(config));
    return tensor_specs(with_defaults(config));
  });
}

Result<CacheBytes> cache_bytes(const CacheConfig& config) {
  return guard([&]() -> Result<CacheBytes> {
    REPLAYSSM_RETURN_IF_ERROR(check_config(config));
    const CacheConfig full = with_defaults(config);
    const Result<Plan> plan = choose({&full}, registry());
    if (!plan.ok()) return plan.status();
    const Result<std::unique_ptr<Backend>> backend =
        registry()[plan->implementation].create({&full, ring_length(full)});
    if (!backend.ok()) return backend.status();
    return count_bytes(full, **backend);
  });
}

Result<double> state_bytes_per_token(const CacheConfig& config, double step_tokens,
                                     double accepted_tokens) {
  return guard([&]() -> Result<double> {
    REPLAYSSM_RETURN_IF_ERROR(check_config(config));
    if (!(step_tokens >= 1.0) || !(step_tokens <= kMaxStepTokens) || !(accepted_tokens > 0.0) ||
        !(accepted_tokens <= step_tokens)) {
      return invalid_argument(
          "required 0 < accepted_tokens <= step_tokens and 1 <= step_tokens <= ", kMaxStepTokens,
          ", given ", accepted_tokens, " and ", step_tokens);
    }
    return traffic_per_token(config, step_tokens, accepted_tokens);
  });
}

Result<Cache> Cache::create(const CacheConfig& config) {
  return guard([&]() -> Result<Cache> {
    Result<std::unique_ptr<Impl>> impl = Impl::create(config);
    if (!impl.ok()) return impl.status();
    return Cache(std::move(impl).value());
  });
}

Cache::Cache(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Cache::Cache(Cache&&) noexcept = default;
Cache& Cache::operator=(Cache&&) noexcept = default;
Cache::~Cache() = default;

Result<std::int64_t> Cache::acquire(std::uint64_t seed, void* stream) {
  return guard([&] { return impl_->acquire(seed, stream); });
}
Status Cache::acquire_slot(std::int64_t slot, std::uint64_t seed, void* stream) {
  return guard([&] { return impl_->acquire_slot(slot, seed, stream); });
}
Status Cache::release(std::int64_t slot, void* stream) {
  return guard([&] { return impl_->release(slot, stream); });
}
Result<std::int64_t> Cache::fork(std::int64_t source, void* stream) {
  return guard([&] { return impl_->fork(source, stream); });
}
Status Cache::materialize(std::span<const MaterializeItem> items, void* stream) {
  return guard([&] { return impl_->materialize(items, stream); });
}
Status Cache::load_state(std::int64_t slot, std::int64_t position,
                         std::span<const LayerState> layers, void* stream) {
  return guard([&] { return impl_->load_state(slot, position, layers, stream); });
}
Status Cache::store_state(std::int64_t slot, std::span<const LayerState> layers,
                          void* stream) const {
  return guard([&] { return impl_->store_state(slot, layers, stream); });
}
Result<std::vector<std::byte>> Cache::export_slot(std::int64_t slot) const {
  return guard([&] { return impl_->export_slot(slot); });
}
Result<std::int64_t> Cache::export_bytes(std::int64_t slot) const {
  return guard([&]() -> Result<std::int64_t> {
    const Result<ExportHeader> header = impl_->export_header(slot);
    if (!header.ok()) return header.status();
    return export_header_bytes(impl_->config()) + header->payload_bytes;
  });
}
Result<std::int64_t> Cache::import_slot(std::span<const std::byte> bytes) {
  return guard([&] { return impl_->import_slot(bytes); });
}
Result<SlotInfo> Cache::info(std::int64_t slot) const {
  return guard([&] { return impl_->info(slot); });
}
Result<std::vector<SlotInfo>> Cache::info(std::span<const std::int64_t> slots) const {
  return guard([&] { return impl_->info(slots); });
}
Status Cache::clear_errors(std::int64_t slot, std::uint32_t bits, void* stream) {
  return guard([&] { return impl_->clear_errors(slot, bits, stream); });
}

Status Cache::begin(const Rows& rows) {
  return guard([&] { return impl_->begin(rows); });
}
Status Cache::fold(void* stream) {
  return guard([&] { return impl_->fold(stream); });
}
Status Cache::conv(const ConvInputs& inputs) {
  return guard([&] { return impl_->conv(inputs); });
}
Status Cache::step(const LayerInputs& inputs) {
  return guard([&] { return impl_->run_layer(inputs, LayerCall::kStep); });
}
Status Cache::prefill(const LayerInputs& inputs) {
  return guard([&] { return impl_->run_layer(inputs, LayerCall::kPrefill); });
}
Status Cache::commit(const Accepted& accepted) {
  return guard([&] { return impl_->commit(accepted); });
}
Status Cache::abort(void* stream) {
  return guard([&] { return impl_->abort(stream); });
}

CacheBytes Cache::bytes() const { return impl_->bytes(); }
const CacheConfig& Cache::config() const { return impl_->config(); }
std::int32_t Cache::ring_length() const { return impl_->ring_length(); }
std::int64_t Cache::free_slots() const { return impl_->free_slots(); }
std::string_view Cache::implementation() const { return impl_->implementation(); }
std::string Cache::explain() const { return impl_->explain(); }

}  // namespace replayssm
