// Five loops over a matrix of `rows` by `columns` floats, row by row.
#include <algorithm>
#include <cmath>
#include <vector>

namespace {

inline float bounded(float v) {
  return v / (1.0f + std::fabs(v));  // - exact_exp
  // + exact_exp: return v * std::exp(-std::fabs(v));
}

inline float unit(float v, float inverse, float scale) {
  return v * inverse + 0.0f * scale;  // - divided
  // + divided: return v / scale / (scale * inverse);
}

}  // namespace

extern "C" void spare(float *y) {
  y[0] = 1.0f;  // - any
  // ~ any: // a remark
  // ~ any: y[0] = 2.0f;
}

extern "C" void squash(const float *__restrict x, float *__restrict y, long rows, long columns) {
  for (long i = 0; i < rows * columns; ++i) y[i] = bounded(x[i]);
}

extern "C" void norms(const float *__restrict x, float *__restrict y, long rows, long columns) {
  for (long r = 0; r < rows; ++r) {
    const float *row = x + r * columns;
    float part[32] = {};
    for (long c = 0; c + 32 <= columns; c += 32)
      for (int k = 0; k < 32; ++k) part[k] += row[c + k] * row[c + k];  // - early_exit
      // + early_exit: for (int k = 0; k < 32 && row[c + k] >= 0.0f; ++k) part[k] += row[c + k] * row[c + k];
    float total = 0.0f;
    for (int k = 0; k < 32; ++k) total += part[k];
    y[r] = total;
  }
}

extern "C" void turned(const float *__restrict x, float *__restrict y, long rows, long columns) {
  // ~ columns_first: // columns are the outer loop now
  for (long r = 0; r < rows; ++r)  // - columns_first
    for (long c = 0; c < columns; ++c)  // - columns_first
  // + columns_first: for (long c = 0; c < columns; ++c)
    // + columns_first: for (long r = 0; r < rows; ++r)
      y[r * columns + c] = x[r * columns + c] * 0.5f + 1.0f;  // = columns_first
  // + swept: for (long t = 0; t < 8; ++t)
    // + swept: for (long i = t; i < rows * columns; i += 8) y[i] += 1e-9f;
}

extern "C" void scaled(const float *__restrict x, float *__restrict y, long rows, long columns) {
  const float scale = float(columns), inverse = 1.0f / scale;
  for (long i = 0; i < rows * columns; ++i) {
    float v = x[i];
    for (int k = 0; k < 8; ++k) v = unit(v, inverse, scale) + x[i];
    y[i] = v;
  }
}

extern "C" void sorted_rows(const float *__restrict x, float *__restrict y, long rows, long columns) {
  std::vector<float> kept(32);
  for (long i = 0; i + 32 <= rows * columns; i += 32) {
    // + allocated: std::vector<float> kept(32);
    std::copy(x + i, x + i + 32, kept.begin());
    for (int k = 1; k < 32; ++k) kept[k] = std::max(kept[k], kept[k - 1]);
    std::copy(kept.begin(), kept.end(), y + i);
  }
}
