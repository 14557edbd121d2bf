"""The backward sweep: the tape, played backwards.

Nodes are visited in falling order of a counter that was handed out when they were made:
every node comes after all nodes that used its results, without recursion and without a
topological sort. Cotangents live in dicts that are local to the sweep, and leave them when
they are used; a node's saved tensors are dropped as soon as its vjp has run.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from . import memory
from .backend import backend_of, is_array
from .errors import DoubleBackwardError, GraphError, SavedTensorsFreedError
from .fresh import calibrate, is_fresh, owners
from .modes import is_anomaly_detected
from .tape import (
    Edge,
    Hooks,
    Leaf,
    Node,
    check_finite,
    has_infinity,
    plain,
    raised_by,
    reachable,
    swept,
)

__all__ = ["Sum", "Sweep", "check_saved", "unreached", "vjp_of"]

Wrap = Callable[[Any, Edge | None], Any]  # makes a Tensor of an array, on an edge


class Sum:
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


class Sweep:
    """One sweep from `roots`, whose cotangents go in; `run` returns what arrives.

    Each node's vjp turns the sums of the cotangents of its outputs into cotangents of its
    inputs. What arrives is {Leaf: Sum} for all leaves and {(node, index): Sum} for the
    results whose gradient is retained; or, where `targets` are given, one Sum for each of
    these that was reached, by Leaf or edge, and nothing is computed that does not lead
    there.

    `wrap` makes Tensors. With `create_graph` the sweep itself is recorded: cotangents are
    Tensors, saved inputs and outputs become Tensors again on their old edges.
    """

    def __init__(
        self,
        roots: Sequence[Edge],
        cotangents: Sequence[Any],
        wrap: Wrap,
        *,
        targets: Sequence[Edge] | None = None,
        retain_graph: bool = False,
        create_graph: bool = False,
    ) -> None:
        self.wrap = wrap
        self.recorded = wrap if create_graph else None
        self.retain_graph = retain_graph
        self.nodes = reachable({r[0]: None for r in roots if type(r[0]) is Node})
        self.keys = None if targets is None else {_key(edge) for edge in targets}
        self.useful: dict[Node, tuple[bool, ...]] | None = None
        if self.keys is not None:
            self.useful = _useful(self.nodes, self.keys)
            self.nodes = [node for node in self.nodes if node in self.useful]
        check_saved(self.nodes, create_graph)
        self.checking = is_anomaly_detected()
        self.swept: dict[Any, Any] = {}
        self.arrived: dict[Any, Sum] = {}
        self.pending: dict[Node, list[Sum | None]] = {}
        for root, value in zip(roots, cotangents, strict=True):
            self.send(root, value, False)

    def send(self, edge: Edge, value: Any, owned: bool) -> None:
        """Add `value` to the cotangent at `edge`."""
        target, index = edge
        if isinstance(target, Leaf):
            if self.keys is not None and target not in self.keys:
                return
            if target in self.arrived:
                self.arrived[target].add(value, self.recorded is None)
            else:
                self.arrived[target] = Sum(value, owned)
            return
        sums = self.pending.get(target)
        if sums is None:
            sums = self.pending[target] = [None] * len(target.outputs)
        entry = sums[index]
        if entry is None:
            sums[index] = Sum(value, False)
        else:
            entry.add(value, self.recorded is None)

    def run(self) -> dict[Any, Sum]:
        """Visit all nodes, and return what arrived."""
        self.play(self.nodes)
        return self.finish()

    def play(self, nodes: Iterable[Node]) -> None:
        """Visit the next of the nodes: all of them (`run`), or one (`tape.steps`)."""
        token = swept.set(self.swept)
        try:
            self._play(nodes)
        finally:
            swept.reset(token)

    def _play(self, nodes: Iterable[Node]) -> None:
        ledger = memory.current_ledger()
        for node in nodes:
            sums = self.pending.pop(node, None)
            if sums is None:
                continue
            if node.output_hooks:
                self._hooked(node, sums)
            if self.keys is not None or node.grads:
                self._arrive(node, sums)
            self._visit(node, sums)
            if node.saved and not self.retain_graph:
                node.release()
            if ledger is not None:
                made = sum(
                    s.value.nbytes
                    for to, s in self.arrived.items()
                    if type(to) is Leaf and s.owned
                )
                ledger.event("backward", node.op.name, node.place, made, node.counter)

    def finish(self) -> dict[Any, Sum]:
        """What arrived, when all nodes have been visited."""
        for node, sums in self.pending.items():  # targets below which nothing is wanted
            if node.output_hooks:
                self._hooked(node, sums)
            self._arrive(node, sums)
        for leaf, total in self.arrived.items():
            if type(leaf) is Leaf and leaf.hooks:
                name = "a leaf's gradient"
                total.value = self._through(leaf.hooks, total.value, name)
                total.owned = False  # a hook may have kept it
        return self.arrived

    def _visit(self, node: Node, sums: list[Sum | None]) -> None:
        """One node: its vjp, then its results checked, shaped and sent down the edges."""
        op = node.op
        dys = tuple(
            [
                entry.value if entry is not None else self._zeros(node, i, sums)
                for i, entry in enumerate(sums)
            ]
        )
        sums.clear()  # from here on the cotangents live in `dys` alone
        saved: dict[str, Any] = dict.fromkeys(op.saves) if op.saves else {}
        for s in node.saved or ():
            saved[s.label] = s.read(node, self.recorded)
        wants = node.needs if self.useful is None else self.useful[node]
        dy = dys[0] if len(dys) == 1 else dys
        # A kernel takes arrays, and a recorded sweep has Tensors.
        vjp = op.vjp if node.kernel is None or self.recorded is not None else vjp_of(node)
        try:
            results = vjp(dy, saved, needs=wants, inputs=node.inputs, **node.attrs)
        except Exception as error:
            error.add_note(raised_by(node, self.recorded is not None))
            raise
        del dy
        if not isinstance(results, tuple) or len(results) != len(node.inputs):
            got = len(results) if isinstance(results, tuple) else type(results).__name__
            raise GraphError(
                f"the vjp of {node!r} returned {got} where a tuple of {len(node.inputs)} "
                "is due: one cotangent an input, None where none is needed."
            )
        if node.hooks:
            results = self._node_hooks(node, node.hooks, results, dys)
        if self.checking:
            given = any(has_infinity(plain(v)) for v in (*dys, *saved.values()))
            for i, value in enumerate(results):
                if wants[i]:
                    what = f"the cotangent of input {i}, from the vjp of {node!r},"
                    check_finite(plain(value), what, infinities=given)
        known = None
        for i, edge in enumerate(node.edges):
            if edge is not None and wants[i]:
                value = self._fit(node, i, results[i])
                fresh = False
                if type(edge[0]) is Leaf and edge[0] not in self.arrived and not node.hooks:
                    if known is None:
                        known = owners((*dys, *saved.values(), *results))
                    fresh = is_fresh(value, known)
                self.send(edge, value, fresh)

    def _arrive(self, node: Node, sums: Sequence[Sum | None]) -> None:
        """Note the cotangents of `node` that were asked for by themselves."""
        if self.keys is None:
            for index in node.grads or ():
                entry = sums[index]
                if entry is not None:
                    self.arrived[node, index] = Sum(entry.value, False)
            return
        for index, entry in enumerate(sums):
            if entry is not None and (node, index) in self.keys:
                self.arrived[node, index] = Sum(entry.value, False)

    def _hooked(self, node: Node, sums: list[Sum | None]) -> None:
        """Pass the cotangents of `node` through the hooks on its outputs, in `sums`."""
        for index, hooks in (node.output_hooks or {}).items():
            entry = sums[index]
            if entry is not None:
                name = f"the cotangent of output {index} of {node!r}"
                sums[index] = Sum(self._through(hooks, entry.value, name), False)

    def _through(self, hooks: Hooks, value: Any, name: str) -> Any:
        """A cotangent, passed through the hooks on it."""
        for hook in list(hooks.values()):
            new = hook(self._locked(value))
            if new is not None:
                value = self._replacement(new, value.shape, value.dtype, name)
        return value

    def _locked(self, value: Any) -> Any:
        """A cotangent as a hook gets it: others may hold the array, so it is read-only."""
        view = plain(value).view()
        if isinstance(view, np.ndarray):
            view.flags.writeable = False
        return self.wrap(view, None if is_array(value) else value.edge)

    def _node_hooks(self, node: Node, hooks: Hooks, results: Any, dys: Any) -> Any:
        def shown(values: Any) -> Any:
            return tuple([v if v is None else self._locked(v) for v in values])

        for hook in list(hooks.values()):
            new = hook(shown(map(_array, results)), shown(dys))
            if new is not None:
                if len(new) != len(results):
                    raise GraphError(
                        f"a hook of {node!r} returned {len(new)} cotangents for "
                        f"{len(results)} inputs."
                    )
                results = (
                    tuple([plain(n) for n in new])
                    if (self.recorded is None)
                    else tuple(new)
                )
        return results

    def _replacement(self, new: Any, shape: Any, dtype: Any, name: str) -> Any:
        """What a hook returned in the place of a cotangent, checked."""
        got = getattr(new, "shape", None), getattr(new, "dtype", None)
        if got != (shape, dtype) or not hasattr(new, "node"):
            raise GraphError(
                f"a hook on {name} returned {type(new).__name__} {got[0]} {got[1]}; a "
                f"Tensor of shape {shape} {dtype} is due, or None to keep it as it is."
            )
        return new if self.recorded is not None else new.data

    def _zeros(self, node: Node, index: int, sums: Sequence[Sum | None]) -> Any:
        """The cotangent of an output that nothing used."""
        given = next(entry.value for entry in sums if entry is not None)
        shape, dtype = node.outputs[index]
        array = given if self.recorded is None else given.data
        zeros = backend_of(array).xp.zeros(shape, dtype)
        return zeros if self.recorded is None else self.wrap(zeros, None)

    def _fit(self, node: Node, i: int, value: Any) -> Any:
        """A vjp's result for input i: checked, un-broadcast, cast to the input's dtype."""
        shape, dtype = node.inputs[i]
        due = node.outputs[0][0] if node.op.broadcasts else shape
        plain_array = self.recorded is None and type(value) is np.ndarray
        if plain_array and value.dtype is dtype and value.shape == shape == due:
            return value  # the common case, checked at the least cost
        value = _array(value)
        of_array = is_array(value)
        if self.recorded is not None and of_array:
            value = self.wrap(value, None)
        right = of_array if self.recorded is None else hasattr(value, "node")
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


def vjp_of(node: Node) -> Callable[..., Any]:
    """The vjp of a node on arrays: its kernel's, where there is one that takes the call."""
    own, kernel = node.op.vjp, node.kernel
    if kernel is None or kernel.vjp is None:
        return own
    by_kernel = kernel.vjp

    def vjp(*args: Any, **kwargs: Any) -> Any:
        results = by_kernel(*args, **kwargs)
        return own(*args, **kwargs) if results is NotImplemented else results

    return vjp


def _key(edge: Edge) -> Any:
    return edge[0] if type(edge[0]) is Leaf else edge


def check_saved(nodes: Iterable[Node], create_graph: bool) -> None:
    """Raise what the sweep would run into, before it has changed anything."""
    for node in nodes:
        if node.saved is None:
            raise SavedTensorsFreedError(
                f"a second sweep reached {node!r}, whose saved tensors the first one "
                "dropped. Pass retain_graph=True to the first backward() or grad(), or "
                "run the forward pass again."
            )
        for s in node.saved:
            s.verify(node)
            if create_graph and s.kind.blocks_double_backward:
                raise DoubleBackwardError(
                    f"{node!r} keeps the intermediate '{s.label}', which is not on the "
                    "tape: a second derivative through it would be wrong. Build the "
                    "function from composed ops, or drop create_graph=True."
                )


def unreached(roots: Sequence[Edge], targets: Sequence[Edge]) -> list[int]:
    """Which of `targets` (by number) no path from `roots` leads to."""
    found = {_key(edge) for edge in roots}
    for node in reachable({r[0]: None for r in roots if type(r[0]) is Node}):
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


def _array(value: Any) -> Any:
    """`value`, an array again where NumPy's arithmetic on 0-d arrays made it a scalar."""
    return np.asarray(value) if isinstance(value, np.generic) else value


def _unbroadcast(value: Any, shape: tuple[int, ...]) -> Any:
    """Sum `value` over the axes along which an input of `shape` was broadcast."""
    lead = value.ndim - len(shape)
    axes = tuple(range(lead)) + tuple(
        [i + lead for i, n in enumerate(shape) if n == 1 and value.shape[i + lead] != 1]
    )
    if is_array(value) and value.dtype.itemsize == 2:
        return _array(value.sum(axis=axes, dtype=np.float32)).reshape(shape)
    return _array(value.sum(axis=axes)).reshape(shape)


def _keeps(make: Callable[[], Any]) -> bool:
    """Whether a leaf keeps what a vjp makes by make(), and takes no copy."""

    class Made:
        name, saves, broadcasts = "made", (), False

        @staticmethod
        def vjp(dy: Any, saved: Any, *, needs: Any, inputs: Any) -> tuple[Any]:
            return (make(),)

    like = ((2,), np.dtype(np.float64))
    leaf = Leaf(_keeps)
    node = Node(Made, ((leaf, 0),), (True,), (like,), (like,), {}, ())
    sweep = Sweep([(node, 0)], [np.ones(2)], lambda array, edge: array)
    return sweep.run()[leaf].owned


calibrate(_keeps)
