"""One forward and backward pass of one variant, as the report shows it.

`describe` reads the graph between the two passes; it is handed to `accounting.profile`,
whose events `trace` then lays over the graph. All of it is plain data.
"""

import linecache
import re
from collections.abc import Mapping, Sequence
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


def trace(profile: Profile) -> dict[str, Any]:
    """The graph that `describe` read in `profile`, with the events of the two passes.

    `graph` is the JSON of the graph model (see `viz.graph`) with shorter places, and
    `called` beside `source` where a line of the package was called from another.
    `events` has a list each: [phase (0 forward, 1 backward), id of the node or null, op,
    peak, live, tape], bytes as in `Profile.heights`, and those that the tape holds when the
    event ends. `forward` counts those of the forward pass. `held` maps the id of a storage
    to [born, gone]: the tape holds it after event i if born ≤ i < gone. `peak` names the
    highest event, its bytes, and the storages held during it, the largest first.
    """
    graph = profile.graph.to_json()
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
    return found | {"peak": {"event": top, "held": during(found, top)}}


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
