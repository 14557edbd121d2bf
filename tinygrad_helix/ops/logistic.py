"""The logistic function and what is built on it: sigmoid, silu.

Each is a chain of passes over an array, done piece by piece: all passes over one piece
while it is in the cache. The vjp of silu is an op of its own for the same reason.
"""

from typing import Any

import numpy as np

from ..op import Input, Op, Output, apply
from .operands import accumulator, floating, pieces

__all__ = ["sigmoid", "silu"]


def _logistic(xp: Any, x: Any, out: Any) -> None:
    """out = 1 / (1 + e^(-x)), out in the accumulating dtype of x.

    Where e^(-x) overflows, 1/∞ = 0 is the right value.
    """
    with np.errstate(over="ignore"):
        xp.negative(x, out=out)
        xp.exp(out, out=out)
        out += 1
        xp.divide(1, out, out=out)


class Sigmoid(Op):
    """y = 1 / (1 + e^(-x))      dx = dy · y · (1 - y)      keeps y."""

    saves = {"y": Output()}

    @staticmethod
    def forward(xp, x, *, needs):
        y = xp.empty(x.shape, accumulator(x.dtype))
        for x_, y_ in pieces(x, y):
            _logistic(xp, x_, y_)
        y = y.astype(x.dtype, copy=False)
        return y, {"y": y}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        y = saved["y"]
        return (dy * (y * (1 - y)),)


def sigmoid(x: Any) -> Any:
    """1 / (1 + e^(-x)), without overflow for any x. Keeps its result."""
    return apply(Sigmoid, floating(x))


class Silu(Op):
    """y = x · s, s = sigmoid(x)      dx = dy · s · (1 + x · (1 - s))      keeps x."""

    saves = {"x": Input(0)}

    @staticmethod
    def forward(xp, x, *, needs):
        y = xp.empty(x.shape, accumulator(x.dtype))
        for x_, y_ in pieces(x, y):
            _logistic(xp, x_, y_)
            y_ *= x_
        return y.astype(x.dtype, copy=False), {"x": x}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        return (apply(SiluGrad, dy, saved["x"]),)


class SiluGrad(Op):
    """y = dz · s · (1 + x · (1 - s)), s = sigmoid(x)
    ddz = dy · s · (1 + x · (1 - s)),   dx = dy · dz · s · (1 - s) · (2 + x · (1 - 2s))
    keeps dz if x needs a gradient, and x."""

    saves = {"dz": Input(0), "x": Input(1)}

    @staticmethod
    def forward(xp, dz, x, *, needs):
        y = xp.empty(x.shape, accumulator(x.dtype))
        s = None
        for dz_, x_, y_ in pieces(dz, x, y):
            if s is None or s.shape != y_.shape:
                s = xp.empty(y_.shape, y.dtype)
            _logistic(xp, x_, s)
            xp.subtract(1, s, out=y_)
            y_ *= x_
            y_ += 1
            y_ *= s
            y_ *= dz_
        return y.astype(x.dtype, copy=False), {"dz": dz if needs[1] else None, "x": x}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        dz, x = saved["dz"], saved["x"]
        ddz = dx = None
        if needs[0]:
            ddz = apply(SiluGrad, dy, x)
        if needs[1]:
            s = sigmoid(x)
            dx = dy * dz * (s * (1 - s) * (2 + x * (1 - 2 * s)))
        return ddz, dx


def silu(x: Any) -> Any:
    """x · sigmoid(x). Keeps x.

    Elfwing, Uchibe, Doya, "Sigmoid-weighted linear units", 2017.
    """
    return apply(Silu, floating(x))
