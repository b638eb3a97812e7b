// Eight f32 lanes of AVX2 with FMA. Only files compiled for that level include this; the type's
// name keeps every template instantiated on it apart from other levels'.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace replayssm::cpu {

struct VecAvx2 {
  static constexpr std::int32_t kWidth = 8;
  __m256 lanes;

  static VecAvx2 zero() { return {_mm256_setzero_ps()}; }
  static VecAvx2 all(float x) { return {_mm256_set1_ps(x)}; }
  static VecAvx2 load(const float* p) { return {_mm256_loadu_ps(p)}; }
  void store(float* p) const { _mm256_storeu_ps(p, lanes); }
  // Past the caches, p at a multiple of 32 bytes; fence() before another thread reads it.
  void stream(float* p) const { _mm256_stream_ps(p, lanes); }
  static void fence() { _mm_sfence(); }
  // n lanes, 0 < n <= 8; vectors are multiples of 8 long, so n is 8.
  static VecAvx2 load_part(const float* p, std::int32_t /*n*/) { return load(p); }
  void store_part(float* p, std::int32_t /*n*/) const { store(p); }

  static VecAvx2 load_bf16(const void* p) {
    const __m128i bits = _mm_loadu_si128(static_cast<const __m128i*>(p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))};
  }
  static VecAvx2 load_f16(const void* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
  }
  void store_f16(void* p) const {
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_cvtps_ph(lanes, _MM_FROUND_TO_NEAREST_INT));
  }
  void store_bf16(void* p) const {
    const __m256i bits = _mm256_castps_si256(lanes);
    const __m256i even = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), even), 16);
    const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(lanes, lanes, _CMP_UNORD_Q));
    const __m256i words = _mm256_blendv_epi8(rounded, quiet, is_nan);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(words, words), 0x08);
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
  }

  friend VecAvx2 operator+(VecAvx2 a, VecAvx2 b) { return {_mm256_add_ps(a.lanes, b.lanes)}; }
  friend VecAvx2 operator-(VecAvx2 a, VecAvx2 b) { return {_mm256_sub_ps(a.lanes, b.lanes)}; }
  friend VecAvx2 operator*(VecAvx2 a, VecAvx2 b) { return {_mm256_mul_ps(a.lanes, b.lanes)}; }
  friend VecAvx2 operator/(VecAvx2 a, VecAvx2 b) { return {_mm256_div_ps(a.lanes, b.lanes)}; }
  // a * b + c with one rounding
  static VecAvx2 fma(VecAvx2 a, VecAvx2 b, VecAvx2 c) {
    return {_mm256_fmadd_ps(a.lanes, b.lanes, c.lanes)};
  }
  // Comparisons with NaN take b.
  static VecAvx2 max(VecAvx2 a, VecAvx2 b) { return {_mm256_max_ps(a.lanes, b.lanes)}; }
  static VecAvx2 min(VecAvx2 a, VecAvx2 b) { return {_mm256_min_ps(a.lanes, b.lanes)}; }
  static VecAvx2 round(VecAvx2 a) {
    return {_mm256_round_ps(a.lanes, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  }
  static VecAvx2 negate(VecAvx2 a) { return {_mm256_xor_ps(a.lanes, _mm256_set1_ps(-0.0F))}; }
  static VecAvx2 absolute(VecAvx2 a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0F), a.lanes)}; }
  // 2^n for integral n from -126 to 127
  static VecAvx2 power_of_two(VecAvx2 n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n.lanes), _mm256_set1_epi32(127));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23))};
  }
  // x 2^n for integral n, in two halves so that results down to the smallest subnormal come out
  static VecAvx2 scale_by_power(VecAvx2 x, VecAvx2 n) {
    const VecAvx2 half = round(n * all(0.5F));
    return x * power_of_two(half) * power_of_two(n - half);
  }
  // x where a < b, else y
  static VecAvx2 select_less(VecAvx2 a, VecAvx2 b, VecAvx2 x, VecAvx2 y) {
    return {_mm256_blendv_ps(y.lanes, x.lanes, _mm256_cmp_ps(a.lanes, b.lanes, _CMP_LT_OQ))};
  }
  // True when every lane of |a| is below infinity.
  static bool finite(VecAvx2 a) {
    const __m256 inf = _mm256_set1_ps(__builtin_inff());
    return _mm256_movemask_ps(_mm256_cmp_ps(absolute(a).lanes, inf, _CMP_LT_OQ)) == 0xFF;
  }
  [[nodiscard]] float sum() const {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_shuffle_ps(half, half, 1)));
  }

  // Lane i is v[i].sum(), bit for bit: the same tree of additions on eight vectors at once.
  static VecAvx2 sum_each(const VecAvx2 (&v)[kWidth]) {
    __m256 halves[4];
    for (int i = 0; i < 4; ++i) {
      halves[i] = _mm256_add_ps(_mm256_permute2f128_ps(v[i].lanes, v[i + 4].lanes, 0x20),
                                _mm256_permute2f128_ps(v[i].lanes, v[i + 4].lanes, 0x31));
    }
    __m256 pairs[2];
    for (int i = 0; i < 2; ++i) {
      pairs[i] = _mm256_add_ps(_mm256_shuffle_ps(halves[2 * i], halves[2 * i + 1], 0x44),
                               _mm256_shuffle_ps(halves[2 * i], halves[2 * i + 1], 0xEE));
    }
    return {_mm256_add_ps(_mm256_shuffle_ps(pairs[0], pairs[1], 0x88),
                          _mm256_shuffle_ps(pairs[0], pairs[1], 0xDD))};
  }
};

}  // namespace replayssm::cpu
