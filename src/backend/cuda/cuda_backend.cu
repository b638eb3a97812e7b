// The CUDA backend: joins the rooms to the seam of core/backend.hpp. Cursors, order tables and
// descriptors live on the device; every call is a few launches on the caller's stream. Only
// initialize, info, export, import and conv_valid wait for the device.
// It has over 400 lines because it is one class whose methods are those of the seam, one to one.
#include "backend/cuda/cuda_backend.hpp"

#include <algorithm>
#include <new>

#include "backend/cuda/common/block_ledger.hpp"
#include "backend/cuda/common/grid_limits.hpp"
#include "backend/cuda/common/launch.cuh"
#include "backend/cuda/control/control.hpp"
#include "backend/cuda/fast/rooms.hpp"
#include "backend/cuda/reference/rooms.hpp"
#include "backend/cuda/transfer.hpp"
#include "instances/instances.hpp"
#include "math/law_slots.hpp"

namespace replayssm::cuda {
namespace {

// Makes the cache's device the calling thread's for one call.
class DeviceGuard {
 public:
  explicit DeviceGuard(int ordinal) {
    if (cudaGetDevice(&before_) == cudaSuccess && before_ != ordinal) {
      changed_ = cudaSetDevice(ordinal) == cudaSuccess;
    }
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard() {
    if (changed_) (void)cudaSetDevice(before_);
  }

 private:
  int before_ = 0;
  bool changed_ = false;
};

class CudaBackend final : public Backend {
 public:
  CudaBackend(bool fast, const CacheConfig& config)
      : fast_(fast), checked_(config.checked), ledger_(config.slots, config.blocks) {}
  ~CudaBackend() override {
    const DeviceGuard guard(facts_.ordinal);
    for (void* memory : owned_) (void)cudaFree(memory);
  }

  [[nodiscard]] Status prepare(const CacheConfig& config) {
    REPLAYSSM_RETURN_IF_ERROR(check_grids(config));
    REPLAYSSM_RETURN_IF_ERROR(check(cudaGetDevice(&facts_.ordinal), "asking for the device"));
    REPLAYSSM_RETURN_IF_ERROR(
        check(cudaDeviceGetAttribute(&facts_.multiprocessors, cudaDevAttrMultiProcessorCount,
                                     facts_.ordinal),
              "asking for the device's size"));
    layer_count_ = static_cast<std::int64_t>(config.layers.size());
    for (std::size_t i = 0; i < config.layers.size(); ++i) {
      const LayerShape& shape = config.layers[i];
      const std::string why =
          fast_ ? why_not_fast(config, shape) : std::string("the readable kernels were asked for");
      slow_.push_back(why.empty() ? 0 : 1);
      if (!why.empty()) {
        if (fast_) why_ += concat(why_.empty() ? "" : "; ", "layer ", i, ": ", why);
        continue;
      }
      const std::int32_t parts = shape.value_dim / 16;
      spans_.push_back({fold_items_, static_cast<std::int32_t>(i), parts});
      const std::int64_t of_layer = std::int64_t{shape.heads} * parts;
      fold_each_ = spans_.size() == 1 || fold_each_ == of_layer ? of_layer : 0;
      fold_items_ += of_layer;
      dots_bytes_ = std::max(dots_bytes_, dots_bytes(config, shape.groups));
    }
    return prepare_reference();
  }

  void* allocate(std::int64_t bytes) override {
    const DeviceGuard guard(facts_.ordinal);
    void* memory = nullptr;
    if (cudaMalloc(&memory, static_cast<std::size_t>(bytes)) == cudaSuccess) return memory;
    (void)cudaGetLastError();
    return nullptr;
  }
  void deallocate(void* memory) override {
    const DeviceGuard guard(facts_.ordinal);
    (void)cudaFree(memory);
  }
  [[nodiscard]] std::int64_t scratch_bytes() const override {
    return static_cast<std::int64_t>(sizeof(DeviceWords)) + dots_bytes_ +
           layer_count_ * static_cast<std::int64_t>(sizeof(LayerTable) + sizeof(FoldSpan) + 1);
  }
  [[nodiscard]] std::string explain() const override {
    const std::string level =
        !fast_ ? std::string("readable kernels")
               : concat(spans_.size(), " of ", layer_count_, " layers by the fast kernels",
                        why_.empty() ? "" : "; readable kernels for ", why_);
    return concat("cuda: device ", facts_.ordinal, ", ", facts_.multiprocessors,
                  " multiprocessors, ", level);
  }

  Status initialize(CacheTable& table) override {
    const DeviceGuard guard(facts_.ordinal);
    const auto count = static_cast<std::size_t>(table.layer_count);
    REPLAYSSM_RETURN_IF_ERROR(take(words_, 1));
    REPLAYSSM_RETURN_IF_ERROR(upload(layers_, table.layers, count));
    REPLAYSSM_RETURN_IF_ERROR(upload(device_slow_, slow_.data(), slow_.size()));
    REPLAYSSM_RETURN_IF_ERROR(upload(device_spans_, spans_.data(), spans_.size()));
    if (dots_bytes_ > 0)
      REPLAYSSM_RETURN_IF_ERROR(take(dots_, static_cast<std::size_t>(dots_bytes_ / 4)));
    REPLAYSSM_RETURN_IF_ERROR(initialize_slots(tables(table), nullptr));
    return check(cudaDeviceSynchronize(), "initialize");
  }

  Status acquire(CacheTable& table, std::int64_t slot, std::uint64_t seed, void* stream) override {
    if (!ledger_.can_acquire()) {
      return error(
          StatusCode::kResourceExhausted, "no block is free: ", ledger_.blocks(), " blocks, ",
          ledger_.need(),
          " may be needed by the slots that are held; release a slot or create more blocks");
    }
    const DeviceGuard guard(facts_.ordinal);
    REPLAYSSM_RETURN_IF_ERROR(acquire_slot(tables(table), slot, seed, stream));
    ledger_.acquire(slot);
    return {};
  }
  Status release(CacheTable& table, std::int64_t slot, void* stream) override {
    const DeviceGuard guard(facts_.ordinal);
    REPLAYSSM_RETURN_IF_ERROR(release_slot(tables(table), slot, stream));
    // Inside a forward the block is free only when the forward ends.
    if (open_) {
      leaving_.push_back(slot);
    } else {
      ledger_.release(slot);
    }
    return {};
  }
  Status fork(CacheTable& table, std::int64_t source, std::int64_t target, void* stream) override {
    const DeviceGuard guard(facts_.ordinal);
    REPLAYSSM_RETURN_IF_ERROR(check_whole(table, source, "fork"));
    if (!ledger_.can_fork(source)) {
      return error(StatusCode::kResourceExhausted,
                   "a fork needs enough unreserved blocks to let every sharer fold: ",
                   ledger_.blocks(), " blocks, ", ledger_.need(),
                   " may be needed already (counted as if no fork had been folded apart since the "
                   "last info() call)");
    }
    REPLAYSSM_RETURN_IF_ERROR(fork_cursors(tables(table), source, target, stream));
    ledger_.fork(source, target);
    for (std::int32_t i = 0; i < table.layer_count; ++i)
      REPLAYSSM_RETURN_IF_ERROR(copy_slot(tables(table), table.layers[i], source, target, stream));
    return {};
  }
  Status materialize(CacheTable& table, std::span<const MaterializeItem> items,
                     void* stream) override {
    for (std::size_t i = 0; i < items.size(); ++i) {
      for (std::size_t other = 0; other < items.size(); ++other) {
        if (items[i].target == items[other].source ||
            (other != i && items[i].target == items[other].target)) {
          return invalid_argument("materialize: slot ", items[i].target,
                                  " is the target of one item and named by another");
        }
      }
    }
    const DeviceGuard guard(facts_.ordinal);
    for (const MaterializeItem& item : items) REPLAYSSM_RETURN_IF_ERROR(check_item(table, item));
    return materialize_slots(tables(table), layers(table), items, stream);
  }
  Status load_state(CacheTable& table, std::int64_t slot, std::int64_t position,
                    std::span<const LayerState> states, void* stream) override {
    const DeviceGuard guard(facts_.ordinal);
    REPLAYSSM_RETURN_IF_ERROR(check_fresh(table, slot, "load_state"));
    const bool any_conv = std::any_of(states.begin(), states.end(),
                                      [](const LayerState& s) { return s.conv.present(); });
    for (std::size_t i = 0; i < states.size(); ++i) {
      REPLAYSSM_RETURN_IF_ERROR(
          load_layer(tables(table), table.layers[i], slot, states[i], any_conv, stream));
    }
    return finish_load(tables(table), slot, position, any_conv, stream);
  }
  Status store_state(const CacheTable& table, std::int64_t slot, std::span<const LayerState> states,
                     void* stream) override {
    const DeviceGuard guard(facts_.ordinal);
    REPLAYSSM_RETURN_IF_ERROR(check_whole(table, slot, "store_state"));
    for (std::size_t i = 0; i < states.size(); ++i) {
      REPLAYSSM_RETURN_IF_ERROR(
          store_layer(tables(table), table.layers[i], slot, states[i], stream));
    }
    return {};
  }

  Status info(const CacheTable& table, std::span<const std::int64_t> of,
              std::span<SlotInfo> infos) override {
    const DeviceGuard guard(facts_.ordinal);
    TableMirror mirror;
    REPLAYSSM_RETURN_IF_ERROR(mirror.read(table, false));
    const SlotTable& slots = mirror.slots();
    for (std::size_t i = 0; i < of.size(); ++i) infos[i] = slot_info(slots, of[i]);
    // The truth is at hand: forks that folds have taken apart need no more reserve.
    if (!open_) {
      std::vector<std::int64_t> blocks(slots.block, slots.block + slots.slots);
      ledger_.refresh(blocks);
    }
    return {};
  }
  Status clear_errors(CacheTable& table, std::int64_t slot, std::uint32_t bits,
                      void* stream) override {
    const DeviceGuard guard(facts_.ordinal);
    return cuda::clear_errors(tables(table), slot, bits, stream);
  }
  Status export_payload(const CacheTable& table, std::int64_t slot,
                        std::span<std::byte> bytes) override {
    const DeviceGuard guard(facts_.ordinal);
    REPLAYSSM_RETURN_IF_ERROR(check_whole_now(table, slot, "export_slot"));
    return export_slot_bytes(table, slot, bytes);
  }
  Status import_payload(CacheTable& table, std::int64_t slot, const SlotInfo& info,
                        std::int32_t conv_valid, std::span<const std::byte> bytes) override {
    const DeviceGuard guard(facts_.ordinal);
    REPLAYSSM_RETURN_IF_ERROR(import_slot_bytes(table, slot, info, conv_valid, bytes));
    REPLAYSSM_RETURN_IF_ERROR(
        set_cursors(tables(table), slot, info, std::min(conv_valid, table.conv_history), nullptr));
    // Later calls may use another stream.
    return check(cudaDeviceSynchronize(), "import");
  }
  Status conv_valid(const CacheTable& table, std::int64_t slot, std::int32_t& valid) override {
    const DeviceGuard guard(facts_.ordinal);
    TableMirror mirror;
    REPLAYSSM_RETURN_IF_ERROR(mirror.read(table, false));
    valid = mirror.slots().conv_valid[slot];
    return {};
  }
  Status fold_all(CacheTable& table, std::int64_t slot) override {
    const DeviceGuard guard(facts_.ordinal);
    REPLAYSSM_RETURN_IF_ERROR(fold_all_records(tables(table), layers(table), slot, nullptr));
    REPLAYSSM_RETURN_IF_ERROR(clear_records(tables(table), slot, nullptr));
    return check(cudaDeviceSynchronize(), "fold all");
  }
  [[nodiscard]] bool cursors_on_host() const override { return false; }

  Status check_begin(CacheTable& table, const Rows& rows) override {
    if (!checked_) return {};
    const DeviceGuard guard(facts_.ordinal);
    std::int64_t tokens = 0;
    return check_rows_now(table, rows, tokens);
  }
  // The host knows how many rows there are and whether some may be prompts, nothing more, unless
  // the cache is checked.
  Status begin(CacheTable& table, const Rows& rows) override {
    const DeviceGuard guard(facts_.ordinal);
    std::int64_t tokens = rows.tokens == nullptr && rows.offsets == nullptr ? rows.count : 0;
    if (checked_) REPLAYSSM_RETURN_IF_ERROR(check_rows_now(table, rows, tokens));
    ForwardTable& forward = table.forward;
    forward.count = rows.count;
    forward.tokens = tokens;
    forward.needs_step = rows.count > 0;
    forward.needs_prefill = rows.count > 0 && rows.prefill != nullptr;
    std::uint64_t before = 0;
    REPLAYSSM_RETURN_IF_ERROR(refused(before));
    REPLAYSSM_RETURN_IF_ERROR(begin_rows(tables(table), rows, rows.stream));
    open_ = true;
    auto capture = cudaStreamCaptureStatusNone;
    (void)cudaStreamIsCapturing(static_cast<cudaStream_t>(rows.stream), &capture);
    ledger_.forward(capture != cudaStreamCaptureStatusNone);
    const Status status = none_refused(before, "begin");
    if (!status.ok()) REPLAYSSM_RETURN_IF_ERROR(abandon(table, false, rows.stream));
    return status;
  }
  Status fold(CacheTable& table, void* stream) override {
    if (table.decode != DecodeMode::kReplay || table.forward.count == 0) return {};
    const DeviceGuard guard(facts_.ordinal);
    const Tables all = tables(table);
    if (!spans_.empty()) {
      REPLAYSSM_RETURN_IF_ERROR(fold_fast(all, facts_, device_spans_,
                                          static_cast<std::int32_t>(spans_.size()), fold_items_,
                                          fold_each_, stream));
    }
    if (static_cast<std::int64_t>(spans_.size()) < layer_count_) {
      REPLAYSSM_RETURN_IF_ERROR(
          fold_reference(all, facts_, spans_.empty() ? nullptr : device_slow_, stream));
    }
    return apply_fold(all, stream);
  }
  Status conv(CacheTable& table, const ConvInputs& inputs) override {
    const DeviceGuard guard(facts_.ordinal);
    return conv_reference(tables(table), table.layers[inputs.layer], inputs,
                          table.forward.needs_prefill);
  }
  Status step(CacheTable& table, const LayerInputs& inputs) override {
    const DeviceGuard guard(facts_.ordinal);
    const LayerTable& layer = table.layers[inputs.layer];
    const bool fast = slow_[static_cast<std::size_t>(inputs.layer)] == 0;
    if (table.decode == DecodeMode::kReplay) {
      return fast ? step_fast(tables(table), layer, inputs, dots_)
                  : step_reference(tables(table), layer, inputs);
    }
    return fast ? step_conventional_fast(tables(table), layer, inputs)
                : step_conventional_reference(tables(table), layer, inputs);
  }
  Status prefill(CacheTable& table, const LayerInputs& inputs) override {
    if (!table.forward.needs_prefill) return {};
    const DeviceGuard guard(facts_.ordinal);
    return prefill_reference(tables(table), table.layers[inputs.layer], inputs);
  }
  Status commit(CacheTable& table, const Accepted& accepted) override {
    const DeviceGuard guard(facts_.ordinal);
    if (checked_) REPLAYSSM_RETURN_IF_ERROR(check_accepted_now(table, accepted));
    std::uint64_t before = 0;
    REPLAYSSM_RETURN_IF_ERROR(refused(before));
    REPLAYSSM_RETURN_IF_ERROR(commit_rows(tables(table), accepted));
    // Launched, so ended, even if an error is reported below: the host side goes by the count.
    end_forward(table);
    return none_refused(before, "commit");
  }
  Status abandon(CacheTable& table, bool touched, void* stream) override {
    const DeviceGuard guard(facts_.ordinal);
    REPLAYSSM_RETURN_IF_ERROR(abandon_rows(tables(table), touched, stream));
    end_forward(table);
    return {};
  }

 private:
  // --- checks that wait for the device, made where the cache was created with `checked`
  [[nodiscard]] Status refused(std::uint64_t& count) const {
    if (!checked_) return {};
    DeviceWords words;
    REPLAYSSM_RETURN_IF_ERROR(check(cudaDeviceSynchronize(), "waiting for the device"));
    REPLAYSSM_RETURN_IF_ERROR(
        check(cudaMemcpy(&words, words_, sizeof(words), cudaMemcpyDeviceToHost), "reading words"));
    count = words.refused;
    return {};
  }
  // Host and device go by the same rules; where the host has passed every row, the device must too.
  [[nodiscard]] Status none_refused(std::uint64_t before, const char* call) const {
    std::uint64_t after = before;
    REPLAYSSM_RETURN_IF_ERROR(refused(after));
    if (after == before) return {};
    return error(StatusCode::kInternal, call, ": the device has refused ", after - before,
                 " rows that the host's check had passed");
  }
  [[nodiscard]] static Status check_whole_now(const CacheTable& table, std::int64_t slot,
                                              const char* call) {
    TableMirror mirror;
    REPLAYSSM_RETURN_IF_ERROR(mirror.read(table, false));
    if ((mirror.slots().error[slot] & kSlotTorn) == 0) return {};
    return failed_precondition(call, ": slot ", slot,
                               " is torn by an abandoned forward; only release is legal");
  }
  [[nodiscard]] Status check_whole(const CacheTable& table, std::int64_t slot,
                                   const char* call) const {
    return checked_ ? check_whole_now(table, slot, call) : Status();
  }
  [[nodiscard]] Status check_fresh(const CacheTable& table, std::int64_t slot,
                                   const char* call) const {
    if (!checked_) return {};
    TableMirror mirror;
    REPLAYSSM_RETURN_IF_ERROR(mirror.read(table, false));
    if (is_fresh(mirror.table(), slot)) return {};
    return failed_precondition(call, ": slot ", slot, " must be fresh, given one at position ",
                               mirror.slots().position[slot]);
  }
  [[nodiscard]] Status check_item(const CacheTable& table, const MaterializeItem& item) const {
    if (!checked_) return {};
    REPLAYSSM_RETURN_IF_ERROR(check_whole_now(table, item.source, "materialize"));
    REPLAYSSM_RETURN_IF_ERROR(check_fresh(table, item.target, "materialize"));
    TableMirror mirror;
    REPLAYSSM_RETURN_IF_ERROR(mirror.read(table, false));
    const std::int64_t end = mirror.slots().position[item.source];
    if (!position_is_kept(mirror.table(), item.source, item.position)) {
      return error(StatusCode::kOutOfRange, "materialize: position must be ",
                   end - mirror.slots().committed[item.source], " to ", end,
                   " (the checkpoint and the end of slot ", item.source, "), given ",
                   item.position);
    }
    std::int32_t width = 1;
    for (const LayerTable& layer : layers(table)) width = std::max(width, layer.shape.conv_width);
    const std::int64_t back = end - item.position;
    if (conv_is_kept(table, back, width)) return {};
    return failed_precondition(
        "materialize: conv inputs behind position ", item.position,
        " are not kept; create the cache with materialize_history to reach every position");
  }

  [[nodiscard]] Tables tables(const CacheTable& table) const {
    Tables all = {table, words_};
    all.table.layers = layers_;
    return all;
  }
  [[nodiscard]] static std::span<const LayerTable> layers(const CacheTable& table) {
    return {table.layers, static_cast<std::size_t>(table.layer_count)};
  }
  void end_forward(CacheTable& table) {
    table.forward.count = 0;
    open_ = false;
    for (const std::int64_t slot : leaving_) ledger_.release(slot);
    leaving_.clear();
  }

  template <typename T>
  [[nodiscard]] Status take(T*& pointer, std::size_t count) {
    void* memory = allocate(static_cast<std::int64_t>(std::max<std::size_t>(count, 1) * sizeof(T)));
    if (memory == nullptr) {
      return error(StatusCode::kResourceExhausted, "no device memory for ", count * sizeof(T),
                   " bytes of scratch");
    }
    owned_.push_back(memory);
    pointer = static_cast<T*>(memory);
    return {};
  }
  template <typename T>
  [[nodiscard]] Status upload(T*& pointer, const T* source, std::size_t count) {
    REPLAYSSM_RETURN_IF_ERROR(take(pointer, count));
    return check(cudaMemcpy(pointer, source, count * sizeof(T), cudaMemcpyHostToDevice),
                 "uploading the layer tables");
  }

  bool fast_;
  bool checked_;  // wait for the device and report what it would only mark
  BlockLedger ledger_;
  DeviceFacts facts_;
  std::int64_t layer_count_ = 0;
  std::vector<std::uint8_t> slow_;  // [layers] 1: by the readable kernels
  std::vector<FoldSpan> spans_;
  std::int64_t fold_items_ = 0;
  std::int64_t dots_bytes_ = 0;
  std::int64_t fold_each_ = 0;  // of each layer, 0 where they differ
  std::string why_;
  bool open_ = false;
  std::vector<std::int64_t> leaving_;

  std::vector<void*> owned_;
  DeviceWords* words_ = nullptr;
  LayerTable* layers_ = nullptr;
  std::uint8_t* device_slow_ = nullptr;
  FoldSpan* device_spans_ = nullptr;
  float* dots_ = nullptr;  // null: none are kept
};

template <bool kFast>
Result<std::unique_ptr<Backend>> make(const BackendOptions& options) {
  auto backend = std::make_unique<CudaBackend>(kFast, *options.config);
  REPLAYSSM_RETURN_IF_ERROR(backend->prepare(*options.config));
  return std::unique_ptr<Backend>(std::move(backend));
}

// Empty, or why no kernel of this build can run here.
std::string why_unavailable() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess) {
    (void)cudaGetLastError();
    return concat("no CUDA device: ", cudaGetErrorString(code));
  }
  int ordinal = 0;
  int major = 0;
  int minor = 0;
  if (count == 0 || cudaGetDevice(&ordinal) != cudaSuccess) return "no CUDA device";
  (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal);
  (void)cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal);
  if (major == 9 && minor == 0) return {};
  return concat("the build has code for compute capability 9.0, the device has ", major, ".",
                minor);
}

Implementation describe(const instances::Case& supported, int priority, const std::string& why,
                        Result<std::unique_ptr<Backend>> (*create)(const BackendOptions&)) {
  Implementation implementation;
  implementation.info.name = supported.implementation;
  implementation.info.device = "cuda";
  implementation.info.decode = supported.decode;
  implementation.info.rules.assign(supported.rules.begin(), supported.rules.end());
  implementation.info.formats.assign(supported.formats.begin(), supported.formats.end());
  implementation.info.activations.assign(supported.activations.begin(),
                                         supported.activations.end());
  implementation.info.available = why.empty();
  implementation.info.unavailable_because = why;
  implementation.info.priority = priority;
  implementation.create = create;
  return implementation;
}

}  // namespace

std::span<const Implementation> cuda_implementations() {
  static const std::vector<Implementation> all = [] {
    const std::string why = why_unavailable();
    return std::vector<Implementation>{
        describe(instances::kCuda, 30, why, make<true>),
        describe(instances::kCudaConventional, 30, why, make<true>),
        describe(instances::kCudaReference, 5, why, make<false>),
        describe(instances::kCudaReferenceConventional, 5, why, make<false>),
    };
  }();
  return all;
}

}  // namespace replayssm::cuda
