// The AVX2 + FMA + F16C level; this file alone is compiled for it.
#include "backend/cpu/simd/level_impl.hpp"
#include "backend/cpu/simd/vec_avx2.hpp"

namespace replayssm::cpu {

extern const Level kAvx2Level;
constexpr Level kAvx2Level = SimdLevel<VecAvx2>::level("avx2");

}  // namespace replayssm::cpu
