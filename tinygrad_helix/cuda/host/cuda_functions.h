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
#define __match_any_sync(mask, v) ::host::match_any(mask, v, HOST_HERE)
#define __reduce_add_sync(mask, v) ::host::reduce(mask, v, HOST_HERE, [](auto a, auto b) { return a + b; })
#define __reduce_min_sync(mask, v) ::host::reduce(mask, v, HOST_HERE, [](auto a, auto b) { return b < a ? b : a; })
#define __reduce_max_sync(mask, v) ::host::reduce(mask, v, HOST_HERE, [](auto a, auto b) { return a < b ? b : a; })
#define __reduce_and_sync(mask, v) ::host::reduce(mask, v, HOST_HERE, [](auto a, auto b) { return a & b; })
#define __reduce_or_sync(mask, v) ::host::reduce(mask, v, HOST_HERE, [](auto a, auto b) { return a | b; })
#define __reduce_xor_sync(mask, v) ::host::reduce(mask, v, HOST_HERE, [](auto a, auto b) { return a ^ b; })
#undef assert
#define assert(p) ((p) ? void() : ::host::assertion("assert(" #p ") fails", HOST_HERE))
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

// use(v) for what each lane of the mask brought.
template <class T, class F> void each_brought(unsigned mask, T value, Where where, F use) {
    Thread* me = self;
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    bring(bits);
    wait(State::at_warp, mask, where);
    Quiet quiet;
    for (int lane = 0; lane < 32; ++lane) {
        const size_t i = me->warp * 32 + lane;
        if (!(mask >> lane & 1) || i >= threads.size()) continue;
        T other;
        std::memcpy(&other, &slots[i], sizeof other);
        use(lane, other);
    }
}

template <class T> unsigned match_any(unsigned mask, T value, Where where) {
    unsigned lanes = 0;
    each_brought(mask, value, where, [&](int lane, T other) { lanes |= unsigned(other == value) << lane; });
    return lanes;
}

template <class T, class F> T reduce(unsigned mask, T value, Where where, F join) {
    static_assert(std::is_same_v<T, int> || std::is_same_v<T, unsigned>, "of int or unsigned");
    bool first = true;
    T result = value;
    each_brought(mask, value, where, [&](int, T other) {
        result = first ? other : T(join(result, other));
        first = false;
    });
    return result;
}

// The thread stays where its assertion fails, and the launch ends with that.
inline void assertion(const char* what, Where where) {
    self->where = where;
    fail(what, *self);
    wait(State::at_warp, 1u << self->lane, where);
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

inline float2 atomicAdd(float2* at, float2 v) { return {atomicAdd(&at->x, v.x), atomicAdd(&at->y, v.y)}; }
inline float4 atomicAdd(float4* at, float4 v) {
    return {atomicAdd(&at->x, v.x), atomicAdd(&at->y, v.y), atomicAdd(&at->z, v.z), atomicAdd(&at->w, v.w)};
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

inline float sinpif(float x) { return float(sin(M_PI * fmod(double(x), 2))); }
inline float cospif(float x) { return float(cos(M_PI * fmod(double(x), 2))); }
inline double sinpi(double x) { return sin(M_PI * fmod(x, 2)); }
inline double cospi(double x) { return cos(M_PI * fmod(x, 2)); }
inline float rcbrtf(float x) { return 1 / cbrtf(x); }
inline double rcbrt(double x) { return 1 / cbrt(x); }
inline float rhypotf(float x, float y) { return 1 / hypotf(x, y); }
inline float norm3df(float x, float y, float z) { return hypotf(hypotf(x, y), z); }
inline double norm3d(double x, double y, double z) { return hypot(hypot(x, y), z); }
inline float rnorm3df(float x, float y, float z) { return 1 / norm3df(x, y, z); }
inline float normcdff(float x) { return float(erfc(-M_SQRT1_2 * x) / 2); }
inline double normcdf(double x) { return erfc(-M_SQRT1_2 * x) / 2; }
inline float fdividef(float a, float b) { return a / b; }
inline void __sincosf(float x, float* s, float* c) { *s = sinf(x), *c = cosf(x); }
inline double __dsqrt_rn(double x) { return sqrt(x); }
inline double __drcp_rn(double x) { return 1 / x; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __dsub_rn(double a, double b) { return a - b; }

// Functions of 16-bit floats, computed in float32.
#define HOST_HALF(name, of)                                                                         \
    inline __half h##name(__half h) { const float x = __half2float(h); return __float2half_rn(of); } \
    inline __nv_bfloat16 h##name(__nv_bfloat16 h) { const float x = __bfloat162float(h); return __float2bfloat16_rn(of); }
HOST_HALF(exp, expf(x)) HOST_HALF(exp2, exp2f(x)) HOST_HALF(exp10, exp10f(x))
HOST_HALF(log, logf(x)) HOST_HALF(log2, log2f(x)) HOST_HALF(log10, log10f(x))
HOST_HALF(sin, sinf(x)) HOST_HALF(cos, cosf(x)) HOST_HALF(tanh, tanhf(x))
HOST_HALF(sqrt, sqrtf(x)) HOST_HALF(rsqrt, 1 / sqrtf(x)) HOST_HALF(rcp, 1 / x)
#undef HOST_HALF

namespace host {
// As the device does it: the nearest number of the type, and 0 for NaN.
template <class T> T to_integer(double x) {
    if (x != x) return 0;
    const double low = double(std::numeric_limits<T>::min()), end = std::ldexp(1.0, std::numeric_limits<T>::digits);
    return x < low ? std::numeric_limits<T>::min() : x >= end ? std::numeric_limits<T>::max() : T(x);
}
}  // namespace host
#define HOST_CONVERT(from, to, name, T)                                                     \
    inline T __##from##2##name##_rn(to x) { return host::to_integer<T>(nearbyint(x)); }     \
    inline T __##from##2##name##_rz(to x) { return host::to_integer<T>(trunc(x)); }         \
    inline T __##from##2##name##_rd(to x) { return host::to_integer<T>(floor(x)); }         \
    inline T __##from##2##name##_ru(to x) { return host::to_integer<T>(ceil(x)); }
HOST_CONVERT(float, float, int, int) HOST_CONVERT(float, float, uint, unsigned)
HOST_CONVERT(float, float, ll, long long) HOST_CONVERT(float, float, ull, unsigned long long)
HOST_CONVERT(double, double, int, int) HOST_CONVERT(double, double, uint, unsigned)
HOST_CONVERT(double, double, ll, long long) HOST_CONVERT(double, double, ull, unsigned long long)
#undef HOST_CONVERT
inline float __int2float_rn(int x) { return float(x); }
inline float __uint2float_rn(unsigned x) { return float(x); }
inline float __ll2float_rn(long long x) { return float(x); }
inline double __int2double_rn(int x) { return x; }
inline float __double2float_rn(double x) { return float(x); }
inline long long clock64() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

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

// Of a number and a NaN they are the number, as on the device.
template <class A, class B, class = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
std::common_type_t<A, B> min(A a, B b) {
    using C = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<C>) return std::fmin(C(a), C(b));
    else return C(b) < C(a) ? C(b) : C(a);
}
template <class A, class B, class = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
std::common_type_t<A, B> max(A a, B b) {
    using C = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<C>) return std::fmax(C(a), C(b));
    else return C(a) < C(b) ? C(b) : C(a);
}
