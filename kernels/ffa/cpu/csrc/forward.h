// Blocked attention forward with an online softmax. A work item is one query tile of one head.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "layout.h"

namespace {

constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
constexpr int64_t kNoDiagonal = int64_t(1) << 40;

// Query rows [q0, q1) of one slice, or of one query block (`of`).
struct QueryTile {
  int64_t q0, q1, of, cost;
};

// Keys [k0, k1); with the diagonal, row r of the tensor sees keys up to r + diagonal.
struct Segment {
  int64_t k0, k1, diagonal;
};

inline Segment slice_segment(const int64_t* slice) {
  return {slice[2], slice[3], slice[4] ? slice[3] - slice[1] : kNoDiagonal};
}

class Forward {
 public:
  explicit Forward(const FfaProblem& problem)
      : p(problem), bq(p.tile_q), bk(p.tile_k), dim(p.head_dim), key_tiles(tiles(p.k_len, bk)) {
    tile_floats = int64_t(bk) * dim;
    packed = p.k_heads * key_tiles * tile_floats;
    keys = p.workspace;
    values = keys + packed;
    scratch = values + packed;
  }

  int64_t workspace() const { return 2 * packed + p.threads * scratch_floats(); }

  void prepare() const {
    parallel_for(p.threads, p.k_heads * key_tiles, [&](int64_t i, int) {
      const int64_t head = i / key_tiles, begin = i % key_tiles * bk, end = std::min(begin + bk, p.k_len);
      pack_column_panels(p.k, p, begin, end, bk, head, keys + i * tile_floats);
      pack_row_panels(p.v, p, begin, end, bk, head, 1.0f, values + i * tile_floats);
    });
  }

  void run() const {
    const std::vector<QueryTile> items = query_tiles();
    const int64_t n = int64_t(items.size());
    parallel_for(p.threads, n * p.q_heads, [&](int64_t i, int thread) {
      query_tile(items[i % n], i / n, scratch + thread * scratch_floats());
    });
  }

 private:
  const FfaProblem& p;
  const int bq, bk, dim;
  const int64_t key_tiles;
  int64_t tile_floats, packed;
  float *keys, *values, *scratch;

  int64_t scratch_floats() const { return int64_t(bq) * (2 * dim + kScoreStride + 2 * Simd::kWidth) + 1024; }

  std::vector<QueryTile> query_tiles() const {
    std::vector<QueryTile> items;
    const auto cut = [&](int64_t q0, int64_t q1, int64_t of) {
      for (int64_t q = q0; q < q1; q += bq) {
        const int64_t end = std::min(q + bq, q1);
        int64_t cost = 0;
        if (p.kind == kSlices) {
          const Segment s = slice_segment(p.slices + 5 * of);
          cost = (end - q) * (std::min(s.k1, end + s.diagonal) - s.k0);
        }
        items.push_back({q, end, of, cost});
      }
    };
    if (p.kind == kSlices) {
      for (int64_t s = 0; s < p.n_slices; ++s) cut(p.slices[5 * s], p.slices[5 * s + 1], s);
      // Long tiles first, so that no thread starts one when the others are done.
      const auto longer = [](const QueryTile& a, const QueryTile& b) { return a.cost > b.cost; };
      std::stable_sort(items.begin(), items.end(), longer);
    } else {
      for (int64_t b = 0; b * p.q_block < p.q_len; ++b) cut(b * p.q_block, std::min((b + 1) * p.q_block, p.q_len), b);
    }
    return items;
  }

  struct State {
    int rows;
    int64_t q0, head, key_head;
    float *query = nullptr, *out = nullptr;  // panels [D / kCols][bq][kCols]; [bq][D]
    float *score = nullptr;                  // [bq][kScoreStride]
    float *top = nullptr, *sum = nullptr;    // [bq] each: the largest score so far, and the sum of 2^(score - top)
  };

  void query_tile(const QueryTile& item, int64_t head, float* memory) const {
    State s{int(item.q1 - item.q0), item.q0, head, head / (p.q_heads / p.k_heads)};
    s.query = memory;
    s.out = s.query + int64_t(bq) * dim;
    s.score = s.out + int64_t(bq) * dim;
    s.top = s.score + int64_t(bq) * kScoreStride;
    s.sum = s.top + bq;
    pack_row_panels(p.q, p, item.q0, item.q1, bq, head, float(p.scale) * kLog2e, s.query);
    std::memset(s.out, 0, int64_t(s.rows) * dim * sizeof(float));
    std::fill(s.top, s.top + s.rows, -INFINITY);
    std::fill(s.sum, s.sum + s.rows, 0.0f);
    if (p.kind == kSlices) {
      segment(s, slice_segment(p.slices + 5 * item.of));
    } else {
      const int64_t list = s.key_head * tiles(p.q_len, p.q_block) + item.of;
      for (int32_t n = 0; n < p.kv_num[list]; ++n) {
        const int64_t k0 = p.kv_indices[list * p.max_kv + n] * p.k_block;
        segment(s, {k0, std::min(k0 + p.k_block, p.k_len), kNoDiagonal});
      }
    }
    finish(s);
  }

  void segment(const State& s, const Segment& seg) const {
    const int64_t end = std::min(seg.k1, s.q0 + s.rows + seg.diagonal);
    for (int64_t tile = seg.k0 / bk; tile * bk < end; ++tile) {
      const int64_t base = tile * bk;
      const int lo = int(std::max(seg.k0 - base, int64_t(0))), hi = int(std::min(end - base, int64_t(bk)));
      // In coordinates of this tile: row i sees columns [lo, min(hi, i + diagonal + 1)).
      const int diagonal = int(std::min(s.q0 + seg.diagonal - base, int64_t(bk)));
      const int64_t at = (s.key_head * key_tiles + tile) * tile_floats;
      scores(s, keys + at, lo, hi, diagonal);
      softmax(s, lo, hi, diagonal);
      accumulate(s, values + at, lo, hi, diagonal);
    }
  }

  FFA_NOINLINE void scores(const State& s, const float* key_tile, int lo, int hi, int diagonal) const {
    for (int col = lo / kCols * kCols; col < hi; col += kCols) {
      const float* b = key_tile + int64_t(col) * dim;
      const int unseen = std::min(std::max(col - diagonal, 0), s.rows);  // rows above the diagonal see nothing here
      const int first = std::max(0, s.rows - (s.rows - unseen + Simd::kRows - 1) / Simd::kRows * Simd::kRows);
      by_rows(first, s.rows, [&](int i, auto m) FFA_LAMBDA {
        micro<decltype(m)::value, From::kPanels, false>(s.query + i * kCols, int64_t(bq) * kCols, b,
                                                        s.score + i * kScoreStride + col, kScoreStride, dim);
      });
    }
  }

  // Turns scores into 2^(score - top) in place; columns a row does not see become 0 up to its register tile's last one.
  FFA_NOINLINE void softmax(const State& s, int lo, int hi, int diagonal) const {
    using S = Simd;
    const int begin = lo / S::kWidth * S::kWidth;
    for (int i = 0; i < s.rows; ++i) {
      float* row = s.score + i * kScoreStride;
      const int seen = std::min(hi, i + diagonal + 1);
      const int end = std::min(hi, i + S::kRows + diagonal + 1);
      S::F best = S::set1(-INFINITY);
      for (int c = begin; c < end; c += S::kWidth) {
        S::F x = S::load(row + c);
        if (c < lo || c + S::kWidth > seen) {
          x = S::inside(x, S::set1(-INFINITY), c, lo, seen);
          S::store(row + c, x);
        }
        best = S::max(best, x);
      }
      const float top = Simd::largest(best);
      if (top > s.top[i]) rescale(s, i, top);
      const S::F base = S::set1(s.top[i] == -INFINITY ? 0.0f : s.top[i]);
      S::F sum = S::zero();
      for (int c = begin; c < end; c += S::kWidth) {
        const S::F x = exp2v(S::sub(S::load(row + c), base));
        sum = S::add(sum, x);
        S::store(row + c, x);
      }
      s.sum[i] += Simd::sum(sum);
    }
  }

  void rescale(const State& s, int i, float top) const {
    const float shrink = std::exp2(s.top[i] - top);
    s.top[i] = top;
    if (shrink == 0.0f && s.sum[i] == 0.0f) return;  // nothing accumulated yet
    s.sum[i] *= shrink;
    float* row = s.out + int64_t(i) * dim;
    const Simd::F factor = Simd::set1(shrink);
    for (int d = 0; d < dim; d += Simd::kWidth) Simd::store(row + d, Simd::mul(Simd::load(row + d), factor));
  }

  FFA_NOINLINE void accumulate(const State& s, const float* value_tile, int lo, int hi, int diagonal) const {
    for (int col = 0; col < dim; col += kCols) {
      const float* b = value_tile + int64_t(col) * bk + lo * kCols;
      by_rows(0, s.rows, [&](int i, auto m) FFA_LAMBDA {
        const int seen = std::min(hi, i + decltype(m)::value + diagonal);
        if (seen > lo)
          micro<decltype(m)::value, From::kScoreRows, true>(s.score + i * kScoreStride + lo, 0, b,
                                                            s.out + int64_t(i) * dim + col, dim, seen - lo);
      });
    }
  }

  void finish(const State& s) const {
    float* lse = p.lse + s.head * p.q_len + s.q0;
    for (int i = 0; i < s.rows; ++i) {
      const bool blind = s.sum[i] == 0.0f;
      write_row(p.out, p.dtype, s.q0 + i, s.head, dim, blind ? 0.0f : 1.0f / s.sum[i], s.out + int64_t(i) * dim);
      lse[i] = blind ? -INFINITY : kLn2 * (s.top[i] + std::log2(s.sum[i]));
    }
  }
};

}  // namespace
