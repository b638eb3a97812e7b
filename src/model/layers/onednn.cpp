// See onednn.hpp.
#include "model/layers/onednn.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "core/text.hpp"

// Of the OpenMP runtime that oneDNN stands on; its header is not part of every compiler.
extern "C" {
void omp_set_num_threads(int threads);
int omp_get_max_threads();
}

namespace replayssm::model {

using dnnl::memory;

SingleThreadScope::SingleThreadScope() : before_(omp_get_max_threads()) {
  if (before_ != 1) omp_set_num_threads(1);
}

SingleThreadScope::~SingleThreadScope() {
  if (before_ != 1) omp_set_num_threads(before_);
}

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

memory::data_type dnnl_type(DType dtype) {
  return dtype == DType::kBF16 ? memory::data_type::bf16 : memory::data_type::f32;
}

dnnl::matmul::primitive_desc product_description(std::int64_t rows, std::int64_t outputs,
                                                 std::int64_t inputs, DType dtype,
                                                 const memory::desc* packed) {
  const memory::desc in({rows, inputs}, dnnl_type(dtype), memory::format_tag::ab);
  const memory::desc any({inputs, outputs}, dnnl_type(dtype), memory::format_tag::any);
  const memory::desc out({rows, outputs}, memory::data_type::f32, memory::format_tag::ab);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const dnnl::matmul::desc product(in, packed != nullptr ? *packed : any, out);
  return {product, attributes, cpu_engine()};
}

bool bf16_products_exist() {
  static const bool exist = [] {
    try {
      const SingleThreadScope scope;
      (void)product_description(1, 64, 64, DType::kBF16);
      return true;
    } catch (const dnnl::error&) {
      return false;
    }
  }();
  return exist;
}

Status dnnl_failure(const char* what, const dnnl::error& failure) {
  return error(
      failure.status == dnnl_out_of_memory ? StatusCode::kResourceExhausted : StatusCode::kInternal,
      "matrix product: ", what, " failed in oneDNN: ", failure.message);
}

ProductContext::Impl::Impl(int worker_count) {
  workers.resize(static_cast<std::size_t>(worker_count));
}

ProductContext::Impl::Primitive& ProductContext::Impl::primitive(std::int64_t rows,
                                                                 std::int64_t outputs,
                                                                 std::int64_t inputs, DType dtype,
                                                                 const memory::desc& packed) {
  const Key key{rows, outputs, inputs, dtype};
  const auto found = primitives_.find(key);
  if (found != primitives_.end() && found->second.weights == packed) return found->second;
  const SingleThreadScope scope;
  const auto description = product_description(rows, outputs, inputs, dtype, &packed);
  Primitive made;
  made.matmul = dnnl::matmul(description);
  made.in = description.src_desc();
  made.weights = packed;
  made.out = description.dst_desc();
  made.scratch = description.scratchpad_desc();
  const std::size_t scratch_bytes = made.scratch.get_size() + 64;  // room to align it
  const auto outs = static_cast<std::size_t>(rows * outputs);
  for (Worker& worker : workers) {
    if (worker.scratch.size() < scratch_bytes) worker.scratch.resize(scratch_bytes);
    if (worker.out.size() < outs) worker.out.resize(outs);
    Primitive::Arguments arguments;
    arguments.in = memory(made.in, cpu_engine(), nullptr);
    arguments.weights = memory(made.weights, cpu_engine(), nullptr);
    arguments.out = memory(made.out, cpu_engine(), nullptr);
    arguments.scratch = memory(made.scratch, cpu_engine(), nullptr);
    made.workers.push_back(std::move(arguments));
  }
  return primitives_.insert_or_assign(key, std::move(made)).first->second;
}

dnnl_status_t ProductContext::Impl::execute(Primitive& primitive, std::size_t index, const void* in,
                                            const void* weights, void* out) {
  Primitive::Arguments& arguments = primitive.workers[index];
  Worker& worker = workers[index];
  void* scratch = worker.scratch.data();
  std::size_t room = worker.scratch.size();
  scratch = std::align(64, 1, scratch, room);
  // oneDNN takes inputs as pointers that it could write through; it only reads them.
  const std::pair<const memory*, const void*> handles[] = {{&arguments.in, in},
                                                           {&arguments.weights, weights},
                                                           {&arguments.out, out},
                                                           {&arguments.scratch, scratch}};
  for (const auto& [handle, data] : handles) {
    const dnnl_status_t status =
        dnnl_memory_set_data_handle_v2(handle->get(), const_cast<void*>(data), worker.stream.get());
    if (status != dnnl_success) return status;
  }
  const dnnl_exec_arg_t list[] = {{DNNL_ARG_SRC, arguments.in.get()},
                                  {DNNL_ARG_WEIGHTS, arguments.weights.get()},
                                  {DNNL_ARG_DST, arguments.out.get()},
                                  {DNNL_ARG_SCRATCHPAD, arguments.scratch.get()}};
  const SingleThreadScope scope;
  return dnnl_primitive_execute(primitive.matmul.get(), worker.stream.get(), 4, list);
}

ProductContext::ProductContext(WorkerPool& pool)
    : pool_(pool), impl_(std::make_unique<Impl>(pool.workers())) {}
ProductContext::~ProductContext() = default;

}  // namespace replayssm::model
