// What the kernels share: how a value is stored, in what it is computed, how it streams.
//
//   storage, an element of an array    float  double  __half or        __half2 or
//                                                     __nv_bfloat16    __nv_bfloat162
//   state, what it is computed in      float  double  float            float2
//
// A thread that works on two neighbouring 16-bit channels reads them as one 32-bit element
// of a pair type: to the kernel that is an array [B, T, D/2] of pairs, and nothing else in
// its text changes.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// A value as it is computed with, and back. Conversions to 16 bits round to nearest even.
__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ double widen(double x) { return x; }
__device__ __forceinline__ float widen(__half x) { return __half2float(x); }
__device__ __forceinline__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float2 widen(__half2 x) { return __half22float2(x); }
__device__ __forceinline__ float2 widen(__nv_bfloat162 x) { return __bfloat1622float2(x); }
__device__ __forceinline__ float2 widen(float2 x) { return x; }
__device__ __forceinline__ bool widen(bool x) { return x; }

__device__ __forceinline__ void narrow(float x, float& y) { y = x; }
__device__ __forceinline__ void narrow(double x, double& y) { y = x; }
__device__ __forceinline__ void narrow(float x, __half& y) { y = __float2half_rn(x); }
__device__ __forceinline__ void narrow(float x, __nv_bfloat16& y) {
    y = __float2bfloat16_rn(x);
}
__device__ __forceinline__ void narrow(float2 x, float2& y) { y = x; }
__device__ __forceinline__ void narrow(float2 x, __half2& y) { y = __float22half2_rn(x); }
__device__ __forceinline__ void narrow(float2 x, __nv_bfloat162& y) {
    y = __float22bfloat162_rn(x);
}

template <typename Storage>
using State = decltype(widen(Storage()));
// where State<float> is float
// where State<double> is double
// where State<__half> is float
// where State<__nv_bfloat16> is float
// where State<__half2> is float2
// where State<__nv_bfloat162> is float2

// The arithmetic of a state. Products and sums that are one rounding are written as fma, so
// that they are the same on every compiler.
__device__ __forceinline__ float fused(float a, float x, float b) { return fmaf(a, x, b); }
__device__ __forceinline__ double fused(double a, double x, double b) {
    return fma(a, x, b);
}
__device__ __forceinline__ float2 fused(float2 a, float2 x, float2 b) {
    return make_float2(fmaf(a.x, x.x, b.x), fmaf(a.y, x.y, b.y));
}
// a x + b, or b alone where the carry is dropped: whatever it was, infinities too.
template <typename S>
__device__ __forceinline__ S advance(S a, S x, S b, bool cut) {
    return cut ? b : fused(a, x, b);
}
__device__ __forceinline__ float times(float a, float b) { return a * b; }
__device__ __forceinline__ double times(double a, double b) { return a * b; }
__device__ __forceinline__ float2 times(float2 a, float2 b) {
    return make_float2(a.x * b.x, a.y * b.y);
}
__device__ __forceinline__ float plus(float a, float b) { return a + b; }
__device__ __forceinline__ double plus(double a, double b) { return a + b; }
__device__ __forceinline__ float2 plus(float2 a, float2 b) {
    return make_float2(a.x + b.x, a.y + b.y);
}
template <typename S> __device__ __forceinline__ S every(float x) { return S(x); }
template <> __device__ __forceinline__ float2 every<float2>(float x) {
    return make_float2(x, x);
}

// Streaming loads and stores (evict first): every value passes once, so that keeping it in
// the L2 cache would only push out what others could use.
template <typename Storage>
__device__ __forceinline__ Storage load(const Storage* p) { return __ldcs(p); }
__device__ __forceinline__ bool load(const bool* p) { return *p; }  // read by all channels
template <typename Storage>
__device__ __forceinline__ void store(Storage* p, State<Storage> x) {
    Storage y;
    narrow(x, y);
    __stcs(p, y);
}

// One thread's values at one position after another, `stride` elements apart, on their way
// from memory: fill(u) asks for the value u positions on, [u] is what slot u holds. u must
// be a constant once loops are unrolled, or the slots leave the registers.
template <typename Storage, int U>
struct Source {
    const Storage* at;
    int stride;
    Storage slot[U];

    __device__ __forceinline__ Source(const Storage* first, int stride)
        : at(first), stride(stride) {}
    __device__ __forceinline__ void fill(int u) {
        slot[u] = load(at + (ptrdiff_t)stride * u);
    }
    __device__ __forceinline__ State<Storage> operator[](int u) const {
        return widen(slot[u]);
    }
    __device__ __forceinline__ void move() { at += (ptrdiff_t)stride * U; }
};

// And on their way to memory: put(u, x) stores x u positions on.
template <typename Storage, int U>
struct Sink {
    Storage* at;
    int stride;

    __device__ __forceinline__ Sink(Storage* first, int stride)
        : at(first), stride(stride) {}
    __device__ __forceinline__ void put(int u, State<Storage> x) {
        store(at + (ptrdiff_t)stride * u, x);
    }
    __device__ __forceinline__ void move() { at += (ptrdiff_t)stride * U; }
};

// Loads that are issued together, their addresses in registers of their own. One by one,
// each would wait until the one before has read its address; 32 at a time need so many
// registers that some of them spill.
#define TOGETHER 8

// use(u) at `steps` positions, one after another, in turns of U: each turn uses the values
// of U positions and asks for those of the next U, so that a thread has U of every source
// on their way from memory while it waits. What makes it so in machine code (sm_90):
// - The loop proper has no condition. A load with a condition around it goes to a register
//   in between and is waited for at once.
// - A warp counts its loads in six scoreboards, and all that are carried around the loop
//   share one: who waits for the oldest waits for all of them. So a turn takes the time of
//   its own instructions plus one full latency, and deep turns (large U) are what helps.
template <int U, typename Fill, typename Use, typename MoveIn, typename MoveOut>
__device__ __forceinline__ void roll(
    int steps, Fill fill, Use use, MoveIn move_in, MoveOut move_out) {
#pragma unroll
    for (int u = 0; u < U; ++u)
        if (u < steps) fill(u);
    int left = steps;
#pragma unroll 1
    for (; left >= 2 * U; left -= U) {
        move_in();
#pragma unroll
        for (int first = 0; first < U; first += TOGETHER) {
#pragma unroll
            for (int u = first; u < first + TOGETHER; ++u) use(u);
#pragma unroll
            for (int u = first; u < first + TOGETHER; ++u) fill(u);
        }
        move_out();
    }
#pragma unroll 1
    for (; left > 0; left -= U) {
        move_in();
#pragma unroll
        for (int u = 0; u < U; ++u) {
            if (u < left) use(u);
            if (u + U < left) fill(u);
        }
        move_out();
    }
}
