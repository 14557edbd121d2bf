"""The steps of a sweep as text and as plain data.

Nodes and leaves are called as in the drawing of the graph: by their ids ("n12", "x0"), and
a leaf in words by the reader's name for it.
"""

import os.path
from collections.abc import Mapping
from typing import Any

from ..tape import Node
from ..walk import Cotangent, Sent, Step
from .graph import Leaf, shape_text
from .text import painted, plain_text

__all__ = ["step_data", "step_text"]

_WIDTH = 79
_BAR = 20


def _norm(c: Cotangent) -> float:
    x = c.value.detach()
    return float((x.astype("float64") ** 2).sum().item()) ** 0.5


def _described(c: Cotangent) -> dict[str, Any]:
    return {
        "shape": list(c.shape),
        "dtype": str(c.dtype),
        "nbytes": c.nbytes,
        "norm": _norm(c),
    }


def _end(s: Sent, leaves: Mapping[Any, Leaf]) -> dict[str, Any]:
    """Where a cotangent went: in words, and the id of the node or of the leaf."""
    if isinstance(s.to, Node):
        node = f"n{s.to.counter}"
        return {"to": f"{s.to.op.name} {node}", "node": node, "leaf": None}
    return {"to": leaves[s.to].title, "node": None, "leaf": leaves[s.to].id}


def step_data(step: Step, leaves: Mapping[Any, Leaf]) -> dict[str, Any]:
    """A step as numbers, strings, lists and dicts; while it is the current one. `leaves`
    are those of the graph's drawing, by the tape's own (`Reading.by_key`)."""
    return {
        "number": step.number,
        "count": step.count,
        "node": f"n{step.node.counter}",
        "op": step.node.op.name,
        "place": step.node.place,
        "came": [None if c is None else _described(c) for c in step.came],
        "sent": [
            {"input": s.input, "output": s.output}
            | _end(s, leaves)
            | _described(s.cotangent)
            for s in step.sent
        ],
        "landed": [
            {"leaf": leaves[entry.leaf].id, "name": leaves[entry.leaf].title}
            | {"complete": entry.complete}
            | _described(entry.gradient)
            for entry in step.landed
        ],
        "freed": [{"label": f.label, "nbytes": f.nbytes} for f in step.freed],
        "freed_bytes": step.freed_bytes,
        "live_bytes": step.live_bytes,
        "waiting_bytes": step.waiting_bytes,
    }


def step_text(
    data: Mapping[str, Any], before: int, *, ascii_only: bool = False, colour: bool = False
) -> str:
    """A step as a few lines of at most 79 columns. `before` is what the tape held before
    the sweep: the length of the whole bar."""
    number = f"{data['number']:>{len(str(data['count']))}}"
    title = f"{number}  {data['op']} {data['node']}"
    file, _, line = data["place"].removesuffix(")").rpartition(":")
    place = f"{os.path.basename(file)}:{line}"
    live = f"{data['live_bytes']:,} B live"
    room = _WIDTH - _BAR - 1 - len(live) - len(title)
    place = place if len(place) + 3 <= room else ""
    head = f"{title}  {place}".ljust(len(title) + room)
    indent = " " * (len(number) + 2)
    lines = [f"{head}{live} {bar_text(data['live_bytes'], before, ascii_only)}"]
    lines += [
        f"{indent}came   {'unused: zeros' if c is None else _line(c)}" for c in data["came"]
    ]
    landed = {entry["leaf"]: entry for entry in data["landed"]}
    for s in data["sent"]:
        text = f"{indent}sent   {_line(s)}  to {s['to']}"
        if s["leaf"] in landed and not landed[s["leaf"]]["complete"]:
            text += ", more to come"
        lines.append(text)
    freed = [f"{f['label']} {f['nbytes']:,} B" for f in data["freed"] if f["nbytes"]]
    lines += _wrapped(f"{indent}freed  ", freed or ["nothing"])
    stay = [f["label"] for f in data["freed"] if not f["nbytes"]]
    if stay:  # parameters, numbers, and what another node holds too
        lines += _wrapped(f"{indent}stay   ", stay)
    lines = [plain_text(line.rstrip(), ascii_only) for line in lines]
    return "\n".join([painted(lines[0], "1", colour), *lines[1:]])


def _line(c: Mapping[str, Any]) -> str:
    return f"{shape_text(tuple(c['shape'])):<13} norm {c['norm']:<8.3g}"


def _wrapped(first: str, words: list[str]) -> list[str]:
    lines = [first + words[0]]
    for word in words[1:]:
        if len(lines[-1]) + len(word) + 2 <= _WIDTH:
            lines[-1] += f", {word}"
        else:
            lines[-1] += ","
            lines.append(" " * len(first) + word)
    return lines


def bar_text(nbytes: int, whole: int, ascii_only: bool = False) -> str:
    """A bar of 20 columns for `nbytes` of `whole`."""
    full, rest = ("#", ".") if ascii_only else ("█", "░")
    long = -(-nbytes * _BAR // whole) if whole else 0
    return full * long + rest * (_BAR - long)
