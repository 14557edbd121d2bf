"""Scans: cumulative sums and products, and the gated scan, a linear recurrence over time
with its backward and the backward of that."""

import math
from typing import Any

from ..errors import DTypeError, ShapeError
from ..op import Constant, Input, Op, Output, apply
from .choice import select
from .join import cat
from .operands import accumulator, axis_of, operand, owned, same_float, zeros
from .view import flip, reshape, swapaxes

__all__ = ["cumprod", "cumsum", "gated_scan", "reset_mask"]


def _running(function: Any, x: Any, axis: int) -> Any:
    """xp.cumsum or xp.cumprod; 16-bit floats add up and multiply in float32."""
    dtype = accumulator(x.dtype)
    if dtype == x.dtype:
        return function(x, axis=axis)
    return function(x, axis=axis, dtype=dtype).astype(x.dtype)


class Cumsum(Op):
    """y_t = x_0 + … + x_t along an axis      dx_t = dy_t + dy_{t+1} + …
    keeps nothing."""

    @staticmethod
    def forward(xp, x, *, needs, axis):
        return _running(xp.cumsum, x, axis), {}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, axis):
        return (flip(cumsum(flip(dy, axis), axis), axis),)


class Cumprod(Op):
    """y_t = x_0 · … · x_t along an axis: a gated scan from 1, of gates x and no inputs
    dx_t = y_{t-1} · G_t, G_t = dy_t + x_{t+1} · G_{t+1}, the gated scan's own vjp
    keeps x and y."""

    saves = {"x": Input(0), "y": Output()}

    @staticmethod
    def forward(xp, x, *, needs, axis):
        y = _running(xp.cumprod, x, axis)
        return y, {"x": x, "y": y}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, axis):
        shape = swapaxes(dy, 0, axis).shape  # the axis first
        steps, width = shape[0], math.prod(shape[1:])

        def scanned(v: Any) -> Any:
            return reshape(swapaxes(v, 0, axis), (1, steps, width))

        x, y = saved["x"], saved["y"]
        last = zeros((1, width), dy)
        first = last + 1  # h0
        da, _, _ = apply(
            GatedScanGrad,
            scanned(dy),
            last,
            scanned(x),
            scanned(y),
            first,
            None,
            wants=(True, False),
        )
        return (swapaxes(reshape(da, shape), 0, axis),)


def _one_axis(op: str, x: Any, axis: int | None) -> tuple[Any, int]:
    """x and its axis; for None, as in NumPy, the flattened x and 0."""
    x = operand(op, x)
    if axis is None:
        return reshape(x, -1), 0
    return x, axis_of(op, axis, x.ndim)


def cumsum(x: Any, axis: int | None = None) -> Any:
    """x_0 + … + x_t along `axis` (None: of the flattened x). Keeps nothing.

    Bools and signed ints add up in int64, unsigned ints in uint64, 16-bit floats in
    float32.
    """
    x, along = _one_axis("cumsum", x, axis)
    return apply(Cumsum, x, axis=along)


def cumprod(x: Any, axis: int | None = None) -> Any:
    """x_0 · … · x_t along `axis` (None: of the flattened x). Keeps x and its result.

    The gradient divides by nothing, so it is right where x has zeros. Bools and signed
    ints multiply in int64, unsigned ints in uint64, 16-bit floats in float32.
    """
    x, along = _one_axis("cumprod", x, axis)
    return apply(Cumprod, x, axis=along)


def _scan(xp: Any, a: Any, b: Any, h0: Any, reset: Any) -> Any:
    """h_t = a_t · h_{t-1} + b_t over axis 1, with the carry dropped where reset."""
    h = xp.empty(b.shape, accumulator(b.dtype))
    for t in range(b.shape[1]):
        carry = h[:, t - 1] if t else h0
        step = h[:, t]  # [B, D]
        if carry is None:
            step[...] = b[:, t]
            continue
        xp.multiply(a[:, t], carry, out=step)
        if reset is not None:
            step[reset[:, t]] = 0
        step += b[:, t]
    return h.astype(b.dtype, copy=False)


class GatedScan(Op):
    """h_t = a_t · h_{t-1} + b_t, h_{-1} = h0 or 0; a_t counts as 0 where reset
    G_t = dh_t + a_{t+1} · G_{t+1} (dh_T, of the final state, adds at T-1)
    db = G,   da_t = G_t · h_{t-1},   dh0 = a_0 · G_0
    keeps a; h and h0 if a needs a gradient; reset."""

    saves = {"a": Input(0), "h": Output(0), "h0": Input(2), "reset": Constant()}

    @staticmethod
    def forward(xp, a, b, h0, reset, *, needs):
        h = _scan(xp, a, b, h0, reset)
        if b.shape[1]:
            last = h[:, -1].copy()  # an array of its own, not a view that keeps all of h
        else:
            last = (
                xp.zeros(b[:, :0].sum(axis=1).shape, b.dtype) if h0 is None else h0.copy()
            )
        return (h, last), {
            "a": a,
            "h": h if needs[0] else None,
            "h0": h0 if needs[0] else None,
            "reset": reset,
        }

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        dh, dlast = dy
        da, db, dh0 = apply(
            GatedScanGrad,
            dh,
            dlast,
            saved["a"],
            saved["h"] if needs[0] else None,  # read for da alone
            saved["h0"] if needs[0] else None,
            saved["reset"],
            wants=(needs[0], needs[2]),
        )
        return da if needs[0] else None, db, dh0 if needs[2] else None, None


class GatedScanGrad(Op):
    """The vjp of GatedScan as an op: (dh, dlast, a, h, h0, reset) -> (da, db, dh0).

    A result that `wants` does not ask for has no elements. Its own vjp, for cotangents
    ca, cb, c0 of the three results and m = 1 - reset: P is one more gated scan,
    P_t = a_t · P_{t-1} + ca_t · m_t · h_{t-1} + cb_t with P_{-1} = c0; then dh gets P,
    dlast P_{T-1}, a_t gets m_t · P_{t-1} · G_t, h_{t-1} and h0 get ca_t · m_t · G_t.
    """

    saves = {
        "a": Input(2),
        "h": Input(3),
        "h0": Input(4),
        "reset": Constant(),
        "g": Output(1),
    }

    @staticmethod
    def forward(xp, dh, dlast, a, h, h0, reset, *, needs, wants):
        steps = dh.shape[1]
        dtype = accumulator(dh.dtype)
        g = xp.empty(dh.shape, dtype)
        da = xp.empty(dh.shape if wants[0] else (0,), dh.dtype)
        carry = dlast.astype(dtype)  # the part of G_t that comes from later steps
        for t in reversed(range(steps)):
            step = g[:, t]
            xp.add(dh[:, t], carry, out=step)
            if wants[0]:
                before = h[:, t - 1] if t else h0
                if before is None:
                    da[:, t] = 0
                else:
                    xp.multiply(step, before, out=da[:, t], casting="same_kind")
                    if reset is not None:
                        da[:, t][reset[:, t]] = 0
            xp.multiply(step, a[:, t], out=carry)
            if reset is not None:
                carry[reset[:, t]] = 0
        g = g.astype(dh.dtype, copy=False)
        dh0 = carry.astype(dh.dtype, copy=False) if wants[1] else xp.empty((0,), dh.dtype)
        return (da, g, dh0), {"a": a, "h": h, "h0": h0, "reset": reset, "g": g}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, wants):
        ca, cb, c0 = dy
        a, h, h0, reset, g = (saved[k] for k in ("a", "h", "h0", "reset", "g"))
        mask = None if reset is None else reset[:, :, None]
        q = cb
        if wants[0]:
            first = (
                zeros(cb[:, :1].shape, cb)
                if h0 is None
                else reshape(h0, (h0.shape[0], 1, h0.shape[1]))
            )
            before = cat([first, h[:, :-1]], axis=1) if h.shape[1] else h
            through = ca if mask is None else select(mask, 0.0, ca)
            q = cb + through * before
        p, last = apply(GatedScan, a, q, c0 if wants[1] else None, reset)
        d_a = d_h = d_h0 = None
        if needs[2]:
            start = (
                reshape(c0, (c0.shape[0], 1, c0.shape[1]))
                if wants[1]
                else zeros(p[:, :1].shape, p)
            )
            d_a = (cat([start, p[:, :-1]], axis=1) if p.shape[1] else p) * g
            d_a = d_a if mask is None else select(mask, 0.0, d_a)
        if wants[0]:
            down = through * g
            if needs[3]:
                d_h = cat([down[:, 1:], zeros(down[:, :1].shape, down)], axis=1)
            if needs[4]:
                d_h0 = down[:, 0] if down.shape[1] else zeros(inputs[4][0], cb)
        elif needs[4]:
            d_h0 = zeros(inputs[4][0], cb)
        return p, last, d_a, d_h, d_h0, None


def reset_mask(op: str, reset: Any, shape: tuple[int, ...], *operands: Any) -> Any:
    """`reset` as an array of bools of `shape`, checked; the tape's own as in `owned`."""
    reset = owned(op, reset, *operands)
    if reset.shape != shape:
        raise ShapeError(f"{op} takes a reset of shape {shape} [B, T]; got {reset.shape}.")
    if reset.dtype == bool:
        return reset
    known = reset.dtype.kind in "fiu" and bool(((reset == 0) | (reset == 1)).all())
    if not known:
        raise DTypeError(
            f"{op} takes a reset of bools or of 0 and 1; got other values of {reset.dtype}."
        )
    return reset.astype(bool)


def gated_scan(a: Any, b: Any, h0: Any = None, reset: Any = None) -> tuple[Any, Any]:
    """h_t = a_t · h_{t-1} + b_t over axis 1; returns (h, h_T), both differentiable.

    a, b [B, T, D], h0 [B, D] or None for 0, reset [B, T] of bools or 0/1, or None: where
    it is set the carried state is dropped (a_t counts as 0), which separates sequences
    that were packed into one row. h [B, T, D]; h_T [B, D] is a copy of the last state (h0,
    or 0, where T = 0). One float dtype; the state of 16-bit floats is float32. Gates may
    be of any value and sign: nothing is divided, no logarithm is taken.

    Keeps a (B·T·D values), h and h0 if a needs a gradient, and reset (B·T bytes; of an
    array that is no Tensor a copy).

    >>> import tinygrad_helix as th
    >>> h, last = th.gated_scan(th.full((1, 3, 1), 0.5), th.ones((1, 3, 1)))
    >>> h.data.ravel().tolist()
    [1.0, 1.5, 1.75]
    """
    given = {"a": a, "b": b} | ({"h0": h0} if h0 is not None else {})
    same_float("gated_scan", **given)
    if a.ndim != 3 or a.shape != b.shape:
        raise ShapeError(
            f"gated_scan takes a and b of one shape [B, T, D]; got {a.shape} and {b.shape}."
        )
    if h0 is not None and h0.shape != (a.shape[0], a.shape[2]):
        raise ShapeError(
            f"gated_scan of a {a.shape} takes h0 of shape {(a.shape[0], a.shape[2])} "
            f"[B, D]; got {h0.shape}."
        )
    if reset is not None:
        reset = reset_mask("gated_scan", reset, a.shape[:2], a, b, h0)
    return apply(GatedScan, a, b, h0, reset)
