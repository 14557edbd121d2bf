"""Ops that look at the same values in another shape: reshape, transpose, broadcast_to."""

from typing import Any

from ..errors import DTypeError, ShapeError
from ..op import Op, apply
from .operands import axes_of

__all__ = ["broadcast_to", "reshape", "transpose"]


def _ints(op: str, given: tuple[Any, ...]) -> tuple[int, ...]:
    """f(x, 2, 3) and f(x, (2, 3)) mean the same."""
    values = given[0] if len(given) == 1 and isinstance(given[0], (tuple, list)) else given
    try:
        return tuple([v.__index__() for v in values])
    except AttributeError:
        raise DTypeError(f"{op} got {values!r}. Give ints, or a tuple of ints.") from None


class Reshape(Op):
    """y = x in another shape, C order      dx = dy in the old one      keeps nothing."""

    @staticmethod
    def forward(xp, x, *, needs, shape):
        return x.reshape(shape), {}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, shape):
        return (dy.reshape(inputs[0][0]),)


def reshape(x: Any, *shape: Any) -> Any:
    """x in another shape of as many elements, a view where possible; one size may be -1.

    Keeps nothing.
    """
    wanted = _ints("reshape", shape)
    try:
        return apply(Reshape, x, shape=wanted)
    except ValueError:
        raise ShapeError(
            f"reshape of shape {x.shape} ({x.size} elements) to {wanted}. The number of "
            "elements must stay; at most one size may be -1."
        ) from None


class Transpose(Op):
    """y = x with its axes permuted      dx = dy permuted back      keeps nothing."""

    @staticmethod
    def forward(xp, x, *, needs, axes):
        return x.transpose(axes), {}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, axes):
        inverse = [0] * len(axes)
        for i, axis in enumerate(axes):
            inverse[axis] = i
        return (transpose(dy, inverse),)


def transpose(x: Any, *axes: Any) -> Any:
    """x with its axes in the order `axes` (reversed if none are given), a view.

    Keeps nothing.
    """
    if not axes or axes == (None,):
        order = tuple(reversed(range(x.ndim)))
    else:
        order = _ints("transpose", axes)
        if len(axes_of("transpose", order, x.ndim)) != x.ndim:
            raise ShapeError(
                f"transpose of a Tensor of shape {x.shape} got axes {order}. Give each of "
                f"its {x.ndim} axes once."
            )
        order = tuple([i % x.ndim for i in order])
    return apply(Transpose, x, axes=order)


class BroadcastTo(Op):
    """y = x repeated to a larger shape
    dx = dy summed over the repeats
    keeps nothing."""

    broadcasts = True

    @staticmethod
    def forward(xp, x, *, needs, shape):
        return xp.broadcast_to(x, shape), {}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, shape):
        return (dy,)


def broadcast_to(x: Any, *shape: Any) -> Any:
    """x repeated to `shape` by NumPy's rules, a read-only view. Keeps nothing."""
    wanted = _ints("broadcast_to", shape)
    try:
        return apply(BroadcastTo, x, shape=wanted)
    except ValueError:
        raise ShapeError(
            f"shape {x.shape} does not broadcast to {wanted}. Sizes must be equal or 1, "
            "counted from the last axis."
        ) from None
