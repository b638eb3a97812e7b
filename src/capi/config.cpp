// Reading the structs of the C interface.
#include <limits>
#include <string>

#include "capi/capi.hpp"

namespace replayssm::capi {

replayssm_code report(const Status& status, replayssm_error* error) {
  const auto code = static_cast<replayssm_code>(status.code());
  if (error == nullptr) return code;
  std::uint32_t size = 0;
  std::memcpy(&size, error, sizeof(size));
  if (size < kFrozenSize<replayssm_error>) return code;  // no room: the code alone has to do
  error->code = code;
  const std::size_t length = std::min(status.message().size(), sizeof(error->message) - 1);
  std::memcpy(error->message, status.message().data(), length);
  // One line: what a caller's own text brought along must not break it.
  for (std::size_t i = 0; i < length; ++i) {
    if (static_cast<unsigned char>(error->message[i]) < 0x20) error->message[i] = ' ';
  }
  error->message[length] = '\0';
  return code;
}

Status read_stream(const replayssm_stream* given, std::int32_t device, void*& stream) {
  stream = nullptr;
  if (given == nullptr) return {};
  replayssm_stream known;
  REPLAYSSM_RETURN_IF_ERROR(read_sized(given, "stream", known));
  if (known.device != device) {
    return invalid_argument("stream: the cache lives on device kind ", device,
                            ", given a stream of kind ", known.device);
  }
  if (known.device_index != 0) {
    return error(StatusCode::kUnsupported, "stream: device_index must be 0 in this version, given ",
                 known.device_index);
  }
  stream = known.handle;
  return {};
}

Status read_tensor(const replayssm_tensor& given, const char* name, TensorView& view) {
  view = TensorView{};
  if (given.data == nullptr) return {};
  if (given.struct_size != sizeof(replayssm_tensor)) {
    return invalid_argument(name, ": struct_size must be ", sizeof(replayssm_tensor), ", given ",
                            given.struct_size);
  }
  if (given.reserved != 0) {
    return invalid_argument(name, ": reserved must be 0, given ", given.reserved);
  }
  if (given.rank < 1 || given.rank > TensorView::kMaxRank) {
    return invalid_argument(name, ": rank must be 1 to 4, given ", given.rank);
  }
  if (given.dtype < REPLAYSSM_F32 || given.dtype > REPLAYSSM_I64) {
    return invalid_argument(name, ": unknown dtype ", given.dtype);
  }
  view.data = given.data;
  view.dtype = static_cast<DType>(given.dtype);
  view.rank = given.rank;
  for (std::size_t i = 0; i < 4; ++i) {
    view.shape[i] = given.shape[i];
    view.stride[i] = given.stride[i];
  }
  return {};
}

namespace {

// An enumerator, once it is one: a cast of anything else would not be a value of the type.
template <typename Enum>
Status read_enum(std::int32_t given, std::int32_t last, const char* name, Enum& value) {
  if (given < 0 || given > last)
    return invalid_argument(name, ": must be 0 to ", last, ", given ", given);
  value = static_cast<Enum>(given);
  return {};
}

Status read_layer(const replayssm_layer* given, CacheConfig& config) {
  replayssm_layer known;
  REPLAYSSM_RETURN_IF_ERROR(read_sized(given, "layer", known));
  constexpr std::int32_t kAllFlags = 31;
  if ((known.flags & ~kAllFlags) != 0)
    return invalid_argument("layer: unknown flags ", known.flags & ~kAllFlags);
  LayerShape shape;
  REPLAYSSM_RETURN_IF_ERROR(read_enum(known.rule, REPLAYSSM_RULE_KDA, "layer: rule", shape.rule));
  REPLAYSSM_RETURN_IF_ERROR(
      read_enum(known.gate, REPLAYSSM_GATE_LOG_DECAY, "layer: gate", shape.gate));
  shape.heads = known.heads;
  shape.groups = known.groups;
  shape.value_dim = known.value_dim;
  shape.key_dim = known.key_dim;
  shape.conv_channels = known.conv_channels;
  shape.conv_width = known.conv_width;
  shape.dt_softplus = (known.flags & REPLAYSSM_LAYER_DT_GIVEN) == 0;
  shape.dt_min = known.dt_min;
  shape.dt_max = known.dt_max == 0.0F ? std::numeric_limits<float>::infinity() : known.dt_max;
  shape.gate_lower_bound = known.gate_lower_bound;
  shape.beta_sigmoid = (known.flags & REPLAYSSM_LAYER_BETA_GIVEN) == 0;
  shape.beta_doubled = (known.flags & REPLAYSSM_LAYER_BETA_DOUBLED) != 0;
  shape.qk_l2norm = (known.flags & REPLAYSSM_LAYER_NO_L2NORM) == 0;
  shape.query_scale = known.query_scale;
  shape.gate_record_f32 = (known.flags & REPLAYSSM_LAYER_GATE_RECORD_F32) != 0;
  config.layers.push_back(shape);
  LayerWeights weights;
  weights.a_log = known.a_log;
  weights.a = known.a;
  weights.dt_bias = known.dt_bias;
  weights.d = known.d;
  weights.conv_weight = known.conv_weight;
  weights.conv_bias = known.conv_bias;
  config.weights.push_back(weights);
  return {};
}

Status read_memory(const replayssm_config& known, CacheConfig& config) {
  if (known.memory_count == 0) return {};
  if (known.memory_count < 0 || known.memory == nullptr) {
    return invalid_argument("config: memory must hold memory_count = ", known.memory_count,
                            " entries");
  }
  for (std::int32_t i = 0; i < known.memory_count; ++i) {
    replayssm_tensor_memory memory;
    REPLAYSSM_RETURN_IF_ERROR(read_sized(element_of(known.memory, i), "memory", memory));
    config.memory.push_back({memory.base, memory.stride_bytes});
  }
  return {};
}

}  // namespace

Status read_config(const replayssm_config* given, CacheConfig& config) {
  replayssm_config known;
  REPLAYSSM_RETURN_IF_ERROR(read_sized(given, "config", known));
  if (known.layer_count < 1 || known.layers == nullptr) {
    return invalid_argument("config: layers must hold at least one layer, layer_count is ",
                            known.layer_count);
  }
  for (std::int32_t i = 0; i < known.layer_count; ++i) {
    REPLAYSSM_RETURN_IF_ERROR(read_layer(element_of(known.layers, i), config));
  }
  REPLAYSSM_RETURN_IF_ERROR(
      read_enum(known.decode, REPLAYSSM_DECODE_CONVENTIONAL, "config: decode", config.decode));
  REPLAYSSM_RETURN_IF_ERROR(
      read_enum(known.format, REPLAYSSM_STATE_I8, "config: format", config.format));
  REPLAYSSM_RETURN_IF_ERROR(
      read_enum(known.activations, REPLAYSSM_I64, "config: activations", config.activations));
  std::int32_t update = 0;
  REPLAYSSM_RETURN_IF_ERROR(
      read_enum(known.update, REPLAYSSM_UPDATE_F32, "config: update", update));
  config.update = update == REPLAYSSM_UPDATE_F32 ? DType::kF32 : DType::kBF16;
  if (known.window != 0) config.window = known.window;
  if (known.max_step_tokens != 0) config.max_step_tokens = known.max_step_tokens;
  config.slots = known.slots;
  config.blocks = known.blocks;
  config.max_rows = known.max_rows;
  config.max_tokens = known.max_tokens;
  config.materialize_history = known.materialize_history != 0;
  config.threads = known.threads;
  std::int32_t device = 0;
  REPLAYSSM_RETURN_IF_ERROR(
      read_enum(known.device, REPLAYSSM_DEVICE_CUDA, "config: device", device));
  config.device = device == REPLAYSSM_DEVICE_CUDA ? "cuda" : "cpu";
  if (known.device_index != 0) {
    return error(StatusCode::kUnsupported,
                 "config: device_index must be 0 in this version (the process's current "
                 "device), given ",
                 known.device_index);
  }
  config.checked = known.checked != 0;
  if (known.implementation != nullptr) config.implementation = known.implementation;
  REPLAYSSM_RETURN_IF_ERROR(read_memory(known, config));
  if (known.parallel == nullptr) return {};
  replayssm_parallel_for parallel;
  REPLAYSSM_RETURN_IF_ERROR(read_sized(known.parallel, "parallel", parallel));
  if (parallel.run == nullptr) return invalid_argument("parallel: run: required, given null");
  config.parallel.run = parallel.run;
  config.parallel.context = parallel.context;
  config.parallel.workers = parallel.workers;
  return {};
}

}  // namespace replayssm::capi
