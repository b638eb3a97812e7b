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
#include "backend/cpu/prefetch.hpp"
#include "backend/cpu/rooms.hpp"

namespace replayssm::cpu {
namespace {

struct Work {
  HeadTokens tokens;
  float* pair_dots = nullptr;  // gdn: k_j . k_t, then k_j . q_t for the group's heads, [2 T, total]
  float* to_key = nullptr;     // (w_j k_j) . k_t, [T, total] in the order of the path
  float* to_query = nullptr;   // (w_j k_j) . q_t
  float* update =
      nullptr;  // [total, V] u as the read path sees it, that is rounded to its stored dtype
  float* reach =
      nullptr;  // [2 T, K] k_t, then q_t of all tokens; kda: times the decay from the checkpoint
  float* decay = nullptr;   // [T] gdn: that decay; kda: 1
  float* read = nullptr;    // [2 T, V] S0 reach
  float* output = nullptr;  // [V]
};

Work take_work(Arena& arena, const LayerShape& shape, std::int32_t total, std::int32_t steps) {
  Work work;
  work.tokens = take_head_tokens(arena, shape, total, true);
  work.pair_dots = arena.take(2 * std::int64_t{total} * steps);
  work.to_key = arena.take(std::int64_t{total} * steps);
  work.to_query = arena.take(std::int64_t{total} * steps);
  work.update = arena.take(std::int64_t{total} * shape.value_dim);
  work.reach = arena.take(2 * std::int64_t{steps} * shape.key_dim);
  work.decay = arena.take(steps);
  work.read = arena.take(2 * std::int64_t{steps} * shape.value_dim);
  work.output = arena.take(shape.value_dim);
  return work;
}

// The records and tokens before one token, newest first.
struct Path {
  std::array<std::int32_t, kMaxWindow + 2 * kMaxStepTokens> at{};
  std::int32_t count = 0;

  Path(const std::int32_t* parents, std::int32_t n, std::int32_t t) {
    for (std::int32_t j = before(parents, n, n + t); j >= 0; j = before(parents, n, j))
      at[static_cast<std::size_t>(count++)] = j;
  }
};

// Coefficients of the records on t's path and the reach of its key and query, by suffix: decays are
// multiplied on from the newest record to the oldest, so none is ever a difference.
void walk(const Level& level, const LayerShape& shape, const Path& path, std::int32_t n,
          std::int32_t steps, std::int32_t t, Work& work) {
  const std::int32_t keys = shape.key_dim;
  const std::int32_t total = n + steps;
  float* to_key = work.to_key + std::int64_t{t} * total;
  float* to_query = work.to_query + std::int64_t{t} * total;
  if (shape.rule == Rule::kGdn) {
    const float* key_dots = work.pair_dots + std::int64_t{t} * total;
    const float* query_dots = work.pair_dots + std::int64_t{steps + t} * total;
    // The decay of a record lies between it and everything older.
    float weight = work.tokens.decay[n + t];
    for (std::int32_t i = 0; i < path.count; ++i) {
      const std::int32_t j = path.at[static_cast<std::size_t>(i)];
      to_key[i] = weight * key_dots[j];
      to_query[i] = weight * query_dots[j];
      weight *= work.tokens.decay[j];
    }
    work.decay[t] = weight;
    return;
  }
  WalkRun run;
  run.keys = keys;
  run.key = work.tokens.key;
  run.decay = work.tokens.decay;
  run.own = n + t;
  run.path = path.at.data();
  run.count = path.count;
  run.own_key = work.tokens.key + std::int64_t{n + t} * keys;
  run.own_query = work.tokens.query + std::int64_t{n + t} * keys;
  run.to_key = to_key;
  run.to_query = to_query;
  run.reach_key = work.reach + std::int64_t{t} * keys;
  run.reach_query = work.reach + std::int64_t{steps + t} * keys;
  level.walk(run);
  work.decay[t] = 1.0F;
}

// u_t, which goes to its record, and o_t, once those of the token's ancestors are known. Leaves o_t
// in work.output. Later tokens of this step see what a later step would: u as stored.
void solve(const Level& level, const LayerShape& shape, const Path& path, std::int32_t n,
           std::int32_t steps, std::int32_t t, bool reads, DType update_dtype, void* stored,
           Work& work) {
  const std::int32_t values = shape.value_dim;
  const std::int64_t own = n + t;
  const std::int64_t at_path = std::int64_t{t} * (n + steps);
  SolveRun run;
  run.values = values;
  run.update = work.update;
  run.path = path.at.data();
  run.count = path.count;
  run.to_key = work.to_key + at_path;
  run.to_query = work.to_query + at_path;
  if (reads) {
    run.read_key = work.read + std::int64_t{t} * values;
    run.read_query = work.read + std::int64_t{steps + t} * values;
    run.read_weight = work.decay[t];
  }
  run.scale = work.tokens.scale[own];
  run.own_weight = level.dot(work.tokens.key + own * shape.key_dim,
                             work.tokens.query + own * shape.key_dim, shape.key_dim);
  run.value = work.tokens.value + own * values;
  run.dtype = update_dtype;
  run.stored = stored;
  run.own_update = work.update + own * values;
  run.output = work.output;
  level.solve(run);
}

// What u does not need: the raw inputs and what follows from them alone.
void write_records(const Level& level, const CacheTable& table, const LayerTable& layer,
                   const LayerInputs& inputs, const StepItem& item, std::int32_t head,
                   const float* betas) {
  const LayerShape& shape = layer.shape;
  const RowDescriptor& desc = table.forward.rows[item.row];
  const RecordAccess record(table, layer, desc.slot);
  const std::uint16_t* pending = row_order(table, item.row) + desc.committed;
  const std::size_t bytes = dtype_bytes(table.activations);
  for (std::int32_t i = 0; i < desc.tokens; ++i) {
    const std::int64_t token = desc.token_offset + i;
    const std::int64_t index = pending[i];
    std::memcpy(record.value(head, index), at(inputs.value, token, head), shape.value_dim * bytes);
    *record.beta(head, index) = betas[i];
    if (shape.rule == Rule::kGdn) {
      const float g = record_gate(layer, inputs, token, head);
      std::memcpy(record.gate(head, index), &g, sizeof(g));
    } else {
      const void* raw = at(inputs.gate, token, head);
      if (inputs.gate.dtype == record.gate_dtype()) {
        std::memcpy(record.gate(head, index), raw, shape.key_dim * dtype_bytes(inputs.gate.dtype));
        continue;
      }
      float gate[kMaxHeadDim];
      level.load(raw, inputs.gate.dtype, shape.key_dim, gate);
      level.store(gate, shape.key_dim, record.gate(head, index), record.gate_dtype());
    }
  }
}

void write_keys(const Level& level, const CacheTable& table, const LayerTable& layer,
                const LayerInputs& inputs, const StepItem& item) {
  const LayerShape& shape = layer.shape;
  const RowDescriptor& desc = table.forward.rows[item.row];
  const RecordAccess record(table, layer, desc.slot);
  const std::uint16_t* pending = row_order(table, item.row) + desc.committed;
  for (std::int32_t i = 0; i < desc.tokens; ++i) {
    const void* raw = at(inputs.key, desc.token_offset + i, item.group);
    float key[kMaxHeadDim];
    level.load(raw, inputs.key.dtype, shape.key_dim, key);
    std::memcpy(record.key(item.group, pending[i]), raw,
                shape.key_dim * dtype_bytes(table.activations));
    *record.inv_norm(item.group, pending[i]) = raw_inverse_norm(level, shape, key);
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

  Stream first(next_state(table, layer, {item.row, item.head_begin}), std::int64_t{values} * keys);
  load_record_keys(level, table, layer, desc.slot, order, n, item.group, work.tokens, &first);
  load_input_keys(level, layer, inputs, desc.token_offset, steps, item.group, n, work.tokens);
  if (shape.rule == Rule::kGdn) {
    // The reach of a scalar decay is a factor: keys and queries serve all heads as they are.
    const std::int64_t own = std::int64_t{n} * keys;
    std::copy_n(work.tokens.key + own, std::int64_t{steps} * keys, work.reach);
    std::copy_n(work.tokens.query + own, std::int64_t{steps} * keys,
                work.reach + std::int64_t{steps} * keys);
    level.dot_rows(work.tokens.key, total, keys, work.reach, 2 * steps, work.pair_dots, {});
  }
  if (item.first_of_group) write_keys(level, table, layer, inputs, item);
  for (std::int32_t head = item.head_begin; head < item.head_end; ++head) {
    Stream stream(next_state(table, layer, {item.row, head}), std::int64_t{values} * keys);
    load_record_gates(level, table, layer, desc.slot, order, n, head, work.tokens, &stream);
    load_input_head(level, table, layer, inputs, desc.token_offset, steps, head, n, work.tokens);
    for (std::int32_t j = 0; j < n; ++j) {
      level.load(record.update(head, order[j]), table.update, values,
                 work.update + std::int64_t{j} * values);
      stream.pull(16);
    }
    for (std::int32_t t = 0; t < steps; ++t) {
      walk(level, shape, Path(parents, n, t), n, steps, t, work);
      stream.pull(24);
    }
    write_records(level, table, layer, inputs, item, head, work.tokens.scale + n);
    StepHead next = item.next;
    if (head + 1 < item.head_end) next = {item.row, head + 1};
    Lines lines;
    list_ring(table, layer, next, lines);
    if (reads) {
      // One pass over the rows of S0 for the keys and queries of all tokens.
      level.dot_rows(head_state(layer, desc.read_block(), 0, head), values, keys, work.reach,
                     2 * steps, work.read,
                     {next_state(table, layer, next), lines.data(), lines.count()});
    }
    for (std::int32_t t = 0; t < steps; ++t) {
      solve(level, shape, Path(parents, n, t), n, steps, t, reads, table.update,
            record.update(head, order[n + t]), work);
      level.store(work.output, values, at(inputs.out, desc.token_offset + t, head),
                  inputs.out.dtype);
    }
  }
}

}  // namespace replayssm::cpu
