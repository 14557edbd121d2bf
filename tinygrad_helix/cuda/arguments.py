"""The arguments of a launch, held against the kernel's signature (see `launch`)."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import KernelError
from .parameters import Parameter
from .source import Instance
from .text import evaluate

__all__ = ["Arguments", "address"]


class Arguments:
    """What one kernel takes: `ready(args)` checks and converts, or raises KernelError."""

    def __init__(self, title: str, instance: Instance, device: Any) -> None:
        self.instance = instance
        self._title = title
        # Not the device itself: it holds its kernels, and they should not hold it.
        self._xp, self._array_type, self._where = device.xp, device.array_type, device.name
        numbered = [*enumerate(instance.parameters)]
        self._convert = [self._converter(p) for _, p in numbered]
        self._shaped = [i for i, p in numbered if p.shape is not None]
        self._integers = [
            (p.name, i) for i, p in numbered if not p.pointer and "int" in p.dtype
        ]

    def _error(self, what: str) -> KernelError:
        return KernelError(f"{self._title}: {what}.")

    def ready(self, args: Sequence[Any]) -> tuple[Any, ...]:
        parameters = self.instance.parameters
        if len(args) != len(parameters):
            raise self._error(
                f"got {len(args)} arguments, the kernel has {len(parameters)} parameters: "
                f"{', '.join(map(str, parameters))}"
            )
        ready = tuple(
            [convert(value) for convert, value in zip(self._convert, args, strict=True)]
        )
        self._check_shapes(ready)
        self._check_overlap(ready)
        return ready

    def _converter(self, p: Parameter) -> Any:
        dtype = _dtype(p.dtype)
        if p.pointer:
            return functools.partial(self._array, p, dtype)
        if p.lanes > 1 or dtype is None or dtype.kind == "V":
            raise self._error(
                f"the parameter {p} is passed by value, and no Python number is a "
                f"{p.type}. Let the kernel take a pointer, or a float"
            )
        if dtype.kind == "b":
            return functools.partial(self._flag, p)
        if dtype.kind in "iu":
            info = np.iinfo(dtype)
            return functools.partial(
                self._integer, p, dtype.type, int(info.min), int(info.max)
            )
        return functools.partial(self._float, p, dtype.type, float(np.finfo(dtype).max))

    def _flag(self, p: Parameter, value: Any) -> np.bool:
        if not isinstance(value, (bool, np.bool)):
            raise self._error(f"{p} takes True or False, not {value!r}")
        return np.bool(value)

    def _integer(self, p: Parameter, kind: type, low: int, high: int, value: Any) -> Any:
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
            raise self._error(
                f"{p} takes a whole number, not {value!r} ({type(value).__name__})"
            )
        if not low <= value <= high:
            raise self._error(
                f"{p} is {value}, and {p.type} holds {low} to {high}. Split the work into "
                "several launches, or declare the parameter long long and compute with it"
            )
        return kind(value)

    def _float(self, p: Parameter, kind: type, most: float, value: Any) -> Any:
        if not isinstance(value, (float, int, np.floating, np.integer)) or isinstance(
            value, bool
        ):
            raise self._error(f"{p} takes a number, not {value!r} ({type(value).__name__})")
        if most < abs(value) < math.inf:
            raise self._error(f"{p} is {value!r}, beyond the largest {p.type}")
        return kind(value)

    def _array(self, p: Parameter, dtype: np.dtype | None, value: Any) -> Any:
        if value is None:
            if p.nullable:
                return None
            raise self._error(
                f"{p} is None. Give an array; if the kernel does take a null pointer "
                f'there, say so in the comment above it: "{p.name} may be null"'
            )
        if not isinstance(value, self._array_type):
            kind = f"{type(value).__module__}.{type(value).__name__}"
            raise self._error(
                f"{p} is a {kind}, no array on {self._where!r}. Move it there first"
            )
        if value.dtype != dtype:
            raise self._error(
                f"{p} is an array of {value.dtype}, the kernel takes {p.dtype}. Convert it "
                f"with .astype({p.dtype!r}), or launch the instance for {value.dtype}"
            )
        if not value.flags.c_contiguous:
            if not p.const:
                raise self._error(
                    f"{p}, which the kernel writes, has shape {value.shape} and strides "
                    f"{value.strides}: it is not C-contiguous. Let the kernel write to an "
                    "array of its own, and copy that"
                )
            value = self._xp.ascontiguousarray(value)
        if not (p.const or getattr(value.flags, "writeable", True)):
            raise self._error(f"{p}, which the kernel writes, is read-only. Copy it")
        size = p.lanes * value.dtype.itemsize
        if value.nbytes and address(value) % size:
            if not p.const:
                raise self._error(
                    f"{p}, which the kernel writes, begins at an address that is no "
                    f"multiple of the {size} bytes of a {p.type}. Let the kernel write to "
                    "an array of its own, and copy that"
                )
            value = value.copy()
        return value

    def _check_shapes(self, ready: Sequence[Any]) -> None:
        """Each array has the shape of the comment, and each name in it one value."""
        sizes = dict(self.instance.integers)
        for name, i in self._integers:
            sizes[name] = int(ready[i])
        for i in self._shaped:
            if ready[i] is None:
                continue
            p, shape = self.instance.parameters[i], ready[i].shape
            axes = p.shape or ()
            if len(shape) != len(axes):
                raise self._error(
                    f"{p} has shape {shape}, the kernel takes {_stated(p)}. Reshape it"
                )
            if p.lanes > 1:
                if not shape or shape[-1] % p.lanes:
                    raise self._error(
                        f"{p} has shape {shape}, whose last axis is no multiple of the "
                        f"{p.lanes} elements of a {p.type}"
                    )
                shape = (*shape[:-1], shape[-1] // p.lanes)
            for n, text in zip(shape, axes, strict=True):
                wanted = sizes.get(text)
                if wanted is None:
                    wanted = sizes[text] = (
                        n if text.isidentifier() else self._axis(p, text, sizes)
                    )
                if n != wanted:
                    raise self._error(
                        f"{p} has shape {ready[i].shape}, the kernel takes {_stated(p)} "
                        f"with {text} = {wanted}{self._reason(text)}"
                    )

    def _axis(self, p: Parameter, text: str, sizes: Mapping[str, int]) -> int:
        try:
            return evaluate(text, sizes)
        except (KeyError, ValueError, ZeroDivisionError) as error:
            raise self._error(
                f"the comment above the kernel says {_stated(p)}, and {text!r} has no "
                f"value in this launch ({error}). Use names of integer parameters, or of "
                "axes that come before"
            ) from None

    def _reason(self, text: str) -> str:
        """Where the value of an axis comes from."""
        if text in dict(self._integers):
            return ", the argument"
        if text in self.instance.integers:
            return ", a constant of the kernel"
        first = (p.name for p in self.instance.parameters if text in (p.shape or ()))
        return f", that of {next(first)}" if text.isidentifier() else ""

    def _check_overlap(self, ready: Sequence[Any]) -> None:
        """What the kernel writes shares no memory with another __restrict__ argument."""
        parameters = self.instance.parameters
        spans = [(i, _span(ready[i])) for i, p in enumerate(parameters) if p.pointer]
        spans = [(i, *span) for i, span in spans if span is not None]
        for i, start, end in spans:
            p = parameters[i]
            if p.const:
                continue
            for j, first, last in spans:
                if start < last and first < end and i != j:
                    q = parameters[j]
                    if p.restrict or q.restrict:
                        raise self._error(
                            f"{p.name}, which the kernel writes, shares memory with "
                            f"{q.name}, and __restrict__ promises that it does not. Write "
                            "to an array of its own"
                        )


def _stated(p: Parameter) -> str:
    return f"{p.name} [{', '.join(p.shape or ())}]"


def _span(array: Any) -> tuple[int, int] | None:
    """Where the bytes of a C-contiguous array begin and end; None if it has none."""
    if array is None or array.nbytes == 0:
        return None
    start = address(array)
    return start, start + array.nbytes


def address(array: Any) -> int:
    """Where an array of NumPy or CuPy begins."""
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr


@functools.cache
def _dtype(name: str) -> np.dtype | None:
    """The dtype of a name; None for bfloat16 without ml_dtypes: no array has it then."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        return None
    return np.dtype(ml_dtypes.bfloat16)
