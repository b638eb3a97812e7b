// bench step: the timed part. Rows stand at all phases of the window, so that one in W of them
// folds in every forward; as many layers are rotated as it takes to keep the states out of the
// caches.
#include "bench/step.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>

#include "replayssm/backends.hpp"

namespace replayssm::bench {
namespace {

float as_bf16(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, 4);
  bits = (bits + 0x7FFFU + (bits >> 16U & 1U)) & 0xFFFF0000U;
  std::memcpy(&value, &bits, 4);
  return value;
}

// Uniform in [low, high); the finalizer of splitmix64 on a counter.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : at_(seed << 32U) {}
  float next(float low, float high) {
    std::uint64_t z = (at_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    z ^= z >> 31;
    return low + (high - low) * static_cast<float>(z >> 40U) * 0x1p-24F;
  }

 private:
  std::uint64_t at_;
};

std::vector<float> numbers(Numbers& from, std::int64_t count, float low, float high, DType dtype) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    value = from.next(low, high);
    if (dtype == DType::kBF16) value = as_bf16(value);
  }
  return values;
}

}  // namespace

LayerData::LayerData(Device& device, const LayerShape& shape, DType activations,
                     std::int64_t tokens, std::uint64_t seed)
    : device_(device), shape_(shape), tokens_(tokens) {
  Numbers random(seed);
  const bool kda = shape.rule == Rule::kKda;
  const std::int64_t width = kda ? shape.key_dim : 1;
  // Memories from a few to some thousand tokens, as trained layers have them.
  a_log = numbers(random, shape.heads, -1.0F, 2.5F, DType::kF32);
  dt_bias = numbers(random, shape.heads * width, -6.0F, -2.0F, DType::kF32);
  d = numbers(random, shape.heads, -1.0F, 1.0F, DType::kF32);
  value = numbers(random, tokens * shape.heads * shape.value_dim, -1.7F, 1.7F, activations);
  key = numbers(random, tokens * shape.groups * shape.key_dim, -1.7F, 1.7F, activations);
  query = numbers(random, tokens * shape.groups * shape.key_dim, -1.7F, 1.7F, activations);
  gate = numbers(random, tokens * shape.heads * width, -1.0F, 1.0F, activations);
  if (shape.rule != Rule::kMamba2)
    beta = numbers(random, tokens * shape.heads, -2.0F, 2.0F, activations);
  a_log_ = put(&a_log, DType::kF32);
  dt_bias_ = put(&dt_bias, DType::kF32);
  d_ = put(&d, DType::kF32);
  value_ = put(&value, activations);
  key_ = put(&key, activations);
  query_ = put(&query, activations);
  gate_ = put(&gate, activations);
  beta_ = put(&beta, activations);
  std::vector<float> poison(value.size(), NAN);
  out_ = put(&poison, activations);
}

LayerData::~LayerData() {
  for (const Piece* piece :
       {&a_log_, &dt_bias_, &d_, &value_, &key_, &query_, &gate_, &beta_, &out_}) {
    if (piece->data != nullptr) device_.deallocate(piece->data);
  }
}

LayerData::Piece LayerData::put(std::vector<float>* values, DType dtype) {
  Piece piece;
  piece.count = static_cast<std::int64_t>(values->size());
  piece.dtype = dtype;
  if (values->empty()) return piece;
  const auto size = static_cast<std::int64_t>(dtype_bytes(dtype));
  piece.data = device_.allocate(piece.count * size);
  if (piece.data == nullptr) {
    ok_ = false;
    return piece;
  }
  if (dtype == DType::kF32) {
    device_.upload(piece.data, values->data(), piece.count * size);
    return piece;
  }
  std::vector<std::uint16_t> bits(values->size());
  for (std::size_t i = 0; i < bits.size(); ++i)
    std::memcpy(&bits[i], reinterpret_cast<const char*>(&(*values)[i]) + 2, 2);
  device_.upload(piece.data, bits.data(), piece.count * size);
  return piece;
}

LayerWeights LayerData::weights() const {
  LayerWeights weights;
  weights.a_log = static_cast<const float*>(a_log_.data);
  weights.dt_bias = static_cast<const float*>(dt_bias_.data);
  if (shape_.rule == Rule::kMamba2) weights.d = static_cast<const float*>(d_.data);
  return weights;
}

LayerInputs LayerData::inputs(std::int32_t layer) const {
  LayerInputs inputs;
  inputs.layer = layer;
  const auto view = [&](const Piece& piece, auto... extents) {
    return TensorView::contiguous(piece.data, piece.dtype, tokens_, extents...);
  };
  inputs.value = view(value_, shape_.heads, shape_.value_dim);
  inputs.key = view(key_, shape_.groups, shape_.key_dim);
  inputs.query = view(query_, shape_.groups, shape_.key_dim);
  inputs.gate = shape_.rule == Rule::kKda ? view(gate_, shape_.heads, shape_.key_dim)
                                          : view(gate_, shape_.heads);
  if (shape_.rule != Rule::kMamba2) inputs.beta = view(beta_, shape_.heads);
  inputs.out = view(out_, shape_.heads, shape_.value_dim);
  return inputs;
}

std::vector<float> LayerData::outputs() const {
  std::vector<float> values(static_cast<std::size_t>(out_.count));
  if (out_.dtype == DType::kF32) {
    device_.download(values.data(), out_.data, out_.count * 4);
    return values;
  }
  std::vector<std::uint16_t> bits(values.size());
  device_.download(bits.data(), out_.data, out_.count * 2);
  for (std::size_t i = 0; i < bits.size(); ++i) {
    const std::uint32_t wide = std::uint32_t{bits[i]} << 16U;
    std::memcpy(&values[i], &wide, 4);
  }
  return values;
}

namespace {

struct Problem {
  ModelShape model;
  std::int64_t batch = 0;
  std::int32_t tokens = 0;
  [[nodiscard]] std::int32_t accepted() const { return tokens > 1 ? tokens - 1 : 1; }
};

CacheConfig cache_config(const StepOptions& options, const Problem& problem, DecodeMode decode) {
  CacheConfig config;
  config.layers = {layer_shape(problem.model)};
  config.decode = decode;
  config.activations = options.activations;
  config.window = options.window;
  config.max_step_tokens = problem.tokens;
  config.slots = problem.batch;
  config.device = options.backend;
  if (options.backend == "cuda") {
    config.implementation = options.readable ? "cuda-reference" : "cuda";
    if (decode == DecodeMode::kConventional) config.implementation += "-conventional";
  }
  return config;
}

// Enough layers to rotate past the last-level cache four times, within the memory there is.
std::int64_t layer_count(const Device& device, const CacheConfig& config) {
  const LayerShape& shape = config.layers[0];
  const std::int64_t state =
      config.slots * shape.heads * shape.value_dim * shape.key_dim * std::int64_t{4};
  const std::int64_t least = device.name() == "cuda" ? 8 : 2;
  const std::int64_t wanted = std::clamp(
      4 * device.cache_bytes() / std::max<std::int64_t>(state, 1) + 1, least, std::int64_t{64});
  const std::int64_t each =
      config.decode == DecodeMode::kConventional ? state * config.max_step_tokens : state * 3 / 2;
  return std::clamp(device.memory_bytes() / std::max<std::int64_t>(each, 1), std::int64_t{1},
                    wanted);
}

// The rows' arrays, and whole forwards over all layers.
class Runner {
 public:
  Runner(Device& device, const Problem& problem) : device_(device), problem_(problem) {}
  ~Runner() {
    if (arrays_ != nullptr) device_.deallocate(arrays_);
  }
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  Status make(CacheConfig config, std::int64_t layers) {
    const LayerShape shape = config.layers[0];
    const std::int64_t tokens = problem_.batch * problem_.tokens;
    // A few sets of inputs serve all layers in turn.
    for (std::int64_t i = 0; i < std::min<std::int64_t>(layers, 4); ++i) {
      data_.push_back(std::make_unique<LayerData>(device_, shape, config.activations, tokens,
                                                  static_cast<std::uint64_t>(i) + 1));
      if (!data_.back()->ok()) return {StatusCode::kResourceExhausted, "no memory for inputs"};
    }
    config.layers.assign(static_cast<std::size_t>(layers), shape);
    config.weights.clear();
    for (std::int64_t i = 0; i < layers; ++i) config.weights.push_back(data(i).weights());
    Result<Cache> cache = Cache::create(config);
    if (!cache.ok()) return cache.status();
    cache_ = std::make_unique<Cache>(std::move(cache).value());
    for (std::int64_t i = 0; i < problem_.batch; ++i)
      REPLAYSSM_RETURN_IF_ERROR(cache_->acquire(1, device_.stream()).status());
    arrays_ = device_.allocate(problem_.batch * 16);
    if (arrays_ == nullptr) return {StatusCode::kResourceExhausted, "no memory for rows"};
    std::vector<std::int64_t> slots(static_cast<std::size_t>(problem_.batch));
    // Slots in an order of their own.
    const std::int64_t step = problem_.batch > 2 && problem_.batch % 3 != 0 ? 3 : 1;
    for (std::int64_t i = 0; i < problem_.batch; ++i)
      slots[static_cast<std::size_t>(i)] = i * step % problem_.batch;
    device_.upload(arrays_, slots.data(), problem_.batch * 8);
    return {};
  }

  // Leaves the rows at all phases of the window, and no state at zero.
  Status spread(std::int32_t window) {
    const std::int32_t accepted = problem_.accepted();
    for (std::int32_t i = 0; i < window; ++i) {
      set_rows([&](std::int64_t row) { return i < row % window ? 1 : 0; },
               [&](std::int64_t row) { return i < row % window ? 1 : 0; });
      REPLAYSSM_RETURN_IF_ERROR(forward());
      REPLAYSSM_RETURN_IF_ERROR(device_.wait());
    }
    set_rows([&](std::int64_t) { return problem_.tokens; }, [&](std::int64_t) { return accepted; });
    for (std::int32_t i = 0; i < window / accepted + 2; ++i) REPLAYSSM_RETURN_IF_ERROR(forward());
    return device_.wait();
  }

  Status forward() {
    Rows rows;
    rows.count = problem_.batch;
    rows.slots = static_cast<const std::int64_t*>(arrays_);
    rows.tokens =
        reinterpret_cast<const std::int32_t*>(static_cast<char*>(arrays_) + problem_.batch * 8);
    rows.stream = device_.stream();
    REPLAYSSM_RETURN_IF_ERROR(cache_->begin(rows));
    REPLAYSSM_RETURN_IF_ERROR(cache_->fold(device_.stream()));
    const auto layers = static_cast<std::int64_t>(cache_->config().layers.size());
    for (std::int64_t i = 0; i < layers; ++i) {
      LayerInputs inputs = data(i).inputs(static_cast<std::int32_t>(i));
      inputs.stream = device_.stream();
      REPLAYSSM_RETURN_IF_ERROR(cache_->step(inputs));
    }
    Accepted accepted;
    accepted.count = problem_.batch;
    accepted.tokens =
        reinterpret_cast<const std::int32_t*>(static_cast<char*>(arrays_) + problem_.batch * 12);
    accepted.stream = device_.stream();
    return cache_->commit(accepted);
  }
  [[nodiscard]] const Cache& cache() const { return *cache_; }

 private:
  [[nodiscard]] const LayerData& data(std::int64_t layer) const {
    return *data_[static_cast<std::size_t>(layer) % data_.size()];
  }
  template <typename Tokens, typename Kept>
  void set_rows(Tokens tokens, Kept kept) {
    std::vector<std::int32_t> both;
    for (std::int64_t row = 0; row < problem_.batch; ++row) both.push_back(tokens(row));
    for (std::int64_t row = 0; row < problem_.batch; ++row) both.push_back(kept(row));
    device_.upload(static_cast<char*>(arrays_) + problem_.batch * 8, both.data(),
                   problem_.batch * 8);
  }

  Device& device_;
  Problem problem_;
  std::vector<std::unique_ptr<LayerData>> data_;
  void* arrays_ = nullptr;
  std::unique_ptr<Cache> cache_;
};

// Inputs and outputs of a step of one layer.
double io_bytes(const CacheConfig& config, const Problem& problem) {
  const LayerShape& shape = config.layers[0];
  const auto act = static_cast<double>(dtype_bytes(config.activations));
  const double gate_width = shape.rule == Rule::kKda ? shape.key_dim : 1;
  const double elements = 2.0 * shape.heads * shape.value_dim + 2.0 * shape.groups * shape.key_dim +
                          shape.heads * (gate_width + (shape.rule == Rule::kMamba2 ? 0.0 : 1.0));
  return static_cast<double>(problem.batch) * problem.tokens * elements * act;
}

Result<StepRow> measure(Device& device, const StepOptions& options, const Problem& problem,
                        DecodeMode decode) {
  CacheConfig config = cache_config(options, problem, decode);
  StepRow row;
  row.rule = problem.model.rule;
  row.shape = std::string(problem.model.name);
  row.batch = problem.batch;
  row.tokens = problem.tokens;
  row.decode = decode;
  row.activations = options.activations;
  const Result<double> worst = verify(device, config, problem.tokens, problem.accepted());
  if (!worst.ok()) return worst.status();
  row.worst_error = *worst;
  row.verified = *worst <= 1.0;
  row.implementation = config.implementation;
  if (!row.verified) return row;

  row.layers = layer_count(device, config);
  Runner runner(device, problem);
  REPLAYSSM_RETURN_IF_ERROR(runner.make(config, row.layers));
  row.implementation = std::string(runner.cache().implementation());
  REPLAYSSM_RETURN_IF_ERROR(runner.spread(options.window));
  // After W forwards with the same accepts every row has folded as often and stands where it stood.
  const Result<std::vector<double>> times = device.time_us(
      [&] {
        for (std::int32_t i = 0; i < options.window; ++i)
          REPLAYSSM_RETURN_IF_ERROR(runner.forward());
        return Status();
      },
      options.cycles);
  if (!times.ok()) return times.status();
  const double steps = static_cast<double>(row.layers) * options.window;
  const double middle = median(*times);
  row.us_per_step = middle / steps;
  const auto [low, high] = std::minmax_element(times->begin(), times->end());
  row.spread = (*high - *low) / middle;

  config.layers.resize(1);
  static const float none = 0.0F;
  config.weights.assign(1, LayerWeights{});
  config.weights[0].a_log = &none;
  config.weights[0].conv_weight = &none;
  const Result<double> traffic = state_bytes_per_token(config, problem.tokens, problem.accepted());
  if (!traffic.ok()) return traffic.status();
  row.bytes_per_step = *traffic * problem.accepted() * static_cast<double>(problem.batch) +
                       io_bytes(config, problem);
  row.gb_per_s = row.bytes_per_step / row.us_per_step / 1e3;
  const CacheBytes bytes = runner.cache().bytes();
  row.bytes_per_slot = (bytes.state + bytes.rings + bytes.conv) / (problem.batch * row.layers);
  return row;
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::tm parts = {};
  gmtime_r(&now, &parts);
  return {text, std::strftime(text, sizeof(text), "%Y-%m-%d", &parts)};
}

}  // namespace

Result<StepReport> run_step(const StepOptions& options) {
  std::unique_ptr<Device> device;
  if (options.backend == "cpu") {
    device = make_host_device();
  } else if (options.backend == "cuda") {
    Result<std::unique_ptr<Device>> made = make_cuda_device();
    if (!made.ok()) return made.status();
    device = std::move(made).value();
  } else {
    return Status(StatusCode::kInvalidArgument,
                  "backend must be cpu or cuda, given " + options.backend);
  }
  StepReport report;
  report.backend = options.backend;
  report.hardware = device->hardware();
  report.driver = device->driver();
  report.compiler = device->compiler();
  report.commit = options.commit;
  report.date = today();
  const Result<Device::Bandwidth> bandwidth = device->measure_bandwidth();
  if (!bandwidth.ok()) return bandwidth.status();
  report.bandwidth = *bandwidth;
  for (const std::string& name : options.shapes) {
    const Result<ModelShape> model = model_shape(name);
    if (!model.ok()) return model.status();
    for (const std::int32_t tokens : options.tokens) {
      for (const std::int64_t batch : options.batches) {
        const Problem problem = {*model, batch, tokens};
        double baseline = 0.0;
        for (const DecodeMode decode : {DecodeMode::kConventional, DecodeMode::kReplay}) {
          Result<StepRow> row = measure(*device, options, problem, decode);
          if (!row.ok()) return row.status();
          if (decode == DecodeMode::kConventional) baseline = row->us_per_step;
          if (row->us_per_step > 0.0) row->ratio_to_conventional_f32 = baseline / row->us_per_step;
          report.rows.push_back(std::move(row).value());
        }
      }
    }
  }
  return report;
}

}  // namespace replayssm::bench
