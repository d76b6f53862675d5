// Stands in for simd_avx512.h where the processor lacks AVX-512: the same interface and tile shape in the compiler's
// vector extension, which it splits into what the machine has. So everything but the wrapper itself is tested.
#pragma once
#include <cstdint>

struct Simd {
  typedef float F __attribute__((vector_size(64)));
  typedef int32_t I __attribute__((vector_size(64)));
  typedef float Loose __attribute__((vector_size(64), aligned(4)));
  static constexpr int kWidth = 16;
  static constexpr int kCols = 32;
  static constexpr int kRows = 12;
  static constexpr int kRowsTail = 4;

  static F zero() { return F{}; }
  static F set1(float x) { return x - F{}; }
  static F load(const float* p) { return *reinterpret_cast<const Loose*>(p); }
  static void store(float* p, F x) { *reinterpret_cast<Loose*>(p) = x; }
  static F add(F a, F b) { return a + b; }
  static F sub(F a, F b) { return a - b; }
  static F mul(F a, F b) { return a * b; }
  static F fma(F a, F b, F c) { return a * b + c; }
  static F max(F a, F b) { return a > b ? a : b; }
  static F exponent(F a) { return (F)((I)a << 23); }
  static float sum(F a) {
    float total = 0;
    for (int i = 0; i < 16; ++i) total += a[i];
    return total;
  }
  static float largest(F a) {
    float best = a[0];
    for (int i = 1; i < 16; ++i) best = a[i] > best ? a[i] : best;
    return best;
  }
  static F inside(F x, F other, int first, int lo, int hi) {
    const I at = I{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} + first;
    return (at >= lo) & (at < hi) ? x : other;
  }
};
