"""Reading the graph model from a live tape."""

import functools
import inspect
import linecache
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from .. import memory
from ..backend import is_array
from ..errors import DTypeError, GraphError
from ..nn.module import Module, Parameter
from ..op import Input, Output
from ..tape import Node as TapeNode
from ..tape import SavedTensor, Scope
from ..tensor import Tensor
from . import graph
from .graph import Graph, Holder, Leaf, Saved, Storage, Value

__all__ = ["Reading", "nameable", "read"]


class Reading(NamedTuple):
    """A graph, and what of the live tape belongs to its storages and leaves, by id."""

    graph: Graph
    arrays: dict[str, Any]
    leaves: dict[str, Any]

    @property
    def by_key(self) -> dict[Any, Leaf]:
        """The leaves of the graph, by the tape's own."""
        return {self.leaves[leaf.id]: leaf for leaf in self.graph.leaves}


def read(
    outputs: Tensor | Sequence[Tensor], names: Mapping[str, Any] | None = None
) -> Reading:
    """The graph below one Tensor or several.

    `names` are the reader's own: {"x": x, "model": model}, or locals(). Tensors and modules
    in it (and in lists, tuples and dicts of it) are used, anything else is passed over.
    Parameters of modules whose calls are on the tape are named after these by themselves.

    Errors: DTypeError for what is no Tensor, and where no value in `names` can be named;
    GraphError for a Tensor that no op made.
    """
    several: Any = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    if not several:
        raise GraphError("there is nothing to draw. Give at least one Tensor.")
    for y in several:
        if not isinstance(y, Tensor):
            raise DTypeError(
                f"a graph is drawn from a Tensor or several; got {type(y).__name__}. Give "
                "the result of the computation."
            )
        if y.node is None:
            why = "is a leaf" if y.requires_grad else "requires no gradient"
            raise GraphError(
                f"this Tensor of shape {y.shape} has no graph: it {why}, so no op of it is "
                "on the tape. Give a result of ops on Tensors with requires_grad=True, "
                "made outside no_grad()."
            )
    if names is not None and not isinstance(names, Mapping):
        raise DTypeError(
            f"names is a dict such as {{'x': x}} or locals(); got {type(names).__name__}."
        )
    if names and not any(True for _ in nameable(names)):
        kinds = ", ".join(dict.fromkeys(type(value).__name__ for value in names.values()))
        raise DTypeError(
            f"names has no Tensor, array or module among its values ({kinds}), so it names "
            "nothing. Give {'x': x}, a name for each Tensor, or locals()."
        )
    tape = memory.nodes(*several)
    return _Reader(tape, _Names(tape, names or {})).result(several)


class _Names:
    """What the reader calls Tensors and modules."""

    def __init__(self, tape: Sequence[TapeNode], names: Mapping[str, Any]) -> None:
        self.values: dict[Any, list[str]] = {}  # by edge; off the tape by id of the array
        self.modules: dict[int, str] = {}  # the outermost ones, by id
        given: dict[int, tuple[Module, str]] = {}
        for name, value in nameable(names):
            if isinstance(value, Tensor):
                self._note(id(value.data) if value.edge[0] is None else value.edge, name)
            elif is_array(value):
                self._note(id(value), name)
            else:
                given.setdefault(id(value), (value, name))
        called = {id(module): module for module in _outermost(tape)}
        kinds: dict[str, int] = {}
        for key, module in called.items():
            kind = type(module).__name__
            kinds[kind] = kinds.get(kind, 0) + 1
            number = f" {kinds[kind]}" if kinds[kind] > 1 else ""
            self.modules[key] = given[key][1] if key in given else kind + number
        alone = len(called | given) == 1
        for key, module in (called | {k: m for k, (m, _) in given.items()}).items():
            prefix = "" if alone else f"{self.modules.get(key) or given[key][1]}."
            for path, parameter in module.named_parameters():
                if self.of(parameter.edge) is None:
                    self._note(parameter.edge, prefix + path)

    def _note(self, key: Any, name: str) -> None:
        known = self.values.setdefault(key, [])
        if name not in known:
            known.append(name)

    def of(self, key: Any) -> str | None:
        """The name or names at an edge, or of the array with an id."""
        return " = ".join(self.values.get(key, ())) or None


def nameable(names: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """The Tensors, arrays and modules among values, and one level down in lists, tuples
    and dicts."""
    for name, value in list(names.items()):
        inside: Iterator[Any] = iter(())
        if _has_name(value):
            inside = iter([(str(name), value)])
        elif isinstance(value, (list, tuple)):
            inside = ((f"{name}[{i}]", item) for i, item in enumerate(value))
        elif isinstance(value, dict):
            inside = ((f"{name}[{key!r}]", item) for key, item in list(value.items()))
        yield from ((n, v) for n, v in inside if _has_name(v))


def _has_name(value: Any) -> bool:
    return isinstance(value, (Tensor, Module)) or is_array(value)


def _outermost(tape: Sequence[TapeNode]) -> Iterator[Module]:
    """The modules that were called from outside of any, if they are still alive."""
    for node in tape:
        scope = node.scope
        while scope is not None and scope.outer is not None:
            scope = scope.outer
        module = None if scope is None else scope.module()
        if module is not None:
            yield module


class _Reader:
    """One walk over the tape, from the earliest node to the latest."""

    def __init__(self, tape: Sequence[TapeNode], names: _Names) -> None:
        self.tape = tape
        self.names = names
        self.leaves: dict[Any, graph.Leaf] = {}
        self.owners: dict[Any, int] = {}  # of the arrays of leaves, by id
        self.edges: list[graph.Edge] = []
        self.storages: dict[int, tuple[str, Any, str, list[Holder]]] = {}
        self.clusters: dict[int, graph.Cluster] = {}
        self.inside: dict[int, dict[int, str]] = {}  # names of modules, by id of the outer

    def result(self, outputs: Sequence[Tensor]) -> Reading:
        nodes = [self._node(node) for node in self.tape]
        storages: list[Storage] = []
        first: dict[str, int] = {}
        for number, owner, name, holders in self.storages.values():
            parameter = memory.is_parameter(owner)
            storages.append(Storage(number, name, owner.nbytes, parameter, tuple(holders)))
            if not parameter:
                at = holders[0].node
                first[at] = first.get(at, 0) + owner.nbytes
        leaves = []
        for key, leaf in self.leaves.items():
            kept = self.storages.get(self.owners.get(key, 0))
            leaves.append(leaf if kept is None else replace(leaf, storage=kept[0]))
        model = Graph(
            tuple(
                [replace(n, saved_bytes=first[n.id]) if n.id in first else n for n in nodes]
            ),
            tuple(leaves),
            tuple([self._output(i, y, len(outputs)) for i, y in enumerate(outputs)]),
            tuple(self.edges),
            tuple(storages),
            tuple(self.clusters.values()),
        )
        return Reading(
            model,
            {number: owner for number, owner, _, _ in self.storages.values()},
            {leaf.id: key for key, leaf in self.leaves.items()},
        )

    def _output(self, i: int, y: Tensor, several: int) -> graph.Output:
        made, index = y.edge
        name = self.names.of(y.edge) or ("y" if several == 1 else f"y{i}")
        return graph.Output(
            f"y{i}", name, _id(made), index, *_parts(_value(y.shape, y.dtype))
        )

    def _node(self, node: TapeNode) -> graph.Node:
        inputs = tuple([None if given is None else _value(*given) for given in node.inputs])
        held: dict[int, Any] = {}
        for s in node.saved or ():
            if isinstance(s.kind, Input):
                held[s.kind.index] = s.array
            elif s.array is not None and self.names.of(id(s.array)):  # an index, a target
                like = s.array.shape, s.array.dtype
                alike = [i for i, given in enumerate(node.inputs) if given == like]
                held |= {i: s.array for i in alike[:1] if node.edges[i] is None}
        for i, (edge, value) in enumerate(zip(node.edges, inputs, strict=True)):
            if value is not None:
                source, output = self._source(node, i, edge, value, held.get(i))
                kept = i in held or _keeps_output(edge)
                number = f"e{len(self.edges)}"
                made = graph.Edge(
                    number, source, output, _id(node), i, *_parts(value), kept
                )
                self.edges.append(made)
        cluster = None if node.scope is None else self._cluster(node.scope)
        saved = None if node.saved is None else [self._saved(node, s) for s in node.saved]
        return graph.Node(
            id=_id(node),
            counter=node.counter,
            op=node.op.name,
            kind="op",
            formula=_formula(node.op.__doc__ or ""),
            place=node.place,
            source=linecache.getline(*node.places[-1]).strip(),
            path="" if cluster is None else cluster.path,
            cluster=None if cluster is None else cluster.id,
            attrs={name: _text(value) for name, value in node.attrs.items()},
            inputs=inputs,
            outputs=tuple([_value(*made) for made in node.outputs]),
            names=tuple([self.names.of((node, i)) for i in range(len(node.outputs))]),
            needs=node.needs,
            saved=None if saved is None else tuple(saved),
            saved_bytes=0,
            freed=int(saved is None),
        )

    def _saved(self, node: TapeNode, s: SavedTensor) -> Saved:
        index = getattr(s.kind, "index", None)
        kind = type(s.kind).__name__.lower()
        if s.array is None:
            if not hasattr(s, "shape"):  # a number
                return Saved(s.label, kind, index, (), "", 0, None, False, _text(s.value))
            return Saved(
                s.label, kind, index, *_parts(_value(s.shape, s.dtype)), None, False, None
            )
        owner = memory.storage(s.array)
        new = f"s{len(self.storages)}", owner, f"{node.op.name}.{s.label}", []
        number, _, _, holders = self.storages.setdefault(id(owner), new)
        view = s.array.nbytes != owner.nbytes
        value = _parts(_value(s.array.shape, s.array.dtype))
        holders.append(Holder(_id(node), s.label, view))
        return Saved(s.label, kind, index, *value, number, view, None)

    def _source(
        self, node: TapeNode, i: int, edge: Any, value: Value, array: Any
    ) -> tuple[str, int]:
        """Who made input i (whose array is known if the node keeps it), and as which of
        its outputs."""
        if edge is not None and type(edge[0]) is TapeNode:
            return _id(edge[0]), edge[1]
        if edge is None:
            key = (node, i) if array is None else id(array)
            kind, name = "constant", None if array is None else self.names.of(id(array))
        else:
            x = edge[0].tensor()
            array = array if x is None else x.data
            known = isinstance(x, Parameter)
            known = known or (array is not None and memory.is_parameter(array))
            kind = "parameter" if known else "input"
            key, name = edge[0], self.names.of(edge)
        if array is not None:
            self.owners[key] = id(memory.storage(array))
        if key not in self.leaves:
            number = f"x{len(self.leaves)}"
            self.leaves[key] = graph.Leaf(number, name, kind, *_parts(value), None)
        return self.leaves[key].id, 0

    def _cluster(self, scope: Scope) -> graph.Cluster:
        chain = [scope]
        while chain[-1].outer is not None and id(chain[-1]) not in self.clusters:
            chain.append(chain[-1].outer)
        for at in reversed(chain):
            if id(at) in self.clusters:
                continue
            if at.outer is None:
                outer, path = None, ""
                name = self.names.modules.get(id(at.module()), at.kind)
            else:
                outer = self.clusters[id(at.outer)]
                name = self._name_in(at.outer, at)
                path = f"{outer.path}.{name}" if outer.path else name
            self.clusters[id(at)] = graph.Cluster(
                f"c{len(self.clusters)}", name, at.kind, outer and outer.id, path
            )
        return self.clusters[id(scope)]

    def _name_in(self, outer: Scope, scope: Scope) -> str:
        """What the module of a call is called in that of the call around it; its class if
        it is no part of that, and where one of the two is gone."""
        around, module = outer.module(), scope.module()
        if around is None or module is None:
            return scope.kind
        if id(around) not in self.inside:
            names = {id(m): name for name, m in around.named_modules()}
            self.inside[id(around)] = names
        return self.inside[id(around)].get(id(module)) or scope.kind


def _id(node: Any) -> str:
    return f"n{node.counter}"


@functools.lru_cache(maxsize=1024)
def _value(shape: tuple[int, ...], dtype: Any) -> Value:
    return Value(tuple(shape), str(dtype), math.prod(shape) * dtype.itemsize)


def _parts(value: Value) -> tuple[tuple[int, ...], str, int]:
    return value.shape, value.dtype, value.nbytes


@functools.lru_cache(maxsize=256)
def _formula(docstring: str) -> str:
    return inspect.cleandoc(docstring).partition("\n\n")[0]


def _text(value: Any, most: int = 60) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= most else text[: most - 1] + "…"


def _keeps_output(edge: Any) -> bool:
    """Whether the node that made a value keeps it for its own vjp."""
    return (
        edge is not None
        and type(edge[0]) is TapeNode
        and any(
            isinstance(s.kind, Output) and s.kind.index == edge[1]
            for s in edge[0].saved or ()
        )
    )
