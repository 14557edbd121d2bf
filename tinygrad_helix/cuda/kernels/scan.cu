// The gated scan over [B, T, D], forward and backward, in two ways.
//
//   h_t = a_t h_{t-1} + b_t, from h_{-1} = h0 or 0;  where reset[n, t] the carry is dropped
//   G_t = dh_t + a_{t+1} G_{t+1}, from dlast;  db = G, da_t = G_t h_{t-1}, dh0 = a_0 G_0
//
// In NumPy, with all arrays in the dtype of the state and `cut = reset[:, t, None]`:
//
//   carry = h0                                                # forward; [B, D]
//   for t in range(T):
//       carry = where(cut, 0, a[:, t] * carry) + b[:, t]
//       h[:, t] = carry
//   last = carry
//
//   carry = dlast                                             # backward; [B, D]
//   for t in reversed(range(T)):
//       g[:, t] = dh[:, t] + carry
//       da[:, t] = where(cut, 0, g[:, t] * (h[:, t - 1] if t else h0))
//       carry = where(cut, 0, a[:, t] * g[:, t])
//   dh0 = carry
//
// Way R: a thread is a channel (n, d) and walks through time alone, its loads ahead of it.
// Each value is moved once (3 a step forward, 5 backward), but it takes many channels.
// Way C, for few channels: time is cut into chunks, and three launches follow one another:
//   summarize  a thread is a (chunk, channel): to a carry x that comes in, the chunk does
//              A x + H, with A the product of its gates and H its result from 0
//   carry      a thread is a channel: the carries between chunks, a gated scan of (A, H)
//   apply      a thread is a (chunk, channel): the walk of way R, from the chunk's carry
// What is scanned is read twice (5 values a step forward, 7 backward). The result is R's up
// to rounding, so long as A neither overflows nor underflows where the states do not.
//
// Threads are numbered over B D (or B chunks D) in one row of blocks: neighbours in a warp
// are neighbours in D, so that their loads join, and a D below a warp's 32 wastes no lane.
// A value has one writer and one order of arithmetic: the same launch, the same bits.
// Storage may be a pair of 16-bit channels (see common.cuh); D then counts pairs.
#include "common.cuh"

// Threads of a block. They share nothing: 128 spread few channels over many
// multiprocessors, and 4 blocks of 128 registers a thread fit on one.
#define BLOCK 128

// Where in time and memory a thread works: on a chunk of a channel, or with chunks = 1 on all
// of it. Products of sizes are 64-bit: tensors may have more than 2^31 elements.
struct Span {
    long long row;      // (n, chunk)
    long long channel;  // (n, d)
    long long step;     // (n, t) of the first step
    long long first;    // (n, t, d) of it
    int start, steps;   // t of it, and how many
};

__device__ __forceinline__ Span span_of(
    long long thread, int T, int D, int length, int chunks) {
    const long long row = thread / D, n = row / chunks, d = thread % D;
    const int start = int(row - n * chunks) * length;
    const long long step = n * T + start;
    return {row, n * D + d, step, step * D + d, start, min(length, T - start)};
}

__device__ __forceinline__ long long this_thread() {
    return (long long)blockIdx.x * BLOCK + threadIdx.x;
}

// Walk forward through a span from the state s; return the state after its last step.
template <typename Storage, int U, bool RESET>
__device__ __forceinline__ State<Storage> walk(
    const Span& at, const Storage* a, const Storage* b, const bool* reset, Storage* h,
    State<Storage> s, int D) {
    Source<Storage, U> gate(a + at.first, D), input(b + at.first, D);
    Source<bool, U> cut(reset + (RESET ? at.step : 0), 1);
    Sink<Storage, U> state(h + at.first, D);
    roll<U>(
        at.steps,
        [&](int u) {
            gate.fill(u);
            input.fill(u);
            if (RESET) cut.fill(u);
        },
        [&](int u) {
            s = advance(gate[u], s, input[u], RESET && cut[u]);
            state.put(u, s);
        },
        [&] { gate.move(); input.move(); if (RESET) cut.move(); },
        [&] { state.move(); });
    return s;
}

// Walk back through a span, with the carry from later steps; return that to earlier ones.
// `first` is h_{-1}: where a span starts at t = 0 there is no h to read, and that step is
// done apart.
template <typename Storage, int U, bool RESET, bool DA>
__device__ __forceinline__ State<Storage> walk_back(
    const Span& at, const Storage* dh, const Storage* a, const Storage* h,
    const bool* reset, Storage* da, Storage* g, State<Storage> carry,
    State<Storage> first, int D) {
    using S = State<Storage>;
    const long long end = at.first + (long long)(at.steps - 1) * D;  // the last step
    Source<Storage, U> cotangent(dh + end, -D), gate(a + end, -D);
    Source<Storage, U> before(h + (DA ? end - D : 0), -D);
    Source<bool, U> cut(reset + (RESET ? at.step + at.steps - 1 : 0), -1);
    Sink<Storage, U> out_g(g + end, -D), out_a(da + (DA ? end : 0), -D);
    const auto step = [&](int u, S dh, S a, S h, bool cut) {
        const S G = plus(dh, carry);
        out_g.put(u, G);
        if (DA) out_a.put(u, cut ? every<S>(0) : times(G, h));
        carry = cut ? every<S>(0) : times(a, G);
    };
    roll<U>(
        at.start ? at.steps : at.steps - 1,
        [&](int u) {
            cotangent.fill(u);
            gate.fill(u);
            if (DA) before.fill(u);
            if (RESET) cut.fill(u);
        },
        [&](int u) {
            step(u, cotangent[u], gate[u], DA ? before[u] : first, RESET && cut[u]);
        },
        [&] {
            cotangent.move();
            gate.move();
            if (DA) before.move();
            if (RESET) cut.move();
        },
        [&] { out_g.move(); if (DA) out_a.move(); });
    if (at.start == 0) {
        out_g.at = g + at.first;
        out_a.at = da + (DA ? at.first : 0);
        step(0, widen(load(dh + at.first)), widen(load(a + at.first)), first,
             RESET && load(reset + at.step));
    }
    return carry;
}

// ---- R ---------------------------------------------------------------------------------
// U steps of each array are on their way from memory, as many as the launch code finds
// that the number of channels takes (cuda/scan.py). channels = B D.

// scan_r<{float, __half, __half2, __nv_bfloat16, __nv_bfloat162}, 16, false>: 64 registers
// scan_r<{float, __half, __half2, __nv_bfloat16, __nv_bfloat162}, 16, true>: 96 registers
// scan_r<{float, __half, __half2, __nv_bfloat16, __nv_bfloat162}, 32, false>: 128 registers
// scan_r<{float, __half, __half2, __nv_bfloat16, __nv_bfloat162}, 32, true>: 168 registers
// scan_r<double, 8, {false, true}>: 80 registers
// scan_r<double, 16, {false, true}>: 128 registers
// a, b, h [B, T, D]; h0, last [B, D]; reset [B, T]. h0 and reset may be null.
template <typename Storage, int U, bool RESET>
__global__ void __launch_bounds__(BLOCK) scan_r(
    const Storage* __restrict__ a, const Storage* __restrict__ b,
    const Storage* __restrict__ h0, const bool* __restrict__ reset, Storage* __restrict__ h,
    Storage* __restrict__ last, long long channels, int T, int D) {
    const long long channel = this_thread();
    if (channel >= channels) return;
    const Span at = span_of(channel, T, D, T, 1);
    const auto s = h0 ? widen(h0[channel]) : every<State<Storage>>(0);
    store(last + channel, walk<Storage, U, RESET>(at, a, b, reset, h, s, D));
}

// With three arrays to read, 16 steps are 192 bytes a channel in float32; 32 would spill.
//
// scan_grad_r<{float, __half, __half2}, 16, {false, true}, {false, true}>: 128 registers
// scan_grad_r<__nv_bfloat16, 16, {false, true}, {false, true}>: 128 registers
// scan_grad_r<__nv_bfloat162, 16, {false, true}, {false, true}>: 128 registers
// scan_grad_r<double, 8, {false, true}, {false, true}>: 112 registers
// dh, a, h, da, g [B, T, D]; dlast, h0, dh0 [B, D]; reset [B, T]. h, h0, reset, da and dh0
// may be null: h and da only without DA.
template <typename Storage, int U, bool RESET, bool DA>
__global__ void __launch_bounds__(BLOCK) scan_grad_r(
    const Storage* __restrict__ dh, const Storage* __restrict__ dlast,
    const Storage* __restrict__ a, const Storage* __restrict__ h,
    const Storage* __restrict__ h0, const bool* __restrict__ reset,
    Storage* __restrict__ da, Storage* __restrict__ g, Storage* __restrict__ dh0,
    long long channels, int T, int D) {
    const long long channel = this_thread();
    if (channel >= channels) return;
    const Span at = span_of(channel, T, D, T, 1);
    const auto first = DA && h0 ? widen(h0[channel]) : every<State<Storage>>(0);
    const auto carry = walk_back<Storage, U, RESET, DA>(
        at, dh, a, h, reset, da, g, widen(dlast[channel]), first, D);
    if (dh0) store(dh0 + channel, carry);
}

// ---- C ---------------------------------------------------------------------------------
// Chunk c holds the steps from c length on, the last chunk maybe fewer. pairs = B chunks D.
// Workspaces: A and H in the type of the state, and cut, whether a reset drops the carry.

// Steps on their way: 131,072 pairs with 64 bytes each have 8 MB so, more than enough.
#define U_C 8

// Forward.
//
// scan_c_summarize<{float, __half, __half2}, {false, true}>: 64 registers
// scan_c_summarize<{__nv_bfloat16, __nv_bfloat162}, {false, true}>: 64 registers
// scan_c_summarize<double, {false, true}>: 80 registers
// a, b [B, T, D]; reset [B, T]; A, H [B, chunks, D]; cut [B, chunks]. reset and cut may be
// null.
template <typename Storage, bool RESET>
__global__ void __launch_bounds__(BLOCK) scan_c_summarize(
    const Storage* __restrict__ a, const Storage* __restrict__ b,
    const bool* __restrict__ reset, State<Storage>* __restrict__ A,
    State<Storage>* __restrict__ H, bool* __restrict__ cut, long long pairs, int T, int D,
    int length, int chunks) {
    using S = State<Storage>;
    const long long pair = this_thread();
    if (pair >= pairs) return;
    const Span at = span_of(pair, T, D, length, chunks);
    Source<Storage, U_C> gate(a + at.first, D), input(b + at.first, D);
    Source<bool, U_C> now(reset + (RESET ? at.step : 0), 1);
    S product = every<S>(1), s = every<S>(0);
    bool dropped = false;
    roll<U_C>(
        at.steps,
        [&](int u) {
            gate.fill(u);
            input.fill(u);
            if (RESET) now.fill(u);
        },
        [&](int u) {
            s = advance(gate[u], s, input[u], RESET && now[u]);
            product = times(product, gate[u]);
            dropped |= RESET && now[u];
        },
        [&] { gate.move(); input.move(); if (RESET) now.move(); }, [] {});
    A[pair] = product;
    H[pair] = s;
    if (RESET && pair % D == 0) cut[at.row] = dropped;
}

// Backward: what the chunk does to the carry that comes in from later steps.
//
// scan_grad_c_summarize<{float, __half, __half2}, {false, true}>: 64 registers
// scan_grad_c_summarize<{__nv_bfloat16, __nv_bfloat162}, {false, true}>: 64 registers
// scan_grad_c_summarize<double, {false, true}>: 80 registers
// dh, a [B, T, D]; reset [B, T]; A, H [B, chunks, D]; cut [B, chunks]. reset and cut may be
// null.
template <typename Storage, bool RESET>
__global__ void __launch_bounds__(BLOCK) scan_grad_c_summarize(
    const Storage* __restrict__ dh, const Storage* __restrict__ a,
    const bool* __restrict__ reset, State<Storage>* __restrict__ A,
    State<Storage>* __restrict__ H, bool* __restrict__ cut, long long pairs, int T, int D,
    int length, int chunks) {
    using S = State<Storage>;
    const long long pair = this_thread();
    if (pair >= pairs) return;
    const Span at = span_of(pair, T, D, length, chunks);
    const long long end = at.first + (long long)(at.steps - 1) * D;
    Source<Storage, U_C> cotangent(dh + end, -D), gate(a + end, -D);
    Source<bool, U_C> now(reset + (RESET ? at.step + at.steps - 1 : 0), -1);
    S product = every<S>(1), carry = every<S>(0);
    bool dropped = false;
    roll<U_C>(
        at.steps,
        [&](int u) {
            cotangent.fill(u);
            gate.fill(u);
            if (RESET) now.fill(u);
        },
        [&](int u) {
            const S through = times(gate[u], plus(cotangent[u], carry));
            carry = RESET && now[u] ? every<S>(0) : through;
            product = times(product, gate[u]);
            dropped |= RESET && now[u];
        },
        [&] { cotangent.move(); gate.move(); if (RESET) now.move(); }, [] {});
    A[pair] = product;
    H[pair] = carry;
    if (RESET && pair % D == 0) cut[at.row] = dropped;
}

// A x + H. Of x = 0 that is H exactly, and A is not asked, which may have overflowed where
// no state did (0 times infinity is not a number).
__device__ __forceinline__ float across(float A, float x, float H) {
    return x == 0 ? H : fused(A, x, H);
}
__device__ __forceinline__ double across(double A, double x, double H) {
    return x == 0 ? H : fused(A, x, H);
}
__device__ __forceinline__ float2 across(float2 A, float2 x, float2 H) {
    return make_float2(across(A.x, x.x, H.x), across(A.y, x.y, H.y));
}

// Each H becomes the carry that comes into its chunk. `start`, or 0, comes into the first;
// with `back` into the last, and the chunks are gone through from there.
//
// scan_c_carry<{float, __half, __half2}, {false, true}>: 128 registers
// scan_c_carry<{__nv_bfloat16, __nv_bfloat162}, {false, true}>: 128 registers
// scan_c_carry<double, {false, true}>: 128 registers
// A, H [B, chunks, D]; cut [B, chunks]; start [B, D]. cut and start may be null.
template <typename Storage, bool RESET>
__global__ void __launch_bounds__(BLOCK) scan_c_carry(
    const State<Storage>* __restrict__ A, State<Storage>* H, const bool* __restrict__ cut,
    const Storage* __restrict__ start, long long channels, int D, int chunks, bool back) {
    // Few threads, and as many steps as there are chunks, 512 of them with 256 channels:
    // this launch is all latency. 16 steps ahead are what float2 has registers for.
    constexpr int U = 16;
    using S = State<Storage>;
    const long long channel = this_thread();
    if (channel >= channels) return;
    const long long row = channel / D * chunks + (back ? chunks - 1 : 0);
    const long long first = row * D + channel % D;
    const int direction = back ? -1 : 1;
    Source<S, U> product(A + first, direction * D), result(H + first, direction * D);
    Source<bool, U> dropped(cut + (RESET ? row : 0), direction);
    Sink<S, U> carry(H + first, direction * D);
    S x = start ? widen(start[channel]) : every<S>(0);
    roll<U>(
        chunks,
        [&](int u) {
            product.fill(u);
            result.fill(u);
            if (RESET) dropped.fill(u);
        },
        [&](int u) {
            carry.put(u, x);
            x = RESET && dropped[u] ? result[u] : across(product[u], x, result[u]);
        },
        [&] { product.move(); result.move(); if (RESET) dropped.move(); },
        [&] { carry.move(); });
}

// Forward: through each chunk from its own carry.
//
// scan_c_apply<{float, __half, __half2}, {false, true}>: 64 registers
// scan_c_apply<{__nv_bfloat16, __nv_bfloat162}, {false, true}>: 64 registers
// scan_c_apply<double, {false, true}>: 80 registers
// a, b, h [B, T, D]; reset [B, T]; H [B, chunks, D]; last [B, D]. reset may be null.
template <typename Storage, bool RESET>
__global__ void __launch_bounds__(BLOCK) scan_c_apply(
    const Storage* __restrict__ a, const Storage* __restrict__ b,
    const bool* __restrict__ reset, const State<Storage>* __restrict__ H,
    Storage* __restrict__ h, Storage* __restrict__ last, long long pairs, int T, int D,
    int length, int chunks) {
    const long long pair = this_thread();
    if (pair >= pairs) return;
    const Span at = span_of(pair, T, D, length, chunks);
    const auto s = walk<Storage, U_C, RESET>(at, a, b, reset, h, H[pair], D);
    if (at.start + at.steps == T) store(last + at.channel, s);
}

// Backward: the same from each chunk's end.
//
// scan_grad_c_apply<{float, __half, __half2}, {false, true}, {false, true}>: 96 registers
// scan_grad_c_apply<__nv_bfloat16, {false, true}, {false, true}>: 96 registers
// scan_grad_c_apply<__nv_bfloat162, {false, true}, {false, true}>: 96 registers
// scan_grad_c_apply<double, {false, true}, {false, true}>: 120 registers
// dh, a, h, da, g [B, T, D]; h0, dh0 [B, D]; reset [B, T]; H [B, chunks, D]. h, h0, reset,
// da and dh0 may be null: h and da only without DA.
template <typename Storage, bool RESET, bool DA>
__global__ void __launch_bounds__(BLOCK) scan_grad_c_apply(
    const Storage* __restrict__ dh, const Storage* __restrict__ a,
    const Storage* __restrict__ h, const Storage* __restrict__ h0,
    const bool* __restrict__ reset, const State<Storage>* __restrict__ H,
    Storage* __restrict__ da, Storage* __restrict__ g, Storage* __restrict__ dh0,
    long long pairs, int T, int D, int length, int chunks) {
    const long long pair = this_thread();
    if (pair >= pairs) return;
    const Span at = span_of(pair, T, D, length, chunks);
    const auto first = DA && h0 ? widen(h0[at.channel]) : every<State<Storage>>(0);
    const auto carry = walk_back<Storage, U_C, RESET, DA>(
        at, dh, a, h, reset, da, g, H[pair], first, D);
    if (dh0 && at.start == 0) store(dh0 + at.channel, carry);
}
