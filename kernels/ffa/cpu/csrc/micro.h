// Register-tile matrix products over packed panels, and 2^x. Included after one of the simd_*.h.
#pragma once
#include "problem.h"

#define FFA_INLINE inline __attribute__((always_inline))
#define FFA_NOINLINE __attribute__((noinline))  // one copy of the register tiles
#define FFA_LAMBDA __attribute__((always_inline))

namespace {

constexpr int kMaxTileQ = 128;
constexpr int kMaxTileK = 192;
constexpr int kScoreStride = kMaxTileK + 16;  // not a multiple of 1 KiB: rows of the score tile spread over L1 sets
constexpr int kCols = Simd::kCols;
constexpr int kVecs = Simd::kCols / Simd::kWidth;

// How A(i, k) lies in memory. Panels are what layout.h packs; the score tile is read by rows or by columns.
enum class From { kPanels, kScoreRows, kScoreColumns };

// C[M, kCols] (+)= A[M, k] B[k, kCols]: C has row stride ldc, B is a panel of rows of kCols. For kPanels, k must be a
// multiple of kCols and `panel` is the distance between A's panels.
template <int M, From A, bool Accumulate>
FFA_NOINLINE void micro(const float* a, int64_t panel, const float* b, float* c, int64_t ldc, int k) {
  using S = Simd;
  S::F acc[M][kVecs];
  for (int i = 0; i < M; ++i)
    for (int j = 0; j < kVecs; ++j) acc[i][j] = Accumulate ? S::load(c + i * ldc + j * S::kWidth) : S::zero();
  constexpr int row = A == From::kPanels ? kCols : A == From::kScoreRows ? kScoreStride : 1;
  constexpr int step = A == From::kScoreColumns ? kScoreStride : 1;
  const int inner = A == From::kPanels ? kCols : k;
  for (int outer = 0; outer < k; outer += inner, a += panel) {
    const float* at = a;
    for (int t = 0; t < inner; ++t, at += step, b += kCols) {
      S::F bv[kVecs];
      for (int j = 0; j < kVecs; ++j) bv[j] = S::load(b + j * S::kWidth);
      for (int i = 0; i < M; ++i) {
        const S::F av = S::set1(at[i * row]);
        for (int j = 0; j < kVecs; ++j) acc[i][j] = S::fma(av, bv[j], acc[i][j]);
      }
    }
  }
  for (int i = 0; i < M; ++i)
    for (int j = 0; j < kVecs; ++j) S::store(c + i * ldc + j * S::kWidth, acc[i][j]);
}

template <int M>
struct Rows {
  static constexpr int value = M;
};

// Calls f(i, Rows<M>) over [begin, end) in register tiles, the last rows in smaller ones.
template <class Fn>
FFA_INLINE void by_rows(int begin, int end, Fn f) {
  int i = begin;
  for (; i + Simd::kRows <= end; i += Simd::kRows) f(i, Rows<Simd::kRows>{});
  for (; i + Simd::kRowsTail <= end; i += Simd::kRowsTail) f(i, Rows<Simd::kRowsTail>{});
  for (; i < end; ++i) f(i, Rows<1>{});
}

// 2^x to 1e-7 relative for x <= 0; zero below -126.5, NaN for NaN. Adding 1.5 * 2^23 rounds x to the integer n and
// leaves n in the sum's low bits; the 127 there makes them the biased exponent of 2^n. 2^(x - n) is a degree-6 minimax
// polynomial of relative error on [-0.5, 0.5] (2e-9 before rounding), its constant term fixed to 1.
FFA_INLINE Simd::F exp2v(Simd::F x) {
  using S = Simd;
  const S::F magic = S::set1(12582912.0f + 127.0f);
  x = S::max(S::set1(-127.0f), x);
  const S::F n = S::add(x, magic);
  const S::F f = S::sub(x, S::sub(n, magic));
  S::F p = S::set1(1.5353343e-4f);
  p = S::fma(p, f, S::set1(1.3398868e-3f));
  p = S::fma(p, f, S::set1(9.618437e-3f));
  p = S::fma(p, f, S::set1(5.5503324e-2f));
  p = S::fma(p, f, S::set1(0.24022648f));
  p = S::fma(p, f, S::set1(0.6931472f));
  p = S::fma(p, f, S::set1(1.0f));
  return S::mul(p, S::exponent(n));
}

}  // namespace
