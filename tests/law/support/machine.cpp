// See machine.hpp.
#include "tests/law/support/machine.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace replayssm::laws {
namespace {

constexpr int kLoopWorkers = 3;

// Every index once, in an order and on workers that no test should be able to notice.
void shuffled_loop(void* context, std::int64_t count, ParallelFor::Body body, void* argument) {
  const std::int64_t step = count > 1 ? count - 1 : 1;  // coprime to count
  auto& turn = *static_cast<std::int64_t*>(context);
  ++turn;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t index = (turn + i * step) % count;
    body(argument, index, static_cast<int>((index + turn) % kLoopWorkers));
  }
}

std::int64_t loop_turn = 0;

}  // namespace

Machine::Machine(const Case& made, const MachineOptions& options, std::uint64_t seed,
                 TestDevice& device)
    : case_(made),
      options_(options),
      random_(seed),
      device_(device),
      slot_array_(device),
      token_array_(device),
      parent_array_(device),
      offset_array_(device),
      prefill_array_(device),
      accept_array_(device),
      node_array_(device) {}

std::unique_ptr<Machine> Machine::create(const Case& made, const MachineOptions& options,
                                         std::uint64_t seed, Status* error) {
  TestDevice* device = nullptr;
  for (const ImplementationInfo& info : implementations()) {
    if (info.name == made.config.implementation) device = device_for(info);
  }
  if (device == nullptr) {
    *error = Status(StatusCode::kUnsupported, "these tests know no memory for this implementation");
    return nullptr;
  }
  std::unique_ptr<Machine> machine(new Machine(made, options, seed, *device));
  *error = machine->make(seed);
  return error->ok() ? std::move(machine) : nullptr;
}

const float* Machine::hold(const std::vector<float>& values) {
  if (values.empty()) return nullptr;
  weights_.push_back(std::make_unique<DeviceBuffer>(device_));
  return weights_.back()->hold(values);
}

Status Machine::make(std::uint64_t seed) {
  CacheConfig& config = case_.config;
  config.weights.clear();
  for (const CaseLayer& layer : case_.layers) {
    LayerWeights weights;
    weights.a_log = hold(layer.a_log);
    weights.a = hold(layer.a);
    weights.dt_bias = hold(layer.dt_bias);
    weights.d = hold(layer.d);
    weights.conv_weight = hold(layer.conv_weight);
    weights.conv_bias = hold(layer.conv_bias);
    config.weights.push_back(weights);
  }
  if (options_.caller_threads) {
    config.parallel.run = shuffled_loop;
    config.parallel.context = &loop_turn;
    config.parallel.workers = kLoopWorkers;
  }
  config.memory.clear();
  config.checked = true;  // errors are looked for where they are made, on a device too
  if (options_.lent) {
    const Result<std::vector<TensorSpec>> specs = cache_tensors(config);
    if (!specs.ok()) return specs.status();
    Random layout(seed + 1);
    lent_ = std::make_unique<LentMemory>(device_, *specs, layout);
    config.memory = lent_->memory();
  }
  Result<Cache> cache = Cache::create(config);
  if (!cache.ok()) return cache.status();
  cache_.emplace(std::move(cache).value());
  return {};
}

Status Machine::begin(const std::vector<Row>& rows) {
  rows_ = rows;
  offsets_.clear();
  any_step_ = any_prefill_ = false;
  std::vector<std::int64_t> slots;
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> parents;
  std::vector<std::uint8_t> prefill;
  bool trees = false;
  bool all_one = true;
  std::int64_t next = 0;
  std::int64_t room = case_.config.max_tokens;
  for (const Row& row : rows) room -= row.count();
  for (const Row& row : rows) {
    if (options_.hostile_layout && room > 0 && random_.chance(0.2)) {
      const std::int64_t gap =
          random_.integer(1, static_cast<int>(std::min<std::int64_t>(room, 3)));
      next += gap;
      room -= gap;
    }
    offsets_.push_back(next);
    next += row.count();
    slots.push_back(row.slot);
    tokens.push_back(row.count());
    prefill.push_back(row.prefill ? 1 : 0);
    for (int i = 0; i < row.count(); ++i) {
      parents.push_back(row.parents.empty() ? i - 1 : row.parents[i]);
    }
    trees = trees || !row.parents.empty();
    all_one = all_one && row.count() == 1;
    const bool padding = row.slot == options_.padding_slot;
    any_step_ = any_step_ || !row.prefill || padding;
    any_prefill_ = any_prefill_ || row.prefill;
  }
  // On a device the host does not know which rows are prompts: both calls are due.
  any_step_ = any_step_ || (any_prefill_ && std::string(kDeviceUnderTest) != "cpu");
  const bool packed = offsets_.empty() || next == std::accumulate(tokens.begin(), tokens.end(), 0);
  tokens_ = next + (options_.hostile_layout ? random_.integer(0, 2) : 0);
  tensors_.clear();
  tensors_.resize(case_.layers.size());

  Rows call;
  call.count = static_cast<std::int64_t>(rows.size());
  call.slots = slot_array_.hold(slots);
  call.tokens = all_one && random_.chance(0.5) ? nullptr : token_array_.hold(tokens);
  call.parents = trees ? parent_array_.hold(parents) : nullptr;
  call.offsets = packed && random_.chance(0.5) ? nullptr : offset_array_.hold(offsets_);
  call.prefill = any_prefill_ ? prefill_array_.hold(prefill) : nullptr;
  call.padding_slot = options_.padding_slot;
  return cache_->begin(call);
}

void Machine::fill(int layer) {
  const CaseLayer& about = case_.layers[layer];
  const LayerShape& shape = about.shape;
  const DType act = case_.config.activations;
  LayerTensors& t = tensors_[layer];
  Random* layout = options_.hostile_layout ? &random_ : nullptr;
  const auto make = [&](std::optional<HostileTensor>& tensor, HostileTensor::Use use, DType dtype,
                        std::int64_t n1, std::int64_t n2) {
    tensor.emplace(device_, use, dtype, tokens_, n1, n2, layout);
  };
  constexpr auto kIn = HostileTensor::Use::kInput;
  constexpr auto kOut = HostileTensor::Use::kOutput;
  const bool kda = shape.rule == Rule::kKda;
  make(t.value, kIn, act, shape.heads, shape.value_dim);
  make(t.key, kIn, act, shape.groups, shape.key_dim);
  make(t.query, kIn, act, shape.groups, shape.key_dim);
  make(t.gate, kIn, about.gate_dtype, shape.heads, kda ? shape.key_dim : 0);
  make(t.out, kOut, about.out_dtype, shape.heads, shape.value_dim);
  if (shape.rule != Rule::kMamba2) make(t.beta, kIn, about.beta_dtype, shape.heads, 0);
  if (about.z) make(t.z, kIn, act, shape.heads, shape.value_dim);
  if (shape.conv_channels > 0) {
    make(t.conv_in, kIn, act, shape.conv_channels, 0);
    make(t.conv_out, kOut, act, shape.conv_channels, 0);
  }
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    for (std::size_t i = 0; i < rows_[row].tokens.size(); ++i) {
      const LayerToken& token = (*rows_[row].tokens[i])[layer];
      const std::int64_t at = offsets_[row] + static_cast<std::int64_t>(i);
      for (int head = 0; head < shape.heads; ++head) {
        t.value->set(at, head, token.token.v.data() + head * shape.value_dim);
        if (about.z) t.z->set(at, head, token.token.z.data() + head * shape.value_dim);
        if (kda) t.gate->set(at, head, token.gate.data() + head * shape.key_dim);
      }
      for (int group = 0; group < shape.groups; ++group) {
        t.key->set(at, group, token.token.k.data() + group * shape.key_dim);
        t.query->set(at, group, token.token.q.data() + group * shape.key_dim);
      }
      if (!kda) t.gate->set(at, 0, token.gate.data());
      if (t.beta) t.beta->set(at, 0, token.beta.data());
      if (t.conv_in) t.conv_in->set(at, 0, token.conv.data());
    }
  }
  for (auto* tensor :
       {&t.value, &t.key, &t.query, &t.gate, &t.beta, &t.z, &t.out, &t.conv_in, &t.conv_out}) {
    if (*tensor) (*tensor)->upload();
  }
}

std::string Machine::run_checks(int layer) {
  LayerTensors& t = tensors_[layer];
  std::vector<bool> written(static_cast<std::size_t>(tokens_), false);
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    std::fill_n(written.begin() + offsets_[row], rows_[row].count(), true);
  }
  const std::vector<bool> nothing(static_cast<std::size_t>(tokens_), false);
  for (auto* tensor : {&t.value, &t.key, &t.query, &t.gate, &t.beta, &t.z, &t.conv_in}) {
    if (!*tensor) continue;
    (*tensor)->download();
    const std::string problem = (*tensor)->check_untouched(nothing);
    if (!problem.empty()) return "an input: " + problem;
  }
  for (auto* tensor : {&t.out, &t.conv_out}) {
    if (!*tensor) continue;
    (*tensor)->download();
    const std::string problem = (*tensor)->check_untouched(written);
    if (!problem.empty()) return "an output: " + problem;
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      if (rows_[row].slot != options_.padding_slot) continue;
      for (int i = 0; i < rows_[row].count(); ++i) {
        for (const unsigned char byte : (*tensor)->token_bytes(offsets_[row] + i)) {
          if (byte != 0) return "an output of a padding row is not zero";
        }
      }
    }
  }
  return {};
}

Status Machine::run_layer(int layer, std::string* problem) {
  fill(layer);
  LayerTensors& t = tensors_[layer];
  const auto view = [](const std::optional<HostileTensor>& tensor) {
    return tensor ? tensor->view() : TensorView{};
  };
  if (t.conv_in) {
    ConvInputs inputs;
    inputs.layer = layer;
    inputs.in = view(t.conv_in);
    inputs.out = view(t.conv_out);
    inputs.silu = case_.layers[layer].conv.silu;
    REPLAYSSM_RETURN_IF_ERROR(cache_->conv(inputs));
  }
  LayerInputs inputs;
  inputs.layer = layer;
  inputs.value = view(t.value);
  inputs.key = view(t.key);
  inputs.query = view(t.query);
  inputs.gate = view(t.gate);
  inputs.beta = view(t.beta);
  inputs.z = view(t.z);
  inputs.out = view(t.out);
  const bool prefill_first = random_.chance(0.5);
  if (any_prefill_ && prefill_first) REPLAYSSM_RETURN_IF_ERROR(cache_->prefill(inputs));
  if (any_step_) REPLAYSSM_RETURN_IF_ERROR(cache_->step(inputs));
  if (any_prefill_ && !prefill_first) REPLAYSSM_RETURN_IF_ERROR(cache_->prefill(inputs));
  const std::string found = run_checks(layer);
  if (problem != nullptr && problem->empty()) *problem = found;
  return {};
}

Status Machine::commit(const std::vector<Keep>& keep) {
  std::vector<std::int32_t> counts;
  bool nodes = false;
  bool all = true;
  for (std::size_t row = 0; row < keep.size(); ++row) {
    counts.push_back(keep[row].count);
    nodes = nodes || !rows_[row].parents.empty();
    all = all && keep[row].count == rows_[row].count();
  }
  Accepted call;
  call.count = static_cast<std::int64_t>(keep.size());
  call.tokens = all && random_.chance(0.5) ? nullptr : accept_array_.hold(counts);
  std::vector<std::int32_t> table;
  if (nodes) {
    const std::int64_t spare = random_.integer(0, 3);
    const std::int64_t stride = case_.config.max_step_tokens + spare;
    call.node_stride = spare == 0 && random_.chance(0.5) ? 0 : stride;
    table.assign(keep.size() * static_cast<std::size_t>(stride), -77);
    for (std::size_t row = 0; row < keep.size(); ++row) {
      if (rows_[row].prefill) continue;
      for (int i = 0; i < keep[row].count && i < stride; ++i) {
        table[row * static_cast<std::size_t>(stride) + static_cast<std::size_t>(i)] =
            keep[row].nodes.empty() ? i : keep[row].nodes[i];
      }
    }
    call.nodes = node_array_.hold(table);
  }
  return cache_->commit(call);
}

Status Machine::forward(const std::vector<Row>& rows, const std::vector<Keep>& keep,
                        std::string* problem) {
  REPLAYSSM_RETURN_IF_ERROR(begin(rows));
  REPLAYSSM_RETURN_IF_ERROR(fold());
  for (int layer = 0; layer < static_cast<int>(case_.layers.size()); ++layer) {
    REPLAYSSM_RETURN_IF_ERROR(run_layer(layer, problem));
  }
  return commit(keep);
}

std::vector<double> Machine::output(int layer, std::size_t row, int token) const {
  return tensors_[layer].out->token(offsets_[row] + token);
}
std::vector<unsigned char> Machine::output_bytes(int layer, std::size_t row, int token) const {
  return tensors_[layer].out->token_bytes(offsets_[row] + token);
}
std::vector<double> Machine::conv_output(int layer, std::size_t row, int token) const {
  return tensors_[layer].conv_out->token(offsets_[row] + token);
}
std::vector<unsigned char> Machine::conv_bytes(int layer, std::size_t row, int token) const {
  return tensors_[layer].conv_out->token_bytes(offsets_[row] + token);
}

std::vector<unsigned char> Machine::checkpoint(std::int64_t slot, int layer) {
  const Result<SlotInfo> info = cache_->info(slot);
  if (!info.ok() || lent_ == nullptr) return {};
  return lent_->read(TensorRole::kState, layer, info->block);
}

}  // namespace replayssm::laws
