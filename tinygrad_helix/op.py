"""Ops, and `apply`: the one door by which every op enters the tape.

An op is one class with both directions beside one another, arrays in and arrays out:

    forward(xp, *arrays, needs, **attrs) -> (y, saved)
    vjp(dy, saved, *, needs, inputs, **attrs) -> (cotangent or None, ...)

`xp` is the array module, `needs[i]` whether input i wants a gradient, attrs are hashable
Python values. `y` is an array or a tuple of arrays (then `dy` is a tuple too). An array
input may be None. Numbers reach forward as Python numbers. `saved` maps labels to values
(None: not kept); what each label is, the class says in `saves`.
"""

import os.path
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from . import memory
from .backend import Kernel, backend_of, is_array, others
from .errors import DeviceError, DTypeError, GraphError
from .modes import is_anomaly_detected, is_grad_enabled
from .tape import (
    Edge,
    Node,
    SavedTensor,
    check_finite,
    has_infinity,
    place_text,
    watching,
)
from .tensor import Tensor

__all__ = ["Constant", "Input", "Intermediate", "Op", "Output", "apply"]


@dataclass(frozen=True)
class Input:
    """A saved value that is input `index` itself: no new storage, a Tensor again in a
    sweep that is recorded."""

    index: int
    blocks_double_backward: ClassVar[bool] = False

    def check(self, value: Any, inputs: Any, outputs: Any) -> bool:
        return self.index < len(inputs) and value is inputs[self.index]

    def edge(self, node: Node) -> Edge | None:
        return node.edges[self.index]


@dataclass(frozen=True)
class Output:
    """A saved value that is output `index` itself."""

    index: int = 0
    blocks_double_backward: ClassVar[bool] = False

    def check(self, value: Any, inputs: Any, outputs: Any) -> bool:
        return self.index < len(outputs) and value is outputs[self.index]

    def edge(self, node: Node) -> Edge | None:
        return (node, self.index)


@dataclass(frozen=True)
class Constant:
    """A saved value that no derivative goes through: a mask, an index."""

    blocks_double_backward: ClassVar[bool] = False

    def check(self, value: Any, inputs: Any, outputs: Any) -> bool:
        return True

    def edge(self, node: Node) -> Edge | None:
        return None


@dataclass(frozen=True)
class Intermediate(Constant):
    """A saved value that depends on the inputs and is off the tape: second derivatives
    through the node raise DoubleBackwardError."""

    blocks_double_backward: ClassVar[bool] = True


class Op:
    """The base of every op. Subclass it, write `forward` and `vjp`, call `apply`.

    `saves` declares each saved label; `broadcasts = True` says that inputs broadcast as
    NumPy's do, so that the vjp returns cotangents of the output's shape and the tape sums
    them back. `predict(inputs, needs, **attrs) -> {label: bytes}` may state beforehand
    what a call will save.

    >>> import tinygrad_helix as th
    >>> class Square(th.Op):
    ...     saves = {"x": th.Input(0)}
    ...     @staticmethod
    ...     def forward(xp, x, *, needs):
    ...         return x * x, {"x": x}
    ...     @staticmethod
    ...     def vjp(dy, saved, *, needs, inputs):
    ...         return (dy * saved["x"] * 2,)
    >>> x = th.tensor([3.0], requires_grad=True)
    >>> th.apply(Square, x).backward()
    >>> x.grad.item()
    6.0
    """

    name: ClassVar[str] = "op"
    broadcasts: ClassVar[bool] = False
    saves: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        if "name" not in cls.__dict__:
            words = "".join(f"_{c.lower()}" if c.isupper() else c for c in cls.__name__)
            cls.name = words.lstrip("_")

    @staticmethod
    def forward(xp: Any, *arrays: Any, needs: tuple[bool, ...], **attrs: Any) -> Any:
        raise GraphError("an op needs a static method forward(xp, *arrays, needs).")

    @staticmethod
    def vjp(dy: Any, saved: Any, *, needs: Any, inputs: Any, **attrs: Any) -> Any:
        raise GraphError("an op needs a static method vjp(dy, saved, *, needs, inputs).")


_PACKAGE = os.path.dirname(__file__) + os.sep
_ENGINE = tuple(
    [
        _PACKAGE + f"{name}.py"
        for name in ("differentiate", "op", "sweep", "tape", "tensor", "walk")
    ]
    + [_PACKAGE + "ops" + os.sep]
)
_TUTORIALS = _PACKAGE + "tutorials" + os.sep
_OUTSIDE, _INSIDE, _IN_ENGINE = range(3)
_kinds: dict[str, int] = {}  # of files, by name


def _kind_of(file: str) -> int:
    if file.startswith(_ENGINE) or file.startswith("<frozen"):
        kind = _IN_ENGINE
    elif file.startswith(_PACKAGE) and not file.startswith(_TUTORIALS):
        kind = _INSIDE
    else:
        kind = _OUTSIDE
    _kinds[file] = kind
    return kind


def caller() -> tuple[tuple[str, int], ...]:
    """Where an op was called: file and line of the nearest frame outside the engine, and
    if that is in this package (a layer, say), before it those of the code that called in.
    """
    frame = sys._getframe(2)
    inner = None
    while frame is not None:
        file = frame.f_code.co_filename
        kind = _kinds.get(file)
        if kind is None:
            kind = _kind_of(file)
        if kind == _OUTSIDE:
            here = (file, frame.f_lineno)
            return (here,) if inner is None else (here, inner)
        if kind == _INSIDE and inner is None:
            inner = (file, frame.f_lineno)
        frame = frame.f_back
    return (inner or ("?", 0),)


def apply(op: type[Op], *inputs: Any, **attrs: Any) -> Any:
    """Compute `op` on `inputs`, and record it if one of them requires a gradient.

    Inputs are Tensors, arrays, numbers or None. Given a Tensor the results are Tensors;
    given none, arrays, and nothing is recorded. What the op saves is checked against its
    declaration; under `no_grad`, or where no input needs a gradient, nothing is kept.
    """
    recording = is_grad_enabled()
    arrays: list[Any] = []
    needs: list[bool] = []
    wrapped = False
    backend = None
    for x in inputs:
        if isinstance(x, Tensor):
            wrapped = True
            arrays.append(x._data)
            needs.append(recording and x._requires_grad)
            if backend is None:
                backend = backend_of(x._data)
        else:
            if x is not None and type(x) is not np.ndarray:
                x = _plain_operand(op, x)
            arrays.append(x)
            needs.append(False)
            if x is not None and is_array(x):
                if x.dtype.kind not in "fiub":
                    raise DTypeError(
                        f"{op.name} takes arrays of floats, ints or bools; got "
                        f"{x.dtype}. Convert it first."
                    )
                if backend is None:
                    backend = backend_of(x)
    if backend is None:  # numbers alone
        arrays = [x if x is None else Tensor(x)._data for x in inputs]
        backend = backend_of(arrays[0])

    if others:
        same_device(op.name, arrays)

    wants = tuple(needs)
    kernel = None
    if backend.kernels:
        (y, saved), kernel = run(op, backend, arrays, wants, attrs)
    else:
        y, saved = op.forward(backend.xp, *arrays, needs=wants, **attrs)
    single = not isinstance(y, tuple)
    given = (y,) if single else y
    ys = tuple([backend.asarray(v) if isinstance(v, np.generic) else v for v in given])
    watch = watching.get() if wrapped and recording else None
    if watch is not None:
        watch(op, arrays, ys)
    if is_anomaly_detected():
        _check_outputs(op, inputs, arrays, attrs, ys)
    ledger = memory.current_ledger()
    node = None
    if True in wants:
        node = Node(
            op,
            tuple([(x._edge, x._index) if w else None for x, w in zip(inputs, wants)]),  # noqa: B905
            wants,
            tuple([(a.shape, a.dtype) if is_array(a) else None for a in arrays]),
            tuple([(v.shape, v.dtype) for v in ys]),
            attrs,
            caller(),
        )
        node.kernel = kernel
        if saved:
            node.saved = _declared(op, saved, arrays, given, ys)
        if ledger is not None:
            for s in node.saved or ():
                if s.array is not None:
                    ledger.hold(f"{op.name}.{s.label}", s.array)
    if ledger is not None and wrapped:  # a vjp's own calls belong to its node's event
        del saved
        place = node.place if node is not None else place_text(caller())
        counter = None if node is None else node.counter
        ledger.event("forward", op.name, place, node=counter)
    if not wrapped:
        return ys[0] if single else ys
    if single:
        return Tensor._of(ys[0], node, 0)
    return tuple([Tensor._of(v, node, i) for i, v in enumerate(ys)])


def _plain_operand(op: type[Op], x: Any) -> Any:
    """A number as Python's own, an array of a subclass as a plain one; nothing else."""
    if isinstance(x, np.generic):
        x = x.item()
    if isinstance(x, (int, float)):
        return x
    if is_array(x):
        return backend_of(x).asarray(x)
    raise DTypeError(
        f"{op.name} takes Tensors, arrays and numbers; got {type(x).__name__}. Make a "
        "Tensor of it first."
    )


def run(
    op: type[Op], backend: Any, arrays: Sequence[Any], needs: Any, attrs: Any
) -> tuple[Any, Kernel | None]:
    """What forward returns, computed by a kernel where one is registered and takes the
    call; and that kernel."""
    kernel = backend.kernel(op, [getattr(a, "dtype", None) for a in arrays])
    if kernel is not None and kernel.forward is not None:
        result = kernel.forward(backend.xp, *arrays, needs=needs, **attrs)
        if result is not NotImplemented:
            return kernel.checked(op.name, result, backend, arrays), kernel
    return op.forward(backend.xp, *arrays, needs=needs, **attrs), kernel


def same_device(op: str, arrays: Sequence[Any]) -> None:
    """Raise unless all arrays are on one device."""
    if not others:
        return
    names = {backend_of(a).name: None for a in arrays if is_array(a)}
    if len(names) > 1:
        places = ", ".join(
            f"input {i} {a.shape} on {backend_of(a).name!r}"
            for i, a in enumerate(arrays)
            if is_array(a)
        )
        raise DeviceError(
            f"{op} got inputs on {' and '.join(map(repr, names))}: {places}. Move "
            "them to one device with to(…)."
        )


def _check_outputs(op: type[Op], inputs: Any, arrays: Any, attrs: Any, ys: Any) -> None:
    """Under detect_anomaly: name the input that holds a NaN, or else the op that makes one,
    or makes an infinity of what was finite."""
    here = f"{op.name} at {place_text(caller())}"
    for i, (x, array) in enumerate(zip(inputs, arrays, strict=True)):
        made = getattr(x, "node", None)
        what = "not made by an op" if made is None else f"made by {made!r}"
        check_finite(array, f"input {i} of {here}, {what},", infinities=True)
    given = any(map(has_infinity, (*arrays, *attrs.values())))
    for i, y in enumerate(ys):
        check_finite(y, f"output {i} of {here}", infinities=given)


def _declared(
    op: type[Op], saved: Mapping[str, Any], inputs: Any, given: Any, ys: Any
) -> tuple[SavedTensor, ...]:
    """What forward returned to keep, each value checked against its declaration."""
    kept = []
    for label, value in saved.items():
        if value is None:
            continue
        kind = op.saves.get(label)
        if kind is None:
            raise GraphError(
                f"{op.name} saved '{label}', which its `saves` does not declare "
                f"({', '.join(op.saves) or 'it declares nothing'}). Declare it as Input, "
                "Output, Constant or Intermediate."
            )
        if not kind.check(value, inputs, given):
            raise GraphError(
                f"{op.name} declares '{label}' as {kind} and saved another array. Save "
                "that very array, or declare an Intermediate."
            )
        if isinstance(value, np.generic):
            value = ys[kind.index] if isinstance(kind, Output) else np.asarray(value)
        kept.append(SavedTensor(op.name, label, kind, value, Tensor._of_edge))
    return tuple(kept)
