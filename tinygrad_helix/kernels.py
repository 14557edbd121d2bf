"""Kernels: what runs an op on a device, for a dtype, in the place of the op's own body."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from .backend import Kernel, kernels_of
from .errors import DTypeError, KernelError
from .op import Op

__all__ = ["register_kernel"]

_Class = TypeVar("_Class", bound=type)


def register_kernel(op: type[Op], device: str, dtype: Any) -> Callable[[_Class], _Class]:
    """A decorator: let a class's `forward` and `vjp` run `op` on `device` for `dtype`.

    The class has a static `forward` or `vjp` or both, with the signatures and results of
    the op's own; what it does not have stays with the op. It is used where the first
    floating input (or the first array, where none is floating) has the dtype, or one of
    several given as a tuple. `forward` may return NotImplemented for a call that it does
    not take (a shape, say), and the op's body computes it; so may `vjp`. The op's body
    stays what it was: the oracle that a kernel is tested against, and what a sweep with
    `create_graph=True` runs, since kernels take arrays and not Tensors.

    Nothing is imported or compiled here: "cuda" needs no GPU until an op runs there.

    Errors: DTypeError for what is no op or no dtype, DeviceError for an unknown device,
    KernelError for a class with neither function, with one that does not take what the
    op's takes, or where another kernel is registered already. (The same class defined
    again, as a notebook does, takes the place of the old one.)

    >>> import numpy as np, tinygrad_helix as th
    >>> class Double(th.Op):
    ...     @staticmethod
    ...     def forward(xp, x, *, needs):
    ...         return x + x, {}
    ...     @staticmethod
    ...     def vjp(dy, saved, *, needs, inputs):
    ...         return (dy + dy,)
    >>> @th.register_kernel(Double, "cpu", "float32")
    ... class DoubleKernel:
    ...     @staticmethod
    ...     def forward(xp, x, *, needs):
    ...         return np.multiply(x, 2), {}
    >>> th.apply(Double, th.tensor([1.5])).tolist()
    [3.0]
    """
    if not (isinstance(op, type) and issubclass(op, Op)):
        raise DTypeError(
            f"register_kernel takes an op, a class that inherits from Op; got {op!r}."
        )
    dtypes = [_dtype(d) for d in (dtype if isinstance(dtype, (tuple, list)) else (dtype,))]
    if not dtypes:
        raise DTypeError(
            f"register_kernel for {op.name} got no dtype. Name one or several: 'float32'."
        )
    table = kernels_of(device)

    def register(cls: _Class) -> _Class:
        name = f"{cls.__module__}.{cls.__qualname__}"
        parts = {part: getattr(cls, part, None) for part in ("forward", "vjp")}
        if not any(parts.values()):
            raise KernelError(
                f"the kernel {name} of {op.name} has neither forward nor vjp. Give it at "
                "least one, as a static method with the op's own signature."
            )
        for part, function in parts.items():
            if function is not None:
                _check_signature(op, part, function, name)
        for d in dtypes:
            old = table.get((op, d))
            if old is not None and old.name != name:
                raise KernelError(
                    f"{op.name} has a kernel on {device!r} for {d} already: {old.name}. "
                    f"Register {name} for other dtypes, or remove that one first."
                )
        for d in dtypes:
            table[op, d] = Kernel(name, parts["forward"], parts["vjp"])
        return cls

    return register


def _dtype(given: Any) -> np.dtype:
    try:
        if given is None:  # float64 to NumPy
            raise TypeError
        return np.dtype(given)
    except TypeError:
        raise DTypeError(
            f"{given!r} is no dtype that NumPy knows. Use 'float32', say; 'bfloat16' needs "
            "ml_dtypes: ml_dtypes.bfloat16."
        ) from None


def _check_signature(op: type[Op], part: str, function: Any, name: str) -> None:
    """Raise unless `function` can be called as the op's own forward or vjp is."""
    own = inspect.signature(getattr(op, part))
    positional: list[None] = []
    named: dict[str, None] = {}
    for p in own.parameters.values():
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            positional.append(None)
        elif p.kind is p.VAR_POSITIONAL:
            positional += [None] * 3
        elif p.kind is p.KEYWORD_ONLY:
            named[p.name] = None
    try:
        inspect.signature(function).bind(*positional, **named)
    except TypeError as error:
        raise KernelError(
            f"{part} of the kernel {name} does not take what {op.name}.{part}{own} takes "
            f"({error}). Give it the op's own signature, as a static method."
        ) from None
