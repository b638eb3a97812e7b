// Which vector levels this build and this machine have. Compiled for the baseline.
#include "backend/cpu/level.hpp"

#ifdef REPLAYSSM_CPU_X86_LEVELS
#include <cpuid.h>
#endif

namespace replayssm::cpu {

#ifdef REPLAYSSM_CPU_X86_LEVELS
extern const Level kAvx2Level;
extern const Level kAvx512Level;

namespace {

// The builtin of clang 14 does not know this feature's name. Where it asks for AVX2 as well, the
// operating system is known to save the registers.
bool has_f16c() {
  unsigned int eax = 0;
  unsigned int ebx = 0;
  unsigned int ecx = 0;
  unsigned int edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

}  // namespace

const Level* avx2_level() {
  const bool runs = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
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
