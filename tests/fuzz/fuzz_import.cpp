// Cache::import_slot on hostile bytes. The first byte picks the importing cache, the rest is what
// an exporting one claims to have written; sizes and checksum are put right first, so that the
// checks behind them are reached. What is taken in must behave: it is stepped, folded, stored and
// exported.
//
// The corpus holds exports of these caches' slots behind that first byte.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "replayssm/cache.hpp"

namespace {

using replayssm::Cache;
using replayssm::CacheConfig;
using replayssm::LayerShape;
using replayssm::Rule;
using replayssm::Status;
using replayssm::StatusCode;
using replayssm::TensorView;

constexpr int kCaches = 4;
constexpr std::size_t kMostBytes = 1U << 18;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

std::vector<float>& constants() {
  static std::vector<float> values(256, -0.5F);
  return values;
}

LayerShape shape_of(Rule rule, int channels, int width) {
  LayerShape shape;
  shape.rule = rule;
  shape.heads = 2;
  shape.groups = 1;
  shape.value_dim = 8;
  shape.key_dim = 8;
  shape.conv_channels = channels;
  shape.conv_width = width;
  return shape;
}

CacheConfig config_of(int kind) {
  CacheConfig config;
  config.layers = {shape_of(Rule::kMamba2, 3, 4), shape_of(Rule::kGdn, 0, 0),
                   shape_of(Rule::kKda, 2, 3)};
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    replayssm::LayerWeights weights;
    weights.a_log = constants().data();
    weights.dt_bias = constants().data();
    weights.conv_weight = constants().data();
    config.weights.push_back(weights);
  }
  config.window = kind == 1 ? 2 : 6;
  config.max_step_tokens = kind == 1 ? 1 : 3;
  config.slots = 2;
  config.threads = 1;
  config.materialize_history = kind == 2;
  if (kind == 3) config.decode = replayssm::DecodeMode::kConventional;
  return config;
}

Cache& cache_of(int kind) {
  static std::vector<Cache>* caches = [] {
    auto* made = new std::vector<Cache>;
    for (int i = 0; i < kCaches; ++i) {
      replayssm::Result<Cache> cache = Cache::create(config_of(i));
      require(cache.ok(), "create");
      made->push_back(std::move(cache).value());
    }
    return made;
  }();
  return (*caches)[static_cast<std::size_t>(kind)];
}

// The checksum of docs/formats.md.
std::uint64_t checksum(const std::vector<std::byte>& bytes, std::size_t from) {
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  std::size_t i = from;
  for (; i + 8 <= bytes.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, sizeof(word));
    hash = (hash ^ word) * 0x100000001B3ULL;
    hash ^= hash >> 29U;
  }
  for (; i < bytes.size(); ++i) {
    hash = (hash ^ static_cast<std::uint64_t>(bytes[i])) * 0x100000001B3ULL;
  }
  return hash;
}

void put_right(std::vector<std::byte>* bytes) {
  if (bytes->size() < 32) return;
  const std::uint64_t size = bytes->size();
  std::memcpy(bytes->data() + 16, &size, sizeof(size));
  const std::uint64_t sum = checksum(*bytes, 32);
  std::memcpy(bytes->data() + 24, &sum, sizeof(sum));
}

void use(Cache& cache, std::int64_t slot) {
  const CacheConfig& config = cache.config();
  std::vector<float> in(64, 0.25F);
  std::vector<float> out(64);
  for (int forward = 0; forward < 3; ++forward) {
    replayssm::Rows rows;
    rows.count = 1;
    rows.slots = &slot;
    const Status begun = cache.begin(rows);
    require(begun.ok() && cache.fold().ok(), "begin of an imported slot");
    for (int layer = 0; layer < 3; ++layer) {
      const LayerShape& shape = config.layers[static_cast<std::size_t>(layer)];
      if (shape.conv_channels > 0) {
        replayssm::ConvInputs conv;
        conv.layer = layer;
        conv.in = TensorView::contiguous(in.data(), replayssm::DType::kF32, 1, shape.conv_channels);
        conv.out =
            TensorView::contiguous(out.data(), replayssm::DType::kF32, 1, shape.conv_channels);
        require(cache.conv(conv).ok(), "conv");
      }
      replayssm::LayerInputs inputs;
      inputs.layer = layer;
      inputs.value = TensorView::contiguous(in.data(), replayssm::DType::kF32, 1, 2, 8);
      inputs.key = TensorView::contiguous(in.data(), replayssm::DType::kF32, 1, 1, 8);
      inputs.query = inputs.key;
      inputs.gate = shape.rule == Rule::kKda
                        ? TensorView::contiguous(in.data(), replayssm::DType::kF32, 1, 2, 8)
                        : TensorView::contiguous(in.data(), replayssm::DType::kF32, 1, 2);
      if (shape.rule != Rule::kMamba2) {
        inputs.beta = TensorView::contiguous(in.data(), replayssm::DType::kF32, 1, 2);
      }
      inputs.out = TensorView::contiguous(out.data(), replayssm::DType::kF32, 1, 2, 8);
      require(cache.step(inputs).ok(), "step");
    }
    replayssm::Accepted accepted;
    accepted.count = 1;
    require(cache.commit(accepted).ok(), "commit");
  }
  std::vector<replayssm::LayerState> states(3);
  std::vector<std::vector<float>> memory(3, std::vector<float>(128));
  for (std::size_t i = 0; i < 3; ++i) {
    states[i].state = TensorView::contiguous(memory[i].data(), replayssm::DType::kF32, 2, 8, 8);
  }
  require(cache.store_state(slot, states).ok(), "store_state");
  const auto fork = cache.fork(slot);
  require(fork.ok() || fork.status().code() == StatusCode::kResourceExhausted, "fork");
  if (fork.ok()) require(cache.release(*fork).ok(), "release of the fork");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0 || size > kMostBytes) return 0;
  Cache& cache = cache_of(data[0] % kCaches);
  std::vector<std::byte> bytes(size - 1);
  if (size > 1) std::memcpy(bytes.data(), data + 1, size - 1);
  const std::int64_t free = cache.free_slots();
  require(!cache.import_slot(bytes).ok() || cache.release(0).ok(), "release");
  // Cut or padded to what the cursors ask for.
  put_right(&bytes);
  replayssm::Result<std::int64_t> slot = cache.import_slot(bytes);
  const std::string wanted = "import: required ";
  if (!slot.ok() && slot.status().message().compare(0, wanted.size(), wanted) == 0) {
    const unsigned long long need =
        std::strtoull(slot.status().message().c_str() + wanted.size(), nullptr, 10);
    if (need <= kMostBytes) {
      bytes.resize(static_cast<std::size_t>(need));
      put_right(&bytes);
      slot = cache.import_slot(bytes);
    }
  }
  if (!slot.ok()) {
    require(slot.status().code() == StatusCode::kDataLoss ||
                slot.status().code() == StatusCode::kUnsupported,
            slot.status().message().c_str());
    require(cache.free_slots() == free, "a refused import took a slot");
    return 0;
  }
  // What was taken in comes out again, unless it had to be folded.
  const auto info = cache.info(*slot);
  require(info.ok() && info->committed <= cache.ring_length(), "cursors");
  const auto first = cache.export_slot(*slot);
  require(first.ok(), "export");
  use(cache, *slot);
  require(cache.release(*slot).ok(), "release");
  require(cache.free_slots() == free, "slots");
  const auto again = cache.import_slot(*first);
  require(again.ok(), "import of an export");
  const auto second = cache.export_slot(*again);
  require(second.ok() && *second == *first, "an export changes by import and export");
  require(cache.release(*again).ok(), "release");
  return 0;
}
