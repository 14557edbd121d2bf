"""Normalisations: softmax, log_softmax, rms_norm, layer_norm."""

from typing import Any

from ..errors import ShapeError
from ..op import Input, Op, Output, apply
from .elementwise import add, exp, mul, rsqrt
from .operands import accumulator, axis_of, floating, greatest, rows, same_float, wide
from .reduce import mean
from .reduce import sum as sum_over

__all__ = ["layer_norm", "log_softmax", "rms_norm", "softmax"]


def _shifted(xp: Any, x: Any, axis: int) -> Any:
    """x - max x in the accumulating dtype: e to it cannot overflow."""
    x = x.astype(accumulator(x.dtype), copy=False)
    return x - greatest(x, axis, 0.0)


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
    along = axis_of("softmax", axis, x.ndim)
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
    along = axis_of("log_softmax", axis, x.ndim)
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
    x = _checked("rms_norm", x, gain=gain)
    y = apply(Rms, x, eps=float(eps))
    return y if gain is None else mul(y, gain)


def _checked(op: str, x: Any, **weights: Any) -> Any:
    """x as floats, its last axis and the weights [D] checked."""
    x = floating(x)
    if not x.ndim or x.shape[-1] == 0:
        raise ShapeError(
            f"{op} of shape {x.shape}: it needs a last axis with at least one element."
        )
    for name, w in weights.items():
        if w is None:
            continue
        same_float(op, x=x, **{name: w})
        if w.shape != x.shape[-1:]:
            raise ShapeError(
                f"{op} of x {x.shape} takes a {name} of shape {x.shape[-1:]}; got "
                f"{w.shape}."
            )
    return x


class LayerNorm(Op):
    """y = (x - m) · r, m = mean x, r = (mean (x - m)² + eps)^(-1/2) over the last axis
    dx = r · (dy - mean dy - y · mean(dy · y))      keeps x; m, r and y are computed again.
    """

    saves = {"x": Input(0)}

    @staticmethod
    def forward(xp, x, *, needs, eps):
        z = x.astype(accumulator(x.dtype), copy=False)
        z = z - xp.mean(z, axis=-1, keepdims=True)
        r = 1 / xp.sqrt(xp.mean(z * z, axis=-1, keepdims=True) + eps)
        return (z * r).astype(x.dtype, copy=False), {"x": x}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, eps):
        x, dy = wide(saved["x"]), wide(dy)
        z = x - mean(x, axis=-1, keepdims=True)
        r = rsqrt(mean(z * z, axis=-1, keepdims=True) + eps)
        y = z * r
        down = dy - mean(dy, axis=-1, keepdims=True)
        return (r * (down - y * mean(dy * y, axis=-1, keepdims=True)),)


def layer_norm(x: Any, gain: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """(x - mean x) / √(mean (x - mean x)² + eps) · gain + bias over the last axis.

    x [..., D], gain and bias [D] or None; it records layer_norm, then mul and add where
    they are given. Sums of 16-bit floats add up in float32. Keeps x, and the normalised
    x if the gain needs a gradient.

    Ba, Kiros, Hinton, "Layer normalization", 2016.
    """
    x = _checked("layer_norm", x, gain=gain, bias=bias)
    y = apply(LayerNorm, x, eps=float(eps))
    y = y if gain is None else mul(y, gain)
    return y if bias is None else add(y, bias)
