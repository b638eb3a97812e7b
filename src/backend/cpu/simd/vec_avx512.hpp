// Sixteen f32 lanes of AVX-512 (F, BW, DQ, VL). Vectors are multiples of 8 long: the last one may
// be half full.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace replayssm::cpu {

struct VecAvx512 {
  static constexpr std::int32_t kWidth = 16;
  __m512 lanes;

  static __mmask16 mask(std::int32_t n) {
    return static_cast<__mmask16>((1U << static_cast<unsigned>(n)) - 1U);
  }
  static VecAvx512 zero() { return {_mm512_setzero_ps()}; }
  static VecAvx512 all(float x) { return {_mm512_set1_ps(x)}; }
  static VecAvx512 load(const float* p) { return {_mm512_loadu_ps(p)}; }
  void store(float* p) const { _mm512_storeu_ps(p, lanes); }
  // Past the caches, p at a multiple of 64 bytes; fence() before another thread reads it.
  void stream(float* p) const { _mm512_stream_ps(p, lanes); }
  static void fence() { _mm_sfence(); }
  static VecAvx512 load_part(const float* p, std::int32_t n) {
    return {_mm512_maskz_loadu_ps(mask(n), p)};
  }
  void store_part(float* p, std::int32_t n) const { _mm512_mask_storeu_ps(p, mask(n), lanes); }

  static VecAvx512 load_bf16(const void* p) {
    const __m256i bits = _mm256_loadu_si256(static_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
  }
  static VecAvx512 load_f16(const void* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
  }
  void store_f16(void* p) const {
    _mm256_storeu_si256(static_cast<__m256i*>(p),
                        _mm512_cvtps_ph(lanes, _MM_FROUND_TO_NEAREST_INT));
  }
  void store_bf16(void* p) const {
    const __m512i bits = _mm512_castps_si512(lanes);
    const __m512i even = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_srli_epi32(
        _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), even), 16);
    const __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(lanes, lanes, _CMP_UNORD_Q);
    const __m512i words = _mm512_mask_blend_epi32(is_nan, rounded, quiet);
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(words));
  }

  friend VecAvx512 operator+(VecAvx512 a, VecAvx512 b) { return {_mm512_add_ps(a.lanes, b.lanes)}; }
  friend VecAvx512 operator-(VecAvx512 a, VecAvx512 b) { return {_mm512_sub_ps(a.lanes, b.lanes)}; }
  friend VecAvx512 operator*(VecAvx512 a, VecAvx512 b) { return {_mm512_mul_ps(a.lanes, b.lanes)}; }
  friend VecAvx512 operator/(VecAvx512 a, VecAvx512 b) { return {_mm512_div_ps(a.lanes, b.lanes)}; }
  // a * b + c with one rounding
  static VecAvx512 fma(VecAvx512 a, VecAvx512 b, VecAvx512 c) {
    return {_mm512_fmadd_ps(a.lanes, b.lanes, c.lanes)};
  }
  // Comparisons with NaN take b.
  static VecAvx512 max(VecAvx512 a, VecAvx512 b) { return {_mm512_max_ps(a.lanes, b.lanes)}; }
  static VecAvx512 min(VecAvx512 a, VecAvx512 b) { return {_mm512_min_ps(a.lanes, b.lanes)}; }
  static VecAvx512 round(VecAvx512 a) {
    return {_mm512_roundscale_ps(a.lanes, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  }
  static VecAvx512 negate(VecAvx512 a) { return {_mm512_xor_ps(a.lanes, _mm512_set1_ps(-0.0F))}; }
  static VecAvx512 absolute(VecAvx512 a) { return {_mm512_abs_ps(a.lanes)}; }
  // x 2^n for integral n, rounded once
  static VecAvx512 scale_by_power(VecAvx512 x, VecAvx512 n) {
    return {_mm512_scalef_ps(x.lanes, n.lanes)};
  }
  // x where a < b, else y
  static VecAvx512 select_less(VecAvx512 a, VecAvx512 b, VecAvx512 x, VecAvx512 y) {
    return {
        _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.lanes, b.lanes, _CMP_LT_OQ), y.lanes, x.lanes)};
  }
  // True when every lane of |a| is below infinity.
  static bool finite(VecAvx512 a) {
    return _mm512_cmp_ps_mask(absolute(a).lanes, _mm512_set1_ps(__builtin_inff()), _CMP_LT_OQ) ==
           0xFFFF;
  }
  [[nodiscard]] float sum() const {
    const __m256 half =
        _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));
    __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_shuffle_ps(quarter, quarter, 1)));
  }

  // Lane i is v[i].sum(), bit for bit: the same tree of additions on sixteen vectors at once.
  static VecAvx512 sum_each(const VecAvx512 (&v)[kWidth]) {
    __m512 halves[8];
    for (int i = 0; i < 8; ++i) {
      const int at = i + (i & 4);  // 0..3, 8..11; partners lie 4 further
      halves[i] = _mm512_add_ps(_mm512_shuffle_f32x4(v[at].lanes, v[at + 4].lanes, 0x44),
                                _mm512_shuffle_f32x4(v[at].lanes, v[at + 4].lanes, 0xEE));
    }
    __m512 quarters[4];
    for (int i = 0; i < 4; ++i) {
      quarters[i] = _mm512_add_ps(_mm512_shuffle_f32x4(halves[i], halves[i + 4], 0x88),
                                  _mm512_shuffle_f32x4(halves[i], halves[i + 4], 0xDD));
    }
    __m512 pairs[2];
    for (int i = 0; i < 2; ++i) {
      pairs[i] = _mm512_add_ps(_mm512_shuffle_ps(quarters[2 * i], quarters[2 * i + 1], 0x44),
                               _mm512_shuffle_ps(quarters[2 * i], quarters[2 * i + 1], 0xEE));
    }
    return {_mm512_add_ps(_mm512_shuffle_ps(pairs[0], pairs[1], 0x88),
                          _mm512_shuffle_ps(pairs[0], pairs[1], 0xDD))};
  }
};

}  // namespace replayssm::cpu
