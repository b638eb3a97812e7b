// See linear.hpp. Facts measured with oneDNN 2.6.3 on a Zen 5 core: packed weights are read at 36
// GB/s by one row (15 GB/s as the checkpoint stores them); a destination with a row stride larger
// than its width falls back to a slower kernel that sums in another order, which is why slices of
// more than one row go through a dense buffer.
#include "model/layers/linear.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/text.hpp"
#include "model/layers/bf16.hpp"
#include "model/layers/onednn.hpp"

namespace replayssm::model {
namespace {

using dnnl::memory;

struct AlignedDelete {
  void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{64}); }
};
using AlignedBytes = std::unique_ptr<std::byte[], AlignedDelete>;

AlignedBytes allocate_aligned(std::int64_t bytes) {
  const auto size = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1));
  return AlignedBytes(
      static_cast<std::byte*>(::operator new[](size, std::align_val_t{64}, std::nothrow)));
}

// Rows are computed in blocks of these sizes and a remainder, so that few shapes occur.
constexpr std::int64_t kRowBlocks[] = {256, 128, 64, 32};

std::int64_t next_row_block(std::int64_t rows) {
  for (const std::int64_t block : kRowBlocks) {
    if (rows >= block) return block;
  }
  return rows;
}

// Outputs a slice: by the shape alone, so that results do not follow the number of threads. About
// 64 Ki weights keep the cost of a call (about 2 us) small beside its work; at most 64 slices.
std::int64_t slice_outputs(std::int64_t outputs, std::int64_t inputs) {
  std::int64_t slices = std::clamp<std::int64_t>(outputs * inputs / 65536, 1, 64);
  if (slices > 1) slices += slices % 2;
  const std::int64_t unit = outputs >= 4096 ? 64 : 32;
  const std::int64_t width = (outputs + slices - 1) / slices;
  return std::min(outputs, (width + unit - 1) / unit * unit);
}

// `offset` elements behind `data`.
template <typename Data>
Data* at(Data* data, DType dtype, std::int64_t offset) {
  using Byte = std::conditional_t<std::is_const_v<Data>, const std::byte, std::byte>;
  return static_cast<Byte*>(data) + offset * static_cast<std::int64_t>(dtype_bytes(dtype));
}

}  // namespace

class Linear::Impl {
 public:
  struct Slice {
    std::int64_t first = 0;
    std::int64_t outputs = 0;
    memory::desc packed;
    std::int64_t bytes = 0;
    AlignedBytes data;
  };

  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
  DType dtype = DType::kF32;  // of the packed weights
  bool emulated = false;
  std::vector<Slice> slices;

  // Rows of the inputs and outputs of some matrices.
  struct Block {
    std::int64_t rows = 0;
    SideBySide<const void> in;
    DType in_dtype = DType::kF32;
    SideBySide<void> out;
    DType out_dtype = DType::kF32;
    bool widen = false;  // inputs are bf16 and the products f32
  };

  // For matrices alike. `all`: of any number of rows.
  static Status run_blocks(std::span<const Linear> matrices, Block all, ProductContext& context);
  static Status run_block(std::span<const Linear> matrices, const Block& block,
                          ProductContext& context);
  // The inputs of matrix number `matrix`, gap-free and of this type, in `to`.
  const void* gather(const Block& block, std::int64_t matrix, std::byte* to) const;
};

namespace {

// The rows [first, first + outputs) of the matrix as `dtype`, from the matrix itself or converted
// into `buffer`.
const void* slice_source(const MatrixView& matrix, std::int64_t first, std::int64_t outputs,
                         DType dtype, std::vector<std::byte>& buffer) {
  const std::int64_t offset = first * matrix.inputs;
  const std::int64_t elements = outputs * matrix.inputs;
  const auto* stored = static_cast<const std::byte*>(matrix.data) +
                       offset * static_cast<std::int64_t>(dtype_bytes(matrix.dtype));
  const auto alignment = static_cast<std::uintptr_t>(dtype_bytes(matrix.dtype));
  const bool aligned = reinterpret_cast<std::uintptr_t>(stored) % alignment == 0;
  if (matrix.dtype == dtype && aligned) return stored;

  // A checkpoint refuses tensors that are not aligned, but a view in general promises no
  // alignment, hence the byte copies.
  buffer.resize(static_cast<std::size_t>(elements) * dtype_bytes(dtype));
  if (matrix.dtype == dtype) {
    std::memcpy(buffer.data(), stored, buffer.size());
  } else if (dtype == DType::kF32) {
    for (std::int64_t i = 0; i < elements; ++i) {
      std::uint16_t half = 0;
      std::memcpy(&half, stored + 2 * i, 2);
      const float value = bf16_to_f32(half);
      std::memcpy(buffer.data() + 4 * i, &value, 4);
    }
  } else {
    for (std::int64_t i = 0; i < elements; ++i) {
      float value = 0.0F;
      std::memcpy(&value, stored + 4 * i, 4);
      const std::uint16_t half = f32_to_bf16(value);
      std::memcpy(buffer.data() + 2 * i, &half, 2);
    }
  }
  return buffer.data();
}

// Stored weights [outputs, inputs] into the layout that oneDNN chose. Its constructor and execute()
// may throw dnnl::error; execute() may run on several threads at once.
struct Packing {
  Packing(std::int64_t output_count, std::int64_t inputs, DType dtype)
      : outputs(output_count),
        packed(product_description(1, output_count, inputs, dtype).weights_desc()),
        // [inputs, outputs] seen through a matrix whose rows are outputs.
        stored({inputs, output_count}, dnnl_type(dtype), memory::format_tag::ba),
        reorder(dnnl::reorder::primitive_desc(cpu_engine(), stored, cpu_engine(), packed)) {}

  void execute(const void* source, void* target) const {
    const SingleThreadScope scope;
    dnnl::stream stream(cpu_engine());
    memory from(stored, cpu_engine(), const_cast<void*>(source));
    memory to(packed, cpu_engine(), target);
    reorder.execute(stream, from, to);
    stream.wait();
  }

  std::int64_t outputs;
  memory::desc packed, stored;
  dnnl::reorder reorder;
};

}  // namespace

Linear::Linear() = default;
Linear::Linear(Linear&&) noexcept = default;
Linear& Linear::operator=(Linear&&) noexcept = default;
Linear::~Linear() = default;

std::int64_t Linear::inputs() const { return impl_->inputs; }
std::int64_t Linear::outputs() const { return impl_->outputs; }
bool Linear::emulated() const { return impl_->emulated; }
std::int64_t Linear::bytes() const {
  std::int64_t bytes = 0;
  for (const Impl::Slice& slice : impl_->slices) bytes += slice.bytes;
  return bytes;
}

Result<Linear> Linear::create(const MatrixView& matrix, DType compute, WorkerPool& pool) {
  if (matrix.data == nullptr || matrix.outputs < 1 || matrix.inputs < 1) {
    return invalid_argument("matrix product: needs a matrix of at least 1 x 1, given ",
                            matrix.outputs, " x ", matrix.inputs);
  }
  if ((matrix.dtype != DType::kF32 && matrix.dtype != DType::kBF16) ||
      (compute != DType::kF32 && compute != DType::kBF16)) {
    return error(StatusCode::kUnsupported, "matrix product: weights ", dtype_name(matrix.dtype),
                 " computed in ", dtype_name(compute), "; supported: f32 and bf16");
  }
  auto impl = std::make_unique<Impl>();
  impl->inputs = matrix.inputs;
  impl->outputs = matrix.outputs;
  impl->emulated = compute == DType::kBF16 && !bf16_products_exist();
  impl->dtype = impl->emulated ? DType::kF32 : compute;

  const std::int64_t width = slice_outputs(matrix.outputs, matrix.inputs);
  // At most two widths occur, each with a reorder made here, before the workers start: making one
  // is the expensive part, and oneDNN's cache of them is then asked by one thread.
  std::vector<Packing> packings;
  try {
    const SingleThreadScope scope;
    for (std::int64_t first = 0; first < matrix.outputs; first += width) {
      Impl::Slice slice;
      slice.first = first;
      slice.outputs = std::min(width, matrix.outputs - first);
      if (packings.empty() || packings.back().outputs != slice.outputs) {
        packings.emplace_back(slice.outputs, matrix.inputs, impl->dtype);
      }
      slice.packed = packings.back().packed;
      slice.bytes = static_cast<std::int64_t>(slice.packed.get_size());
      slice.data = allocate_aligned(slice.bytes);
      if (slice.data == nullptr) {
        return error(StatusCode::kResourceExhausted, "matrix product: no memory for ", slice.bytes,
                     " bytes of weights");
      }
      impl->slices.push_back(std::move(slice));
    }
  } catch (const dnnl::error& failure) {
    return dnnl_failure("describing the weights", failure);
  }

  std::vector<Status> failures(impl->slices.size());
  pool.for_each(static_cast<std::int64_t>(impl->slices.size()), [&](std::int64_t index, int) {
    Impl::Slice& slice = impl->slices[static_cast<std::size_t>(index)];
    try {
      std::vector<std::byte> buffer;
      const void* source = slice_source(matrix, slice.first, slice.outputs, impl->dtype, buffer);
      const bool full = slice.outputs == packings.front().outputs;
      (full ? packings.front() : packings.back()).execute(source, slice.data.get());
    } catch (const dnnl::error& failure) {
      failures[static_cast<std::size_t>(index)] = dnnl_failure("packing the weights", failure);
    } catch (const std::bad_alloc&) {
      failures[static_cast<std::size_t>(index)] =
          error(StatusCode::kResourceExhausted, "matrix product: no memory to pack weights");
    }
  });
  for (Status& failure : failures) {
    if (!failure.ok()) return std::move(failure);
  }
  Linear linear;
  linear.impl_ = std::move(impl);
  return linear;
}

Status Linear::Impl::run_block(std::span<const Linear> matrices, const Block& block,
                               ProductContext& context) {
  ProductContext::Impl& shared = context.impl();
  const Impl& first = *matrices.front().impl_;
  const std::vector<Slice>& slices = first.slices;
  const std::int64_t rows = block.rows;
  // At most two widths occur: that of all slices and that of the last.
  ProductContext::Impl::Primitive* full = nullptr;
  ProductContext::Impl::Primitive* last = nullptr;
  try {
    // The last first: making the second may not move the first, which a map grants.
    last = &shared.primitive(rows, slices.back().outputs, first.inputs, first.dtype,
                             slices.back().packed);
    full = slices.front().outputs == slices.back().outputs
               ? last
               : &shared.primitive(rows, slices.front().outputs, first.inputs, first.dtype,
                                   slices.front().packed);
  } catch (const dnnl::error& failure) {
    return dnnl_failure("making a kernel", failure);
  }
  // What oneDNN takes and gives has no gaps between its rows.
  const bool gather = block.widen || (rows > 1 && block.in.stride != first.inputs);
  const bool direct = block.out_dtype == DType::kF32 &&
                      (rows == 1 || (slices.size() == 1 && block.out.stride == first.outputs));
  const std::size_t in_bytes =
      gather ? static_cast<std::size_t>(rows * first.inputs) * dtype_bytes(first.dtype) : 0;
  const auto outs = static_cast<std::size_t>(direct ? 0 : rows * slices.front().outputs);
  for (auto& worker : shared.workers) {
    if (worker.in.size() < in_bytes) worker.in.resize(in_bytes);
    if (worker.out.size() < outs) worker.out.resize(outs);
  }

  std::atomic<int> failed{dnnl_success};
  const auto count = static_cast<std::int64_t>(slices.size());
  auto body = [&](std::int64_t index, int worker_index) {
    const std::int64_t matrix = index / count;
    const Slice& slice = matrices[static_cast<std::size_t>(matrix)]
                             .impl_->slices[static_cast<std::size_t>(index % count)];
    auto& worker = shared.workers[static_cast<std::size_t>(worker_index)];
    auto& primitive = slice.outputs == slices.back().outputs ? *last : *full;
    const void* in = gather ? first.gather(block, matrix, worker.in.data())
                            : at(block.in.data, block.in_dtype, matrix * block.in.step);
    const std::int64_t out_offset = matrix * block.out.step + slice.first;
    float* target = direct ? static_cast<float*>(block.out.data) + out_offset : worker.out.data();
    const dnnl_status_t status = shared.execute(primitive, static_cast<std::size_t>(worker_index),
                                                in, slice.data.get(), target);
    if (status != dnnl_success) {
      failed.store(status);
      return;
    }
    if (direct) return;
    for (std::int64_t row = 0; row < rows; ++row) {
      const float* from = target + row * slice.outputs;
      const std::int64_t offset = row * block.out.stride + out_offset;
      if (block.out_dtype == DType::kF32) {
        std::memcpy(static_cast<float*>(block.out.data) + offset, from,
                    static_cast<std::size_t>(slice.outputs) * sizeof(float));
      } else {
        f32_to_bf16(from, static_cast<std::uint16_t*>(block.out.data) + offset, slice.outputs);
      }
    }
  };
  context.pool().for_each(static_cast<std::int64_t>(matrices.size()) * count, body);
  if (failed.load() != dnnl_success) {
    return error(StatusCode::kInternal, "matrix product: oneDNN failed with status ",
                 failed.load());
  }
  return {};
}

const void* Linear::Impl::gather(const Block& block, std::int64_t matrix, std::byte* to) const {
  for (std::int64_t row = 0; row < block.rows; ++row) {
    const void* from =
        at(block.in.data, block.in_dtype, row * block.in.stride + matrix * block.in.step);
    void* target = at(to, dtype, row * inputs);
    if (block.widen) {
      bf16_to_f32(static_cast<const std::uint16_t*>(from), static_cast<float*>(target), inputs);
    } else {
      std::memcpy(target, from, static_cast<std::size_t>(inputs) * dtype_bytes(dtype));
    }
  }
  return to;
}

Status Linear::Impl::run_blocks(std::span<const Linear> matrices, Block all,
                                ProductContext& context) {
  for (std::int64_t done = 0; done < all.rows;) {
    Block block = all;
    block.rows = next_row_block(all.rows - done);
    block.in.data = at(all.in.data, all.in_dtype, done * all.in.stride);
    block.out.data = at(all.out.data, all.out_dtype, done * all.out.stride);
    REPLAYSSM_RETURN_IF_ERROR(run_block(matrices, block, context));
    done += block.rows;
  }
  return {};
}

Status Linear::run(const void* in, std::int64_t rows, void* out, DType out_dtype,
                   ProductContext& context) const {
  Impl::Block all{rows, {in, inputs(), 0}, impl_->dtype, {out, outputs(), 0}, out_dtype};
  if (impl_->emulated) {
    // Once for all slices.
    auto& widened = context.impl().widened;
    const std::int64_t elements = rows * impl_->inputs;
    if (static_cast<std::int64_t>(widened.size()) < elements)
      widened.resize(static_cast<std::size_t>(elements));
    bf16_to_f32(static_cast<const std::uint16_t*>(in), widened.data(), elements);
    all.in.data = widened.data();
  }
  return Impl::run_blocks({this, 1}, all, context);
}

Status Linear::run_each(std::span<const Linear> matrices, SideBySide<const void> in,
                        std::int64_t rows, SideBySide<void> out, DType out_dtype,
                        ProductContext& context) {
  if (matrices.empty()) return {};
  const Impl& first = *matrices.front().impl_;
  for (const Linear& matrix : matrices) {
    const Impl& other = *matrix.impl_;
    if (other.inputs != first.inputs || other.outputs != first.outputs ||
        other.dtype != first.dtype || other.emulated != first.emulated) {
      return invalid_argument("matrix product: matrices that run together must have one shape and ",
                              "type, given ", first.outputs, " x ", first.inputs, " ",
                              dtype_name(first.dtype), " and ", other.outputs, " x ", other.inputs,
                              " ", dtype_name(other.dtype));
    }
  }
  const DType in_dtype = first.emulated ? DType::kBF16 : first.dtype;
  return Impl::run_blocks(matrices, Impl::Block{rows, in, in_dtype, out, out_dtype, first.emulated},
                          context);
}

std::string product_kernel_name(DType compute) {
  try {
    const SingleThreadScope scope;
    if (compute == DType::kBF16 && !bf16_products_exist()) compute = DType::kF32;
    return product_description(1, 256, 256, compute).impl_info_str();
  } catch (const dnnl::error&) {
    return "none";
  }
}

}  // namespace replayssm::model
