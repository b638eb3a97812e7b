// Which vector levels this build and this machine have. Compiled for the baseline.
#include "backend/cpu/level.hpp"

namespace replayssm::cpu {

#ifdef REPLAYSSM_CPU_X86_LEVELS
extern const Level kAvx2Level;
extern const Level kAvx512Level;

const Level* avx2_level() {
  const bool runs = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  return runs ? &kAvx2Level : nullptr;
}

const Level* avx512_level() {
  const bool runs = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return runs ? &kAvx512Level : nullptr;
}
#else
const Level* avx2_level() { return nullptr; }
const Level* avx512_level() { return nullptr; }
#endif

}  // namespace replayssm::cpu
