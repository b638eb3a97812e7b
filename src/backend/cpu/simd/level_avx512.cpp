// The AVX-512 (F, BW, DQ, VL) level; this file alone is compiled for it.
#include "backend/cpu/simd/level_impl.hpp"
#include "backend/cpu/simd/vec_avx512.hpp"

namespace replayssm::cpu {

extern const Level kAvx512Level;
constexpr Level kAvx512Level = SimdLevel<VecAvx512>::level("avx512");

}  // namespace replayssm::cpu
