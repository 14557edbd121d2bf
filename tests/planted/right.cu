// Kernels that use what CUDA offers to threads, and are right: indices, shuffles, votes,
// atomics, types, functions.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void where(int* y) {
    const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    y[block * blockDim.x * blockDim.y * blockDim.z + thread] +=
        threadIdx.x + 10 * threadIdx.y + 100 * threadIdx.z
        + 1000 * blockIdx.x + 10000 * blockIdx.y + 100000 * blockIdx.z;
}

extern "C" __global__ void note(int* at, int* y) {
    y[atomicAdd(at, 1)] = blockIdx.x * blockDim.x + threadIdx.x;
}

extern "C" __global__ void warps(float* y, int* votes) {
    const int i = threadIdx.x, lane = i % 32;
    float v = i;
    y[i] = __shfl_sync(~0u, v, 5);
    y[64 + i] = __shfl_up_sync(~0u, v, 3);
    y[128 + i] = __shfl_down_sync(~0u, v, 3);
    y[192 + i] = __shfl_xor_sync(~0u, v, 6);
    y[256 + i] = __shfl_down_sync(~0u, v, 1, 8);
    y[320 + i] = __shfl_sync(~0u, v, 2, 16);
    y[384 + i] = __shfl_up_sync(~0u, v, 1, 4);
    votes[i] = __ballot_sync(~0u, lane % 3 == 0);
    votes[64 + i] = __any_sync(~0u, i == 40) + 2 * __all_sync(~0u, i < 50);
    votes[128 + i] = __syncthreads_count(i < 7) + 100 * __syncthreads_or(i == 63)
        + 1000 * __syncthreads_and(i < 63);
    if (lane < 8) votes[192 + i] = __ballot_sync(0xffu, lane & 1);
}

extern "C" __global__ void atomics(int* y, float* f, double* d, unsigned* u) {
    const int i = threadIdx.x;
    atomicAdd(y, 1); atomicSub(y + 1, 2); atomicMax(y + 2, i); atomicMin(y + 3, i);
    atomicOr(y + 4, 1 << (i % 31)); atomicAdd(f, 0.5f); atomicAdd(d, 0.25);
    atomicInc(u, 9u); atomicCAS(y + 5, 0, 7); atomicExch(y + 6, 3);
}

template <typename T, int N>
__global__ void scaled(const T* x, T* y, T by, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * by + T(N);
}
extern "C" __global__ void halves(const __half* x, const __nv_bfloat16* y, float* z) {
    const int i = threadIdx.x;
    z[i] = __half2float(x[i]) + __bfloat162float(y[i]);
}
extern "C" __global__ void vectors(const float4* x, float* y) {
    const float4 v = x[threadIdx.x];
    y[threadIdx.x] = v.x + v.y + v.z + v.w;
}
extern "C" __global__ void functions(const float* x, float* y) {
    const int i = threadIdx.x;
    y[i] = rsqrtf(x[i]) + __expf(-x[i]) + fmaf(x[i], 2, 1) + max(0, i) + min(x[i], 2.0f)
        + __ldg(x + i) + __int_as_float(__float_as_int(x[i])) + __popc(i) + __clz(1);
}

extern "C" __global__ void copy(const float* x, float* y) {
    if (threadIdx.x == 0) y[blockIdx.x] = x[blockIdx.x];
}
