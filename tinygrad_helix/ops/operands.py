"""What an op gets to see: promotion of dtypes and axes, checked in one place.

Python and NumPy scalars are weak. Arrays promote as `numpy.result_type`, but an int or a
bool that meets a float takes the float's dtype, and functions of ints are float32.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..backend import backend_of, get_backend, is_array
from ..errors import DTypeError, ShapeError
from ..modes import is_grad_enabled
from ..op import Op, apply, same_device
from ..tape import plain
from ..tensor import Tensor

__all__ = [
    "accumulator", "axes_of", "axis_of", "binary", "by_piece", "check_bounds",
    "check_range", "floating", "greatest", "holds", "module_of", "operand", "owned",
    "pieces", "plain", "promote", "rows", "same_float", "whole", "wide",
    "zeros",
]  # fmt: skip


def _dtype(x: Any) -> Any:
    """The dtype of a Tensor or array; None for a number."""
    return None if isinstance(x, np.generic) else getattr(x, "dtype", None)


def _cast(x: Any, dtype: Any) -> Any:
    """An int or bool Tensor or array in another dtype: no gradient goes through it."""
    if isinstance(x, Tensor):
        return Tensor(x.data.astype(dtype))
    return x.astype(dtype) if _dtype(x) is not None else x


def floating(x: Any) -> Any:
    """`x` itself if it holds floats, else as float32."""
    dtype = _dtype(x)
    if dtype is None:
        if isinstance(x, np.floating):
            return np.asarray(x)
        try:
            array = np.asarray(x)
        except ValueError:
            return x
        # What holds no numbers is refused by name where the op is applied.
        return array.astype(np.float32) if array.dtype.kind in "fiub" else x
    return _cast(x, np.float32) if dtype.kind in "iub" else x


def operand(op: str, x: Any) -> Any:
    """`x` if it is a Tensor or an array, else a number or list as the array `tensor` makes
    of it."""
    if _dtype(x) is not None:
        return x
    if x is None or isinstance(x, str):
        raise DTypeError(
            f"{op} takes Tensors, arrays and lists of numbers; got {type(x).__name__}."
        )
    return Tensor(x).data


def whole(op: str, name: str, value: Any) -> int:
    """An argument that has to be an int: NumPy's and those of a Tensor too, no bool."""
    try:
        if not isinstance(value, bool):
            return value.__index__()
    except (AttributeError, TypeError):
        pass
    raise DTypeError(f"{op} got {name}={value!r}. Give an int.")


def holds(dtype: Any, value: Any) -> bool:
    """Whether an int is in the range of the ints of `dtype`; what is no int always is."""
    if not isinstance(value, (int, np.integer)) or dtype.kind not in "iu":
        return True
    return bool(np.iinfo(dtype).min <= value <= np.iinfo(dtype).max)


def check_range(op: str, *xs: Any) -> None:
    """Refuse an int beside arrays of ints, whose dtype it takes, that does not fit there:
    NumPy wraps it in some places."""
    kinds = [d for d in map(_dtype, xs) if d is not None]
    if not kinds or any(d.kind not in "iub" for d in kinds):
        return
    dtype = np.result_type(*kinds)
    dtype = np.dtype(np.int64) if dtype.kind == "b" else dtype
    for x in xs:
        if _dtype(x) is None and not holds(dtype, x):
            known = np.iinfo(dtype)
            raise DTypeError(
                f"{op} of {dtype} got the number {x}, which that cannot hold "
                f"({known.min} to {known.max}). Convert to a wider dtype first, with "
                "astype('int64'), say."
            )


def promote(*xs: Any, divide: bool = False) -> tuple[Any, ...]:
    """Operands ready for NumPy's own promotion: ints and bools that meet a float (or are
    to be divided) take its dtype."""
    first = _dtype(xs[0])
    if first is not None and first.kind == "f":
        for x in xs:
            dtype = _dtype(x)
            if dtype is not None and dtype.kind != "f":
                break
        else:
            return xs
    kinds = [_dtype(x) for x in xs]
    if not any(kinds) and any(isinstance(x, np.generic) for x in xs):
        # Scalars are weak beside an array. Among themselves they are what NumPy made of
        # 0-d arrays, and keep their dtype.
        xs = tuple([np.asarray(x) if isinstance(x, np.generic) else x for x in xs])
        return promote(*xs, divide=divide)
    floats = [dtype for dtype in kinds if dtype is not None and dtype.kind == "f"]
    if floats:
        target = np.result_type(*floats)
    elif divide or any(isinstance(x, (float, np.floating)) for x in xs):
        target = np.dtype(np.float32)
    elif all(dtype is None for dtype in kinds):
        return (np.asarray(xs[0]), *xs[1:])
    else:
        return xs
    if all(dtype is None for dtype in kinds):
        return (np.asarray(xs[0], target), *xs[1:])
    return tuple(
        [
            _cast(x, target) if d is None or d.kind in "iub" else x
            for x, d in zip(xs, kinds, strict=True)
        ]
    )


def same_float(op: str, **named: Any) -> None:
    """Refuse ints and mixed floats where an operation wants one float dtype."""
    dtypes = {name: _dtype(x) for name, x in named.items() if x is not None}
    if len(set(dtypes.values())) > 1 or any(
        d is None or d.kind != "f" for d in dtypes.values()
    ):
        listed = ", ".join(f"{name} {dtype}" for name, dtype in dtypes.items())
        raise DTypeError(
            f"{op} takes arrays of one float dtype; got {listed}. Convert them with "
            "astype() first."
        )


def accumulator(dtype: Any) -> Any:
    """The dtype in which sums of `dtype` add up: float32 for 16-bit floats."""
    return np.dtype(np.float32) if dtype.kind == "f" and dtype.itemsize == 2 else dtype


def wide(x: Any) -> Any:
    """`x`, or its float32 version if it holds 16-bit floats (recorded if a Tensor)."""
    return x.astype(np.float32) if accumulator(x.dtype) != x.dtype else x


PIECE = 2**16  # elements; of 2^12 to 2^18 the fastest for silu's vjp on 4M float32


def pieces(*arrays: Any) -> Iterator[tuple[Any, ...]]:
    """Arrays of one shape, cut alike into pieces that stay in the cache.

    The cuts depend on shape and layout alone, so that results do not depend on the
    machine. The pieces are views: what is written to them is written to the arrays. On
    another device than the CPU, where a piece would cost a launch, there is one.
    """
    first = arrays[0]
    if first.size <= PIECE or not isinstance(first, np.ndarray):
        yield arrays
        return
    if first.ndim > 1 and all(a.flags.c_contiguous for a in arrays):
        arrays = tuple([a.reshape(-1) for a in arrays])
    step = max(1, PIECE * len(arrays[0]) // first.size)
    for i in range(0, len(arrays[0]), step):
        yield tuple([a[i : i + step] for a in arrays])


def by_piece(xp: Any, x: Any, compute: Callable[[Any], Any]) -> Any:
    """compute(x) of an elementwise function, piece by piece, in the accumulating dtype."""
    y = xp.empty(x.shape, accumulator(x.dtype))
    for x_, y_ in pieces(x, y):
        y_[...] = compute(x_.astype(y.dtype, copy=False))
    return y.astype(x.dtype, copy=False)


def rows(*arrays: Any) -> Iterator[tuple[Any, ...]]:
    """As `pieces`, but cut between rows: every piece has whole last axes."""
    first = arrays[0]
    if first.size <= PIECE or first.ndim < 2 or not isinstance(first, np.ndarray):
        yield arrays
        return
    if all(a.flags.c_contiguous for a in arrays):
        arrays = tuple([a.reshape(-1, a.shape[-1]) for a in arrays])
    step = max(1, PIECE * len(arrays[0]) // first.size)
    for i in range(0, len(arrays[0]), step):
        yield tuple([a[i : i + step] for a in arrays])


def greatest(x: Any, axes: Any, least: float) -> Any:
    """max of an array over `axes`, which stay with size 1; `least` where there is none.

    (NumPy says that by `initial=`, which CuPy does not have.)
    """
    if x.size:
        return x.max(axis=axes, keepdims=True)
    along = axes if isinstance(axes, tuple) else (axes % x.ndim,)
    shape = tuple([1 if i in along else n for i, n in enumerate(x.shape)])
    return backend_of(x).xp.full(shape, least, x.dtype)


def module_of(op: str, *xs: Any) -> Any:
    """The array module of the arrays among `xs` (Tensors or arrays), NumPy for none."""
    arrays = [plain(x) for x in xs if is_array(plain(x))]
    same_device(op, arrays)
    return backend_of(arrays[0]).xp if arrays else np


def check_bounds(array: Any, key: tuple[Any, ...]) -> None:
    """Raise IndexError where `array[key]` is out of bounds and the device would not say so.

    (CuPy takes such an index modulo the size. The check waits for the device.)
    """
    if backend_of(array).checks_indices:
        return
    known = [np.asarray(p) if isinstance(p, list) else p for p in key]
    masks = [is_array(p) and p.dtype.kind == "b" for p in known]
    widths = [
        0 if p is None or p is Ellipsis else p.ndim if mask else 1
        for p, mask in zip(known, masks, strict=True)
    ]
    axis = 0
    for i, (p, mask) in enumerate(zip(known, masks, strict=True)):
        if p is Ellipsis:
            axis = array.ndim - sum(widths[i:])
        elif is_array(p) and not mask and p.size and axis < array.ndim:
            n = array.shape[axis]
            wrong = [int(e) for e in (p.min(), p.max()) if not -n <= int(e) < n]
            if wrong:
                raise IndexError(
                    f"index {wrong[0]} is out of bounds for axis {axis} with size {n}"
                )
        axis += widths[i]


def zeros(shape: tuple[int, ...], like: Any) -> Any:
    """An array of zeros with the dtype and on the device of `like` (Tensor or array)."""
    array = like.data if isinstance(like, Tensor) else like
    return backend_of(array).xp.zeros(shape, array.dtype)


def owned(op: str, given: Any, *operands: Any) -> Any:
    """What an op of `operands` keeps of an index, a mask or a target: an array, of a list
    one on the operands' device.

    Writes to a Tensor's array are noticed. Those to any other array are not, so that of
    one a copy is kept, if anything is: if an operand requires a gradient.
    """
    if isinstance(given, Tensor):
        return given.data
    if not is_array(given):
        arrays = [plain(x) for x in operands if is_array(plain(x))]
        backend = backend_of(arrays[0]) if arrays else get_backend("cpu")
        try:
            return backend.asarray(given, None if np.size(given) else np.int64)
        except (TypeError, ValueError) as error:
            raise DTypeError(
                f"{op} takes Tensors, arrays and lists of numbers; {error}."
            ) from None
    backend = backend_of(given)
    keeps = is_grad_enabled() and any(
        isinstance(x, Tensor) and x.requires_grad for x in operands
    )
    return backend.copy(given) if keeps else backend.asarray(given)


def binary(op: type[Op], a: Any, b: Any, divide: bool = False) -> Any:
    """Apply an elementwise op of two promoted operands."""
    if a is None or b is None:
        raise DTypeError(f"{op.name} takes Tensors, arrays and numbers; got None.")
    alike = type(a) is type(b) is Tensor and a.data.dtype is b.data.dtype
    if not alike or a.data.dtype.kind != "f":
        a, b = promote(a, b, divide=divide)
        check_range(op.name, a, b)
    try:
        return apply(op, a, b)
    except OverflowError as error:
        raise DTypeError(f"{op.name} got a number that no dtype holds: {error}.") from None
    except ValueError as error:
        if isinstance(error, ShapeError):
            raise
        shapes = np.shape(plain(a)), np.shape(plain(b))
        try:
            np.broadcast_shapes(*shapes)
        except ValueError:
            raise ShapeError(
                f"{op.name} of shapes {shapes[0]} and {shapes[1]}, which do not broadcast. "
                "Sizes must be equal or 1, counted from the last axis."
            ) from None
        raise DTypeError(
            f"{op.name} of {_dtype(a) or a} and {_dtype(b) or b}: {error} Convert one "
            "with astype('float32') first."
        ) from None


def axes_of(op: str, axis: Any, ndim: int) -> tuple[int, ...]:
    """`axis` (None for all, an int, or several) as sorted axes counted from 0."""
    given = (
        range(ndim)
        if axis is None
        else axis
        if isinstance(axis, (tuple, list))
        else (axis,)
    )
    axes = []
    for i in given:
        if not isinstance(i, (int, np.integer)) or isinstance(i, bool):
            raise DTypeError(
                f"{op} got axis={axis!r}. Give None, an int, or a tuple of ints."
            )
        if not -ndim <= i < ndim:
            raise ShapeError(
                f"{op} got axis {i} of a Tensor of {ndim} axes. Give one of {-ndim} to "
                f"{ndim - 1}."
                if ndim
                else f"{op} got axis {i} of a Tensor without axes."
            )
        axes.append(int(i) % ndim)
    if len(set(axes)) != len(axes):
        raise ShapeError(f"{op} got axis={axis!r}, which names an axis twice.")
    return tuple(sorted(axes))


def axis_of(op: str, axis: Any, ndim: int) -> int:
    """`axis`, one int, as an axis counted from 0."""
    if not isinstance(axis, (int, np.integer)) or isinstance(axis, bool):
        raise DTypeError(f"{op} got axis={axis!r}. It takes one axis, an int.")
    return axes_of(op, axis, ndim)[0]
