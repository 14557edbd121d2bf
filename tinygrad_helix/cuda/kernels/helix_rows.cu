// Row by row and element by element: all of the HELIX block but its products and its scan.
//
//   rms_rows       v = z + add;  r = 1 / sqrt(mean(v^2) + eps);  out = v r gain
//   rms_rows_back  u = u gain;   out = r (u - rms mean(u rms)) + add
//   gates          a = sigmoid(a + bias)
//   silu           out = silu(z gain),  silu(z) = z sigmoid(z)
//   silu_back      u = u silu'(z),  silu'(z) = s + silu(z) (1 - s),  s = sigmoid(z)
//   add_scaled     out = x + f gain
//
// in NumPy, with z of shape [N, D]:
//
//   v = z + add; r = (np.mean(v * v, axis=1) + eps)[:, None] ** -0.5; out = v * r * gain
//   u = u * gain; m = np.mean(u * rms, axis=1)[:, None]; out = r * (u - rms * m) + add
//   a = 1 / (1 + np.exp(-(a + bias)))
//   out = z * gain / (1 + np.exp(-z * gain))
//   s = 1 / (1 + np.exp(-z)); u = u * (s + z * s * (1 - s))
//   out = x + f * gain
//
// Everything is read and written once, but in rms_rows and its backward, which go through a
// row twice: a row of a warp (at D = 1024 and float32 4 KiB, 16 rows a multiprocessor at a
// time and more) is in the L1 cache then. Sums are in the state's dtype.
#include "helix.cuh"

// rms_rows<{float, double, __half, __nv_bfloat16}>: 48 registers
//
// z, add, sum, out [N, D]; gain [D]; scale [N]. add, sum, gain and scale may be null. sum
// becomes z + add, scale r. sum and out may each be z.
template <typename Storage>
__global__ void __launch_bounds__(BLOCK) rms_rows(
    const Storage* z, const Storage* __restrict__ add, Storage* sum,
    const Storage* __restrict__ gain, Storage* out, State<Storage>* __restrict__ scale,
    State<Storage> eps, long long N, int D, int lanes) {
    using S = State<Storage>;
    const Row row(N, D, lanes);
    const auto value = [&](long long i) {
        const S v = widen(z[i]);
        return add ? rounded<Storage>(v + widen(add[i])) : v;
    };
    S squares = 0;
    row.each(D, [&](long long i, int) { squares = fused(value(i), value(i), squares); });
    const S r = 1 / root(row.sum(squares) / D + eps);
    row.each(D, [&](long long i, int d) {
        const S v = value(i);
        if (sum) narrow(v, sum[i]);
        narrow(gain ? v * r * widen(gain[d]) : v * r, out[i]);
    });
    if (scale && row.live && row.lane == 0) scale[row.index] = r;
}

// rms_rows_back<{float, double, __half, __nv_bfloat16}>: 56 registers
//
// u, rms, add, out [N, D]; gain [D]; scale [N]. gain and add may be null. out may be u.
template <typename Storage>
__global__ void __launch_bounds__(BLOCK) rms_rows_back(
    const Storage* u, const Storage* __restrict__ rms,
    const State<Storage>* __restrict__ scale, const Storage* __restrict__ gain,
    const Storage* __restrict__ add, Storage* out, long long N, int D, int lanes) {
    using S = State<Storage>;
    const Row row(N, D, lanes);
    const auto cotangent = [&](long long i, int d) {
        return gain ? widen(u[i]) * widen(gain[d]) : widen(u[i]);
    };
    S dot = 0;
    row.each(D, [&](long long i, int d) {
        dot = fused(cotangent(i, d), widen(rms[i]), dot);
    });
    const S mean = row.sum(dot) / D, r = row.live ? scale[row.index] : S(0);
    row.each(D, [&](long long i, int d) {
        const S v = r * fused(-widen(rms[i]), mean, cotangent(i, d));
        narrow(add ? v + widen(add[i]) : v, out[i]);
    });
}

// gates<{float, double, __half, __nv_bfloat16}>: 32 registers
//
// a [N, D]; bias [D].
template <typename Storage>
__global__ void __launch_bounds__(BLOCK) gates(
    Storage* a, const Storage* __restrict__ bias, long long N, int D, int lanes) {
    Row(N, D, lanes).each(D, [&](long long i, int d) {
        narrow(sigmoid(widen(a[i]) + widen(bias[d])), a[i]);
    });
}

// silu<{float, double, __half, __nv_bfloat16}>: 32 registers
//
// z, out [N, D]; gain [D]. gain may be null. out may be z.
template <typename Storage>
__global__ void __launch_bounds__(BLOCK) silu(
    const Storage* z, const Storage* __restrict__ gain, Storage* out, long long N, int D,
    int lanes) {
    Row(N, D, lanes).each(D, [&](long long i, int d) {
        const auto v = gain ? widen(z[i]) * widen(gain[d]) : widen(z[i]);
        narrow(v * sigmoid(v), out[i]);
    });
}

// silu_back<{float, double, __half, __nv_bfloat16}>: 32 registers
//
// z, u, out [N, D]. u becomes u silu'(z), out is silu(z). out may be null. out may be z.
template <typename Storage>
__global__ void __launch_bounds__(BLOCK) silu_back(
    const Storage* z, Storage* __restrict__ u, Storage* out, long long N, int D,
    int lanes) {
    Row(N, D, lanes).each(D, [&](long long i, int) {
        const auto v = widen(z[i]), s = sigmoid(v);
        narrow(widen(u[i]) * silu_slope(s, v * s), u[i]);
        if (out) narrow(v * s, out[i]);
    });
}

// add_scaled<{float, double, __half, __nv_bfloat16}>: 32 registers
//
// x, f, out [N, D]; gain [D]. out may be x.
template <typename Storage>
__global__ void __launch_bounds__(BLOCK) add_scaled(
    const Storage* x, const Storage* __restrict__ f, const Storage* __restrict__ gain,
    Storage* out, long long N, int D, int lanes) {
    Row(N, D, lanes).each(D, [&](long long i, int d) {
        narrow(fused(widen(f[i]), widen(gain[d]), widen(x[i])), out[i]);
    });
}
