// The gains of the HELIX block beside its weights, and sums over rows.
//
//   fold_gains      gates = g1 [wa | wb],  up = g3 wf1  (gains along rows),  down = wf2 g4
//   unfold_rows     of M = z' du, du the cotangent of z (g w):  dw = g M,  dg = sum_c w M
//   unfold_columns  of M = z' du, du the cotangent of (z w) g:  dw = M g,  dg = sum_r w M
//   product_sums    parts[p, d] = sum of u[r, d] v[r, d] over the rows r = p, p + P, ...
//   sum_parts       out[d] = sum_p parts[p, d]
//
// in NumPy, with wa, wb [D, D], wf1 [D, 2D], wf2 [2D, D]:
//
//   gates = g1[:, None] * np.concatenate([wa, wb], axis=1)
//   up = g3[:, None] * wf1; down = wf2 * g4
//   dw = g[:, None] * M; dg = np.sum(w * M, axis=1)
//   dw = M * g; dg = np.sum(w * M, axis=0)
//   out = np.sum(u * v, axis=0)
//
// A gain's gradient would be a sum over all tokens; folded into the weight beside it, it is
// one over the weight. Sums over rows are in two stages without atomics: always the same
// parts in the same order, so that the same call gives the same bits.
#include "helix.cuh"

// Columns of a block that sums over rows, and the threads that share a column: a warp reads
// 32 columns at once, and 8 rows of threads are enough to hide what a load takes.
#define COLUMNS 32
#define SHARING 8

// fold_gains<{float, double, __half, __nv_bfloat16}>: 32 registers
//
// wa, wb [D, D]; wf1, up, gates [D, 2*D]; wf2, down [2*D, D]; g1, g3, g4 [D].
// gates, up and down may be null. wa, wb, wf1, wf2, g1, g3 and g4 may be null where they
// are not read: without wa or wb that half of gates is left as it is.
template <typename Storage>
__global__ void __launch_bounds__(BLOCK) fold_gains(
    const Storage* __restrict__ wa, const Storage* __restrict__ wb,
    const Storage* __restrict__ wf1, const Storage* __restrict__ wf2,
    const Storage* __restrict__ g1, const Storage* __restrict__ g3,
    const Storage* __restrict__ g4, Storage* __restrict__ gates, Storage* __restrict__ up,
    Storage* __restrict__ down, int D) {
    const long long i = (long long)blockIdx.x * BLOCK + threadIdx.x, all = 2LL * D * D;
    if (i >= all) return;
    const long long r = i / (2 * D), c = i % (2 * D);
    const Storage* half = c < D ? wa : wb;
    if (gates && half) narrow(widen(g1[r]) * widen(half[r * D + c % D]), gates[i]);
    if (up) narrow(widen(g3[r]) * widen(wf1[i]), up[i]);
    if (down) narrow(widen(wf2[i]) * widen(g4[i % D]), down[i]);
}

// unfold_rows<{float, double, __half, __nv_bfloat16}>: 48 registers
//
// M [D, C]; left, dleft [D, L]; right, dright [D, C - L]: w and dw are each [left | right].
// gain, dgain [D]. gain, left, right, dleft, dright and dgain may be null: w is read for
// dg, the gain for dw. dleft may be M.
template <typename Storage>
__global__ void __launch_bounds__(BLOCK) unfold_rows(
    const Storage* M, const Storage* __restrict__ left, const Storage* __restrict__ right,
    const Storage* __restrict__ gain, Storage* dleft, Storage* __restrict__ dright,
    Storage* __restrict__ dgain, int D, int C, int L, int lanes) {
    using S = State<Storage>;
    const Row row(D, C, lanes);
    S dot = 0;
    row.each(C, [&](long long i, int c) {
        const bool first = c < L;
        const long long at = first ? row.index * L + c : row.index * (C - L) + c - L;
        const S m = widen(M[i]);
        Storage* out = first ? dleft : dright;
        if (dgain) dot = fused(widen((first ? left : right)[at]), m, dot);
        if (out) narrow(widen(gain[row.index]) * m, out[at]);
    });
    dot = row.sum(dot);
    if (dgain && row.live && row.lane == 0) narrow(dot, dgain[row.index]);
}

// The sum of the block's SHARING threads of this column, in the first of them.
template <typename S>
__device__ __forceinline__ S column_sum(S x) {
    __shared__ S sums[SHARING][COLUMNS];
    sums[threadIdx.y][threadIdx.x] = x;
    __syncthreads();
    for (int y = 1; y < SHARING && threadIdx.y == 0; ++y) x += sums[y][threadIdx.x];
    return x;
}

// unfold_columns<{float, double, __half, __nv_bfloat16}>: 32 registers
//
// M, w, dw [R, D]; gain, dgain [D]. w, gain, dw and dgain may be null: w is read for dg,
// the gain for dw. dw may be M.
template <typename Storage>
__global__ void __launch_bounds__(COLUMNS * SHARING) unfold_columns(
    const Storage* M, const Storage* __restrict__ w, const Storage* __restrict__ gain,
    Storage* dw, Storage* __restrict__ dgain, int R, int D) {
    using S = State<Storage>;
    const int d = blockIdx.x * COLUMNS + threadIdx.x;
    S dot = 0;
    for (int r = threadIdx.y; d < D && r < R; r += SHARING) {
        const long long i = (long long)r * D + d;
        const S m = widen(M[i]);
        if (dgain) dot = fused(widen(w[i]), m, dot);
        if (dw) narrow(m * widen(gain[d]), dw[i]);
    }
    dot = column_sum(dot);
    if (dgain && threadIdx.y == 0 && d < D) narrow(dot, dgain[d]);
}

// product_sums<{float, double, __half, __nv_bfloat16}>: 48 registers
//
// u, v [N, D]; parts [P, D].
template <typename Storage>
__global__ void __launch_bounds__(BLOCK) product_sums(
    const Storage* __restrict__ u, const Storage* __restrict__ v,
    State<Storage>* __restrict__ parts, long long N, int D, int P) {
    const long long i = (long long)blockIdx.x * BLOCK + threadIdx.x;
    const long long p = i / D, d = i % D;
    if (p >= P) return;
    State<Storage> sum = 0;
    for (long long r = p; r < N; r += P)
        sum = fused(widen(u[r * D + d]), widen(v[r * D + d]), sum);
    parts[i] = sum;
}

// sum_parts<{float, double, __half, __nv_bfloat16}>: 32 registers
//
// parts [K, P, D]; first, second [D]: the sums of parts[0] and parts[1], by the blocks of
// blockIdx.y. first and second may be null.
template <typename Storage>
__global__ void __launch_bounds__(COLUMNS * SHARING) sum_parts(
    const State<Storage>* __restrict__ parts, Storage* __restrict__ first,
    Storage* __restrict__ second, int P, int D) {
    const int d = blockIdx.x * COLUMNS + threadIdx.x;
    const State<Storage>* part = parts + (long long)blockIdx.y * P * D;
    State<Storage> sum = 0;
    for (int p = threadIdx.y; d < D && p < P; p += SHARING)
        sum += part[(long long)p * D + d];
    sum = column_sum(sum);
    Storage* out = blockIdx.y ? second : first;
    if (out && threadIdx.y == 0 && d < D) narrow(sum, out[d]);
}
