// A backend that reports an error after it has ended the forward, as a device can: the host side
// has ended the forward too, so that both go on in step. The program brings its own list of
// implementations, which wraps those of the library.
#include "backend/cpu/cpu_backend.hpp"
#include "backend/registry/registry.hpp"
#include "tests/core/small_cache.hpp"

namespace replayssm {
namespace {

// What the next commit says before or after it has been carried out.
enum class Failure : std::uint8_t { kNone, kBefore, kAfter };
Failure next_commit = Failure::kNone;

class Late final : public Backend {
 public:
  explicit Late(std::unique_ptr<Backend> inner) : inner_(std::move(inner)) {}

  void* allocate(std::int64_t bytes) override { return inner_->allocate(bytes); }
  void deallocate(void* memory) override { inner_->deallocate(memory); }
  [[nodiscard]] std::int64_t scratch_bytes() const override { return inner_->scratch_bytes(); }
  [[nodiscard]] std::string explain() const override { return inner_->explain(); }
  Status initialize(CacheTable& table) override { return inner_->initialize(table); }
  Status acquire(CacheTable& table, std::int64_t slot, std::uint64_t seed, void* stream) override {
    return inner_->acquire(table, slot, seed, stream);
  }
  Status release(CacheTable& table, std::int64_t slot, void* stream) override {
    return inner_->release(table, slot, stream);
  }
  Status fork(CacheTable& table, std::int64_t source, std::int64_t target, void* stream) override {
    return inner_->fork(table, source, target, stream);
  }
  Status materialize(CacheTable& table, std::span<const MaterializeItem> items,
                     void* stream) override {
    return inner_->materialize(table, items, stream);
  }
  Status load_state(CacheTable& table, std::int64_t slot, std::int64_t position,
                    std::span<const LayerState> layers, void* stream) override {
    return inner_->load_state(table, slot, position, layers, stream);
  }
  Status store_state(const CacheTable& table, std::int64_t slot, std::span<const LayerState> layers,
                     void* stream) override {
    return inner_->store_state(table, slot, layers, stream);
  }
  Status info(const CacheTable& table, std::span<const std::int64_t> of,
              std::span<SlotInfo> infos) override {
    return inner_->info(table, of, infos);
  }
  Status clear_errors(CacheTable& table, std::int64_t slot, std::uint32_t bits,
                      void* stream) override {
    return inner_->clear_errors(table, slot, bits, stream);
  }
  Status export_payload(const CacheTable& table, std::int64_t slot,
                        std::span<std::byte> bytes) override {
    return inner_->export_payload(table, slot, bytes);
  }
  Status import_payload(CacheTable& table, std::int64_t slot, const SlotInfo& info,
                        std::int32_t conv_valid, std::span<const std::byte> bytes) override {
    return inner_->import_payload(table, slot, info, conv_valid, bytes);
  }
  Status conv_valid(const CacheTable& table, std::int64_t slot, std::int32_t& valid) override {
    return inner_->conv_valid(table, slot, valid);
  }
  Status fold_all(CacheTable& table, std::int64_t slot) override {
    return inner_->fold_all(table, slot);
  }
  Status check_begin(CacheTable& table, const Rows& rows) override {
    return inner_->check_begin(table, rows);
  }
  Status begin(CacheTable& table, const Rows& rows) override { return inner_->begin(table, rows); }
  Status fold(CacheTable& table, void* stream) override { return inner_->fold(table, stream); }
  Status conv(CacheTable& table, const ConvInputs& inputs) override {
    return inner_->conv(table, inputs);
  }
  Status step(CacheTable& table, const LayerInputs& inputs) override {
    return inner_->step(table, inputs);
  }
  Status prefill(CacheTable& table, const LayerInputs& inputs) override {
    return inner_->prefill(table, inputs);
  }
  Status commit(CacheTable& table, const Accepted& accepted) override {
    const Failure failure = std::exchange(next_commit, Failure::kNone);
    const Status failed(StatusCode::kDeviceError, "commit: the device has failed");
    if (failure == Failure::kBefore) return failed;
    REPLAYSSM_RETURN_IF_ERROR(inner_->commit(table, accepted));
    return failure == Failure::kAfter ? failed : Status();
  }
  Status abandon(CacheTable& table, bool touched, void* stream) override {
    return inner_->abandon(table, touched, stream);
  }

 private:
  std::unique_ptr<Backend> inner_;
};

const Implementation& wrapped() { return cpu::cpu_implementations().back(); }

}  // namespace

std::span<const Implementation> registry() {
  static const Implementation only = {
      wrapped().info, [](const BackendOptions& options) -> Result<std::unique_ptr<Backend>> {
        Result<std::unique_ptr<Backend>> inner = wrapped().create(options);
        if (!inner.ok()) return inner.status();
        return std::unique_ptr<Backend>(std::make_unique<Late>(std::move(*inner)));
      }};
  return {&only, 1};
}
std::vector<ImplementationInfo> implementations() { return {registry()[0].info}; }
std::string_view version() { return "a test's"; }

namespace laws {
namespace {

// Slots 0 and 1 run a token; slot 1 is released while the forward is open.
Status forward(SmallCache& small, Failure failure) {
  REPLAYSSM_RETURN_IF_ERROR(small.open({0, 1}, {1, 1}));
  REPLAYSSM_RETURN_IF_ERROR(small.run_layers());
  REPLAYSSM_RETURN_IF_ERROR(small.cache().release(1));
  next_commit = failure;
  Accepted accepted;
  accepted.count = 2;
  return small.cache().commit(accepted);
}

TEST(CoreLateError, EndsTheForwardWhereTheBackendHas) {
  SmallCache small(wrapped().info.name);
  Cache& cache = small.cache();
  const std::int64_t free = cache.free_slots();
  const std::int64_t position = cache.info(0)->position;
  EXPECT_EQ(forward(small, Failure::kAfter).code(), StatusCode::kDeviceError);
  EXPECT_EQ(cache.info(0)->position, position + 1);
  EXPECT_EQ(cache.free_slots(), free + 1) << "the slot that was leaving";
  Accepted accepted;
  accepted.count = 2;
  EXPECT_EQ(cache.commit(accepted).code(), StatusCode::kFailedPrecondition) << "is closed";
  accepted.count = 0;
  EXPECT_EQ(cache.commit(accepted).code(), StatusCode::kFailedPrecondition) << "is closed";
  EXPECT_TRUE(cache.acquire_slot(1, 7).ok());
  EXPECT_TRUE(small.open({0, 1}, {1, 1}).ok());
}

TEST(CoreLateError, LeavesTheForwardOpenWhereTheBackendHas) {
  SmallCache small(wrapped().info.name);
  Cache& cache = small.cache();
  const std::int64_t free = cache.free_slots();
  const std::int64_t position = cache.info(0)->position;
  EXPECT_EQ(forward(small, Failure::kBefore).code(), StatusCode::kDeviceError);
  EXPECT_EQ(cache.info(0)->position, position);
  EXPECT_EQ(cache.free_slots(), free);
  Accepted accepted;
  accepted.count = 2;
  EXPECT_TRUE(cache.commit(accepted).ok());
  EXPECT_EQ(cache.info(0)->position, position + 1);
  EXPECT_EQ(cache.free_slots(), free + 1);
}

}  // namespace
}  // namespace laws
}  // namespace replayssm
