// Attention against a plain sum in double, and keys and values that are shared, copied on write and
// rolled back.
#include "model/layers/attention.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "model/layers/bf16.hpp"

namespace replayssm::model {
namespace {

AttentionShape small_shape(DType dtype) {
  AttentionShape shape;
  shape.heads = 6;
  shape.kv_heads = 2;
  shape.key_dim = 20;
  shape.value_dim = 20;
  shape.scale = 1.0F / std::sqrt(20.0F);
  shape.dtype = dtype;
  return shape;
}

// Two layers of that shape.
KvShape kv_of(const AttentionShape& shape) {
  const KvLayer layer{shape.kv_heads, shape.key_dim, shape.value_dim};
  return KvShape{{layer, layer}, shape.dtype};
}

std::vector<float> random_values(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = bf16_to_f32(f32_to_bf16(normal(random)));
  return values;
}

// Stores rows as the shape's type.
std::vector<std::byte> stored(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> out(values.size() * dtype_bytes(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF32) {
      std::memcpy(out.data() + 4 * i, &values[i], 4);
    } else {
      const std::uint16_t half = f32_to_bf16(values[i]);
      std::memcpy(out.data() + 2 * i, &half, 2);
    }
  }
  return out;
}

double exact(const AttentionShape& shape, const std::vector<float>& q, const std::vector<float>& k,
             const std::vector<float>& v, std::int64_t token, std::int64_t head, std::int64_t d) {
  const auto kv_head = static_cast<std::size_t>(head / (shape.heads / shape.kv_heads));
  const auto dim = static_cast<std::size_t>(shape.key_dim);
  const auto at = [&](std::int64_t t, std::size_t i) {
    return (static_cast<std::size_t>(t) * static_cast<std::size_t>(shape.kv_heads) + kv_head) *
               dim +
           i;
  };
  double total = 0.0, sum = 0.0;
  for (std::int64_t t = 0; t <= token; ++t) {
    double score = 0.0;
    for (std::size_t i = 0; i < dim; ++i) {
      const auto qi = static_cast<std::size_t>(token * shape.heads + head) * dim + i;
      score += static_cast<double>(q[qi]) * static_cast<double>(k[at(t, i)]);
    }
    const double weight = std::exp(score / std::sqrt(static_cast<double>(dim)));
    total += weight;
    sum += weight * static_cast<double>(v[at(t, static_cast<std::size_t>(d))]);
  }
  return sum / total;
}

// Runs `tokens` tokens in pieces of `piece` and returns the largest error.
double worst_error(DType dtype, std::int64_t tokens, std::int64_t piece, bool break_it) {
  const AttentionShape shape = small_shape(dtype);
  WorkerPool pool(2);
  Attention attention(pool);
  KvCache cache(kv_of(shape));
  const auto q = random_values(static_cast<std::size_t>(tokens * shape.heads * shape.key_dim), 1);
  auto k = random_values(static_cast<std::size_t>(tokens * shape.kv_heads * shape.key_dim), 2);
  const auto v =
      random_values(static_cast<std::size_t>(tokens * shape.kv_heads * shape.key_dim), 3);
  const auto element = dtype_bytes(dtype);
  const auto q_bytes = stored(q, dtype), k_bytes = stored(k, dtype), v_bytes = stored(v, dtype);
  if (break_it) k[0] += 0.25F;
  std::vector<float> out;
  for (std::int64_t first = 0; first < tokens; first += piece) {
    const std::int64_t count = std::min(piece, tokens - first);
    EXPECT_TRUE(cache.reserve(count).ok());
    for (std::int64_t t = first; t < first + count; ++t) {
      const auto offset = static_cast<std::size_t>(t * shape.kv_heads * shape.key_dim) * element;
      cache.write(1, t, k_bytes.data() + offset, v_bytes.data() + offset);
    }
    AttentionRow row;
    row.cache = &cache;
    row.tokens = count;
    const auto width = static_cast<std::size_t>(shape.heads * shape.key_dim);
    std::vector<std::byte> result(static_cast<std::size_t>(count) * width * element);
    attention.run(shape, 1, {&row, 1},
                  q_bytes.data() + static_cast<std::size_t>(first) * width * element,
                  result.data());
    for (std::size_t i = 0; i < static_cast<std::size_t>(count) * width; ++i) {
      float value = 0.0F;
      if (dtype == DType::kF32) {
        std::memcpy(&value, result.data() + 4 * i, 4);
      } else {
        std::uint16_t half = 0;
        std::memcpy(&half, result.data() + 2 * i, 2);
        value = bf16_to_f32(half);
      }
      out.push_back(value);
    }
    cache.set_length(first + count);
  }
  double worst = 0.0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      for (std::int64_t d = 0; d < shape.key_dim; ++d) {
        const double mine =
            out[static_cast<std::size_t>((t * shape.heads + h) * shape.key_dim + d)];
        worst = std::max(worst, std::fabs(mine - exact(shape, q, k, v, t, h, d)));
      }
    }
  }
  return worst;
}

// Values are of size 1, scores of size |q||k| / sqrt(dim) = sqrt(dim) at most 3 sqrt(dim): the
// error of a weight is (dim + 2) roundings of its score, that of the sum one a position.
double tolerance(DType dtype, std::int64_t tokens) {
  const double f32 = 0x1.0p-24 * (3.0 * std::sqrt(20.0) * 22.0 + static_cast<double>(tokens)) * 4.0;
  return dtype == DType::kF32 ? f32 : f32 + 0x1.0p-9 * 4.0;
}

TEST(Attention, MatchesSumsInDouble) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t piece : {1, 7, 64, 150}) {
      EXPECT_LE(worst_error(dtype, 150, piece, false), tolerance(dtype, 150)) << piece;
    }
    EXPECT_GT(worst_error(dtype, 150, 7, true), tolerance(dtype, 150));
  }
}

class KvCacheTest : public testing::Test {
 protected:
  // Fills the next positions with rows of one value and commits them.
  void append(KvCache& cache, std::int64_t tokens, float value) {
    ASSERT_TRUE(cache.reserve(tokens).ok());
    const std::vector<float> row(static_cast<std::size_t>(shape_.kv_heads * shape_.key_dim), value);
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t layer = 0; layer < 2; ++layer)
        cache.write(layer, cache.length() + t, row.data(), row.data());
    }
    cache.set_length(cache.length() + tokens);
  }
  float at(const KvCache& cache, std::int64_t position) const {
    float value = 0.0F;
    const auto* page = cache.values(1, position / KvCache::kPageTokens, 1);
    std::memcpy(&value, page + position % KvCache::kPageTokens * shape_.key_dim * 4, 4);
    return value;
  }
  AttentionShape shape_ = small_shape(DType::kF32);
};

TEST_F(KvCacheTest, ForksShareAndCopyOnWrite) {
  KvCache cache(kv_of(shape_));
  append(cache, 100, 1.0F);
  KvCache fork = cache.fork();
  EXPECT_EQ(fork.length(), 100);
  EXPECT_EQ(fork.keys(0, 0, 0), cache.keys(0, 0, 0));  // the same page
  append(cache, 3, 2.0F);
  append(fork, 3, 3.0F);
  EXPECT_EQ(fork.keys(0, 0, 0), cache.keys(0, 0, 0));
  EXPECT_NE(fork.keys(0, 1, 0), cache.keys(0, 1, 0));
  EXPECT_EQ(at(cache, 99), 1.0F);
  EXPECT_EQ(at(fork, 99), 1.0F);
  EXPECT_EQ(at(cache, 101), 2.0F);
  EXPECT_EQ(at(fork, 101), 3.0F);
}

TEST_F(KvCacheTest, RollBackIsOverwritten) {
  KvCache cache(kv_of(shape_));
  append(cache, 62, 1.0F);
  append(cache, 5, 2.0F);  // crosses a page
  cache.set_length(63);
  append(cache, 4, 3.0F);
  EXPECT_EQ(at(cache, 61), 1.0F);
  EXPECT_EQ(at(cache, 62), 2.0F);
  for (std::int64_t t = 63; t < 67; ++t) EXPECT_EQ(at(cache, t), 3.0F);
}

TEST_F(KvCacheTest, AForkAtAPageEdgeTakesNoSpareTokens) {
  KvCache cache(kv_of(shape_));
  append(cache, 64, 1.0F);
  ASSERT_TRUE(cache.reserve(1).ok());  // a page that holds nothing committed
  KvCache fork = cache.fork();
  EXPECT_EQ(fork.bytes(), 64 * kv_of(shape_).bytes_per_token());
  append(fork, 1, 5.0F);
  append(cache, 1, 6.0F);
  EXPECT_EQ(at(fork, 64), 5.0F);
  EXPECT_EQ(at(cache, 64), 6.0F);
}

}  // namespace
}  // namespace replayssm::model
