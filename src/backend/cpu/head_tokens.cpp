// Tokens of one head in f32, and the recurrence on them.
#include "backend/cpu/head_tokens.hpp"

#include <array>
#include <cmath>

#include "backend/cpu/access.hpp"
#include "backend/cpu/vec.hpp"
#include "math/gates.hpp"

namespace replayssm::cpu {

HeadTokens take_head_tokens(Arena& arena, const LayerShape& shape, std::int64_t n, bool query) {
  HeadTokens tokens;
  tokens.key = arena.take(n * shape.key_dim);
  if (query) tokens.query = arena.take(n * shape.key_dim);
  tokens.decay = arena.take(shape.rule == Rule::kKda ? n * shape.key_dim : n);
  tokens.scale = arena.take(n);
  tokens.value = arena.take(n * shape.value_dim);
  return tokens;
}

std::int64_t head_tokens_floats(std::int64_t n) {
  return n * (4 * kMaxHeadDim + 1) + std::int64_t{5} * 16;
}

namespace {

// kda: what turns a head's gate records into decays.
GateRun kda_gate(const LayerTable& layer, std::int32_t head) {
  const LayerShape& shape = layer.shape;
  GateRun run;
  run.kind = shape.gate;
  run.lower_bound = shape.gate_lower_bound;
  run.scale = gate_scale(shape, layer.weights, head);
  const float* bias = layer.weights.dt_bias;
  run.bias = bias != nullptr && shape.gate != GateKind::kLogDecay
                 ? bias + std::int64_t{head} * shape.key_dim
                 : nullptr;
  return run;
}

// The decay of a record whose gate is one number: mamba2 keeps dt, gdn keeps g.
float scalar_decay(const LayerTable& layer, std::int32_t head, float gate) {
  if (layer.shape.rule == Rule::kMamba2) return std::exp(gate * head_a(layer.weights, head));
  return std::exp(gate);
}

}  // namespace

float record_gate(const LayerTable& layer, const LayerInputs& inputs, std::int64_t token,
                  std::int32_t head) {
  const LayerShape& shape = layer.shape;
  const float raw = load_one(at(inputs.gate, token, head), inputs.gate.dtype);
  const float bias = layer.weights.dt_bias != nullptr ? layer.weights.dt_bias[head] : 0.0F;
  if (shape.rule == Rule::kMamba2) return mamba2_dt(shape, raw, bias);
  return log_decay(shape, raw, bias, gate_scale(shape, layer.weights, head));
}

float record_beta(const LayerTable& layer, const LayerInputs& inputs, std::int64_t token,
                  std::int32_t head) {
  return beta_value(layer.shape, load_one(at(inputs.beta, token, head), inputs.beta.dtype));
}

float raw_inverse_norm(const Level& level, const LayerShape& shape, const float* raw) {
  return inverse_norm(shape, shape.qk_l2norm ? level.dot(raw, raw, shape.key_dim) : 0.0F);
}

void load_record_keys(const Level& level, const CacheTable& table, const LayerTable& layer,
                      std::int64_t slot, const std::uint16_t* order, std::int32_t n,
                      std::int32_t group, HeadTokens& tokens, Stream* stream) {
  const std::int32_t keys = layer.shape.key_dim;
  const RecordAccess record(table, layer, slot);
  for (std::int32_t j = 0; j < n; ++j) {
    float* key = tokens.key + std::int64_t{j} * keys;
    level.load(record.key(group, order[j]), table.activations, keys, key);
    if (stream != nullptr) stream->pull(16);
    if (layer.shape.rule != Rule::kMamba2)
      level.scale(key, *record.inv_norm(group, order[j]), keys);
  }
}

void load_record_gates(const Level& level, const CacheTable& table, const LayerTable& layer,
                       std::int64_t slot, const std::uint16_t* order, std::int32_t n,
                       std::int32_t head, HeadTokens& tokens, Stream* stream) {
  const LayerShape& shape = layer.shape;
  const RecordAccess record(table, layer, slot);
  if (shape.rule == Rule::kKda) {
    const GateRun run = kda_gate(layer, head);
    for (std::int32_t j = 0; j < n; ++j) {
      float* decay = tokens.decay + std::int64_t{j} * shape.key_dim;
      level.load(record.gate(head, order[j]), record.gate_dtype(), shape.key_dim, decay);
      level.decay(run, decay, shape.key_dim, decay);
      if (stream != nullptr) stream->pull(128);
    }
    return;
  }
  for (std::int32_t j = 0; j < n; ++j) {
    const float gate = load_one(record.gate(head, order[j]), DType::kF32);
    tokens.decay[j] = scalar_decay(layer, head, gate);
    tokens.scale[j] = gate;  // mamba2's dt
    if (stream != nullptr) stream->pull(16);
  }
}

void load_record_head(const Level& level, const CacheTable& table, const LayerTable& layer,
                      std::int64_t slot, const std::uint16_t* order, std::int32_t n,
                      std::int32_t head, HeadTokens& tokens, Stream* stream) {
  const LayerShape& shape = layer.shape;
  const RecordAccess record(table, layer, slot);
  load_record_gates(level, table, layer, slot, order, n, head, tokens, stream);
  for (std::int32_t j = 0; j < n; ++j) {
    level.load(record.value(head, order[j]), table.activations, shape.value_dim,
               tokens.value + std::int64_t{j} * shape.value_dim);
    if (shape.rule != Rule::kMamba2) tokens.scale[j] = *record.beta(head, order[j]);
    if (stream != nullptr) stream->pull(16);
  }
}

void load_input_keys(const Level& level, const LayerTable& layer, const LayerInputs& inputs,
                     std::int64_t token_offset, std::int32_t n, std::int32_t group,
                     std::int32_t first, HeadTokens& tokens) {
  const LayerShape& shape = layer.shape;
  const std::int32_t keys = shape.key_dim;
  const bool delta = shape.rule != Rule::kMamba2;
  for (std::int32_t i = 0; i < n; ++i) {
    float* key = tokens.key + std::int64_t{first + i} * keys;
    level.load(at(inputs.key, token_offset + i, group), inputs.key.dtype, keys, key);
    if (delta) level.scale(key, raw_inverse_norm(level, shape, key), keys);
    if (tokens.query == nullptr) continue;
    float* query = tokens.query + std::int64_t{first + i} * keys;
    level.load(at(inputs.query, token_offset + i, group), inputs.query.dtype, keys, query);
    if (delta) level.scale(query, raw_inverse_norm(level, shape, query) * query_scale(shape), keys);
  }
}

void load_input_head(const Level& level, const CacheTable& table, const LayerTable& layer,
                     const LayerInputs& inputs, std::int64_t token_offset, std::int32_t n,
                     std::int32_t head, std::int32_t first, HeadTokens& tokens) {
  const LayerShape& shape = layer.shape;
  const std::int32_t keys = shape.key_dim;
  const GateRun run = shape.rule == Rule::kKda ? kda_gate(layer, head) : GateRun();
  for (std::int32_t i = 0; i < n; ++i) {
    const std::int64_t from = token_offset + i;
    const std::int64_t token = first + i;
    level.load(at(inputs.value, from, head), inputs.value.dtype, shape.value_dim,
               tokens.value + token * shape.value_dim);
    if (shape.rule == Rule::kKda) {
      // Rounded as the record will hold it, so that this step decays as the fold will.
      float* decay = tokens.decay + token * keys;
      level.load(at(inputs.gate, from, head), inputs.gate.dtype, keys, decay);
      const DType kept = gate_record_dtype(shape, table.activations);
      if (kept != inputs.gate.dtype) round_through(decay, keys, kept);
      level.decay(run, decay, keys, decay);
    } else {
      const float gate = record_gate(layer, inputs, from, head);
      tokens.decay[token] = scalar_decay(layer, head, gate);
      tokens.scale[token] = gate;  // mamba2's dt
    }
    if (shape.rule != Rule::kMamba2) tokens.scale[token] = record_beta(layer, inputs, from, head);
  }
}

AdvanceRun run_of(const LayerShape& shape, const HeadTokens& tokens, std::int32_t n) {
  AdvanceRun run;
  run.rule = shape.rule;
  run.keys = shape.key_dim;
  run.values = shape.value_dim;
  run.tokens = n;
  run.key = tokens.key;
  run.decay = tokens.decay;
  run.scale = tokens.scale;
  run.value = tokens.value;
  return run;
}

void finish_output(const Level& level, const LayerTable& layer, const LayerInputs& inputs,
                   std::int64_t token, std::int32_t head, const float* value, float* gate,
                   float* output) {
  if (layer.shape.rule != Rule::kMamba2) return;
  const std::int32_t values = layer.shape.value_dim;
  if (layer.weights.d != nullptr) {
    const std::int32_t only = 0;
    level.combine(value, values, &only, layer.weights.d + head, 1, output);
  }
  if (!inputs.z.present()) return;
  level.load(at(inputs.z, token, head), inputs.z.dtype, values, gate);
  level.silu(gate, values);
  level.multiply(output, gate, values);
}

}  // namespace replayssm::cpu
