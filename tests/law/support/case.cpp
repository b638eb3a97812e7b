// See case.hpp.
#include "tests/law/support/case.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <sstream>

#include "oracle/rounding.hpp"

namespace replayssm::laws {
namespace {

std::vector<float> floats(Random& random, int count, double low, double high) {
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(random.real(low, high));
  return values;
}

std::vector<double> exact(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

int random_dim(Random& random, bool large) {
  const int kind = random.integer(0, 99);
  if (large && kind < 2) {
    constexpr int kLarge[] = {80, 128, 256};
    return kLarge[random.integer(0, 2)];
  }
  return 8 * random.integer(1, kind < 70 ? 2 : 5);
}

// Copies the finished shape into the oracle's words.
void translate(CaseLayer* layer) {
  const LayerShape& shape = layer->shape;
  oracle::Layer& other = layer->oracle;
  other.rule = static_cast<oracle::Rule>(shape.rule);
  other.heads = shape.heads;
  other.groups = shape.groups;
  other.value_dim = shape.value_dim;
  other.key_dim = shape.key_dim;
  other.gate = static_cast<oracle::GateKind>(shape.gate);
  other.lower_bound = shape.gate_lower_bound;
  other.a_log = exact(layer->a_log);
  other.a = exact(layer->a);
  other.dt_bias = exact(layer->dt_bias);
  other.d = exact(layer->d);
  other.dt_softplus = shape.dt_softplus;
  other.dt_min = shape.dt_softplus ? shape.dt_min : 0.0;
  other.dt_max = shape.dt_softplus ? shape.dt_max : std::numeric_limits<double>::infinity();
  if (!shape.dt_softplus && shape.rule == Rule::kMamba2) other.dt_bias.clear();  // taken as given
  other.l2_norm = shape.qk_l2norm;
  other.beta_given = !shape.beta_sigmoid;
  other.double_beta = shape.beta_doubled;
  other.q_scale = shape.query_scale != 0.0F ? shape.query_scale : 1.0 / std::sqrt(shape.key_dim);
  if (shape.rule == Rule::kMamba2) {
    other.gate = oracle::GateKind::kSoftplus;
    other.l2_norm = false;
    other.q_scale = 1.0;
  }
  layer->conv.channels = shape.conv_channels;
  layer->conv.width = shape.conv_channels > 0 ? shape.conv_width : 0;
  layer->conv.weight = exact(layer->conv_weight);
  layer->conv.bias = exact(layer->conv_bias);
}

DType pick(Random& random, DType activations) {
  return random.chance(0.5) ? DType::kF32 : activations;
}

void random_gates(Random& random, CaseLayer* layer) {
  LayerShape& shape = layer->shape;
  if (shape.rule == Rule::kMamba2) {
    shape.dt_softplus = random.chance(0.85);
    if (random.chance(0.3)) {
      shape.dt_min = 0.01F;
      shape.dt_max = static_cast<float>(random.real(0.05, 2.0));
    }
    if (random.chance(0.6)) layer->d = floats(random, shape.heads, -2.0, 2.0);
    layer->z = random.chance(0.4);
  } else {
    const int kind = random.integer(0, shape.rule == Rule::kKda ? 2 : 1);
    shape.gate = kind == 0   ? GateKind::kSoftplus
                 : kind == 1 ? GateKind::kLogDecay
                             : GateKind::kBounded;
    if (shape.gate == GateKind::kBounded) shape.gate_lower_bound = -5.0F;
    shape.beta_sigmoid = random.chance(0.7);
    shape.beta_doubled = random.chance(0.3);
    shape.qk_l2norm = random.chance(0.7);
    shape.query_scale = random.chance(0.3) ? static_cast<float>(random.real(0.1, 1.5)) : 0.0F;
    shape.gate_record_f32 = random.chance(0.3);
    if (shape.gate == GateKind::kLogDecay) return;
  }
  const bool given = shape.gate != GateKind::kBounded && random.chance(0.2);
  (given ? layer->a : layer->a_log) =
      given ? floats(random, shape.heads, -3.0, -0.01) : floats(random, shape.heads, -2.0, 1.5);
  const int width = shape.rule == Rule::kKda ? shape.key_dim : 1;
  if (random.chance(0.7)) layer->dt_bias = floats(random, shape.heads * width, -2.0, 1.0);
}

CaseLayer random_layer(Random& random, bool large, DType activations) {
  CaseLayer layer;
  LayerShape& shape = layer.shape;
  shape.rule = static_cast<Rule>(random.integer(0, 2));
  shape.value_dim = random_dim(random, large);
  shape.key_dim = random_dim(random, large);
  const bool heavy = shape.value_dim * shape.key_dim > 1600;
  shape.groups = random.integer(1, heavy ? 1 : 3);
  shape.heads = shape.groups * random.integer(1, heavy ? 2 : 6);
  while (shape.heads > shape.groups && shape.heads * shape.value_dim * shape.key_dim > 6000) {
    shape.heads -= shape.groups;
  }
  random_gates(random, &layer);
  if (random.chance(0.6)) {
    shape.conv_channels = random.chance(0.05) ? 300 : random.integer(1, 24);
    shape.conv_width = random.integer(2, 5);
    layer.conv_weight = floats(random, shape.conv_channels * shape.conv_width, -1.0, 1.0);
    if (random.chance(0.5)) layer.conv_bias = floats(random, shape.conv_channels, -1.0, 1.0);
    layer.conv.silu = random.chance(0.7);
  }
  layer.gate_dtype = pick(random, activations);
  layer.beta_dtype = pick(random, activations);
  layer.out_dtype = pick(random, activations);
  translate(&layer);
  return layer;
}

void random_counts(Random& random, CacheConfig* config, int max_slots) {
  config->max_step_tokens = random.chance(0.3) ? 1 : random.integer(1, random.chance(0.2) ? 16 : 6);
  config->window = random.integer(config->max_step_tokens,
                                  random.chance(0.15) ? 24 : config->max_step_tokens + 3);
  config->slots = random.integer(1, max_slots);
  config->blocks = random.chance(0.4) ? 0 : config->slots + random.integer(0, 6);
  config->max_rows = config->slots + random.integer(0, 2);
  config->max_tokens = config->max_rows * config->max_step_tokens + random.integer(0, 24);
  config->materialize_history = random.chance(0.5);
  config->threads = random.chance(0.7) ? 1 : random.integer(2, 3);
}

// The fast CUDA kernels take few shapes, which chance alone would seldom find.
void favour_fast_kernels(Random& random, Case* made) {
  made->config.max_step_tokens = std::min(made->config.max_step_tokens, 4);
  made->config.window = std::min(made->config.window, 16);
  for (CaseLayer& layer : made->layers) {
    constexpr int kValueDims[] = {16, 32, 48, 80};
    LayerShape& shape = layer.shape;
    const CaseLayer before = std::move(layer);
    layer = CaseLayer{};
    shape = LayerShape{};
    shape.rule = Rule::kMamba2;
    shape.value_dim = kValueDims[random.integer(0, 3)];
    shape.key_dim = 128;
    shape.groups = random.integer(1, 2);
    shape.heads = shape.groups * random.integer(1, shape.value_dim > 32 ? 1 : 3);
    random_gates(random, &layer);
    shape.conv_channels = before.shape.conv_channels;
    shape.conv_width = before.shape.conv_width;
    layer.conv_weight = before.conv_weight;
    layer.conv_bias = before.conv_bias;
    layer.conv.silu = before.conv.silu;
    layer.gate_dtype = before.gate_dtype;
    layer.beta_dtype = before.beta_dtype;
    layer.out_dtype = before.out_dtype;
  }
}

std::vector<double> rounded(std::vector<double> values, DType dtype) {
  for (double& value : values) value = oracle::round_to(value, dtype);
  return values;
}

double random_gate(Random& random, const CaseLayer& layer) {
  const int kind = random.integer(0, 19);
  if (layer.shape.rule == Rule::kMamba2) {
    if (!layer.shape.dt_softplus) return random.real(0.0, 1.0);
    return kind == 0 ? random.real(18.0, 25.0) : random.real(-6.0, 1.5);
  }
  if (layer.shape.gate == GateKind::kLogDecay) {
    if (kind == 0) return -std::numeric_limits<double>::infinity();
    if (kind == 1) return 0.0;
    return -std::exp(random.real(-8.0, kind == 2 ? 5.0 : 0.0));
  }
  if (kind == 0) return random.real(20.0, 90.0);
  if (kind == 1) return -random.real(20.0, 200.0);
  return random.real(-6.0, 1.0);
}

}  // namespace

CaseLayer simple_layer(Random& random, Rule rule, int heads, int groups, int value_dim,
                       int key_dim) {
  CaseLayer layer;
  layer.shape.rule = rule;
  layer.shape.heads = heads;
  layer.shape.groups = groups;
  layer.shape.value_dim = value_dim;
  layer.shape.key_dim = key_dim;
  layer.a_log = floats(random, heads, -2.0, 1.0);
  layer.dt_bias = floats(random, heads * (rule == Rule::kKda ? key_dim : 1), -3.0, -1.0);
  translate(&layer);
  return layer;
}

void finish_case(Case* made) {
  made->config.layers.clear();
  for (CaseLayer& layer : made->layers) {
    translate(&layer);
    made->config.layers.push_back(layer.shape);
  }
}

Case random_case(Random& random, const ImplementationInfo& info, const CaseLimits& limits) {
  Case made;
  CacheConfig& config = made.config;
  config.implementation = info.name;
  config.decode = info.decode;
  config.activations =
      info.activations[random.integer(0, static_cast<int>(info.activations.size()) - 1)];
  config.update = random.chance(0.5) ? DType::kF32 : DType::kBF16;
  const int layers = random.chance(0.5) ? 1 : random.integer(1, limits.max_layers);
  for (int i = 0; i < layers; ++i) {
    made.layers.push_back(random_layer(random, limits.large_dims, config.activations));
  }
  random_counts(random, &config, limits.max_slots);
  if ((info.name == "cuda" || info.name == "cuda-conventional") && random.chance(0.75)) {
    favour_fast_kernels(random, &made);
  }
  finish_case(&made);
  return made;
}

Case sibling_case(Random& random, const Case& original, const ImplementationInfo& info) {
  Case made = original;
  made.config.implementation = info.name;
  made.config.decode = info.decode;
  random_counts(random, &made.config, 3);
  return made;
}

ModelToken random_token(Random& random, const Case& where) {
  auto made = std::make_shared<std::vector<LayerToken>>();
  const DType act = where.config.activations;
  for (const CaseLayer& layer : where.layers) {
    const LayerShape& shape = layer.shape;
    const bool mamba2 = shape.rule == Rule::kMamba2;
    LayerToken one;
    // Without normalisation keys stay below unit length, as models that go without it keep them.
    const double key_scale = shape.qk_l2norm && !mamba2 ? 1.0 : 0.5 / std::sqrt(shape.key_dim);
    one.token.q = rounded(random.normals(shape.groups * shape.key_dim, 1.0), act);
    one.token.k = rounded(random.normals(shape.groups * shape.key_dim, key_scale), act);
    one.token.v = rounded(random.normals(shape.heads * shape.value_dim, 1.0), act);
    const int width = shape.rule == Rule::kKda ? shape.key_dim : 1;
    for (int i = 0; i < shape.heads * width; ++i) one.gate.push_back(random_gate(random, layer));
    one.gate = rounded(one.gate, layer.gate_dtype);
    const bool f32_record =
        shape.rule != Rule::kKda || shape.gate_record_f32 || shape.gate == GateKind::kLogDecay;
    one.token.gate = f32_record ? one.gate : rounded(one.gate, act);
    if (!mamba2) {
      for (int head = 0; head < shape.heads; ++head) {
        one.beta.push_back(shape.beta_sigmoid ? random.real(-4.0, 4.0) : random.real(0.0, 1.0));
      }
      one.beta = rounded(one.beta, layer.beta_dtype);
      one.token.beta = one.beta;
      if (!shape.beta_sigmoid && shape.beta_doubled) {
        for (double& beta : one.token.beta) beta *= 2.0;  // the oracle takes a given beta as it is
      }
    } else if (layer.z) {
      one.token.z = rounded(random.normals(shape.heads * shape.value_dim, 1.0), act);
    }
    one.conv = rounded(random.normals(shape.conv_channels, 1.0), act);
    made->push_back(std::move(one));
  }
  return made;
}

std::string Case::describe() const {
  std::ostringstream text;
  text << config.implementation << ", W " << config.window << ", T_max " << config.max_step_tokens
       << ", slots " << config.slots << ", blocks " << config.blocks << ", "
       << dtype_name(config.activations) << ", u " << dtype_name(config.update);
  for (const CaseLayer& layer : layers) {
    text << "; " << rule_name(layer.shape.rule) << " " << gate_kind_name(layer.shape.gate) << " H "
         << layer.shape.heads << " G " << layer.shape.groups << " V " << layer.shape.value_dim
         << " K " << layer.shape.key_dim << " conv " << layer.shape.conv_channels << "x"
         << layer.shape.conv_width;
  }
  return text.str();
}

std::vector<ImplementationInfo> available(DecodeMode decode) {
  std::vector<ImplementationInfo> list;
  for (const ImplementationInfo& info : implementations()) {
    if (info.available && info.decode == decode && info.device == kDeviceUnderTest)
      list.push_back(info);
  }
  return list;
}

std::vector<ImplementationInfo> available() {
  std::vector<ImplementationInfo> list = available(DecodeMode::kReplay);
  for (const ImplementationInfo& info : available(DecodeMode::kConventional)) list.push_back(info);
  return list;
}

std::vector<std::string> available_names() {
  std::vector<std::string> names;
  for (const ImplementationInfo& info : available()) names.push_back(info.name);
  return names;
}

std::vector<std::string> available_names(DecodeMode decode) {
  std::vector<std::string> names;
  for (const ImplementationInfo& info : available(decode)) names.push_back(info.name);
  return names;
}

ImplementationInfo implementation_named(const std::string& name) {
  for (const ImplementationInfo& info : implementations()) {
    if (info.name == name) return info;
  }
  return {};
}

std::string test_name(std::string name) {
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

std::vector<int> tree_parents(Random& random, int tokens) {
  std::vector<int> parents(tokens);
  const bool chain = random.chance(0.2);
  for (int i = 0; i < tokens; ++i) parents[i] = chain ? i - 1 : random.integer(-1, i - 1);
  return parents;
}

std::vector<int> tree_path(Random& random, const std::vector<int>& parents, double stop) {
  std::vector<int> path;
  while (true) {
    std::vector<int> children;
    for (int i = 0; i < static_cast<int>(parents.size()); ++i) {
      if (parents[i] == (path.empty() ? -1 : path.back())) children.push_back(i);
    }
    if (children.empty() || random.chance(stop)) return path;
    path.push_back(children[random.integer(0, static_cast<int>(children.size()) - 1)]);
  }
}

}  // namespace replayssm::laws
