// How many sequences fit a memory, by decode mode and drafts, counted in full.
#include <algorithm>

#include "core/guard.hpp"
#include "core/text.hpp"
#include "engine/model_info.hpp"
#include "engine/runner.hpp"
#include "replayssm/engine.hpp"

namespace replayssm {
namespace {

struct Counted {
  std::int64_t state = 0, rings = 0, conv = 0, control = 0;
};

// What one more sequence costs: control tables grow with the slots, so the cost is taken from a
// large pool.
Result<Counted> bytes_of_a_sequence(const ModelInfo& model, DecodeMode decode, std::int32_t window,
                                    std::int32_t step_tokens) {
  constexpr std::int64_t kPool = 256;
  const CacheConfig config = engine::cache_config(
      model.recurrent, engine::activation_dtype(model.compute), decode, window, step_tokens, kPool);
  const Result<CacheBytes> bytes = cache_bytes(config);
  if (!bytes.ok()) return bytes.status();
  const auto share = [](std::int64_t total) { return (total + kPool - 1) / kPool; };
  Counted counted;
  counted.state = share(bytes->state);
  counted.rings = share(bytes->rings);
  counted.conv = share(bytes->conv);
  counted.control = share(bytes->control);
  return counted;
}

// Keys and values are kept in pages.
constexpr std::int64_t kPage = model::KvCache::kPageTokens;

// No real context comes near; a whole number of pages.
constexpr std::int64_t kMaxContext = std::int64_t{1} << 40;
// Of the keys and values of a sequence: far enough below the end of 64 bits that the other bytes of
// a sequence can be added.
constexpr std::int64_t kMaxKvBytes = std::int64_t{1} << 62;

// The largest context whose bytes can be counted.
std::int64_t largest_context(const ModelInfo& model) {
  const std::int64_t page_bytes = std::max<std::int64_t>(kPage * model.kv_bytes_per_token(), 1);
  return std::min(kMaxContext / kPage, kMaxKvBytes / page_bytes) * kPage;
}

// context: at most largest_context().
std::int64_t kv_bytes(const ModelInfo& model, std::int64_t context) {
  return (context + kPage - 1) / kPage * kPage * model.kv_bytes_per_token();
}

Result<Plan> make_plan(const ModelInfo& model, const PlanOptions& options) {
  Plan plan;
  plan.weight_bytes = model.resident_weight_bytes;
  plan.memory_bytes = options.memory_bytes;
  plan.context = options.context > 0 ? options.context : model.max_positions;
  if (options.memory_bytes < 1) {
    return invalid_argument("plan: memory must be 1 byte or more, given ", options.memory_bytes);
  }
  if (plan.context < 1) {
    return invalid_argument("plan: config.json names no context; give one of 1 token or more");
  }
  if (const std::int64_t most = largest_context(model); plan.context > most) {
    return invalid_argument("plan: context must be 1 to ", most, " tokens, given ", plan.context);
  }
  if (options.window < 1 || options.window > kMaxWindow) {
    return invalid_argument("plan: window must be 1 to ", kMaxWindow, ", given ", options.window);
  }
  for (const DecodeMode decode : {DecodeMode::kConventional, DecodeMode::kReplay}) {
    for (const std::int32_t step : options.step_tokens) {
      if (step < 1 || step > kMaxStepTokens) {
        return invalid_argument("plan: step tokens must be 1 to ", kMaxStepTokens, ", given ",
                                step);
      }
      PlanRow row;
      row.decode = decode;
      row.step_tokens = step;
      row.window = std::max(options.window, step);
      const Result<Counted> counted = bytes_of_a_sequence(model, decode, row.window, step);
      if (!counted.ok()) return counted.status();
      row.kv_bytes = kv_bytes(model, plan.context);
      row.state_bytes = counted->state;
      row.ring_bytes = counted->rings;
      row.conv_bytes = counted->conv;
      row.control_bytes = counted->control;
      row.sequence_bytes =
          row.kv_bytes + row.state_bytes + row.ring_bytes + row.conv_bytes + row.control_bytes;
      const std::int64_t left = plan.memory_bytes - plan.weight_bytes;
      row.sequences = left > 0 ? left / row.sequence_bytes : 0;
      plan.rows.push_back(row);
    }
  }
  return plan;
}

}  // namespace

Result<Plan> plan(const ModelInfo& model, const PlanOptions& options) {
  return guard([&] { return make_plan(model, options); });
}

}  // namespace replayssm
