"""Writing to a Tensor in place: `+= -= *= /=`, `x[index] = value`, `copy_`.

Every write bumps the version of the storage, which all views share, so that a sweep
notices when a saved tensor was overwritten.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import memory
from ..backend import backend_of, is_array, is_writeable
from ..errors import DTypeError, GraphError, ShapeError
from ..modes import is_grad_enabled
from ..op import same_device
from ..tensor import Tensor
from .operands import check_bounds, holds

__all__ = ["add_", "copy_", "div_", "mul_", "setitem_", "sub_"]


def _fits(value: Any, dtype: Any) -> bool:
    """Whether `value` can be written into `dtype` as it is: no float cut to an int, no
    float of another width, no int out of range."""
    if is_array(value):
        if value.dtype == dtype or value.dtype.kind == "b":
            return True
        if value.dtype.kind == "f":
            return False
        return dtype.kind == "f" or bool((value.astype(dtype) == value).all())
    if isinstance(value, (float, np.floating)):
        return dtype.kind == "f"
    return holds(dtype, value)


def _write(x: Tensor, what: str, value: Any, write: Callable[[Any], Any]) -> Tensor:
    """Check that `x` may be written to, let `write` do it, bump the version."""
    tracked = isinstance(value, Tensor) and value.requires_grad
    if isinstance(value, Tensor):
        value = value.data
    same_device(what, [x.data, value])
    if is_grad_enabled() and (x.requires_grad or tracked):
        made = f", made by {x.node!r}," if x.node is not None else ""
        culprit = "it" if x.requires_grad else "the value written"
        raise GraphError(
            f"{what} would write in place to a Tensor of shape {x.shape}{made} and "
            f"{culprit} requires a gradient: the tape cannot follow that. Use the "
            "operation that returns a new Tensor, or write inside no_grad()."
        )
    if not _fits(value, x.dtype):
        got = value.dtype if is_array(value) else repr(value)
        raise DTypeError(
            f"{what} would write {got} into a Tensor of {x.dtype}, which cannot hold it. "
            f"Convert the value with astype('{x.dtype}') first."
        )
    if not is_writeable(x.data):
        raise GraphError(
            f"{what} would write to an array that is read-only (a broadcast view, or "
            "locked by its owner). Write to a copy."
        )
    try:
        write(value)
    except ValueError as error:
        raise ShapeError(
            f"{what} on a Tensor of shape {x.shape} got a value of shape "
            f"{np.shape(value)} ({error}). Give one that broadcasts to the target."
        ) from None
    except TypeError as error:
        raise DTypeError(
            f"{what} on a Tensor of {x.dtype} got {type(value).__name__} ({error}). "
            "Convert the value first."
        ) from None
    memory.bump(x.data)
    return x


def add_(x: Tensor, value: Any) -> Tensor:
    """x += value, in place."""
    return _write(x, "+=", value, x.data.__iadd__)


def sub_(x: Tensor, value: Any) -> Tensor:
    """x -= value, in place."""
    return _write(x, "-=", value, x.data.__isub__)


def mul_(x: Tensor, value: Any) -> Tensor:
    """x *= value, in place."""
    return _write(x, "*=", value, x.data.__imul__)


def div_(x: Tensor, value: Any) -> Tensor:
    """x /= value, in place."""
    return _write(x, "/=", value, x.data.__itruediv__)


def setitem_(x: Tensor, index: Any, value: Any) -> None:
    """x[index] = value, in place."""
    parts = index if isinstance(index, tuple) else (index,)
    plain = tuple([i.data if isinstance(i, Tensor) else i for i in parts])
    same_device("x[...] =", [x.data, *plain])
    check_bounds(x.data, plain)
    key = plain if isinstance(index, tuple) else plain[0]
    _write(x, "x[...] =", value, lambda v: x.data.__setitem__(key, v))


def copy_(x: Tensor, value: Any) -> Tensor:
    """Write the values of `value`, which has exactly x's shape and may be on another
    device, into x's array."""
    shape = value.shape if isinstance(value, Tensor) else np.shape(value)
    if shape != x.shape:
        raise ShapeError(
            f"copy_ on a Tensor of shape {x.shape} got a value of shape {shape}. They "
            "must be equal."
        )
    array = value.data if isinstance(value, Tensor) else value
    if is_array(array) and backend_of(array) is not backend_of(x.data):
        value = backend_of(x.data).asarray(array)
    return _write(x, "copy_", value, lambda v: x.data.__setitem__(..., v))
