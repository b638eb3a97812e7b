// See attention.hpp.
#include "model/layers/attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "model/layers/norms.hpp"

namespace replayssm::model {

namespace {

inline float widen(float value) { return value; }
inline float widen(std::uint16_t value) { return bf16_to_f32(value); }

// Four numbers side by side, which every target has registers for; four such sums run at once. Both
// numbers are fixed, so the order of additions is the same everywhere.
constexpr std::int64_t kLanes = 4;
constexpr std::int64_t kSums = 4;
using Quad = float __attribute__((vector_size(16)));
using QuadBits = std::uint32_t __attribute__((vector_size(16)));
using QuadHalves = std::uint16_t __attribute__((vector_size(8)));

inline Quad load_quad(const float* from) {
  Quad quad;
  std::memcpy(&quad, from, sizeof quad);
  return quad;
}

inline Quad load_quad(const std::uint16_t* from) {
  QuadHalves halves;
  std::memcpy(&halves, from, sizeof halves);
  const QuadBits bits = __builtin_convertvector(halves, QuadBits) << 16;
  Quad quad;
  std::memcpy(&quad, &bits, sizeof quad);
  return quad;
}

template <typename Element>
float dot(const float* a, const Element* b, std::int64_t count) {
  Quad sums[kSums] = {};
  std::int64_t i = 0;
  for (; i + kSums * kLanes <= count; i += kSums * kLanes) {
    for (std::int64_t k = 0; k < kSums; ++k) {
      sums[k] += load_quad(a + i + k * kLanes) * load_quad(b + i + k * kLanes);
    }
  }
  const Quad sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  float total = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  for (; i < count; ++i) total += a[i] * widen(b[i]);
  return total;
}

template <typename Element>
void add_scaled(float scale, const Element* in, std::int64_t count, float* out) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Quad sum = load_quad(out + i) + scale * load_quad(in + i);
    std::memcpy(out + i, &sum, sizeof sum);
  }
  for (; i < count; ++i) out[i] += scale * widen(in[i]);
}

}  // namespace

Attention::Attention(WorkerPool& pool)
    : pool_(pool), scratch_(static_cast<std::size_t>(pool.workers())) {}

template <typename Element>
void Attention::run_item(const AttentionShape& shape, const Item& item, std::int64_t layer,
                         const Element* query, Element* out, float* scratch) const {
  const std::int64_t group = item.heads;
  const std::int64_t key_dim = shape.key_dim;
  const std::int64_t value_dim = shape.value_dim;
  const std::int64_t positions = item.positions;
  float* queries = scratch;                  // [group, key_dim], scaled
  float* sums = queries + group * key_dim;   // [group, value_dim]
  float* scores = sums + group * value_dim;  // [group, positions]

  const std::int64_t first_head =
      item.token * shape.heads + item.kv_head * (shape.heads / shape.kv_heads) + item.first;
  for (std::int64_t i = 0; i < group * key_dim; ++i) {
    queries[i] = widen(query[first_head * key_dim + i]) * shape.scale;
  }
  for (std::int64_t i = 0; i < group * value_dim; ++i) sums[i] = 0.0F;

  for (std::int64_t first = 0; first < positions; first += KvCache::kPageTokens) {
    const auto* keys = reinterpret_cast<const Element*>(
        item.cache->keys(layer, first / KvCache::kPageTokens, item.kv_head));
    const std::int64_t count = std::min(KvCache::kPageTokens, positions - first);
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int64_t head = 0; head < group; ++head) {
        scores[head * positions + first + i] =
            dot(queries + head * key_dim, keys + i * key_dim, key_dim);
      }
    }
  }
  for (std::int64_t head = 0; head < group; ++head) {
    float* row = scores + head * positions;
    float largest = -std::numeric_limits<float>::infinity();
    for (std::int64_t i = 0; i < positions; ++i) largest = std::max(largest, row[i]);
    float total = 0.0F;
    for (std::int64_t i = 0; i < positions; ++i) {
      row[i] = std::exp(row[i] - largest);
      total += row[i];
    }
    const float inverse = 1.0F / total;
    for (std::int64_t i = 0; i < positions; ++i) row[i] *= inverse;
  }
  // Without values of their own, a key's first dims are the value.
  const bool apart = item.cache->layer(layer).value_width > 0;
  const std::int64_t stride = apart ? value_dim : key_dim;
  for (std::int64_t first = 0; first < positions; first += KvCache::kPageTokens) {
    const std::int64_t page = first / KvCache::kPageTokens;
    const auto* values =
        reinterpret_cast<const Element*>(apart ? item.cache->values(layer, page, item.kv_head)
                                               : item.cache->keys(layer, page, item.kv_head));
    const std::int64_t count = std::min(KvCache::kPageTokens, positions - first);
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int64_t head = 0; head < group; ++head) {
        add_scaled(scores[head * positions + first + i], values + i * stride, value_dim,
                   sums + head * value_dim);
      }
    }
  }
  for (std::int64_t i = 0; i < group * value_dim; ++i) {
    store(sums[i], out + first_head * value_dim + i);
  }
}

void Attention::run(const AttentionShape& shape, std::int64_t layer,
                    std::span<const AttentionRow> rows, const void* query, void* out) {
  items_.clear();
  const std::int64_t group = shape.heads / shape.kv_heads;
  // Where there are fewer tokens and key heads than workers, the query heads of a key head are
  // shared out. Each head's result is the same however many run together.
  std::int64_t units = 0;
  for (const AttentionRow& row : rows) units += row.tokens * shape.kv_heads;
  const std::int64_t parts = std::clamp(
      (pool_.workers() + units - 1) / std::max<std::int64_t>(units, 1), std::int64_t{1}, group);
  const std::int64_t part = (group + parts - 1) / parts;
  std::int64_t longest = 0;
  for (const AttentionRow& row : rows) {
    for (std::int64_t token = 0; token < row.tokens; ++token) {
      for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
        Item item;
        item.cache = row.cache;
        item.token = row.first + token;
        item.positions = row.cache->length() + token + 1;
        item.kv_head = head;
        longest = std::max(longest, item.positions);
        for (item.first = 0; item.first < group; item.first += part) {
          item.heads = std::min(part, group - item.first);
          items_.push_back(item);
        }
      }
    }
  }
  const auto needed = static_cast<std::size_t>(part * (longest + shape.key_dim + shape.value_dim));
  for (std::vector<float>& scratch : scratch_) {
    if (scratch.size() < needed) scratch.resize(needed + needed / 2);
  }
  pool_.for_each(static_cast<std::int64_t>(items_.size()), [&](std::int64_t index, int worker) {
    const Item& item = items_[static_cast<std::size_t>(index)];
    float* scratch = scratch_[static_cast<std::size_t>(worker)].data();
    if (shape.dtype == DType::kF32) {
      run_item(shape, item, layer, static_cast<const float*>(query), static_cast<float*>(out),
               scratch);
    } else {
      run_item(shape, item, layer, static_cast<const std::uint16_t*>(query),
               static_cast<std::uint16_t*>(out), scratch);
    }
  });
}

}  // namespace replayssm::model
