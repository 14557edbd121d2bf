"""Reductions over axes: sums, products, extremes, spread, norms."""

import math
from typing import Any

import numpy as np

from ..backend import backend_of
from ..errors import DTypeError, HelixError, ShapeError
from ..op import Input, Op, Output, apply
from ..tensor import Tensor
from .choice import equal, maximum, select
from .elementwise import abs, exp
from .join import cat
from .operands import (
    accumulator,
    axes_of,
    floating,
    greatest,
    operand,
    plain,
    whole,
    wide,
    zeros,
)
from .scan import cumprod
from .view import broadcast_to, flip, reshape, transpose

__all__ = [
    "argmax", "argmin", "logsumexp", "max", "mean", "min", "norm", "prod", "std", "sum",
    "var",
]  # fmt: skip


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

    Bools and signed ints add up in int64, unsigned ints in uint64, 16-bit floats in
    float32.
    """
    x = operand("sum", x)
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
        # As a 16-bit float n may be inf.
        dx = wide(dy) / n
        return (broadcast_to(reshape(dx, _kept(shape, axes)), shape),)


def mean(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Σ x / n over `axis` (None for all, an int, or a tuple); of ints it is float32.

    Keeps nothing. 16-bit floats add up in float32.
    """
    x = operand("mean", x)
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
        hits = equal(x, reshape(y, kept)).astype(accumulator(x.dtype))  # counted in it
        # A NaN equals nothing: then there is no hit, and no gradient.
        count = maximum(sum(hits, axis=axes, keepdims=True), 1)
        return (hits * (reshape(dy, kept) / count),)


class Min(Max):
    """y = min x over the axes      dx = dy / m at each of the m places where x = y, else 0
    keeps x and y."""

    @staticmethod
    def forward(xp, x, *, needs, axes, keepdims):
        y = x.min(axis=axes, keepdims=keepdims)
        return y, {"x": x, "y": y}


def _extreme(op: type[Op], x: Any, axis: Any, keepdims: bool) -> Any:
    x = operand(op.name, x)
    axes = axes_of(op.name, axis, x.ndim)
    _not_empty(op.name, x, axes)
    return apply(op, x, axes=axes, keepdims=bool(keepdims))


def max(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """The largest x over `axis` (None for all, an int, or a tuple).

    Equal largest values share the gradient evenly. Keeps x and its result.
    """
    return _extreme(Max, x, axis, keepdims)


def min(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """The smallest x over `axis` (None for all, an int, or a tuple).

    Equal smallest values share the gradient evenly. Keeps x and its result.
    """
    return _extreme(Min, x, axis, keepdims)


def argmax(x: Any, axis: int | None = None) -> Any:
    """The index of the first largest x along `axis` (None: of the flattened x).

    int64, no gradient.
    """
    return _place("argmax", x, axis)


def argmin(x: Any, axis: int | None = None) -> Any:
    """The index of the first smallest x along `axis` (None: of the flattened x).

    int64, no gradient.
    """
    return _place("argmin", x, axis)


def _place(op: str, x: Any, axis: int | None) -> Any:
    if isinstance(axis, (tuple, list)):
        raise DTypeError(
            f"{op} got axis={axis!r}. It takes one axis, an int, or None for the flattened "
            "Tensor: reshape the axes into one first."
        )
    x = operand(op, x)
    axes = axes_of(op, axis, x.ndim)
    _not_empty(op, x, axes)
    array = plain(x)
    find = array.argmax if op == "argmax" else array.argmin
    index = backend_of(array).asarray(find(axis=None if axis is None else axes[0]))
    return Tensor(index) if isinstance(x, Tensor) else index


def _not_empty(op: str, x: Any, axes: tuple[int, ...]) -> None:
    if any(x.shape[i] == 0 for i in axes):
        raise ShapeError(
            f"{op} of a Tensor of shape {x.shape} over axes {axes}: there is nothing to "
            f"take the {op} of. Reduce an axis that has elements."
        )


class Prod(Op):
    """y = Π x over the axes
    dx = dy · the product of the others: of those before times those after
    keeps x."""

    saves = {"x": Input(0)}

    @staticmethod
    def forward(xp, x, *, needs, axes, keepdims):
        dtype = accumulator(x.dtype)
        if dtype == x.dtype:
            return x.prod(axis=axes, keepdims=keepdims), {"x": x}
        y = x.prod(axis=axes, keepdims=keepdims, dtype=dtype)
        return y.astype(x.dtype), {"x": x}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, axes, keepdims):
        shape = inputs[0][0]
        order = (*[i for i in range(len(shape)) if i not in axes], *axes)
        moved = transpose(wide(saved["x"]), order)  # the axes of the product are the last
        kept = moved.shape[: len(shape) - len(axes)]
        flat = reshape(moved, (*kept, math.prod(shape[i] for i in axes)))
        before = _product_before(flat)
        after = flip(_product_before(flip(flat, -1)), -1)
        dx = reshape(dy, (*kept, 1)) * (before * after)
        inverse = sorted(range(len(order)), key=order.__getitem__)
        return (transpose(reshape(dx, moved.shape), inverse),)


def _product_before(x: Any) -> Any:
    """Along the last axis: 1, x₀, x₀·x₁, … without the product of all."""
    if x.shape[-1] == 0:
        return x
    one = zeros((*x.shape[:-1], 1), x) + 1
    return cat([one, cumprod(x[..., :-1], axis=-1)], axis=-1)


def prod(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Π x over `axis` (None for all, an int, or a tuple); of nothing it is 1.

    The gradient divides by nothing, so it is right where x has zeros. Keeps x. Bools and
    signed ints multiply in int64, unsigned ints in uint64, 16-bit floats in float32.
    """
    x = operand("prod", x)
    return apply(Prod, x, axes=axes_of("prod", axis, x.ndim), keepdims=bool(keepdims))


# --- spread and norms


class Var(Op):
    """y = Σ (x - m)² / (n - ddof) over the axes, m = mean x
    dx = 2 · dy · (x - m) / (n - ddof)
    keeps x; m is computed again."""

    saves = {"x": Input(0)}

    @staticmethod
    def forward(xp, x, *, needs, axes, keepdims, ddof):
        dtype = accumulator(x.dtype)
        y = x.var(axis=axes, keepdims=keepdims, ddof=ddof, dtype=dtype)
        return xp.asarray(y).astype(x.dtype, copy=False), {"x": x}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, axes, keepdims, ddof):
        x = wide(saved["x"])
        n = math.prod(x.shape[i] for i in axes) - ddof
        centred = x - mean(x, axis=axes, keepdims=True)
        return (centred * (reshape(dy, _kept(x.shape, axes)) * (2 / n)),)


class Std(Op):
    """y = √(Σ (x - m)² / (n - ddof)) over the axes, m = mean x
    dx = dy · (x - m) / ((n - ddof) · y), 0 where y = 0
    keeps x and y; m is computed again."""

    saves = {"x": Input(0), "y": Output()}

    @staticmethod
    def forward(xp, x, *, needs, axes, keepdims, ddof):
        dtype = accumulator(x.dtype)
        y = x.std(axis=axes, keepdims=keepdims, ddof=ddof, dtype=dtype)
        y = xp.asarray(y).astype(x.dtype, copy=False)
        return y, {"x": x, "y": y}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, axes, keepdims, ddof):
        x = wide(saved["x"])
        n = math.prod(x.shape[i] for i in axes) - ddof
        scale = _over_or_zero(wide(dy) / n, saved["y"])
        centred = x - mean(x, axis=axes, keepdims=True)
        return (centred * reshape(scale, _kept(x.shape, axes)),)


def _over_or_zero(a: Any, b: Any) -> Any:
    """a / b, and 0 where b = 0."""
    none = equal(b, 0)
    return select(none, 0.0, a / select(none, 1.0, b))


def _spread(op: type[Op], x: Any, axis: Any, keepdims: bool, ddof: int) -> Any:
    x, ddof = operand(op.name, x), whole(op.name, "ddof", ddof)
    axes = axes_of(op.name, axis, x.ndim)
    n = math.prod(x.shape[i] for i in axes)
    if n <= ddof:
        raise ShapeError(
            f"{op.name} of a Tensor of shape {x.shape} over axes {axes} divides by {n} - "
            f"{ddof} (elements less ddof). It takes more than {ddof} elements."
        )
    return apply(op, floating(x), axes=axes, keepdims=bool(keepdims), ddof=ddof)


def var(x: Any, axis: Any = None, keepdims: bool = False, ddof: int = 0) -> Any:
    """Σ (x - mean x)² / (n - ddof) over `axis` (None for all, an int, or a tuple).

    `ddof=1` is the unbiased estimate (PyTorch's default; NumPy's is 0, as here). Keeps x.
    Squares of 16-bit floats add up in float32.
    """
    return _spread(Var, x, axis, keepdims, ddof)


def std(x: Any, axis: Any = None, keepdims: bool = False, ddof: int = 0) -> Any:
    """√(Σ (x - mean x)² / (n - ddof)) over `axis` (None for all, an int, or a tuple).

    Where it is 0 its gradient is 0. `ddof` as for `var`. Keeps x and its result. Squares
    of 16-bit floats add up in float32.
    """
    return _spread(Std, x, axis, keepdims, ddof)


class LogSumExp(Op):
    """y = ln Σ e^x over the axes      dx = dy · e^(x - y)      keeps x and y."""

    name = "logsumexp"
    saves = {"x": Input(0), "y": Output()}

    @staticmethod
    def forward(xp, x, *, needs, axes, keepdims):
        z = x.astype(accumulator(x.dtype), copy=False)
        top = greatest(z, axes, -xp.inf)
        top = xp.where(xp.isfinite(top), top, 0)
        with np.errstate(divide="ignore"):  # ln 0 is the right answer where all x are -∞
            y = top + xp.log(xp.exp(z - top).sum(axis=axes, keepdims=True))
        y = xp.asarray(y).astype(x.dtype, copy=False)
        y = y if keepdims else y.squeeze(axes)
        return y, {"x": x, "y": y}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, axes, keepdims):
        x, y = saved["x"], saved["y"]
        kept = _kept(x.shape, axes)
        y = select(equal(y, -math.inf), 0.0, y)  # -∞ - -∞ would be NaN; e^-∞ is 0
        return (reshape(dy, kept) * exp(x - reshape(y, kept)),)


def logsumexp(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """ln Σ e^x over `axis` (None for all, an int, or a tuple), without overflow.

    Of nothing, and of -∞ alone, it is -∞ with a gradient of 0. Keeps x and its result.
    """
    x = floating(x)
    axes = axes_of("logsumexp", axis, x.ndim)
    return apply(LogSumExp, x, axes=axes, keepdims=bool(keepdims))


class Norm(Op):
    """y = √(Σ x²) over the axes      dx = x · dy / y, 0 where y = 0      keeps x and y.

    x is divided by the largest |x| first: its squares neither overflow nor vanish.
    """

    saves = {"x": Input(0), "y": Output()}

    @staticmethod
    def forward(xp, x, *, needs, axes, keepdims):
        z = xp.abs(x.astype(accumulator(x.dtype), copy=False))
        top = greatest(z, axes, 0.0)
        top = xp.where((top == 0) | (top == xp.inf), 1, top)
        z = z / top
        y = top * xp.sqrt((z * z).sum(axis=axes, keepdims=True))
        y = xp.asarray(y).astype(x.dtype, copy=False)
        y = y if keepdims else y.squeeze(axes)
        return y, {"x": x, "y": y}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, axes, keepdims):
        x, y = saved["x"], saved["y"]
        return (x * reshape(_over_or_zero(dy, y), _kept(x.shape, axes)),)


def norm(x: Any, ord: float = 2, axis: Any = None, keepdims: bool = False) -> Any:
    """The length of x over `axis` (None for all, an int, or a tuple), as of one vector.

    ord 2: √(Σ x²), without overflow; 1: Σ |x|; math.inf: max |x|. At 0 its gradient is 0;
    for ord 1 and ∞ |x| and max say what happens at kinks and ties. ord 2 keeps x and its
    result, the others record abs and sum or max. 16-bit floats add up in float32.
    """
    x = floating(x)
    if ord == 1:
        return sum(abs(x), axis, keepdims)
    if ord == math.inf:
        return max(abs(x), axis, keepdims)
    if ord != 2:
        raise HelixError(f"norm got ord={ord!r}. Use 1, 2 or math.inf.")
    axes = axes_of("norm", axis, x.ndim)
    return apply(Norm, x, axes=axes, keepdims=bool(keepdims))
