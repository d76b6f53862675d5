// Around the attention backward: the row sums before it and the cast of dQ after it. Plain C ABI, loaded by ctypes.
// Both only move memory: 16-byte accesses, neighbouring threads on neighbouring addresses.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

// Everything inside is `static`: nvcc derives an anonymous namespace's name from the source's path, and then the same
// content built in another folder would be another library.

static constexpr int kThreads = 256;
static constexpr float kLog2e = 1.4426950408889634f;

static __device__ float2 widen(__nv_bfloat162 x) { return __bfloat1622float2(x); }
static __device__ float2 widen(__half2 x) { return __half22float2(x); }

static __device__ __nv_bfloat162 narrow(float x, float y, __nv_bfloat162) { return __floats2bfloat162_rn(x, y); }
static __device__ __half2 narrow(float x, float y, __half2) { return __floats2half2_rn(x, y); }

// delta[h, i] = sum_d out[i, h, d] * dout[i, h, d];  lse2 = lse * log2(e), and +inf where a row sees nothing (lse = -inf).
// D / 8 threads per row, 16 bytes each; a block takes consecutive tokens of one head, so that delta and lse2 coalesce.
template <typename Pair, int D>
static __global__ void preprocess(const uint4* out, const uint4* dout, const float* lse, float* delta, float* lse2,
                                  int tokens, int heads) {
    constexpr int kLanes = D / 8, kRows = kThreads / kLanes;
    const int lane = threadIdx.x % kLanes, head = blockIdx.y;
    const int token = blockIdx.x * kRows + threadIdx.x / kLanes;
    float sum = 0.0f;
    if (token < tokens) {
        const int64_t at = (static_cast<int64_t>(token) * heads + head) * kLanes + lane;
        const uint4 a = out[at], b = dout[at];
        const Pair* x = reinterpret_cast<const Pair*>(&a);
        const Pair* y = reinterpret_cast<const Pair*>(&b);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 u = widen(x[i]), w = widen(y[i]);
            sum += u.x * w.x + u.y * w.y;
        }
    }
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (token < tokens && lane == 0) {
        const int64_t at = static_cast<int64_t>(head) * tokens + token;
        const float value = lse[at];
        delta[at] = sum;
        lse2[at] = value == -INFINITY ? INFINITY : value * kLog2e;
    }
}

// dq[i, h, d] = scale * sum[h, i, d], in the inputs' 16-bit type; 8 elements per thread. The sum's columns are in the
// order of triton_bwd.py's summed_at: of each 32, this thread's pairs are eight columns apart.
template <typename Pair, int D>
static __global__ void postprocess(const float2* sum, uint4* dq, float scale, int tokens, int heads) {
    constexpr int kLanes = D / 8, kRows = kThreads / kLanes;
    const int lane = threadIdx.x % kLanes, head = blockIdx.y;
    const int token = blockIdx.x * kRows + threadIdx.x / kLanes;
    if (token >= tokens) return;
    const float2* from = sum + (static_cast<int64_t>(head) * tokens + token) * (D / 2) + lane / 4 * 16 + lane % 4;
    uint4 packed;
    Pair* p = reinterpret_cast<Pair*>(&packed);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 a = from[4 * i];
        p[i] = narrow(a.x * scale, a.y * scale, Pair());
    }
    dq[(static_cast<int64_t>(token) * heads + head) * kLanes + lane] = packed;
}

template <typename Pair, int D>
static void launch_preprocess(cudaStream_t stream, const void* out, const void* dout, const float* lse, float* delta,
                       float* lse2, int tokens, int heads) {
    constexpr int kRows = kThreads / (D / 8);
    const dim3 grid((tokens + kRows - 1) / kRows, heads);
    preprocess<Pair, D><<<grid, kThreads, 0, stream>>>(static_cast<const uint4*>(out), static_cast<const uint4*>(dout),
                                                       lse, delta, lse2, tokens, heads);
}

template <typename Pair, int D>
static void launch_postprocess(cudaStream_t stream, const float* sum, void* dq, float scale, int tokens, int heads) {
    constexpr int kRows = kThreads / (D / 8);
    const dim3 grid((tokens + kRows - 1) / kRows, heads);
    postprocess<Pair, D><<<grid, kThreads, 0, stream>>>(reinterpret_cast<const float2*>(sum), static_cast<uint4*>(dq),
                                                        scale, tokens, heads);
}

// out, dout: [tokens, heads, dim], 16-byte aligned; lse, delta, lse2: float32 [heads, tokens]. dim: 64 or 128; half: 1
// for float16, 0 for bfloat16. Returns the launch's cudaError_t, or cudaErrorInvalidValue for another dim.
extern "C" int ffa_bwd_preprocess(void* stream, const void* out, const void* dout, const float* lse, float* delta,
                                  float* lse2, int tokens, int heads, int dim, int half) {
    const auto s = static_cast<cudaStream_t>(stream);
    if (dim == 128 && half) launch_preprocess<__half2, 128>(s, out, dout, lse, delta, lse2, tokens, heads);
    else if (dim == 128) launch_preprocess<__nv_bfloat162, 128>(s, out, dout, lse, delta, lse2, tokens, heads);
    else if (dim == 64 && half) launch_preprocess<__half2, 64>(s, out, dout, lse, delta, lse2, tokens, heads);
    else if (dim == 64) launch_preprocess<__nv_bfloat162, 64>(s, out, dout, lse, delta, lse2, tokens, heads);
    else return cudaErrorInvalidValue;
    return cudaGetLastError();
}

// sum: float32 [heads, tokens, dim], dq: 16-bit [tokens, heads, dim], both 16-byte aligned; the rest as above.
extern "C" int ffa_bwd_postprocess(void* stream, const float* sum, void* dq, float scale, int tokens, int heads, int dim,
                                   int half) {
    const auto s = static_cast<cudaStream_t>(stream);
    if (dim == 128 && half) launch_postprocess<__half2, 128>(s, sum, dq, scale, tokens, heads);
    else if (dim == 128) launch_postprocess<__nv_bfloat162, 128>(s, sum, dq, scale, tokens, heads);
    else if (dim == 64 && half) launch_postprocess<__half2, 64>(s, sum, dq, scale, tokens, heads);
    else if (dim == 64) launch_postprocess<__nv_bfloat162, 64>(s, sum, dq, scale, tokens, heads);
    else return cudaErrorInvalidValue;
    return cudaGetLastError();
}
