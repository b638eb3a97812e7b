// Creating a cache: checks, choice of an implementation, memory.
#include <algorithm>
#include <cstring>

#include "backend/registry/registry.hpp"
#include "cache/cache_impl.hpp"
#include "core/checks.hpp"
#include "core/control.hpp"
#include "core/export_order.hpp"
#include "core/layout.hpp"
#include "core/text.hpp"
#include "plan/choose.hpp"

namespace replayssm {
namespace {

Status check_lent(const TensorSpec& spec, const TensorMemory& memory, std::size_t index) {
  if (memory.base == nullptr ||
      reinterpret_cast<std::uintptr_t>(memory.base) % spec.alignment != 0) {
    return invalid_argument("memory[", index, "]: base must be aligned to ", spec.alignment,
                            " bytes and not null");
  }
  if (spec.count > 1 &&
      (memory.stride_bytes < spec.bytes || memory.stride_bytes % spec.alignment != 0)) {
    return invalid_argument("memory[", index, "]: stride_bytes must be at least ", spec.bytes,
                            " and a multiple of ", spec.alignment, ", given ", memory.stride_bytes);
  }
  // Addresses are computed as base + i * stride_bytes.
  constexpr std::int64_t kMost = std::int64_t{1} << 60;
  if (spec.count > 1 && memory.stride_bytes > kMost / spec.count) {
    return invalid_argument("memory[", index, "]: ", spec.count,
                            " times stride_bytes must be at most 2^60, given ",
                            memory.stride_bytes);
  }
  return {};
}

}  // namespace

CacheBytes count_bytes(const CacheConfig& config, const Backend& backend) {
  CacheBytes bytes;
  for (const TensorSpec& spec : tensor_specs(config)) {
    const std::int64_t all = spec.count * align_up(spec.bytes, spec.alignment);
    switch (spec.role) {
      case TensorRole::kState: bytes.state += all; break;
      case TensorRole::kConv: bytes.conv += all; break;
      case TensorRole::kControl: bytes.control += all; break;
      default: bytes.rings += all; break;
    }
  }
  bytes.scratch = backend.scratch_bytes();
  return bytes;
}

Result<std::unique_ptr<Cache::Impl>> Cache::Impl::create(const CacheConfig& config) {
  REPLAYSSM_RETURN_IF_ERROR(check_config(config));
  std::unique_ptr<Impl> impl(new Impl());
  impl->config_ = with_defaults(config);
  const Result<Plan> plan = choose({&impl->config_}, registry());
  if (!plan.ok()) return plan.status();
  impl->implementation_ = plan->implementation;
  impl->why_ = plan->why;
  Result<std::unique_ptr<Backend>> backend = registry()[plan->implementation].create(
      {&impl->config_, replayssm::ring_length(impl->config_)});
  if (!backend.ok()) return backend.status();
  impl->backend_ = std::move(backend).value();
  REPLAYSSM_RETURN_IF_ERROR(impl->place_memory());
  REPLAYSSM_RETURN_IF_ERROR(impl->backend_->initialize(impl->table_));
  return impl;
}

Cache::Impl::~Impl() {
  for (void* memory : owned_) backend_->deallocate(memory);
}

Status Cache::Impl::place_memory() {
  const std::vector<TensorSpec> specs = tensor_specs(config_);
  std::vector<TensorMemory> memory = config_.memory;
  if (memory.empty()) {
    owned_.reserve(specs.size());  // nothing may throw between an allocation and its owner
    for (const TensorSpec& spec : specs) {
      const std::int64_t stride = align_up(spec.bytes, spec.alignment);
      void* base = backend_->allocate(spec.count * stride);
      if (base == nullptr) {
        return error(StatusCode::kResourceExhausted, "no memory for ", spec.count * stride,
                     " bytes (layer ", spec.layer, "); create fewer slots or a smaller window");
      }
      owned_.push_back(base);
      memory.push_back({base, stride});
    }
  } else {
    if (memory.size() != specs.size()) {
      return invalid_argument("memory must hold one entry a tensor of cache_tensors(): required ",
                              specs.size(), ", given ", memory.size());
    }
    for (std::size_t i = 0; i < specs.size(); ++i)
      REPLAYSSM_RETURN_IF_ERROR(check_lent(specs[i], memory[i], i));
  }

  layers_.resize(config_.layers.size());
  progress_.resize(config_.layers.size());
  use_.assign(static_cast<std::size_t>(config_.slots), SlotUse::kFree);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    layers_[i].shape = config_.layers[i];
    layers_[i].weights = config_.weights[i];
  }
  table_.decode = config_.decode;
  table_.format = config_.format;
  table_.activations = config_.activations;
  table_.update = config_.update;
  table_.window = config_.window;
  table_.max_step_tokens = config_.max_step_tokens;
  table_.ring = replayssm::ring_length(config_);
  table_.conv_history = conv_history(config_);
  table_.conv_ring = table_.conv_history > 0 ? table_.conv_history + config_.max_step_tokens : 0;
  table_.max_rows = config_.max_rows;
  table_.max_tokens = config_.max_tokens;
  table_.layers = layers_.data();
  table_.layer_count = static_cast<std::int32_t>(layers_.size());
  table_.slots.slots = config_.slots;
  table_.slots.blocks = config_.blocks;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].role == TensorRole::kControl) {
      place_control(table_, static_cast<std::byte*>(memory[i].base));
    } else {
      memory_of(layers_[static_cast<std::size_t>(specs[i].layer)], specs[i].role) = memory[i];
    }
  }
  return {};
}

std::string_view Cache::Impl::implementation() const {
  return registry()[implementation_].info.name;
}

std::string Cache::Impl::explain() const {
  return concat(why_, "\nwindow ", config_.window, ", up to ", config_.max_step_tokens,
                " tokens a step, ring of ", table_.ring, " records, ", config_.slots, " slots, ",
                config_.blocks, " blocks\n", backend_->explain());
}

}  // namespace replayssm
