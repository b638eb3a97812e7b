// The inner loops of the CPU backend, once an instruction set. Rooms prepare operands and keep the
// law; a level does the arithmetic on dense f32 arrays. Every sum's order is fixed by the level
// alone, never by T, the batch or the threads.
#pragma once

#include <cstdint>

#include "replayssm/dtype.hpp"
#include "replayssm/layer.hpp"

namespace replayssm::cpu {

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
};

// The gate of one kda head: parameters of log_decay() in math/gates.hpp.
struct GateRun {
  GateKind kind = GateKind::kSoftplus;
  float lower_bound = 0.0F;
  float scale = 1.0F;           // gate_scale()
  const float* bias = nullptr;  // [K] or null
};

struct Level {
  const char* name;
  // False when a state written is not finite.
  bool (*advance)(const AdvanceRun& run);
  // sums[i * rows + r] = matrix[r] . vectors[i], for i below count
  void (*dot_rows)(const float* matrix, std::int32_t rows, std::int32_t keys, const float* vectors,
                   std::int32_t count, float* sums);
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
