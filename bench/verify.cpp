// Checks a cache against the plain recurrence in float64 before it is timed. The tolerance of an
// output follows from the magnitudes that were added up to it (the recurrence run on absolute
// values) and the units of the types.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "bench/step.hpp"

namespace replayssm::bench {
namespace {

double softplus(double x) { return x > 20.0 ? x : std::log1p(std::exp(x)); }
double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// One head of one row.
class Head {
 public:
  Head(const LayerShape& shape, const LayerData& data, int head)
      : shape_(shape),
        data_(&data),
        head_(head),
        group_(head / (shape.heads / shape.groups)),
        state_(static_cast<std::size_t>(shape.value_dim) * shape.key_dim),
        magnitude_(state_) {}

  // The same state, reading other inputs from now on.
  [[nodiscard]] Head with(const LayerData& data) const {
    Head other = *this;
    other.data_ = &data;
    return other;
  }

  // Advances by token `at` of the inputs; outputs and the magnitudes behind them, [V].
  void step(std::int64_t at, std::vector<double>* out, std::vector<double>* magnitude) {
    const int K = shape_.key_dim;
    const int V = shape_.value_dim;
    const float* k_raw = data_->key.data() + (at * shape_.groups + group_) * K;
    const float* q_raw = data_->query.data() + (at * shape_.groups + group_) * K;
    const float* v_raw = data_->value.data() + (at * shape_.heads + head_) * V;
    const bool delta = shape_.rule != Rule::kMamba2;
    const double k_norm = delta ? 1.0 / std::sqrt(squares(k_raw) + 1e-6) : 1.0;
    const double q_norm =
        delta ? 1.0 / std::sqrt(squares(q_raw) + 1e-6) / std::sqrt(static_cast<double>(K)) : 1.0;
    const double dt = delta ? 0.0 : softplus(gate(at, 0) + data_->dt_bias[head_]);
    const double beta = delta ? sigmoid(data_->beta[at * shape_.heads + head_]) : 0.0;
    std::vector<double> decay(K);
    for (int i = 0; i < K; ++i) {
      decay[i] = delta ? std::exp(log_decay(at, i)) : std::exp(-std::exp(data_->a_log[head_]) * dt);
    }
    out->assign(V, 0.0);
    magnitude->assign(V, 0.0);
    for (int v = 0; v < V; ++v) {
      double* s = state_.data() + static_cast<std::size_t>(v) * K;
      double* m = magnitude_.data() + static_cast<std::size_t>(v) * K;
      double predicted = 0.0;
      double predicted_magnitude = 0.0;
      for (int i = 0; i < K; ++i) {
        s[i] *= decay[i];
        m[i] *= decay[i];
        predicted += s[i] * k_raw[i] * k_norm;
        predicted_magnitude += m[i] * std::abs(k_raw[i]) * k_norm;
      }
      const double u = delta ? beta * (v_raw[v] - predicted) : dt * v_raw[v];
      const double u_magnitude =
          delta ? beta * (std::abs(v_raw[v]) + predicted_magnitude) : std::abs(u);
      for (int i = 0; i < K; ++i) {
        s[i] += u * k_raw[i] * k_norm;
        m[i] += u_magnitude * std::abs(k_raw[i]) * k_norm;
        (*out)[v] += s[i] * q_raw[i] * q_norm;
        (*magnitude)[v] += m[i] * std::abs(q_raw[i]) * q_norm;
      }
      if (!delta) {
        (*out)[v] += data_->d[head_] * v_raw[v];
        (*magnitude)[v] += std::abs(data_->d[head_] * v_raw[v]);
      }
    }
  }

 private:
  [[nodiscard]] double squares(const float* x) const {
    double sum = 0.0;
    for (int i = 0; i < shape_.key_dim; ++i) sum += static_cast<double>(x[i]) * x[i];
    return sum;
  }
  [[nodiscard]] double gate(std::int64_t at, int k) const {
    return shape_.rule == Rule::kKda ? data_->gate[(at * shape_.heads + head_) * shape_.key_dim + k]
                                     : data_->gate[at * shape_.heads + head_];
  }
  [[nodiscard]] double log_decay(std::int64_t at, int k) const {
    const bool kda = shape_.rule == Rule::kKda;
    const double raw = gate(at, k) + data_->dt_bias[kda ? head_ * shape_.key_dim + k : head_];
    const double scale = std::exp(data_->a_log[head_]);
    return shape_.gate == GateKind::kBounded ? shape_.gate_lower_bound * sigmoid(scale * raw)
                                             : -scale * softplus(raw);
  }

  LayerShape shape_;
  const LayerData* data_;
  int head_;
  int group_;
  std::vector<double> state_, magnitude_;
};

}  // namespace

Result<double> verify(Device& device, const CacheConfig& given, std::int32_t tokens,
                      std::int32_t accepted) {
  constexpr int kRows = 3;
  CacheConfig config = given;
  config.slots = config.blocks = config.max_rows = kRows;
  config.max_tokens = 0;
  const LayerShape shape = config.layers[0];
  const int forwards = 2 * config.window / accepted + 3;
  std::vector<std::unique_ptr<LayerData>> data;
  for (int f = 0; f < forwards; ++f) {
    data.push_back(std::make_unique<LayerData>(device, shape, config.activations, kRows * tokens,
                                               1000 + static_cast<std::uint64_t>(f)));
    if (!data.back()->ok()) return Status(StatusCode::kResourceExhausted, "no memory to verify");
    // Constants of a layer stay: those of the first.
    data.back()->a_log = data[0]->a_log;
    data.back()->dt_bias = data[0]->dt_bias;
    data.back()->d = data[0]->d;
  }
  config.layers = {shape};
  config.weights = {data[0]->weights()};
  Result<Cache> cache = Cache::create(config);
  if (!cache.ok()) return cache.status();

  const std::vector<std::int64_t> slots = {2, 0, 1};
  const std::vector<std::int32_t> counts(kRows, tokens);
  const std::vector<std::int32_t> kept(kRows, accepted);
  void* arrays = device.allocate(4096);
  if (arrays == nullptr) return Status(StatusCode::kResourceExhausted, "no memory to verify");
  auto* base = static_cast<char*>(arrays);
  device.upload(base, slots.data(), kRows * 8);
  device.upload(base + 1024, counts.data(), kRows * 4);
  device.upload(base + 2048, kept.data(), kRows * 4);
  for (int i = 0; i < kRows; ++i)
    REPLAYSSM_RETURN_IF_ERROR(cache->acquire(1, device.stream()).status());

  // First, last and two others.
  std::vector<int> sample = {0, shape.heads - 1, shape.heads / 2, shape.heads / 3};
  std::vector<std::vector<Head>> heads(kRows);
  for (auto& row : heads) {
    for (const int head : sample) row.emplace_back(shape, *data[0], head);
  }
  double worst = 0.0;
  const double unit_out = config.activations == DType::kF32 ? 0x1p-24 : 0x1p-8;
  const double unit_u =
      shape.rule == Rule::kMamba2 || config.decode == DecodeMode::kConventional ? 0.0 : 0x1p-8;
  for (int f = 0; f < forwards; ++f) {
    Rows rows;
    rows.count = kRows;
    rows.slots = reinterpret_cast<const std::int64_t*>(base);
    rows.tokens = reinterpret_cast<const std::int32_t*>(base + 1024);
    rows.stream = device.stream();
    REPLAYSSM_RETURN_IF_ERROR(cache->begin(rows));
    REPLAYSSM_RETURN_IF_ERROR(cache->fold(device.stream()));
    LayerInputs inputs = data[f]->inputs(0);
    inputs.stream = device.stream();
    REPLAYSSM_RETURN_IF_ERROR(cache->step(inputs));
    Accepted accept;
    accept.count = kRows;
    accept.tokens = reinterpret_cast<const std::int32_t*>(base + 2048);
    accept.stream = device.stream();
    REPLAYSSM_RETURN_IF_ERROR(cache->commit(accept));
    REPLAYSSM_RETURN_IF_ERROR(device.wait());
    const std::vector<float> got = data[f]->outputs();
    for (int row = 0; row < kRows; ++row) {
      for (std::size_t i = 0; i < sample.size(); ++i) {
        Head next = heads[row][i].with(*data[f]);
        Head after = next;
        for (int t = 0; t < tokens; ++t) {
          const std::int64_t at = row * tokens + t;
          std::vector<double> want;
          std::vector<double> magnitude;
          next.step(at, &want, &magnitude);
          if (t + 1 == accepted) after = next;
          for (int v = 0; v < shape.value_dim; ++v) {
            const double value =
                got[static_cast<std::size_t>((at * shape.heads + sample[i]) * shape.value_dim + v)];
            const double tolerance =
                unit_out * std::abs(want[v]) + unit_u * magnitude[v] +
                (shape.key_dim + 8.0 * (f + 1) * tokens + 32.0) * 0x1p-24 * magnitude[v] + 1e-30;
            const double error = std::abs(value - want[v]);
            worst = std::isnan(value) ? INFINITY : std::max(worst, error / tolerance);
          }
        }
        heads[row][i] = after;
      }
    }
  }
  device.deallocate(arrays);
  return worst;
}

}  // namespace replayssm::bench
