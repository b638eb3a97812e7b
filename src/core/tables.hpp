// The plain arrays that every room of a backend works on: slots, rows of the open forward, layers.
// Nothing here owns memory or has behaviour; on a GPU the same structs hold device pointers and
// travel as kernel arguments.
#pragma once

#include <cstdint>

#include "replayssm/cache.hpp"

namespace replayssm {

// Cursors of all slots and reference counts of all blocks. One set for all layers: every layer of a
// forward sees the same cursors.
struct SlotTable {
  std::int64_t slots = 0;
  std::int64_t blocks = 0;

  std::int64_t* block = nullptr;       // [slots] block the slot refers to
  std::int64_t* position = nullptr;    // [slots] committed tokens
  std::uint64_t* seed = nullptr;       // [slots] for stochastic rounding
  std::int32_t* committed = nullptr;   // [slots] n, records in the ring
  std::int32_t* conv_valid = nullptr;  // [slots] conv inputs that exist, at most the conv history
  std::int32_t* snapshot = nullptr;  // [slots] conventional: which of the block's states is current
  std::uint32_t* error = nullptr;    // [slots] SlotError bits
  std::uint8_t* live = nullptr;      // [slots] handed out
  std::uint8_t* zero = nullptr;      // [slots] the checkpoint counts as 0
  std::uint8_t* leaving = nullptr;   // [slots] released while its forward is open
  std::int64_t* row = nullptr;       // [slots] row in the open forward, -1: none
  std::uint16_t* order =
      nullptr;  // [slots, R] physical ring index of the j-th record, then the free ones
  std::uint16_t* conv_order = nullptr;  // [slots, C] conv history oldest first, then the free ones

  std::int32_t* references = nullptr;   // [blocks] slots that refer to the block
  std::int64_t* free_blocks = nullptr;  // [blocks] stack
  std::int64_t* free_count = nullptr;   // [1] height of the stack
  std::int64_t* reserved = nullptr;     // [1] free blocks that folds of shared blocks may need
};

enum class RowKind : std::int32_t { kPadding = 0, kStep = 1, kPrefill = 2 };

// What begin() decided about one row. Fold, every layer's step and commit read this and nothing
// else.
struct RowDescriptor {
  std::int64_t slot = -1;
  std::int64_t token_offset = 0;   // first token of the row in the tensors
  std::int64_t source_block = -1;  // checkpoint before the forward
  std::int64_t target_block =
      -1;  // block a fold, prefill or conventional step writes; -1: nothing is written
  std::int32_t tokens = 0;     // T
  std::int32_t committed = 0;  // n after the fold
  std::int32_t fold = 0;       // records to fold: 0 or W
  RowKind kind = RowKind::kPadding;
  std::int32_t conv_valid = 0;
  std::int32_t snapshot = 0;
  std::uint8_t zero = 0;  // the checkpoint counts as 0 before the fold
  std::uint8_t tree = 0;
  std::uint8_t folded = 0;  // the fold has run and the slot's cursors say so
  // On a device: the row was refused after begin and commits nothing. A word of its own, which the
  // kernels that find out set while others read the rest.
  std::uint32_t refused = 0;

  // The block a step reads, and whether it counts as 0.
  [[nodiscard]] constexpr std::int64_t read_block() const {
    return fold > 0 ? target_block : source_block;
  }
  [[nodiscard]] constexpr bool reads_zero() const { return zero != 0 && fold == 0; }
};

// The open forward.
struct ForwardTable {
  std::int64_t count = 0;           // rows
  RowDescriptor* rows = nullptr;    // [max_rows]
  std::int32_t* parents = nullptr;  // [max_rows, T_max] of step rows, -1: the committed sequence
  std::uint16_t* order = nullptr;  // [max_rows, R] the row's order table after the fold; the folded
                                   // records' indices are its last `fold` entries, oldest first
  std::int64_t* folding = nullptr;  // [max_rows] rows that fold
  std::int64_t folding_count = 0;
  std::int64_t tokens = 0;     // end of the last row: tensors need at least so many tokens
  bool needs_step = false;     // some row has tokens to decode
  bool needs_prefill = false;  // some row has a prompt chunk
};

struct LayerTable {
  LayerShape shape;
  LayerWeights weights;
  TensorMemory state, value, key, gate, beta, inv_norm, update, conv;  // see TensorRole
};

// Everything a room needs to know.
struct CacheTable {
  DecodeMode decode = DecodeMode::kReplay;
  StateFormat format = StateFormat::kF32;
  DType activations = DType::kF32;
  DType update = DType::kBF16;
  std::int32_t window = 0;           // W
  std::int32_t max_step_tokens = 0;  // T_max
  std::int32_t ring = 0;             // R
  std::int32_t conv_history = 0;     // inputs kept behind the newest
  std::int32_t conv_ring = 0;        // C = conv_history + T_max; 0: no layer convolves
  std::int64_t max_rows = 0;
  std::int64_t max_tokens = 0;
  const LayerTable* layers = nullptr;
  std::int32_t layer_count = 0;
  SlotTable slots;
  ForwardTable forward;
};

}  // namespace replayssm
