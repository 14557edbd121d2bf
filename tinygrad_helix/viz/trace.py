"""One forward and backward pass of one variant, as the report shows it.

`describe` reads the graph between the two passes; it is handed to `accounting.profile`,
whose events `trace` then lays over the graph. All of it is plain data.
"""

import linecache
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..accounting import Profile
from ..tensor import Tensor
from .graph import Graph
from .reader import read

__all__ = ["LIVE", "NODE", "OP", "PEAK", "PHASE", "TAPE", "describe", "during", "trace"]

_PACKAGE = Path(__file__).parents[1]

# An event of a trace is a list, for there may be thousands.
PHASE, NODE, OP, PEAK, LIVE, TAPE = range(6)


def describe(
    outputs: Sequence[Tensor], inputs: Mapping[str, Any], named: Mapping[str, Any] = {}
) -> Graph:
    """The graph below `outputs`; `inputs` and `named` (a module, say) name its leaves."""
    return read([y for y in outputs if y.node is not None], {**named, **inputs})[0]


def trace(
    profile: Profile, inside: Callable[[int], list[dict[str, Any]]] | None = None
) -> dict[str, Any]:
    """The graph that `describe` read in `profile`, with the events of the two passes.

    `graph` is the JSON of the graph model (see `viz.graph`) with nodes numbered from n0
    on, shorter places, and `called` beside `source` where a line of the package was called
    from another.
    `events` has a list each: [phase (0 forward, 1 backward), id of the node or null, op,
    peak, live, tape], bytes as in `Profile.heights`, and those that the tape holds when the
    event ends. `forward` counts those of the forward pass. `held` maps the id of a storage
    to [born, gone]: the tape holds it after event i if born ≤ i < gone. `peak` names the
    highest event and the storages held during it, the largest first; `waiting`, the bytes
    that were alive before it and are on no tape; and `inside`, what `inside(n)` says if it
    is the n-th of the backward pass (see `scratch`).
    """
    graph = _renumbered(profile.graph.to_json())
    for node in graph["nodes"]:
        node |= _places(node["place"])
    ids = {node["counter"]: node["id"] for node in graph["nodes"]}
    events = [
        [
            int(e.phase == "backward"),
            ids.get(e.node),
            e.op,
            *profile.heights[i],
            sum(e.bands.values()),
        ]
        for i, e in enumerate(profile.events)
    ]
    forward = sum(e[PHASE] == 0 for e in events)
    made = {e[NODE]: i for i, e in enumerate(events) if not e[PHASE]}
    swept = {e[NODE]: i for i, e in enumerate(events) if e[PHASE]}
    held = {}
    for s in graph["storages"]:
        holders = [holder["node"] for holder in s["holders"]]
        # A node that no sweep reaches goes when the outputs do, before the first vjp.
        gone = max(swept.get(node, forward) for node in holders)
        held[s["id"]] = [made.get(holders[0], 0), gone]
    top = max(range(len(events)), key=lambda i: events[i][PEAK])
    found = {
        "graph": graph,
        "events": events,
        "forward": forward,
        "held": held,
    }
    if top == forward:  # the cotangent that the sweep starts from
        (root,) = [n for n in graph["nodes"] if n["id"] == events[top][NODE]]
        waiting = sum(y["nbytes"] for y in root["outputs"])
    else:
        waiting = max(0, events[top - 1][LIVE] - events[top - 1][TAPE]) if top else 0
    made = inside(top - forward) if inside is not None and top >= forward else []
    for part in made:
        part |= _places(part["place"])
    peak = {"event": top, "held": during(found, top), "waiting": waiting, "inside": made}
    return found | {"peak": peak}


def during(found: Mapping[str, Any], i: int) -> list[str]:
    """The storages that the tape holds during event i of a trace, the largest first.

    What a node has saved is there until its vjp has run.
    """
    last = i - 1 if i >= found["forward"] else i
    storages = [
        s
        for s in found["graph"]["storages"]
        if not s["parameter"] and found["held"][s["id"]][0] <= last
        and last < found["held"][s["id"]][1]
    ]  # fmt: skip
    return [s["id"] for s in sorted(storages, key=lambda s: -s["nbytes"])]


def _renumbered(graph: dict[str, Any]) -> dict[str, Any]:
    """The graph with nodes called n0, n1, … by their distance on the tape from the first,
    so that all variants begin alike."""
    first = min((node["counter"] for node in graph["nodes"]), default=0)
    ids = {node["id"]: f"n{node['counter'] - first}" for node in graph["nodes"]}

    def named(item: dict[str, Any], *keys: str) -> dict[str, Any]:
        return item | {key: ids.get(item[key], item[key]) for key in keys}

    holders = [[named(h, "node") for h in s["holders"]] for s in graph["storages"]]
    return graph | {
        "nodes": [named(node, "id") for node in graph["nodes"]],
        "edges": [named(edge, "source", "target") for edge in graph["edges"]],
        "outputs": [named(y, "source") for y in graph["outputs"]],
        "storages": [
            s | {"holders": of} for s, of in zip(graph["storages"], holders, strict=True)
        ],
    }


def _places(place: str) -> dict[str, str]:
    """`place` with shorter paths; and if it has two of them, the outer line's text."""
    found = re.fullmatch(r"(.+):(\d+) \(in (.+):(\d+)\)", place)
    if found is not None:
        file, line, inner, inner_line = found.groups()
        called = linecache.getline(file, int(line)).strip()
        outer = f"{_short(file)}:{line}"
        return {"place": f"{_short(inner)}:{inner_line}", "caller": outer, "called": called}
    file, _, line = place.rpartition(":")
    return {"place": f"{_short(file)}:{line}"}


def _short(file: str) -> str:
    """A path from the package or the current folder on; of files elsewhere the last folder
    and the name alone, for a report is passed on."""
    path = Path(file)
    for root in (_PACKAGE.parent, Path.cwd()):
        if path.is_relative_to(root):
            return path.relative_to(root).as_posix()
    parts = path.parts
    return "/".join(("…", *parts[-2:])) if len(parts) > 2 else file
