"""Reductions over axes: sum, mean, max; argmax."""

import math
from typing import Any

import numpy as np

from ..errors import ShapeError
from ..op import Input, Op, Output, apply
from ..tensor import Tensor
from .choice import equal, maximum
from .operands import accumulator, axes_of, floating, plain
from .view import broadcast_to, reshape

__all__ = ["argmax", "max", "mean", "sum"]


def _kept(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple([1 if i in axes else n for i, n in enumerate(shape)])


class Sum(Op):
    """y = Σ x over the axes      dx = dy, repeated      keeps nothing."""

    @staticmethod
    def forward(xp, x, *, needs, axes, keepdims):
        dtype = accumulator(x.dtype)
        if dtype == x.dtype:
            return x.sum(axis=axes, keepdims=keepdims), {}
        return x.sum(axis=axes, keepdims=keepdims, dtype=dtype).astype(x.dtype), {}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, axes, keepdims):
        shape = inputs[0][0]
        return (broadcast_to(reshape(dy, _kept(shape, axes)), shape),)


def sum(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Σ x over `axis` (None for all, an int, or a tuple). Keeps nothing.

    Ints and bools add up in int64, 16-bit floats in float32.
    """
    return apply(Sum, x, axes=axes_of("sum", axis, x.ndim), keepdims=bool(keepdims))


class Mean(Op):
    """y = Σ x / n over the axes      dx = dy / n, repeated      keeps nothing."""

    @staticmethod
    def forward(xp, x, *, needs, axes, keepdims):
        n = math.prod(x.shape[i] for i in axes)
        y = x.sum(axis=axes, keepdims=keepdims, dtype=accumulator(x.dtype))
        return xp.asarray(y / n).astype(x.dtype, copy=False), {}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, axes, keepdims):
        shape = inputs[0][0]
        n = math.prod(shape[i] for i in axes)
        if n == 0:
            return (broadcast_to(reshape(dy, _kept(shape, axes)), shape),)
        return (broadcast_to(reshape(dy / n, _kept(shape, axes)), shape),)


def mean(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Σ x / n over `axis` (None for all, an int, or a tuple); of ints it is float32.

    Keeps nothing. 16-bit floats add up in float32.
    """
    axes = axes_of("mean", axis, x.ndim)
    _not_empty("mean", x, axes)
    return apply(Mean, floating(x), axes=axes, keepdims=bool(keepdims))


class Max(Op):
    """y = max x over the axes      dx = dy / m at each of the m places where x = y, else 0
    keeps x and y."""

    saves = {"x": Input(0), "y": Output()}

    @staticmethod
    def forward(xp, x, *, needs, axes, keepdims):
        y = x.max(axis=axes, keepdims=keepdims)
        return y, {"x": x, "y": y}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, axes, keepdims):
        x, y = saved["x"], saved["y"]
        kept = _kept(x.shape, axes)
        hits = equal(x, reshape(y, kept)).astype(x.dtype)
        # A NaN equals nothing: then there is no hit, and no gradient.
        count = maximum(sum(hits, axis=axes, keepdims=True), 1)
        return (hits * (reshape(dy, kept) / count),)


def max(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """The largest x over `axis` (None for all, an int, or a tuple).

    Equal largest values share the gradient evenly. Keeps x and its result.
    """
    axes = axes_of("max", axis, x.ndim)
    _not_empty("max", x, axes)
    return apply(Max, x, axes=axes, keepdims=bool(keepdims))


def argmax(x: Any, axis: int | None = None) -> Any:
    """The index of the first largest x along `axis` (None: of the flattened x).

    int64, no gradient.
    """
    axes = axes_of("argmax", axis, x.ndim)
    _not_empty("argmax", x, axes)
    index = np.asarray(plain(x).argmax(axis=None if axis is None else axes[0]))
    return Tensor(index) if isinstance(x, Tensor) else index


def _not_empty(op: str, x: Any, axes: tuple[int, ...]) -> None:
    if any(x.shape[i] == 0 for i in axes):
        raise ShapeError(
            f"{op} of a Tensor of shape {x.shape} over axes {axes}: there is nothing to "
            f"take the {op} of. Reduce an axis that has elements."
        )
