// What the files that call oneDNN share: one engine, calls without threads of their own, and the
// primitives and buffers of a ProductContext. Functions here may throw dnnl::error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <dnnl.hpp>
#include <map>
#include <tuple>
#include <vector>

#include "model/layers/linear.hpp"
#include "replayssm/dtype.hpp"
#include "replayssm/status.hpp"

namespace replayssm::model {

// While it lives, oneDNN calls of this thread start no threads of their own.
class SingleThreadScope {
 public:
  SingleThreadScope();
  SingleThreadScope(const SingleThreadScope&) = delete;
  SingleThreadScope& operator=(const SingleThreadScope&) = delete;
  ~SingleThreadScope();

 private:
  int before_;
};

[[nodiscard]] const dnnl::engine& cpu_engine();
[[nodiscard]] dnnl::memory::data_type dnnl_type(DType dtype);

// [rows, inputs] times weights [inputs, outputs] of one type into f32. packed: the weights' layout;
// null: oneDNN's choice, which weights_desc() then tells.
[[nodiscard]] dnnl::matmul::primitive_desc product_description(
    std::int64_t rows, std::int64_t outputs, std::int64_t inputs, DType dtype,
    const dnnl::memory::desc* packed = nullptr);

// Whether this machine has bf16 products. Does not throw.
[[nodiscard]] bool bf16_products_exist();

[[nodiscard]] Status dnnl_failure(const char* what, const dnnl::error& failure);

class ProductContext::Impl {
 public:
  struct Primitive {
    dnnl::matmul matmul;
    dnnl::memory::desc in, weights, out, scratch;
    struct Arguments {
      dnnl::memory in, weights, out, scratch;
    };
    std::vector<Arguments> workers;  // the handles a worker points at its data
  };
  struct Worker {
    dnnl::stream stream{cpu_engine()};
    std::vector<std::byte> scratch;
    std::vector<std::byte> in;  // inputs that lie apart, brought together
    std::vector<float> out;     // a slice's outputs before they are spread
  };

  explicit Impl(int worker_count);

  // The primitive of a shape, made at its first use together with room in every worker. References
  // stay valid.
  [[nodiscard]] Primitive& primitive(std::int64_t rows, std::int64_t outputs, std::int64_t inputs,
                                     DType dtype, const dnnl::memory::desc& packed);
  // Runs it as worker number `index`. Does not throw.
  [[nodiscard]] dnnl_status_t execute(Primitive& primitive, std::size_t index, const void* in,
                                      const void* weights, void* out);

  std::vector<Worker> workers;
  std::vector<float> widened;  // inputs, where bf16 products are emulated

 private:
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, DType>;
  std::map<Key, Primitive> primitives_;
};

}  // namespace replayssm::model
