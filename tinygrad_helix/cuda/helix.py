"""The fused HELIX block on CUDA: its products by cuBLAS, all else by raw kernels.

The mathematics, the names and what is kept are those of `fused.helix`; what a call
rebuilds is said by the same `plan`. Where the CPU goes through the block in tiles that fit
its cache, a GPU takes a whole tensor at each step, and a step is as many of the block's
formulas as one pass over memory can do:

    forward     rms of x | [ua | ub] = rms1 [g1·wa' | g1·wb] | gates, scan and silu in one |
                s2 wo | out1 = x + that, and its rms | f1 | silu | y: 4 products, 5 kernels
    backward    8 products, 11 kernels: the body of `_Pass.backward`

(keep6, time uncut; a scan over few channels takes two kernels more.) Arrays that are kept
are [N, D] (f1: [N, 2D]) with the rows of [B, T], and own their storage.

Memory of a backward pass beyond what it starts from and returns, in elements, for keep9 and
keep6: at most 4·N·D + N for the tensors of a step, N·D/T or less for sums, 8·D² for weights
with their gains; and N·D more for a cotangent that is not contiguous. cuBLAS's workspace
(`Blas.workspace_bytes`) is the device's, for all products.
"""

from collections.abc import Mapping
from typing import Any

from ..backend import get_backend
from ..fused.helix import FusedHelix
from ..fused.policy import INPUTS, KEEPABLE, Call, Plan, kept, plan, resolve, wanted_names
from ..kernels import register_kernel
from .pointwise import Kernels
from .sizes import dtypes

__all__ = ["CudaHelix"]


class _Pass(Kernels):
    """One direction of one call: what there is by name, and how the rest is made.

    `arrays[name]` is a value of the forward pass at full size: kept ones from the start,
    others from where they are made to where they are last read.
    """

    def __init__(
        self,
        device: Any,
        inputs: Mapping[str, Any],
        shape: tuple[int, int, int],
        dtype: Any,
        eps: float,
        arrays: dict[str, Any],
    ) -> None:
        super().__init__(device, shape, dtype)
        self.inputs = inputs
        self.eps = eps
        self.arrays = arrays
        self.kept = frozenset(arrays)
        self.gated: Any = None  # g1·[wa' | wb]
        self.up: Any = None  # g3·wf1
        self.down: Any = None  # wf2·g4
        self.scale2: Any = None  # of the rms of out1, [N]

    def rows(self, array: Any) -> Any:
        """A [B, T, D] array as contiguous [N, D]: where it is, or else a copy."""
        return self.xp.ascontiguousarray(array).reshape(self.N, self.D)

    def drop(self, *names: str) -> None:
        """Forget values that are not kept."""
        for name in names:
            if name not in self.kept:
                self.arrays.pop(name, None)

    def fold_gains(self, *, gates: bool, up: bool, down: bool) -> None:
        """The weights times the gains beside them, those that are asked for."""
        D = self.D
        self.gated = self.new(D, 2 * D) if gates else None
        self.up = self.new(D, 2 * D) if up else None
        self.down = self.new(2 * D, D) if down else None
        if gates or up or down:
            self.fold(self.inputs, self.gated, self.up, self.down)

    # --- values, in the order of the formulas

    def value(self, name: str) -> Any:
        if name not in self.arrays:
            self.arrays[name] = getattr(self, f"_{name}")()
        return self.arrays[name]

    def make_states(self, names: set[str], last: Any = None) -> None:
        """Make those of a, h and s2 that are named, and the final state.

        h is made by a scan, and s2 with it, from gates that are there or made with it; a by
        itself needs no scan.
        """
        N, D, w = self.N, self.D, self.inputs
        rms1 = self.new(N, D)
        self.rms(self.rows(w["x"]), rms1, self.eps)
        made: dict[str, Any] = {}
        if "a" in self.arrays:
            pre = made["h"] = self.matmul(rms1, self.gated[:, D:], self.new(N, D))
        elif names == {"a"}:
            a = self.arrays["a"] = self.matmul(rms1, self.gated[:, :D], self.new(N, D))
            self.gates(a, w["wa"][-1])
            return
        else:
            pre = self.matmul(rms1, self.gated, self.new(N, 2 * D))
        del rms1
        made |= {name: self.new(N, D) for name in names.difference(made)}
        bias = None if "a" in self.arrays else w["wa"][-1]
        self.scan(
            *(pre, bias, w["g2"], w["h0"], w["reset"]),
            a=self.arrays.get("a", made.get("a")),
            h=made.get("h"),
            s2=made.get("s2"),
            last=last,
        )
        self.arrays |= made

    def _s2(self) -> Any:
        out = self.new(self.N, self.D)
        self.silu(self.value("h"), out, self.inputs["g2"])
        return out

    def _rms2(self) -> Any:
        """rms(out1), from out1 or, with one product, from what out1 is made from."""
        out = self.new(self.N, self.D)
        self.scale2 = self.xp.empty(self.N, self.state)
        if "out1" in self.arrays:
            self.rms(self.arrays["out1"], out, self.eps, scale=self.scale2)
            return out
        self.matmul(self.value("s2"), self.inputs["wo"], out)
        self.drop("s2")
        self.rms(out, out, self.eps, add=self.rows(self.inputs["x"]), scale=self.scale2)
        return out

    def _f1(self) -> Any:
        out = self.new(self.N, 2 * self.D)
        if "xn2" in self.arrays:
            return self.matmul(self.arrays["xn2"], self.inputs["wf1"], out)
        return self.matmul(self.value("rms2"), self.up, out)

    # --- forward

    def forward(self, y: Any, last: Any, keep: frozenset[str]) -> None:
        """Fill y [N, D] and the final state; leave the arrays of `keep` in `arrays`."""
        N, D, w = self.N, self.D, self.inputs
        self.kept = keep
        self.fold_gains(gates=True, up="xn2" not in keep, down="f2" not in keep)

        self.make_states({"s2"} | (keep & {"a", "h"}), last)
        # out1 = x + s2 wo, and its rms with or without the gain in the same pass
        out1 = y if "out1" not in keep else self.new(N, D)
        self.arrays["out1"] = self.matmul(self.value("s2"), w["wo"], out1)
        self.drop("s2")
        operand, gain = ("xn2", w["g3"]) if "xn2" in keep else ("rms2", None)
        normed = self.arrays[operand] = self.new(N, D)
        x = self.rows(w["x"])
        self.rms(out1, normed, self.eps, add=x, total=out1, gain=gain)
        del normed, x

        f1 = self.value("f1")
        self.drop(operand, "f1")
        sf = self.new(N, 2 * D) if "f1" in keep else f1
        self.silu(f1, sf)
        # y = out1 + f2·g4
        if "f2" in keep:
            f2 = self.arrays["f2"] = self.matmul(sf, w["wf2"], self.new(N, D))
            self.add_scaled(out1, f2, w["g4"], y)
        else:
            if out1 is not y:
                y[...] = out1
            self.matmul(sf, self.down, y, accumulate=True)
        self.drop("out1")

    # --- backward

    def backward(self, todo: Plan, dy: Any, dh_T: Any, grads: dict[str, Any]) -> None:
        """Fill `grads`, an array for each gradient that is wanted, from the last formula to
        the first; `todo` says what they take."""
        D, w, made = self.D, self.inputs, todo.made
        self.fold_gains(
            gates="h" in made or "a" in made or (todo.dxn and not todo.gg1_by_rows),
            up=(todo.dxn2 and not todo.gg3_by_rows)
            or ("f1" in made and "xn2" not in self.kept),
            down=todo.pre,
        )
        if "h" in made:
            self.make_states(
                {*({"a", "h"} & made), *({"s2"} & made if "out1" in made else ())}
            )
        elif "a" in made:
            self.make_states({"a"})

        # y = out1 + f2·g4, f2 = silu(f1) wf2
        gy = self.rows(dy)
        if todo.gg4_from_f2:
            self.product_sums(gy, self.arrays["f2"], grads["g4"])
        dpre = self._branch_back(todo, gy, grads)
        if dpre is None:
            return

        # f1 = xn2 wf1, xn2 = rms(out1)·g3
        rms2: Any = self.value("rms2") if "rms2" in made else None
        if "wf1" in grads:
            M = self.matmul(self.arrays.get("xn2", rms2).T, dpre, grads["wf1"])
            if "xn2" not in self.kept:
                gg3 = None if todo.gg3_by_rows else grads.get("g3")
                self.unfold_rows(M, w["g3"], [w["wf1"]], [M], gg3)
        if not todo.dxn2:
            return
        by_rows = todo.gg3_by_rows
        dout1 = self.new(self.N, D)
        self.matmul(dpre, (w["wf1"] if by_rows else self.up).T, dout1)
        del dpre
        if by_rows:
            self.product_sums(dout1, rms2, grads["g3"])
        if not todo.out1:
            return
        gain = w["g3"] if by_rows else None
        self.rms_back(dout1, rms2, self.scale2, gain=gain, add=gy)
        del rms2, gy
        self.drop("rms2")

        # out1 = x + s2 wo, s2 = silu(h·g2), and the scan
        dua_dub = self._scan_back(todo, dout1, dh_T, grads)
        self.drop("a", "h")
        if dua_dub is not None:
            self._gates_back(todo, dua_dub, dout1, grads)

    def _branch_back(self, todo: Plan, gy: Any, grads: dict[str, Any]) -> Any:
        """The cotangent of f1, if it is read, and the gradients of wf2 and g4."""
        N, D, w = self.N, self.D, self.inputs
        products = "wf2" in grads or todo.gg4_from_m
        if not (todo.pre or products):
            return None
        f1 = self.value("f1")
        sf = dpre = None
        if products:
            sf = self.new(N, 2 * D) if "f1" in self.kept else f1
        if todo.pre:
            dpre = self.matmul(gy, self.down.T, self.new(N, 2 * D))
            self.silu_back(f1, dpre, sf)
        else:
            self.silu(f1, sf)
        del f1
        self.drop("f1")
        if sf is not None:
            dwf2 = grads.get("wf2")
            M = self.matmul(sf.T, gy, self.new(2 * D, D) if dwf2 is None else dwf2)
            gg4 = grads["g4"] if todo.gg4_from_m else None
            self.unfold_columns(M, w["g4"], w["wf2"], dwf2, gg4)
        return dpre

    def _scan_back(self, todo: Plan, dout1: Any, dh_T: Any, grads: dict[str, Any]) -> Any:
        """[dua | dub], or the one of them that is read; the gradients of wo, g2, h0 and the
        bias."""
        N, D, w = self.N, self.D, self.inputs
        s2 = self.arrays.get("s2")
        dpre = None
        if todo.hidden:
            ds2 = self.matmul(dout1, w["wo"].T, self.new(N, D))
            again = "wo" in grads and s2 is None
            if todo.gate or todo.inner:
                dpre = self.new(N, D * (todo.gate + todo.inner))
            self.scan_back(
                *(ds2, self.value("a") if todo.scan else None, self.value("h"), w["g2"]),
                *(w["h0"], w["reset"], dh_T),
                s2=ds2 if again else None,
                dpre=dpre,
                gate=todo.gate,
                inner=todo.inner,
                dh0=grads.get("h0"),
                dg2=grads.get("g2"),
                dbias=grads["wa"][-1] if "wa" in grads else None,
            )
            if again:
                s2 = ds2
        if "wo" in grads:
            s2 = self.value("s2") if s2 is None else s2
            self.matmul(s2.T, dout1, grads["wo"])
            self.drop("s2")
        return dpre

    def _gates_back(
        self, todo: Plan, dua_dub: Any, dout1: Any, grads: dict[str, Any]
    ) -> None:
        """The gradients of wa, wb, g1 and x, for ua = xn wa' + bias, ub = xn wb."""
        N, D, w = self.N, self.D, self.inputs
        by_rows = todo.gg1_by_rows
        rms1 = self.new(N, D)
        scale1 = self.xp.empty(N, self.state)
        self.rms(self.rows(w["x"]), rms1, self.eps, scale=scale1)

        names = [name for name in ("wa", "wb") if name in grads]
        if names:
            mine = dua_dub
            if len(names) == 1 and todo.gate and todo.inner:
                mine = dua_dub[:, :D] if names == ["wa"] else dua_dub[:, D:]
            M = self.matmul(rms1.T, mine, self.new(D, mine.shape[1]))
            weights = [None if w[name] is None else w[name][:D] for name in names]
            gg1 = None if by_rows else grads.get("g1")
            self.unfold_rows(M, w["g1"], weights, [grads[name][:D] for name in names], gg1)
        if not todo.dxn:
            return
        dxn = grads["x"].reshape(N, D) if "x" in grads else self.new(N, D)
        if by_rows:
            self.matmul(dua_dub[:, :D], w["wa"][:D].T, dxn)
            self.matmul(dua_dub[:, D:], w["wb"].T, dxn, accumulate=True)
            self.product_sums(dxn, rms1, grads["g1"])
        else:
            self.matmul(dua_dub, self.gated.T, dxn)
        if "x" in grads:
            gain = w["g1"] if by_rows else None
            self.rms_back(dxn, rms1, scale1, gain=gain, add=dout1)


@register_kernel(FusedHelix, "cuda", dtypes())
class CudaHelix:
    """`FusedHelix` by cuBLAS and raw kernels; keeps the same arrays under the same names.

    A device without a BLAS (a double in tests) is left to the op's own body.
    """

    @staticmethod
    def forward(xp, *arrays, needs, eps, policy, return_state):
        device: Any = get_backend("cuda")
        if device.blas is None:
            return NotImplemented
        inputs: dict[str, Any] = dict(zip(INPUTS, arrays, strict=True))
        x, h0, reset = inputs["x"], inputs["h0"], inputs["reset"]
        (B, _, D), dtype = x.shape, x.dtype
        call = Call(
            x.shape, dtype.itemsize, wanted_names(needs), h0 is not None, reset is not None
        )
        keep = resolve(policy, call)
        names = frozenset(kept(call, keep)).difference(INPUTS)
        y = xp.empty(x.shape, dtype)
        work = _Pass(device, inputs, x.shape, dtype, eps, {})
        if work.N:
            h_T = xp.empty((B, D), dtype)
            work.forward(y.reshape(work.N, D), h_T, names)
        else:
            h_T = xp.zeros((B, D), dtype) if h0 is None else h0.copy()
            for name in names:
                work.arrays[name] = work.new(0, D * (1 + (name == "f1")))
        reads = plan(call.wanted, frozenset(keep)).reads
        saved = {name: work.arrays[name] for name in names}
        saved |= {name: inputs[name] for name in INPUTS if name in reads}
        return ((y, h_T) if return_state else y), saved

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, eps, policy, return_state):
        device: Any = get_backend("cuda")
        if device.blas is None:
            return NotImplemented
        dy, dh_T = dy if return_state else (dy, None)
        wanted = wanted_names(needs)
        arrays = {n: saved[n] for n in KEEPABLE if n != "x" and saved[n] is not None}
        work = _Pass(device, saved, inputs[0][0], dy.dtype, eps, arrays)
        wants = {name: inputs[i][0] for i, name in enumerate(INPUTS) if name in wanted}
        if work.N:
            todo = plan(wanted, frozenset(("x", *arrays)))
            grads = {name: work.xp.empty(shape, dy.dtype) for name, shape in wants.items()}
            work.backward(todo, dy, dh_T, grads)
        else:
            grads = {name: work.xp.zeros(shape, dy.dtype) for name, shape in wants.items()}
            if "h0" in grads and dh_T is not None:
                grads["h0"] = dh_T
        return tuple([grads.get(name) for name in INPUTS])
