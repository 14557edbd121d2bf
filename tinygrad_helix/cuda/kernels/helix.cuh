// What the kernels of the HELIX block share: the sigmoid, and rows dealt out to lanes.
#pragma once
#include "common.cuh"

// Threads of a block. A block shares nothing (but in the sums of helix_weights.cu); 128 let
// a multiprocessor hold 16 of them at 32 registers a thread.
#define BLOCK 128

__device__ __forceinline__ float exponential(float x) { return expf(x); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }
__device__ __forceinline__ float root(float x) { return sqrtf(x); }
__device__ __forceinline__ double root(double x) { return sqrt(x); }

// 1 / (1 + e^(-z)). Where e^(-z) overflows, 1 / infinity = 0 is the right value.
template <typename S>
__device__ __forceinline__ S sigmoid(S z) { return 1 / (1 + exponential(-z)); }

// silu'(z) = s + silu(z) (1 - s), from s = sigmoid(z) and silu = z s.
template <typename S>
__device__ __forceinline__ S silu_slope(S s, S silu) { return fused(silu, 1 - s, s); }

// x as it will be read again once it is stored.
template <typename Storage>
__device__ __forceinline__ State<Storage> rounded(State<Storage> x) {
    Storage y;
    narrow(x, y);
    return widen(y);
}

// Row r of [N, D] belongs to `lanes` neighbouring threads, a power of two up to a warp, and
// each takes every lanes-th element. So wide rows have a warp, whose loads join, and narrow
// ones (D < 32) share it, and no lane is idle. Threads past the last row stay, since a
// warp's sums want all of its lanes.
struct Row {
    long long at;  // of its first element
    long long index;
    int lane, lanes;
    bool live;

    __device__ __forceinline__ Row(long long N, int D, int lanes_)
        : index(((long long)blockIdx.x * BLOCK + threadIdx.x) / lanes_),
          lane(threadIdx.x % lanes_), lanes(lanes_), live(index < N) {
        at = index * D;
    }
    template <typename Use>
    __device__ __forceinline__ void each(int D, Use use) const {
        if (live)
            for (int d = lane; d < D; d += lanes) use(at + d, d);
    }
    // The sum over the row's lanes, in each of them; always by the same tree.
    template <typename S>
    __device__ __forceinline__ S sum(S x) const {
        for (int o = lanes / 2; o > 0; o /= 2) x += __shfl_xor_sync(0xffffffffu, x, o);
        return x;
    }
};
