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

void kda_decay(const LayerTable& layer, std::int32_t head, const float* gate, float* decay) {
  const LayerShape& shape = layer.shape;
  const std::int32_t dim = shape.key_dim;
  const float scale_of_head = gate_scale(shape, layer.weights, head);
  const float* bias =
      layer.weights.dt_bias != nullptr ? layer.weights.dt_bias + std::int64_t{head} * dim : nullptr;
  for (std::int32_t k = 0; k < dim; ++k) {
    decay[k] = std::exp(log_decay(shape, gate[k], bias != nullptr ? bias[k] : 0.0F, scale_of_head));
  }
}

namespace {

// The decay of a record whose gate is one number: mamba2 keeps dt, gdn keeps g.
float scalar_decay(const LayerTable& layer, std::int32_t head, float gate) {
  if (layer.shape.rule == Rule::kMamba2) return std::exp(gate * head_a(layer.weights, head));
  return std::exp(gate);
}

std::int32_t group_of(const LayerShape& shape, std::int32_t head) {
  return head / (shape.heads / shape.groups);
}

// Reads kda's gate input as its record will hold it.
void load_kda_gate(const CacheTable& table, const LayerTable& layer, const LayerInputs& inputs,
                   std::int64_t token, std::int32_t head, float* gate) {
  const std::int32_t dim = layer.shape.key_dim;
  load(at(inputs.gate, token, head), inputs.gate.dtype, dim, gate);
  round_through(gate, dim, gate_record_dtype(layer.shape, table.activations));
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

void load_records(const CacheTable& table, const LayerTable& layer, std::int64_t slot,
                  const std::uint16_t* order, std::int32_t n, std::int32_t head, std::int32_t first,
                  HeadTokens& tokens) {
  const LayerShape& shape = layer.shape;
  const std::int32_t keys = shape.key_dim;
  const std::int32_t group = group_of(shape, head);
  const RecordAccess record(table, layer, slot);
  for (std::int32_t j = 0; j < n; ++j) {
    const std::int64_t index = order[j];
    const std::int64_t token = first + j;
    float* key = tokens.key + token * keys;
    load(record.key(group, index), table.activations, keys, key);
    load(record.value(head, index), table.activations, shape.value_dim,
         tokens.value + token * shape.value_dim);
    if (shape.rule == Rule::kMamba2) {
      const float dt = load_one(record.gate(head, index), DType::kF32);
      tokens.scale[token] = dt;
      tokens.decay[token] = scalar_decay(layer, head, dt);
      continue;
    }
    scale(key, *record.inv_norm(group, index), keys);
    tokens.scale[token] = *record.beta(head, index);
    if (shape.rule == Rule::kGdn) {
      tokens.decay[token] =
          scalar_decay(layer, head, load_one(record.gate(head, index), DType::kF32));
    } else {
      std::array<float, kMaxHeadDim> gate{};
      load(record.gate(head, index), record.gate_dtype(), keys, gate.data());
      kda_decay(layer, head, gate.data(), tokens.decay + token * keys);
    }
  }
}

void load_inputs(const CacheTable& table, const LayerTable& layer, const LayerInputs& inputs,
                 std::int64_t token_offset, std::int32_t n, std::int32_t head, std::int32_t first,
                 HeadTokens& tokens) {
  const LayerShape& shape = layer.shape;
  const std::int32_t keys = shape.key_dim;
  const std::int32_t group = group_of(shape, head);
  const bool delta = shape.rule != Rule::kMamba2;
  for (std::int32_t i = 0; i < n; ++i) {
    const std::int64_t from = token_offset + i;
    const std::int64_t token = first + i;
    float* key = tokens.key + token * keys;
    load(at(inputs.key, from, group), inputs.key.dtype, keys, key);
    load(at(inputs.value, from, head), inputs.value.dtype, shape.value_dim,
         tokens.value + token * shape.value_dim);
    if (delta)
      scale(key, inverse_norm(shape, shape.qk_l2norm ? dot16(key, key, keys) : 0.0F), keys);
    if (tokens.query != nullptr) {
      float* query = tokens.query + token * keys;
      load(at(inputs.query, from, group), inputs.query.dtype, keys, query);
      if (delta) {
        const float norm = inverse_norm(shape, shape.qk_l2norm ? dot16(query, query, keys) : 0.0F);
        scale(query, norm * query_scale(shape), keys);
      }
    }
    if (shape.rule == Rule::kKda) {
      std::array<float, kMaxHeadDim> gate{};
      load_kda_gate(table, layer, inputs, from, head, gate.data());
      kda_decay(layer, head, gate.data(), tokens.decay + token * keys);
    } else {
      const float gate = record_gate(layer, inputs, from, head);
      tokens.decay[token] = scalar_decay(layer, head, gate);
      if (!delta) tokens.scale[token] = gate;
    }
    if (delta) tokens.scale[token] = record_beta(layer, inputs, from, head);
  }
}

void advance_row(const LayerShape& shape, const HeadTokens& tokens, std::int32_t token,
                 std::int32_t v, float* row) {
  const std::int32_t keys = shape.key_dim;
  const float* key = tokens.key + std::int64_t{token} * keys;
  const float value = tokens.value[std::int64_t{token} * shape.value_dim + v];
  if (shape.rule == Rule::kMamba2) {
    const float decay = tokens.decay[token];
    const float update = tokens.scale[token] * value;
    for (std::int32_t k = 0; k < keys; ++k) row[k] = row[k] * decay + update * key[k];
    return;
  }
  if (shape.rule == Rule::kGdn) {
    scale(row, tokens.decay[token], keys);
  } else {
    multiply(row, tokens.decay + std::int64_t{token} * keys, keys);
  }
  const float update = tokens.scale[token] * (value - dot16(row, key, keys));
  add_scaled(row, update, key, keys);
}

float finish_output(const LayerTable& layer, const LayerInputs& inputs, std::int64_t token,
                    std::int32_t head, std::int32_t v, float value, float output) {
  if (layer.shape.rule != Rule::kMamba2) return output;
  if (layer.weights.d != nullptr) output = output + layer.weights.d[head] * value;
  if (inputs.z.present()) {
    const auto* z = static_cast<const std::byte*>(at(inputs.z, token, head));
    output *= silu(
        load_one(z + v * static_cast<std::int64_t>(dtype_bytes(inputs.z.dtype)), inputs.z.dtype));
  }
  return output;
}

}  // namespace replayssm::cpu
