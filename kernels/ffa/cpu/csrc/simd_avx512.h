// Sixteen float lanes of AVX-512 (F, BW, DQ, VL). The interface is the same as in simd_avx2.h.
#pragma once
#include <immintrin.h>

namespace {  // both are linked into one library: of an inline function that is not inlined the linker keeps one copy

struct Simd {
  using F = __m512;
  static constexpr int kWidth = 16;
  static constexpr int kCols = 32;  // columns of a register tile: two vectors
  static constexpr int kRows = 12;  // rows of a register tile: 24 accumulators, 2 of B; A is broadcast from memory
  static constexpr int kRowsTail = 4;

  static F zero() { return _mm512_setzero_ps(); }
  static F set1(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  // When either is NaN the result is b: callers put what may be NaN there.
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  // The low bits of each lane moved up into the exponent field.
  static F exponent(F a) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a), 23)); }
  static float sum(F a) { return _mm512_reduce_add_ps(a); }
  static float largest(F a) { return _mm512_reduce_max_ps(a); }
  // x in the lanes first + lane in [lo, hi), `other` elsewhere.
  static F inside(F x, F other, int first, int lo, int hi) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i at = _mm512_add_epi32(_mm512_set1_epi32(first), lane);
    const __mmask16 in = _mm512_cmp_epi32_mask(at, _mm512_set1_epi32(lo), _MM_CMPINT_NLT) &
                         _mm512_cmp_epi32_mask(at, _mm512_set1_epi32(hi), _MM_CMPINT_LT);
    return _mm512_mask_blend_ps(in, other, x);
  }
};

}  // namespace
