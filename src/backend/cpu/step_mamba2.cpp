// The replay step of mamba2. With w_j the decay from record j to the token, newest first:
//   o = sum_j (w_j dt_j (B_j . C)) x_j + w S0 C, then the skip and the gate.
#include <algorithm>
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

void step_mamba2_item(const CacheTable& table, const LayerInputs& inputs, const StepItem& item,
                      Arena& arena) {
  const LayerTable& layer = table.layers[inputs.layer];
  const LayerShape& shape = layer.shape;
  const RowDescriptor& desc = table.forward.rows[item.row];
  const std::int32_t keys = shape.key_dim;
  const std::int32_t values = shape.value_dim;
  const std::int32_t n = desc.committed;
  const std::int32_t total = n + desc.tokens;
  const std::int32_t* parents = row_parents(table, item.row);

  HeadTokens tokens = take_head_tokens(arena, shape, total, true);
  float* dots =
      arena.take(std::int64_t{total} * desc.tokens);  // B_j . C_t, shared by the group's heads
  float* output = arena.take(std::int64_t{desc.tokens} * values);
  float* reach = arena.take(desc.tokens);  // decay from the checkpoint to each token

  for (std::int32_t head = item.head_begin; head < item.head_end; ++head) {
    load_records(table, layer, desc.slot, row_order(table, item.row), n, head, 0, tokens);
    load_inputs(table, layer, inputs, desc.token_offset, desc.tokens, head, n, tokens);
    if (head == item.head_begin) {
      for (std::int32_t t = 0; t < desc.tokens; ++t) {
        const float* query = tokens.query + std::int64_t{n + t} * keys;
        for (std::int32_t j = 0; j < total; ++j) {
          dots[t * total + j] = dot16(tokens.key + std::int64_t{j} * keys, query, keys);
        }
      }
    }

    std::fill_n(output, std::int64_t{desc.tokens} * values, 0.0F);
    for (std::int32_t t = 0; t < desc.tokens; ++t) {
      float weight = 1.0F;
      std::int32_t j = n + t;
      while (j >= 0) {
        const float coefficient = weight * tokens.scale[j] * dots[t * total + j];
        add_scaled(output + std::int64_t{t} * values, coefficient,
                   tokens.value + std::int64_t{j} * values, values);
        weight *= tokens.decay[j];
        const std::int32_t parent = j >= n ? parent_of(parents, j - n) : -1;
        j = parent >= 0 ? n + parent : std::min(j, n) - 1;
      }
      reach[t] = weight;
    }
    if (!desc.reads_zero()) {
      const float* state = head_state(layer, desc.read_block(), 0, head);
      for (std::int32_t v = 0; v < values; ++v) {
        for (std::int32_t t = 0; t < desc.tokens; ++t) {
          const float read = dot16(state + std::int64_t{v} * keys,
                                   tokens.query + std::int64_t{n + t} * keys, keys);
          float& out = output[std::int64_t{t} * values + v];
          out = out + reach[t] * read;
        }
      }
    }
    for (std::int32_t t = 0; t < desc.tokens; ++t) {
      const std::int64_t token = desc.token_offset + t;
      float* out = output + std::int64_t{t} * values;
      const float* value = tokens.value + std::int64_t{n + t} * values;
      for (std::int32_t v = 0; v < values; ++v) {
        out[v] = finish_output(layer, inputs, token, head, v, value[v], out[v]);
      }
      store(out, values, at(inputs.out, token, head), inputs.out.dtype);
    }
  }
  write_records(table, layer, inputs, item);
}

}  // namespace replayssm::cpu
