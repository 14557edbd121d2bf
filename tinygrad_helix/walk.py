"""The backward sweep, one node at a time: `tape.steps(y)`.

It is the sweep of `backward`, paused after every node, so that one can look at what came
into the node, what went out of it, and what the tape let go of.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from . import memory, tape
from .backend import backend_of
from .differentiate import land, start
from .errors import GraphError
from .sweep import Sum, Sweep, check_saved
from .tape import Edge, Leaf, Node
from .tensor import Tensor

__all__ = ["Cotangent", "Freed", "Landed", "Sent", "Step", "Steps", "steps"]


class Cotangent:
    """One cotangent of a step: its shape, dtype and bytes, and its values as long as the
    step is the current one."""

    __slots__ = ("_array", "dtype", "nbytes", "shape")

    def __init__(self, array: Any) -> None:
        self._array = array
        self.shape = array.shape
        self.dtype = array.dtype
        self.nbytes = array.nbytes

    @property
    def value(self) -> Tensor:
        """The values, as a Tensor on the sweep's own array: copy it before you write."""
        if self._array is None:
            raise GraphError(
                f"this cotangent of shape {self.shape} belongs to a step that is over, and "
                "the sweep may have dropped it. Copy the value while its step is current."
            )
        return Tensor._of(self._array, None)

    def drop(self) -> None:
        """Let go of the values: the step is over."""
        self._array = None

    def __repr__(self) -> str:
        return f"Cotangent({self.shape} {self.dtype})"


@dataclass(frozen=True, slots=True)
class Sent:
    """What went down one edge: from input `input` of the node to output `output` of the
    node `to`, or to the leaf `to`."""

    input: int
    to: Node | Leaf
    output: int
    cotangent: Cotangent


@dataclass(frozen=True, slots=True)
class Landed:
    """The gradient of a leaf that this step added to: the sum so far, and whether it is
    `complete`, because no node to come has an edge to the leaf."""

    leaf: Leaf
    gradient: Cotangent
    complete: bool


@dataclass(frozen=True, slots=True)
class Freed:
    """A saved tensor that the node let go of. `nbytes` is 0 for a parameter, a number, and
    a storage that another node still holds."""

    label: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Step:
    """One node of a sweep, just visited: the step `number` of `count`.

    `came` has the cotangent of each output of the node as the vjp got it: summed, and past
    the hooks; None for an output that nothing used. `sent` has what went down each edge,
    `landed` the leaves among their ends, `freed` the saved tensors that were dropped.
    `live_bytes` are the bytes that the tape still holds (as `saved_bytes(y)` counts them),
    `waiting_bytes` those of the cotangents that wait for nodes to come.
    """

    number: int
    count: int
    node: Node
    came: tuple[Cotangent | None, ...]
    sent: tuple[Sent, ...]
    landed: tuple[Landed, ...]
    freed: tuple[Freed, ...]
    live_bytes: int
    waiting_bytes: int

    @property
    def freed_bytes(self) -> int:
        """The bytes that the tape let go of in this step."""
        return sum(f.nbytes for f in self.freed)

    def drop(self) -> None:
        """Let go of all values, when the sweep goes on."""
        for c in self.came:
            if c is not None:
                c.drop()
        for held in self.sent:
            held.cotangent.drop()
        for held in self.landed:
            held.gradient.drop()


class _Watched(Sweep):
    """A sweep that notes what comes into the node it visits, what goes out, and the bytes
    of what waits for nodes to come. `ahead` are these, the next one last; `last` has the
    node that each leaf hears from last."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.came: list[Any] = []
        self.went: list[Any] = []
        self.waiting: Counter[int] = Counter()  # cotangents by the id of their storage
        self.waiting_bytes = 0
        super().__init__(*args, **kwargs)
        self.ahead = self.nodes[::-1]
        self.last = {e[0]: node for node in self.nodes for e in node.edges if e is not None}

    def play(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            for entry in self.pending.get(node, ()):
                self._wait(entry, -1)
            super().play([node])

    def _visit(self, node: Node, sums: list[Sum | None]) -> None:
        self.came = [None if s is None else s.value for s in sums]
        self.went = []
        super()._visit(node, sums)

    def send(self, edge: Edge, value: Any, owned: bool) -> None:
        # An array that the leaf keeps is added to when more arrives.
        self.went.append(backend_of(value).copy(value) if owned else value)
        target, index = edge
        if isinstance(target, Leaf):
            super().send(edge, value, owned)
            return
        if target in self.pending:
            self._wait(self.pending[target][index], -1)
        super().send(edge, value, owned)
        self._wait(self.pending[target][index], 1)

    def _wait(self, entry: Sum | None, change: int) -> None:
        """One cotangent more (1) waits, or one less (-1)."""
        if entry is not None:
            owner = memory.storage(entry.value)
            before = self.waiting[id(owner)]
            self.waiting[id(owner)] += change
            if before + change == 0:
                del self.waiting[id(owner)]
            if 0 in (before, before + change):
                self.waiting_bytes += change * owner.nbytes


class Steps:
    """The iterator that `tape.steps` returns: `count` nodes in all, and `live_bytes` that
    the tape holds for those still to come."""

    def __init__(self, sweep: _Watched) -> None:
        self._sweep: _Watched | None = sweep  # None at the end, and after an error
        self._current: Step | None = None
        held = [entry for node in sweep.nodes for entry in _storages(node)]
        self._holders = Counter([key for _, key, _ in held])
        self.count = len(sweep.nodes)
        self.live_bytes = sum({key: nbytes for _, key, nbytes in held}.values())

    def __iter__(self) -> "Steps":
        return self

    def __next__(self) -> Step:
        if self._current is not None:
            self._current.drop()
            self._current = None
        sweep, self._sweep = self._sweep, None
        if sweep is None:
            raise StopIteration
        if not sweep.ahead:  # y is a leaf: there are no nodes
            land(sweep.finish())
            raise StopIteration
        step = self._play(sweep, sweep.ahead.pop())
        if sweep.ahead:
            self._sweep = sweep
        else:
            land(sweep.finish())
        self._current = step
        return step

    def _play(self, sweep: _Watched, node: Node) -> Step:
        check_saved([node], create_graph=False)  # another sweep may have been here
        saved = _storages(node)
        sweep.play([node])
        freed = [] if sweep.retain_graph else [self._let_go(*entry) for entry in saved]
        edges = [(i, edge) for i, edge in enumerate(node.edges) if edge is not None]
        leaves = dict.fromkeys([to for _, (to, _) in edges if isinstance(to, Leaf)])
        return Step(
            number=self.count - len(sweep.ahead),
            count=self.count,
            node=node,
            came=tuple(
                [None if value is None else Cotangent(value) for value in sweep.came]
            ),
            sent=tuple(
                [
                    Sent(i, to, output, Cotangent(value))
                    for (i, (to, output)), value in zip(edges, sweep.went, strict=True)
                ]
            ),
            landed=tuple(
                [
                    Landed(leaf, _copy(sweep.arrived[leaf].value), sweep.last[leaf] is node)
                    for leaf in leaves
                ]
            ),
            freed=tuple(freed),
            live_bytes=self.live_bytes,
            waiting_bytes=sweep.waiting_bytes,
        )

    def _let_go(self, label: str, key: int, nbytes: int) -> Freed:
        """The tape has dropped one hold on the storage with the id `key`."""
        self._holders[key] -= 1
        gone = nbytes if self._holders[key] == 0 else 0
        self.live_bytes -= gone
        return Freed(label, gone)


def _copy(array: Any) -> Cotangent:
    return Cotangent(backend_of(array).copy(array))


def _storages(node: Node) -> list[tuple[str, int, int]]:
    """Label, id and bytes of the storage of everything that a node has saved: 0 bytes for
    what is no array, and for parameters, which `saved_bytes` does not count either."""
    entries = []
    for s in node.saved or ():
        if s.array is None or memory.is_parameter(s.array):
            entries.append((s.label, 0, 0))
        else:
            owner = memory.storage(s.array)
            entries.append((s.label, id(owner), owner.nbytes))
    return entries


def steps(
    y: Tensor | Sequence[Tensor], cotangent: Any = None, retain_graph: bool = False
) -> Steps:
    """The sweep of `backward(y, cotangent, retain_graph)`, node by node, the latest first.

    Taken to its end it does what `backward()` does, to the bit: hooks run, saved tensors
    are dropped node by node, and all gradients land together with the last step. What
    `backward()` refuses is refused here at the call, before anything has changed.

    Left off half way, no gradient has changed, while the nodes that were visited have
    dropped their saved tensors: another sweep over them raises SavedTensorsFreedError
    unless `retain_graph=True` was given. The same holds after an error in a step, which
    ends the iterator. A graph that is swept, or written to in place, between two steps
    raises at the first node that it concerns.

    The values of a step (`Cotangent.value`) are there while it is the current one; they
    stay alive that much longer than in `backward()`.

    >>> import tinygrad_helix as th
    >>> x = th.tensor([1.0, 2.0], requires_grad=True)
    >>> for step in th.tape.steps((x * x).sum()):
    ...     sent = [s.cotangent.value.tolist() for s in step.sent]
    ...     print(step.node.op.name, sent, step.freed_bytes, step.live_bytes)
    sum [[1.0, 1.0]] 0 8
    mul [[1.0, 2.0], [1.0, 2.0]] 8 0
    >>> x.grad.tolist()
    [2.0, 4.0]
    """
    roots, dys = start(y, cotangent)
    return Steps(_Watched(roots, dys, Tensor._of_edge, retain_graph=retain_graph))


tape.steps = steps  # where one looks for it; the tape itself knows nothing of sweeps
