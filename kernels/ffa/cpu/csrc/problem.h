// The C ABI between problem.py (ctypes) and this library. Field order and types are mirrored there.
#pragma once
#include <cstdint>

enum FfaDtype : int32_t { kFloat32 = 0, kBfloat16 = 1 };
enum FfaKind : int32_t { kSlices = 0, kBlocks = 1 };

// A [tokens, heads, D] tensor whose last dimension is contiguous; strides in elements.
struct FfaTensor {
  void* data;
  int64_t token_stride;
  int64_t head_stride;
};

struct FfaProblem {
  int32_t dtype, kind, threads, head_dim;
  int32_t q_heads, k_heads;
  int32_t tile_q, tile_k;  // rows and keys of a compute tile; tile_k is a multiple of 32
  int64_t q_len, k_len;
  double scale;

  FfaTensor q, k, v, out;
  float* lse;  // [q_heads, q_len], natural logarithm

  FfaTensor dout, dq, dk, dv;

  // kind == kSlices: [n_slices, 5] of q begin, q end, k begin, k end, mask type (0 full, 1 causal)
  int64_t n_slices;
  const int64_t* slices;

  // kind == kBlocks: lists as in schedule.py; the transposed ones are read by the backward alone
  int64_t q_block, k_block, max_kv, max_q;
  const int32_t *kv_num, *kv_indices, *q_num, *q_indices;

  float* workspace;  // ffa_*_workspace() floats, 64-byte aligned, kept from prepare to the last phase
};
