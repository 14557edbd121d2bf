"""Picking elements: x[index], basic and advanced, and rows by number (embedding)."""

from typing import Any

import numpy as np

from ..backend import backend_of, is_array
from ..errors import DTypeError, ShapeError
from ..op import Constant, Op, apply
from .operands import plain

__all__ = ["embedding", "getitem"]

# An index is split in two, since attrs are hashable and hold no arrays: a tuple in which
# a slice is a Python tuple and an array is its number, and the arrays themselves.
_ARRAY, _SLICE = "array", "slice"
_MAX_ARRAYS = 8


def _split(index: Any) -> tuple[tuple[Any, ...], list[Any]]:
    parts = index if isinstance(index, tuple) else (index,)
    spec: list[Any] = []
    arrays: list[Any] = []
    for part in parts:
        part = plain(part)
        if isinstance(part, list):
            part = np.asarray(part, dtype=None if part else np.int64)
        if isinstance(part, np.generic):
            part = part.item()
        if is_array(part):
            if part.dtype.kind not in "iub":
                raise DTypeError(
                    f"an index array holds ints or bools; got {part.dtype}. Convert it."
                )
            spec.append((_ARRAY, len(arrays)))
            arrays.append(part)
        elif isinstance(part, slice):
            bounds = (plain(b) for b in (part.start, part.stop, part.step))
            spec.append((_SLICE, *(b if b is None else b.__index__() for b in bounds)))
        elif isinstance(part, bool):
            spec.append((_ARRAY, len(arrays)))
            arrays.append(np.asarray(part))
        elif part is None or part is Ellipsis or isinstance(part, int):
            spec.append(part)
        else:
            raise DTypeError(
                f"a Tensor cannot be indexed by {type(part).__name__}. Use ints, slices, "
                "None, ..., or arrays of ints or bools."
            )
    if len(arrays) > _MAX_ARRAYS:
        raise ShapeError(f"an index of {len(arrays)} arrays; at most {_MAX_ARRAYS} work.")
    return tuple(spec), arrays


def _join(spec: tuple[Any, ...], arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    def part(p: Any) -> Any:
        if not isinstance(p, tuple):
            return p
        return arrays[p[1]] if p[0] == _ARRAY else slice(*p[1:])

    return tuple([part(p) for p in spec])


class GetItem(Op):
    """y = x[index]      dx = 0, with dy added at index      keeps the index arrays."""

    name = "getitem"
    saves = {f"index{i}": Constant() for i in range(_MAX_ARRAYS)}

    @staticmethod
    def forward(xp, x, *arrays, needs, spec):
        return x[_join(spec, arrays)], {f"index{i}": a for i, a in enumerate(arrays)}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, spec):
        arrays = [saved[f"index{i}"] for i in range(len(inputs) - 1)]
        dx = apply(PutItem, dy, *arrays, spec=spec, shape=inputs[0][0])
        return (dx, *(None for _ in arrays))


class PutItem(Op):
    """y = 0 of a shape, with x added at index
    dx = dy[index]
    keeps the index arrays.

    The transpose of GetItem; repeated indices add up.
    """

    name = "putitem"
    saves = GetItem.saves

    @staticmethod
    def forward(xp, x, *arrays, needs, spec, shape):
        y = xp.zeros(shape, x.dtype)
        index = _join(spec, arrays)
        if all(a.dtype == bool for a in arrays):
            y[index] = x  # slices and masks name no element twice
        else:
            backend_of(y).scatter_add(y, index, x)
        return y, {f"index{i}": a for i, a in enumerate(arrays)}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, spec, shape):
        arrays = [saved[f"index{i}"] for i in range(len(inputs) - 1)]
        return (apply(GetItem, dy, *arrays, spec=spec), *(None for _ in arrays))


def getitem(x: Any, index: Any) -> Any:
    """x[index] by NumPy's rules: ints, slices, None, ..., arrays or lists of ints or bools.

    Where an index repeats, its gradients add up. Ints and slices give a view and keep
    nothing; arrays give a copy and are kept.
    """
    spec, arrays = _split(index)
    try:
        return apply(GetItem, x, *arrays, spec=spec)
    except IndexError as error:
        raise IndexError(f"x[index] of a Tensor of shape {x.shape}: {error}.") from None


class Embedding(Op):
    """y = weight[index]
    dweight = 0, with dy added to the rows index
    keeps index."""

    saves = {"index": Constant()}

    @staticmethod
    def forward(xp, weight, index, *, needs):
        return weight[index], {"index": index}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        spec = ((_ARRAY, 0),)
        return apply(PutItem, dy, saved["index"], spec=spec, shape=inputs[0][0]), None


def embedding(weight: Any, index: Any) -> Any:
    """Rows of `weight` [V, D] by number: index [...] of ints in 0..V-1 gives [..., D].

    Keeps the index. Repeated rows add up their gradients, in a fixed order.
    """
    index = plain(index)
    if not is_array(index):
        index = np.asarray(index, dtype=None if np.size(index) else np.int64)
    if index.dtype.kind not in "iu":
        raise DTypeError(
            f"embedding takes an index of ints; got {index.dtype}. Convert it."
        )
    if weight.ndim != 2:
        raise ShapeError(f"embedding takes a weight [V, D]; got shape {weight.shape}.")
    if index.size and not (index.min() >= 0 and index.max() < weight.shape[0]):
        raise ShapeError(
            f"embedding got indices {index.min()} to {index.max()} for a weight of "
            f"{weight.shape[0]} rows. Each must be in 0..{weight.shape[0] - 1}."
        )
    return apply(Embedding, weight, index)
