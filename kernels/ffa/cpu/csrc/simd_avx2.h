// Eight float lanes of AVX2 with FMA. The interface is the same as in simd_avx512.h; nothing else differs between them.
#pragma once
#include <immintrin.h>

namespace {  // both are linked into one library: of an inline function that is not inlined the linker keeps one copy

struct Simd {
  using F = __m256;
  static constexpr int kWidth = 8;
  static constexpr int kCols = 16;  // columns of a register tile: two vectors
  static constexpr int kRows = 6;   // rows of a register tile: 12 accumulators, 2 of B, 1 of A of the 16 registers
  static constexpr int kRowsTail = 2;

  static F zero() { return _mm256_setzero_ps(); }
  static F set1(float x) { return _mm256_set1_ps(x); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  // When either is NaN the result is b: callers put what may be NaN there.
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  // The low bits of each lane moved up into the exponent field.
  static F exponent(F a) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a), 23)); }
  static float sum(F a) {
    const __m128 half = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
  }
  static float largest(F a) {
    const __m128 half = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 pair = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)));
  }
  // x in the lanes first + lane in [lo, hi), `other` elsewhere.
  static F inside(F x, F other, int first, int lo, int hi) {
    const __m256i at = _mm256_add_epi32(_mm256_set1_epi32(first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    const __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32(lo), at);
    const __m256i under = _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), at);
    return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(_mm256_andnot_si256(below, under)));
  }
};

}  // namespace
