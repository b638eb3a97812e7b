// The operations of the CPU backend, one file each. They keep the law and prepare operands;
// arithmetic on them is the level's (level.hpp). They read descriptors, never cursors, and row
// results do not depend on other rows or threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/cpu/context.hpp"
#include "backend/cpu/prefetch.hpp"
#include "core/tables.hpp"

namespace replayssm::cpu {

// Folds every row of the forward's folding list, all layers (state only; cursors: apply_fold).
void fold_rows(const Context& context, CacheTable& table);
// Step rows of one layer: outputs and records.
void step_replay(const Context& context, CacheTable& table, const LayerInputs& inputs);
// Step rows of one layer: outputs and states.
void step_conventional(const Context& context, CacheTable& table, const LayerInputs& inputs);
// Prefill rows of one layer.
void prefill_rows(const Context& context, CacheTable& table, const LayerInputs& inputs);
void conv_rows(const Context& context, CacheTable& table, const ConvInputs& inputs);

// One (row, key head) of step_replay for value heads [head_begin, head_end); first_of_group:
// this item writes what the group's heads share.
struct StepItem {
  std::int64_t row = 0;
  std::int32_t group = 0;
  std::int32_t head_begin = 0;
  std::int32_t head_end = 0;
  bool first_of_group = false;
  StepHead next;  // what this worker will probably do after it
};
void step_mamba2_item(const Level& level, const CacheTable& table, const LayerInputs& inputs,
                      const StepItem& item, Arena arena);
void step_delta_item(const Level& level, const CacheTable& table, const LayerInputs& inputs,
                     const StepItem& item, Arena arena);

// Writes 0 to the outputs of padding rows.
void zero_padding(const CacheTable& table, const TensorView& out);
// Records in the slot's error word that a state that is not finite was written; safe from several
// threads.
void mark_non_finite(CacheTable& table, std::int64_t slot);

// --- bookkeeping
// What begin_rows() would say while a forward is open; changes nothing.
[[nodiscard]] Status check_begin(CacheTable& table, const Rows& rows);
[[nodiscard]] Status begin_rows(CacheTable& table, const Rows& rows);
void apply_fold(CacheTable& table);
[[nodiscard]] Status commit_rows(CacheTable& table, const Accepted& accepted);
void abandon_rows(CacheTable& table, bool touched);

void initialize_slots(CacheTable& table);
[[nodiscard]] Status acquire_slot(CacheTable& table, std::int64_t slot, std::uint64_t seed);
void release_slot(CacheTable& table, std::int64_t slot);
[[nodiscard]] Status fork_slot(CacheTable& table, std::int64_t source, std::int64_t target);
// Drops one reference of a block; the last one frees it.
void drop_block(CacheTable& table, std::int64_t block);
// Free blocks that no fold may need.
[[nodiscard]] std::int64_t unreserved_blocks(const CacheTable& table);

// --- moves
[[nodiscard]] Status materialize_slots(const Context& context, CacheTable& table,
                                       std::span<const MaterializeItem> items);
void load_slot(const Context& context, CacheTable& table, std::int64_t slot, std::int64_t position,
               std::span<const LayerState> layers);
void store_slot(const Context& context, const CacheTable& table, std::int64_t slot,
                std::span<const LayerState> layers);
void fold_all_records(const Context& context, CacheTable& table, std::int64_t slot);
void export_slot_bytes(const CacheTable& table, std::int64_t slot, std::span<std::byte> bytes);
void import_slot_bytes(CacheTable& table, std::int64_t slot, const SlotInfo& info,
                       std::int32_t conv_valid, std::span<const std::byte> bytes);

}  // namespace replayssm::cpu
