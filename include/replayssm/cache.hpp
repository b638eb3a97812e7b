// The replay cache: sequences ("slots"), their checkpoints and rings, and the calls of a forward
// pass.
//
// One forward pass of a batch is
//
//   begin(rows) -> fold() -> for each recurrent layer: conv(), step() and/or prefill() ->
//   commit(accepted)
//
// docs/law.md states the law these calls obey. On a GPU every array named here (slots, tokens,
// parents, accepted, tensors) lives in device memory, calls are ordered by `stream` and the host
// reads nothing back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "replayssm/dtype.hpp"
#include "replayssm/export.h"
#include "replayssm/layer.hpp"
#include "replayssm/parallel.hpp"
#include "replayssm/status.hpp"
#include "replayssm/tensor.hpp"

namespace replayssm {

// How a checkpoint is stored (docs/numerics.md). This version implements kF32.
enum class StateFormat : std::uint8_t {
  kF32 = 0,
  kF16 = 1,
  kBF16 = 2,
  kBF16BF16 = 3,
  kI8BF16 = 4,
  kI8 = 5
};

[[nodiscard]] constexpr std::string_view state_format_name(StateFormat format) {
  switch (format) {
    case StateFormat::kF32: return "f32";
    case StateFormat::kF16: return "f16";
    case StateFormat::kBF16: return "bf16";
    case StateFormat::kBF16BF16: return "bf16+bf16";
    case StateFormat::kI8BF16: return "i8+bf16";
    case StateFormat::kI8: return "i8";
  }
  return "unknown";
}

// kReplay keeps inputs and folds them every `window` tokens; kConventional reads and writes the
// state at every token and keeps a state a draft for verification. Both stand behind the same
// calls.
enum class DecodeMode : std::uint8_t { kReplay = 0, kConventional = 1 };

[[nodiscard]] constexpr std::string_view decode_mode_name(DecodeMode mode) {
  return mode == DecodeMode::kReplay ? "replay" : "conventional";
}

// What a stored tensor holds. Inner layouts are dense and row-major; H, G, V, K as in LayerShape, R
// = ring length, C = conv ring length.
enum class TensorRole : std::uint8_t {
  kState = 0,        // a block: [H, V, K] f32; conventional with drafts: [T_max, H, V, K]
  kRingValue = 1,    // a slot: x or v, [H, R, V] activation dtype
  kRingKey = 2,      // a slot: B or k before normalisation, [G, R, K] activation dtype
  kRingGate = 3,     // a slot: dt after softplus (mamba2) or g (gdn), [H, R] f32;
                     // kda: the gate input, [H, R, K] activation dtype or f32
  kRingBeta = 4,     // a slot, gdn and kda: [H, R] f32
  kRingInvNorm = 5,  // a slot, gdn and kda: 1 / norm of k, [G, R] f32
  kRingUpdate = 6,   // a slot, gdn and kda: u for the read path, [H, R, V] update dtype
  kConv = 7,         // a slot: [C, conv_channels] activation dtype
  kControl = 8,      // the cache: cursors, order tables, descriptors
};

// One tensor of a cache: `count` blocks or slots, `bytes` each, its base and stride aligned to
// `alignment`.
struct TensorSpec {
  TensorRole role = TensorRole::kState;
  std::int32_t layer = -1;  // -1: belongs to no layer
  std::int64_t count = 0;
  std::int64_t bytes = 0;
  std::int64_t alignment = 64;
};

// Where such a tensor lives when the caller lends the memory: block or slot i starts at base + i *
// stride_bytes. stride_bytes is at least bytes; whatever lies between is the caller's and is never
// touched.
struct TensorMemory {
  void* base = nullptr;
  std::int64_t stride_bytes = 0;
};

struct CacheConfig {
  std::vector<LayerShape> layers;
  std::vector<LayerWeights> weights;  // one a layer

  DecodeMode decode = DecodeMode::kReplay;
  StateFormat format = StateFormat::kF32;
  DType activations = DType::kF32;  // x, B, C, q, k, v, z, conv inputs
  DType update = DType::kBF16;      // stored u: kBF16 or kF32

  std::int32_t window = 16;          // W, from max_step_tokens to kMaxWindow
  std::int32_t max_step_tokens = 1;  // T_max, drafts plus one; 1 to kMaxStepTokens

  std::int64_t slots = 0;
  std::int64_t blocks = 0;    // 0: one a slot (forks then fail when all are taken)
  std::int64_t max_rows = 0;  // rows of one forward; 0: slots
  std::int64_t max_tokens =
      0;  // tokens of one forward, prefill included; 0: max_rows * max_step_tokens

  // Keep conv inputs for the whole ring, so that materialize reaches every position since the
  // checkpoint.
  bool materialize_history = false;

  std::string device;  // "cpu" or "cuda": where weights, tensors and the arrays of every call lie;
                       // empty: the named implementation's, else "cpu"
  std::string implementation;  // a name of implementations(), or empty: the best that fits
  // On a device: wait for it in every call that the contents of its arrays could make illegal, so
  // that the call itself reports what is wrong. For finding mistakes; such calls cannot be captured
  // in a graph. Without it they mark the slot's error word (SlotError) and leave the rest alone.
  bool checked = false;
  ParallelFor parallel;  // the caller's threads; run == null: a pool of the library's own
  int threads = 0;       // size of that pool; 0: the machine's
  std::vector<TensorMemory>
      memory;  // empty: allocated by the library; else one entry a spec of cache_tensors()
};

// The tensors a cache of this configuration consists of, in a fixed order. Errors: as
// Cache::create.
[[nodiscard]] REPLAYSSM_API Result<std::vector<TensorSpec>> cache_tensors(
    const CacheConfig& config);

// Bytes of a cache, counted in full. Everything but `scratch` scales with slots or blocks.
struct CacheBytes {
  std::int64_t state = 0;  // checkpoints and, in conventional decoding, snapshots
  std::int64_t rings = 0;  // records
  std::int64_t conv = 0;
  std::int64_t control = 0;  // cursors, order tables, descriptors
  std::int64_t scratch = 0;  // working memory of the implementation
  [[nodiscard]] std::int64_t total() const { return state + rings + conv + control + scratch; }
};

// What cache_tensors() adds up to (scratch as the chosen implementation reports it).
[[nodiscard]] REPLAYSSM_API Result<CacheBytes> cache_bytes(const CacheConfig& config);

// Bytes of state, ring and control one decoded token moves in one slot, all layers, averaged over a
// window (folds included, inputs and outputs excluded), when every step carries `step_tokens`
// tokens of which `accepted_tokens` are accepted on average.
[[nodiscard]] REPLAYSSM_API Result<double> state_bytes_per_token(const CacheConfig& config,
                                                                 double step_tokens,
                                                                 double accepted_tokens);

// The rows of one forward. A row whose slot is padding_slot reads and writes nothing; its outputs
// are zero.
struct Rows {
  std::int64_t count = 0;
  const std::int64_t* slots = nullptr;   // [count]
  const std::int32_t* tokens = nullptr;  // [count], T of each row, 0 allowed; null: 1 each
  // [sum of tokens] index within the row of each token's parent, below its own; -1: continues the
  // committed sequence. null: chains. Ignored for prefill rows.
  const std::int32_t* parents = nullptr;
  const std::int64_t* offsets =
      nullptr;  // [count] first token of each row in the tensors; null: packed in order
  // [count] nonzero: a prompt chunk, T up to max_tokens; null: none. On a device, whose arrays the
  // host does not read, both step() and prefill() are due for every layer where this is given.
  const std::uint8_t* prefill = nullptr;
  std::int64_t padding_slot = -1;
  void* stream = nullptr;
};

// Inputs and output of one layer for all tokens of the forward. Axis 0 counts tokens; the last axis
// is gap-free; other strides are free. Dtypes: the cache's activation dtype; gate and beta may also
// be f32. `out` may not overlap an input (equal addresses are
// refused, partial overlaps are the caller's to avoid).
struct LayerInputs {
  std::int32_t layer = 0;
  TensorView value;  // x or v [tokens, H, V]
  TensorView key;    // B or k [tokens, G, K]
  TensorView query;  // C or q [tokens, G, K]
  TensorView gate;   // mamba2 dt_raw, gdn gate input [tokens, H]; kda gate input [tokens, H, K]
  TensorView beta;   // gdn, kda [tokens, H]
  TensorView z;      // optional, mamba2: the output is multiplied by silu(z) [tokens, H, V]
  TensorView
      out;  // [tokens, H, V], activation dtype or f32; written for the rows that the call handles
  void* stream = nullptr;
};

// Inputs and output of the convolution; both [tokens, conv_channels], activation dtype; `out` may
// not overlap `in`.
struct ConvInputs {
  std::int32_t layer = 0;
  TensorView in;
  TensorView out;
  bool silu = true;
  void* stream = nullptr;
};

// What of the last forward's pending tokens is kept, a row at a time in the order of its Rows.
struct Accepted {
  std::int64_t count = 0;                // rows, as in begin
  const std::int32_t* tokens = nullptr;  // [count] how many; null: all. Prefill rows: all of them
  const std::int32_t* nodes =
      nullptr;  // [count, node_stride] trees: accepted indices, root first; null: chains
  std::int64_t node_stride = 0;  // 0: max_step_tokens
  void* stream = nullptr;
};

struct MaterializeItem {
  std::int64_t source = 0;    // slot
  std::int64_t position = 0;  // absolute token position: state after `position` tokens
  std::int64_t target = 0;    // slot, acquired, holding nothing yet
};

// A state handed in or out: one layer of one slot.
struct LayerState {
  TensorView
      state;  // [H, V, K], or [H, K, V] with key_major; f32, bf16 or f16, innermost axis gap-free
  bool key_major = false;
  TensorView conv;  // [conv_width - 1, conv_channels], oldest first; absent: zeros in, nothing out
};

// Bits of a slot's error word.
enum SlotError : std::uint32_t {
  kSlotNonFinite =
      1U << 0,          // a fold, prefill or conventional step wrote a state that is not finite
  kSlotTorn = 1U << 1,  // a forward that writes state in place was abandoned: only release is legal
  kSlotOutOfRange = 1U << 2,  // a device-side check met an index outside its range
};

struct SlotInfo {
  std::int64_t position = 0;   // committed tokens since the slot was handed out (or as loaded)
  std::int32_t committed = 0;  // records in the ring
  std::int64_t block = 0;
  std::int32_t block_references = 0;
  bool zero = false;  // nothing folded yet: the checkpoint counts as 0
  std::uint64_t seed = 0;
  std::uint32_t error = 0;  // SlotError bits
};

// A pool of slots that share one configuration. One forward may be open at a time; calls are not
// thread-safe. When a call fails, nothing has been written (kDeviceError and kInternal excepted).
class REPLAYSSM_API Cache {
 public:
  // Errors: kInvalidArgument (a limit of the configuration), kUnsupported (no implementation; the
  // message lists what is), kResourceExhausted (memory).
  [[nodiscard]] static Result<Cache> create(const CacheConfig& config);

  Cache(Cache&&) noexcept;
  Cache& operator=(Cache&&) noexcept;
  ~Cache();

  // --- slots
  // A fresh slot whose state and conv history count as 0. kResourceExhausted: no slot or no
  // unreserved block.
  [[nodiscard]] Result<std::int64_t> acquire(std::uint64_t seed = 0, void* stream = nullptr);
  // The same for a slot id of the caller's choice, which must be free.
  [[nodiscard]] Status acquire_slot(std::int64_t slot, std::uint64_t seed = 0,
                                    void* stream = nullptr);
  // Legal at any time; within a forward the row's further results are unspecified and nothing of it
  // is reused before the forward ends.
  [[nodiscard]] Status release(std::int64_t slot, void* stream = nullptr);
  // A second slot with the same future; shares the block until one of the two folds.
  // kResourceExhausted: no slot, or not enough blocks to let every sharer fold.
  [[nodiscard]] Result<std::int64_t> fork(std::int64_t source, void* stream = nullptr);
  // Writes the state at a token position into another slot; sources are not touched. All items or
  // none.
  [[nodiscard]] Status materialize(std::span<const MaterializeItem> items, void* stream = nullptr);
  // Sets all layers of a slot that holds nothing yet; `position` is what info() reports afterwards.
  [[nodiscard]] Status load_state(std::int64_t slot, std::int64_t position,
                                  std::span<const LayerState> layers, void* stream = nullptr);
  // Reads the logical state (ring applied) of all layers without touching the slot.
  [[nodiscard]] Status store_state(std::int64_t slot, std::span<const LayerState> layers,
                                   void* stream = nullptr) const;
  // Everything that decides a slot's future, as versioned bytes (docs/formats.md).
  [[nodiscard]] Result<std::vector<std::byte>> export_slot(std::int64_t slot) const;
  // How many bytes that would be now.
  [[nodiscard]] Result<std::int64_t> export_bytes(std::int64_t slot) const;
  // kDataLoss: not such bytes; kUnsupported: another geometry, dtype or format. Nothing is taken
  // then.
  [[nodiscard]] Result<std::int64_t> import_slot(std::span<const std::byte> bytes);
  [[nodiscard]] Result<SlotInfo> info(std::int64_t slot) const;
  // Of many slots, an entry each: on a device one wait for all of them.
  [[nodiscard]] Result<std::vector<SlotInfo>> info(std::span<const std::int64_t> slots) const;
  // Takes SlotError bits back, once they have been read. kInvalidArgument: bits that cannot be
  // cleared; a torn slot stays torn until it is released.
  [[nodiscard]] Status clear_errors(std::int64_t slot, std::uint32_t bits, void* stream = nullptr);

  // --- one forward
  // Describes the rows. An earlier forward that was not committed is aborted first; a call that is
  // refused for its rows leaves it open.
  [[nodiscard]] Status begin(const Rows& rows);
  // Folds the rows that hold a full window, all layers at once. Needed once after begin, even if no
  // row folds.
  [[nodiscard]] Status fold(void* stream = nullptr);
  [[nodiscard]] Status conv(const ConvInputs& inputs);
  // Decodes the rows that are not prefill rows. Once a layer and forward.
  [[nodiscard]] Status step(const LayerInputs& inputs);
  // Runs the prompt chunks of the prefill rows. Once a layer and forward.
  [[nodiscard]] Status prefill(const LayerInputs& inputs);
  [[nodiscard]] Status commit(const Accepted& accepted);
  // Forgets the open forward. Rows whose state was being written in place are marked kSlotTorn.
  [[nodiscard]] Status abort(void* stream = nullptr);

  // --- facts
  [[nodiscard]] CacheBytes bytes() const;
  [[nodiscard]] const CacheConfig& config() const;
  [[nodiscard]] std::int32_t ring_length() const;  // R
  [[nodiscard]] std::int64_t free_slots() const;
  [[nodiscard]] std::string_view implementation() const;
  // One line a decision: what was chosen and why.
  [[nodiscard]] std::string explain() const;

 private:
  class Impl;
  explicit Cache(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace replayssm
