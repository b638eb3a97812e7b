// The inner loops of the CPU backend, once an instruction set. Rooms prepare operands and keep the
// law; a level does the arithmetic on dense f32 arrays. Every sum's order is fixed by the level
// alone, never by T, the batch or the threads.
#pragma once

#include <cstdint>

#include "replayssm/dtype.hpp"
#include "replayssm/layer.hpp"

namespace replayssm::cpu {

// What will be read after a matrix or a state. Fetched ahead, never read.
struct Ahead {
  const float* matrix = nullptr;       // of the same shape, or null
  const void* const* lines = nullptr;  // [count] addresses
  std::int32_t count = 0;
};

// A run of tokens through the recurrence of one head, row by row of its state: S[v] <- S[v] a_j +
// u_jv k_j.
struct AdvanceRun {
  Rule rule = Rule::kMamba2;
  std::int32_t keys = 0;          // K
  std::int32_t values = 0;        // V
  std::int32_t tokens = 0;        // n
  const float* key = nullptr;     // [n, K]
  const float* decay = nullptr;   // [n], kda [n, K]
  const float* scale = nullptr;   // [n] dt or beta
  const float* value = nullptr;   // [n, V]
  const float* query = nullptr;   // [n, K]; null: no outputs
  float* outputs = nullptr;       // [n, V] S_j q_j
  const float* source = nullptr;  // [V, K]; null: zeros
  float* target = nullptr;  // [V, K] the last token's state, may be the source; null: not wanted
  float* const* after = nullptr;          // [n] where each token's state [V, K] goes; null: nowhere
  const std::int32_t* parents = nullptr;  // [n] tree; null: a chain
  float* rows = nullptr;                  // [n + 1, K] working memory
  bool past_caches = false;               // `after` need not be left in the caches
  Ahead next;                             // what will be read after the run
};

// The gate of one kda head: parameters of log_decay() in math/gates.hpp.
struct GateRun {
  GateKind kind = GateKind::kSoftplus;
  float lower_bound = 0.0F;
  float scale = 1.0F;           // gate_scale()
  const float* bias = nullptr;  // [K] or null
};

// kda: from one token back along its path, newest record first. The key and the query pick up each
// record's decays on the way.
struct WalkRun {
  std::int32_t keys = 0;               // K
  const float* key = nullptr;          // [*, K]
  const float* decay = nullptr;        // [*, K]
  std::int32_t own = 0;                // the token
  const std::int32_t* path = nullptr;  // [count] what comes before it, newest first
  std::int32_t count = 0;
  const float* own_key = nullptr;    // [K]
  const float* own_query = nullptr;  // [K]
  float* to_key = nullptr;           // [count] (w_j k_j) . k
  float* to_query = nullptr;         // [count] (w_j k_j) . q
  float* reach_key = nullptr;        // [K] k times the decay from the checkpoint
  float* reach_query = nullptr;      // [K] q times the same
};

// gdn and kda: u and o of one token, from those on its path and from what it read of the
// checkpoint.
struct SolveRun {
  std::int32_t values = 0;             // V
  const float* update = nullptr;       // [*, V]
  const std::int32_t* path = nullptr;  // [count] rows of update, newest first
  std::int32_t count = 0;
  const float* to_key = nullptr;      // [count]
  const float* to_query = nullptr;    // [count]
  const float* read_key = nullptr;    // [V] S0 k; null: the checkpoint is 0
  const float* read_query = nullptr;  // [V] S0 q
  float read_weight = 0.0F;           // gdn: the decay from the checkpoint; kda: 1
  float scale = 0.0F;                 // beta
  float own_weight = 0.0F;            // k . q
  const float* value = nullptr;       // [V]
  DType dtype = DType::kF32;          // of stored updates
  void* stored = nullptr;             // [V] u in that dtype
  float* own_update = nullptr;        // [V] u as stored: what later tokens see
  float* output = nullptr;            // [V]
};

struct Level {
  const char* name;
  // False when a state written is not finite.
  bool (*advance)(const AdvanceRun& run);
  // sums[i * rows + r] = matrix[r] . vectors[i], for i below count. `next` is fetched meanwhile.
  void (*dot_rows)(const float* matrix, std::int32_t rows, std::int32_t keys, const float* vectors,
                   std::int32_t count, float* sums, const Ahead& next);
  void (*walk)(const WalkRun& run);
  void (*solve)(const SolveRun& run);
  // out += sum over j of weights[j] * matrix[index[j]], in the order of j
  void (*combine)(const float* matrix, std::int32_t width, const std::int32_t* index,
                  const float* weights, std::int32_t count, float* out);
  float (*dot)(const float* a, const float* b, std::int32_t n);
  void (*scale)(float* y, float s, std::int32_t n);
  void (*multiply)(float* y, const float* x, std::int32_t n);
  // Widening is exact, narrowing rounds to nearest even.
  void (*load)(const void* source, DType dtype, std::int32_t n, float* values);
  void (*store)(const float* values, std::int32_t n, void* target, DType dtype);
  // decay[k] = exp(log_decay(gate[k])); in place allowed
  void (*decay)(const GateRun& run, const float* gate, std::int32_t n, float* decay);
  // y = silu(y)
  void (*silu)(float* y, std::int32_t n);
  // y += w * x, element by element
  void (*multiply_add)(float* y, const float* w, const float* x, std::int32_t n);
};

[[nodiscard]] const Level& scalar_level();
// Null where the build or the machine lacks the instructions.
[[nodiscard]] const Level* avx2_level();
[[nodiscard]] const Level* avx512_level();

}  // namespace replayssm::cpu
