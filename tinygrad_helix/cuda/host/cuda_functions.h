// The functions and names that CUDA gives a kernel, on a CPU (see cuda_on_cpu.h).
#pragma once

#define threadIdx (::host::self->index)
#define blockIdx (::host::block_index)
#define blockDim (::host::block)
#define gridDim (::host::grid)
#define warpSize 32

#define HOST_HERE (::host::Where{__FILE__, __LINE__})
#define __syncthreads() ::host::wait(::host::State::at_block, 0, HOST_HERE)
#define __syncthreads_count(p) ::host::block_vote(p, HOST_HERE)
#define __syncthreads_or(p) (::host::block_vote(p, HOST_HERE) != 0)
#define __syncthreads_and(p) (::host::block_vote(p, HOST_HERE) == int(::host::threads.size()))
#define __syncwarp(...) ::host::sync_warp(HOST_HERE __VA_OPT__(, ) __VA_ARGS__)
#define __ballot_sync(mask, p) ::host::ballot(mask, p, HOST_HERE)
#define __any_sync(mask, p) (::host::ballot(mask, p, HOST_HERE) != 0)
#define __all_sync(mask, p) ::host::all(mask, p, HOST_HERE)
#define __shfl_sync(...) ::host::shuffle<::host::Shuffle::idx>(HOST_HERE, __VA_ARGS__)
#define __shfl_up_sync(...) ::host::shuffle<::host::Shuffle::up>(HOST_HERE, __VA_ARGS__)
#define __shfl_down_sync(...) ::host::shuffle<::host::Shuffle::down>(HOST_HERE, __VA_ARGS__)
#define __shfl_xor_sync(...) ::host::shuffle<::host::Shuffle::exclusive>(HOST_HERE, __VA_ARGS__)

namespace host {

inline void sync_warp(Where where, unsigned mask = ~0u) { wait(State::at_warp, mask, where); }

inline void bring(uint64_t value) {
    Quiet quiet;
    self->value = value;
}

inline int block_vote(bool p, Where where) {
    bring(p);
    wait(State::at_block, 0, where);
    Quiet quiet;
    int count = 0;
    for (size_t i = 0; i < threads.size(); ++i) count += slots[i] & 1;
    return count;
}

inline unsigned ballot(unsigned mask, bool p, Where where) {
    Thread* me = self;
    bring(p);
    wait(State::at_warp, mask, where);
    Quiet quiet;
    unsigned votes = 0;
    for (int lane = 0; lane < 32; ++lane) {
        const size_t i = me->warp * 32 + lane;
        if (mask >> lane & 1 && i < threads.size()) votes |= unsigned(slots[i] & 1) << lane;
    }
    return votes;
}

inline bool all(unsigned mask, bool p, Where where) { return !ballot(mask, !p, where); }

enum class Shuffle { idx, up, down, exclusive };

// The lane that a shuffle reads, in segments of `width` lanes; its own where that lies
// outside of them, as the device does it.
template <Shuffle kind> int source_lane(int lane, int by, int width) {
    const int first = lane & ~(width - 1), last = first + width - 1;
    if (kind == Shuffle::idx) return first + (by & (width - 1));
    if (kind == Shuffle::up) return lane - by < first ? lane : lane - by;
    if (kind == Shuffle::down) return lane + by > last ? lane : lane + by;
    return (lane ^ by) > last ? lane : lane ^ by;
}

template <Shuffle kind, class T>
T shuffle(Where where, unsigned mask, T value, int by, int width = 32) {
    static_assert(sizeof(T) <= sizeof(uint64_t), "a shuffle moves at most 8 bytes");
    Thread* me = self;
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    bring(bits);
    wait(State::at_warp, mask, where);
    Quiet quiet;
    const int source = source_lane<kind>(me->lane, by, width);
    if (!(mask >> source & 1)) fail("a shuffle reads a lane that is not in its mask", *me);
    T result;  // of a lane past the end of the block: bits that are NaN
    std::memcpy(&result, &slots[me->warp * 32 + source], sizeof result);
    return result;
}

// Atomics order nothing but themselves, as on the device: TSan sees them as relaxed.
template <class T, class F> T update(T* at, F next) {
    T old, wanted;
    __atomic_load(at, &old, __ATOMIC_RELAXED);
    do wanted = next(old);
    while (!__atomic_compare_exchange(at, &old, &wanted, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}

template <class To, class From> To bits(From x) {
    static_assert(sizeof(To) == sizeof(From));
    To y;
    std::memcpy(&y, &x, sizeof y);
    return y;
}
template <class T> using Same = std::common_type_t<T>;  // a parameter that deduces nothing

}  // namespace host

#define HOST_ATOMIC(name, next)                                                      \
    template <class T> T name(T* at, host::Same<T> v) {                              \
        return host::update(at, [v](T old) -> T { (void)old; return next; });        \
    }
HOST_ATOMIC(atomicAdd, old + v)
HOST_ATOMIC(atomicSub, old - v)
HOST_ATOMIC(atomicExch, v)
HOST_ATOMIC(atomicMin, old < v ? old : v)
HOST_ATOMIC(atomicMax, old > v ? old : v)
HOST_ATOMIC(atomicAnd, old & v)
HOST_ATOMIC(atomicOr, old | v)
HOST_ATOMIC(atomicXor, old ^ v)
HOST_ATOMIC(atomicInc, old >= v ? 0 : old + 1)
HOST_ATOMIC(atomicDec, old == 0 || old > v ? v : old - 1)
#undef HOST_ATOMIC
template <class T> T atomicCAS(T* at, host::Same<T> expected, host::Same<T> v) {
    return host::update(at, [=](T old) { return old == expected ? T(v) : old; });
}

// Loads and stores with a hint for the caches.
#define HOST_LOAD(name) \
    template <class T> T name(const T* at) { return *at; }
HOST_LOAD(__ldg) HOST_LOAD(__ldca) HOST_LOAD(__ldcg) HOST_LOAD(__ldcs) HOST_LOAD(__ldcv) HOST_LOAD(__ldlu)
#undef HOST_LOAD
#define HOST_STORE(name) \
    template <class T> void name(T* at, host::Same<T> v) { *at = v; }
HOST_STORE(__stwb) HOST_STORE(__stcg) HOST_STORE(__stcs) HOST_STORE(__stwt)
#undef HOST_STORE

inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned) {}
inline void __trap() { __builtin_trap(); }

// Arithmetic with a rounding or a speed in its name. The fast ones are exact here: tests of
// a kernel that uses them need a tolerance on the device that they do not need here.
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return exp10f(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline float __saturatef(float x) { return x < 0 || x != x ? 0.0f : x > 1 ? 1.0f : x; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline void sincospif(float x, float* s, float* c) { *s = sinf(float(M_PI) * x), *c = cosf(float(M_PI) * x); }

inline int __float_as_int(float x) { return host::bits<int>(x); }
inline unsigned __float_as_uint(float x) { return host::bits<unsigned>(x); }
inline float __int_as_float(int x) { return host::bits<float>(x); }
inline float __uint_as_float(unsigned x) { return host::bits<float>(x); }
inline long long __double_as_longlong(double x) { return host::bits<long long>(x); }
inline double __longlong_as_double(long long x) { return host::bits<double>(x); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
    unsigned y = 0;
    for (int i = 0; i < 32; ++i) y |= (x >> i & 1) << (31 - i);
    return y;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return (uint64_t(a) * b) >> 32; }
inline int __mulhi(int a, int b) { return (int64_t(a) * b) >> 32; }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}

template <class A, class B, class = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
std::common_type_t<A, B> min(A a, B b) { return b < a ? b : a; }
template <class A, class B, class = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
std::common_type_t<A, B> max(A a, B b) { return a < b ? b : a; }
