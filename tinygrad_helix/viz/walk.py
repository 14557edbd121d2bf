"""The steps of a sweep as text and as plain data."""

import os.path
from collections.abc import Mapping
from typing import Any

from ..tape import Leaf, Node
from ..tensor import Tensor
from ..walk import Cotangent, Step
from .graph import shape_text
from .text import painted, plain_text

__all__ = ["Names", "step_data", "step_text"]

_WIDTH = 79
_BAR = 20


class Names:
    """What the reader calls the leaves and results of a graph."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names: dict[Any, str] = {}
        for name, value in names.items():
            tensors = {name: value}
            if hasattr(value, "named_parameters"):
                tensors = dict(value.named_parameters())
            for known, x in tensors.items():
                if isinstance(x, Tensor) and x.edge[0] is not None:
                    self._names.setdefault(x.edge[0], known)

    def of(self, at: Node | Leaf) -> str:
        """A leaf by its name; a node by its op and its place on the tape."""
        if isinstance(at, Node):
            return f"{at.op.name} n{at.counter}"
        x = at.tensor()
        return self._names.get(at) or ("a leaf" if x is None else f"a leaf {x.shape}")


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


def step_data(step: Step, names: Names) -> dict[str, Any]:
    """A step as numbers, strings, lists and dicts; while it is the current one."""
    return {
        "number": step.number,
        "count": step.count,
        "node": f"n{step.node.counter}",
        "op": step.node.op.name,
        "place": step.node.place,
        "came": [None if c is None else _described(c) for c in step.came],
        "sent": [
            {"input": s.input, "to": names.of(s.to), "output": s.output}
            | {"node": f"n{s.to.counter}" if isinstance(s.to, Node) else None}
            | _described(s.cotangent)
            for s in step.sent
        ],
        "landed": [
            {"leaf": names.of(entry.leaf), "complete": entry.complete}
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
        if s["to"] in landed and not landed[s["to"]]["complete"]:
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
