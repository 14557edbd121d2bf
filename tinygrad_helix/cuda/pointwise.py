"""Launching the kernels of the HELIX block: grids, scratch, and which of two ways to scan.

Each method is one formula of kernels/helix_*.cu, on arrays [N, ·] of one call, N = B·T,
whose rows are in the order of [B, T]. Nothing is read that the formula does not name, and
nothing comes back to the host.
"""

import weakref
from typing import Any

import numpy as np

from .launch import Kernel, load
from .sizes import BLOCK, ceil_div, chunks
from .source import read_source

__all__ = ["Kernels"]

_STORAGE = {
    "float32": "float",
    "float64": "double",
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
}
_COLUMNS, _SHARING = 32, 8  # threads: those of helix_weights.cu

# A thread that walks through time has U = 8 steps on their way from memory, 64 bytes of
# two float32 arrays; the memory of an H200 wants about 3 MB to be, so from this many
# channels on one thread each is enough; with fewer, time is cut.
_MANY = (3 << 20) // 64
# Most channels that sums over rows are kept apart for: as many threads as the card holds.
_SUMS = 1 << 18

_loaded: weakref.WeakKeyDictionary[Any, dict[tuple[str, str], Kernel]] = (
    weakref.WeakKeyDictionary()
)


def _lanes(width: int) -> int:
    """Threads of a row: the power of two from `width` on, and at most a warp."""
    return min(32, 1 << (width - 1).bit_length())


class Kernels:
    """The kernels for arrays of `dtype` in a call of shape (B, T, D) on `device`."""

    def __init__(self, device: Any, shape: tuple[int, int, int], dtype: Any) -> None:
        self.device = device
        self.xp = device.xp
        self.B, self.T, self.D = shape
        self.N = self.B * self.T
        self.dtype = np.dtype(dtype)
        self.state = np.dtype("float64" if self.dtype == np.float64 else "float32")
        self.storage = _STORAGE[self.dtype.name]

    def new(self, rows: int, columns: int) -> Any:
        return self.xp.empty((rows, columns), self.dtype)

    def matmul(self, a: Any, b: Any, out: Any, *, accumulate: bool = False) -> Any:
        """out = a b, or out += a b."""
        return self.device.blas.matmul(a, b, out, accumulate=accumulate)

    def _launch(self, file: str, name: str, grid: Any, block: Any, args: Any) -> None:
        known = _loaded.setdefault(self.device, {})
        kernel = known.get((file, name))
        if kernel is None:
            # All of the file's for this dtype are compiled at once.
            mine = (f"<{self.storage}>", f"<{self.storage},")
            names = [e for e in read_source(file).expressions if any(m in e for m in mine)]
            kernel = load(file, [*names, name], device=self.device)[name]
            known[file, name] = kernel
        kernel(grid, block, args)

    # --- helix_rows.cu

    def _rows(self, name: str, like: Any, *args: Any) -> None:
        N, width = like.shape
        lanes = _lanes(width)
        self._launch(
            "helix_rows.cu",
            f"{name}<{self.storage}>",
            (ceil_div(N * lanes, BLOCK),),
            (BLOCK,),
            (*args, N, width, lanes),
        )

    def rms(
        self,
        z: Any,
        out: Any,
        eps: float,
        *,
        add: Any = None,
        total: Any = None,
        gain: Any = None,
        scale: Any = None,
    ) -> None:
        """total = v = z + add;  scale = (mean v² + eps)^(-1/2) [N];  out = v·scale·gain."""
        self._rows("rms_rows", z, z, add, total, gain, out, scale, eps)

    def rms_back(
        self, u: Any, rms: Any, scale: Any, *, gain: Any = None, add: Any = None
    ) -> None:
        """u becomes R(z, u·gain) + add, the cotangent of z for that of rms(z)."""
        self._rows("rms_rows_back", u, u, rms, scale, gain, add, u)

    def gates(self, a: Any, bias: Any) -> None:
        """a becomes sigmoid(a + bias)."""
        self._rows("gates", a, a, bias)

    def silu(self, z: Any, out: Any, gain: Any = None) -> None:
        """out = silu(z·gain)."""
        self._rows("silu", z, z, gain, out)

    def silu_back(self, z: Any, u: Any, out: Any = None) -> None:
        """u becomes u·silu'(z), and out silu(z)."""
        self._rows("silu_back", z, z, u, out)

    def add_scaled(self, x: Any, f: Any, gain: Any, out: Any) -> None:
        """out = x + f·gain."""
        self._rows("add_scaled", x, x, f, gain, out)

    # --- helix_weights.cu

    def _weights(self, name: str, grid: Any, block: Any, *args: Any) -> None:
        self._launch("helix_weights.cu", f"{name}<{self.storage}>", grid, block, args)

    def fold(self, w: Any, gates: Any, up: Any, down: Any) -> None:
        """gates = g1·[wa' | wb], up = g3·wf1, down = wf2·g4, those that are not None.

        Of gates the half is made whose weight is there.
        """
        D = self.D
        wa, wb, g1 = (None,) * 3 if gates is None else (w["wa"], w["wb"], w["g1"])
        wa = None if wa is None else wa[:-1]
        wf1, g3 = (None,) * 2 if up is None else (w["wf1"], w["g3"])
        wf2, g4 = (None,) * 2 if down is None else (w["wf2"], w["g4"])
        self._weights(
            "fold_gains",
            (ceil_div(2 * D * D, BLOCK),),
            (BLOCK,),
            *(wa, wb, wf1, wf2, g1, g3, g4, gates, up, down, D),
        )

    def unfold_rows(self, M: Any, gain: Any, w: Any, dw: Any, dgain: Any) -> None:
        """dw = gain·M by rows, dgain = the row sums of w·M.

        w and dw are lists of one matrix or of two that stand side by side; those of dw may
        be None, and so may dgain, and what is not read for the others.
        """
        D, C = M.shape
        lanes = _lanes(C)
        left, right, dleft, dright = (*w, None)[:2] + (*dw, None)[:2]
        self._weights(
            "unfold_rows",
            (ceil_div(D * lanes, BLOCK),),
            (BLOCK,),
            *(M, *((left, right) if dgain is not None else (None, None)), gain),
            *(dleft, dright, dgain, D, C, C // len(dw), lanes),
        )

    def unfold_columns(self, M: Any, gain: Any, w: Any, dw: Any, dgain: Any) -> None:
        """dw = M·gain by columns, dgain = the column sums of w·M; either may be None."""
        R, D = M.shape
        self._weights(
            "unfold_columns",
            (ceil_div(D, _COLUMNS),),
            (_COLUMNS, _SHARING),
            *(M, w if dgain is not None else None, gain if dw is not None else None),
            *(dw, dgain, R, D),
        )

    def product_sums(self, u: Any, v: Any, out: Any) -> None:
        """out = the column sums of u·v."""
        N, D = u.shape
        P = max(1, min(ceil_div(N, 8), _SUMS // D))  # a thread adds up 8 rows or more
        parts = self.xp.empty((1, P, D), self.state)
        self._weights(
            "product_sums", (ceil_div(P * D, BLOCK),), (BLOCK,), u, v, parts[0], N, D, P
        )
        self._sum_parts(parts, out, None)

    def _sum_parts(self, parts: Any, first: Any, second: Any) -> None:
        K, P, D = parts.shape
        self._weights(
            "sum_parts",
            (ceil_div(D, _COLUMNS), K),
            (_COLUMNS, _SHARING),
            *(parts, first, second, P, D),
        )

    # --- helix_scan.cu

    def _scan(self, name: str, flags: tuple[bool, ...], threads: int, *args: Any) -> None:
        inside = ",".join([self.storage, *("true" if f else "false" for f in flags)])
        grid = (ceil_div(threads, BLOCK),)
        self._launch("helix_scan.cu", f"{name}<{inside}>", grid, (BLOCK,), args)

    def _carries(
        self,
        summarize: str,
        flags: tuple[bool, ...],
        arrays: tuple[Any, ...],
        sizes: tuple[int, ...],
        start: Any,
        *,
        back: bool,
    ) -> Any:
        """The carries into the chunks [B, chunks, D]: the first two launches of way C."""
        B, D, count = self.B, self.D, sizes[-2]
        A, H = (self.xp.empty((B, count, D), self.state) for _ in range(2))
        cut = self.xp.empty((B, count), bool) if flags[-1] else None
        self._scan(summarize, flags, A.size, *arrays, A, H, cut, *sizes)
        self._launch(
            "scan.cu",
            f"scan_c_carry<{self.storage},{str(flags[-1]).lower()}>",
            (ceil_div(B * D, BLOCK),),
            (BLOCK,),
            (A, H, cut, start, B * D, D, count, back),
        )
        return H

    def scan(
        self,
        pre: Any,
        bias: Any,
        g2: Any,
        h0: Any,
        reset: Any,
        *,
        a: Any,
        h: Any = None,
        s2: Any = None,
        last: Any = None,
    ) -> None:
        """a = sigmoid(ua + bias), h_t = a_t·h_{t-1} + ub_t, s2 = silu(h·g2), last = h_T.

        pre is [ua | ub], and a, if it is not None, is filled; or pre is ub, and a is read.
        """
        B, T, D, N = self.B, self.T, self.D, self.N
        ld = pre.shape[1]
        flags = (ld != D, reset is not None)
        count, length = chunks(B * D, T, _MANY)
        sizes = N, B, T, D, ld, count, length
        carries = None
        if count > 1:
            arrays = pre, bias, None if ld != D else a, reset
            carries = self._carries("helix_summarize", flags, arrays, sizes, h0, back=False)
        self._scan(
            "helix_scan",
            flags,
            B * count * D,
            *(pre, bias, g2, h0, reset, carries, a, h, s2, last),
            *sizes,
        )

    def scan_back(
        self,
        ds2: Any,
        a: Any,
        h: Any,
        g2: Any,
        h0: Any,
        reset: Any,
        dlast: Any,
        *,
        s2: Any = None,
        dpre: Any = None,
        gate: bool = False,
        inner: bool = False,
        dh0: Any = None,
        dg2: Any = None,
        dbias: Any = None,
    ) -> None:
        """dpre = [dua | dub], those of `gate` and `inner`; s2 = silu(h·g2); the sums.

        What is None is not made. Without a there is no scan: s2 and dg2 alone.
        """
        B, T, D, N = self.B, self.T, self.D, self.N
        flags = (a is not None, reset is not None)
        count, length = chunks(B * D, T, _MANY)
        carries = None
        if count > 1 and a is not None:
            arrays, sizes = (ds2, a, h, g2, reset), (N, B, T, D, count, length)
            carries = self._carries(
                "helix_summarize_back", flags[1:], arrays, sizes, dlast, back=True
            )
        # Sums of each thread, of one chunk or more: no more than one row of [N, D] takes.
        most = min(_SUMS // D, N * self.dtype.itemsize // (2 * self.state.itemsize))
        P = max(1, min(B * count, most))
        sums = None
        if dg2 is not None or dbias is not None:
            sums = self.xp.empty((2, P, D), self.state)
        else:
            P = B * count
        self._scan(
            "helix_scan_back",
            flags,
            P * D,
            *(ds2, a, h, g2, h0, reset, carries, dlast, s2, dpre, dh0, sums),
            *(N, B, T, D, D if dpre is None else dpre.shape[1], gate, inner),
            *(count, length, P),
        )
        if sums is not None:
            self._sum_parts(sums, dg2, dbias)
