"""Normalisations: softmax, log_softmax, rms_norm."""

from typing import Any

from ..errors import ShapeError
from ..op import Input, Op, Output, apply
from .elementwise import exp, mul, rsqrt
from .operands import accumulator, axes_of, floating, same_float, wide
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
        z = x.astype(accumulator(x.dtype), copy=False)
        r = 1 / xp.sqrt(xp.mean(z * z, axis=-1, keepdims=True) + eps)
        return (z * r).astype(x.dtype, copy=False), {"x": x}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, eps):
        x, dy = wide(saved["x"]), wide(dy)
        r = rsqrt(mean(x * x, axis=-1, keepdims=True) + eps)
        return (r * (dy - x * (r * r * mean(dy * x, axis=-1, keepdims=True))),)


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
