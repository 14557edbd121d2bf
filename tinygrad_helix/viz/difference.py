"""Two forms of one computation beside one another: what fusion swallowed, and which arrays
only one of them keeps."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from ..backend import backend_of
from ..errors import DTypeError, HelixError
from ..tensor import Tensor
from .dot import Painter, legend_statements, sheet, text
from .drawing import Picture
from .graph import Graph, Node, Storage
from .reader import Reading, read
from .text import cut, painted, plain_text
from .timeline import bytes_text

__all__ = ["SCHEMA", "Difference", "difference"]

SCHEMA = "tinygrad_helix.difference/1"

# Two forms round differently: saved values are the same if they differ by no more than
# this, by bytes of an element, times the largest.
_TOLERANCE = {2: 3e-2, 4: 1e-3, 8: 1e-8}


class Difference(Picture):
    """What `difference` found, and the picture of it.

    names      the two variants
    graphs     the model of each
    pairs      (storage of the first, storage of the second) that hold the same values
    only       for each variant the storages that have no partner
    matched    {node of the first: node of the second} that do the same
    swallowed  for each variant its ids of nodes without partner, if it has more of these
               than the other: they became the other's
    """

    def __init__(self, names: tuple[str, str], readings: tuple[Reading, Reading]) -> None:
        self.names = names
        self.graphs = tuple([reading.graph for reading in readings])
        self.pairs = _same_values(*readings)
        taken = [{pair[i].id for pair in self.pairs} for i in (0, 1)]
        self.only = tuple(
            [
                [s for s in graph.storages if not (s.parameter or s.id in taken[i])]
                for i, graph in enumerate(self.graphs)
            ]
        )
        self.matched = _same_nodes(*readings)
        pairs = self.matched.keys(), set(self.matched.values())
        alone = [
            [n.id for n in graph.nodes if n.id not in pairs[i]]
            for i, graph in enumerate(self.graphs)
        ]
        larger = [len(alone[0]) > len(alone[1]), len(alone[1]) > len(alone[0])]
        self.swallowed = tuple([frozenset(alone[i] if larger[i] else ()) for i in (0, 1)])
        self.new = tuple([tuple(() if larger[i] else alone[i]) for i in (0, 1)])

    def only_bytes(self, i: int) -> int:
        """Bytes of the arrays that variant i (0 or 1) keeps and the other does not."""
        return sum(s.nbytes for s in self.only[i])

    @property
    def both_bytes(self) -> tuple[int, int]:
        """Bytes of the arrays that both keep, as the first keeps them and the second."""
        return tuple([sum(pair[i].nbytes for pair in self.pairs) for i in (0, 1)])  # type: ignore[return-value]

    def _caption(self, i: int) -> str:
        arrays = len(self.only[i])
        return (
            f"{self.names[i]}: {self.graphs[i].caption} · {arrays} "
            f"array{'s' * (arrays != 1)}, {self.only_bytes(i):,} bytes, only here"
        )

    @property
    def source(self) -> str:
        boxes = sum(len(graph.nodes) for graph in self.graphs)
        dot = sheet(" against ".join(self.names), boxes)
        used: set[str] = set()
        tops = "above_a", "above_b"  # with nothing else in their row the frames are level
        numbers = [
            {pair[i].id: f"[{n}] " for n, pair in enumerate(self.pairs, 1)} for i in (0, 1)
        ]
        for i, graph in enumerate(self.graphs):
            only = {s.id for s in self.only[i]}
            painter = Painter(graph, f"{'ab'[i]}_", self.swallowed[i], only, numbers[i])
            opening = f"subgraph cluster_{'ab'[i]} {{ label={text(self._caption(i))}"
            dot.body += [f'{opening}; style="rounded"\n', *painter.statements()]
            dot.body.append(f"{tops[i]} [style=invis label={text('')} height=0.02]\n")
            below = " ".join([f"{'ab'[i]}_{leaf.id}" for leaf in graph.leaves])
            dot.body.append(f"{tops[i]} -> {{ {below} }} [style=invis weight=0]\n}}\n")
            used |= painter.used
        dot.body.append(f"{{ rank=same {' '.join(tops)} }}\n")
        legend = legend_statements(used)
        smaller = min((0, 1), key=lambda i: len(self.graphs[i].nodes))
        last = f"{'ab'[smaller]}_{self.graphs[smaller].outputs[-1].id}"
        first = next(line.split()[0] for line in legend if line.startswith("legend_"))
        dot.body += [*legend, f"{last} -> {first} [style=invis]\n"]  # there is room below
        return dot.source

    def text(self, *, ascii_only: bool = False, colour: bool = False) -> str:
        lines = [self._caption(0), self._caption(1), *self._swallowed(), ""]
        rows = [("", *self.names)]
        rows += [("both", _entry(one), _entry(other)) for one, other in self.pairs]
        rows += [("only", _entry(s), "") for s in self.only[0]]
        rows += [("only", "", _entry(s)) for s in self.only[1]]
        both = self.both_bytes
        rows.append(("both", f"{both[0]:,} bytes", f"{both[1]:,} bytes"))
        only = self.only_bytes(0), self.only_bytes(1)
        rows.append(("only", f"{only[0]:,} bytes", f"{only[1]:,} bytes"))
        wrapped = []
        for line in lines:
            line = plain_text(line, ascii_only)
            wrapped += textwrap.wrap(line, 80, subsequent_indent="  ") or [""]
        for n, (which, one, other) in enumerate(rows):
            if n == len(rows) - 2:
                wrapped.append("")
            line = f"{which:<5} {cut(one, 36):<37}{cut(other, 36)}".rstrip()
            line = plain_text(line, ascii_only)
            wrapped.append(painted(line, "33", colour and which == "only"))
        return "\n".join(wrapped)

    def _swallowed(self) -> list[str]:
        lines = []
        for i in (0, 1):
            ops = [n.op for n in self.graphs[i].nodes if n.id in self.swallowed[i]]
            new = [n.op for n in self.graphs[1 - i].nodes if n.id in self.new[1 - i]]
            if ops:
                into = f"{len(new)} of {self.names[1 - i]} ({', '.join(new)})"
                lines.append(
                    f"{len(ops)} nodes of {self.names[i]} became "
                    f"{into if new else 'nothing'}: {', '.join(ops)}"
                )
        return lines

    def to_json(self) -> dict[str, Any]:
        """`schema`, `variants` {name: graph}, `both` [{name: storage id}], and by variant
        `only` (storage ids), `only_bytes`, `swallowed` and `new` (ids of nodes)."""
        by_name = dict(zip(self.names, (0, 1), strict=True))
        return {
            "schema": SCHEMA,
            "variants": {name: self.graphs[i].to_json() for name, i in by_name.items()},
            "both": [{n: pair[i].id for n, i in by_name.items()} for pair in self.pairs],
            "only": {name: [s.id for s in self.only[i]] for name, i in by_name.items()},
            "only_bytes": {name: self.only_bytes(i) for name, i in by_name.items()},
            "swallowed": {name: sorted(self.swallowed[i]) for name, i in by_name.items()},
            "new": {name: list(self.new[i]) for name, i in by_name.items()},
        }

    def __repr__(self) -> str:
        return f"Difference({self._caption(0)}; {self._caption(1)})"


def difference(
    variants: Mapping[str, Tensor | Sequence[Tensor]],
    names: Mapping[str, Any] | None = None,
) -> Difference:
    """Two forms of one computation, such as {"composed": y, "fused": z}, side by side.

    The arrays that both keep are found by their values, in any order and shape (up to
    rounding), so the forms must have been run on the same inputs, before a sweep has freed
    them; the nodes that both have by ops, shapes and wiring, from the inputs on and from
    the outputs back. What is left over in the form with more of it was swallowed.

    The result prints as text, shows itself in a notebook, and saves like a drawing.

    Errors: HelixError for other than two variants; GraphError, DTypeError as for `draw`.

    >>> import tinygrad_helix as th
    >>> x = th.ones(5, requires_grad=True)
    >>> d = th.viz.difference({"two ops": (x * x.exp()).sum(), "one": (x * x).sum()})
    >>> d.only_bytes(0), d.only_bytes(1)
    (20, 0)
    """
    if not isinstance(variants, Mapping):
        raise DTypeError(
            "difference takes a dict of two Tensors, {name: Tensor}; got "
            f"{type(variants).__name__}."
        )
    if len(variants) != 2:
        raise HelixError(
            f"difference takes two variants; got {len(variants)} "
            f"({', '.join(map(str, variants)) or 'none'}). Give {{name: Tensor}} twice."
        )
    first, second = variants.items()
    readings = read(first[1], names), read(second[1], names)
    return Difference((str(first[0]), str(second[0])), readings)


def _entry(s: Storage) -> str:
    return f"{s.holders[0].node} {s.name}  {bytes_text(s.nbytes)}"


# --- which arrays hold the same values


def _same_values(one: Reading, other: Reading) -> list[tuple[Storage, Storage]]:
    """Pairs of storages with the same values, each storage in one at most."""
    by_size: dict[Any, list[tuple[Storage, Any]]] = {}
    for s in other.graph.storages:
        if not s.parameter:
            array = other.arrays[s.id]
            by_size.setdefault(_size(array), []).append((s, _sorted(array)))
    pairs = []
    for s in one.graph.storages:
        array = one.arrays[s.id]
        candidates = [] if s.parameter else by_size.get(_size(array), [])
        values = _sorted(array) if candidates else None
        for n, (t, others) in enumerate(candidates):
            if _close(values, others):
                pairs.append((s, t))
                del candidates[n]
                break
    return pairs


def _size(array: Any) -> Any:
    return backend_of(array).name, array.dtype.kind, array.size


def _sorted(array: Any) -> Any:
    """All values in order: a fused node may keep its rows in another one."""
    return backend_of(array).xp.sort(array.reshape(-1))


def _close(one: Any, other: Any) -> bool:
    if one is other or one.size == 0:
        return True
    if one.dtype.kind != "f":
        return bool((one == other).all())
    xp = backend_of(one).xp
    tolerance = _TOLERANCE.get(min(one.dtype.itemsize, other.dtype.itemsize), 0.0)
    finite = xp.abs(one[xp.isfinite(one)])
    bound = float(finite.max()) * tolerance if finite.size else 0.0
    return bool(xp.allclose(one, other, rtol=0, atol=bound, equal_nan=True))


# --- which nodes do the same


def _same_nodes(one: Reading, other: Reading) -> dict[str, str]:
    """{node of one: node of other} with equal ops, shapes and attrs, and equal sources all
    the way from the leaves, or equal uses all the way from the outputs."""
    matched = _from_leaves(one, other)
    taken = set(matched.values())
    nodes = [{n.id: n for n in reading.graph.nodes} for reading in (one, other)]
    wires = [_wires(reading.graph) for reading in (one, other)]
    ends = zip(one.graph.outputs, other.graph.outputs, strict=False)
    pending = [(y.source, z.source) for y, z in ends if y.output == z.output]
    while pending:
        a, b = pending.pop()
        if a not in nodes[0] or b not in nodes[1] or a in matched or b in taken:
            continue
        if _does(nodes[0][a]) == _does(nodes[1][b]):
            matched[a] = b
            taken.add(b)
            sources = wires[0].get(a, {}), wires[1].get(b, {})
            for i, (source, output) in sources[0].items():
                into = sources[1].get(i)
                if into is not None and into[1] == output:
                    pending.append((source, into[0]))
    return matched


def _from_leaves(one: Reading, other: Reading) -> dict[str, str]:
    names = {(x.name, x.shape): x.id for x in other.graph.leaves if x.name}
    data: dict[Any, list[str]] = {}  # constants have no other mark than their order
    for x in other.graph.leaves:
        if x.kind == "constant":
            data.setdefault((x.shape, x.dtype), []).append(x.id)
    keys = {key: id for id, key in other.leaves.items()}
    same: dict[str, str] = {}
    for x in one.graph.leaves:
        partner = keys.get(one.leaves[x.id]) or names.get((x.name or "", x.shape))
        if partner is None and x.kind == "constant" and data.get((x.shape, x.dtype)):
            partner = data[x.shape, x.dtype].pop(0)
        if partner is not None:
            same[x.id] = partner
    wires = _wires(other.graph)
    waiting: dict[Any, list[str]] = {}
    for n in other.graph.nodes:
        waiting.setdefault((_does(n), _sorted_wires(wires.get(n.id, {}))), []).append(n.id)
    mine = _wires(one.graph)
    for n in one.graph.nodes:
        sources = {i: (same.get(a), k) for i, (a, k) in mine.get(n.id, {}).items()}
        if all(a is not None for a, _ in sources.values()):
            found = waiting.get((_does(n), _sorted_wires(sources)))
            if found:
                same[n.id] = found.pop(0)
    ids = {n.id for n in one.graph.nodes}
    return {a: b for a, b in same.items() if a in ids}


def _wires(graph: Graph) -> dict[str, dict[int, tuple[str, int]]]:
    """For each node, by input: who made it, and as which output."""
    wires: dict[str, dict[int, tuple[str, int]]] = {}
    for e in graph.edges:
        wires.setdefault(e.target, {})[e.input] = e.source, e.output
    return wires


def _sorted_wires(sources: Mapping[int, Any]) -> Any:
    return tuple(sorted(sources.items()))


def _does(n: Node) -> Any:
    return n.op, tuple(sorted(n.attrs.items())), n.inputs, n.outputs
