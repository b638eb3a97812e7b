// See attention.hpp.
#include "model/layers/attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>

#include "core/text.hpp"
#include "model/layers/norms.hpp"

namespace replayssm::model {

// --- keys and values
// --------------------------------------------------------------------------------------------

std::int64_t KvCache::offset(std::int64_t layer, std::int64_t which, std::int64_t kv_head) const {
  return ((layer * 2 + which) * shape_.kv_heads + kv_head) * kPageTokens * shape_.head_dim *
         static_cast<std::int64_t>(dtype_bytes(shape_.dtype));
}

const std::byte* KvCache::keys(std::int64_t layer, std::int64_t page, std::int64_t kv_head) const {
  return pages_[static_cast<std::size_t>(page)]->data() + offset(layer, 0, kv_head);
}

const std::byte* KvCache::values(std::int64_t layer, std::int64_t page,
                                 std::int64_t kv_head) const {
  return pages_[static_cast<std::size_t>(page)]->data() + offset(layer, 1, kv_head);
}

std::int64_t KvCache::bytes() const {
  return static_cast<std::int64_t>(pages_.size()) * page_bytes();
}

KvCache KvCache::fork() const {
  KvCache other(shape_);
  other.length_ = length_;
  const auto used = static_cast<std::size_t>((length_ + kPageTokens - 1) / kPageTokens);
  other.pages_.assign(pages_.begin(), pages_.begin() + static_cast<std::ptrdiff_t>(used));
  return other;
}

Status KvCache::reserve(std::int64_t tokens) {
  if (shape_.layers == 0 || tokens == 0) return {};
  const auto first = static_cast<std::size_t>(length_ / kPageTokens);
  const auto end = static_cast<std::size_t>((length_ + tokens + kPageTokens - 1) / kPageTokens);
  try {
    for (std::size_t page = first; page < end; ++page) {
      if (page >= pages_.size()) {
        pages_.push_back(
            std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(page_bytes())));
      } else if (pages_[page].use_count() > 1) {
        pages_[page] = std::make_shared<std::vector<std::byte>>(*pages_[page]);
      }
    }
  } catch (const std::bad_alloc&) {
    return error(StatusCode::kResourceExhausted, "attention: no memory for ", page_bytes(),
                 " more bytes of keys and values");
  }
  return {};
}

void KvCache::write(std::int64_t layer, std::int64_t position, const void* key, const void* value) {
  std::byte* page = pages_[static_cast<std::size_t>(position / kPageTokens)]->data();
  const std::int64_t row_bytes =
      shape_.head_dim * static_cast<std::int64_t>(dtype_bytes(shape_.dtype));
  const std::int64_t within = position % kPageTokens * row_bytes;
  for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
    std::memcpy(page + offset(layer, 0, head) + within,
                static_cast<const std::byte*>(key) + head * row_bytes,
                static_cast<std::size_t>(row_bytes));
    std::memcpy(page + offset(layer, 1, head) + within,
                static_cast<const std::byte*>(value) + head * row_bytes,
                static_cast<std::size_t>(row_bytes));
  }
}

// --- scores and sums
// --------------------------------------------------------------------------------------------

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

Attention::Attention(const AttentionShape& shape, WorkerPool& pool)
    : shape_(shape), pool_(pool), scratch_(static_cast<std::size_t>(pool.workers())) {}

template <typename Element>
void Attention::run_item(const Item& item, std::int64_t layer, const Element* query, Element* out,
                         float* scratch) const {
  const std::int64_t group = shape_.heads / shape_.kv_heads;
  const std::int64_t dim = shape_.head_dim;
  const std::int64_t positions = item.positions;
  float* queries = scratch;             // [group, dim], scaled
  float* sums = queries + group * dim;  // [group, dim]
  float* scores = sums + group * dim;   // [group, positions]

  const std::int64_t base = (item.token * shape_.heads + item.kv_head * group) * dim;
  const float scale = 1.0F / std::sqrt(static_cast<float>(dim));
  for (std::int64_t i = 0; i < group * dim; ++i) {
    queries[i] = widen(query[base + i]) * scale;
    sums[i] = 0.0F;
  }

  for (std::int64_t first = 0; first < positions; first += KvCache::kPageTokens) {
    const auto* keys = reinterpret_cast<const Element*>(
        item.cache->keys(layer, first / KvCache::kPageTokens, item.kv_head));
    const std::int64_t count = std::min(KvCache::kPageTokens, positions - first);
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int64_t head = 0; head < group; ++head) {
        scores[head * positions + first + i] = dot(queries + head * dim, keys + i * dim, dim);
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
  for (std::int64_t first = 0; first < positions; first += KvCache::kPageTokens) {
    const auto* values = reinterpret_cast<const Element*>(
        item.cache->values(layer, first / KvCache::kPageTokens, item.kv_head));
    const std::int64_t count = std::min(KvCache::kPageTokens, positions - first);
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int64_t head = 0; head < group; ++head) {
        add_scaled(scores[head * positions + first + i], values + i * dim, dim, sums + head * dim);
      }
    }
  }
  for (std::int64_t i = 0; i < group * dim; ++i) store(sums[i], out + base + i);
}

void Attention::run(std::int64_t layer, std::span<const AttentionRow> rows, const void* query,
                    void* out) {
  items_.clear();
  std::int64_t longest = 0;
  for (const AttentionRow& row : rows) {
    for (std::int64_t token = 0; token < row.tokens; ++token) {
      for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
        Item item;
        item.cache = row.cache;
        item.token = row.first + token;
        item.positions = row.cache->length() + token + 1;
        item.kv_head = head;
        items_.push_back(item);
        longest = std::max(longest, item.positions);
      }
    }
  }
  const std::int64_t group = shape_.heads / shape_.kv_heads;
  const auto needed = static_cast<std::size_t>(group * (longest + 2 * shape_.head_dim));
  for (std::vector<float>& scratch : scratch_) {
    if (scratch.size() < needed) scratch.resize(needed + needed / 2);
  }
  pool_.for_each(static_cast<std::int64_t>(items_.size()), [&](std::int64_t index, int worker) {
    const Item& item = items_[static_cast<std::size_t>(index)];
    float* scratch = scratch_[static_cast<std::size_t>(worker)].data();
    if (shape_.dtype == DType::kF32) {
      run_item(item, layer, static_cast<const float*>(query), static_cast<float*>(out), scratch);
    } else {
      run_item(item, layer, static_cast<const std::uint16_t*>(query),
               static_cast<std::uint16_t*>(out), scratch);
    }
  });
}

}  // namespace replayssm::model
