// The C interface: each function reads its structs, calls the C++ cache and reports.
// It has over 400 lines because it holds one function a call of the header, in the header's order.
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "capi/capi.hpp"
#include "replayssm/backends.hpp"

namespace {

using namespace replayssm;        // NOLINT(google-build-using-namespace): this file is their C face
using namespace replayssm::capi;  // NOLINT(google-build-using-namespace)

Status need(const void* pointer, const char* name) {
  return pointer != nullptr ? Status() : invalid_argument(name, ": required, given null");
}

// A slot id that no row can have: with it no row is padding.
constexpr std::int64_t kNoSlot = std::numeric_limits<std::int64_t>::min();

// Checks the handle, reads the stream, runs body(cache, stream).
template <typename Body>
replayssm_code call(replayssm_cache* handle, const replayssm_stream* stream, replayssm_error* error,
                    Body body) {
  return guarded(error, [&]() -> Status {
    REPLAYSSM_RETURN_IF_ERROR(need(handle, "cache"));
    void* on = nullptr;
    REPLAYSSM_RETURN_IF_ERROR(read_stream(stream, handle->device, on));
    return body(handle->cache, on);
  });
}

const std::vector<ImplementationInfo>& all_implementations() {
  static const std::vector<ImplementationInfo> all = implementations();
  return all;
}

replayssm_bytes bytes_of(const CacheBytes& counted) {
  replayssm_bytes known{};
  known.state = counted.state;
  known.rings = counted.rings;
  known.conv = counted.conv;
  known.control = counted.control;
  known.scratch = counted.scratch;
  return known;
}

replayssm_slot_info slot_info_of(const SlotInfo& facts) {
  replayssm_slot_info known{};
  known.error = facts.error;
  known.position = facts.position;
  known.block = facts.block;
  known.seed = facts.seed;
  known.committed = facts.committed;
  known.block_references = facts.block_references;
  known.zero = facts.zero ? 1 : 0;
  return known;
}

Status read_layer_inputs(const replayssm_layer_inputs* given, void* stream, LayerInputs& inputs) {
  replayssm_layer_inputs known;
  REPLAYSSM_RETURN_IF_ERROR(read_sized(given, "inputs", known));
  inputs.layer = known.layer;
  inputs.stream = stream;
  REPLAYSSM_RETURN_IF_ERROR(read_tensor(known.value, "value", inputs.value));
  REPLAYSSM_RETURN_IF_ERROR(read_tensor(known.key, "key", inputs.key));
  REPLAYSSM_RETURN_IF_ERROR(read_tensor(known.query, "query", inputs.query));
  REPLAYSSM_RETURN_IF_ERROR(read_tensor(known.gate, "gate", inputs.gate));
  REPLAYSSM_RETURN_IF_ERROR(read_tensor(known.beta, "beta", inputs.beta));
  REPLAYSSM_RETURN_IF_ERROR(read_tensor(known.z, "z", inputs.z));
  return read_tensor(known.out, "out", inputs.out);
}

Status read_states(const replayssm_layer_state* given, std::int32_t count,
                   std::vector<LayerState>& states) {
  if (count < 0 || (count > 0 && given == nullptr)) {
    return invalid_argument("layers: must hold count = ", count, " entries");
  }
  for (std::int32_t i = 0; i < count; ++i) {
    replayssm_layer_state known;
    REPLAYSSM_RETURN_IF_ERROR(read_sized(element_of(given, i), "layers", known));
    LayerState state;
    if (known.key_major != 0 && known.key_major != 1) {
      return invalid_argument("layers: key_major must be 0 or 1, given ", known.key_major);
    }
    state.key_major = known.key_major == 1;
    REPLAYSSM_RETURN_IF_ERROR(read_tensor(known.state, "state", state.state));
    REPLAYSSM_RETURN_IF_ERROR(read_tensor(known.conv, "conv", state.conv));
    states.push_back(state);
  }
  return {};
}

}  // namespace

extern "C" {

int32_t replayssm_version(void) {
  return REPLAYSSM_VERSION_MAJOR * 1000000 + REPLAYSSM_VERSION_MINOR * 1000 +
         REPLAYSSM_VERSION_PATCH;
}

replayssm_code replayssm_cache_tensors(const replayssm_config* config, replayssm_tensor_spec* specs,
                                       int32_t capacity, int32_t* count, replayssm_error* error) {
  return guarded(error, [&]() -> Status {
    REPLAYSSM_RETURN_IF_ERROR(need(count, "count"));
    CacheConfig read;
    REPLAYSSM_RETURN_IF_ERROR(read_config(config, read));
    const Result<std::vector<TensorSpec>> list = cache_tensors(read);
    if (!list.ok()) return list.status();
    *count = static_cast<int32_t>(list->size());
    if (specs == nullptr) return {};
    if (capacity < *count) {
      return replayssm::error(StatusCode::kResourceExhausted, "specs: required room for ", *count,
                              ", given ", capacity);
    }
    for (std::size_t i = 0; i < list->size(); ++i) {
      replayssm_tensor_spec spec{};
      spec.role = static_cast<std::int32_t>((*list)[i].role);
      spec.layer = (*list)[i].layer;
      spec.count = (*list)[i].count;
      spec.bytes = (*list)[i].bytes;
      spec.alignment = (*list)[i].alignment;
      replayssm_tensor_spec* target = element_to_write(specs, static_cast<std::int64_t>(i));
      REPLAYSSM_RETURN_IF_ERROR(write_sized(spec, "specs", target));
    }
    return {};
  });
}

replayssm_code replayssm_cache_bytes(const replayssm_config* config, replayssm_bytes* bytes,
                                     replayssm_error* error) {
  return guarded(error, [&]() -> Status {
    CacheConfig read;
    REPLAYSSM_RETURN_IF_ERROR(read_config(config, read));
    const Result<CacheBytes> counted = cache_bytes(read);
    if (!counted.ok()) return counted.status();
    return write_sized(bytes_of(*counted), "bytes", bytes);
  });
}

replayssm_code replayssm_cache_create(const replayssm_config* config, replayssm_cache** cache,
                                      replayssm_error* error) {
  return guarded(error, [&]() -> Status {
    REPLAYSSM_RETURN_IF_ERROR(need(cache, "cache"));
    CacheConfig read;
    REPLAYSSM_RETURN_IF_ERROR(read_config(config, read));
    Result<Cache> made = Cache::create(read);
    if (!made.ok()) return made.status();
    *cache =
        new replayssm_cache{std::move(made).value(),
                            read.device == "cuda" ? REPLAYSSM_DEVICE_CUDA : REPLAYSSM_DEVICE_CPU};
    return {};
  });
}

void replayssm_cache_destroy(replayssm_cache* cache) { delete cache; }

const char* replayssm_implementation_name(int32_t index, int32_t* available) {
  const std::vector<ImplementationInfo>& all = all_implementations();
  if (index < 0 || static_cast<std::size_t>(index) >= all.size()) return nullptr;
  const ImplementationInfo& info = all[static_cast<std::size_t>(index)];
  if (available != nullptr) *available = info.available ? 1 : 0;
  return info.name.c_str();
}

const char* replayssm_cache_implementation(const replayssm_cache* cache) {
  if (cache == nullptr) return nullptr;
  for (const ImplementationInfo& info : all_implementations()) {
    if (info.name == cache->cache.implementation()) return info.name.c_str();
  }
  return nullptr;
}

int64_t replayssm_cache_free_slots(const replayssm_cache* cache) {
  return cache != nullptr ? cache->cache.free_slots() : 0;
}

int32_t replayssm_cache_ring_length(const replayssm_cache* cache) {
  return cache != nullptr ? cache->cache.ring_length() : 0;
}

replayssm_code replayssm_cache_memory(const replayssm_cache* cache, replayssm_bytes* bytes,
                                      replayssm_error* error) {
  return guarded(error, [&]() -> Status {
    REPLAYSSM_RETURN_IF_ERROR(need(cache, "cache"));
    return write_sized(bytes_of(cache->cache.bytes()), "bytes", bytes);
  });
}

replayssm_code replayssm_state_bytes_per_token(const replayssm_config* config, double step_tokens,
                                               double accepted_tokens, double* bytes,
                                               replayssm_error* error) {
  return guarded(error, [&]() -> Status {
    REPLAYSSM_RETURN_IF_ERROR(need(bytes, "bytes"));
    CacheConfig read;
    REPLAYSSM_RETURN_IF_ERROR(read_config(config, read));
    const Result<double> moved = state_bytes_per_token(read, step_tokens, accepted_tokens);
    if (!moved.ok()) return moved.status();
    *bytes = *moved;
    return {};
  });
}

const char* replayssm_code_name(replayssm_code code) {
  return status_code_name(static_cast<StatusCode>(code)).data();  // of string literals
}

replayssm_code replayssm_acquire(replayssm_cache* cache, uint64_t seed, int64_t* slot,
                                 const replayssm_stream* stream, replayssm_error* error) {
  return call(cache, stream, error, [&](Cache& on, void* handle) -> Status {
    REPLAYSSM_RETURN_IF_ERROR(need(slot, "slot"));
    const Result<std::int64_t> given = on.acquire(seed, handle);
    if (!given.ok()) return given.status();
    *slot = *given;
    return {};
  });
}

replayssm_code replayssm_acquire_slot(replayssm_cache* cache, int64_t slot, uint64_t seed,
                                      const replayssm_stream* stream, replayssm_error* error) {
  return call(cache, stream, error,
              [&](Cache& on, void* handle) { return on.acquire_slot(slot, seed, handle); });
}

replayssm_code replayssm_release(replayssm_cache* cache, int64_t slot,
                                 const replayssm_stream* stream, replayssm_error* error) {
  return call(cache, stream, error,
              [&](Cache& on, void* handle) { return on.release(slot, handle); });
}

replayssm_code replayssm_fork(replayssm_cache* cache, int64_t source, int64_t* slot,
                              const replayssm_stream* stream, replayssm_error* error) {
  return call(cache, stream, error, [&](Cache& on, void* handle) -> Status {
    REPLAYSSM_RETURN_IF_ERROR(need(slot, "slot"));
    const Result<std::int64_t> forked = on.fork(source, handle);
    if (!forked.ok()) return forked.status();
    *slot = *forked;
    return {};
  });
}

replayssm_code replayssm_slot(replayssm_cache* cache, int64_t slot, replayssm_slot_info* info,
                              const replayssm_stream* stream, replayssm_error* error) {
  return call(cache, stream, error, [&](Cache& on, void*) -> Status {
    const Result<SlotInfo> facts = on.info(slot);
    if (!facts.ok()) return facts.status();
    return write_sized(slot_info_of(*facts), "info", info);
  });
}

replayssm_code replayssm_slots(replayssm_cache* cache, const int64_t* slots, int32_t count,
                               replayssm_slot_info* infos, const replayssm_stream* stream,
                               replayssm_error* error) {
  return call(cache, stream, error, [&](Cache& on, void*) -> Status {
    if (count < 0 || (count > 0 && (slots == nullptr || infos == nullptr))) {
      return invalid_argument("slots and infos: must hold count = ", count, " entries");
    }
    if (count == 0) return {};
    const Result<std::vector<SlotInfo>> facts =
        on.info(std::span(slots, static_cast<std::size_t>(count)));
    if (!facts.ok()) return facts.status();
    // A struct_size that no entry can have is refused at the first one.
    for (std::size_t i = 0; i < facts->size(); ++i) {
      replayssm_slot_info* target = element_to_write(infos, static_cast<std::int64_t>(i));
      REPLAYSSM_RETURN_IF_ERROR(write_sized(slot_info_of((*facts)[i]), "infos", target));
    }
    return {};
  });
}

replayssm_code replayssm_clear_errors(replayssm_cache* cache, int64_t slot, uint32_t bits,
                                      const replayssm_stream* stream, replayssm_error* error) {
  return call(cache, stream, error,
              [&](Cache& on, void* handle) { return on.clear_errors(slot, bits, handle); });
}

replayssm_code replayssm_materialize(replayssm_cache* cache,
                                     const replayssm_materialize_item* items, int32_t count,
                                     const replayssm_stream* stream, replayssm_error* error) {
  return call(cache, stream, error, [&](Cache& on, void* handle) -> Status {
    if (count < 0 || (count > 0 && items == nullptr)) {
      return invalid_argument("items: must hold count = ", count, " entries");
    }
    std::vector<MaterializeItem> list;
    for (int32_t i = 0; i < count; ++i) {
      replayssm_materialize_item known;
      REPLAYSSM_RETURN_IF_ERROR(read_sized(element_of(items, i), "items", known));
      list.push_back({known.source, known.position, known.target});
    }
    return on.materialize(list, handle);
  });
}

replayssm_code replayssm_load_state(replayssm_cache* cache, int64_t slot, int64_t position,
                                    const replayssm_layer_state* layers, int32_t count,
                                    const replayssm_stream* stream, replayssm_error* error) {
  return call(cache, stream, error, [&](Cache& on, void* handle) -> Status {
    std::vector<LayerState> states;
    REPLAYSSM_RETURN_IF_ERROR(read_states(layers, count, states));
    return on.load_state(slot, position, states, handle);
  });
}

replayssm_code replayssm_store_state(replayssm_cache* cache, int64_t slot,
                                     const replayssm_layer_state* layers, int32_t count,
                                     const replayssm_stream* stream, replayssm_error* error) {
  return call(cache, stream, error, [&](Cache& on, void* handle) -> Status {
    std::vector<LayerState> states;
    REPLAYSSM_RETURN_IF_ERROR(read_states(layers, count, states));
    return on.store_state(slot, states, handle);
  });
}

replayssm_code replayssm_export(replayssm_cache* cache, int64_t slot, void* bytes, size_t capacity,
                                size_t* size, const replayssm_stream* stream,
                                replayssm_error* error) {
  return call(cache, stream, error, [&](Cache& on, void*) -> Status {
    REPLAYSSM_RETURN_IF_ERROR(need(size, "size"));
    const Result<std::int64_t> needed = on.export_bytes(slot);
    if (!needed.ok()) return needed.status();
    *size = static_cast<size_t>(*needed);
    if (bytes == nullptr) return {};
    if (capacity < *size) {
      return replayssm::error(StatusCode::kResourceExhausted, "bytes: required room for ", *size,
                              ", given ", capacity);
    }
    const Result<std::vector<std::byte>> exported = on.export_slot(slot);
    if (!exported.ok()) return exported.status();
    std::memcpy(bytes, exported->data(), exported->size());
    return {};
  });
}

replayssm_code replayssm_import(replayssm_cache* cache, const void* bytes, size_t size,
                                int64_t* slot, const replayssm_stream* stream,
                                replayssm_error* error) {
  return call(cache, stream, error, [&](Cache& on, void*) -> Status {
    REPLAYSSM_RETURN_IF_ERROR(need(slot, "slot"));
    if (size > 0) REPLAYSSM_RETURN_IF_ERROR(need(bytes, "bytes"));
    const Result<std::int64_t> imported =
        on.import_slot({static_cast<const std::byte*>(bytes), size});
    if (!imported.ok()) return imported.status();
    *slot = *imported;
    return {};
  });
}

replayssm_code replayssm_begin(replayssm_cache* cache, const replayssm_rows* rows,
                               const replayssm_stream* stream, replayssm_error* error) {
  return call(cache, stream, error, [&](Cache& on, void* handle) -> Status {
    replayssm_rows known;
    REPLAYSSM_RETURN_IF_ERROR(read_sized(rows, "rows", known));
    Rows described;
    described.count = known.count;
    described.slots = known.slots;
    described.tokens = known.tokens;
    described.parents = known.parents;
    described.offsets = known.offsets;
    described.prefill = known.prefill;
    described.padding_slot = known.has_padding_slot != 0 ? known.padding_slot : kNoSlot;
    described.stream = handle;
    return on.begin(described);
  });
}

replayssm_code replayssm_fold(replayssm_cache* cache, const replayssm_stream* stream,
                              replayssm_error* error) {
  return call(cache, stream, error, [&](Cache& on, void* handle) { return on.fold(handle); });
}

replayssm_code replayssm_conv(replayssm_cache* cache, const replayssm_conv_inputs* inputs,
                              const replayssm_stream* stream, replayssm_error* error) {
  return call(cache, stream, error, [&](Cache& on, void* handle) -> Status {
    replayssm_conv_inputs known;
    REPLAYSSM_RETURN_IF_ERROR(read_sized(inputs, "inputs", known));
    ConvInputs read;
    read.layer = known.layer;
    read.silu = known.no_silu == 0;
    read.stream = handle;
    REPLAYSSM_RETURN_IF_ERROR(read_tensor(known.in, "in", read.in));
    REPLAYSSM_RETURN_IF_ERROR(read_tensor(known.out, "out", read.out));
    return on.conv(read);
  });
}

replayssm_code replayssm_step(replayssm_cache* cache, const replayssm_layer_inputs* inputs,
                              const replayssm_stream* stream, replayssm_error* error) {
  return call(cache, stream, error, [&](Cache& on, void* handle) -> Status {
    LayerInputs read;
    REPLAYSSM_RETURN_IF_ERROR(read_layer_inputs(inputs, handle, read));
    return on.step(read);
  });
}

replayssm_code replayssm_prefill(replayssm_cache* cache, const replayssm_layer_inputs* inputs,
                                 const replayssm_stream* stream, replayssm_error* error) {
  return call(cache, stream, error, [&](Cache& on, void* handle) -> Status {
    LayerInputs read;
    REPLAYSSM_RETURN_IF_ERROR(read_layer_inputs(inputs, handle, read));
    return on.prefill(read);
  });
}

replayssm_code replayssm_commit(replayssm_cache* cache, const replayssm_accepted* accepted,
                                const replayssm_stream* stream, replayssm_error* error) {
  return call(cache, stream, error, [&](Cache& on, void* handle) -> Status {
    replayssm_accepted known;
    REPLAYSSM_RETURN_IF_ERROR(read_sized(accepted, "accepted", known));
    Accepted read;
    read.count = known.count;
    read.tokens = known.tokens;
    read.nodes = known.nodes;
    read.node_stride = known.node_stride;
    read.stream = handle;
    return on.commit(read);
  });
}

replayssm_code replayssm_abort(replayssm_cache* cache, const replayssm_stream* stream,
                               replayssm_error* error) {
  return call(cache, stream, error, [&](Cache& on, void* handle) { return on.abort(handle); });
}

}  // extern "C"
