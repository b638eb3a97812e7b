// See sublayer.hpp.
#include "model/layers/sublayer.hpp"

#include <algorithm>

#include "model/layers/token_loop.hpp"

namespace replayssm::model {

void Widths::grow(const Widths& other) {
  projected = std::max(projected, other.projected);
  prepared = std::max(prepared, other.prepared);
  recurred = std::max(recurred, other.recurred);
  inner = std::max(inner, other.inner);
  keys = std::max(keys, other.keys);
  values = std::max(values, other.values);
  head = std::max(head, other.head);
}

void remember(Pass& pass, std::int32_t place, std::int64_t key_width, std::int64_t value_width) {
  const auto element = static_cast<std::int64_t>(dtype_bytes(pass.activations));
  const std::byte* keys = pass.memory.keys.data();
  const std::byte* values = pass.memory.values.data();
  for (const ForwardRow& row : pass.rows) {
    for_tokens(pass.products.pool(), row.tokens, key_width + value_width,
               [&](std::int64_t first, std::int64_t count, int) {
                 for (std::int64_t i = first; i < first + count; ++i) {
                   const std::int64_t token = (row.first + i) * element;
                   row.kv->write(place, row.kv->length() + i, keys + token * key_width,
                                 values + token * value_width);
                 }
               });
  }
}

}  // namespace replayssm::model
