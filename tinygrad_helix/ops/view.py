"""Ops that look at the same values in another shape or order."""

from typing import Any

from ..errors import DTypeError, ShapeError
from ..op import Op, apply
from .operands import axes_of, axis_of, operand

__all__ = [
    "broadcast_to", "expand", "flip", "permute", "reshape", "squeeze", "swapaxes",
    "transpose", "unsqueeze",
]  # fmt: skip


def _sizes(op: str, given: tuple[Any, ...]) -> tuple[int, ...]:
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
    x = operand("reshape", x)
    wanted = _sizes("reshape", shape)
    try:
        return apply(Reshape, x, shape=wanted)
    except ValueError:
        raise ShapeError(
            f"reshape of shape {x.shape} ({x.size} elements) to {wanted}. The number of "
            "elements must stay; at most one size may be -1."
        ) from None


def squeeze(x: Any, axis: Any = None) -> Any:
    """x without the axes `axis` of size 1 (None for all of them), a view.

    Records reshape; keeps nothing.
    """
    x = operand("squeeze", x)
    if axis is None:
        axes = tuple([i for i, n in enumerate(x.shape) if n == 1])
    else:
        axes = axes_of("squeeze", axis, x.ndim)
        if any(x.shape[i] != 1 for i in axes):
            raise ShapeError(
                f"squeeze of a Tensor of shape {x.shape} got axis={axis}. Only axes of "
                "size 1 can be dropped."
            )
    return reshape(x, tuple([n for i, n in enumerate(x.shape) if i not in axes]))


def unsqueeze(x: Any, axis: int) -> Any:
    """x with a new axis of size 1 at `axis` of the result, a view.

    Records reshape; keeps nothing.
    """
    x = operand("unsqueeze", x)
    at = axis_of("unsqueeze", axis, x.ndim + 1)
    return reshape(x, (*x.shape[:at], 1, *x.shape[at:]))


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
    x = operand("transpose", x)
    if not axes or axes == (None,):
        order = tuple(reversed(range(x.ndim)))
    else:
        order = _sizes("transpose", axes)
        if len(axes_of("transpose", order, x.ndim)) != x.ndim:
            raise ShapeError(
                f"transpose of a Tensor of shape {x.shape} got axes {order}. Give each of "
                f"its {x.ndim} axes once."
            )
        order = tuple([i % x.ndim for i in order])
    return apply(Transpose, x, axes=order)


def permute(x: Any, *axes: Any) -> Any:
    """x with its axes in the order `axes`, each given once, a view.

    `transpose` under PyTorch's name, and it records that; there must be axes here. Keeps
    nothing.
    """
    return transpose(x, _sizes("permute", axes))


def swapaxes(x: Any, axis1: int, axis2: int) -> Any:
    """x with two axes exchanged, a view. Records transpose; keeps nothing."""
    x = operand("swapaxes", x)
    first = axis_of("swapaxes", axis1, x.ndim)
    second = axis_of("swapaxes", axis2, x.ndim)
    order = list(range(x.ndim))
    order[first], order[second] = second, first
    return transpose(x, order)


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
    x = operand("broadcast_to", x)
    wanted = _sizes("broadcast_to", shape)
    try:
        return apply(BroadcastTo, x, shape=wanted)
    except ValueError:
        raise ShapeError(
            f"shape {x.shape} does not broadcast to {wanted}. Sizes must be equal or 1, "
            "counted from the last axis."
        ) from None


def expand(x: Any, *shape: Any) -> Any:
    """x repeated to `shape`, in which -1 keeps x's size, a read-only view.

    Records broadcast_to; keeps nothing.
    """
    x = operand("expand", x)
    wanted = _sizes("expand", shape)
    lead = len(wanted) - x.ndim
    if any(n < 0 and (n != -1 or i < lead) for i, n in enumerate(wanted)):
        raise ShapeError(
            f"expand of shape {x.shape} to {wanted}. A size is 0 or more, or -1 for an "
            "axis that x has."
        )
    return broadcast_to(
        x, tuple([x.shape[i - lead] if n == -1 else n for i, n in enumerate(wanted)])
    )


class Flip(Op):
    """y = x with axes reversed      dx = dy with them reversed      keeps nothing."""

    @staticmethod
    def forward(xp, x, *, needs, axes):
        return xp.flip(x, axes), {}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, axes):
        return (flip(dy, axes),)


def flip(x: Any, axis: Any = None) -> Any:
    """x with the order along `axis` reversed (None for all), a view. Keeps nothing."""
    x = operand("flip", x)
    return apply(Flip, x, axes=axes_of("flip", axis, x.ndim))
