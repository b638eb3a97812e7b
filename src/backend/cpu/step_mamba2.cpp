// The replay step of mamba2. With w_j the decay from record j to the token, newest first:
//   o = sum_j (w_j dt_j (B_j . C)) x_j + w S0 C, then the skip and the gate.
#include <algorithm>
#include <array>
#include <cstring>

#include "backend/cpu/access.hpp"
#include "backend/cpu/head_tokens.hpp"
#include "backend/cpu/rooms.hpp"
#include "backend/cpu/vec.hpp"

namespace replayssm::cpu {
namespace {

// Leaves the tokens' records in the ring; nothing of this forward reads them there.
void write_records(const CacheTable& table, const LayerTable& layer, const LayerInputs& inputs,
                   const StepItem& item) {
  const LayerShape& shape = layer.shape;
  const RowDescriptor& desc = table.forward.rows[item.row];
  const RecordAccess record(table, layer, desc.slot);
  const std::uint16_t* pending = row_order(table, item.row) + desc.committed;
  const std::size_t bytes = dtype_bytes(table.activations);
  for (std::int32_t i = 0; i < desc.tokens; ++i) {
    const std::int64_t token = desc.token_offset + i;
    const std::int64_t index = pending[i];
    if (item.first_of_group) {
      std::memcpy(record.key(item.group, index), at(inputs.key, token, item.group),
                  shape.key_dim * bytes);
    }
    for (std::int32_t head = item.head_begin; head < item.head_end; ++head) {
      std::memcpy(record.value(head, index), at(inputs.value, token, head),
                  shape.value_dim * bytes);
      const float dt = record_gate(layer, inputs, token, head);
      std::memcpy(record.gate(head, index), &dt, sizeof(dt));
    }
  }
}

}  // namespace

void step_mamba2_item(const Level& level, const CacheTable& table, const LayerInputs& inputs,
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

  HeadTokens tokens = take_head_tokens(arena, shape, total, true);
  float* dots = arena.take(std::int64_t{total} * steps);  // B_j . C_t, shared by the group's heads
  float* output = arena.take(std::int64_t{steps} * values);
  float* read = arena.take(std::int64_t{steps} * values);  // S0 C_t
  float* weights = arena.take(total);
  float* gate = arena.take(values);
  std::array<std::int32_t, kMaxWindow + 2 * kMaxStepTokens> path{};

  load_record_keys(level, table, layer, desc.slot, order, n, item.group, tokens);
  load_input_keys(level, layer, inputs, desc.token_offset, steps, item.group, n, tokens);
  const float* queries = tokens.query + std::int64_t{n} * keys;
  level.dot_rows(tokens.key, total, keys, queries, steps, dots, {});

  for (std::int32_t head = item.head_begin; head < item.head_end; ++head) {
    Stream stream(next_state(table, layer, {item.row, head}), std::int64_t{values} * keys);
    load_record_head(level, table, layer, desc.slot, order, n, head, tokens, &stream);
    load_input_head(level, table, layer, inputs, desc.token_offset, steps, head, n, tokens);
    stream.pull(24);
    StepHead next = item.next;
    if (head + 1 < item.head_end) next = {item.row, head + 1};
    Lines lines;
    list_ring(table, layer, next, lines);
    if (!desc.reads_zero()) {
      level.dot_rows(head_state(layer, desc.read_block(), 0, head), values, keys, queries, steps,
                     read, {next_state(table, layer, next), lines.data(), lines.count()});
    }
    for (std::int32_t t = 0; t < steps; ++t) {
      // Decays by suffix: multiplied on from the newest record to the oldest along the token's own
      // path.
      float weight = 1.0F;
      std::int32_t count = 0;
      for (std::int32_t j = n + t; j >= 0; j = before(parents, n, j)) {
        path[static_cast<std::size_t>(count)] = j;
        weights[count++] = weight * tokens.scale[j] * dots[std::int64_t{t} * total + j];
        weight *= tokens.decay[j];
      }
      float* out = output + std::int64_t{t} * values;
      std::fill_n(out, values, 0.0F);
      level.combine(tokens.value, values, path.data(), weights, count, out);
      if (!desc.reads_zero()) {
        const std::int32_t row = t;
        level.combine(read, values, &row, &weight, 1, out);
      }
      finish_output(level, layer, inputs, desc.token_offset + t, head,
                    tokens.value + std::int64_t{n + t} * values, gate, out);
      level.store(out, values, at(inputs.out, desc.token_offset + t, head), inputs.out.dtype);
    }
  }
  write_records(table, layer, inputs, item);
}

}  // namespace replayssm::cpu
