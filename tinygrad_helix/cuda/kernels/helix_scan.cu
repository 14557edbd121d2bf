// The scan of the HELIX block with what stands around it, forward and backward.
//
//   a_t = sigmoid(ua_t + bias)      h_t = a_t h_{t-1} + ub_t      s2_t = silu(h_t g2)
//   u_t = ds2_t silu'(h_t g2)       G_t = u_t g2 + a_{t+1} G_{t+1}
//   dub = G     dua_t = G_t h_{t-1} a_t (1 - a_t)     dg2 = sum u h     dbias = sum dua
//
// h_{-1} = h0 or 0, dh_T (or 0) is added to G_{T-1}, and where reset[n, t] the carry is
// dropped, whatever it was: 0 times infinity is not a number, so a gate of 0 would not do.
// In NumPy, with `carry` of shape [B, D], silu(z) = z sigmoid(z) and its slope s2':
//
//   a = sigmoid(ua + bias); cut = reset[:, :, None]
//   for t in range(T):                                       # forward; carry starts as h0
//       carry = h[:, t] = np.where(cut[:, t], 0, a[:, t] * carry) + ub[:, t]
//   s2 = silu(h * g2)
//   u = ds2 * slope(h * g2)
//   for t in reversed(range(T)):                             # backward; it starts as dh_T
//       dub[:, t] = u[:, t] * g2 + carry
//       carry = np.where(cut[:, t], 0, a[:, t] * dub[:, t])  # in the end dh0
//   before = np.concatenate([h0[:, None], h[:, :-1]], axis=1)
//   dua = np.where(cut, 0, dub * before) * a * (1 - a)
//   dg2 = np.sum(u * h, axis=(0, 1)); dbias = np.sum(dua, axis=(0, 1))
//
// On its own each line would read and write whole tensors: forward 3 passes, backward 10.
// Here each value is read once and written once: forward 2 read and 3 written a step,
// backward 3 read and 2 or 3 written.
//
// The two ways, R and C, and the numbering of threads are those of scan.cu, whose carry
// kernel joins the chunks; R is one chunk. A gate is in [0, 1], so no product of gates
// overflows.
#include "helix.cuh"

// Steps on their way from memory for each array. Two or three arrays of them are 64 or 96
// bytes a channel in float32: 3 MB over the card, what its memory wants to be busy, from
// 49,152 channels on, and with fewer way C makes 131,072 (chunk, channel) pairs. 16 steps
// do not fit beside their sigmoids: helix_scan spills then. The blocks a multiprocessor in
// the launch bounds, 4 and 3, are what these registers allow; without them the compiler
// goes for more blocks and spills.
#define U 8

// The chunk of a thread, numbered over B chunks D: steps start to start + steps of sequence
// n, channel d. `row` is (n, chunk), `step` the first of its steps in [B, T].
struct Chunk {
    long long row, n, step;
    int d, start, steps;
    bool last;

    __device__ __forceinline__ Chunk(
        long long row_, int d_, int T, int chunks, int length)
        : row(row_), n(row_ / chunks), d(d_), start(int(row_ - n * chunks) * length),
          steps(min(length, T - start)), last(start + steps == T) {
        step = n * T + start;
    }
};

// p + i, or the null pointer that p is.
template <typename Storage>
__device__ __forceinline__ Storage* place(Storage* p, long long i) {
    return p ? p + i : nullptr;
}

// use(u, gate, ub, cut) at every step of a chunk, in order. MADE: gates come from ua, the
// first D of the 2 D columns of `pre`, ub is the last D. Else they are read from `a`, and
// `pre` is ub.
template <typename Storage, bool MADE, bool RESET, typename Use, typename Move>
__device__ __forceinline__ void gates_and_inputs(
    const Chunk& c, const Storage* pre, const Storage* a, const Storage* bias,
    const bool* reset, int D, Use use, Move move) {
    using S = State<Storage>;
    const int ld = MADE ? 2 * D : D;
    const Storage* first = pre + c.step * ld + c.d;
    Source<Storage, U> gates(MADE ? first : a + c.step * D + c.d, ld);
    Source<Storage, U> inputs(MADE ? first + D : first, ld);
    Source<bool, U> cuts(reset + (RESET ? c.step : 0), 1);
    const S offset = MADE ? widen(bias[c.d]) : S(0);
    roll<U>(
        c.steps,
        [&](int u) {
            gates.fill(u);
            inputs.fill(u);
            if (RESET) cuts.fill(u);
        },
        [&](int u) {
            S gate = gates[u];
            if (MADE) gate = rounded<Storage>(sigmoid(gate + offset));
            use(u, gate, inputs[u], RESET && cuts[u]);
        },
        [&] {
            gates.move();
            inputs.move();
            if (RESET) cuts.move();
        },
        move);
}

// helix_scan<{float, double}, {false, true}, {false, true}>: 112 registers
// helix_scan<{__half, __nv_bfloat16}, {false, true}, {false, true}>: 96 registers
//
// pre [N, ld]; a, h, s2 [N, D]; bias, g2 [D]; h0, last [B, D]; reset [B, T];
// carries [B, chunks, D]. bias, a, h, s2, h0, last, reset and carries may be null.
// MADE: ld = 2 D, and a is written; else ld = D, a is read, and pre is ub, which may be h.
// carries are those into the chunks; without them there is one chunk, and h0 comes into it.
template <typename Storage, bool MADE, bool RESET>
__global__ void __launch_bounds__(BLOCK, 4) helix_scan(
    const Storage* pre, const Storage* __restrict__ bias, const Storage* __restrict__ g2,
    const Storage* __restrict__ h0, const bool* __restrict__ reset,
    const State<Storage>* __restrict__ carries, Storage* a, Storage* h,
    Storage* __restrict__ s2, Storage* __restrict__ last, long long N, int B, int T, int D,
    int ld, int chunks, int length) {
    using S = State<Storage>;
    const long long thread = (long long)blockIdx.x * BLOCK + threadIdx.x, row = thread / D;
    if (row >= (long long)B * chunks) return;
    const Chunk c(row, int(thread - row * D), T, chunks, length);
    const long long channel = c.n * D + c.d;
    const S gain = widen(g2[c.d]);
    S state = carries ? carries[thread] : h0 ? widen(h0[channel]) : S(0);
    const long long at = c.step * D + c.d;
    Sink<Storage, U> gates(place(a, at), D), states(place(h, at), D);
    Sink<Storage, U> activated(place(s2, at), D);
    gates_and_inputs<Storage, MADE, RESET>(
        c, pre, a, bias, reset, D,
        [&](int u, S gate, S input, bool cut) {
            if (MADE && a) gates.put(u, gate);
            state = advance(gate, state, input, cut);
            if (h) states.put(u, state);
            if (s2) activated.put(u, state * gain * sigmoid(state * gain));
        },
        [&] {
            if (a) gates.move();
            if (h) states.move();
            if (s2) activated.move();
        });
    if (last && c.last) store(last + channel, state);
}

// Way C: A, the product of a chunk's gates, H, its last state from 0, and `cut`, whether a
// reset in it drops the carry: A is not asked then.
//
// helix_summarize<{float, double}, {false, true}, {false, true}>: 96 registers
// helix_summarize<{__half, __nv_bfloat16}, {false, true}, {false, true}>: 96 registers
//
// pre [N, ld]; a [N, D]; bias [D]; reset [B, T]; A, H [B, chunks, D]; cut [B, chunks].
// bias, a, reset and cut may be null.
template <typename Storage, bool MADE, bool RESET>
__global__ void __launch_bounds__(BLOCK, 4) helix_summarize(
    const Storage* __restrict__ pre, const Storage* __restrict__ bias,
    const Storage* __restrict__ a, const bool* __restrict__ reset,
    State<Storage>* __restrict__ A, State<Storage>* __restrict__ H, bool* __restrict__ cut,
    long long N, int B, int T, int D, int ld, int chunks, int length) {
    using S = State<Storage>;
    const long long thread = (long long)blockIdx.x * BLOCK + threadIdx.x, row = thread / D;
    if (row >= (long long)B * chunks) return;
    const Chunk c(row, int(thread - row * D), T, chunks, length);
    S product = 1, state = 0;
    bool dropped = false;
    gates_and_inputs<Storage, MADE, RESET>(
        c, pre, a, bias, reset, D,
        [&](int, S gate, S input, bool now) {
            state = advance(gate, state, input, now);
            product *= gate;
            dropped |= now;
        },
        [] {});
    A[thread] = product;
    H[thread] = state;
    if (RESET && c.d == 0) cut[row] = dropped;
}

// What one step of the backward pass makes of h_t: u_t = ds2_t silu'(h_t g2), and s2_t.
template <typename S>
struct Hidden {
    S u, s2;
    __device__ __forceinline__ Hidden(S ds2, S h, S gain) {
        const S z = h * gain, s = sigmoid(z);
        s2 = z * s;
        u = ds2 * silu_slope(s, s2);
    }
};

// helix_scan_back<float, {false, true}, {false, true}>: 112 registers
// helix_scan_back<{__half, __nv_bfloat16}, {false, true}, {false, true}>: 112 registers
// helix_scan_back<double, {false, true}, {false, true}>: 152 registers
//
// ds2, a, h, s2 [N, D]; g2 [D]; h0, dlast, dh0 [B, D]; reset [B, T]; dpre [N, ld];
// carries [B, chunks, D]; sums [2, P, D].
// a, h0, reset, carries, dlast, s2, dpre, dh0 and sums may be null. s2 may be ds2.
// dua is the first D columns of dpre if `gate`, dub the last D if `inner`. Without SCAN
// there is no more than s2 and the sums of u h. sums[0] and sums[1] add up to dg2 and dbias;
// thread (p, d) makes those of the chunks p, p + P, ...
template <typename Storage, bool SCAN, bool RESET>
__global__ void __launch_bounds__(BLOCK, 3) helix_scan_back(
    const Storage* ds2, const Storage* __restrict__ a, const Storage* __restrict__ h,
    const Storage* __restrict__ g2, const Storage* __restrict__ h0,
    const bool* __restrict__ reset, const State<Storage>* __restrict__ carries,
    const Storage* __restrict__ dlast, Storage* s2, Storage* __restrict__ dpre,
    Storage* __restrict__ dh0, State<Storage>* __restrict__ sums, long long N, int B, int T,
    int D, int ld, bool gate, bool inner, int chunks, int length, int P) {
    using S = State<Storage>;
    const long long thread = (long long)blockIdx.x * BLOCK + threadIdx.x, p = thread / D;
    if (p >= P) return;
    const int d = int(thread - p * D);
    const S gain = widen(g2[d]);
    S sum_g2 = 0, sum_bias = 0;
    for (long long row = p; row < (long long)B * chunks; row += P) {
        const Chunk c(row, d, T, chunks, length);
        const long long channel = c.n * D + d, end = c.step + c.steps - 1;
        const long long at = end * D + d, to = end * ld + d;
        S carry = carries ? carries[row * D + d] : dlast ? widen(dlast[channel]) : S(0);
        S now = widen(h[at]);  // h_t; befores[u] is h_{t-1}
        Sink<Storage, U> activated(place(s2, at), -D), duas(place(dpre, to), -ld);
        Sink<Storage, U> dubs(place(dpre, to + (ld - D)), -ld);
        const auto step = [&](int u, S cotangent, S kept, S before, bool cut) {
            const Hidden<S> hidden(cotangent, now, gain);
            if (s2) activated.put(u, hidden.s2);
            sum_g2 = fused(hidden.u, now, sum_g2);
            if (SCAN) {
                const S G = fused(hidden.u, gain, carry);
                const S dua = (cut ? S(0) : G * before) * (kept * (1 - kept));
                if (inner) dubs.put(u, G);
                if (gate) duas.put(u, dua);
                sum_bias += dua;
                carry = cut ? S(0) : kept * G;
            }
            now = before;
        };
        Source<Storage, U> cotangents(ds2 + at, -D), gates(a + (SCAN ? at : 0), -D);
        Source<Storage, U> befores(h + (at - D), -D);
        Source<bool, U> cuts(reset + (RESET ? end : 0), -1);
        // h_{-1} is no row of h: the step at t = 0 is taken by itself.
        roll<U>(
            c.start ? c.steps : c.steps - 1,
            [&](int u) {
                cotangents.fill(u);
                if (SCAN) gates.fill(u);
                befores.fill(u);
                if (RESET) cuts.fill(u);
            },
            [&](int u) {
                const S kept = SCAN ? gates[u] : S(0);
                step(u, cotangents[u], kept, befores[u], RESET && cuts[u]);
            },
            [&] {
                cotangents.move();
                if (SCAN) gates.move();
                befores.move();
                if (RESET) cuts.move();
            },
            [&] {
                if (s2) activated.move();
                if (dpre) duas.move();
                if (dpre) dubs.move();
            });
        if (c.start == 0) {
            const long long first = c.step * D + d;
            activated.at = place(s2, first);
            duas.at = place(dpre, c.step * ld + d);
            dubs.at = place(dpre, c.step * ld + d + (ld - D));
            step(0, widen(load(ds2 + first)), SCAN ? widen(load(a + first)) : S(0),
                 h0 ? widen(h0[channel]) : S(0), RESET && load(reset + c.step));
            if (dh0) store(dh0 + channel, carry);
        }
    }
    if (sums) {
        sums[thread] = sum_g2;
        sums[(long long)P * D + thread] = sum_bias;
    }
}

// Way C: A, the product of a chunk's gates, H, the carry to earlier chunks from 0, and
// `cut`, as above.
//
// helix_summarize_back<{float, __half, __nv_bfloat16}, {false, true}>: 80 registers
// helix_summarize_back<double, {false, true}>: 112 registers
//
// ds2, a, h [N, D]; g2 [D]; reset [B, T]; A, H [B, chunks, D]; cut [B, chunks].
// reset and cut may be null.
template <typename Storage, bool RESET>
__global__ void __launch_bounds__(BLOCK, 4) helix_summarize_back(
    const Storage* __restrict__ ds2, const Storage* __restrict__ a,
    const Storage* __restrict__ h, const Storage* __restrict__ g2,
    const bool* __restrict__ reset, State<Storage>* __restrict__ A,
    State<Storage>* __restrict__ H, bool* __restrict__ cut, long long N, int B, int T,
    int D, int chunks, int length) {
    using S = State<Storage>;
    const long long thread = (long long)blockIdx.x * BLOCK + threadIdx.x, row = thread / D;
    if (row >= (long long)B * chunks) return;
    const Chunk c(row, int(thread - row * D), T, chunks, length);
    const long long end = c.step + c.steps - 1, at = end * D + c.d;
    const S gain = widen(g2[c.d]);
    Source<Storage, U> cotangents(ds2 + at, -D), gates(a + at, -D), states(h + at, -D);
    Source<bool, U> cuts(reset + (RESET ? end : 0), -1);
    S product = 1, carry = 0;
    bool dropped = false;
    roll<U>(
        c.steps,
        [&](int u) {
            cotangents.fill(u);
            gates.fill(u);
            states.fill(u);
            if (RESET) cuts.fill(u);
        },
        [&](int u) {
            const bool now = RESET && cuts[u];
            const S back = Hidden<S>(cotangents[u], states[u], gain).u;
            carry = now ? S(0) : gates[u] * fused(back, gain, carry);
            product *= gates[u];
            dropped |= now;
        },
        [&] {
            cotangents.move();
            gates.move();
            states.move();
            if (RESET) cuts.move();
        },
        [] {});
    A[thread] = product;
    H[thread] = carry;
    if (RESET && c.d == 0) cut[row] = dropped;
}
