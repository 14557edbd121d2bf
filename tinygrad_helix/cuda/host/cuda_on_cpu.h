// CUDA C++ on a CPU, for tests: included before a .cu file that g++ then compiles.
//
// Each CUDA thread is a fiber; one block runs after another, on one thread of the operating
// system. A fiber gives way only in a collective (__syncthreads, __syncwarp, a shuffle, a
// vote), until all who take part are there. Which thread runs first is the `order` of the
// launch: 0 ascending, 1 descending, 2 and more shuffled, the blocks too.
#pragma once
#include <math.h>
#include <stdint.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <algorithm>
#include <cassert>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>
#include <cuda_runtime.h>  // dim3, float4 and their like
#include <cuda_bf16.h>     // 16-bit types with the conversions that they have on the host
#include <cuda_fp16.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define HOST_ASAN(...) __VA_ARGS__
#else
#define HOST_ASAN(...)
#endif
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(const char*, int);
void AnnotateIgnoreReadsEnd(const char*, int);
void AnnotateIgnoreWritesBegin(const char*, int);
void AnnotateIgnoreWritesEnd(const char*, int);
}
#define HOST_TSAN(...) __VA_ARGS__
#else
#define HOST_TSAN(...)
#endif

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __forceinline__
#undef __noinline__
#undef __launch_bounds__
#undef __restrict__
#define __global__
#define __device__
#define __host__
#define __shared__ static  // blocks run one after another: one copy serves them all
#define __constant__ static const
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __restrict__ __restrict

namespace host {

struct Where { const char* file; int line; };  // of a collective in the kernel's text
enum class State { fresh, ready, at_block, at_warp, done };
struct Fiber { ucontext_t context; void* stack; };
struct Thread {
    uint3 index;
    int lane, warp;
    State state;
    Fiber* fiber;
    Where where;       // the collective that it waits at,
    unsigned mask;     // the lanes that are to meet there,
    uint64_t value;    // and what it brings to it
    void* tsan;
};

constexpr size_t STACK = size_t(256) << 10;    // touched only as far as it is used
constexpr size_t SHARED = size_t(227) << 10;   // the most that any GPU of today gives a block
inline dim3 grid, block;
inline uint3 block_index;
inline Thread* self;
inline ucontext_t scheduler;
inline std::vector<Thread> threads;
inline std::vector<int> sequence;      // the order of this round,
inline size_t cursor;                  // and the next one in it
inline std::vector<uint64_t> slots;    // per thread, what it brought to its last collective
inline std::vector<Fiber*> all_fibers, idle;
inline int left;
alignas(1024) inline unsigned char dynamic_shared[SHARED];
inline char error[512];
inline void (*run_kernel)(void*);
inline void* run_arguments;
HOST_TSAN(inline void* tsan_main; inline char orders[1 << 16]; inline unsigned next_order;)

// Shuffles, the same for an order everywhere (splitmix64; its small bias does no harm).
struct Random {
    uint64_t state;
    uint64_t operator()() {
        uint64_t z = state += 0x9e3779b97f4a7c15;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
        z = (z ^ z >> 27) * 0x94d049bb133111eb;
        return z ^ z >> 31;
    }
    template <class T> void shuffle(std::vector<T>& v) {
        for (size_t i = v.size(); i > 1; --i) std::swap(v[i - 1], v[(*this)() % i]);
    }
};

// What the shim itself reads and writes is no memory traffic of the kernel.
struct Quiet {
    Quiet() { HOST_TSAN(AnnotateIgnoreReadsBegin("", 0); AnnotateIgnoreWritesBegin("", 0);) }
    ~Quiet() { HOST_TSAN(AnnotateIgnoreReadsEnd("", 0); AnnotateIgnoreWritesEnd("", 0);) }
};

inline bool fail(const char* what, const Thread& t) {
    if (!error[0])
        std::snprintf(error, sizeof error, "%s: block (%u,%u,%u), thread (%u,%u,%u), %s:%d", what,
                      block_index.x, block_index.y, block_index.z, t.index.x, t.index.y, t.index.z,
                      t.where.file, t.where.line);
    return false;
}

// ---- fibers -------------------------------------------------------------------------------

// Park the running thread until the scheduler opens the collective that it came to.
inline void wait(State at, unsigned mask, Where where) {
    Quiet quiet;
    Thread* me = self;
    me->state = at;
    me->mask = mask;
    me->where = where;
    HOST_TSAN(__tsan_switch_to_fiber(tsan_main, 1);)
    swapcontext(&me->fiber->context, &scheduler);
}

// A fiber runs thread after thread: one that meets no collective costs a function call.
inline void work() {
    for (;;) {
        run_kernel(run_arguments);
        HOST_TSAN(__tsan_switch_to_fiber(tsan_main, 1);)  // which is quiet
        Fiber* mine = self->fiber;
        self->state = State::done;
        --left;
#ifndef __SANITIZE_THREAD__  // to TSan two threads on one stack would race there
        if (!error[0] && cursor < sequence.size()) {
            Thread& next = threads[sequence[cursor]];
            if (next.state == State::fresh) {
                ++cursor;
                next.fiber = mine;
                next.state = State::ready;
                self = &next;
                continue;
            }
        }
        idle.push_back(mine);
#endif
        swapcontext(&mine->context, &scheduler);
    }
}

inline void reset(Fiber* fiber) {
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack;
    fiber->context.uc_stack.ss_size = STACK;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, work, 0);
}

inline Fiber* take_fiber() {
    if (idle.empty()) {
        const size_t guard = 4096;  // a page below the stack that nobody may touch
        char* at = static_cast<char*>(mmap(nullptr, STACK + guard, PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        if (at == MAP_FAILED) std::fputs("no memory for the stack of a CUDA thread\n", stderr), abort();
        mprotect(at, guard, PROT_NONE);
        Fiber* fiber = new Fiber{{}, at + guard};
        reset(fiber);
        all_fibers.push_back(fiber);
        return fiber;
    }
    Fiber* fiber = idle.back();
    idle.pop_back();
    return fiber;
}

inline void resume(Thread& t) {
    if (t.state == State::fresh) t.fiber = take_fiber();
    t.state = State::ready;
    self = &t;
    HOST_TSAN(__tsan_switch_to_fiber(t.tsan, 1);)
    swapcontext(&scheduler, &t.fiber->context);
}

// ---- collectives --------------------------------------------------------------------------

#ifdef __SANITIZE_THREAD__
// In the name of a thread, while the scheduler runs: end (or begin) what is ordered there.
inline void order_thread(const Thread& t, void (*what)(void*), void* order) {
    __tsan_switch_to_fiber(t.tsan, 1);
    what(order);
    __tsan_switch_to_fiber(tsan_main, 1);
}
#endif

// Everyone is there: hand over the values, order all before against all after, let them go.
// TSan is told of the order here and not where each thread waits: a fast thread's arrival at
// a second barrier would else be ordered before a slow thread's leaving of the first.
inline void open(const std::vector<int>& parties) {
    HOST_TSAN(
        char* order = &orders[next_order++ % sizeof orders];
        for (int i : parties) order_thread(threads[i], __tsan_release, order);
        for (int i : parties) order_thread(threads[i], __tsan_acquire, order);)
    for (int i : parties) slots[i] = threads[i].value, threads[i].state = State::ready;
}

inline bool same(const Where& a, const Where& b) {
    return a.line == b.line && !std::strcmp(a.file, b.file);
}

// A warp's collective opens when every lane that it names is at it.
inline bool open_warps(int n, bool& moved) {
    std::vector<int> parties;
    for (int i = 0; i < n; ++i) {
        const Thread t = threads[i];
        if (t.state != State::at_warp) continue;
        if (!(t.mask >> t.lane & 1))
            return fail("a thread is not in the mask of its own warp collective", t);
        const int first = i - t.lane, end = std::min(n, first + 32);
        bool all = true;
        parties.clear();
        for (int j = first; j < end; ++j)
            if (t.mask >> (j - first) & 1) {
                const Thread& other = threads[j];
                parties.push_back(j);
                all &= other.state == State::at_warp && other.mask == t.mask && same(other.where, t.where);
            }
        if (all) open(parties), moved = true;
    }
    return true;
}

// The block's barrier opens when every thread is at it.
inline bool open_block(int n, bool& moved) {
    const auto waits = [](const Thread& t) { return t.state == State::at_block; };
    const auto first = std::find_if(threads.begin(), threads.end(), waits);
    if (moved || first == threads.end()) return true;
    std::vector<int> parties;
    for (int i = 0; i < n; ++i) {
        const Thread& t = threads[i];
        if (t.state == State::done || (waits(t) && !same(t.where, first->where)))
            return fail("not every thread of the block reaches this barrier", *first);
        if (waits(t)) parties.push_back(i);
    }
    if (int(parties.size()) == n) open(parties), moved = true;
    return true;
}

// ---- a launch -----------------------------------------------------------------------------

inline void start_block(int n) {
    threads.resize(n);
    slots.assign((n + 31) / 32 * 32, ~uint64_t(0));
    sequence.resize(n);
    for (int i = 0; i < n; ++i) {
        const unsigned u = i;
        threads[i] = Thread{{u % block.x, u / block.x % block.y, u / (block.x * block.y)},
                            i % 32, i / 32, State::fresh, nullptr, {"", 0}, 0, 0, nullptr};
        sequence[i] = i;
        HOST_TSAN(threads[i].tsan = __tsan_create_fiber(0);)
    }
    left = n;
}

inline void end_block() {  // for TSan blocks are ordered: it looks for races inside of each
    HOST_TSAN(
        char* order = &orders[next_order++ % sizeof orders];
        for (Thread& t : threads) order_thread(t, __tsan_release, order);
        __tsan_acquire(order);
        for (Thread& t : threads) __tsan_destroy_fiber(t.tsan);
        for (Thread& t : threads) if (t.state == State::done) idle.push_back(t.fiber);)
}

inline bool run_rounds(int n, unsigned order, Random& random) {
    if (order == 1) std::reverse(sequence.begin(), sequence.end());
    while (left) {
        if (order >= 2) random.shuffle(sequence);
        for (cursor = 0; cursor < sequence.size();) {
            Thread& t = threads[sequence[cursor++]];
            if (t.state == State::fresh || t.state == State::ready) resume(t);
        }
        bool moved = false;
        if (error[0] || !open_warps(n, moved) || !open_block(n, moved)) return false;
        if (left && !moved)
            for (const Thread& t : threads)
                if (t.state != State::done)
                    return fail("deadlock: a collective waits for threads that never come", t);
    }
    return true;
}

inline void run_grid(size_t shared, unsigned order) {
    Random random{order};
    std::vector<unsigned> blocks(size_t(grid.x) * grid.y * grid.z);
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = unsigned(i);
    if (order == 1) std::reverse(blocks.begin(), blocks.end());
    if (order >= 2) random.shuffle(blocks);
    HOST_ASAN(__asan_poison_memory_region(dynamic_shared + shared, SHARED - shared);)
    for (unsigned i : blocks) {
        block_index = uint3{i % grid.x, i / grid.x % grid.y, i / (grid.x * grid.y)};
        std::memset(dynamic_shared, 0xff, shared);  // NaN to a reader that comes too early
        const int n = block.x * block.y * block.z;
        start_block(n);
        const bool well = run_rounds(n, order, random);
        end_block();
        if (!well || error[0]) {  // fibers that were left waiting start afresh
            idle = all_fibers;
            for (Fiber* fiber : idle) reset(fiber);
            break;
        }
    }
    HOST_ASAN(__asan_unpoison_memory_region(dynamic_shared, SHARED);)
}

template <class... A, size_t... I>
void apply(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_cv_t<A>*>(arguments[I])...);
}

template <class... A>
const char* launch(void (*kernel)(A...), const unsigned* g, const unsigned* b, size_t shared,
                   unsigned order, void** arguments) {
    Quiet quiet;
    struct Call { void (*kernel)(A...); void** arguments; } call{kernel, arguments};
    run_kernel = [](void* c) {
        auto* the = static_cast<Call*>(c);
        apply(the->kernel, the->arguments, std::index_sequence_for<A...>());
    };
    run_arguments = &call;
    error[0] = 0;
    grid = dim3(g[0], g[1], g[2]);
    block = dim3(b[0], b[1], b[2]);
    HOST_TSAN(tsan_main = __tsan_get_current_fiber();)
    run_grid(shared, order);
    return error[0] ? error : nullptr;
}

// ---- what a kernel's parameters are ---------------------------------------------------------

template <class T> constexpr const char* integer() {
    constexpr const char* names[2][4] = {{"uint8", "uint16", "uint32", "uint64"},
                                         {"int8", "int16", "int32", "int64"}};
    return names[std::is_signed_v<T>][sizeof(T) == 8 ? 3 : sizeof(T) / 2];
}
template <class T> constexpr const char* number() {
    if constexpr (std::is_same_v<T, bool>) return "bool";
    else if constexpr (std::is_integral_v<T>) return integer<T>();
    else if constexpr (std::is_same_v<T, float>) return "float32";
    else if constexpr (std::is_same_v<T, double>) return "float64";
    else if constexpr (std::is_same_v<T, __half>) return "float16";
    else if constexpr (std::is_same_v<T, __nv_bfloat16>) return "bfloat16";
    else if constexpr (std::is_same_v<T, __half2>) return "float16x2";
    else if constexpr (std::is_same_v<T, __nv_bfloat162>) return "bfloat16x2";
    else if constexpr (std::is_same_v<T, float2>) return "float32x2";
    else if constexpr (std::is_same_v<T, float4>) return "float32x4";
    else if constexpr (std::is_same_v<T, double2>) return "float64x2";
    else if constexpr (std::is_same_v<T, int2>) return "int32x2";
    else if constexpr (std::is_same_v<T, int4>) return "int32x4";
    else if constexpr (std::is_same_v<T, uint2>) return "uint32x2";
    else if constexpr (std::is_same_v<T, uint4>) return "uint32x4";
    else return "?";
}
inline char signature_text[4096];
template <class T> size_t describe(size_t at) {
    using U = std::remove_pointer_t<T>;
    constexpr bool pointer = std::is_pointer_v<T>;
    return at + std::snprintf(signature_text + at, sizeof signature_text - at, "%s%s%s;",
                              pointer && std::is_const_v<U> ? "const " : "",
                              number<std::remove_cv_t<U>>(), pointer ? "*" : "");
}
template <class... A> const char* signature(void (*)(A...)) {
    size_t at = 0;
    ((at = describe<A>(at)), ...);
    return signature_text;
}

}  // namespace host
#include "cuda_functions.h"

#define HOST_EXPORT(i, ...)                                                                     \
    extern "C" __attribute__((visibility("default"))) const char* host_launch_##i(              \
        const unsigned* g, const unsigned* b, size_t shared, unsigned order, void** arguments) { \
        return host::launch(&__VA_ARGS__, g, b, shared, order, arguments);                      \
    }                                                                                           \
    extern "C" __attribute__((visibility("default"))) const char* host_signature_##i() {        \
        return host::signature(&__VA_ARGS__);                                                   \
    }
