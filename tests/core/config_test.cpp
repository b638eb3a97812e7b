// Every limit of a cache's configuration: the code, what the message names, and that the same
// configuration without the mistake is taken.
#include <cmath>
#include <functional>

#include "tests/core/small_cache.hpp"

namespace replayssm::laws {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Mistake {
  const char* name;
  std::function<void(CacheConfig&)> make;
  StatusCode code = StatusCode::kInvalidArgument;
  std::vector<std::string> parts;
};

std::vector<Mistake> mistakes() {
  constexpr StatusCode kArgument = StatusCode::kInvalidArgument;
  constexpr StatusCode kUnsupported = StatusCode::kUnsupported;
  return {
      {"no layers", [](CacheConfig& c) { c.layers.clear(); }, kArgument, {"at least one layer"}},
      {"weights missing",
       [](CacheConfig& c) { c.weights.pop_back(); },
       kArgument,
       {"required 3", "given 2"}},
      {"weights too many",
       [](CacheConfig& c) { c.weights.emplace_back(); },
       kArgument,
       {"required 3", "given 4"}},
      {"rule",
       [](CacheConfig& c) { c.layers[1].rule = static_cast<Rule>(9); },
       kArgument,
       {"layer 1", "9", "mamba2, gdn, kda"}},
      {"no heads",
       [](CacheConfig& c) { c.layers[1].heads = 0; },
       kArgument,
       {"layer 1", "0 heads"}},
      {"heads negative", [](CacheConfig& c) { c.layers[1].heads = -2; }, kArgument, {"-2 heads"}},
      {"heads huge", [](CacheConfig& c) { c.layers[1].heads = 65537; }, kArgument, {"65537"}},
      {"no groups", [](CacheConfig& c) { c.layers[0].groups = 0; }, kArgument, {"0 groups"}},
      {"groups negative",
       [](CacheConfig& c) { c.layers[0].groups = -1; },
       kArgument,
       {"-1 groups"}},
      {"groups do not divide",
       [](CacheConfig& c) { c.layers[0].groups = 3; },
       kArgument,
       {"multiple of groups", "4 heads", "3 groups"}},
      {"V 0", [](CacheConfig& c) { c.layers[0].value_dim = 0; }, kArgument, {"value_dim", "0"}},
      {"V odd",
       [](CacheConfig& c) { c.layers[0].value_dim = 12; },
       kArgument,
       {"multiples of 8", "12"}},
      {"V large", [](CacheConfig& c) { c.layers[0].value_dim = 264; }, kArgument, {"256", "264"}},
      {"K odd", [](CacheConfig& c) { c.layers[0].key_dim = 7; }, kArgument, {"key_dim", "7"}},
      {"K large", [](CacheConfig& c) { c.layers[0].key_dim = 512; }, kArgument, {"256", "512"}},
      {"K negative", [](CacheConfig& c) { c.layers[0].key_dim = -8; }, kArgument, {"-8"}},
      {"conv channels",
       [](CacheConfig& c) { c.layers[0].conv_channels = -1; },
       kArgument,
       {"conv_channels", "-1"}},
      {"conv width 1",
       [](CacheConfig& c) { c.layers[0].conv_width = 1; },
       kArgument,
       {"conv_width", "2 to 8", "1"}},
      {"conv width 9", [](CacheConfig& c) { c.layers[0].conv_width = 9; }, kArgument, {"9"}},
      {"conv weight",
       [](CacheConfig& c) { c.weights[0].conv_weight = nullptr; },
       kArgument,
       {"conv_weight is null", "6"}},
      {"no A",
       [](CacheConfig& c) { c.weights[1].a_log = nullptr; },
       kArgument,
       {"exactly one of a_log and a", "gdn"}},
      {"two A",
       [](CacheConfig& c) { c.weights[1].a = c.weights[1].a_log; },
       kArgument,
       {"exactly one"}},
      {"dt_min", [](CacheConfig& c) { c.layers[0].dt_min = -0.5F; }, kArgument, {"dt_min", "-0.5"}},
      {"dt_max", [](CacheConfig& c) { c.layers[0].dt_max = -1.0F; }, kArgument, {"dt_max", "-1"}},
      {"dt NaN", [](CacheConfig& c) { c.layers[0].dt_max = kNaN; }, kArgument, {"dt_max", "nan"}},
      {"bounded gdn",
       [](CacheConfig& c) { c.layers[1].gate = GateKind::kBounded; },
       kArgument,
       {"bounded", "kda", "gdn"}},
      {"bound 0",
       [](CacheConfig& c) {
         c.layers[2].gate = GateKind::kBounded;
         c.layers[2].gate_lower_bound = 0.0F;
       },
       kArgument,
       {"gate_lower_bound", "below 0"}},
      {"bound NaN",
       [](CacheConfig& c) {
         c.layers[2].gate = GateKind::kBounded;
         c.layers[2].gate_lower_bound = kNaN;
       },
       kArgument,
       {"gate_lower_bound", "nan"}},
      {"bounded with A",
       [](CacheConfig& c) {
         c.layers[2].gate = GateKind::kBounded;
         c.layers[2].gate_lower_bound = -5.0F;
         c.weights[2].a = c.weights[2].a_log;
         c.weights[2].a_log = nullptr;
       },
       kArgument,
       {"bounded needs a_log"}},
      {"gate",
       [](CacheConfig& c) { c.layers[2].gate = static_cast<GateKind>(7); },
       kArgument,
       {"unknown gate 7", "softplus, bounded, log_decay"}},
      {"query scale",
       [](CacheConfig& c) { c.layers[2].query_scale = kNaN; },
       kArgument,
       {"query_scale", "nan"}},
      {"T 0", [](CacheConfig& c) { c.max_step_tokens = 0; }, kArgument, {"1 to 16", "0"}},
      {"T 17", [](CacheConfig& c) { c.max_step_tokens = 17; }, kArgument, {"1 to 16", "17"}},
      {"decode",
       [](CacheConfig& c) { c.decode = static_cast<DecodeMode>(5); },
       kArgument,
       {"5", "replay, conventional"}},
      {"activations",
       [](CacheConfig& c) { c.activations = DType::kI8; },
       kArgument,
       {"f32, bf16 or f16", "i8"}},
      {"update", [](CacheConfig& c) { c.update = DType::kF16; }, kArgument, {"bf16 or f32", "f16"}},
      {"slots 0", [](CacheConfig& c) { c.slots = 0; }, kArgument, {"slots", "0"}},
      {"slots huge",
       [](CacheConfig& c) { c.slots = std::int64_t{1} << 40; },
       kArgument,
       {"slots", "1099511627776"}},
      {"blocks", [](CacheConfig& c) { c.blocks = -1; }, kArgument, {"blocks", "-1"}},
      {"rows", [](CacheConfig& c) { c.max_rows = -3; }, kArgument, {"max_rows", "-3"}},
      {"tokens", [](CacheConfig& c) { c.max_tokens = -4; }, kArgument, {"max_tokens", "-4"}},
      {"threads", [](CacheConfig& c) { c.threads = -1; }, kArgument, {"threads", "-1"}},
      {"threads huge", [](CacheConfig& c) { c.threads = 100000; }, kArgument, {"4096", "100000"}},
      {"workers",
       [](CacheConfig& c) {
         c.parallel.run = [](void*, std::int64_t, ParallelFor::Body, void*) {};
         c.parallel.workers = 0;
       },
       kArgument,
       {"parallel.workers", "0"}},
      {"format", [](CacheConfig& c) { c.format = StateFormat::kI8; }, kUnsupported, {"i8", "f32"}},
      {"name",
       [](CacheConfig& c) { c.implementation = "abacus"; },
       kUnsupported,
       {"abacus", "cpu-scalar"}},
      {"memory short",
       [](CacheConfig& c) { c.memory.resize(2); },
       kArgument,
       {"one entry a tensor", "given 2"}},
      {"memory null",
       [](CacheConfig& c) { c.memory[3].base = nullptr; },
       kArgument,
       {"memory[3]", "base"}},
      {"memory odd",
       [](CacheConfig& c) { c.memory[3].base = static_cast<char*>(c.memory[3].base) + 4; },
       kArgument,
       {"memory[3]", "64"}},
      {"stride short",
       [](CacheConfig& c) { c.memory[0].stride_bytes = 64; },
       kArgument,
       {"memory[0]", "stride_bytes", "64"}},
      {"stride odd",
       [](CacheConfig& c) { c.memory[0].stride_bytes += 4; },
       kArgument,
       {"memory[0]", "multiple of 64"}},
      {"stride negative",
       [](CacheConfig& c) { c.memory[0].stride_bytes = -4096; },
       kArgument,
       {"-4096"}},
      {"stride overflow",
       [](CacheConfig& c) { c.memory[0].stride_bytes = std::int64_t{1} << 60; },
       kArgument,
       {"memory[0]", "2^60"}},
  };
}

class CoreConfig : public ::testing::TestWithParam<std::string> {};

TEST_P(CoreConfig, RefusesEveryMistake) {
  const SmallCache small(GetParam());
  const CacheConfig good = small.machine->cache().config();
  for (const Mistake& mistake : mistakes()) {
    SCOPED_TRACE(mistake.name);
    CacheConfig config = good;
    mistake.make(config);
    const Result<Cache> cache = Cache::create(config);
    EXPECT_FALSE(cache.ok());
    EXPECT_EQ(status_code_name(cache.status().code()), status_code_name(mistake.code))
        << cache.status().message();
    for (const std::string& part : mistake.parts) {
      EXPECT_NE(cache.status().message().find(part), std::string::npos)
          << "'" << part << "' is missing in: " << cache.status().message();
    }
    if (config.memory.size() == good.memory.size() && mistake.code != StatusCode::kUnsupported &&
        std::string_view(mistake.name).substr(0, 6) != "memory" &&
        std::string_view(mistake.name).substr(0, 6) != "stride") {
      EXPECT_EQ(cache_tensors(config).status().code(), mistake.code);
      EXPECT_EQ(cache_bytes(config).status().code(), mistake.code);
      EXPECT_EQ(state_bytes_per_token(config, 1, 1).status().code(), mistake.code);
    }
  }
  // Without a mistake it is taken; on memory of its own, since the lent one is in use.
  CacheConfig config = good;
  config.memory.clear();
  EXPECT_TRUE(Cache::create(config).ok());
}

TEST_P(CoreConfig, ReplayWindowHoldsAStep) {
  const SmallCache small(GetParam());
  CacheConfig config = small.machine->cache().config();
  config.memory.clear();
  for (const std::int32_t window : {-1, 0, 3, kMaxWindow + 1}) {
    config.window = window;
    const Result<Cache> cache = Cache::create(config);
    if (config.decode == DecodeMode::kConventional) {
      EXPECT_TRUE(cache.ok()) << "a window means nothing here: " << cache.status().to_string();
      continue;
    }
    EXPECT_EQ(cache.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(cache.status().message().find("(4) to 256"), std::string::npos)
        << cache.status().message();
  }
  for (const std::int32_t window : {4, static_cast<std::int32_t>(kMaxWindow)}) {
    config.window = window;
    const Result<Cache> cache = Cache::create(config);
    ASSERT_TRUE(cache.ok()) << cache.status().to_string();
    const bool replay = config.decode == DecodeMode::kReplay;
    EXPECT_EQ(cache->ring_length(), replay ? window - 1 + 4 : 0);
  }
}

TEST_P(CoreConfig, AWindowMeansNothingWhereNothingIsReplayed) {
  const SmallCache small(GetParam());
  CacheConfig config = small.machine->cache().config();
  if (config.decode == DecodeMode::kReplay) GTEST_SKIP() << "the window counts here";
  config.memory.clear();
  config.window = std::numeric_limits<std::int32_t>::max();
  const Result<CacheBytes> bytes = cache_bytes(config);
  ASSERT_TRUE(bytes.ok()) << bytes.status().to_string();
  EXPECT_LT(bytes->scratch, std::int64_t{1} << 28);
  // An export of such a cache can be taken in again.
  Result<Cache> cache = Cache::create(config);
  ASSERT_TRUE(cache.ok());
  const Result<std::int64_t> slot = cache->acquire();
  const Result<std::vector<std::byte>> exported = cache->export_slot(*slot);
  ASSERT_TRUE(exported.ok());
  EXPECT_TRUE(cache->import_slot(*exported).ok());
}

// Counts that multiply past 2^63 are a message, not an overflow.
TEST_P(CoreConfig, SizesBeyondAnyMemoryAreRefused) {
  const SmallCache small(GetParam());
  CacheConfig config = small.machine->cache().config();
  config.memory.clear();
  config.slots = config.blocks = std::int64_t{1} << 31;
  for (LayerShape& layer : config.layers) {
    layer.heads = 65536;
    layer.groups = 65536;
    layer.value_dim = layer.key_dim = kMaxHeadDim;
  }
  for (const Status& status : {Cache::create(config).status(), cache_tensors(config).status(),
                               cache_bytes(config).status()}) {
    EXPECT_EQ(status_code_name(status.code()), "resource_exhausted") << status.message();
    EXPECT_NE(status.message().find("bytes"), std::string::npos) << status.message();
  }
}

TEST_P(CoreConfig, TrafficRefusesNonsense) {
  const SmallCache small(GetParam());
  const CacheConfig& config = small.machine->cache().config();
  for (const auto& [step, accepted] : std::initializer_list<std::pair<double, double>>{
           {0.5, 0.5}, {4, 0}, {4, 5}, {4, -1}, {std::nan(""), 1}, {4, std::nan("")}}) {
    EXPECT_EQ(state_bytes_per_token(config, step, accepted).status().code(),
              StatusCode::kInvalidArgument)
        << step << " " << accepted;
  }
  const Result<double> one = state_bytes_per_token(config, 1, 1);
  const Result<double> four = state_bytes_per_token(config, 4, 2);
  ASSERT_TRUE(one.ok() && four.ok());
  EXPECT_GT(*one, 0.0);
}

INSTANTIATE_TEST_SUITE_P(All, CoreConfig, ::testing::ValuesIn(host_names()), law_name);

}  // namespace
}  // namespace replayssm::laws
