// The replay step of gdn and kda. For token t, newest record first, w_j the decay (kda: per
// channel) from j to t:
//   u_t = beta_t (v_t - w S0 k_t - sum_{j<t} u_j ((w_j k_j) . k_t)),   o_t = w S0 q_t + sum_{j<=t}
//   u_j ((w_j k_j) . q_t)
// which is the unit lower triangular system of docs/law.md solved row by row along each token's own
// path.
#include <algorithm>
#include <array>
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
  float* to_key = nullptr;      // (w_j k_j) . k_t, [T, path] in the order of the path
  float* to_query = nullptr;    // (w_j k_j) . q_t
  float* update =
      nullptr;  // [total, V] u as the read path sees it, that is rounded to its stored dtype
  float* reach =
      nullptr;  // [2 T, K] k_t, then q_t of all tokens; kda: times the decay from the checkpoint
  float* decay = nullptr;      // [T] gdn: that decay; kda: 1
  float* read = nullptr;       // [2 T, V] S0 reach
  float* predicted = nullptr;  // [V]
  float* output = nullptr;     // [V]
};

Work take_work(Arena& arena, const LayerShape& shape, std::int32_t total, std::int32_t steps) {
  Work work;
  work.tokens = take_head_tokens(arena, shape, total, true);
  for (float** pairs : {&work.key_dots, &work.query_dots, &work.to_key, &work.to_query}) {
    *pairs = arena.take(std::int64_t{total} * steps);
  }
  work.update = arena.take(std::int64_t{total} * shape.value_dim);
  work.reach = arena.take(2 * std::int64_t{steps} * shape.key_dim);
  work.decay = arena.take(steps);
  work.read = arena.take(2 * std::int64_t{steps} * shape.value_dim);
  work.predicted = arena.take(shape.value_dim);
  work.output = arena.take(shape.value_dim);
  return work;
}

// Coefficients of the records on t's path and the reach of its key and query, by suffix: decays are
// multiplied on from the newest record to the oldest, so none is ever a difference.
void walk(const Level& level, const LayerShape& shape, const std::int32_t* parents, std::int32_t n,
          std::int32_t steps, std::int32_t t, Work& work) {
  const std::int32_t keys = shape.key_dim;
  const std::int32_t total = n + steps;
  float* key = work.reach + std::int64_t{t} * keys;
  float* query = work.reach + std::int64_t{steps + t} * keys;
  std::copy_n(work.tokens.key + std::int64_t{n + t} * keys, keys, key);
  std::copy_n(work.tokens.query + std::int64_t{n + t} * keys, keys, query);
  float weight = 1.0F;
  std::int64_t at_path = std::int64_t{t} * total;
  std::int32_t j = n + t;
  while (true) {
    // The decay of a record lies between it and everything older.
    if (shape.rule == Rule::kGdn) {
      weight *= work.tokens.decay[j];
    } else {
      level.multiply(key, work.tokens.decay + std::int64_t{j} * keys, keys);
      level.multiply(query, work.tokens.decay + std::int64_t{j} * keys, keys);
    }
    j = before(parents, n, j);
    if (j < 0) break;
    if (shape.rule == Rule::kGdn) {
      work.to_key[at_path] = weight * work.key_dots[std::int64_t{t} * total + j];
      work.to_query[at_path] = weight * work.query_dots[std::int64_t{t} * total + j];
    } else {
      work.to_key[at_path] = level.dot(work.tokens.key + std::int64_t{j} * keys, key, keys);
      work.to_query[at_path] = level.dot(work.tokens.key + std::int64_t{j} * keys, query, keys);
    }
    ++at_path;
  }
  work.decay[t] = weight;
}

// u_t and o_t, once those of the token's ancestors are known. Leaves o_t in work.output.
void solve(const Level& level, const LayerShape& shape, const std::int32_t* parents, std::int32_t n,
           std::int32_t steps, std::int32_t t, bool reads, DType update_dtype, Work& work) {
  const std::int32_t values = shape.value_dim;
  const std::int32_t keys = shape.key_dim;
  std::array<std::int32_t, kMaxWindow + 2 * kMaxStepTokens> path{};
  std::int32_t count = 0;
  for (std::int32_t j = before(parents, n, n + t); j >= 0; j = before(parents, n, j)) {
    path[static_cast<std::size_t>(count++)] = j;
  }
  std::fill_n(work.predicted, values, 0.0F);
  std::fill_n(work.output, values, 0.0F);
  const std::int64_t at_path = std::int64_t{t} * (n + steps);
  level.combine(work.update, values, path.data(), work.to_key + at_path, count, work.predicted);
  level.combine(work.update, values, path.data(), work.to_query + at_path, count, work.output);
  if (reads) {
    const std::int32_t key_row = t;
    const std::int32_t query_row = steps + t;
    level.combine(work.read, values, &key_row, work.decay + t, 1, work.predicted);
    level.combine(work.read, values, &query_row, work.decay + t, 1, work.output);
  }

  const float* value = work.tokens.value + std::int64_t{n + t} * values;
  float* update = work.update + std::int64_t{n + t} * values;
  for (std::int32_t v = 0; v < values; ++v)
    update[v] = work.tokens.scale[n + t] * (value[v] - work.predicted[v]);
  const std::int64_t own = std::int64_t{n + t} * keys;
  const float own_weight = level.dot(work.tokens.key + own, work.tokens.query + own, keys);
  const std::int32_t own_row = n + t;
  level.combine(work.update, values, &own_row, &own_weight, 1, work.output);
  // Later tokens of this step see what a later step would: u as stored.
  round_through(update, values, update_dtype);
}

void write_records(const Level& level, const CacheTable& table, const LayerTable& layer,
                   const LayerInputs& inputs, const StepItem& item, std::int32_t head,
                   const float* update) {
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
      level.load(raw, inputs.key.dtype, shape.key_dim, key);
      std::memcpy(record.key(item.group, index), raw, shape.key_dim * bytes);
      *record.inv_norm(item.group, index) = raw_inverse_norm(level, shape, key);
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

void step_delta_item(const Level& level, const CacheTable& table, const LayerInputs& inputs,
                     const StepItem& item, Arena arena) {
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
  const bool reads = !desc.reads_zero();
  Work work = take_work(arena, shape, total, steps);

  load_record_keys(level, table, layer, desc.slot, order, n, item.group, work.tokens);
  load_input_keys(level, layer, inputs, desc.token_offset, steps, item.group, n, work.tokens);
  if (shape.rule == Rule::kGdn) {
    const std::int64_t own = std::int64_t{n} * keys;
    level.dot_rows(work.tokens.key, total, keys, work.tokens.key + own, steps, work.key_dots);
    level.dot_rows(work.tokens.key, total, keys, work.tokens.query + own, steps, work.query_dots);
  }
  for (std::int32_t head = item.head_begin; head < item.head_end; ++head) {
    load_record_head(level, table, layer, desc.slot, order, n, head, work.tokens);
    load_input_head(level, table, layer, inputs, desc.token_offset, steps, head, n, work.tokens);
    for (std::int32_t j = 0; j < n; ++j) {
      level.load(record.update(head, order[j]), table.update, values,
                 work.update + std::int64_t{j} * values);
    }
    for (std::int32_t t = 0; t < steps; ++t) walk(level, shape, parents, n, steps, t, work);
    if (reads) {
      // One pass over the rows of S0 for the keys and queries of all tokens.
      level.dot_rows(head_state(layer, desc.read_block(), 0, head), values, keys, work.reach,
                     2 * steps, work.read);
    }
    for (std::int32_t t = 0; t < steps; ++t) {
      solve(level, shape, parents, n, steps, t, reads, table.update, work);
      level.store(work.output, values, at(inputs.out, desc.token_offset + t, head),
                  inputs.out.dtype);
    }
    write_records(level, table, layer, inputs, item, head, work.update + std::int64_t{n} * values);
  }
}

}  // namespace replayssm::cpu
