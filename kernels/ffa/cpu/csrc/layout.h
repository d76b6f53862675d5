// Packing of tensors into tiles of panels, and rows in and out of them with conversion from and to bfloat16.
//   row panels     [tile][D / kCols][tile rows][kCols]      B of products that sum over tokens, A of those over D
//   column panels  [tile][tile rows / kCols][D][kCols]      B of products that sum over D
// A tile holds the tokens [t * rows, (t + 1) * rows); tokens behind the end are zeros.
#pragma once
#include <omp.h>

#include <atomic>
#include <cstring>

#include "micro.h"

namespace {

FFA_INLINE float widen(uint16_t bits) {
  const uint32_t wide = uint32_t(bits) << 16;
  float x;
  std::memcpy(&x, &wide, 4);
  return x;
}

FFA_INLINE uint16_t narrow(float x) {  // round to nearest, ties to even; NaN stays NaN
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  return uint16_t((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : rounded >> 16);
}

inline int64_t element(const FfaTensor& t, int64_t token, int64_t head) {
  return token * t.token_stride + head * t.head_stride;
}

// dst[d] = factor * x[token, head, d]
inline void read_row(const FfaTensor& t, int32_t dtype, int64_t token, int64_t head, int dim, float factor,
                     float* dst) {
  if (dtype == kFloat32) {
    const float* src = static_cast<const float*>(t.data) + element(t, token, head);
    for (int d = 0; d < dim; ++d) dst[d] = factor * src[d];
  } else {
    const uint16_t* src = static_cast<const uint16_t*>(t.data) + element(t, token, head);
    for (int d = 0; d < dim; ++d) dst[d] = factor * widen(src[d]);
  }
}

// x[token, head, d] = factor * src[d]
inline void write_row(const FfaTensor& t, int32_t dtype, int64_t token, int64_t head, int dim, float factor,
                      const float* src) {
  if (dtype == kFloat32) {
    float* dst = static_cast<float*>(t.data) + element(t, token, head);
    for (int d = 0; d < dim; ++d) dst[d] = factor * src[d];
  } else {
    uint16_t* dst = static_cast<uint16_t*>(t.data) + element(t, token, head);
    for (int d = 0; d < dim; ++d) dst[d] = narrow(factor * src[d]);
  }
}

inline void pack_row_panels(const FfaTensor& t, const FfaProblem& p, int64_t begin, int64_t end, int rows, int64_t head,
                            float factor, float* tile) {
  alignas(64) float row[128];
  for (int r = 0; r < rows; ++r) {
    if (begin + r < end) {
      read_row(t, p.dtype, begin + r, head, p.head_dim, factor, row);
    } else {
      std::memset(row, 0, sizeof row);
    }
    for (int d = 0; d < p.head_dim; d += kCols)
      std::memcpy(tile + (d * rows + r * kCols), row + d, kCols * sizeof(float));
  }
}

inline void pack_column_panels(const FfaTensor& t, const FfaProblem& p, int64_t begin, int64_t end, int rows,
                               int64_t head, float* tile) {
  alignas(64) float block[kCols][128];
  for (int first = 0; first < rows; first += kCols) {
    for (int r = 0; r < kCols; ++r) {
      const int64_t token = begin + first + r;
      if (token < end) {
        read_row(t, p.dtype, token, head, p.head_dim, 1.0f, block[r]);
      } else {
        std::memset(block[r], 0, sizeof block[r]);
      }
    }
    float* panel = tile + int64_t(first) * p.head_dim;
    for (int d = 0; d < p.head_dim; ++d)
      for (int r = 0; r < kCols; ++r) panel[d * kCols + r] = block[r][d];
  }
}

// f(index, thread) for every index below n, in order of availability. Results must not depend on which thread runs it.
template <class Fn>
void parallel_for(int threads, int64_t n, Fn f) {
  std::atomic<int64_t> next{0};
#pragma omp parallel num_threads(threads)
  {
    const int thread = omp_get_thread_num();
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) f(i, thread);
  }
}

inline int64_t tiles(int64_t length, int64_t tile) { return (length + tile - 1) / tile; }

}  // namespace
