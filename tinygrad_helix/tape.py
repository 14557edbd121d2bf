"""The tape: nodes, leaves, saved tensors, and the hooks on them.

A Node is one applied op. Edges point from a node to the nodes and leaves that made its
inputs; nothing on the tape points at a Tensor, and nothing points from an earlier node to
a later one. So dropping the last Tensor of a graph frees it by reference count alone.
"""

import itertools
import math
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from . import memory
from .backend import Kernel, backend_of, is_array
from .errors import DTypeError, GraphError, InPlaceModificationError

__all__ = [
    "Edge",
    "Handle",
    "Leaf",
    "Node",
    "SavedTensor",
    "Scope",
    "check_finite",
    "has_infinity",
    "place_text",
    "plain",
    "raised_by",
    "reachable",
    "restart",
    "saved_tensor_hooks",
    "scope",
]


steps: Callable[..., Any]  # put here by `walk`, which stands above the tape


def plain(x: Any) -> Any:
    """The array of a Tensor; anything else as it is."""
    return x if is_array(x) else getattr(x, "_data", x)


def place_text(places: tuple[tuple[str, int], ...]) -> str:
    """(file, line), or two of them, as `file:line (in file:line)`."""
    outer, *inner = ["{}:{}".format(*place) for place in places]
    return f"{outer} (in {inner[0]})" if inner else outer


def has_infinity(value: Any) -> bool:
    """Whether a number is infinite, or an element of a float array."""
    if isinstance(value, float):
        return math.isinf(value)
    if not is_array(value) or value.dtype.kind != "f":
        return False
    return bool(backend_of(value).xp.isinf(value).any())


def check_finite(array: Any, what: str, infinities: bool = False) -> None:
    """Raise unless all elements of a float array are finite; `infinities` may pass."""
    if not is_array(array) or array.dtype.kind != "f":
        return
    xp = backend_of(array).xp
    finite = ~xp.isnan(array) if infinities else xp.isfinite(array)
    if not finite.all():
        bad = int(array.size - finite.sum())
        raise GraphError(
            f"{what} is not finite: {bad} of {array.size} elements of shape {array.shape} "
            "are NaN or infinite. Look at what goes into it."
        )


_count = itertools.count().__next__


def restart() -> None:
    """Number nodes from 0 again: for a tape of which nothing is left."""
    global _count
    _count = itertools.count().__next__


_hook_count = itertools.count().__next__

Hooks = dict[int, Callable[..., Any]]  # in the order in which they were added


def check_callable(what: str, fn: Any) -> None:
    """Refuse a hook that is no function when it is given, not in the sweep."""
    if not callable(fn):
        raise DTypeError(f"{what} takes a function; got {type(fn).__name__}.")


class Handle:
    """What registering a hook returns: `remove()` takes the hook off again."""

    __slots__ = ("_hooks", "_key")

    def __init__(self, hooks: Hooks, fn: Callable[..., Any]) -> None:
        self._hooks = hooks
        self._key = _hook_count()
        hooks[self._key] = fn

    def remove(self) -> None:
        """Take the hook off; doing it twice does nothing."""
        self._hooks.pop(self._key, None)


class Leaf:
    """Where a sweep ends: the owner of a gradient and of the hooks on it.

    `tensor()` is its Tensor as long as that is alive, for pictures and messages.
    """

    __slots__ = ("__weakref__", "grad", "hooks", "tensor")

    def __init__(self, tensor: Any) -> None:
        self.grad: Any = None  # a Tensor or None
        self.hooks: Hooks | None = None
        self.tensor = weakref.ref(tensor)


Edge = tuple["Node | Leaf", int]  # (who made a value, the index among its outputs)

_PackAndUnpack = tuple[Callable[[Any], Any], Callable[[Any], Any]]
_saved_hooks: ContextVar[_PackAndUnpack | None] = ContextVar("saved_hooks", default=None)
# While a pack hook runs: which value it gets, as "op.label".
packing: ContextVar[str] = ContextVar("packing", default="")
# While a checkpointed function runs: what is told of each op, its operands and results.
watching: ContextVar[Callable[[Any, Any, Any], None] | None] = ContextVar(
    "watching", default=None
)
# While a sweep visits nodes: what unpack hooks keep of it for its later nodes.
swept: ContextVar[dict[Any, Any] | None] = ContextVar("swept", default=None)


@contextmanager
def saved_tensor_hooks(
    pack: Callable[[Any], Any], unpack: Callable[[Any], Any]
) -> Iterator[None]:
    """Keep pack(t) in the place of every Tensor t that ops in the block save.

    `unpack` gets what `pack` returned and gives back a Tensor of t's shape and dtype when
    a sweep reads it. The innermost block counts.

    >>> import tinygrad_helix as th
    >>> x = th.tensor([0.1, 0.2], requires_grad=True)
    >>> with th.saved_tensor_hooks(
    ...     lambda t: t.astype("float16"), lambda t: t.astype("float32")
    ... ):
    ...     y = (x * x).sum()
    >>> th.saved_bytes(y)
    8
    """
    for name, fn in (("pack", pack), ("unpack", unpack)):
        check_callable(f"saved_tensor_hooks: {name}", fn)
    token = _saved_hooks.set((pack, unpack))
    try:
        yield
    finally:
        _saved_hooks.reset(token)


class SavedTensor:
    """One value that a node keeps for its vjp: label, value, and what it was declared.

    `kind` is the Input, Output, Constant or Intermediate of the op's `saves`. `array` is
    the array that is held, None for a number (which takes no storage) and for a value that
    a hook packed into something else.
    """

    __slots__ = ("_unpack", "array", "dtype", "kind", "label", "shape", "value", "version")

    def __init__(
        self, op: str, label: str, kind: Any, value: Any, wrap: Callable[..., Any]
    ) -> None:
        self.label = label
        self.kind = kind
        self._unpack: Callable[[Any], Any] | None = None
        self.array = value if is_array(value) else None
        if self.array is not None:
            self.shape, self.dtype = value.shape, value.dtype
            hooks = _saved_hooks.get()
            if hooks is not None:
                token = packing.set(f"{op}.{label}")
                try:
                    value = hooks[0](wrap(value, None))
                finally:
                    packing.reset(token)
                self._unpack = hooks[1]
                held = plain(value)
                self.array = held if is_array(held) else None
        self.value = value
        self.version = memory.version(self.array) if self.array is not None else 0

    def verify(self, node: "Node | None") -> None:
        """Raise if the array was written in place since it was saved."""
        if self.array is not None and memory.version(self.array) != self.version:
            raise InPlaceModificationError(
                f"{node!r} saved '{self.label}' {self.array.shape} for its vjp, and it was "
                f"written in place afterwards (version {memory.version(self.array)}, saved "
                f"at {self.version}). Write to a copy, or after the sweep."
            )

    def read(
        self, node: "Node | None" = None, wrap: Callable[..., Any] | None = None
    ) -> Any:
        """The value as a vjp gets it: an array, or with the node it belongs to and `wrap`
        a Tensor on its old edge; numbers and constants as they are."""
        self.verify(node)
        value = self.value
        if self._unpack is not None:
            value = self._unpack(value)
            given = getattr(value, "shape", None), getattr(value, "dtype", None)
            if given != (self.shape, self.dtype):
                raise GraphError(
                    f"the unpack hook of the saved tensor '{self.label}' returned "
                    f"{given[0]} {given[1]}; a Tensor of {self.shape} {self.dtype} was "
                    "packed."
                )
            value = plain(value)
        if wrap is None or not is_array(value):
            return value
        edge = self.kind.edge(node)
        return value if edge is None else wrap(value, edge)

    def __repr__(self) -> str:
        what = (
            self.value if self.array is None else f"{self.array.shape} {self.array.dtype}"
        )
        return f"SavedTensor({self.label}: {self.kind}, {what})"


class Scope:
    """One call of a module: the `kind` (class) of module, and the `outer` call. Nodes that
    are made meanwhile point at it; nothing on the tape keeps the module alive: `module()`
    is None when it is gone."""

    __slots__ = ("kind", "module", "outer")

    def __init__(self, module: Any, outer: "Scope | None") -> None:
        self.kind = type(module).__name__
        self.module = weakref.ref(module)
        self.outer = outer


scope: ContextVar[Scope | None] = ContextVar("scope", default=None)


class Node:
    """One applied op on the tape.

    `edges[i]` says where input i came from, or is None where it needs no gradient;
    `inputs` and `outputs` hold a (shape, dtype) each; `saved` is a tuple of SavedTensors,
    or None once a sweep has dropped them; `counter` is its place on the tape. `grads`
    holds, by output, the gradients that `Tensor.retain_grad()` asked for; `kernel` is the
    Kernel that is registered for the call, if there is one. `scope` is the innermost call
    of a module in which it was made. `places` holds the (file, line) that `place` tells.
    """

    __slots__ = (
        "__weakref__",
        "attrs",
        "counter",
        "edges",
        "grads",
        "hooks",
        "inputs",
        "kernel",
        "needs",
        "op",
        "output_hooks",
        "outputs",
        "places",
        "saved",
        "scope",
    )

    def __init__(
        self,
        op: Any,
        edges: tuple[Edge | None, ...],
        needs: tuple[bool, ...],
        inputs: tuple[Any, ...],
        outputs: tuple[Any, ...],
        attrs: dict[str, Any],
        caller: tuple[tuple[str, int], ...],
    ) -> None:
        self.op = op
        self.edges = edges
        self.needs = needs
        self.inputs = inputs
        self.outputs = outputs
        self.attrs = attrs
        self.saved: tuple[SavedTensor, ...] | None = ()
        self.hooks: Hooks | None = None
        self.output_hooks: dict[int, Hooks] | None = None
        self.grads: dict[int, Any] | None = None
        self.kernel: Kernel | None = None
        self.scope = scope.get()
        self.counter = _count()
        self.places = caller

    @property
    def place(self) -> str:
        """`file:line` of the code that called the op; if that is in this package, then of
        the code that called in, with the package's own line in brackets."""
        return place_text(self.places)

    def __repr__(self) -> str:
        return f"{self.op.name} (node {self.counter}, made at {self.place})"

    def reachable(self) -> list["Node"]:
        """This node and all below it, the latest first."""
        return reachable([self])

    def register_hook(self, fn: Callable[[Any, Any], Any]) -> Handle:
        """Call fn(cotangents of the inputs, cotangents of the outputs), both tuples of
        Tensors (None where not computed), after this node's vjp. It may return other
        cotangents of the inputs; those it gets are read-only, as a tensor's hook's are."""
        check_callable("register_hook of a node", fn)
        if self.hooks is None:
            self.hooks = {}
        return Handle(self.hooks, fn)

    def release(self) -> None:
        """Drop the saved tensors. A node that kept none can be swept again."""
        if self.saved:
            ledger = memory.current_ledger()
            if ledger is not None:
                for s in self.saved:
                    if s.array is not None:
                        ledger.release(s.array)
            self.saved = None


def raised_by(node: "Node", recorded: bool) -> str:
    """What an error is noted with that the vjp of `node` raised."""
    note = f"It was raised by the vjp of {node!r}."
    if recorded:
        note += (
            " A vjp under create_graph gets Tensors: use the functions of "
            "tinygrad_helix.ops (th.where, th.exp, …), which take Tensors and arrays."
        )
    return note


def reachable(roots: Iterable[Node]) -> list[Node]:
    """The nodes from `roots` downwards, each once, the latest first."""
    stack = list(roots)
    seen = set(stack)
    while stack:
        for edge in stack.pop().edges:
            if edge is not None:
                below = edge[0]
                if type(below) is Node and below not in seen:
                    seen.add(below)
                    stack.append(below)
    return sorted(seen, key=lambda node: -node.counter)
