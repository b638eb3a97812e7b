// An inference engine that knows nothing of this library but replayssm::kernels: it has its own
// memory pool, in which a page holds a slot's recurrent tensors between data of its own, its own
// threads, its own slot numbers and its own prefill. It hands its prefill state over, decodes with
// drafts, and compares with the recurrence in double.
#include <replayssm/cache.hpp>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

namespace {

using replayssm::Cache;
using replayssm::DType;
using replayssm::TensorView;

constexpr int kLayers = 3;
constexpr int kHeads = 6;
constexpr int kGroups = 2;
constexpr int kValue = 16;
constexpr int kKey = 32;
constexpr int kSlots = 5;
constexpr unsigned char kForeign = 0x5A;  // fills what the engine keeps in the pages for itself

void must(const replayssm::Status& status) {
  if (status.ok()) return;
  std::printf("%s\n", status.to_string().c_str());
  std::exit(1);
}

// The engine's threads: two, started for each loop, which no library would do but an engine may.
void run_on_own_threads(void* /*context*/, std::int64_t count, replayssm::ParallelFor::Body body,
                        void* argument) {
  std::thread other([=] {
    for (std::int64_t i = 1; i < count; i += 2) body(argument, i, 1);
  });
  for (std::int64_t i = 0; i < count; i += 2) body(argument, i, 0);
  other.join();
}

// Pages of equal size; page p holds, for every tensor of the cache, the p-th slot or block, and
// foreign bytes around it.
class PagePool {
 public:
  PagePool(const std::vector<replayssm::TensorSpec>& specs, std::int64_t pages) {
    std::int64_t page_bytes = 256;  // the engine's own header
    for (const auto& spec : specs) {
      if (spec.role == replayssm::TensorRole::kControl) continue;
      offsets_.push_back(page_bytes);
      page_bytes = round_up(page_bytes + spec.bytes) + 192;  // KV of an attention layer, say
    }
    page_bytes_ = round_up(page_bytes);
    bytes_.assign(static_cast<std::size_t>(page_bytes_ * pages + 64), kForeign);
    const auto misaligned = reinterpret_cast<std::uintptr_t>(bytes_.data()) % 64;
    base_ = bytes_.data() + (64 - misaligned) % 64;
    std::size_t next = 0;
    for (const auto& spec : specs) {
      replayssm::TensorMemory memory;
      if (spec.role == replayssm::TensorRole::kControl) {
        control_.resize(static_cast<std::size_t>(spec.bytes) + 64);
        memory.base =
            control_.data() + (64 - reinterpret_cast<std::uintptr_t>(control_.data()) % 64) % 64;
        memory.stride_bytes = round_up(spec.bytes);
      } else {
        memory.base = base_ + offsets_[next];
        memory.stride_bytes = page_bytes_;
        sizes_.push_back(spec.bytes);
        ++next;
      }
      memory_.push_back(memory);
    }
    pages_ = pages;
  }

  [[nodiscard]] const std::vector<replayssm::TensorMemory>& memory() const { return memory_; }

  // Whether every byte outside the lent tensors is still the engine's.
  [[nodiscard]] bool foreign_bytes_untouched() const {
    for (std::int64_t page = 0; page < pages_; ++page) {
      std::int64_t at = 0;
      for (std::size_t i = 0; i <= offsets_.size(); ++i) {
        const std::int64_t end = i < offsets_.size() ? offsets_[i] : page_bytes_;
        for (; at < end; ++at) {
          if (base_[page * page_bytes_ + at] != kForeign) return false;
        }
        if (i < offsets_.size()) at = offsets_[i] + sizes_[i];
      }
    }
    return true;
  }

 private:
  static std::int64_t round_up(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

  std::vector<unsigned char> bytes_;
  std::vector<unsigned char> control_;
  std::vector<std::int64_t> offsets_;
  std::vector<std::int64_t> sizes_;
  std::vector<replayssm::TensorMemory> memory_;
  unsigned char* base_ = nullptr;
  std::int64_t page_bytes_ = 0;
  std::int64_t pages_ = 0;
};

struct Token {
  float x[kHeads][kValue];
  float b[kGroups][kKey];
  float c[kGroups][kKey];
  float dt[kHeads];
};

// The engine's model: the recurrence of mamba2 in double, its prefill and its reference.
struct Reference {
  double state[kHeads][kValue][kKey] = {};
  double output[kHeads][kValue] = {};
  float a[kHeads] = {};

  void advance(const Token& token) {
    for (int h = 0; h < kHeads; ++h) {
      const double dt = std::log1p(std::exp(static_cast<double>(token.dt[h])));
      const double decay = std::exp(static_cast<double>(a[h]) * dt);
      const int g = h / (kHeads / kGroups);
      for (int v = 0; v < kValue; ++v) {
        output[h][v] = 0.0;
        for (int k = 0; k < kKey; ++k) {
          state[h][v][k] = state[h][v][k] * decay + dt * token.x[h][v] * token.b[g][k];
          output[h][v] += state[h][v][k] * token.c[g][k];
        }
      }
    }
  }
};

}  // namespace

int main() {
  std::mt19937 random(11);
  std::normal_distribution<float> normal(0.0F, 0.5F);
  float a[kLayers][kHeads];
  for (auto& layer : a) {
    for (float& value : layer) value = -std::exp(normal(random));
  }

  replayssm::CacheConfig config;
  replayssm::LayerShape shape;
  shape.heads = kHeads;
  shape.groups = kGroups;
  shape.value_dim = kValue;
  shape.key_dim = kKey;
  for (int layer = 0; layer < kLayers; ++layer) {
    replayssm::LayerWeights weights;
    weights.a = a[layer];
    config.layers.push_back(shape);
    config.weights.push_back(weights);
  }
  config.window = 7;
  config.max_step_tokens = 3;
  config.slots = kSlots;
  config.parallel.run = run_on_own_threads;
  config.parallel.workers = 2;
  auto specs = replayssm::cache_tensors(config);
  must(specs.status());
  PagePool pool(*specs, kSlots);
  config.memory = pool.memory();
  auto made = Cache::create(config);
  must(made.status());
  Cache cache = std::move(made).value();

  // Two sequences at slots of the engine's choice; their prompts are run by the engine itself.
  const std::int64_t slots[2] = {4, 1};
  std::vector<Token> tokens[2];
  std::vector<Reference> reference[2];
  for (int s = 0; s < 2; ++s) {
    tokens[s].resize(60);
    for (Token& token : tokens[s]) {
      for (auto& row : token.x)
        for (float& value : row) value = normal(random);
      for (auto& row : token.b)
        for (float& value : row) value = normal(random);
      for (auto& row : token.c)
        for (float& value : row) value = normal(random);
      for (float& value : token.dt) value = normal(random) - 1.0F;
    }
    reference[s].resize(kLayers);
    must(cache.acquire_slot(slots[s]));
    std::vector<std::vector<float>> plain(kLayers);
    std::vector<replayssm::LayerState> states(kLayers);
    for (int layer = 0; layer < kLayers; ++layer) {
      Reference& model = reference[s][static_cast<std::size_t>(layer)];
      std::memcpy(model.a, a[layer], sizeof(model.a));
      for (int t = 0; t < 10; ++t) model.advance(tokens[s][static_cast<std::size_t>(t)]);
      for (const auto& head : model.state)
        for (const auto& row : head)
          for (const double value : row) {
            plain[static_cast<std::size_t>(layer)].push_back(static_cast<float>(value));
          }
      states[static_cast<std::size_t>(layer)].state = TensorView::contiguous(
          plain[static_cast<std::size_t>(layer)].data(), DType::kF32, kHeads, kValue, kKey);
    }
    must(cache.load_state(slots[s], 10, states));
  }

  // Decodes both with three tokens a step, of which 1 to 3 are accepted.
  int position[2] = {10, 10};
  double worst = 0.0;
  for (int step = 0; step < 18; ++step) {
    const std::int32_t drafted[2] = {3, 2};
    const std::int32_t accepted[2] = {1 + step % 3, 1 + step % 2};
    std::vector<Token> batch;
    for (int s = 0; s < 2; ++s) {
      for (int t = 0; t < drafted[s]; ++t)
        batch.push_back(tokens[s][static_cast<std::size_t>(position[s] + t)]);
    }
    replayssm::Rows rows;
    rows.count = 2;
    rows.slots = slots;
    rows.tokens = drafted;
    must(cache.begin(rows));
    must(cache.fold());
    std::vector<std::vector<float>> out(kLayers,
                                        std::vector<float>(batch.size() * kHeads * kValue));
    for (int layer = 0; layer < kLayers; ++layer) {
      const auto count = static_cast<std::int64_t>(batch.size());
      const auto view = [&](const float* data, std::int64_t d1, std::int64_t d2) {
        TensorView made_view = d2 > 0 ? TensorView::contiguous(data, DType::kF32, count, d1, d2)
                                      : TensorView::contiguous(data, DType::kF32, count, d1);
        made_view.stride[0] = sizeof(Token) / sizeof(float);
        return made_view;
      };
      replayssm::LayerInputs inputs;
      inputs.layer = layer;
      inputs.value = view(&batch[0].x[0][0], kHeads, kValue);
      inputs.key = view(&batch[0].b[0][0], kGroups, kKey);
      inputs.query = view(&batch[0].c[0][0], kGroups, kKey);
      inputs.gate = view(&batch[0].dt[0], kHeads, 0);
      inputs.out = TensorView::contiguous(out[static_cast<std::size_t>(layer)].data(), DType::kF32,
                                          count, kHeads, kValue);
      must(cache.step(inputs));
    }
    replayssm::Accepted kept;
    kept.count = 2;
    kept.tokens = accepted;
    must(cache.commit(kept));
    int row = 0;
    for (int s = 0; s < 2; ++s) {
      for (int layer = 0; layer < kLayers; ++layer) {
        Reference& model = reference[s][static_cast<std::size_t>(layer)];
        for (int t = 0; t < accepted[s]; ++t) {
          model.advance(tokens[s][static_cast<std::size_t>(position[s] + t)]);
          const float* got =
              out[static_cast<std::size_t>(layer)].data() + (row + t) * kHeads * kValue;
          for (int i = 0; i < kHeads * kValue; ++i) {
            const double difference = std::abs(got[i] - (&model.output[0][0])[i]);
            if (!(difference <= worst)) worst = difference;
          }
        }
      }
      row += drafted[s];
      position[s] += accepted[s];
    }
  }
  const bool clean = pool.foreign_bytes_untouched();
  std::printf("%s: largest difference %.2e, foreign bytes %s\n",
              std::string(cache.implementation()).c_str(), worst,
              clean ? "untouched" : "OVERWRITTEN");
  // Sums of at most 32 + 9 products of size about 1 in f32.
  return worst < 41 * 0x1p-23 && clean ? 0 : 1;
}
