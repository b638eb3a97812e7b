// The operations of the readable implementation: one warp a row of the state, no tricks. The faster
// implementations take from here what they do not do themselves.
#pragma once

#include <cstdint>
#include <span>

#include "backend/cuda/common/tables.cuh"
#include "replayssm/status.hpp"

namespace replayssm::cuda {

// What a launch needs to know about the device.
struct DeviceFacts {
  int ordinal = 0;
  int multiprocessors = 0;
};

// Outputs of step and prefill rows must lie inside the tensors: tokens beyond `extent` exist in no
// view.
[[nodiscard]] std::int64_t token_extent(const LayerInputs& inputs, const LayerShape& shape);

// Once a process and device: lets the step use the shared memory that long windows need.
[[nodiscard]] Status prepare_reference();

// Folds begin's list, in the layers whose entry of `only_layer` (device memory; null: all) is not
// 0. Cursors follow: see apply_fold.
[[nodiscard]] Status fold_reference(const Tables& tables, const DeviceFacts& facts,
                                    const std::uint8_t* only_layer, void* stream);
// The cursors of the rows on begin's list. Reads descriptors, so it may run beside the fold.
[[nodiscard]] Status apply_fold(const Tables& tables, void* stream);

[[nodiscard]] Status step_reference(const Tables& tables, const LayerTable& layer,
                                    const LayerInputs& inputs);
[[nodiscard]] Status step_conventional_reference(const Tables& tables, const LayerTable& layer,
                                                 const LayerInputs& inputs);
[[nodiscard]] Status prefill_reference(const Tables& tables, const LayerTable& layer,
                                       const LayerInputs& inputs);
// `prefill`: some row of the forward may be a prefill row.
[[nodiscard]] Status conv_reference(const Tables& tables, const LayerTable& layer,
                                    const ConvInputs& inputs, bool prefill);

// Moves of whole slots.
[[nodiscard]] Status copy_slot(const Tables& tables, const LayerTable& layer, std::int64_t source,
                               std::int64_t target, void* stream);
[[nodiscard]] Status materialize_slots(const Tables& tables, std::span<const LayerTable> layers,
                                       std::span<const MaterializeItem> items, void* stream);
[[nodiscard]] Status load_layer(const Tables& tables, const LayerTable& layer, std::int64_t slot,
                                const LayerState& state, bool any_conv, void* stream);
[[nodiscard]] Status finish_load(const Tables& tables, std::int64_t slot, std::int64_t position,
                                 bool any_conv, void* stream);
[[nodiscard]] Status store_layer(const Tables& tables, const LayerTable& layer, std::int64_t slot,
                                 const LayerState& state, void* stream);
// Folds every record of one slot, all layers, in place.
[[nodiscard]] Status fold_all_records(const Tables& tables, std::span<const LayerTable> layers,
                                      std::int64_t slot, void* stream);

}  // namespace replayssm::cuda
