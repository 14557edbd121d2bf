"""The tape: nodes, leaves, saved tensors, and the backward sweep.

A Node is one applied op. Edges point from a node to the nodes and leaves that made its
inputs; nothing on the tape points at a Tensor, and nothing points from an earlier node to
a later one. So dropping the last Tensor of a graph frees it by reference count alone.

The sweep visits the nodes in falling order of a counter that was handed out when they
were made: every node comes after all nodes that used its results, without recursion and
without a topological sort.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from . import memory
from .backend import backend_of, is_array
from .errors import (
    DoubleBackwardError,
    GraphError,
    InPlaceModificationError,
    SavedTensorsFreedError,
)

__all__ = ["Edge", "Leaf", "Node", "SavedTensor", "sweep", "unreached"]

_count = itertools.count().__next__


class Leaf:
    """Where a sweep ends: the owner of a gradient."""

    __slots__ = ("__weakref__", "grad")

    def __init__(self) -> None:
        self.grad: Any = None  # a Tensor or None


Edge = tuple["Node | Leaf", int]  # (who made a value, the index among its outputs)


class SavedTensor:
    """One value that a node keeps for its vjp: label, value, and what it was declared.

    `kind` is the Input, Output, Constant or Intermediate of the op's `saves`. A number is
    kept as it is and takes no storage.
    """

    __slots__ = ("counts", "kind", "label", "value", "version")

    def __init__(self, label: str, kind: Any, value: Any) -> None:
        self.label = label
        self.kind = kind
        self.value = value
        self.counts = is_array(value)
        self.version = memory.version(value) if self.counts else 0

    def __repr__(self) -> str:
        what = f"{self.value.shape} {self.value.dtype}" if self.counts else self.value
        return f"SavedTensor({self.label}: {self.kind}, {what})"


class Node:
    """One applied op on the tape.

    `edges[i]` says where input i came from, or is None where it needs no gradient;
    `inputs` and `outputs` hold a (shape, dtype) each; `saved` is a tuple of SavedTensors,
    or None once a sweep has dropped them; `counter` is its place on the tape.
    """

    __slots__ = (
        "__weakref__",
        "_caller",
        "attrs",
        "counter",
        "edges",
        "inputs",
        "needs",
        "op",
        "outputs",
        "saved",
    )

    def __init__(
        self,
        op: Any,
        edges: tuple[Edge | None, ...],
        needs: tuple[bool, ...],
        inputs: tuple[Any, ...],
        outputs: tuple[Any, ...],
        attrs: dict[str, Any],
        caller: tuple[str, int],
    ) -> None:
        self.op = op
        self.edges = edges
        self.needs = needs
        self.inputs = inputs
        self.outputs = outputs
        self.attrs = attrs
        self.saved: tuple[SavedTensor, ...] | None = ()
        self.counter = _count()
        self._caller = caller

    @property
    def place(self) -> str:
        """`file:line` of the code that called the op."""
        return "{}:{}".format(*self._caller)

    def __repr__(self) -> str:
        return f"{self.op.name} (node {self.counter}, made at {self.place})"

    def reachable(self) -> list["Node"]:
        """This node and all below it, the latest first."""
        return _reachable([self])

    def release(self) -> None:
        """Drop the saved tensors. A node that kept none can be swept again."""
        if self.saved:
            ledger = memory.current_ledger()
            if ledger is not None:
                for s in self.saved:
                    if s.counts:
                        ledger.release(s.value)
            self.saved = None


def _reachable(roots: Iterable[Node]) -> list[Node]:
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


def _check(nodes: Iterable[Node], create_graph: bool) -> None:
    """Raise what the sweep would run into, before it has changed anything."""
    for node in nodes:
        if node.saved is None:
            raise SavedTensorsFreedError(
                f"a second sweep reached {node!r}, whose saved tensors the first one "
                "dropped. Pass retain_graph=True to the first backward() or grad(), or "
                "run the forward pass again."
            )
        for s in node.saved:
            if s.counts and memory.version(s.value) != s.version:
                raise InPlaceModificationError(
                    f"{node!r} saved '{s.label}' {s.value.shape} for its vjp, and it was "
                    f"written in place afterwards (version {memory.version(s.value)}, "
                    f"saved at {s.version}). Write to a copy, or after the sweep."
                )
            if create_graph and s.kind.blocks_double_backward:
                raise DoubleBackwardError(
                    f"{node!r} keeps the intermediate '{s.label}', which is not on the "
                    "tape: a second derivative through it would be wrong. Build the "
                    "function from composed ops, or drop create_graph=True."
                )


def unreached(roots: Sequence[Edge], targets: Sequence[Edge]) -> list[int]:
    """Which of `targets` (by number) no path from `roots` leads to."""
    found = {_key(edge) for edge in roots}
    for node in _reachable({r[0]: None for r in roots if type(r[0]) is Node}):
        found.update(_key(edge) for edge in node.edges if edge is not None)
    return [i for i, edge in enumerate(targets) if _key(edge) not in found]


def _useful(nodes: Sequence[Node], targets: set[Any]) -> dict[Node, tuple[bool, ...]]:
    """The nodes that lead to a target (a Leaf or an Edge), with what each must compute."""
    useful: dict[Node, tuple[bool, ...]] = {}
    for node in reversed(nodes):
        wants = tuple(
            [
                e is not None and (e[0] in targets or e in targets or e[0] in useful)
                for e in node.edges
            ]
        )
        if any(wants):
            useful[node] = wants
    return useful


class _Sum:
    """A cotangent that is being added up; `owned` if its array is the tape's own."""

    __slots__ = ("owned", "value")

    def __init__(self, value: Any, owned: bool) -> None:
        self.value = value
        self.owned = owned

    def add(self, value: Any, in_place: bool) -> None:
        if self.owned and in_place:
            self.value += value
        else:
            self.value = _array(self.value + value)
            self.owned = True


def sweep(
    roots: Sequence[Edge],
    cotangents: Sequence[Any],
    *,
    targets: Sequence[Edge] | None = None,
    retain_graph: bool = False,
    wrap: Callable[[Any, Edge | None], Any] | None = None,
) -> dict[Any, _Sum]:
    """Play the tape backwards from `roots` and return what arrives.

    dy of every root goes in; each node's vjp turns the sum of the cotangents of its
    outputs into cotangents of its inputs. Returns {Leaf: sum} for all leaves, or, where
    `targets` are given, {Leaf or Edge: sum} for those among them that were reached, and
    computes nothing that does not lead there.

    With `wrap` the sweep itself is recorded: cotangents are Tensors, saved inputs and
    outputs become Tensors again by `wrap(array, edge)`.
    """
    create_graph = wrap is not None
    nodes = _reachable({r[0]: None for r in roots if type(r[0]) is Node})
    keys = None if targets is None else {_key(edge) for edge in targets}
    useful = None
    if keys is not None:
        useful = _useful(nodes, keys)
        nodes = [node for node in nodes if node in useful]
    _check(nodes, create_graph)

    arrived: dict[Any, _Sum] = {}
    pending: dict[Node, list[_Sum | None]] = {}

    def send(edge: Edge, value: Any, owned: bool) -> None:
        target, index = edge
        if isinstance(target, Leaf):
            if keys is not None and target not in keys:
                return
            if target in arrived:
                arrived[target].add(value, not create_graph)
            else:
                arrived[target] = _Sum(value, owned)
            return
        sums = pending.get(target)
        if sums is None:
            sums = pending[target] = [None] * len(target.outputs)
        entry = sums[index]
        if entry is None:
            sums[index] = _Sum(value, False)
        else:
            entry.add(value, not create_graph)

    for root, value in zip(roots, cotangents, strict=True):
        send(root, value, False)
    value = None

    ledger = memory.current_ledger()
    for node in nodes:
        sums = pending.pop(node, None)
        if sums is None:
            continue
        if keys is not None:
            for index, entry in enumerate(sums):
                if entry is not None and (node, index) in keys:
                    arrived[node, index] = _Sum(entry.value, False)
            entry = None
        wants = node.needs if useful is None else useful[node]
        _step(node, sums, wants, arrived, send, wrap)
        if not retain_graph:
            node.release()
        del sums
        if ledger is not None:
            made = sum(
                s.value.nbytes for to, s in arrived.items() if type(to) is Leaf and s.owned
            )
            ledger.event("backward", node.op.name, node.place, made)
    if keys is not None:  # targets that are roots of their own, below no node
        for target, sums in pending.items():
            for index, entry in enumerate(sums):
                if entry is not None and (target, index) in keys:
                    arrived[target, index] = entry
    return arrived


def _key(edge: Edge) -> Any:
    return edge[0] if type(edge[0]) is Leaf else edge


def _step(
    node: Node,
    sums: list[_Sum | None],
    wants: tuple[bool, ...],
    arrived: Mapping[Any, _Sum],
    send: Callable[[Edge, Any, bool], None],
    wrap: Callable[[Any, Edge | None], Any] | None,
) -> None:
    """One node: its vjp, then its results checked, shaped and sent down the edges."""
    op = node.op
    # Lists first: a tuple made of a generator is resized, and CPython sets the spare ones
    # aside. Over a training run these would look like a leak.
    dys = tuple(
        [
            entry.value if entry is not None else _zeros(node, i, sums, wrap)
            for i, entry in enumerate(sums)
        ]
    )
    sums.clear()  # from here on the cotangents live in `dys` alone
    saved: dict[str, Any] = dict.fromkeys(op.saves)
    for s in node.saved or ():
        saved[s.label] = s.value if wrap is None else _unpack(node, s, wrap)
    results = op.vjp(
        dys[0] if len(dys) == 1 else dys,
        saved,
        needs=wants,
        inputs=node.inputs,
        **node.attrs,
    )
    if not isinstance(results, tuple) or len(results) != len(node.inputs):
        got = len(results) if isinstance(results, tuple) else type(results).__name__
        raise GraphError(
            f"the vjp of {node!r} returned {got} where a tuple of {len(node.inputs)} "
            "is due: one cotangent an input, None where none is needed."
        )
    for i, (edge, wanted) in enumerate(zip(node.edges, wants, strict=True)):
        if wanted and edge is not None:
            value = _fit(node, i, results[i], wrap)
            first = type(edge[0]) is Leaf and edge[0] not in arrived
            send(edge, value, first and _is_fresh(value, results, dys, saved))


def _zeros(node: Node, index: int, sums: Sequence[_Sum | None], wrap: Any) -> Any:
    """The cotangent of an output that nothing used."""
    given = next(entry.value for entry in sums if entry is not None)
    shape, dtype = node.outputs[index]
    array = given if wrap is None else given.data
    zeros = backend_of(array).xp.zeros(shape, dtype)
    return zeros if wrap is None else wrap(zeros, None)


def _unpack(node: Node, s: SavedTensor, wrap: Callable[[Any, Edge | None], Any]) -> Any:
    """A saved input or output as a Tensor on its old edge; a constant as it is."""
    if not s.counts:
        return s.value
    edge = s.kind.edge(node)
    return s.value if edge is None else wrap(s.value, edge)


def _array(value: Any) -> Any:
    """`value`, an array again where NumPy's arithmetic on 0-d arrays made it a scalar."""
    return np.asarray(value) if isinstance(value, np.generic) else value


def _fit(node: Node, i: int, value: Any, wrap: Callable[..., Any] | None) -> Any:
    """A vjp's result for input i: checked, un-broadcast, cast to the input's dtype."""
    shape, dtype = node.inputs[i]
    due = node.outputs[0][0] if node.op.broadcasts else shape
    value = _array(value)
    of_array = is_array(value)
    if wrap is not None and of_array:
        value = wrap(value, None)
    right = of_array if wrap is None else hasattr(value, "node")
    if not right or value.shape != due:
        what = type(value).__name__
        if hasattr(value, "shape"):
            what += f" of shape {value.shape}"
        raise GraphError(
            f"the vjp of {node!r} returned {what} as the cotangent of input {i}, whose "
            f"shape is {shape}; an array of shape {due} is due"
            f"{' (un-broadcasting is done by the tape)' if due != shape else ''}."
        )
    if due != shape:
        value = _unbroadcast(value, shape)
    return value if value.dtype == dtype else value.astype(dtype)


def _unbroadcast(value: Any, shape: tuple[int, ...]) -> Any:
    """Sum `value` over the axes along which an input of `shape` was broadcast."""
    lead = value.ndim - len(shape)
    axes = tuple(range(lead)) + tuple(
        [i + lead for i, n in enumerate(shape) if n == 1 and value.shape[i + lead] != 1]
    )
    if is_array(value) and value.dtype.itemsize == 2:
        return _array(value.sum(axis=axes, dtype=np.float32)).reshape(shape)
    return _array(value.sum(axis=axes)).reshape(shape)


def _is_fresh(
    value: Any, results: Iterable[Any], dys: Iterable[Any], saved: dict[str, Any]
) -> bool:
    """Whether nobody else can hold the buffer of `value`, so that a leaf may keep it."""
    if not is_array(value):
        return False
    owner = memory.storage(value)
    if owner.nbytes != value.nbytes:  # a part of something larger
        return False
    shared = [r for r in results if is_array(r) and memory.storage(r) is owner]
    held = (h for h in itertools.chain(dys, saved.values()) if is_array(h))
    return len(shared) <= 1 and all(memory.storage(h) is not owner for h in held)
