"""The HELIX block as one node: forward, backward, and what it keeps in between.

    xn = rms(x)·g1      a = sigmoid(xn wa' + bias)      h_t = a_t·h_{t-1} + (xn wb)_t
    s2 = silu(h·g2)     out1 = x + s2 wo
    xn2 = rms(out1)·g3  f1 = xn2 wf1      f2 = silu(f1) wf2      y = out1 + f2·g4

    rms(z) = z·r, r = (mean z² + eps)^(-1/2)        R(z, u) = r·(u - rms(z)·mean(u·rms(z)))

wa' is wa without its last row, the bias. R takes a cotangent u of rms(z) to one of z. The
block is that of the Rust crate g-cpu 0.1.0; the derivation of its gradients is the body
of `FusedHelix.vjp`, from the bottom of the formulas up.

Both directions go through the block in *tiles*: some time steps of some sequences, small
enough for the cache. A tile goes through all steps before the next one starts, so that
apart from what is kept nothing exists at full size. Tiles depend on the shape alone, and
sums over them are taken in their order: no machine and no thread count changes a result.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..backend import array_module
from ..errors import DoubleBackwardError
from ..op import Input, Intermediate, Op
from ..tensor import Tensor
from .policy import (
    INPUTS,
    KEEPABLE,
    VALUES,
    WEIGHTS,
    Call,
    Policy,
    kept,
    plan,
    predict_saved,
    resolve,
    wanted_names,
)

__all__ = ["FusedAux", "FusedHelix", "Tile", "tiles"]

TILE_ROWS = 512
PIECE = 2**15


class Tile(NamedTuple):
    """Steps t0..t1 of sequences b0..b1: rows r0..r1 of the arrays that the node keeps.

    Those arrays are [N, D] with their rows in the order of the work: all sequences of a
    step, then the next step. So a tile is one run of rows, and so is each of its steps.
    """

    b0: int
    b1: int
    t0: int
    t1: int
    r0: int
    r1: int

    @property
    def rows(self) -> int:
        return self.r1 - self.r0

    @property
    def group(self) -> int:
        return self.b1 - self.b0

    def of(self, array: Any) -> Any:
        """Its part of a [B, T, ·] array, as a view [steps, group, ·]."""
        return array[self.b0 : self.b1, self.t0 : self.t1].swapaxes(0, 1)

    def steps(self, rows: Any) -> Any:
        """[rows, D] of the tile as [steps, group, D]."""
        return rows.reshape(self.t1 - self.t0, self.group, rows.shape[1])


def tiles(B: int, T: int, D: int) -> list[Tile]:
    """All tiles, in the order of the forward pass."""
    result = []
    for b0 in range(0, B, TILE_ROWS):
        b1 = min(b0 + TILE_ROWS, B)
        steps = max(1, TILE_ROWS // (b1 - b0))
        for t0 in range(0, T, steps):
            t1 = min(t0 + steps, T)
            r0 = b0 * T + t0 * (b1 - b0)
            result.append(Tile(b0, b1, t0, t1, r0, r0 + (t1 - t0) * (b1 - b0)))
    return result


def _gemm(xp: Any, a: Any, b: Any, out: Any) -> None:
    """out = a b: every product of the node goes through here."""
    xp.matmul(a, b, out=out)


def _sigmoid(xp: Any, z: Any, out: Any) -> None:
    """out = 1 / (1 + e^(-z)). Where e^(-z) overflows, 1/∞ = 0 is the right value."""
    with np.errstate(over="ignore"):
        xp.negative(z, out=out)
        xp.exp(out, out=out)
        out += 1
        xp.divide(1, out, out=out)


def _row_means(xp: Any, a: Any, b: Any) -> Any:
    """The mean of a·b over each row, [n, 1]: a dot product a row."""
    mean = xp.matmul(a[:, None, :], b[:, :, None])[:, 0]
    mean /= a.shape[1]
    return mean


def _rms(xp: Any, z: Any, eps: float, out: Any) -> Any:
    """out = rms(z); returns r [n, 1]."""
    r = _row_means(xp, z, z)
    r += eps
    xp.sqrt(r, out=r)
    xp.divide(1, r, out=r)
    xp.multiply(z, r, out=out)
    return r


def _rms_backward(xp: Any, u: Any, rms: Any, r: Any, tmp: Any) -> None:
    """u becomes R(z, u), from rms(z) and r."""
    xp.multiply(rms, _row_means(xp, u, rms), out=tmp)
    u -= tmp
    u *= r


# Where a value lives while a tile is worked on, if it is not kept. Two share a place
# when the first is no longer needed once the second is made: in the forward pass, and in
# the order in which the backward pass asks for them.
_PLACES = {
    "rms1": "operand",
    "s2": "operand",
    "rms2": "operand",
    "xn2": "operand",
    "a": "result",
    "out1": "result",
    "h": "h",
    "f1": "f1",
}


class FusedAux:
    """What one fused call keeps, by name, and how everything else is made from it.

    `arrays[name]` is [N, D] (f1: [N, 2D]), rows as in `Tile`; `ready` names those that
    hold values. `value(name)` gives the rows of the current tile, read where they are
    ready and else made from their sources, by one method a value. With nothing ready
    that *is* the forward pass, which fills what is to be kept on the way.
    """

    def __init__(
        self,
        xp: Any,
        inputs: Mapping[str, Any],
        shape: tuple[int, int, int],
        dtype: Any,
        eps: float,
        arrays: dict[str, Any],
        ready: set[str],
    ) -> None:
        self.xp = xp
        self.inputs = inputs
        self.eps = eps
        self.shape = shape
        self.dtype = dtype
        self.arrays = arrays
        self.ready = ready
        self.tiles = tiles(*shape)
        self.tile = Tile(0, 0, 0, 0, 0, 0)
        self._most_rows = max((tile.rows for tile in self.tiles), default=0)
        self._scratch: dict[str, Any] = {}
        self._holds: dict[str, str] = {}  # place -> the value that it holds now
        self._x: Any = None
        self._folded: dict[str, Any] = {}

    # --- places

    def empty(self, name: str) -> Any:
        """A full-size array for a value that is to be kept."""
        B, T, D = self.shape
        return self.xp.empty((B * T, VALUES[name].width * D), self.dtype)

    def scratch(self, place: str, rows: int, columns: int) -> Any:
        """An uninitialised [rows, columns], the same memory for every tile."""
        flat = self._scratch.get(place)
        if flat is None or flat.size < rows * columns:
            most = max(rows, self._most_rows) * columns
            flat = self._scratch[place] = self.xp.empty(most, self.dtype)
        return flat[: rows * columns].reshape(rows, columns)

    def pieces(self, columns: int) -> Iterator[slice]:
        """The tile's rows in pieces for elementwise work, which stay in the L2 cache."""
        step = max(1, PIECE // columns)
        rows = self.tile.rows
        return (slice(i, min(i + step, rows)) for i in range(0, rows, step))

    def temporary(self, index: int, like: Any) -> Any:
        """A piece of scratch with the shape of `like`."""
        rows, columns = like.shape
        name = f"piece{index}"
        flat = self._scratch.get(name)
        if flat is None:
            most = max(PIECE, VALUES["f1"].width * self.shape[2])
            most = min(most, self._most_rows * VALUES["f1"].width * self.shape[2])
            flat = self._scratch[name] = self.xp.empty(most, self.dtype)
        return flat[: rows * columns].reshape(rows, columns)

    def load(self, array: Any, place: str) -> Any:
        """The tile's rows of a [B, T, D] array of any strides, as contiguous [rows, D]."""
        part = self.tile.of(array)
        rows = (self.tile.rows, array.shape[2])
        if part.flags.c_contiguous:
            return part.reshape(rows)
        copy = self.scratch(place, *rows)
        self.tile.steps(copy)[...] = part
        return copy

    # --- values

    def enter(self, tile: Tile) -> None:
        self.tile = tile
        self._x = None
        self._holds.clear()

    def value(self, name: str) -> Any:
        """The tile's rows of a value: [rows, width·D]."""
        tile = self.tile
        if name == "x":
            if self._x is None:
                self._x = self.load(self.inputs["x"], "x")
            return self._x
        if name in self.ready:
            return self.arrays[name][tile.r0 : tile.r1]
        place = _PLACES[name]
        if name in self.arrays:
            out = self.arrays[name][tile.r0 : tile.r1]
            if self._holds.get(name) == name:
                return out
            place = name
        else:
            out = self.scratch(place, tile.rows, VALUES[name].width * self.shape[2])
            if self._holds.get(place) == name:
                return out
        getattr(self, f"_{name}")(out)
        self._holds[place] = name
        return out

    def gates(self) -> Any:
        """a, with 0 where the state is reset."""
        a, reset = self.value("a"), self.inputs["reset"]
        if reset is None:
            return a
        gates = self.scratch("gates", *a.shape)
        gates[...] = a
        gates[self.tile.of(reset).reshape(-1)] = 0
        return gates

    def rebuild_states(self, with_gates: bool) -> None:
        """Make h, and a if it is wanted too, at full size: the scan runs forward."""
        names = ["h"] + (["a"] if with_gates and "a" not in self.ready else [])
        for name in names:
            self.arrays[name] = self.empty(name)
        for tile in self.tiles:
            self.enter(tile)
            self.value("h")
        self.ready.update(names)

    def folded(self, name: str) -> Any:
        """A weight with the gain beside it multiplied in, which saves a pass over rows:
        g1·wa', g1·wb, g3·wf1, wf2·g4."""
        if name not in self._folded:
            w = self.inputs[name]
            if name == "wf2":
                self._folded[name] = w * self.inputs["g4"]
            else:
                gain = self.inputs["g3" if name == "wf1" else "g1"]
                self._folded[name] = gain[:, None] * w[: self.shape[2]]
        return self._folded[name]

    def _rms1(self, out: Any) -> None:
        x = self.value("x")
        for p in self.pieces(out.shape[1]):
            _rms(self.xp, x[p], self.eps, out[p])

    def _a(self, out: Any) -> None:
        bias = self.inputs["wa"][-1]
        _gemm(self.xp, self.value("rms1"), self.folded("wa"), out)
        for p in self.pieces(out.shape[1]):
            out[p] += bias
            _sigmoid(self.xp, out[p], out[p])

    def _h(self, out: Any) -> None:
        tile, h0, D = self.tile, self.inputs["h0"], self.shape[2]
        gates = self.gates()
        _gemm(self.xp, self.value("rms1"), self.folded("wb"), out)
        carry = self.scratch("carry", tile.group, D)
        if tile.t0 == 0:
            carry[...] = 0 if h0 is None else h0[tile.b0 : tile.b1]
        multiply, add, before = self.xp.multiply, self.xp.add, carry
        for a, h in zip(tile.steps(gates), tile.steps(out), strict=True):
            multiply(a, before, out=carry)
            add(h, carry, out=h)
            before = h
        carry[...] = before

    def last_state(self) -> Any:
        """h after the tile's last step, [group, D]."""
        return self.scratch("carry", self.tile.group, self.shape[2])

    def states_before(self, place: str) -> Any:
        """h_{t-1} for the tile's rows; h must be ready."""
        tile, h, h0 = self.tile, self.arrays["h"], self.inputs["h0"]
        if tile.t0 > 0:
            return h[tile.r0 - tile.group : tile.r1 - tile.group]
        before = self.scratch(place, tile.rows, self.shape[2])
        before[: tile.group] = 0 if h0 is None else h0[tile.b0 : tile.b1]
        before[tile.group :] = h[tile.r0 : tile.r1 - tile.group]
        return before

    def _s2(self, out: Any) -> None:
        h, g2 = self.value("h"), self.inputs["g2"]
        for p in self.pieces(out.shape[1]):
            hg = self.temporary(0, out[p])
            self.xp.multiply(h[p], g2, out=hg)
            self.silu(hg, out[p])

    def _out1(self, out: Any) -> None:
        _gemm(self.xp, self.value("s2"), self.inputs["wo"], out)
        out += self.value("x")

    def _rms2(self, out: Any) -> None:
        out1 = self.value("out1")
        for p in self.pieces(out.shape[1]):
            _rms(self.xp, out1[p], self.eps, out[p])

    def _xn2(self, out: Any) -> None:
        self._rms2(out)
        out *= self.inputs["g3"]

    def _f1(self, out: Any) -> None:
        if "xn2" in self.arrays:
            _gemm(self.xp, self.value("xn2"), self.inputs["wf1"], out)
        else:
            _gemm(self.xp, self.value("rms2"), self.folded("wf1"), out)

    def branch(self) -> Any:
        """f2·g4 of the tile."""
        f1, tile, D = self.value("f1"), self.tile, self.shape[2]
        sf = self.scratch("sf", *f1.shape)
        for p in self.pieces(f1.shape[1]):
            self.silu(f1[p], sf[p])
        f = self.scratch("operand", tile.rows, D)
        if "f2" in self.arrays:
            f2 = self.arrays["f2"][tile.r0 : tile.r1]
            _gemm(self.xp, sf, self.inputs["wf2"], f2)
            self.xp.multiply(f2, self.inputs["g4"], out=f)
        else:
            _gemm(self.xp, sf, self.folded("wf2"), f)
        return f

    # --- silu, of pieces

    def silu(self, z: Any, out: Any) -> None:
        """out = z·s, s = sigmoid(z)."""
        s = self.temporary(1, z)
        _sigmoid(self.xp, z, s)
        self.xp.multiply(z, s, out=out)

    def silu_backward(self, z: Any, u: Any, silu: Any, known: bool) -> None:
        """u becomes u·silu'(z), silu'(z) = s + silu(z)·(1 - s); `silu` is filled unless
        it is known."""
        s, t = self.temporary(1, z), self.temporary(2, z)
        _sigmoid(self.xp, z, s)
        if not known:
            self.xp.multiply(z, s, out=silu)
        self.xp.subtract(1, s, out=t)
        t *= silu
        t += s
        u *= t


class FusedHelix(Op):
    """y, or (y, h_T), of the HELIX block; all gradients by the formulas in `vjp`.

    Keeps of x a h s2 out1 xn2 f1 f2 what `policy` says and a wanted gradient reads, h0
    and the reset mask where read, and the weights. k values a token are k·B·T·D·itemsize
    bytes, h0 B·D·itemsize, the mask (bools) B·T. The second derivative is not offered.
    """

    saves = {
        name: Input(INPUTS.index(name)) if name in INPUTS else Intermediate()
        for name in (*INPUTS, *KEEPABLE)
    }

    @staticmethod
    def predict(inputs, needs, *, eps, policy, return_state):
        shape, dtype = inputs[0]
        h0, reset = inputs[10] is not None, inputs[11] is not None
        call = Call(shape, dtype.itemsize, wanted_names(needs), h0, reset)
        return predict_saved(policy, call)

    @staticmethod
    def forward(xp, *arrays, needs, eps, policy, return_state):
        inputs = dict(zip(INPUTS, arrays, strict=True))
        x, h0, reset = inputs["x"], inputs["h0"], inputs["reset"]
        wanted = wanted_names(needs)
        call = Call(x.shape, x.dtype.itemsize, wanted, h0 is not None, reset is not None)
        keep = resolve(policy, call)
        aux = FusedAux(xp, inputs, x.shape, x.dtype, eps, {}, set())
        for name in kept(call, keep):
            if name not in INPUTS:
                aux.arrays[name] = aux.empty(name)

        B, _, D = x.shape
        y = xp.empty(x.shape, x.dtype)
        h_last = xp.zeros((B, D), x.dtype) if h0 is None else xp.array(h0, order="C")
        for tile in aux.tiles:
            aux.enter(tile)
            f, out1 = aux.branch(), aux.value("out1")
            xp.add(tile.steps(f), tile.steps(out1), out=tile.of(y))
            h_last[tile.b0 : tile.b1] = aux.last_state()

        reads = plan(wanted, frozenset(keep)).reads
        saved = aux.arrays | {name: inputs[name] for name in INPUTS if name in reads}
        return ((y, h_last) if return_state else y), saved

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, eps, policy, return_state):
        gy, gh_last = dy if return_state else (dy, None)
        if isinstance(gy, Tensor):
            raise DoubleBackwardError(
                "fused_helix has no second derivative: its backward pass is not on the "
                "tape. Use mode='composed', or drop create_graph=True."
            )
        xp = array_module(gy)
        B, T, D = shape = inputs[0][0]
        wanted = wanted_names(needs)
        arrays = {n: saved[n] for n in KEEPABLE[1:] if saved[n] is not None}
        todo = plan(wanted, frozenset(("x", *arrays)))
        g1, g2, g3, g4 = (saved[name] for name in ("g1", "g2", "g3", "g4"))
        wa, wb, wo, wf1, wf2 = (saved[name] for name in ("wa", "wb", "wo", "wf1", "wf2"))

        aux = FusedAux(xp, saved, shape, gy.dtype, eps, arrays, set(arrays))
        if "h" in todo.made:
            aux.rebuild_states(with_gates=todo.scan)
        grads = {n: xp.zeros(inputs[i][0], gy.dtype) for i, n in enumerate(INPUTS) if needs[i]}
        gg1, gg2, gg3, gg4 = (grads.get(name) for name in ("g1", "g2", "g3", "g4"))
        m = grads.get("wf2")  # silu(f1)^T gy until the end, where it becomes gwf2
        if m is None and gg4 is not None and not todo.gg4_from_f2:
            m = xp.zeros((2 * D, D), gy.dtype)
        carry = xp.zeros((B, D), gy.dtype)  # a_{t+1}·G_{t+1}, and gh0 in the end
        if gh_last is not None:
            carry += gh_last
        product = xp.empty(2 * D * D, gy.dtype) if len(aux.tiles) > 1 else None

        def add_product(total, a, b):
            if tile is aux.tiles[-1]:
                _gemm(xp, a, b, total)
            else:
                part = product[: total.size].reshape(total.shape)
                _gemm(xp, a, b, part)
                total += part

        def add_columns(total, a, b):
            t = aux.temporary(0, a)
            xp.multiply(a, b, out=t)
            total += t.sum(axis=0)

        for tile in reversed(aux.tiles):
            n = tile.rows
            aux.enter(tile)
            gy_ = aux.load(gy, "gy")
            # y = out1 + f·g4, f = silu(f1) wf2
            if todo.gg4_from_f2:
                f2 = aux.value("f2")
                for p in aux.pieces(D):
                    add_columns(gg4, gy_[p], f2[p])
            wide = aux.scratch("sf", 2 * n, D)
            wide2 = aux.scratch("dpre", 2 * n, D)
            sf, dpre = wide.reshape(n, 2 * D), wide2.reshape(n, 2 * D)
            d1, d2 = aux.scratch("d1", n, D), aux.scratch("d2", n, D)
            if todo.pre:
                f1 = aux.value("f1")
                _gemm(xp, gy_, aux.folded("wf2").T, dpre)
                for p in aux.pieces(2 * D):
                    aux.silu_backward(f1[p], dpre[p], sf[p], known=False)
            elif m is not None:
                f1 = aux.value("f1")
                for p in aux.pieces(2 * D):
                    aux.silu(f1[p], sf[p])
            if m is not None:
                add_product(m, sf.T, gy_)
            if not todo.pre:
                continue

            # f1 = rms(out1)·g3 wf1
            rms2, dout1 = d1, d2
            r2 = xp.empty((n, 1), gy.dtype)
            if todo.out1 or gg3 is not None or "xn2" not in arrays:
                out1 = aux.value("out1")
                for p in aux.pieces(D):
                    r2[p] = _rms(xp, out1[p], eps, rms2[p])
            if "wf1" in grads:
                xn2 = aux.value("xn2") if "xn2" in arrays else rms2
                add_product(grads["wf1"], xn2.T, dpre)
            if todo.dxn2:
                w = wf1 if todo.gg3_by_rows else aux.folded("wf1")
                _gemm(xp, dpre, w.T, dout1)
            for p in aux.pieces(D):
                if todo.gg3_by_rows:
                    add_columns(gg3, dout1[p], rms2[p])
                    if todo.out1:
                        dout1[p] *= g3
                if todo.out1:
                    _rms_backward(xp, dout1[p], rms2[p], r2[p], aux.temporary(0, dout1[p]))
                    dout1[p] += gy_[p]
            if not todo.out1:
                continue

            # out1 = x + silu(h·g2) wo
            s2, dh = wide[:n], wide[n:]
            if "s2" in arrays or not todo.hidden:
                s2 = aux.value("s2")
            if todo.hidden:
                h = aux.value("h")
                _gemm(xp, dout1, wo.T, dh)
                for p in aux.pieces(D):
                    hg = aux.temporary(0, dh[p])
                    xp.multiply(h[p], g2, out=hg)
                    aux.silu_backward(hg, dh[p], s2[p], known="s2" in arrays)
                    if gg2 is not None:
                        add_columns(gg2, dh[p], h[p])
                    dh[p] *= g2
            if "wo" in grads:
                add_product(grads["wo"], s2.T, dout1)
            if not todo.scan:
                continue

            # h_t = a_t·h_{t-1} + ub_t: G_t = dh_t + a_{t+1}·G_{t+1}
            a, gub = aux.gates(), dh
            multiply, add, after = xp.multiply, xp.add, carry[tile.b0 : tile.b1]
            for a_t, g_t in zip(tile.steps(a)[::-1], tile.steps(gub)[::-1], strict=True):
                add(g_t, after, out=g_t)
                multiply(a_t, g_t, out=after)

            # a = sigmoid(ua), ga_t = G_t·h_{t-1}
            gua, rms1 = wide2[:n], wide2[n:]
            if todo.gate:
                before = aux.states_before("gy")
                for p in aux.pieces(D):
                    xp.subtract(1, a[p], out=gua[p])
                    gua[p] *= a[p]
                    gua[p] *= before[p]
                    gua[p] *= gub[p]
                    if "wa" in grads:
                        grads["wa"][D] += gua[p].sum(axis=0)
            if not (todo.gate or todo.inner):
                continue

            # ua = xn wa' + bias, ub = xn wb, xn = rms(x)·g1
            x = aux.value("x")
            r1 = xp.empty((n, 1), gy.dtype)
            for p in aux.pieces(D):
                r1[p] = _rms(xp, x[p], eps, rms1[p])
            if "wa" in grads:
                add_product(grads["wa"][:D], rms1.T, gua)
            if "wb" in grads:
                add_product(grads["wb"], rms1.T, gub)
            if not todo.dxn:
                continue
            dxn, part = aux.scratch("gy", n, D), d1
            by_rows = todo.gg1_by_rows
            _gemm(xp, gua, (wa[:D] if by_rows else aux.folded("wa")).T, dxn)
            _gemm(xp, gub, (wb if by_rows else aux.folded("wb")).T, part)
            for p in aux.pieces(D):
                dxn[p] += part[p]
                if by_rows:
                    add_columns(gg1, dxn[p], rms1[p])
                    dxn[p] *= g1
                if "x" in grads:
                    _rms_backward(xp, dxn[p], rms1[p], r1[p], aux.temporary(0, dxn[p]))
            if "x" in grads:
                xp.add(tile.steps(dxn), tile.steps(dout1), out=tile.of(grads["x"]))

        # What the sums over all rows leave to do on small matrices.
        if m is not None:
            if gg4 is not None and not todo.gg4_from_f2:
                gg4 += xp.einsum("fd,fd->d", wf2, m)
            if "wf2" in grads:
                m *= g4
        if "wf1" in grads and "xn2" not in arrays:
            if gg3 is not None:
                gg3 += xp.einsum("df,df->d", wf1, grads["wf1"])
            grads["wf1"] *= g3[:, None]
        if gg1 is not None and not todo.gg1_by_rows:
            gg1 += xp.einsum("de,de->d", wa[:D], grads["wa"][:D])
            gg1 += xp.einsum("de,de->d", wb, grads["wb"])
        if "wa" in grads:
            grads["wa"][:D] *= g1[:, None]
        if "wb" in grads:
            grads["wb"] *= g1[:, None]
        if "h0" in grads:
            grads["h0"] = carry
        return tuple(grads.get(name) for name in INPUTS)
