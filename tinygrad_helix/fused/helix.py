"""The HELIX block as one node: forward, backward, and what it keeps in between.

    xn = rms(x)·g1      a = sigmoid(xn wa' + bias)      h_t = a_t·h_{t-1} + (xn wb)_t
    s2 = silu(h·g2)     out1 = x + s2 wo
    xn2 = rms(out1)·g3  f1 = xn2 wf1      f2 = silu(f1) wf2      y = out1 + f2·g4

    rms(z) = z·r, r = (mean z² + eps)^(-1/2)        R(z, u) = r·(u - rms(z)·mean(u·rms(z)))

wa' is wa without its last row, the bias. R takes a cotangent u of rms(z) to one of z. The
block is that of the Rust crate g-cpu 0.1.0; the derivation of its gradients is the body
of `FusedHelix.vjp`, which follows the formulas from the last to the first.

Both directions go through the block in *tiles*: some time steps of some sequences, few
enough for the cache. A tile goes through all steps of the formulas at once, and few tiles
are in work at a time, so nothing but what is kept exists at full size. Tiles depend on the
shape alone, and sums over them are taken in a fixed order: no number of threads changes a
result.

Gains are multiplied into the weights beside them (g1·wa', g1·wb, g3·wf1, wf2·g4), and
their gradients come from the products for those weights' gradients: with
M = silu(f1)^T dy, for one, gwf2 = M·g4 and gg4 is the column sums of wf2·M.
"""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from ..backend import array_module
from ..errors import DoubleBackwardError
from ..op import Input, Intermediate, Op
from ..tensor import Tensor
from .policy import INPUTS, KEEPABLE, VALUES, Call, kept, plan, resolve, wanted_names
from .tiles import Tile, Tiled, gemm

__all__ = ["FusedAux", "FusedHelix"]


def _sigmoid(xp: Any, z: Any, out: Any) -> None:
    """out = 1 / (1 + e^(-z)). Where e^(-z) overflows, 1/∞ = 0 is the right value."""
    with np.errstate(over="ignore"):
        xp.negative(z, out=out)
        xp.exp(out, out=out)
        out += 1
        xp.divide(1, out, out=out)


def _row_means(xp: Any, a: Any, b: Any) -> Any:
    """The mean of a·b over each row, [n, 1], by a dot product a row."""
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


# Where the rows of a value are while its tile is worked on, if it is not kept. Two share
# a place when the first is done with before the second is made; both directions ask for
# them in that order.
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
# Scratch has a row of D, or of 2D, for each row of the tile; "product" is a matrix of 2D².
_WIDE = ("f1", "wide1", "wide2")


class FusedAux(Tiled):
    """What one fused call keeps, by name, and how everything else is made from it.

    `arrays[name]` is [N, D] (f1: [N, 2D]), rows as in `Tile`; `ready` names those that
    hold values. `value(name)` gives the rows of the current tile: read where ready, and
    else made from their sources, by one method a value. With nothing ready that *is* the
    forward pass, which fills what is to be kept on its way.
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
        super().__init__(xp, shape, dtype)
        self.inputs = inputs
        self.eps = eps
        self.arrays = arrays
        self.ready = ready
        self._folded: dict[str, Any] = {}
        self._holds: dict[str, str] = {}  # place -> the value that it holds
        self._x: Any = None
        self.carry: Any = None  # [B, D], the state that a scan hands from tile to tile

    def lane(self) -> Self:
        lane = super().lane()
        lane._holds = {}
        lane.reserve_places(*self._places)
        return lane

    def enter(self, tile: Tile, index: int) -> None:
        super().enter(tile, index)
        self._holds.clear()
        self._x = None

    def empty(self, name: str) -> Any:
        """An array for a value at full size."""
        B, T, D = self.shape
        return self.xp.empty((B * T, VALUES[name].width * D), self.dtype)

    def reserve_places(self, *places: str) -> None:
        """Scratch for these, as one array."""
        self._places = places
        rows, D = self.most_rows, self.shape[2]
        heights = {
            p: 2 * D if p == "product" else (1 + (p in _WIDE)) * rows
            for p in places
            if p != "x" or self.shape[0] > 1  # one sequence is read where it is
        }
        self.reserve({place: height * D for place, height in heights.items()})

    # --- values, in the order of the formulas

    def value(self, name: str) -> Any:
        """The tile's rows of a value: [rows, D], or [rows, 2D] of f1."""
        tile = self.tile
        if name == "x":
            if self._x is None:
                self._x = self.load(self.inputs["x"], "x")
            return self._x
        if name in self.arrays:
            place, out = name, self.arrays[name][tile.r0 : tile.r1]
        else:
            place = _PLACES[name]
            out = self.scratch(place, tile.rows, VALUES[name].width * self.shape[2])
        if name not in self.ready and self._holds.get(place) != name:
            getattr(self, f"_{name}")(out)
            self._holds[place] = name
        return out

    def folded(self, name: str) -> Any:
        """g1·wa', g1·wb, g3·wf1 or wf2·g4."""
        with self.lock:
            if name not in self._folded:
                w = self.inputs[name] if name != "wa" else self.inputs["wa"][:-1]
                gain = self.inputs[{"wf2": "g4", "wf1": "g3"}.get(name, "g1")]
                out = self.xp.multiply(w, gain if name == "wf2" else gain[:, None])
                self._folded[name] = out
            return self._folded[name]

    def _rms1(self, out: Any) -> None:
        x = self.value("x")
        for p in self.pieces(out.shape[1]):
            _rms(self.xp, x[p], self.eps, out[p])

    def _a(self, out: Any) -> None:
        bias = self.inputs["wa"][-1]
        gemm(self.value("rms1"), self.folded("wa"), out)
        for p in self.pieces(out.shape[1]):
            out[p] += bias
            _sigmoid(self.xp, out[p], out[p])

    def cuts(self) -> Any:
        """Where the tile's states are reset, [steps, group], or None. The carry is dropped
        there, whatever it is: 0 times it would let through a NaN."""
        reset = self.inputs["reset"]
        return None if reset is None else self.tile.of(reset)

    def _h(self, out: Any) -> None:
        tile, a, cuts = self.tile, self.value("a"), self.cuts()
        gemm(self.value("rms1"), self.folded("wb"), out)
        multiply, add, steps = self.xp.multiply, self.xp.add, tile.steps(a)
        with self.turn("scan"):
            carry = before = self.carry[tile.b0 : tile.b1]
            for t, h_t in enumerate(tile.steps(out)):
                multiply(steps[t], before, out=carry)
                if cuts is not None:
                    carry[cuts[t]] = 0
                add(h_t, carry, out=h_t)
                before = h_t
            carry[...] = before

    def begin_scan(self) -> Any:
        """A carry with the initial state: the final one when all tiles are through."""
        B, _, D = self.shape
        h0 = self.inputs["h0"]
        self.carry = self.xp.zeros((B, D), self.dtype) if h0 is None else h0.copy()
        return self.carry

    def states_before(self, place: str) -> Any:
        """h_{t-1} for the tile's rows, once h is ready."""
        tile, h, h0 = self.tile, self.arrays["h"], self.inputs["h0"]
        if tile.t0 > 0:
            return h[tile.r0 - tile.group : tile.r1 - tile.group]
        before = self.scratch(place, tile.rows, self.shape[2])
        before[: tile.group] = 0 if h0 is None else h0[tile.b0 : tile.b1]
        before[tile.group :] = h[tile.r0 : tile.r1 - tile.group]
        return before

    def rebuild_states(self, with_gates: bool) -> None:
        """Make h, and a too if it is wanted, at full size: the sweep goes backwards
        through them, the scan only forwards."""
        names = ["h", "a"] if with_gates and "a" not in self.ready else ["h"]
        for name in names:
            self.arrays[name] = self.empty(name)
        self.begin_scan()
        self.run(lambda lane: lane.value("h"))
        self.ready.update(names)

    def _s2(self, out: Any) -> None:
        h, g2 = self.value("h"), self.inputs["g2"]
        for p in self.pieces(out.shape[1]):
            hg = self.temporary(0, out[p])
            self.xp.multiply(h[p], g2, out=hg)
            self.silu(hg, out[p])

    def _out1(self, out: Any) -> None:
        gemm(self.value("s2"), self.inputs["wo"], out)
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
            gemm(self.value("xn2"), self.inputs["wf1"], out)
        else:
            gemm(self.value("rms2"), self.folded("wf1"), out)

    def branch(self) -> Any:
        """f2·g4, the last step of the forward pass; f2 is filled if it is to be kept."""
        xp, f1, tile = self.xp, self.value("f1"), self.tile
        sf = self.scratch("wide1", *f1.shape)
        for p in self.pieces(f1.shape[1]):
            self.silu(f1[p], sf[p])
        out = self.scratch("operand", tile.rows, self.shape[2])
        if "f2" in self.arrays:
            f2 = self.arrays["f2"][tile.r0 : tile.r1]
            gemm(sf, self.inputs["wf2"], f2)
            xp.multiply(f2, self.inputs["g4"], out=out)
        else:
            gemm(sf, self.folded("wf2"), out)
        return out

    # --- steps on pieces and tiles that the backward pass has too

    def silu(self, z: Any, out: Any) -> None:
        """out = z·s, s = sigmoid(z)."""
        s = self.temporary(1, z)
        _sigmoid(self.xp, z, s)
        self.xp.multiply(z, s, out=out)

    def silu_backward(self, z: Any, u: Any, silu: Any, known: bool) -> None:
        """u becomes u·silu'(z), silu'(z) = s + silu(z)·(1 - s); silu(z) is filled in
        unless it is known."""
        s, t = self.temporary(1, z), self.temporary(2, z)
        _sigmoid(self.xp, z, s)
        if not known:
            self.xp.multiply(z, s, out=silu)
        self.xp.subtract(1, s, out=t)
        t *= silu
        t += s
        u *= t

    def rms_backward(self, u: Any, rms: Any, r: Any) -> None:
        """u becomes R(z, u), from rms(z) and r."""
        t = self.temporary(0, u)
        self.xp.multiply(rms, _row_means(self.xp, u, rms), out=t)
        u -= t
        u *= r


class FusedHelix(Op):
    """xn = rms(x)·g1      a = sigmoid(xn wa' + bias)      h_t = a_t·h_{t-1} + (xn wb)_t
    s2 = silu(h·g2)     out1 = x + s2 wo
    xn2 = rms(out1)·g3  f1 = xn2 wf1      y = out1 + (silu(f1) wf2)·g4
    gradients: the body of `vjp`, which follows these lines from the last to the first.

    The result is y, or (y, h_T).
    Keeps of x a h s2 out1 xn2 f1 f2 those that `policy` names and a wanted gradient
    reads, h0 and the reset mask where they are read, and weights. k values a token are
    k·B·T·D·itemsize bytes, h0 is B·D·itemsize, the mask (of bools) B·T.
    """

    saves = {
        name: Input(INPUTS.index(name)) if name in INPUTS else Intermediate()
        for name in (*INPUTS, *KEEPABLE)
    }

    @staticmethod
    def predict(inputs, needs, *, eps, policy, return_state):
        call = _call(inputs, needs)
        return kept(call, resolve(policy, call))

    @staticmethod
    def forward(xp, *arrays, needs, eps, policy, return_state):
        inputs: dict[str, Any] = dict(zip(INPUTS, arrays, strict=True))
        x = inputs["x"]
        call = _call([None if v is None else (v.shape, v.dtype) for v in arrays], needs)
        keep = resolve(policy, call)
        aux = FusedAux(xp, inputs, x.shape, x.dtype, eps, {}, set())
        for name in kept(call, keep):
            if name not in INPUTS:
                aux.arrays[name] = aux.empty(name)
        made = [_PLACES[name] for name in _PLACES if name not in aux.arrays]
        aux.reserve_places("x", "wide1", *made)

        y, h_T = xp.empty(x.shape, x.dtype), aux.begin_scan()

        def forward_tile(aux: FusedAux) -> None:
            f, out1, tile = aux.branch(), aux.value("out1"), aux.tile
            xp.add(tile.steps(f), tile.steps(out1), out=tile.of(y))

        aux.run(forward_tile)
        reads = plan(call.wanted, frozenset(keep)).reads
        saved = aux.arrays | {name: inputs[name] for name in INPUTS if name in reads}
        return ((y, h_T) if return_state else y), saved

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, eps, policy, return_state):
        dy, dh_T = dy if return_state else (dy, None)
        if isinstance(dy, Tensor):
            raise DoubleBackwardError(
                "fused_helix has no second derivative: its backward pass is not on the "
                "tape. Use helix_block(..., mode='composed'), or drop create_graph=True."
            )
        xp, dtype = array_module(dy), dy.dtype
        B, _, D = shape = inputs[0][0]
        g1, g2, g3, g4, wa, wb, wo, wf1, wf2 = (
            saved[n] for n in ("g1", "g2", "g3", "g4", "wa", "wb", "wo", "wf1", "wf2")
        )
        arrays = {n: saved[n] for n in KEEPABLE if n != "x" and saved[n] is not None}
        todo = plan(wanted_names(needs), frozenset(("x", *arrays)))
        aux = FusedAux(xp, saved, shape, dtype, eps, arrays, set(arrays))
        aux.reserve_places(*todo.scratch)
        if "h" in todo.made:
            aux.rebuild_states(with_gates=todo.scan)

        grads = {n: xp.zeros(inputs[i][0], dtype) for i, n in enumerate(INPUTS) if needs[i]}
        gg1, gg2, gg3, gg4 = (grads.get(name) for name in ("g1", "g2", "g3", "g4"))
        M = grads.get("wf2")  # silu(f1)^T dy; times g4 in the end
        if todo.gg4_from_m and M is None:
            M = xp.zeros((2 * D, D), dtype)
        carry = xp.zeros((B, D), dtype)  # a_{t+1}·G_{t+1}: in the end a_0·G_0 = gh0
        if dh_T is not None:
            carry += dh_T

        def backward_tile(aux: FusedAux) -> None:
            tile, n = aux.tile, aux.tile.rows
            gy = aux.load(dy, "gy")

            # y = out1 + f2·g4, f2 = silu(f1) wf2
            if todo.gg4_from_f2:
                f2 = aux.value("f2")
                for p in aux.pieces(D):
                    aux.add_columns(gg4, "g4", gy[p], f2[p])
            if todo.pre or M is not None:
                f1 = aux.value("f1")
                sf = aux.scratch("wide1", n, 2 * D)
            if todo.pre:
                dpre = aux.scratch("wide2", n, 2 * D)
                gemm(gy, aux.folded("wf2").T, dpre)
                for p in aux.pieces(2 * D):
                    aux.silu_backward(f1[p], dpre[p], sf[p], known=False)
            elif M is not None:
                for p in aux.pieces(2 * D):
                    aux.silu(f1[p], sf[p])
            if M is not None:
                aux.add_product(M, "wf2", sf.T, gy)
            if not todo.pre:
                return

            # f1 = xn2 wf1, xn2 = rms(out1)·g3
            rms2, dout1 = aux.scratch("rms2", n, D), aux.scratch("dout1", n, D)
            r = xp.empty((n, 1), dtype)
            if "rms2" in todo.made:
                out1 = aux.value("out1")
                for p in aux.pieces(D):
                    r[p] = _rms(xp, out1[p], eps, rms2[p])
            if "wf1" in grads:
                xn2 = aux.value("xn2") if "xn2" in arrays else rms2
                aux.add_product(grads["wf1"], "wf1", xn2.T, dpre)
            if todo.dxn2:
                w = wf1 if todo.gg3_by_rows else aux.folded("wf1")
                gemm(dpre, w.T, dout1)
            for p in aux.pieces(D):
                if todo.gg3_by_rows:
                    aux.add_columns(gg3, "g3", dout1[p], rms2[p])
                if todo.out1:
                    if todo.gg3_by_rows:
                        dout1[p] *= g3
                    aux.rms_backward(dout1[p], rms2[p], r[p])
                    dout1[p] += gy[p]
            if not todo.out1:
                return

            # out1 = x + s2 wo, s2 = silu(h·g2)
            s2, dh = aux.halves("wide1")
            if "s2" in arrays or not todo.hidden:
                s2 = aux.value("s2")
            if todo.hidden:
                h = aux.value("h")
                gemm(dout1, wo.T, dh)
                for p in aux.pieces(D):
                    hg = aux.temporary(0, dh[p])
                    xp.multiply(h[p], g2, out=hg)
                    aux.silu_backward(hg, dh[p], s2[p], known="s2" in arrays)
                    if gg2 is not None:
                        aux.add_columns(gg2, "g2", dh[p], h[p])
                    dh[p] *= g2
            if "wo" in grads:
                aux.add_product(grads["wo"], "wo", s2.T, dout1)
            if not todo.scan:
                return

            # h_t = a_t·h_{t-1} + ub_t: gub_t = G_t = dh_t + a_{t+1}·G_{t+1}
            a, gub, after = aux.value("a"), dh, carry[tile.b0 : tile.b1]
            multiply, add, cuts = xp.multiply, xp.add, aux.cuts()
            a_steps, g_steps = tile.steps(a), tile.steps(gub)
            with aux.turn("scan"):
                for t in range(len(g_steps) - 1, -1, -1):
                    add(g_steps[t], after, out=g_steps[t])
                    multiply(a_steps[t], g_steps[t], out=after)
                    if cuts is not None:
                        after[cuts[t]] = 0

            # a = sigmoid(ua): gua_t = G_t·h_{t-1}·a_t·(1 - a_t)
            gua, rms1 = aux.halves("wide2")
            if todo.gate:
                before = aux.states_before("gy")
                cut = None if cuts is None else cuts.reshape(-1)
                for p in aux.pieces(D):
                    xp.subtract(1, a[p], out=gua[p])
                    gua[p] *= a[p]
                    gua[p] *= before[p]
                    gua[p] *= gub[p]
                    if cut is not None:
                        gua[p][cut[p]] = 0
                    if "wa" in grads:
                        aux.add_to(grads["wa"][D], "bias", gua[p])
            if not (todo.gate or todo.inner):
                return

            # ua = xn wa' + bias, ub = xn wb, xn = rms(x)·g1
            x = aux.value("x")
            for p in aux.pieces(D):
                r[p] = _rms(xp, x[p], eps, rms1[p])
            if "wa" in grads:
                aux.add_product(grads["wa"][:D], "wa", rms1.T, gua)
            if "wb" in grads:
                aux.add_product(grads["wb"], "wb", rms1.T, gub)
            if not todo.dxn:
                return
            dxn, part = aux.scratch("gy", n, D), aux.scratch("rms2", n, D)
            by_rows = todo.gg1_by_rows
            gemm(gua, (wa[:D] if by_rows else aux.folded("wa")).T, dxn)
            gemm(gub, (wb if by_rows else aux.folded("wb")).T, part)
            for p in aux.pieces(D):
                dxn[p] += part[p]
                if by_rows:
                    aux.add_columns(gg1, "g1", dxn[p], rms1[p])
                if "x" in grads:
                    if by_rows:
                        dxn[p] *= g1
                    aux.rms_backward(dxn[p], rms1[p], r[p])
            if "x" in grads:
                xp.add(tile.steps(dxn), tile.steps(dout1), out=tile.of(grads["x"]))

        aux.run(backward_tile, backwards=True)

        # What sums over all rows leave to do on matrices: the gains.
        if todo.gg4_from_m:
            gg4 += xp.einsum("fd,fd->d", wf2, M)
        if "wf2" in grads:
            M *= g4
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
        return tuple([grads.get(name) for name in INPUTS])


def _call(inputs: Any, needs: Any) -> Call:
    """What bytes and FLOPs depend on, of the (shape, dtype) of the node's inputs."""
    (shape, dtype), h0, reset = inputs[0], inputs[10], inputs[11]
    wanted = wanted_names(needs)
    return Call(shape, dtype.itemsize, wanted, h0 is not None, reset is not None)
