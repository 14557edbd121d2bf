"""Calls of ops, as `audit` repeats them, and what it finds in one."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from . import memory
from .backend import DEVICES, backend_of, is_array, kernels_of
from .gradcheck import float_outputs
from .modes import enable_grad
from .op import Op, apply, caller
from .tape import place_text
from .tensor import Tensor

__all__ = ["Call", "Finding", "calls_of"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of an op: what it is, of which label, how many bytes, how to mend it."""

    op: str
    label: str
    what: str
    nbytes: int
    fix: str
    place: str

    def __str__(self) -> str:
        name = f"{self.op}.{self.label}" if self.label else self.op
        size = f" ({self.nbytes:,} bytes)" if self.nbytes else ""
        return f"{name}: {self.what}{size}, at {self.place}. {self.fix}"


@dataclass(frozen=True, slots=True)
class Call:
    op: type[Op]
    arrays: tuple[Any, ...]
    needs: tuple[bool, ...]
    attrs: dict[str, Any]
    place: str

    def copies(self) -> list[Any]:
        """Copies of the arrays: one a buffer's array, however often it was passed."""
        made: dict[int, Any] = {}
        for a in self.arrays:
            if is_array(a) and id(a) not in made:
                made[id(a)] = backend_of(a).copy(a)
                if memory.is_parameter(a):
                    memory.mark_parameter(made[id(a)])
        return [made[id(a)] if is_array(a) else a for a in self.arrays]

    def apply(self, arrays: list[Any]) -> tuple[list[Any], tuple[Tensor, ...]]:
        """The inputs as leaves, and the outputs."""
        leaves = [
            Tensor(a, requires_grad=need) if is_array(a) else a
            for a, need in zip(arrays, self.needs, strict=True)
        ]
        y = apply(self.op, *leaves, **self.attrs)
        return leaves, y if isinstance(y, tuple) else (y,)

    def names(self) -> list[str]:
        """The inputs as `forward` calls them."""
        known = list(inspect.signature(self.op.forward).parameters.values())[1:]
        given = [p.name for p in known if p.kind is p.POSITIONAL_OR_KEYWORD]
        return given + [f"input {i}" for i in range(len(given), len(self.arrays))]

    def wanted(self) -> str:
        """The inputs whose gradients are wanted, "" if those of all floats are."""
        pairs = list(zip(self.arrays, self.needs, self.names(), strict=False))
        if all(need for a, need, _ in pairs if is_array(a) and a.dtype.kind == "f"):
            return ""
        return " and ".join(name for _, need, name in pairs if need)

    def finding(self, label: str, what: str, nbytes: int, fix: str) -> Finding:
        place = f"{self.place}{_defined(self.op)}"
        return Finding(self.op.name, label, what, nbytes, fix, place)


def _defined(op: type[Op]) -> str:
    """Where the class of an op is written, if its source is there."""
    try:
        file, (_, line) = inspect.getsourcefile(op), inspect.getsourcelines(op)
    except (OSError, TypeError):
        return ""
    return f" (class {op.__name__} at {file}:{line})"


def calls_of(fn: Callable[..., Any], inputs: Any, attrs: Any) -> list[Call]:
    """The recorded calls of ops that `fn` makes; equal ones (but for values) once."""
    with enable_grad():
        ops = {node.op for node in memory.nodes(*float_outputs(fn(*inputs, **attrs)))}
        calls: dict[Any, Call] = {}
        with _watched(ops, calls):
            fn(*inputs, **attrs)
    return list(calls.values())


@contextmanager
def _watched(ops: set[type[Op]], calls: dict[Any, Call]) -> Iterator[None]:
    """Within the block each forward of `ops` is noted in `calls`."""
    bound = {op: op.forward for op in ops}  # before any changes: ops inherit from ops
    own = {op: op.__dict__.get("forward") for op in ops}
    kernels = [
        (table, key, kernel, kernel.forward)
        for table in map(kernels_of, DEVICES)
        for key, kernel in table.items()
        if key[0] in ops and kernel.forward is not None
    ]

    def watch(op: type[Op], function: Callable[..., Any]) -> Callable[..., Any]:
        def forward(xp: Any, *arrays: Any, needs: tuple[bool, ...], **attrs: Any) -> Any:
            if any(needs):
                kinds = tuple((a.shape, a.dtype.str) if is_array(a) else a for a in arrays)
                key = (op, kinds, needs, tuple(attrs.items()))
                place = place_text(caller())
                calls.setdefault(key, Call(op, arrays, needs, attrs, place))
            return function(xp, *arrays, needs=needs, **attrs)

        return forward

    try:
        for op in ops:
            op.forward = staticmethod(watch(op, bound[op]))
        for table, key, kernel, forward in kernels:
            table[key] = replace(kernel, forward=watch(key[0], forward))
        yield
    finally:
        for op, forward in own.items():
            if forward is None:
                del op.forward
            else:
                op.forward = forward
        for table, key, kernel, _ in kernels:
            table[key] = kernel
