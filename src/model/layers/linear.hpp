// Matrix products y = x W^T by oneDNN: weights packed once into the layout its kernels read
// fastest, cut into slices of outputs that the pool's workers take one by one.
//
// oneDNN's own threads stay out of it (each call runs on the worker that makes it), so the sums of
// one output are formed in an order that depends neither on the number of threads nor, with the
// AVX-512 kernels, on how many rows are computed together.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "model/layers/worker_pool.hpp"
#include "replayssm/dtype.hpp"
#include "replayssm/status.hpp"

namespace replayssm::model {

// A row-major matrix [outputs, inputs] of f32 or bf16, as a checkpoint stores it.
struct MatrixView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t outputs = 0;
  std::int64_t inputs = 0;
};

// What products need while they run: primitives a shape, working memory a worker. One an engine.
class ProductContext {
 public:
  explicit ProductContext(WorkerPool& pool);
  ~ProductContext();
  ProductContext(const ProductContext&) = delete;
  ProductContext& operator=(const ProductContext&) = delete;
  [[nodiscard]] WorkerPool& pool() { return pool_; }
  class Impl;
  [[nodiscard]] Impl& impl() { return *impl_; }

 private:
  WorkerPool& pool_;
  std::unique_ptr<Impl> impl_;
};

// Where rows of several matrices' inputs or outputs lie in one tensor: row r of matrix m begins r *
// stride + m * step elements behind `data`.
template <typename Data>
struct SideBySide {
  Data* data = nullptr;
  std::int64_t stride = 0;
  std::int64_t step = 0;
};

class Linear {
 public:
  Linear();
  Linear(Linear&&) noexcept;
  Linear& operator=(Linear&&) noexcept;
  ~Linear();

  // Packs `matrix`, which is not needed afterwards. compute: kF32, or kBF16, which a machine
  // without bf16 products gets as f32 weights (`emulated()`).
  [[nodiscard]] static Result<Linear> create(const MatrixView& matrix, DType compute,
                                             WorkerPool& pool);

  // out[row, :] = W in[row, :] for `rows` rows. in: [rows, inputs] of the compute dtype, gap-free.
  // out: [rows, outputs] f32 or bf16, gap-free. Sums are f32 and rounded once.
  [[nodiscard]] Status run(const void* in, std::int64_t rows, void* out, DType out_dtype,
                           ProductContext& context) const;

  // The same for matrices of one shape and type, as of the heads of attention, each with inputs and
  // outputs of its own; the workers share all of them. kInvalidArgument: the matrices differ.
  [[nodiscard]] static Status run_each(std::span<const Linear> matrices, SideBySide<const void> in,
                                       std::int64_t rows, SideBySide<void> out, DType out_dtype,
                                       ProductContext& context);

  [[nodiscard]] std::int64_t inputs() const;
  [[nodiscard]] std::int64_t outputs() const;
  [[nodiscard]] std::int64_t bytes() const;  // packed
  [[nodiscard]] bool emulated() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// The kernel oneDNN picks for one row of f32, for `explain`.
[[nodiscard]] std::string product_kernel_name(DType compute);

}  // namespace replayssm::model
