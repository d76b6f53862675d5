// Blocked attention backward. A unit of work is one key head and every C-th key tile, for all query heads of that key
// head: dK and dV of a tile stay in cache and are written once; dQ goes into the unit's own float32 buffer, and the C
// buffers are added up in order afterwards. So every sum has one order, whatever thread does it.
#pragma once
#include "forward.h"

namespace {

class Backward {
 public:
  explicit Backward(const FfaProblem& problem)
      : p(problem), bq(p.tile_q), bk(p.tile_k), dim(p.head_dim), group(p.q_heads / p.k_heads) {
    key_tiles = tiles(p.k_len, bk);
    query_tiles = tiles(p.q_len, bq);
    chunks = chunk_count();
    const int64_t packed_k = p.k_heads * key_tiles * bk * dim, packed_q = p.q_heads * query_tiles * bq * dim;
    float* next = p.workspace;
    const auto take = [&](int64_t floats) {
      float* here = next;
      next += (floats + 15) / 16 * 16;
      return here;
    };
    key_columns = take(packed_k);
    key_rows = take(packed_k);
    value_columns = take(packed_k);
    queries = take(packed_q);
    douts = take(packed_q);
    delta = take(p.q_heads * p.q_len);
    log2_sum = take(p.q_heads * p.q_len);
    dq_parts = take(chunks * p.q_heads * p.q_len * dim);
    scratch = take(p.threads * scratch_floats());
    floats = next - p.workspace;
  }

  int64_t workspace() const { return floats; }

  void prepare() const {
    parallel_for(p.threads, p.k_heads * key_tiles, [&](int64_t i, int) {
      const int64_t head = i / key_tiles, begin = i % key_tiles * bk, end = std::min(begin + bk, p.k_len);
      const int64_t at = i * bk * dim;
      pack_column_panels(p.k, p, begin, end, bk, head, key_columns + at);
      pack_row_panels(p.k, p, begin, end, bk, head, 1.0f, key_rows + at);
      pack_column_panels(p.v, p, begin, end, bk, head, value_columns + at);
    });
    parallel_for(p.threads, p.q_heads * query_tiles, [&](int64_t i, int) {
      const int64_t head = i / query_tiles, begin = i % query_tiles * bq, end = std::min(begin + bq, p.q_len);
      pack_row_panels(p.q, p, begin, end, bq, head, float(p.scale) * kLog2e, queries + i * bq * dim);
      pack_row_panels(p.dout, p, begin, end, bq, head, 1.0f, douts + i * bq * dim);
    });
  }

  // delta = rowsum(out * dout): the softmax's own share of the gradient (FlashAttention-2, arXiv 2307.08691, eq. 4).
  void preprocess() const {
    parallel_for(p.threads, p.q_heads * query_tiles, [&](int64_t i, int) {
      const int64_t head = i / query_tiles, begin = i % query_tiles * bq, end = std::min(begin + bq, p.q_len);
      alignas(64) float o[128], g[128];
      for (int64_t row = begin; row < end; ++row) {
        read_row(p.out, p.dtype, row, head, dim, 1.0f, o);
        read_row(p.dout, p.dtype, row, head, dim, 1.0f, g);
        Simd::F sum = Simd::zero();
        for (int d = 0; d < dim; d += Simd::kWidth) sum = Simd::fma(Simd::load(o + d), Simd::load(g + d), sum);
        delta[head * p.q_len + row] = Simd::sum(sum);
        log2_sum[head * p.q_len + row] = kLog2e * p.lse[head * p.q_len + row];
      }
    });
  }

  void run() const {
    parallel_for(p.threads, p.k_heads * chunks, [&](int64_t i, int thread) {
      const int64_t head = i / chunks, chunk = i % chunks;
      float* dq = dq_parts + (chunk * p.q_heads + head * group) * p.q_len * dim;
      std::memset(dq, 0, group * p.q_len * dim * sizeof(float));
      for (int64_t tile = chunk; tile < key_tiles; tile += chunks) key_tile(head, tile, dq, thread);
    });
  }

  void postprocess() const {
    const int64_t part = p.q_heads * p.q_len * dim;
    parallel_for(p.threads, p.q_heads * query_tiles, [&](int64_t i, int) {
      const int64_t head = i / query_tiles, begin = i % query_tiles * bq, end = std::min(begin + bq, p.q_len);
      for (int64_t row = begin; row < end; ++row) {
        float* first = dq_parts + (head * p.q_len + row) * dim;
        for (int64_t c = 1; c < chunks; ++c)
          for (int d = 0; d < dim; ++d) first[d] += first[c * part + d];
        write_row(p.dq, p.dtype, row, head, dim, float(p.scale), first);
      }
    });
  }

 private:
  const FfaProblem& p;
  const int bq, bk, dim;
  const int64_t group;
  int64_t key_tiles, query_tiles, chunks, floats;
  float *key_columns, *key_rows, *value_columns, *queries, *douts, *delta, *log2_sum, *dq_parts, *scratch;

  int64_t scratch_floats() const { return 2 * int64_t(bk) * dim + 2 * int64_t(bq) * kScoreStride + 1024; }

  // With enough key heads one unit per head keeps all threads busy; otherwise about three units a thread.
  int64_t chunk_count() const {
    if (p.k_heads % p.threads == 0 || p.k_heads >= 4 * p.threads) return 1;
    return std::max(int64_t(1), std::min(tiles(p.k_len, bk), tiles(3 * p.threads, p.k_heads)));
  }

  // One key tile; its offset in the packed keys and values; [bk][dim] twice and [bq][kScoreStride] twice.
  struct State {
    int64_t key_head, base, at;
    float *dk = nullptr, *dv = nullptr, *prob = nullptr, *dscore = nullptr;
  };

  // Rows [r0, r1) of a query tile against columns [lo, hi) of a key tile; row i sees columns up to i + diagonal.
  struct Box {
    int r0, r1, lo, hi, diagonal;
    int seen(int row) const { return std::min(hi, row + diagonal + 1); }  // columns [lo, seen) are visible
  };

  void key_tile(int64_t head, int64_t tile, float* dq, int thread) const {
    float* memory = scratch + thread * scratch_floats();
    State s{head, tile * bk, (head * key_tiles + tile) * bk * dim};
    s.dk = memory;
    s.dv = s.dk + int64_t(bk) * dim;
    s.prob = s.dv + int64_t(bk) * dim;
    s.dscore = s.prob + int64_t(bq) * kScoreStride;
    std::memset(s.dk, 0, 2 * int64_t(bk) * dim * sizeof(float));
    const int64_t end = std::min(s.base + bk, p.k_len);
    if (p.kind == kSlices) {
      for (int64_t n = 0; n < p.n_slices; ++n) {
        const int64_t* slice = p.slices + 5 * n;
        if (slice[2] < end && slice[3] > s.base) rows(s, slice[0], slice[1], slice_segment(slice), dq);
      }
    } else {
      listed_rows(s, end, dq);
    }
    for (int64_t r = s.base; r < end; ++r) {
      // The packed queries carry scale * log2(e): what is left of the scale in dK is ln(2).
      write_row(p.dk, p.dtype, r, head, dim, kLn2, s.dk + (r - s.base) * dim);
      write_row(p.dv, p.dtype, r, head, dim, 1.0f, s.dv + (r - s.base) * dim);
    }
  }

  void listed_rows(const State& s, int64_t end, float* dq) const {
    const int64_t blocks = tiles(p.k_len, p.k_block);
    for (int64_t block = s.base / p.k_block; block * p.k_block < end; ++block) {
      const int64_t list = s.key_head * blocks + block;
      const Segment keys{block * p.k_block, std::min((block + 1) * p.k_block, p.k_len), kNoDiagonal};
      for (int32_t n = 0; n < p.q_num[list]; ++n) {
        const int64_t q0 = p.q_indices[list * p.max_q + n] * p.q_block;
        rows(s, q0, std::min(q0 + p.q_block, p.q_len), keys, dq);
      }
    }
  }

  // All query tiles that hold rows of [q0, q1) and see keys of this tile, for every query head of the group.
  void rows(const State& s, int64_t q0, int64_t q1, const Segment& seg, float* dq) const {
    const int lo = int(std::max(seg.k0 - s.base, int64_t(0))), hi = int(std::min(seg.k1 - s.base, int64_t(bk)));
    q0 = std::max(q0, s.base + lo - seg.diagonal);
    for (int64_t tile = q0 / bq; tile * bq < q1; ++tile) {
      const int64_t base = tile * bq;
      Box box{int(std::max(q0 - base, int64_t(0))), int(std::min(q1 - base, int64_t(bq))), lo, hi, 0};
      box.diagonal = int(std::min(base + seg.diagonal - s.base, int64_t(kMaxTileK)));
      box.hi = box.seen(box.r1 - 1);
      for (int64_t g = 0; g < group; ++g) pair(s, s.key_head * group + g, tile, box, dq + g * p.q_len * dim);
    }
  }

  void pair(const State& s, int64_t head, int64_t tile, const Box& box, float* dq) const {
    const int64_t at = (head * query_tiles + tile) * bq * dim;
    products(queries + at, key_columns + s.at, s.prob, box);
    products(douts + at, value_columns + s.at, s.dscore, box);
    softmax_gradient(s, head * p.q_len + tile * bq, box);
    gather(s.prob, douts + at, s.dv, box);
    gather(s.dscore, queries + at, s.dk, box);
    scatter(s, dq + tile * bq * dim, box);
  }

  // to[r, c] = rows of A times columns of B, over D; entries above the diagonal may be left as they were.
  FFA_NOINLINE void products(const float* a, const float* columns, float* to, const Box& box) const {
    for (int col = box.lo / kCols * kCols; col < box.hi; col += kCols) {
      const float* b = columns + int64_t(col) * dim;
      const int seen = box.r1 - std::min(std::max(col - box.diagonal, box.r0), box.r1);
      const int first = std::max(box.r0, box.r1 - (seen + Simd::kRows - 1) / Simd::kRows * Simd::kRows);
      by_rows(first, box.r1, [&](int i, auto m) FFA_LAMBDA {
        micro<decltype(m)::value, From::kPanels, false>(a + i * kCols, int64_t(bq) * kCols, b,
                                                        to + i * kScoreStride + col, kScoreStride, dim);
      });
    }
  }

  // prob = 2^(score - log2 sum), dscore = prob * (dprob - delta), both 0 where a row sees nothing.
  FFA_NOINLINE void softmax_gradient(const State& s, int64_t row, const Box& box) const {
    using S = Simd;
    for (int i = box.r0; i < box.r1; ++i) {
      float *prob = s.prob + i * kScoreStride, *dscore = s.dscore + i * kScoreStride;
      const S::F base = S::set1(log2_sum[row + i]), shift = S::set1(delta[row + i]);
      const int seen = box.seen(i);
      for (int c = box.lo / S::kWidth * S::kWidth; c < box.hi; c += S::kWidth) {
        S::F x = S::zero(), y = S::zero();
        if (c < seen) {
          x = exp2v(S::sub(S::load(prob + c), base));
          y = S::mul(x, S::sub(S::load(dscore + c), shift));
          if (c < box.lo || c + S::kWidth > seen) {
            x = S::inside(x, S::zero(), c, box.lo, seen);
            y = S::inside(y, S::zero(), c, box.lo, seen);
          }
        }
        S::store(prob + c, x);
        S::store(dscore + c, y);
      }
    }
  }

  // to[c, :] += sum over rows of weight[r, c] * from[r, :]
  FFA_NOINLINE void gather(const float* weight, const float* from, float* to, const Box& box) const {
    for (int col = 0; col < dim; col += kCols) {
      const float* panel = from + int64_t(col) * bq;
      by_rows(box.lo, box.hi, [&](int c, auto m) FFA_LAMBDA {
        const int first = std::max(box.r0, c - box.diagonal);
        const float* a = weight + first * kScoreStride + c;
        micro<decltype(m)::value, From::kScoreColumns, true>(a, 0, panel + first * kCols,
                                                             to + int64_t(c) * dim + col, dim, box.r1 - first);
      });
    }
  }

  // dq[r, :] += sum over keys of dscore[r, c] * key[c, :]
  FFA_NOINLINE void scatter(const State& s, float* dq, const Box& box) const {
    for (int col = 0; col < dim; col += kCols) {
      const float* panel = key_rows + s.at + int64_t(col) * bk + box.lo * kCols;
      by_rows(box.r0, box.r1, [&](int i, auto m) FFA_LAMBDA {
        const float* a = s.dscore + i * kScoreStride + box.lo;
        micro<decltype(m)::value, From::kScoreRows, true>(a, 0, panel, dq + int64_t(i) * dim + col, dim,
                                                          box.seen(i + decltype(m)::value - 1) - box.lo);
      });
    }
  }
};

}  // namespace
