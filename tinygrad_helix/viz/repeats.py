"""What repeats in a graph: units of ops and calls in a row, alike and wired alike."""

from collections.abc import Sequence
from typing import Any

from .graph import Cluster, Edge, Graph, Node

__all__ = ["Folded"]

# Repeats are looked for in sequences of up to this many ops and calls.
_LONGEST_UNIT = 24
# What has no module in it is drawn once only if there are at least so many of it.
_FEWEST_OPS = 3


class Folded:
    """A graph's calls of modules, which of them are closed, and which units are repeats."""

    def __init__(self, graph: Graph, depth: int) -> None:
        self.graph = graph
        self.clusters = {c.id: c for c in graph.clusters}
        self.items: dict[str | None, list[Node | Cluster]] = {}
        self.inside: dict[str, list[Node]] = {c.id: [] for c in graph.clusters}
        self.into: dict[str, list[Edge]] = {}
        self.position = {node.id: i for i, node in enumerate(graph.nodes)}
        for edge in graph.edges:
            self.into.setdefault(edge.target, []).append(edge)
        self._sort()
        self.closed = {c.id: self._closed_by(c, depth) for c in graph.clusters}
        # Where folded nodes went: (run, unit) for each run that they are part of, and the
        # node of the first unit that stands for them.
        self.units: dict[str, list[tuple[int, int]]] = {}
        self.stands: dict[str, str] = {}
        self.times: dict[str, int] = {}
        self.runs = 0
        self._fold_all()

    def _sort(self) -> None:
        """Every call's ops and calls, in order, and all nodes inside it."""
        seen: set[str] = set()
        for node in self.graph.nodes:
            item: Node | Cluster = node
            at = node.cluster
            while at is not None:
                self.inside[at].append(node)
                if item.id not in seen:
                    seen.add(item.id)
                    self.items.setdefault(at, []).append(item)
                item = self.clusters[at]
                at = item.outer
            if item.id not in seen:
                seen.add(item.id)
                self.items.setdefault(None, []).append(item)

    def _closed_by(self, cluster: Cluster, depth: int) -> str | None:
        """The box that a call is (part of), None if it is open."""
        chain = [cluster.id]
        while (outer := self.clusters[chain[-1]].outer) is not None:
            chain.append(outer)
        return chain[-1 - depth] if len(chain) > depth else None

    # --- repeats

    def _fold_all(self) -> None:
        pending: list[str | None] = [None]
        while pending:
            at = pending.pop()
            items = self.items.get(at, [])
            alike = self._numbered(items)
            ends: dict[int, int] = {}
            i = 0
            while i < len(items):
                length, units = self._run(items, alike, i, ends)
                if units > 1:
                    self._fold(items, i, length, units)
                pending += [c.id for c in items[i : i + length] if self._is_open(c)]
                i += length * units

    def _is_open(self, item: Node | Cluster) -> bool:
        return isinstance(item, Cluster) and self.closed[item.id] is None

    def _nodes(self, item: Node | Cluster) -> list[Node]:
        return self.inside[item.id] if isinstance(item, Cluster) else [item]

    def _numbered(self, items: Sequence[Node | Cluster]) -> list[int]:
        """A number for each item, the same for items that look the same."""
        numbers: dict[Any, int] = {}
        return [numbers.setdefault(self._look(item), len(numbers)) for item in items]

    def _look(self, item: Node | Cluster) -> Any:
        kind = item.kind if isinstance(item, Cluster) else ""
        return kind, tuple(
            [
                (
                    n.op,
                    n.inputs,
                    n.outputs,
                    n.needs,
                    n.saved and tuple([(s.label, s.kind, s.nbytes) for s in n.saved]),
                    n.saved is None,
                    n.cluster is not None and self.clusters[n.cluster].kind,
                )
                for n in self._nodes(item)
            ]
        )

    def _run(
        self,
        items: Sequence[Node | Cluster],
        alike: list[int],
        i: int,
        ends: dict[int, int],
    ) -> tuple[int, int]:
        """The length of the unit that begins at i, and how often it comes in a row. `ends`
        says, by length, up to where items are like those one unit later."""
        best = (1, 1)
        for length in range(1, min(_LONGEST_UNIT, (len(items) - i) // 2) + 1):
            j = max(i, ends.get(length, 0))
            while j + length < len(items) and alike[j] == alike[j + length]:
                j += 1
            ends[length] = j
            units = (j - i) // length + 1
            if units > 1 and length * units > best[0] * best[1]:
                units = self._wired_alike(items, i, length, units)
                modules = any(isinstance(x, Cluster) for x in items[i : i + length])
                fewest = 2 if modules else _FEWEST_OPS
                if units >= fewest and length * units > best[0] * best[1]:
                    best = (length, units)
        return best

    def _unit(self, items: Sequence[Node | Cluster], start: int, length: int) -> list[Node]:
        return [n for item in items[start : start + length] for n in self._nodes(item)]

    def _wired_alike(
        self, items: Sequence[Node | Cluster], i: int, length: int, units: int
    ) -> int:
        """How many of the units, from the first on, are wired like their neighbours."""
        first = self._unit(items, i, length)
        start = self.position[first[0].id]
        before: dict[str, int] = {}
        inner: list[Any] = []
        due: list[Any] = []
        for k in range(units):
            unit = self._unit(items, i + k * length, length)
            here = {n.id: j for j, n in enumerate(unit)}
            wires: list[Any] = []
            for n in unit:
                for e in self.into.get(n.id, ()):
                    if e.source in here:
                        wires.append(("here", here[e.source], e.output, e.input))
                    elif e.source in before:
                        wires.append(("before", before[e.source], e.output, e.input))
                    elif e.source not in self.position:
                        wires.append(("leaf", e.input))
                    elif self.position[e.source] < start:
                        wires.append(("outside", e.source, e.output, e.input))
                    else:
                        return k
            if k == 0:
                inner = wires
            elif k == 1:
                # The others have from one another what the first has from anywhere else.
                due = wires
                if len(wires) != len(inner) or not all(map(_alike, inner, wires)):
                    return 1
            elif wires != due:
                return k
            before = here
        return units

    def _fold(
        self, items: Sequence[Node | Cluster], i: int, length: int, units: int
    ) -> None:
        first = self._unit(items, i, length)
        self.runs += 1
        for k in range(units):
            unit = self._unit(items, i + k * length, length)
            for one, n in zip(first, unit, strict=True):
                self.units.setdefault(n.id, []).append((self.runs, k))
                if k:
                    self.stands[n.id] = one.id
        repeated = {n.id for n in first}
        for item in items[i : i + length]:
            if isinstance(item, Cluster):
                inside = {n.cluster for n in self.inside[item.id]}
                repeated |= {c for c in inside if c is not None} | {item.id}
        for id in repeated:
            self.times[id] = self.times.get(id, 1) * units


def _alike(one: Any, other: Any) -> bool:
    """Whether a wire of the first unit fits one of the second."""
    if "here" in (one[0], other[0]):
        return one == other
    return one[-1] == other[-1] and (other[0] != "leaf" or one[0] == "leaf")
