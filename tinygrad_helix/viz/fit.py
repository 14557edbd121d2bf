"""As much of a graph as fits: as deep as possible, or the end of it alone."""

from dataclasses import replace
from typing import Any

from .collapse import collapse
from .graph import Cluster, Edge, Graph, Node, Value

__all__ = ["fit", "tail"]


def tail(graph: Graph, most: int) -> Graph:
    """The last `most` nodes, and one of kind "more" that stands for all before them."""
    left_out = graph.nodes[: max(0, len(graph.nodes) - most)]
    if not left_out:
        return graph
    gone = {n.id for n in left_out}
    last = left_out[-1]
    edges: dict[Any, Edge] = {}
    ports: dict[tuple[str, int], int] = {}
    values: list[Value] = []
    for e in graph.edges:
        if e.target in gone:
            continue
        if e.source in gone:
            if (e.source, e.output) not in ports:
                ports[e.source, e.output] = len(ports)
                values.append(Value(e.shape, e.dtype, e.nbytes))
            e = replace(e, source="more", output=ports[e.source, e.output])
        edges[e.id] = e
    outputs = []
    for y in graph.outputs:
        if y.source in gone:
            if (y.source, y.output) not in ports:
                ports[y.source, y.output] = len(ports)
                values.append(Value(y.shape, y.dtype, y.nbytes))
            y = replace(y, source="more", output=ports[y.source, y.output])
        outputs.append(y)
    more = Node(
        id="more",
        counter=last.counter,
        op="more",
        kind="more",
        formula="",
        place="",
        source="",
        path="",
        cluster=None,
        attrs={},
        inputs=(),
        outputs=tuple(values),
        names=(None,) * len(values),
        needs=(),
        saved=(),
        saved_bytes=sum(n.saved_bytes for n in left_out),
        count=sum(n.count for n in left_out),
        freed=sum(n.freed for n in left_out),
    )
    nodes = (more, *graph.nodes[len(left_out) :])
    shown = {n.cluster for n in nodes}
    for c in reversed(graph.clusters):
        if c.id in shown:
            shown.add(c.outer)
    storages = []
    for s in graph.storages:
        holders = [replace(h, node="more") if h.node in gone else h for h in s.holders]
        if any(h.node != "more" for h in holders):
            storages.append(replace(s, holders=tuple(dict.fromkeys(holders))))
    used = {e.source for e in edges.values()}
    return Graph(
        nodes,
        tuple([x for x in graph.leaves if x.id in used]),
        tuple(outputs),
        tuple(edges.values()),
        tuple(storages),
        tuple([c for c in graph.clusters if c.id in shown]),
    )


def fit(graph: Graph, most: int) -> Graph:
    """The graph itself if it has at most `most` nodes; else as much of it as fits: as deep
    as possible, and the end of it if even closed modules are too many."""
    if len(graph.nodes) <= most:
        return graph
    depth = max([_depth(graph, c) for c in graph.clusters], default=0) + 1
    smaller = graph
    while depth >= 0:
        smaller = collapse(graph, depth)
        if len(smaller.nodes) <= most:
            return smaller
        depth -= 1
    return tail(smaller, most)


def _depth(graph: Graph, cluster: Cluster) -> int:
    return cluster.path.count(".") + (cluster.outer is not None)
