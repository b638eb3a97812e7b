// The CPU backend: joins the rooms to the seam of core/backend.hpp.
#include "backend/cpu/cpu_backend.hpp"

#include <unistd.h>

#include <algorithm>
#include <new>
#include <thread>

#include "backend/cpu/records_copy.hpp"
#include "backend/cpu/rooms.hpp"
#include "backend/cpu/thread_pool.hpp"
#include "core/layout.hpp"
#include "core/text.hpp"
#include "instances/instances.hpp"
#include "math/law_slots.hpp"

namespace replayssm::cpu {
namespace {

struct AlignedDelete {
  void operator()(float* memory) const {
    ::operator delete[](memory, std::align_val_t{kTensorAlignment});
  }
};

class CpuBackend final : public Backend {
 public:
  CpuBackend(const Level& level, DecodeMode decode) : decode_(decode) { context_.level = &level; }

  [[nodiscard]] Status prepare(const BackendOptions& options) {
    const CacheConfig& config = *options.config;
    if (config.parallel.run != nullptr) {
      context_.threads = config.parallel;
    } else {
      const int threads = config.threads > 0
                              ? config.threads
                              : static_cast<int>(std::thread::hardware_concurrency());
      pool_ = std::make_unique<ThreadPool>(std::max(threads, 1));
      context_.threads = pool_->parallel_for();
    }
    context_.scratch_floats =
        align_up(scratch_floats(options.ring, config.max_step_tokens), kTensorAlignment);
    const auto floats =
        static_cast<std::size_t>(context_.scratch_floats * context_.threads.workers);
    scratch_.reset(new (std::align_val_t{kTensorAlignment}, std::nothrow) float[floats]);
    if (scratch_ == nullptr) {
      return error(StatusCode::kResourceExhausted, "no memory for ", floats * sizeof(float),
                   " bytes of scratch");
    }
    context_.scratch = scratch_.get();
    // Virtual machines often report the whole socket's, which is not theirs alone; others nothing.
    std::int64_t known = 0;
#ifdef _SC_LEVEL3_CACHE_SIZE  // not every C library has it
    known = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
    context_.cache_bytes = std::clamp(known, std::int64_t{8} << 20, std::int64_t{32} << 20);
    return {};
  }

  void* allocate(std::int64_t bytes) override {
    return ::operator new[](static_cast<std::size_t>(bytes), std::align_val_t{kTensorAlignment},
                            std::nothrow);
  }
  void deallocate(void* memory) override {
    ::operator delete[](memory, std::align_val_t{kTensorAlignment});
  }
  [[nodiscard]] std::int64_t scratch_bytes() const override {
    return context_.scratch_floats * context_.threads.workers *
           static_cast<std::int64_t>(sizeof(float));
  }
  [[nodiscard]] std::string explain() const override {
    return concat("cpu: ", context_.threads.workers,
                  pool_ != nullptr ? " threads of the library" : " threads of the caller", ", ",
                  scratch_bytes(), " bytes of scratch");
  }

  Status initialize(CacheTable& table) override {
    initialize_slots(table);
    return {};
  }
  Status acquire(CacheTable& table, std::int64_t slot, std::uint64_t seed,
                 void* /*stream*/) override {
    return acquire_slot(table, slot, seed);
  }
  Status release(CacheTable& table, std::int64_t slot, void* /*stream*/) override {
    release_slot(table, slot);
    return {};
  }
  Status fork(CacheTable& table, std::int64_t source, std::int64_t target,
              void* /*stream*/) override {
    if ((table.slots.error[source] & kSlotTorn) != 0) {
      return failed_precondition("fork: slot ", source, " is torn; only release is legal");
    }
    REPLAYSSM_RETURN_IF_ERROR(fork_slot(table, source, target));
    copy_records(table, source, target, table.slots.committed[source]);
    (void)copy_conv(table, source, target, 0);
    return {};
  }
  Status materialize(CacheTable& table, std::span<const MaterializeItem> items,
                     void* /*stream*/) override {
    return materialize_slots(context_, table, items);
  }
  Status load_state(CacheTable& table, std::int64_t slot, std::int64_t position,
                    std::span<const LayerState> layers, void* /*stream*/) override {
    load_slot(context_, table, slot, position, layers);
    return {};
  }
  Status store_state(const CacheTable& table, std::int64_t slot, std::span<const LayerState> layers,
                     void* /*stream*/) override {
    store_slot(context_, table, slot, layers);
    return {};
  }
  Status info(const CacheTable& table, std::span<const std::int64_t> of,
              std::span<SlotInfo> infos) override {
    for (std::size_t i = 0; i < of.size(); ++i) infos[i] = slot_info(table.slots, of[i]);
    return {};
  }
  Status clear_errors(CacheTable& table, std::int64_t slot, std::uint32_t bits,
                      void* /*stream*/) override {
    table.slots.error[slot] &= ~clearable_errors(bits);
    return {};
  }
  Status export_payload(const CacheTable& table, std::int64_t slot,
                        std::span<std::byte> bytes) override {
    export_slot_bytes(table, slot, bytes);
    return {};
  }
  Status import_payload(CacheTable& table, std::int64_t slot, const SlotInfo& info,
                        std::int32_t conv_valid, std::span<const std::byte> bytes) override {
    import_slot_bytes(table, slot, info, conv_valid, bytes);
    return {};
  }
  Status conv_valid(const CacheTable& table, std::int64_t slot, std::int32_t& valid) override {
    valid = table.slots.conv_valid[slot];
    return {};
  }
  Status fold_all(CacheTable& table, std::int64_t slot) override {
    fold_all_records(context_, table, slot);
    return {};
  }

  Status check_begin(CacheTable& table, const Rows& rows) override {
    return cpu::check_begin(table, rows);
  }
  Status begin(CacheTable& table, const Rows& rows) override { return begin_rows(table, rows); }
  Status fold(CacheTable& table, void* /*stream*/) override {
    fold_rows(context_, table);
    apply_fold(table);
    return {};
  }
  Status conv(CacheTable& table, const ConvInputs& inputs) override {
    conv_rows(context_, table, inputs);
    return {};
  }
  Status step(CacheTable& table, const LayerInputs& inputs) override {
    if (decode_ == DecodeMode::kReplay) {
      step_replay(context_, table, inputs);
    } else {
      step_conventional(context_, table, inputs);
    }
    return {};
  }
  Status prefill(CacheTable& table, const LayerInputs& inputs) override {
    prefill_rows(context_, table, inputs);
    return {};
  }
  Status commit(CacheTable& table, const Accepted& accepted) override {
    return commit_rows(table, accepted);
  }
  Status abandon(CacheTable& table, bool touched, void* /*stream*/) override {
    abandon_rows(table, touched);
    return {};
  }

 private:
  DecodeMode decode_;
  Context context_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<float[], AlignedDelete> scratch_;
};

// Makes a backend of one level, which is null where the build or the machine lacks it.
template <const Level* (*kLevel)(), DecodeMode kDecode>
Result<std::unique_ptr<Backend>> make(const BackendOptions& options) {
  auto backend = std::make_unique<CpuBackend>(*kLevel(), kDecode);
  REPLAYSSM_RETURN_IF_ERROR(backend->prepare(options));
  return std::unique_ptr<Backend>(std::move(backend));
}

const Level* scalar() { return &scalar_level(); }

// Both decode modes of a level. `needs` names the instructions for the message.
template <const Level* (*kLevel)()>
void add_level(std::vector<Implementation>& all, const instances::CpuLevel& supported) {
  for (const DecodeMode decode : {DecodeMode::kReplay, DecodeMode::kConventional}) {
    const bool replay = decode == DecodeMode::kReplay;
    Implementation implementation;
    implementation.info.name = replay ? supported.replay : supported.conventional;
    implementation.info.device = "cpu";
    implementation.info.decode = decode;
    implementation.info.rules.assign(instances::kAllRules.begin(), instances::kAllRules.end());
    implementation.info.formats.assign(instances::kF32Only.begin(), instances::kF32Only.end());
    implementation.info.activations.assign(instances::kAllActivations.begin(),
                                           instances::kAllActivations.end());
    implementation.info.available = kLevel() != nullptr;
    if (!implementation.info.available) {
      implementation.info.unavailable_because = concat("needs ", supported.needs);
    }
    implementation.info.priority = supported.priority;
    implementation.create =
        replay ? make<kLevel, DecodeMode::kReplay> : make<kLevel, DecodeMode::kConventional>;
    all.push_back(implementation);
  }
}

}  // namespace

std::span<const Implementation> cpu_implementations() {
  static const std::vector<Implementation> all = [] {
    std::vector<Implementation> list;
    add_level<avx512_level>(list, instances::kAvx512);
    add_level<avx2_level>(list, instances::kAvx2);
    add_level<scalar>(list, instances::kScalar);
    return list;
  }();
  return all;
}

}  // namespace replayssm::cpu
