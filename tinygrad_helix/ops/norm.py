"""Normalisations: softmax, log_softmax, rms_norm."""

from typing import Any

from ..errors import ShapeError
from ..op import Input, Op, Output, apply
from .elementwise import exp, mul, rsqrt
from .operands import accumulator, axes_of, floating, rows, same_float, wide
from .reduce import mean
from .reduce import sum as sum_over

__all__ = ["log_softmax", "rms_norm", "softmax"]


def _shifted(xp: Any, x: Any, axis: int) -> Any:
    """x - max x in the accumulating dtype: e to it cannot overflow."""
    x = x.astype(accumulator(x.dtype), copy=False)
    return x - x.max(axis=axis, keepdims=True, initial=xp.finfo(x.dtype).min)


class Softmax(Op):
    """y = e^x / Σ e^x      dx = y · (dy - Σ dy · y)      keeps y."""

    saves = {"y": Output()}

    @staticmethod
    def forward(xp, x, *, needs, axis):
        y = xp.exp(_shifted(xp, x, axis))
        y = (y / y.sum(axis=axis, keepdims=True)).astype(x.dtype, copy=False)
        return y, {"y": y}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, axis):
        y = saved["y"]
        return (y * (dy - sum_over(dy * y, axis=axis, keepdims=True)),)


def softmax(x: Any, axis: int = -1) -> Any:
    """e^x / Σ e^x along `axis`, without overflow. Keeps its result."""
    x = floating(x)
    (along,) = axes_of("softmax", axis, x.ndim)
    return apply(Softmax, x, axis=along)


class LogSoftmax(Op):
    """y = x - ln Σ e^x      dx = dy - e^y · Σ dy      keeps y."""

    saves = {"y": Output()}

    @staticmethod
    def forward(xp, x, *, needs, axis):
        z = _shifted(xp, x, axis)
        if z.size:
            z -= xp.log(xp.exp(z).sum(axis=axis, keepdims=True))
        y = z.astype(x.dtype, copy=False)
        return y, {"y": y}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, axis):
        return (dy - exp(saved["y"]) * sum_over(dy, axis=axis, keepdims=True),)


def log_softmax(x: Any, axis: int = -1) -> Any:
    """x - ln Σ e^x along `axis`, without overflow. Keeps its result."""
    x = floating(x)
    (along,) = axes_of("log_softmax", axis, x.ndim)
    return apply(LogSoftmax, x, axis=along)


class Rms(Op):
    """y = x · r, r = (mean x² + eps)^(-1/2) over the last axis
    dx = r · (dy - x · r² · mean(dy · x))      keeps x; r is computed again."""

    saves = {"x": Input(0)}

    @staticmethod
    def forward(xp, x, *, needs, eps):
        y = xp.empty(x.shape, x.dtype)
        for x_, y_ in rows(x, y):
            z = x_.astype(accumulator(x.dtype), copy=False)
            r = 1 / xp.sqrt(xp.mean(z * z, axis=-1, keepdims=True) + eps)
            xp.multiply(z, r, out=y_, casting="same_kind")
        return y, {"x": x}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, eps):
        return (apply(RmsGrad, dy, saved["x"], eps=eps),)


class RmsGrad(Op):
    """y = r · dz - r³ · x · mean(dz · x), r = (mean x² + eps)^(-1/2): the vjp of Rms
    ddz = r · dy - r³ · x · mean(dy · x)
    dx = 3r⁵ · x · mean(dz · x) · mean(dy · x)
         - r³ · (x · mean(dy · dz) + dz · mean(dy · x) + dy · mean(dz · x))
    keeps dz if x needs a gradient, and x."""

    saves = {"dz": Input(0), "x": Input(1)}

    @staticmethod
    def forward(xp, dz, x, *, needs, eps):
        y = xp.empty(x.shape, x.dtype)
        for dz_, x_, y_ in rows(dz, x, y):
            z = x_.astype(accumulator(x.dtype), copy=False)
            u = z * z
            r = 1 / xp.sqrt(xp.mean(u, axis=-1, keepdims=True) + eps)
            xp.multiply(dz_, z, out=u)
            scale = xp.mean(u, axis=-1, keepdims=True) * (r * r)
            xp.multiply(z, scale, out=u)
            xp.subtract(dz_, u, out=u)
            xp.multiply(u, r, out=y_, casting="same_kind")
        return y, {"dz": dz if needs[1] else None, "x": x}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, eps):
        ddz = dx = None
        if needs[0]:
            ddz = apply(RmsGrad, dy, saved["x"], eps=eps)
        if needs[1]:
            dz, x, dy = wide(saved["dz"]), wide(saved["x"]), wide(dy)

            def row_mean(v: Any) -> Any:
                return mean(v, axis=-1, keepdims=True)

            r = rsqrt(row_mean(x * x) + eps)
            s, c = row_mean(dz * x), row_mean(dy * x)
            dx = 3 * r**5 * x * s * c - r**3 * (x * row_mean(dy * dz) + dz * c + dy * s)
        return ddz, dx


def rms_norm(x: Any, gain: Any = None, eps: float = 1e-5) -> Any:
    """x / √(mean x² + eps) · gain over the last axis.

    x [..., D], gain [D] or None; with a gain it records rms, then mul. Squares of 16-bit
    floats add up in float32. Keeps x, and x / √(…) if the gain needs a gradient.

    Zhang and Sennrich, "Root mean square layer normalization", 2019.
    """
    x = floating(x)
    if not x.ndim or x.shape[-1] == 0:
        raise ShapeError(
            f"rms_norm of shape {x.shape}: it needs a last axis with at least one element."
        )
    if gain is None:
        return apply(Rms, x, eps=float(eps))
    same_float("rms_norm", x=x, gain=gain)
    if gain.shape != x.shape[-1:]:
        raise ShapeError(
            f"rms_norm of x {x.shape} takes a gain of shape {x.shape[-1:]}; got "
            f"{gain.shape}."
        )
    return mul(apply(Rms, x, eps=float(eps)), gain)
