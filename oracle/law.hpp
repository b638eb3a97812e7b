// The cache law as an executable float64 model: slots, blocks, rings and order tables exactly as
// the design's section 3 describes them, computing by the replay formulas of replay.hpp. What a
// cache of the library does must be explained by what this model does.
//
// One forward:  begin -> fold -> conv and step of every layer -> commit   (or abort anywhere before
// commit; a begin forgets a forward that was not committed). Memory that nobody may read holds NaN:
// unused blocks and records, rejected records, old bytes of a recycled slot. Every call that is
// refused changes nothing. Slots and rows are counted from 0.
//
// Choices of the law that a test author should know:
// - The fold runs before the step. The ring holds R = window - 1 + max_tokens records.
// - A row folds at the first begin that finds window committed records or more, also when its T is
// 0.
// - A prefill row does not fold at begin: it takes its committed records and its chunk into a new
// checkpoint in one go.
// - fold() moves the cursors of the folded rows; blocks left behind by a copy on write return at
// commit or abort.
// - free blocks >= sum over shared blocks of their reference count, always. allocate and fork
// refuse what would break it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "oracle/layer.hpp"
#include "oracle/recurrence.hpp"
#include "oracle/replay.hpp"
#include "replayssm/status.hpp"

namespace replayssm::oracle {

struct LawLayer {
  Layer layer;
  Conv conv;  // width 0: none
};

struct LawConfig {
  std::vector<LawLayer> layers;
  int window = 16;     // W
  int max_tokens = 1;  // T_max, of a step; prefill chunks may be longer
  int slots = 1;
  int blocks = 1;
  bool conv_keeps_ring =
      false;  // the conv ring holds R more inputs, so that materialize reaches every position
  std::int64_t padding_slot = -1;
  Fault fault = Fault::kNone;

  [[nodiscard]] int ring() const { return window - 1 + max_tokens; }
};

// One row of a forward.
struct LawRow {
  std::int64_t slot = 0;  // or the padding id
  int tokens = 0;         // T: 0..max_tokens, of a prefill row any number >= 0
  std::vector<int>
      parents;  // [tokens], parent < own index, -1: follows the committed tokens; empty: a chain
  bool prefill = false;  // chains only
};

// What begin decided for a row; the same words as the library's row descriptors.
struct LawDescriptor {
  std::int64_t slot = 0;
  bool padding = false;
  bool prefill = false;
  int tokens = 0;
  int token_offset = 0;  // tokens of the rows before this one
  int fold = 0;          // 0 or window
  int committed = 0;     // records left after the fold; of a prefill row, records it will take in
  int read_block = -1;   // what the fold or prefill reads
  int write_block = -1;  // what the step reads; differs from read_block for a copy on write
  bool zero = false;     // at begin
  std::vector<int>
      order;  // [R] after the fold: committed first, then the places of this step's tokens
  std::vector<int> parents;  // [tokens], written out for chains too
};

// How a row ends. A chain: `count` leading tokens. A tree: `nodes`, root first, each the child of
// the one before.
struct Accepted {
  int count = 0;
  std::optional<std::vector<int>> nodes;
};

// [row][token][value]
using RowValues = std::vector<std::vector<std::vector<double>>>;

// One sequence outside a cache. Records are oldest first.
struct Snapshot {
  struct Record {
    std::vector<double> k;          // [groups, K] raw
    std::vector<double> inv_norm;   // [groups]
    std::vector<double> v;          // [heads, V]
    std::vector<double> log_decay;  // [heads, gate_width]
    std::vector<double> weight;     // [heads]: dt or beta
    std::vector<double> u;          // [heads, V]: the read track
  };
  int window = 0;
  std::int64_t position = 0;
  bool zero = false;                         // then checkpoints are empty
  std::vector<State> checkpoints;            // [layer]
  std::vector<std::vector<Record>> records;  // [layer][committed]
  std::vector<std::vector<std::vector<double>>>
      conv_inputs;  // [layer][kept][channels], oldest first
};

class Law {
 public:
  static Result<Law> create(LawConfig config);

  // A fresh sequence at position 0 with the zero flag set. kResourceExhausted: no slot or no block
  // to spare.
  Result<std::int64_t> allocate();
  // At any time; a row of a running forward becomes padding.
  Status release(std::int64_t slot);
  // A slot with the same future; shares the block. kResourceExhausted unless every sharer can still
  // fold.
  Result<std::int64_t> fork(std::int64_t source);

  Status begin(const std::vector<LawRow>& rows);
  Status fold();
  // Inputs [row][T][channels] -> outputs of the same shape; padding rows give zeros. Once a layer
  // and forward.
  Result<RowValues> conv(int layer, const RowValues& inputs);
  // Tokens [row][T] -> outputs [row][T][heads * V]; padding rows may be empty and give T rows of
  // zeros.
  Result<RowValues> step(int layer, const std::vector<std::vector<Token>>& tokens);
  // One entry a row. kFailedPrecondition unless every layer has been stepped; a prefill row takes
  // all or nothing.
  Status commit(const std::vector<Accepted>& accepted);
  // Forgets the forward. A fold that has run stays: it does not change the logical state.
  Status abort();

  // The logical state of every layer, records included; reads only.
  [[nodiscard]] Result<std::vector<State>> store_state(std::int64_t slot) const;
  // The last width - 1 conv inputs of a layer.
  [[nodiscard]] Result<ConvHistory> store_conv(std::int64_t slot, int layer) const;
  // Replaces a sequence: states [layer], conv histories [layer] (width - 1 inputs each; ignored
  // where there is no conv).
  Status load_state(std::int64_t slot, const std::vector<State>& states,
                    const std::vector<ConvHistory>& conv, std::int64_t position);
  // Replaces `destination` by `source` as it was at `position`, from the checkpoint's position to
  // the committed one.
  Status materialize(std::int64_t source, std::int64_t position, std::int64_t destination);
  [[nodiscard]] Result<Snapshot> export_slot(std::int64_t slot_id) const;
  // Replaces a sequence. A snapshot of a larger window is folded whole; otherwise windows that are
  // full are folded.
  Status import_slot(std::int64_t slot, const Snapshot& snapshot);

  // For inspection by tests.
  [[nodiscard]] const LawConfig& config() const { return config_; }
  [[nodiscard]] const std::vector<LawDescriptor>& descriptors() const { return rows_; }
  [[nodiscard]] int committed(std::int64_t slot) const { return slots_[slot].committed; }
  [[nodiscard]] std::int64_t position(std::int64_t slot) const { return slots_[slot].position; }
  [[nodiscard]] int free_blocks() const { return static_cast<int>(free_blocks_.size()); }
  [[nodiscard]] int reference_count(int block) const { return references_[block]; }
  [[nodiscard]] int block_of(std::int64_t slot) const { return slots_[slot].block; }
  // The checkpoint as stored, [heads, V, K]; not meaningful while the zero flag is set.
  [[nodiscard]] const State& checkpoint(std::int64_t slot, int layer) const {
    return checkpoints_[layer][slots_[slot].block];
  }
  // Overwrites every committed u of the read track with NaN: folds must not notice.
  void poison_updates(std::int64_t slot);

 private:
  using Record = Snapshot::Record;
  struct Slot {
    bool used = false;
    bool zero = true;
    int block = -1;
    int committed = 0;
    std::int64_t position = 0;
    std::vector<int> order;  // [R], a permutation
    int conv_head = 0;       // where the next conv input goes, shared by all layers
    int conv_valid = 0;      // inputs before conv_head that are real; those before count as 0
  };
  enum class Phase { kIdle, kBegun, kFolded };

  explicit Law(LawConfig config);

  // law.cpp
  [[nodiscard]] Status check_slot(std::int64_t slot) const;
  [[nodiscard]] Status check_idle() const;
  [[nodiscard]] int needed_blocks() const;  // what sharers may still ask for
  int take_block();
  void drop_block(int block);
  int own_block(std::int64_t slot);  // a block that no other slot reads; the old one is dropped
  void reset_slot(std::int64_t slot);
  void poison_free_records(std::int64_t slot, int live);
  [[nodiscard]] int conv_ring() const;  // one length for all layers: they share head and fill
  [[nodiscard]] int conv_kept() const;  // inputs the ring keeps besides this step's

  // law_forward.cpp
  using Records = std::vector<const Record*>;
  [[nodiscard]] Records oldest(int layer, const Slot& slot, std::int64_t id, int count) const;
  [[nodiscard]] HeadReplay replay(int layer, int head, const double* checkpoint,
                                  const Records& records, const std::vector<int>& parents,
                                  bool stored_u) const;
  // The checkpoint (null: zeros) with a chain of records applied in full precision.
  [[nodiscard]] State folded(int layer, const State* checkpoint, const Records& records) const;
  [[nodiscard]] const State* read_checkpoint(int layer,
                                             std::int64_t slot) const;  // null under the zero flag
  [[nodiscard]] const std::vector<double>* conv_input(int layer, std::int64_t slot, int back) const;
  void run_row(int layer, std::size_t index, const std::vector<Token>& tokens,
               std::vector<std::vector<double>>* outputs);

  // law_commit.cpp
  [[nodiscard]] Result<std::vector<int>> accepted_path(const LawDescriptor& row,
                                                       const Accepted& accepted) const;
  void commit_row(std::size_t index, const std::vector<int>& path);
  void end_forward();

  // law_move.cpp
  void adopt(std::int64_t slot_id, const Snapshot& snapshot);

  LawConfig config_;
  std::vector<Slot> slots_;
  std::vector<int> references_;                            // [block]
  std::vector<int> free_blocks_;                           // taken from the back
  std::vector<std::vector<State>> checkpoints_;            // [layer][block]
  std::vector<std::vector<std::vector<Record>>> records_;  // [layer][slot][R]
  std::vector<std::vector<std::vector<std::vector<double>>>>
      conv_;  // [layer][slot][conv ring][channels]

  // The running forward.
  Phase phase_ = Phase::kIdle;
  std::vector<LawDescriptor> rows_;
  std::vector<int> blocks_to_drop_;
  std::vector<bool> stepped_;                  // [layer]
  std::vector<bool> convolved_;                // [layer]
  std::vector<std::vector<State>> prefilled_;  // [row][layer], the checkpoint to be
  std::vector<std::vector<std::vector<std::vector<double>>>> chunks_;  // [row][layer][T][channels]
};

}  // namespace replayssm::oracle
