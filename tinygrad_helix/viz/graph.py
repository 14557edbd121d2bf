"""The graph model: what a tape looks like at one moment, as plain data.

A Graph holds no array, Tensor, node or module: it can be drawn, written and compared after
the tape is gone. `reader.read` makes one from a live tape; every renderer draws it.

As JSON (`Graph.to_json`) it has the keys

    schema        "tinygrad_helix.graph/1"
    tape_nodes    nodes on the tape: the sum of `count` over `nodes`
    saved_bytes   what the tape holds, parameters aside: the sum over `nodes`
    freed         nodes whose saved tensors a sweep has dropped
    nodes         in the order of the tape, each with
        id            "n12", 12 being the tape's own counter; a closed module's is "c3"
        counter       12; of a closed module that of its first node
        op, formula   the op's name and the first paragraph of its docstring
        kind          "op", "module" for a call that `collapse` has closed, or "more" for
                      the nodes that `tail` has left out
        place, source where it was made, file:line, and the text of the line; in a layer of
                      the package that of the layer
        path          dotted names of the modules whose calls it was made in, or ""
        cluster       id of the innermost of these calls that is drawn, or null
        attrs         {name: text}
        inputs        [{shape, dtype, nbytes}, or null for a number or None]
        outputs       [{shape, dtype, nbytes}]
        names         [the reader's name of each output, or null]
        needs         [whether each input gets a cotangent]
        saved         [{label, kind, index, shape, dtype, nbytes, storage, view, value}], or
                      null if a sweep has dropped all. kind is input, output, constant or
                      intermediate; index that of the input or output; nbytes what the value
                      spans; storage an id, null for a number and for what a hook packed;
                      view: it spans a part of its storage; value is a number's text
        saved_bytes   bytes of the storages that this node is the first to hold
        count         how many nodes of the tape it stands for
        times         as how many repeats
        freed         how many of them have dropped what they saved
        parameters    how many leaves a closed module has put away: parameters that nothing
                      outside of it reads
    leaves        what flows in: {id "x0", name or null, kind, shape, dtype, nbytes,
                  storage, times}; kind is input, parameter or constant (it needs no
                  gradient); storage an id if the tape holds it
    outputs       {id "y0", name, source, output, shape, dtype, nbytes}
    edges         {id "e0", source, output, target, input, shape, dtype, nbytes, kept,
                  times}; source and target are ids of nodes and leaves; kept: one of the
                  two saves the value; times: it stands for so many, from repeats
    storages      each buffer that the tape holds, once: {id "s0", name, nbytes, parameter,
                  holders [{node, label, view}]}; name is op.label of its first holder
    clusters      calls of modules: {id "c0", name, kind, outer, path, times}; outer is the
                  id of the call around it, or null
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

__all__ = [
    "SCHEMA",
    "Cluster",
    "Edge",
    "Graph",
    "Holder",
    "Leaf",
    "Node",
    "Output",
    "Saved",
    "Storage",
    "Value",
    "shape_text",
]

SCHEMA = "tinygrad_helix.graph/1"
_SCALARS = frozenset((str, int, bool, type(None)))


@dataclass(frozen=True, slots=True)
class Value:
    """Shape, dtype and bytes of an array that flows along an edge."""

    shape: tuple[int, ...]
    dtype: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Saved:
    """One saved tensor of a node, as listed above."""

    label: str
    kind: str
    index: int | None
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    storage: str | None
    view: bool
    value: str | None


@dataclass(frozen=True, slots=True)
class Node:
    """One op, or the closed box of a module's call."""

    id: str
    counter: int
    op: str
    kind: str
    formula: str
    place: str
    source: str
    path: str
    cluster: str | None
    attrs: dict[str, str]
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value, ...]
    names: tuple[str | None, ...]
    needs: tuple[bool, ...]
    saved: tuple[Saved, ...] | None
    saved_bytes: int
    count: int = 1
    times: int = 1
    parameters: int = 0
    freed: int = 0

    @property
    def title(self) -> str:
        """The op, after the reader's names of what it made."""
        names = [name for name in self.names if name]
        return f"{', '.join(names)} = {self.op}" if names else self.op


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value that no node of the graph made."""

    id: str
    name: str | None
    kind: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    storage: str | None
    times: int = 1

    @property
    def title(self) -> str:
        """Its name, or its id where it has none."""
        return self.name or self.id


@dataclass(frozen=True, slots=True)
class Output:
    """A Tensor that the graph was drawn from."""

    id: str
    name: str
    source: str
    output: int
    shape: tuple[int, ...]
    dtype: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Edge:
    """A value on its way from the node or leaf that made it into input `input`."""

    id: str
    source: str
    output: int
    target: str
    input: int
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    kept: bool
    times: int = 1


@dataclass(frozen=True, slots=True)
class Holder:
    """A node that keeps a storage alive, and under which label."""

    node: str
    label: str
    view: bool


@dataclass(frozen=True, slots=True)
class Storage:
    """A buffer that the tape holds, with all who share it."""

    id: str
    name: str
    nbytes: int
    parameter: bool
    holders: tuple[Holder, ...]


@dataclass(frozen=True, slots=True)
class Cluster:
    """One call of a module."""

    id: str
    name: str
    kind: str
    outer: str | None
    path: str
    times: int = 1

    @property
    def title(self) -> str:
        """Name and class of the module."""
        return self.name if self.name == self.kind else f"{self.name}: {self.kind}"


@dataclass(frozen=True, slots=True)
class Graph:
    """The whole, as listed above."""

    nodes: tuple[Node, ...]
    leaves: tuple[Leaf, ...]
    outputs: tuple[Output, ...]
    edges: tuple[Edge, ...]
    storages: tuple[Storage, ...]
    clusters: tuple[Cluster, ...]

    @property
    def tape_nodes(self) -> int:
        """How many nodes of the tape the graph stands for."""
        return sum(node.count for node in self.nodes)

    @property
    def saved_bytes(self) -> int:
        """What the tape holds, parameters aside: as `th.saved_bytes` says."""
        return sum(node.saved_bytes for node in self.nodes)

    @property
    def freed(self) -> int:
        """How many nodes have dropped their saved tensors."""
        return sum(node.freed for node in self.nodes)

    @property
    def caption(self) -> str:
        """One line that sums it up."""
        shown, nodes = len(self.nodes), self.tape_nodes
        parts = [f"{nodes:,} node{'s' * (nodes != 1)}"]
        if shown != nodes:
            parts[0] += f" in {shown:,} box{'es' * (shown != 1)}"
        parts.append(f"saved {self.saved_bytes:,} bytes")
        if self.freed:
            have = (
                "node has dropped what it"
                if self.freed == 1
                else ("nodes have dropped what they")
            )
            parts.append(f"{self.freed:,} {have} saved")
        return " · ".join(parts)

    def repeats(self, times: int, cluster: str | None) -> str:
        """ " × 3" for what is there `times` times in all, if its cluster leaves 3 of it."""
        for c in self.clusters:
            if c.id == cluster:
                times //= c.times
        return f" × {times}" if times > 1 else ""

    def to_json(self) -> dict[str, Any]:
        """Numbers, strings, lists and dicts alone, as listed at the top of this file."""
        return {
            "schema": SCHEMA,
            "tape_nodes": self.tape_nodes,
            "saved_bytes": self.saved_bytes,
            "freed": self.freed,
        } | _plain(self)


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is tuple:
        return [_plain(v) for v in value]
    if kind is dict:
        return dict(value)
    # dataclasses.asdict copies every value deeply: of large graphs that takes longest.
    return {
        name: v if type(v := getattr(value, name)) in _SCALARS else _plain(v)
        for name in kind.__slots__
    }


def shape_text(shape: Iterable[int]) -> str:
    """(8, 128, 64) as 8×128×64."""
    return "×".join(map(str, shape)) or "scalar"
