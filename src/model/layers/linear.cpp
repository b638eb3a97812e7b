// See linear.hpp. Facts measured with oneDNN 2.6.3 on a Zen 5 core: packed weights are read at 36
// GB/s by one row (15 GB/s as the checkpoint stores them); a destination with a row stride larger
// than its width falls back to a slower kernel that sums in another order, which is why slices of
// more than one row go through a dense buffer.
#include "model/layers/linear.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
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

  Status run_block(const void* in, std::int64_t rows, void* out, DType out_dtype,
                   ProductContext& context) const;
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

Status Linear::Impl::run_block(const void* in, std::int64_t rows, void* out, DType out_dtype,
                               ProductContext& context) const {
  ProductContext::Impl& shared = context.impl();
  // At most two widths occur: that of all slices and that of the last.
  ProductContext::Impl::Primitive* full = nullptr;
  ProductContext::Impl::Primitive* last = nullptr;
  try {
    // The last first: making the second may not move the first, which a map grants.
    last = &shared.primitive(rows, slices.back().outputs, inputs, dtype, slices.back().packed);
    full =
        slices.front().outputs == slices.back().outputs
            ? last
            : &shared.primitive(rows, slices.front().outputs, inputs, dtype, slices.front().packed);
  } catch (const dnnl::error& failure) {
    return dnnl_failure("making a kernel", failure);
  }
  if (out_dtype != DType::kF32) {
    const auto elements = static_cast<std::size_t>(rows * slices.front().outputs);
    for (auto& worker : shared.workers) {
      if (worker.out.size() < elements) worker.out.resize(elements);
    }
  }

  std::atomic<int> failed{dnnl_success};
  const auto count = static_cast<std::int64_t>(slices.size());
  context.pool().for_each(count, [&](std::int64_t index, int worker_index) {
    const Slice& slice = slices[static_cast<std::size_t>(index)];
    auto& worker = shared.workers[static_cast<std::size_t>(worker_index)];
    auto& primitive = slice.outputs == slices.back().outputs ? *last : *full;
    const bool direct = out_dtype == DType::kF32 && (rows == 1 || count == 1);
    float* target = direct ? static_cast<float*>(out) + slice.first : worker.out.data();
    const dnnl_status_t status = shared.execute(primitive, static_cast<std::size_t>(worker_index),
                                                in, slice.data.get(), target);
    if (status != dnnl_success) {
      failed.store(status);
      return;
    }
    if (direct) return;
    for (std::int64_t row = 0; row < rows; ++row) {
      const float* from = target + row * slice.outputs;
      const std::int64_t offset = row * outputs + slice.first;
      if (out_dtype == DType::kF32) {
        std::memcpy(static_cast<float*>(out) + offset, from,
                    static_cast<std::size_t>(slice.outputs) * sizeof(float));
      } else {
        f32_to_bf16(from, static_cast<std::uint16_t*>(out) + offset, slice.outputs);
      }
    }
  });
  if (failed.load() != dnnl_success) {
    return error(StatusCode::kInternal, "matrix product: oneDNN failed with status ",
                 failed.load());
  }
  return {};
}

Status Linear::run(const void* in, std::int64_t rows, void* out, DType out_dtype,
                   ProductContext& context) const {
  const std::size_t in_bytes = impl_->emulated ? sizeof(float) : dtype_bytes(impl_->dtype);
  if (impl_->emulated) {
    auto& widened = context.impl().widened;
    const std::int64_t elements = rows * impl_->inputs;
    if (static_cast<std::int64_t>(widened.size()) < elements)
      widened.resize(static_cast<std::size_t>(elements));
    bf16_to_f32(static_cast<const std::uint16_t*>(in), widened.data(), elements);
    in = widened.data();
  }
  for (std::int64_t done = 0; done < rows;) {
    const std::int64_t block = next_row_block(rows - done);
    const auto* block_in = static_cast<const std::byte*>(in) +
                           done * impl_->inputs * static_cast<std::int64_t>(in_bytes);
    auto* block_out = static_cast<std::byte*>(out) +
                      done * impl_->outputs * static_cast<std::int64_t>(dtype_bytes(out_dtype));
    REPLAYSSM_RETURN_IF_ERROR(impl_->run_block(block_in, block, block_out, out_dtype, context));
    done += block;
  }
  return {};
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
