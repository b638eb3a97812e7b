// Products against sums in double, for odd shapes, every block of rows and both types.
#include "model/layers/linear.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "model/layers/bf16.hpp"

namespace replayssm::model {
namespace {

struct Shape {
  std::int64_t outputs, inputs;
};

std::vector<float> random_values(std::int64_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  // Values that both types hold.
  for (float& value : values) value = bf16_to_f32(f32_to_bf16(normal(random)));
  return values;
}

std::vector<std::uint16_t> narrow(const std::vector<float>& values) {
  std::vector<std::uint16_t> out(values.size());
  f32_to_bf16(values.data(), out.data(), static_cast<std::int64_t>(values.size()));
  return out;
}

// The largest error in units of its bound: inputs * 2^-24 * |w| |x| for sums in f32 in any order,
// and the rounding of the result where it is bf16.
double worst(const std::vector<float>& w, const std::vector<float>& x,
             const std::vector<float>& out, Shape shape, std::int64_t rows, bool bf16_out) {
  double largest = 0.0;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t o = 0; o < shape.outputs; ++o) {
      double sum = 0.0, ww = 0.0, xx = 0.0;
      for (std::int64_t i = 0; i < shape.inputs; ++i) {
        const double a = w[static_cast<std::size_t>(o * shape.inputs + i)];
        const double b = x[static_cast<std::size_t>(row * shape.inputs + i)];
        sum += a * b;
        ww += a * a;
        xx += b * b;
      }
      const double size = std::sqrt(ww * xx);
      const double bound = static_cast<double>(shape.inputs) * 0x1.0p-24 * size +
                           (bf16_out ? 0x1.0p-8 * std::fabs(sum) : 0.0) + 1e-30;
      const double mine = out[static_cast<std::size_t>(row * shape.outputs + o)];
      const double error = std::fabs(mine - sum) / bound;
      largest = std::isnan(error) ? HUGE_VAL : std::max(largest, error);
    }
  }
  return largest;
}

constexpr Shape kShapes[] = {{1, 1},     {3, 5},      {17, 40},  {512, 33},
                             {64, 2048}, {1000, 257}, {4160, 96}};

TEST(Linear, MatchesSumsInDouble) {
  WorkerPool pool(2);
  ProductContext context(pool);
  for (const Shape shape : kShapes) {
    const auto w = random_values(shape.outputs * shape.inputs, 1);
    const auto w16 = narrow(w);
    for (const bool bf16 : {false, true}) {
      for (const bool stored_bf16 : {false, true}) {
        MatrixView view;
        view.data = stored_bf16 ? static_cast<const void*>(w16.data()) : w.data();
        view.dtype = stored_bf16 ? DType::kBF16 : DType::kF32;
        view.outputs = shape.outputs;
        view.inputs = shape.inputs;
        const auto linear = Linear::create(view, bf16 ? DType::kBF16 : DType::kF32, pool);
        ASSERT_TRUE(linear.ok()) << linear.status().to_string();
        for (const std::int64_t rows : {1, 2, 31, 33, 70, 300}) {
          if (rows > 2 && rows * shape.outputs * shape.inputs > 6000000) continue;
          const auto x = random_values(rows * shape.inputs, 2);
          const auto x16 = narrow(x);
          std::vector<float> out(static_cast<std::size_t>(rows * shape.outputs) + 8, 123.0F);
          const void* in = bf16 ? static_cast<const void*>(x16.data()) : x.data();
          ASSERT_TRUE(linear->run(in, rows, out.data(), DType::kF32, context).ok());
          EXPECT_LE(worst(w, x, out, shape, rows, false), 1.0)
              << shape.outputs << " x " << shape.inputs << ", rows " << rows << ", bf16 " << bf16;
          for (std::size_t i = out.size() - 8; i < out.size(); ++i) EXPECT_EQ(out[i], 123.0F);

          std::vector<std::uint16_t> out16(static_cast<std::size_t>(rows * shape.outputs));
          ASSERT_TRUE(linear->run(in, rows, out16.data(), DType::kBF16, context).ok());
          std::vector<float> widened(out16.size());
          bf16_to_f32(out16.data(), widened.data(), static_cast<std::int64_t>(out16.size()));
          EXPECT_LE(worst(w, x, widened, shape, rows, true), 1.0);
          if (shape.inputs > 1) {
            // The broken twin: one input of one row off by its own size.
            auto other = x;
            other[0] = -other[0] + 1.0F;
            EXPECT_GT(worst(w, other, out, shape, rows, false), 1.0);
          }
        }
      }
    }
  }
}

// A row's product does not depend on the rows beside it, nor on the number of threads, with the
// kernels that promise it (AVX-512; linear.cpp). The decode loop's reproducibility over batches
// rests on this.
TEST(Linear, RowsDoNotDependOnTheBatchOrTheThreads) {
  if (product_kernel_name(DType::kF32).find("avx512") == std::string::npos) {
    GTEST_SKIP() << "kernel " << product_kernel_name(DType::kF32);
  }
  WorkerPool one(1), three(3);
  ProductContext context_one(one), context_three(three);
  const Shape shape{700, 513};
  const auto w = random_values(shape.outputs * shape.inputs, 3);
  const auto x = random_values(300 * shape.inputs, 4);
  MatrixView view;
  view.data = w.data();
  view.outputs = shape.outputs;
  view.inputs = shape.inputs;
  const auto linear = Linear::create(view, DType::kF32, one);
  ASSERT_TRUE(linear.ok());
  std::vector<float> all(300 * 700), single(700);
  ASSERT_TRUE(linear->run(x.data(), 300, all.data(), DType::kF32, context_three).ok());
  for (std::int64_t row = 0; row < 300; row += 7) {
    ASSERT_TRUE(
        linear->run(x.data() + row * shape.inputs, 1, single.data(), DType::kF32, context_one)
            .ok());
    EXPECT_EQ(std::memcmp(single.data(), all.data() + row * 700, 700 * sizeof(float)), 0) << row;
  }
}

// Bits of outputs [rows, heads, outputs + kGap] of several matrices, run one by one or together.
// Inputs and outputs of a row lie side by side with room between them, which stays as it is.
constexpr std::int64_t kGap = 3;

std::vector<std::byte> outputs_of_heads(Shape shape, std::int64_t rows, DType compute,
                                        DType out_dtype, int threads, bool together) {
  constexpr std::int64_t kHeads = 5;
  WorkerPool pool(threads);
  ProductContext context(pool);
  std::vector<Linear> heads;
  for (std::uint64_t head = 0; head < kHeads; ++head) {
    const auto w = random_values(shape.outputs * shape.inputs, 10 + head);
    auto linear =
        Linear::create({w.data(), DType::kF32, shape.outputs, shape.inputs}, compute, pool);
    EXPECT_TRUE(linear.ok());
    heads.push_back(std::move(*linear));
  }
  const std::int64_t in_step = shape.inputs + kGap;
  const std::int64_t out_step = shape.outputs + kGap;
  const auto x = random_values(rows * kHeads * in_step, 4);
  const auto x16 = narrow(x);
  const auto in_bytes = static_cast<std::int64_t>(dtype_bytes(compute));
  const auto out_bytes = static_cast<std::int64_t>(dtype_bytes(out_dtype));
  const auto* in = compute == DType::kF32 ? reinterpret_cast<const std::byte*>(x.data())
                                          : reinterpret_cast<const std::byte*>(x16.data());
  std::vector<std::byte> out(static_cast<std::size_t>(rows * kHeads * out_step * out_bytes),
                             std::byte{0x5a});
  if (together) {
    EXPECT_TRUE(Linear::run_each(heads, {in, kHeads * in_step, in_step}, rows,
                                 {out.data(), kHeads * out_step, out_step}, out_dtype, context)
                    .ok());
    return out;
  }
  for (std::int64_t head = 0; head < kHeads; ++head) {
    std::vector<std::byte> dense_in(static_cast<std::size_t>(rows * shape.inputs * in_bytes));
    std::vector<std::byte> dense_out(static_cast<std::size_t>(rows * shape.outputs * out_bytes));
    for (std::int64_t row = 0; row < rows; ++row) {
      std::memcpy(dense_in.data() + row * shape.inputs * in_bytes,
                  in + (row * kHeads + head) * in_step * in_bytes,
                  static_cast<std::size_t>(shape.inputs * in_bytes));
    }
    EXPECT_TRUE(heads[static_cast<std::size_t>(head)]
                    .run(dense_in.data(), rows, dense_out.data(), out_dtype, context)
                    .ok());
    for (std::int64_t row = 0; row < rows; ++row) {
      std::memcpy(out.data() + (row * kHeads + head) * out_step * out_bytes,
                  dense_out.data() + row * shape.outputs * out_bytes,
                  static_cast<std::size_t>(shape.outputs * out_bytes));
    }
  }
  return out;
}

TEST(Linear, MatricesSideBySideGiveTheBitsOfEachAlone) {
  // One slice a matrix, and several of two widths.
  for (const Shape shape : {Shape{24, 17}, Shape{700, 513}}) {
    for (const std::int64_t rows : {1, 2, 33, 300}) {
      for (const DType compute : {DType::kF32, DType::kBF16}) {
        for (const DType out_dtype : {DType::kF32, DType::kBF16}) {
          if (shape.outputs > 100 && rows > 33) continue;
          const auto alone = outputs_of_heads(shape, rows, compute, out_dtype, 2, false);
          for (const int threads : {1, 3}) {
            EXPECT_EQ(outputs_of_heads(shape, rows, compute, out_dtype, threads, true), alone)
                << shape.outputs << ", rows " << rows << ", threads " << threads;
          }
        }
      }
    }
  }
}

TEST(Linear, MatricesThatDifferDoNotRunTogether) {
  WorkerPool pool(1);
  ProductContext context(pool);
  const std::vector<float> w(12, 1.0F);
  std::vector<Linear> matrices;
  for (const Shape shape : {Shape{2, 3}, Shape{3, 2}}) {
    auto linear =
        Linear::create({w.data(), DType::kF32, shape.outputs, shape.inputs}, DType::kF32, pool);
    ASSERT_TRUE(linear.ok());
    matrices.push_back(std::move(*linear));
  }
  std::vector<float> out(6, 7.0F);
  const Status status =
      Linear::run_each(matrices, {w.data(), 3, 0}, 1, {out.data(), 6, 3}, DType::kF32, context);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("given 2 x 3 f32 and 3 x 2 f32"), std::string::npos)
      << status.message();
  EXPECT_EQ(out, std::vector<float>(6, 7.0F));
  EXPECT_TRUE(Linear::run_each({}, {}, 1, {}, DType::kF32, context).ok());
}

TEST(Linear, RefusesWhatItCannotTake) {
  WorkerPool pool(1);
  MatrixView view;
  EXPECT_EQ(Linear::create(view, DType::kF32, pool).status().code(), StatusCode::kInvalidArgument);
  const float value = 1.0F;
  view.data = &value;
  view.outputs = 1;
  view.inputs = 1;
  view.dtype = DType::kF16;
  EXPECT_EQ(Linear::create(view, DType::kF32, pool).status().code(), StatusCode::kUnsupported);
}

TEST(Bf16, RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(f32_to_bf16(1.0F), 0x3f80);
  EXPECT_EQ(f32_to_bf16(1.0F + 0x1.0p-8F), 0x3f80);  // a tie, to even
  EXPECT_EQ(f32_to_bf16(1.0F + 0x1.8p-7F), 0x3f82);  // a tie, to even upwards
  EXPECT_EQ(f32_to_bf16(HUGE_VALF), 0x7f80);
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::nanf("")))));
}

}  // namespace
}  // namespace replayssm::model
