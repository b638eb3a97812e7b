// The replay step of gdn and kda. For token t, newest record first, w_j the decay (kda: per
// channel) from j to t:
//   u_t = beta_t (v_t - w S0 k_t - sum_{j<t} u_j ((w_j k_j) . k_t)),   o_t = w S0 q_t + sum_{j<=t}
//   u_j ((w_j k_j) . q_t)
// which is the unit lower triangular system of docs/law.md solved row by row along each token's own
// path.
#include <algorithm>
#include <cstring>

#include "backend/cpu/access.hpp"
#include "backend/cpu/head_tokens.hpp"
#include "backend/cpu/rooms.hpp"
#include "backend/cpu/vec.hpp"
#include "math/gates.hpp"

namespace replayssm::cpu {
namespace {

struct Work {
  HeadTokens tokens;
  float* key_dots = nullptr;    // gdn: k_j . k_t for the group's heads, [T, total]
  float* query_dots = nullptr;  // gdn: k_j . q_t
  float* to_key = nullptr;      // (w_j k_j) . k_t, [T, total]
  float* to_query = nullptr;    // (w_j k_j) . q_t
  float* update =
      nullptr;  // [total, V] u as the read path sees it, that is rounded to its stored dtype
  float* key_reach = nullptr;    // [T, K] k_t, kda: times the decay from the checkpoint
  float* query_reach = nullptr;  // [T, K] the same of q_t
  float* reach = nullptr;        // [T] gdn: that decay; kda: 1
  float* key_read = nullptr;     // [T, V] S0 key_reach
  float* query_read = nullptr;   // [T, V] S0 query_reach
  float* predicted = nullptr;    // [V]
  float* output = nullptr;       // [V]
};

Work take_work(Arena& arena, const LayerShape& shape, std::int32_t total, std::int32_t steps) {
  Work work;
  work.tokens = take_head_tokens(arena, shape, total, true);
  for (float** pairs : {&work.key_dots, &work.query_dots, &work.to_key, &work.to_query}) {
    *pairs = arena.take(std::int64_t{total} * steps);
  }
  work.update = arena.take(std::int64_t{total} * shape.value_dim);
  work.key_reach = arena.take(std::int64_t{steps} * shape.key_dim);
  work.query_reach = arena.take(std::int64_t{steps} * shape.key_dim);
  work.reach = arena.take(steps);
  work.key_read = arena.take(std::int64_t{steps} * shape.value_dim);
  work.query_read = arena.take(std::int64_t{steps} * shape.value_dim);
  work.predicted = arena.take(shape.value_dim);
  work.output = arena.take(shape.value_dim);
  return work;
}

// What comes before record j on the path of a pending token, -1 at the checkpoint.
std::int32_t before(const std::int32_t* parents, std::int32_t n, std::int32_t j) {
  const std::int32_t parent = j >= n ? parent_of(parents, j - n) : -1;
  return parent >= 0 ? n + parent : std::min(j, n) - 1;
}

// Coefficients of the records on t's path and the reach of its key and query, by suffix: decays are
// multiplied on from the newest record to the oldest, so none is ever a difference.
void walk(const LayerShape& shape, const std::int32_t* parents, std::int32_t n, std::int32_t total,
          std::int32_t t, Work& work) {
  const std::int32_t keys = shape.key_dim;
  float* key = work.key_reach + std::int64_t{t} * keys;
  float* query = work.query_reach + std::int64_t{t} * keys;
  std::copy_n(work.tokens.key + std::int64_t{n + t} * keys, keys, key);
  std::copy_n(work.tokens.query + std::int64_t{n + t} * keys, keys, query);
  float weight = 1.0F;
  std::int32_t j = n + t;
  while (true) {
    // The decay of a record lies between it and everything older.
    if (shape.rule == Rule::kGdn) {
      weight *= work.tokens.decay[j];
    } else {
      multiply(key, work.tokens.decay + std::int64_t{j} * keys, keys);
      multiply(query, work.tokens.decay + std::int64_t{j} * keys, keys);
    }
    j = before(parents, n, j);
    if (j < 0) break;
    const std::int64_t pair = std::int64_t{t} * total + j;
    if (shape.rule == Rule::kGdn) {
      work.to_key[pair] = weight * work.key_dots[pair];
      work.to_query[pair] = weight * work.query_dots[pair];
    } else {
      work.to_key[pair] = dot16(work.tokens.key + std::int64_t{j} * keys, key, keys);
      work.to_query[pair] = dot16(work.tokens.key + std::int64_t{j} * keys, query, keys);
    }
  }
  work.reach[t] = weight;
}

// S0 key_reach and S0 query_reach of all tokens, in one pass over the rows of S0.
void read_state(const float* state, const LayerShape& shape, std::int32_t steps, Work& work) {
  const std::int32_t keys = shape.key_dim;
  const std::int32_t values = shape.value_dim;
  for (std::int32_t v = 0; v < values; ++v) {
    const float* row = state + std::int64_t{v} * keys;
    for (std::int32_t t = 0; t < steps; ++t) {
      work.key_read[t * values + v] =
          work.reach[t] * dot16(row, work.key_reach + std::int64_t{t} * keys, keys);
      work.query_read[t * values + v] =
          work.reach[t] * dot16(row, work.query_reach + std::int64_t{t} * keys, keys);
    }
  }
}

// u_t and o_t, once those of the token's ancestors are known. Leaves o_t in work.output.
void solve(const LayerShape& shape, const std::int32_t* parents, std::int32_t n, std::int32_t total,
           std::int32_t t, DType update_dtype, Work& work) {
  const std::int32_t values = shape.value_dim;
  const std::int32_t keys = shape.key_dim;
  std::fill_n(work.predicted, values, 0.0F);
  std::fill_n(work.output, values, 0.0F);
  for (std::int32_t j = before(parents, n, n + t); j >= 0; j = before(parents, n, j)) {
    const std::int64_t pair = std::int64_t{t} * total + j;
    add_scaled(work.predicted, work.to_key[pair], work.update + std::int64_t{j} * values, values);
    add_scaled(work.output, work.to_query[pair], work.update + std::int64_t{j} * values, values);
  }
  add_scaled(work.predicted, 1.0F, work.key_read + std::int64_t{t} * values, values);
  add_scaled(work.output, 1.0F, work.query_read + std::int64_t{t} * values, values);

  const float* value = work.tokens.value + std::int64_t{n + t} * values;
  float* update = work.update + std::int64_t{n + t} * values;
  for (std::int32_t v = 0; v < values; ++v)
    update[v] = work.tokens.scale[n + t] * (value[v] - work.predicted[v]);
  const float own = dot16(work.tokens.key + std::int64_t{n + t} * keys,
                          work.tokens.query + std::int64_t{n + t} * keys, keys);
  add_scaled(work.output, own, update, values);
  // Later tokens of this step see what a later step would: u as stored.
  round_through(update, values, update_dtype);
}

void write_records(const CacheTable& table, const LayerTable& layer, const LayerInputs& inputs,
                   const StepItem& item, std::int32_t head, const float* update) {
  const LayerShape& shape = layer.shape;
  const RowDescriptor& desc = table.forward.rows[item.row];
  const RecordAccess record(table, layer, desc.slot);
  const std::uint16_t* pending = row_order(table, item.row) + desc.committed;
  const std::size_t bytes = dtype_bytes(table.activations);
  for (std::int32_t i = 0; i < desc.tokens; ++i) {
    const std::int64_t token = desc.token_offset + i;
    const std::int64_t index = pending[i];
    if (item.first_of_group && head == item.head_begin) {
      float key[kMaxHeadDim];
      const void* raw = at(inputs.key, token, item.group);
      load(raw, inputs.key.dtype, shape.key_dim, key);
      std::memcpy(record.key(item.group, index), raw, shape.key_dim * bytes);
      *record.inv_norm(item.group, index) =
          inverse_norm(shape, shape.qk_l2norm ? dot16(key, key, shape.key_dim) : 0.0F);
    }
    std::memcpy(record.value(head, index), at(inputs.value, token, head), shape.value_dim * bytes);
    *record.beta(head, index) = record_beta(layer, inputs, token, head);
    if (shape.rule == Rule::kGdn) {
      const float g = record_gate(layer, inputs, token, head);
      std::memcpy(record.gate(head, index), &g, sizeof(g));
    } else {
      float gate[kMaxHeadDim];
      load(at(inputs.gate, token, head), inputs.gate.dtype, shape.key_dim, gate);
      store(gate, shape.key_dim, record.gate(head, index), record.gate_dtype());
    }
    store(update + std::int64_t{i} * shape.value_dim, shape.value_dim, record.update(head, index),
          table.update);
  }
}

}  // namespace

void step_delta_item(const CacheTable& table, const LayerInputs& inputs, const StepItem& item,
                     Arena& arena) {
  const LayerTable& layer = table.layers[inputs.layer];
  const LayerShape& shape = layer.shape;
  const RowDescriptor& desc = table.forward.rows[item.row];
  const std::int32_t keys = shape.key_dim;
  const std::int32_t values = shape.value_dim;
  const std::int32_t n = desc.committed;
  const std::int32_t steps = desc.tokens;
  const std::int32_t total = n + steps;
  const std::int32_t* parents = row_parents(table, item.row);
  const std::uint16_t* order = row_order(table, item.row);
  const RecordAccess record(table, layer, desc.slot);
  Work work = take_work(arena, shape, total, steps);

  for (std::int32_t head = item.head_begin; head < item.head_end; ++head) {
    load_records(table, layer, desc.slot, order, n, head, 0, work.tokens);
    load_inputs(table, layer, inputs, desc.token_offset, steps, head, n, work.tokens);
    for (std::int32_t j = 0; j < n; ++j) {
      load(record.update(head, order[j]), table.update, values,
           work.update + std::int64_t{j} * values);
    }
    if (shape.rule == Rule::kGdn && head == item.head_begin) {
      for (std::int32_t t = 0; t < steps; ++t) {
        for (std::int32_t j = 0; j < total; ++j) {
          const float* key = work.tokens.key + std::int64_t{j} * keys;
          work.key_dots[t * total + j] =
              dot16(key, work.tokens.key + std::int64_t{n + t} * keys, keys);
          work.query_dots[t * total + j] =
              dot16(key, work.tokens.query + std::int64_t{n + t} * keys, keys);
        }
      }
    }
    for (std::int32_t t = 0; t < steps; ++t) walk(shape, parents, n, total, t, work);
    if (desc.reads_zero()) {
      std::fill_n(work.key_read, std::int64_t{steps} * values, 0.0F);
      std::fill_n(work.query_read, std::int64_t{steps} * values, 0.0F);
    } else {
      read_state(head_state(layer, desc.read_block(), 0, head), shape, steps, work);
    }
    for (std::int32_t t = 0; t < steps; ++t) {
      solve(shape, parents, n, total, t, table.update, work);
      store(work.output, values, at(inputs.out, desc.token_offset + t, head), inputs.out.dtype);
    }
    write_records(table, layer, inputs, item, head, work.update + std::int64_t{n} * values);
  }
}

}  // namespace replayssm::cpu
