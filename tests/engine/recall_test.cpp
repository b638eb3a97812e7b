// The recall models: key-value pairs shown early, asked for up to 8,000 tokens later. They have no
// attention, so what answers is the recurrent state that the replay cache keeps; with that state
// set to zero, and all else left as it is, the answers fall to chance.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/model_impl.hpp"
#include "model/json_value.hpp"
#include "model/layers/forward.hpp"
#include "model/layers/kv_cache.hpp"
#include "replayssm/cache.hpp"
#include "replayssm/model.hpp"

namespace replayssm {
namespace {

// models/recall-*/recall.json, whose own text says how a prompt is made of a case.
struct Task {
  std::int64_t start = 0, query = 0, first_filler = 0, fillers = 0, first_value = 0, values = 0;
  double chance = 0.0;
  struct Case {
    std::vector<std::array<std::int64_t, 2>> pairs;
    std::int64_t ask = 0, filler_start = 0, distance = 0, expect = 0;
  };
  std::vector<Case> cases;
};

std::int64_t integer(const model::JsonValue& object, std::string_view key) {
  const model::JsonValue* value = object.find(key);
  if (value == nullptr || value->as_integer() == nullptr) {
    ADD_FAILURE() << "recall.json: no integer " << key;
    return 0;
  }
  return *value->as_integer();
}

Task read_task(const std::string& folder) {
  std::ifstream file(folder + "/recall.json");
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const Result<model::JsonValue> json = model::parse_json(text, "recall.json");
  Task task;
  if (!json.ok()) {
    ADD_FAILURE() << json.status().to_string();
    return task;
  }
  const model::JsonValue& tokens = *json->find("tokens");
  task.start = integer(tokens, "start");
  task.query = integer(tokens, "query");
  task.first_filler = integer(tokens, "first_filler");
  task.fillers = integer(tokens, "fillers");
  task.first_value = integer(tokens, "first_value");
  task.values = integer(tokens, "values");
  task.chance = 1.0 / static_cast<double>(task.values);
  for (const model::JsonValue& entry : *json->find("cases")->as_array()) {
    Task::Case one;
    for (const model::JsonValue& pair : *entry.find("pairs")->as_array()) {
      const model::JsonValue::Array& numbers = *pair.as_array();
      one.pairs.push_back({*numbers[0].as_integer(), *numbers[1].as_integer()});
    }
    one.ask = integer(entry, "ask");
    one.filler_start = integer(entry, "filler_start");
    one.distance = integer(entry, "distance");
    one.expect = integer(entry, "expect");
    task.cases.push_back(std::move(one));
  }
  return task;
}

// Everything before the question.
std::vector<std::int32_t> story(const Task& task, const Task::Case& one) {
  std::vector<std::int32_t> tokens{static_cast<std::int32_t>(task.start)};
  for (const auto& [key, value] : one.pairs) {
    tokens.push_back(static_cast<std::int32_t>(key));
    tokens.push_back(static_cast<std::int32_t>(value));
  }
  const auto pairs = static_cast<std::int64_t>(one.pairs.size());
  std::int64_t x = one.filler_start;
  for (std::int64_t i = 0; i < one.distance - 2 * (pairs - one.ask); ++i) {
    tokens.push_back(static_cast<std::int32_t>(task.first_filler + (x >> 16) % task.fillers));
    x = (1103515245 * x + 12345) % 2147483648;
  }
  return tokens;
}

// A model and a cache of three slots, run a forward at a time.
class Recaller {
 public:
  static constexpr std::int64_t kChunk = 512;

  Recaller(const model::Network& network, DecodeMode decode)
      : network_(network), pool_(1), forward_(network, pool_, kChunk), kv_(network.kv_shape()) {
    CacheConfig config;
    for (const model::RecurrentLayer& layer : network.recurrent()) {
      config.layers.push_back(layer.shape);
      config.weights.push_back(layer.weights);
    }
    config.decode = decode;
    config.update = DType::kF32;
    config.slots = 3;
    config.max_rows = 1;
    config.max_tokens = kChunk;
    config.threads = 1;
    Result<Cache> cache = Cache::create(config);
    EXPECT_TRUE(cache.ok()) << cache.status().to_string();
    if (cache.ok()) cache_.emplace(std::move(*cache));
  }

  [[nodiscard]] bool ok() const { return cache_.has_value(); }
  Cache& cache() { return *cache_; }

  // The likeliest next token.
  std::int64_t feed(std::int64_t slot, std::span<const std::int32_t> tokens, bool prefill) {
    const auto count = static_cast<std::int32_t>(tokens.size());
    const std::uint8_t flag = prefill ? 1 : 0;
    Rows rows;
    rows.count = 1;
    rows.slots = &slot;
    rows.tokens = &count;
    rows.prefill = &flag;
    model::ForwardRow row;
    row.kv = &kv_;
    row.tokens = count;
    row.prefill = prefill;
    std::vector<float> logits(static_cast<std::size_t>(network_.config().vocab_size));
    const std::int64_t last = count - 1;
    const bool done = cache_->begin(rows).ok() && cache_->fold().ok() &&
                      forward_.run(tokens, {&row, 1}, *cache_).ok() &&
                      forward_.logits({&last, 1}, nullptr, logits.data()).ok() &&
                      cache_->commit({.count = 1}).ok();
    EXPECT_TRUE(done);
    return std::max_element(logits.begin(), logits.end()) - logits.begin();
  }

  // Prefill of all but the last tokens, which are decoded one by one, so that at the end the ring
  // holds records and at least one fold has happened.
  void tell(std::int64_t slot, std::span<const std::int32_t> tokens) {
    const std::size_t stepped = std::min<std::size_t>(tokens.size() / 2, 21);
    const std::span<const std::int32_t> chunks = tokens.first(tokens.size() - stepped);
    for (std::size_t at = 0; at < chunks.size(); at += kChunk)
      feed(slot, chunks.subspan(at, std::min<std::size_t>(kChunk, chunks.size() - at)), true);
    for (const std::int32_t token : tokens.last(stepped)) feed(slot, {&token, 1}, false);
  }

  // A slot with the convolutions' inputs of `source` and its recurrent state, or zeros instead.
  std::int64_t copy(std::int64_t source, bool forget) {
    std::vector<std::vector<float>> states, convs;
    std::vector<LayerState> layers;
    for (const LayerShape& shape : cache_->config().layers) {
      const std::int64_t width = shape.conv_width - 1;
      states.emplace_back(static_cast<std::size_t>(shape.heads * shape.value_dim * shape.key_dim));
      convs.emplace_back(static_cast<std::size_t>(width * shape.conv_channels));
      LayerState layer;
      layer.state = TensorView::contiguous(states.back().data(), DType::kF32, shape.heads,
                                           shape.value_dim, shape.key_dim);
      layer.conv =
          TensorView::contiguous(convs.back().data(), DType::kF32, width, shape.conv_channels);
      layers.push_back(layer);
    }
    EXPECT_TRUE(cache_->store_state(source, layers).ok());
    if (forget) {
      for (std::vector<float>& state : states) std::fill(state.begin(), state.end(), 0.0F);
    }
    const std::int64_t slot = cache_->acquire().value();
    EXPECT_TRUE(cache_->load_state(slot, cache_->info(source)->position, layers).ok());
    return slot;
  }

 private:
  const model::Network& network_;
  model::WorkerPool pool_;
  model::Forward forward_;
  model::KvCache kv_;  // of no layer
  std::optional<Cache> cache_;
};

class Recall : public testing::TestWithParam<const char*> {};

TEST_P(Recall, TheStateAnswersAndZerosDoNot) {
  const std::string folder = std::string(REPLAYSSM_SOURCE_DIR "/models/") + GetParam();
  const Result<Model> model = Model::load(folder);
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  const model::Network& network = *model->impl().layers;
  ASSERT_EQ(network.kv_shape().layers.size(), 0U) << "a recall model has no attention";
  const Task task = read_task(folder);

  for (const DecodeMode decode : {DecodeMode::kReplay, DecodeMode::kConventional}) {
    Recaller recaller(network, decode);
    ASSERT_TRUE(recaller.ok());
    const bool replay = decode == DecodeMode::kReplay;
    std::int64_t asked = 0, longest = 0, right_zeroed = 0;
    std::map<std::int64_t, int> of_distance;
    for (const Task::Case& one : task.cases) {
      // The long ones take their time under a sanitizer.
      if (!replay && one.distance > 1000) continue;
      if (++of_distance[one.distance] > (one.distance > 1000 ? 2 : 6)) continue;
      Cache& cache = recaller.cache();
      const std::int64_t slot = cache.acquire().value();
      recaller.tell(slot, story(task, one));
      // The copy that keeps its state shows that nothing but the zeros makes the other one forget.
      const std::int64_t kept = recaller.copy(slot, false);
      const std::int64_t zeroed = recaller.copy(slot, true);
      const std::array<std::int32_t, 2> question = {
          static_cast<std::int32_t>(task.query),
          static_cast<std::int32_t>(one.pairs[static_cast<std::size_t>(one.ask)][0])};
      for (const std::int64_t each : {slot, kept, zeroed}) {
        recaller.feed(each, {question.data(), 1}, false);
        const std::int64_t answer = recaller.feed(each, {question.data() + 1, 1}, false);
        if (each == zeroed) {
          right_zeroed += answer == one.expect ? 1 : 0;
        } else {
          EXPECT_EQ(answer, one.expect)
              << "distance " << one.distance << (each == kept ? ", copied" : "");
        }
        ASSERT_TRUE(cache.release(each).ok());
      }
      longest = std::max(longest, one.distance);
      ++asked;
    }
    EXPECT_EQ(asked, replay ? 16 : 12);
    EXPECT_GE(longest, replay ? 8000 : 500);
    // Chance, and five standard deviations of that many draws above it.
    const double expected = static_cast<double>(asked) * task.chance;
    EXPECT_LE(static_cast<double>(right_zeroed), expected + 5.0 * std::sqrt(expected));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Recall, testing::Values("recall-mamba2", "recall-gdn", "recall-kda"),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace replayssm
