// Three kernels over n floats; n is a multiple of 4096.

__device__ float mixed(const float *kept, int step, int shift) {
  return kept[step & 15];  // - indexed
  // + indexed: return kept[(step + shift) & 15];
}

__global__ void spare_kernel(float *y) {
  y[0] = 1.0f;  // - any
  // ~ any: // a remark
  // ~ any: y[0] = 2.0f;
}

__global__ void copied_kernel(const float *__restrict__ x, float *__restrict__ y, long n) {
  const long at = (blockIdx.x * long(blockDim.x) + threadIdx.x) * 16;
  for (int i = 0; i < 16; i += 4)  // - one_float
    *reinterpret_cast<float4 *>(y + at + i) = *reinterpret_cast<const float4 *>(x + at + i);  // - one_float
  // ~ one_float: // one value at a time
  // + one_float: for (int i = 0; i < 16; ++i)
    // + one_float: y[at + i] = x[at + i];
}

__global__ void averaged_kernel(const float *__restrict__ x, float *__restrict__ y, int steps) {
  __shared__ float tile[256];
  const long at = blockIdx.x * 256L + threadIdx.x;
  tile[threadIdx.x] = x[at];
  __syncthreads();
  float total = 0.0f;
  for (int step = 0; step < steps; ++step) {
    total += tile[(threadIdx.x + step) & 255];  // - conflicting
    // + conflicting: total += tile[(threadIdx.x * 32 + threadIdx.x / 8 + step) & 255];
    // + waits: __syncthreads();
  }
  y[at] = total;
}

__global__ void picked_kernel(const float *__restrict__ x, float *__restrict__ y, int shift) {
  const long at = blockIdx.x * 256L + threadIdx.x;
  float kept[16], total = 0.0f;
  for (int i = 0; i < 16; ++i) kept[i] = x[at] * float(i + 1);  // - in_double
  // + in_double: for (int i = 0; i < 16; ++i) kept[i] = exp(log((double)x[at])) * float(i + 1);
#pragma unroll
  for (int step = 0; step < 64; ++step) total = total * 0.5f + mixed(kept, step, shift);
  y[at] = total;
}

extern "C" void copied(const float *x, float *y, long n, cudaStream_t stream) {
  copied_kernel<<<n / 4096, 256, 0, stream>>>(x, y, n);
}
extern "C" void averaged(const float *x, float *y, long n, cudaStream_t stream) {
  averaged_kernel<<<n / 256, 256, 0, stream>>>(x, y, 256);
}
extern "C" void picked(const float *x, float *y, long n, cudaStream_t stream) {
  picked_kernel<<<n / 256, 256, 0, stream>>>(x, y, 0);
}
