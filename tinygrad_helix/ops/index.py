"""Picking elements, x[index] and its kin, and adding at places."""

from typing import Any

import numpy as np

from ..backend import array_module, backend_of, is_array
from ..errors import DTypeError, ShapeError
from ..op import Constant, Op, apply
from ..tensor import Tensor
from .choice import astype
from .operands import (
    accumulator,
    axis_of,
    check_bounds,
    owned,
    plain,
    same_float,
    whole,
    zeros,
)
from .view import reshape

__all__ = ["embedding", "gather", "getitem", "one_hot", "scatter_add", "take"]

# An index is split in two, since attrs are hashable and hold no arrays: a tuple in which
# a slice is a Python tuple and an array is its number, and the arrays themselves.
_ARRAY, _SLICE = "array", "slice"
_MAX_ARRAYS = 8


def _split(x: Any, index: Any) -> tuple[tuple[Any, ...], list[Any]]:
    parts = index if isinstance(index, tuple) else (index,)
    spec: list[Any] = []
    arrays: list[Any] = []
    made: dict[int, Any] = {}  # one array of each that is given, however often
    for part in parts:
        if isinstance(part, (list, Tensor)) or is_array(part):
            given = part
            part = made.get(id(given))
            if part is None:
                part = made[id(given)] = owned("x[index]", given, x)
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

    The transpose of GetItem; repeated indices add up, 16-bit floats in float32.
    """

    name = "putitem"
    saves = GetItem.saves

    @staticmethod
    def forward(xp, x, *arrays, needs, spec, shape):
        once = all(a.dtype == bool for a in arrays)  # so no element is named twice
        dtype = x.dtype if once else accumulator(x.dtype)
        y = xp.zeros(shape, dtype)
        index = _join(spec, arrays)
        if once:
            y[index] = x
        else:
            backend_of(y).scatter_add(y, index, x.astype(dtype, copy=False))
        return y.astype(x.dtype, copy=False), {f"index{i}": a for i, a in enumerate(arrays)}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, spec, shape):
        arrays = [saved[f"index{i}"] for i in range(len(inputs) - 1)]
        return (apply(GetItem, dy, *arrays, spec=spec), *(None for _ in arrays))


def getitem(x: Any, index: Any) -> Any:
    """x[index] by NumPy's rules: ints, slices, None, ..., arrays or lists of ints or bools.

    Where an index repeats, its gradients add up. Ints and slices give a view and keep
    nothing; arrays give a copy and are kept (of one that is no Tensor a copy is).
    """
    spec, arrays = _split(x, index)
    try:
        check_bounds(plain(x), _join(spec, tuple(arrays)))
        return apply(GetItem, x, *arrays, spec=spec)
    except IndexError as error:
        raise IndexError(f"x[index] of a Tensor of shape {x.shape}: {error}.") from None


def _index(op: str, index: Any, *operands: Any) -> Any:
    """`index` as an array of ints, the tape's own as in `owned`."""
    index = owned(op, index, *operands)
    if index.dtype.kind not in "iu":
        raise DTypeError(f"{op} takes an index of ints; got {index.dtype}. Convert it.")
    return index


def take(x: Any, index: Any, axis: int | None = None) -> Any:
    """The elements of x at `index`, ints of any shape, along `axis` (None: of the
    flattened x); index's axes are where that axis was.

    Where an index repeats, its gradients add up. Records getitem; keeps the index (of
    an array that is no Tensor a copy).
    """
    index = Tensor(_index("take", index, x))  # shared by getitem
    if axis is None:
        return getitem(reshape(x, -1), index)
    along = axis_of("take", axis, x.ndim)
    return getitem(x, (*(slice(None),) * along, index))


def _grid(xp: Any, index: Any, axis: int) -> tuple[Any, ...]:
    """The places (…, i, index[…, i, …], j, …) as one index array an axis."""
    places = xp.ogrid[tuple([slice(n) for n in index.shape])]
    return (*places[:axis], index, *places[axis + 1 :])


class Gather(Op):
    """y[i, j] = x[index[i, j], j], for axis 0 of two, and so on
    dx = 0, with dy added at those places
    keeps index."""

    saves = {"index": Constant()}

    @staticmethod
    def forward(xp, x, index, *, needs, axis):
        return x[_grid(xp, index, axis)], {"index": index}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, axis):
        return apply(
            ScatterAdd, zeros(inputs[0][0], dy), saved["index"], dy, axis=axis
        ), None


def gather(x: Any, index: Any, axis: int) -> Any:
    """x at one place along `axis` for each element of `index`, which has as many axes.

    y[i, j] = x[index[i, j], j] for axis 0 of two, x[i, index[i, j]] for axis 1, and so on
    (NumPy's take_along_axis). Along the other axes index is as long as x, or shorter.
    Where an index repeats, its gradients add up. Keeps index (of an array that is no
    Tensor a copy).
    """
    index, along = _places("gather", x, index, axis)
    return apply(Gather, x, index, axis=along)


class ScatterAdd(Op):
    """y = x, with source[i, j] added at [index[i, j], j], for axis 0 of two, and so on
    dx = dy,   dsource = dy at those places
    keeps index if source needs a gradient."""

    saves = {"index": Constant()}

    @staticmethod
    def forward(xp, x, index, source, *, needs, axis):
        y = x.astype(accumulator(x.dtype))  # a copy
        backend_of(y).scatter_add(
            y, _grid(xp, index, axis), source.astype(y.dtype, copy=False)
        )
        return y.astype(x.dtype, copy=False), {"index": index if needs[2] else None}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, axis):
        return dy, None, apply(Gather, dy, saved["index"], axis=axis) if needs[2] else None


def scatter_add(x: Any, index: Any, source: Any, axis: int) -> Any:
    """A copy of x with `source` added at one place along `axis` for each element of
    `index`: the transpose of gather.

    y[index[i, j], j] += source[i, j] for axis 0 of two, and so on; source has index's
    shape, both have as many axes as x and are as long or shorter along the others. Places
    that repeat add up, in a fixed order, 16-bit floats in float32. Keeps index if source
    needs a gradient (of an array that is no Tensor a copy).
    """
    index, along = _places("scatter_add", x, index, axis, source)
    same_float("scatter_add", x=x, source=source)
    if source.shape != index.shape:
        raise ShapeError(
            f"scatter_add takes a source of the index's shape {index.shape}; got "
            f"{source.shape}."
        )
    return apply(ScatterAdd, x, index, source, axis=along)


def _places(op: str, x: Any, index: Any, axis: int, *others: Any) -> tuple[Any, int]:
    """The index as an array and the axis, checked."""
    index = _index(op, index, x, *others)
    along = axis_of(op, axis, x.ndim)
    if index.ndim != x.ndim or any(
        n > m
        for i, (n, m) in enumerate(zip(index.shape, x.shape, strict=True))
        if i != along
    ):
        raise ShapeError(
            f"{op} of a Tensor of shape {x.shape} along axis {axis} got an index of shape "
            f"{index.shape}. It must have {x.ndim} axes, along the others no longer ones."
        )
    n = x.shape[along]
    if index.size and not (index.min() >= -n and index.max() < n):
        raise IndexError(
            f"{op} of a Tensor of shape {x.shape} along axis {axis} got indices "
            f"{index.min()} to {index.max()}. Each must be in {-n}..{n - 1}."
        )
    return index, along


def one_hot(index: Any, classes: int, dtype: Any = "float32") -> Any:
    """1 at [..., index[...]], else 0: index [...] of ints in 0..classes-1 gives
    [..., classes]. No gradient."""
    given = index
    index, classes = _index("one_hot", index), whole("one_hot", "classes", classes)
    if classes < 0:
        raise ShapeError(f"one_hot got classes={classes}. Give 0 or more.")
    if index.size and not (index.min() >= 0 and index.max() < classes):
        raise ShapeError(
            f"one_hot got indices {index.min()} to {index.max()} for {classes} classes. "
            f"Each must be in 0..{classes - 1}."
        )
    y = astype(index[..., None] == array_module(index).arange(classes), dtype)
    return Tensor(y) if isinstance(given, Tensor) else y


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

    Keeps the index (of an array that is no Tensor a copy). Repeated rows add up their
    gradients, in a fixed order.
    """
    index = _index("embedding", index, weight)
    if weight.ndim != 2:
        raise ShapeError(f"embedding takes a weight [V, D]; got shape {weight.shape}.")
    if index.size and not (index.min() >= 0 and index.max() < weight.shape[0]):
        raise ShapeError(
            f"embedding got indices {index.min()} to {index.max()} for a weight of "
            f"{weight.shape[0]} rows. Each must be in 0..{weight.shape[0] - 1}."
        )
    return apply(Embedding, weight, index)
