// What the next head of a step will read is asked for while this head's state streams in: the
// pieces of a ring are too short for the hardware to notice.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "backend/cpu/access.hpp"

namespace replayssm::cpu {

// A head of a row; row -1: none.
struct StepHead {
  std::int64_t row = -1;
  std::int32_t head = 0;
};

// A list of cache lines.
class Lines {
 public:
  void add(const void* from, std::int64_t bytes) {
    const auto* at = static_cast<const char*>(from);
    for (std::int64_t i = 0; i < bytes && count_ < kMost; i += 64)
      lines_[static_cast<std::size_t>(count_++)] = at + i;
  }
  [[nodiscard]] const void* const* data() const { return lines_.data(); }
  [[nodiscard]] std::int32_t count() const { return count_; }

 private:
  static constexpr std::int32_t kMost = 512;
  std::array<const void*, kMost> lines_;
  std::int32_t count_ = 0;
};

// A state that is fetched a little at a time while something else is computed, so that memory does
// not stand still meanwhile. The hardware drops what it has no room to wait for, so in small steps.
class Stream {
 public:
  Stream() = default;
  Stream(const float* state, std::int64_t floats)
      : at_(reinterpret_cast<const char*>(state)),
        end_(state != nullptr ? at_ + floats * 4 : at_) {}
  void pull(int lines) {
    for (; lines > 0 && at_ < end_; --lines, at_ += 64) __builtin_prefetch(at_);
  }

 private:
  const char* at_ = nullptr;
  const char* end_ = nullptr;
};

// What a fold of `records` of one head's records reads beside its state.
inline void list_fold(const CacheTable& table, const LayerTable& layer, std::int64_t slot,
                      const std::uint16_t* order, std::int32_t records, std::int32_t head,
                      Lines& lines) {
  const LayerShape& shape = layer.shape;
  const RecordAccess record(table, layer, slot);
  const auto act = static_cast<std::int64_t>(dtype_bytes(table.activations));
  const std::int32_t heads_per_group = shape.heads / shape.groups;
  const auto gate = static_cast<std::int64_t>(dtype_bytes(record.gate_dtype()));
  for (std::int32_t j = 0; j < records; ++j) {
    if (head % heads_per_group == 0)
      lines.add(record.key(head / heads_per_group, order[j]), shape.key_dim * act);
    if (shape.rule == Rule::kKda) lines.add(record.gate(head, order[j]), shape.key_dim * gate);
    lines.add(record.value(head, order[j]), shape.value_dim * act);
  }
  if (shape.rule != Rule::kKda) lines.add(record.gate(head, 0), table.ring * 4);
  if (shape.rule != Rule::kMamba2) lines.add(record.beta(head, 0), table.ring * 4);
}

// The head's checkpoint, or null where none will be read.
[[nodiscard]] inline const float* next_state(const CacheTable& table, const LayerTable& layer,
                                             const StepHead& next) {
  if (next.row < 0) return nullptr;
  const RowDescriptor& desc = table.forward.rows[next.row];
  if (desc.kind != RowKind::kStep || desc.tokens == 0 || desc.reads_zero()) return nullptr;
  return head_state(layer, desc.read_block(), 0, next.head);
}

// The head's records, and the places its new ones will take.
inline void list_ring(const CacheTable& table, const LayerTable& layer, const StepHead& next,
                      Lines& lines) {
  if (next.row < 0) return;
  const RowDescriptor& desc = table.forward.rows[next.row];
  if (desc.kind != RowKind::kStep) return;
  const LayerShape& shape = layer.shape;
  const RecordAccess record(table, layer, desc.slot);
  const std::uint16_t* order = row_order(table, next.row);
  const auto act = static_cast<std::int64_t>(dtype_bytes(table.activations));
  const std::int32_t heads_per_group = shape.heads / shape.groups;
  const std::int32_t group = next.head / heads_per_group;
  const bool keys = next.head % heads_per_group == 0;
  const bool kda = shape.rule == Rule::kKda;
  const bool delta = shape.rule != Rule::kMamba2;
  const std::int64_t key_bytes = shape.key_dim * act;
  const std::int64_t value_bytes = shape.value_dim * act;
  const std::int64_t gate_bytes =
      kda ? shape.key_dim * static_cast<std::int64_t>(dtype_bytes(record.gate_dtype())) : 0;
  const std::int64_t update_bytes =
      shape.value_dim * static_cast<std::int64_t>(dtype_bytes(table.update));
  for (std::int32_t j = 0; j < desc.committed; ++j) {
    if (keys) lines.add(record.key(group, order[j]), key_bytes);
    if (kda) lines.add(record.gate(next.head, order[j]), gate_bytes);
    if (delta) {
      lines.add(record.update(next.head, order[j]), update_bytes);
    } else {
      lines.add(record.value(next.head, order[j]), value_bytes);
    }
  }
  for (std::int32_t j = desc.committed; j < desc.committed + desc.tokens; ++j) {
    if (keys) lines.add(record.key(group, order[j]), key_bytes);
    if (kda) lines.add(record.gate(next.head, order[j]), gate_bytes);
    if (delta) lines.add(record.update(next.head, order[j]), update_bytes);
    lines.add(record.value(next.head, order[j]), value_bytes);
  }
  if (!kda) lines.add(record.gate(next.head, 0), table.ring * 4);
  if (delta) lines.add(record.beta(next.head, 0), table.ring * 4);
  if (delta && keys) lines.add(record.inv_norm(group, 0), table.ring * 4);
}

}  // namespace replayssm::cpu
