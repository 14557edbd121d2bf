"""The part of a graph around one node, for a picture that must stay readable."""

from dataclasses import replace

from .graph import Graph

__all__ = ["window"]


def window(graph: Graph, at: str, most: int) -> Graph:
    """The node `at`, its neighbours with what they read and keep, and of kind "again" the
    neighbours of these, by name alone; all of `graph` if it has at most `most` nodes."""
    if len(graph.nodes) <= most:
        return graph
    near: dict[str, set[str]] = {node.id: set() for node in graph.nodes}
    for e in graph.edges:
        if e.source in near:
            near[e.source].add(e.target)
            near[e.target].add(e.source)
    whole = {at, *near[at]}
    named = {other for id in whole for other in near[id]} - whole
    nodes = [
        node
        if node.id in whole
        else replace(
            node, kind="again", cluster=None, names=(node.id,), saved=(), saved_bytes=0
        )
        for node in graph.nodes
        if node.id in whole | named
    ]
    edges = [
        e
        for e in graph.edges
        if (e.target in whole and (e.source in whole | named or e.source not in near))
        or (e.source in whole and e.target in named)
    ]
    storages = []
    for s in graph.storages:
        holders = tuple([h for h in s.holders if h.node in whole])
        if holders:
            storages.append(replace(s, holders=holders))
    used = {e.source for e in edges}
    homes = {node.cluster for node in nodes}
    for c in reversed(graph.clusters):
        if c.id in homes:
            homes.add(c.outer)
    return Graph(
        tuple(nodes),
        tuple([x for x in graph.leaves if x.id in used]),
        tuple([y for y in graph.outputs if y.source in whole]),
        tuple(edges),
        tuple(storages),
        tuple([c for c in graph.clusters if c.id in homes]),
    )
