"""Joining and splitting along axes: cat, stack, split, chunk, pad."""

import itertools
from typing import Any

import numpy as np

from ..errors import DTypeError, ShapeError
from ..op import Op, apply
from .operands import axis_of, check_range, operand, promote, whole

__all__ = ["cat", "chunk", "pad", "split", "stack"]


def _along(axis: int, part: Any) -> tuple[Any, ...]:
    return (slice(None),) * axis + (part,)


def _shapes(op: str, xs: Any) -> list[tuple[int, ...]]:
    if not isinstance(xs, (list, tuple)) or not xs:
        raise ShapeError(f"{op} takes a list or tuple of at least one Tensor; got {xs!r}.")
    for x in xs:
        if not hasattr(x, "shape"):
            raise DTypeError(f"{op} takes Tensors and arrays; got {type(x).__name__}.")
    return [x.shape for x in xs]


class Cat(Op):
    """y = x₀, x₁, … one after another along an axis      dxᵢ = its part of dy
    keeps nothing."""

    @staticmethod
    def forward(xp, *arrays, needs, axis):
        return xp.concatenate(arrays, axis=axis), {}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, axis):
        sizes = [shape[axis] for shape, _ in inputs]
        ends = list(itertools.accumulate(sizes))
        return tuple(
            [
                dy[_along(axis, slice(end - size, end))] if need else None
                for size, end, need in zip(sizes, ends, needs, strict=True)
            ]
        )


def cat(tensors: Any, axis: int = 0) -> Any:
    """The tensors one after another along an axis that they have. Keeps nothing."""
    shapes = _shapes("cat", tensors)
    along = axis_of("cat", axis, len(shapes[0]))
    rest = [shape[:along] + shape[along + 1 :] for shape in shapes]
    if any(
        len(s) != len(shapes[0]) or r != rest[0] for s, r in zip(shapes, rest, strict=True)
    ):
        raise ShapeError(
            f"cat along axis {axis} of shapes {', '.join(map(str, shapes))}. All other "
            "sizes must be equal."
        )
    return apply(Cat, *promote(*tensors), axis=along)


class Stack(Op):
    """y = x₀, x₁, … along a new axis      dxᵢ = dy at i      keeps nothing."""

    @staticmethod
    def forward(xp, *arrays, needs, axis):
        return xp.stack(arrays, axis=axis), {}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, axis):
        return tuple(
            [dy[_along(axis, i)] if need else None for i, need in enumerate(needs)]
        )


def stack(tensors: Any, axis: int = 0) -> Any:
    """The tensors, all of one shape, along a new axis. Keeps nothing."""
    shapes = _shapes("stack", tensors)
    if len(set(shapes)) != 1:
        raise ShapeError(
            f"stack of shapes {', '.join(map(str, shapes))}. They must be equal; cat joins "
            "along an axis that is there."
        )
    along = axis_of("stack", axis, len(shapes[0]) + 1)
    return apply(Stack, *promote(*tensors), axis=along)


class Split(Op):
    """yᵢ = the parts of x along an axis      dx = the dyᵢ one after another
    keeps nothing."""

    @staticmethod
    def forward(xp, x, *, needs, ends, axis):
        starts = (0, *ends[:-1])
        return tuple(
            [
                x[_along(axis, slice(start, end))]
                for start, end in zip(starts, ends, strict=True)
            ]
        ), {}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, ends, axis):
        return (cat(dy if isinstance(dy, tuple) else (dy,), axis=axis),)


def split(x: Any, sizes: Any, axis: int = 0) -> tuple[Any, ...]:
    """Parts of x along `axis`, as views: each of size `sizes` (the last may be smaller),
    or of the sizes in a list. Keeps nothing; unused parts get a gradient of 0."""
    x = operand("split", x)
    along = axis_of("split", axis, x.ndim)
    n = x.shape[along]
    if isinstance(sizes, (int, np.integer)):
        if sizes < 1:
            raise ShapeError(f"split got size {sizes}. It must be at least 1.")
        parts = [min(int(sizes), n - i) for i in range(0, n, int(sizes))] or [0]
    else:
        if not isinstance(sizes, (list, tuple)):
            raise DTypeError(f"split got sizes={sizes!r}. Give an int, or a list of ints.")
        parts = [whole("split", "a size", size) for size in sizes]
        if not parts or min(parts) < 0 or sum(parts) != n:
            raise ShapeError(
                f"split of axis {axis} of size {n} into {parts}. The sizes must add up to "
                f"{n}."
            )
    return apply(Split, x, ends=tuple(itertools.accumulate(parts)), axis=along)


def chunk(x: Any, chunks: int, axis: int = 0) -> tuple[Any, ...]:
    """At most `chunks` parts of x along `axis`, of equal size but for the last.

    Of n elements each part has n / chunks, rounded up, so that there may be fewer parts.
    Views, as of split, which it records.
    """
    if not isinstance(chunks, (int, np.integer)) or chunks < 1:
        raise ShapeError(f"chunk got chunks={chunks!r}. It must be an int of at least 1.")
    x = operand("chunk", x)
    along = axis_of("chunk", axis, x.ndim)
    return split(x, max(1, -(-x.shape[along] // int(chunks))), axis)


class Pad(Op):
    """y = x between `value`s      dx = the part of dy where x is      keeps nothing."""

    @staticmethod
    def forward(xp, x, *, needs, width, value):
        # NumPy's pad takes no empty list of widths.
        return xp.pad(x, width, constant_values=value) if width else x.copy(), {}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, width, value):
        shape = inputs[0][0]
        inside = zip(width, shape, strict=True)
        return (dy[tuple([slice(before, before + n) for (before, _), n in inside])],)


def pad(x: Any, width: Any, value: float = 0.0) -> Any:
    """x with `width` elements of `value` before and after it along each axis.

    `width` is NumPy's: an int for all sides, one pair (before, after) for all axes, or a
    pair for each axis. Of ints with a float `value` it is float32. Keeps nothing.
    """
    x = operand("pad", x)
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, (int, float)):
        raise DTypeError(f"pad takes a number as value; got {type(value).__name__}.")
    x = promote(x, value)[0]
    check_range("pad", x, value)
    try:
        pairs = np.broadcast_to(np.asarray(width), (x.ndim, 2))
    except ValueError:
        pairs = np.array(-1)
    if pairs.dtype.kind not in "iu" or (pairs < 0).any():
        raise ShapeError(
            f"pad of a Tensor of shape {x.shape} got width={width!r}. Give an int, a pair "
            f"(before, after), or {x.ndim} pairs, none negative."
        )
    sides = tuple([(int(before), int(after)) for before, after in pairs])
    return apply(Pad, x, width=sides, value=value)
