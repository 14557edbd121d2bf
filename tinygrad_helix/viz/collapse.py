"""A smaller graph: calls of modules closed to boxes, repeats drawn once."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .graph import Edge, Graph, Holder, Node, Storage, Value
from .repeats import Folded

__all__ = ["collapse"]


def collapse(graph: Graph, depth: int) -> Graph:
    """The same graph with calls of modules closed, and repeats drawn once.

    The calls of modules in `depth` others become one box each: with 0 every outermost
    module is a box, with 1 these are open and the modules in them boxes. Units (some ops or
    calls in a row) that follow one another, are alike in ops, shapes and saved tensors and
    are wired alike are drawn as one, with `times` saying how many there are. Bytes are
    those of all: the sums over the nodes stay what they were.
    """
    return _Collapsed(graph, depth).result()


class _Collapsed(Folded):
    """The graph that is left."""

    def _box(self, node: Node) -> str:
        """The id of what is drawn for a node."""
        at = node.id
        while at in self.stands:
            at = self.stands[at]
        cluster = self.graph.nodes[self.position[at]].cluster
        return (cluster and self.closed[cluster]) or at

    def _is_first(self, id: str) -> bool:
        """Whether a node is drawn itself, not stood for by one of an earlier unit."""
        return id not in self.stands

    def result(self) -> Graph:
        box = {node.id: self._box(node) for node in self.graph.nodes}
        members: dict[str, list[Node]] = {}
        for node in self.graph.nodes:
            members.setdefault(box[node.id], []).append(node)
        ports: dict[str, dict[tuple[str, int], int]] = {}

        def port(source: str, output: int) -> int:
            """The number of an output among those of the box that it leaves."""
            at = box[source]
            if at == source:
                return output
            while source in self.stands:
                source = self.stands[source]
            if at == source:
                return output
            known = ports.setdefault(at, {})
            return known.setdefault((source, output), len(known))

        edges, parameters = self._inner_parameters(self._edges(box, port))
        outputs = [
            replace(y, source=box[y.source], output=port(y.source, y.output))
            for y in self.graph.outputs
        ]
        given: dict[str, list[Edge]] = {}
        for e in edges:
            given.setdefault(e.target, []).append(e)
        nodes = []
        for at, group in members.items():
            node = self._merged(at, group, given.get(at, []), ports.get(at, {}))
            nodes.append(replace(node, parameters=parameters.get(at, 0)))
        used = {e.source for e in edges}
        times = self._leaf_times()
        leaves = [replace(x, times=times.get(x.id, 1)) for x in self.graph.leaves]
        shown = {n.cluster for n in nodes}
        for c in reversed(self.graph.clusters):
            if c.id in shown:
                shown.add(c.outer)
        return Graph(
            tuple(nodes),
            tuple([x for x in leaves if x.id in used]),
            tuple(outputs),
            tuple(edges),
            tuple(self._storages(box)),
            tuple(
                [
                    replace(c, times=self.times.get(c.id, 1))
                    for c in self.graph.clusters
                    if c.id in shown
                ]
            ),
        )

    def _edges(self, box: dict[str, str], port: Any) -> list[Edge]:
        edges: dict[Any, Edge] = {}
        inputs: dict[str, int] = {}
        for e in self.graph.edges:
            leaf = e.source not in box
            if leaf and not self._is_first(e.target):
                continue
            source = e.source if leaf else box[e.source]
            target = box[e.target]
            if source == target or (not leaf and self._between_units(e)):
                continue
            output = 0 if leaf else port(e.source, e.output)
            folded = not leaf and self._leaves_units(e)
            # A closed module has no numbers for its inputs, and what comes from repeats
            # arrives as one.
            apart = target in self.position and not folded
            key: Any = (source, output, target, e.input if apart else None)
            if key in edges:
                old = edges[key]
                times = old.times + (folded and self._is_first(e.target))
                edges[key] = replace(old, kept=old.kept or e.kept, times=times)
                continue
            number = inputs.get(target, 0)
            inputs[target] = number + 1
            into = e.input if target in self.position else number
            edges[key] = replace(e, source=source, output=output, target=target, input=into)
        return list(edges.values())

    def _inner_parameters(self, edges: list[Edge]) -> tuple[list[Edge], dict[str, int]]:
        """The edges without those of parameters that one closed box alone reads, and how
        many these are, by box."""
        readers: dict[str, set[str]] = {}
        for e in edges:
            readers.setdefault(e.source, set()).add(e.target)
        inner = {
            x.id
            for x in self.graph.leaves
            if x.kind == "parameter"
            and len(at := readers.get(x.id, set())) == 1
            and not at <= self.position.keys()
        }
        counts: dict[str, int] = {}
        for e in edges:
            if e.source in inner:
                counts[e.target] = counts.get(e.target, 0) + 1
        return [e for e in edges if e.source not in inner], counts

    def _units_of(self, id: str) -> dict[int, int]:
        """The unit that a node is in, by run: those inside of a later unit are known by the
        nodes of the first one, which stand for its own."""
        found = dict(self.units.get(id, ()))
        while id in self.stands:
            id = self.stands[id]
            for run, unit in self.units.get(id, ()):
                found.setdefault(run, unit)
        return found

    def _between_units(self, e: Edge) -> bool:
        ours, theirs = self._units_of(e.source), self._units_of(e.target)
        return any(ours.get(run, unit) != unit for run, unit in theirs.items())

    def _leaves_units(self, e: Edge) -> bool:
        """Whether a value goes from repeats to what is repeated less often."""
        return not self._units_of(e.source).keys() <= self._units_of(e.target).keys()

    def _merged(
        self,
        at: str,
        group: Sequence[Node],
        given: Sequence[Edge],
        left: dict[tuple[str, int], int],
    ) -> Node:
        total = sum(n.saved_bytes for n in group)
        if at in self.position:
            first = group[0]
            freed = sum(n.freed for n in group)
            times = self.times.get(at, 1)
            return replace(
                first, saved_bytes=total, count=len(group), times=times, freed=freed
            )
        cluster = self.clusters[at]
        shown = [n for n in group if self._is_first(n.id)]
        freed = sum(n.freed for n in group)
        saved = None
        if not freed or any(n.saved for n in shown):
            kept: dict[Any, Any] = {}
            for n in shown:
                for s in n.saved or ():
                    key = s.storage or (n.id, s.label)
                    kept.setdefault(key, replace(s, label=f"{n.op}.{s.label}"))
            saved = tuple(kept.values())
        made = {n.id: n for n in shown}
        leaving = [made[id] for id, _ in left]
        return replace(
            shown[0],
            id=at,
            op=cluster.kind,
            kind="module",
            formula="",
            path=cluster.path,
            cluster=cluster.outer,
            attrs={},
            inputs=tuple([_value_of(e) for e in given]),
            needs=tuple([True for _ in given]),
            outputs=tuple([made[id].outputs[i] for id, i in left]),
            names=tuple([n.names[i] for n, (_, i) in zip(leaving, left, strict=True)]),
            saved=saved,
            saved_bytes=total,
            count=len(group),
            times=self.times.get(at, 1),
            freed=freed,
        )

    def _leaf_times(self) -> dict[str, int]:
        """How many leaves each leaf of a first unit stands for."""
        alike: dict[tuple[str, int], set[str]] = {}
        for e in self.graph.edges:
            if e.source not in self.position:
                at = e.target
                while at in self.stands:
                    at = self.stands[at]
                alike.setdefault((at, e.input), set()).add(e.source)
        times: dict[str, int] = {}
        for e in self.graph.edges:
            if e.source not in self.position and self._is_first(e.target):
                several = len(alike[e.target, e.input])
                times[e.source] = max(times.get(e.source, 1), several)
        return times

    def _storages(self, box: dict[str, str]) -> list[Storage]:
        """Those that something drawn holds, by what is drawn."""
        storages = []
        for s in self.graph.storages:
            holders: dict[tuple[str, str], Holder] = {}
            for h in s.holders:
                if self._is_first(h.node):
                    at, label = box[h.node], h.label
                    if at != h.node:
                        label = f"{self.graph.nodes[self.position[h.node]].op}.{label}"
                    holders.setdefault((at, label), Holder(at, label, h.view))
            if holders:
                storages.append(replace(s, holders=tuple(holders.values())))
        return storages


def _value_of(e: Edge) -> Value:
    return Value(e.shape, e.dtype, e.nbytes)
