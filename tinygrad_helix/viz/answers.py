"""What a reader of a comparison asks first, answered in words and numbers.

Everything here goes from the JSON of rows and traces to strings.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .trace import NODE, OP, PHASE

__all__ = [
    "Reader",
    "Scene",
    "differences",
    "exact",
    "number",
    "pair",
    "verdict",
    "worst_gradient",
]

# How much more than the reference's own rounding a gradient's error may be before the page
# calls it worse. Sums in another order differ by a factor of two or so.
SAME_ROUNDING = 4.0


def exact(n: int | None) -> str:
    """1234567 as 1,234,567; none as a dash."""
    return "–" if n is None else f"{n:,}"


def number(value: float | None, spec: str = ".1e") -> str:
    """A float as text; none (NaN in a report's JSON) as NaN, and zero as 0."""
    return "NaN" if value is None else format(value, spec) if value else "0"


def signed(value: float, spec: str = ",") -> str:
    """+1,234, −1,234 or 0, with a minus sign as long as the plus."""
    return format(value, f"+{spec}").replace("-", "−") if value else "0"


class Reader:
    """What the trace of one variant says about its nodes and storages."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        graph = found["graph"]
        self.found = found
        self.nodes = {node["id"]: node for node in graph["nodes"]}
        self.leaves = {leaf["id"]: leaf for leaf in graph["leaves"]}
        self.storages = {s["id"]: s for s in graph["storages"]}
        self.sources = {(e["target"], e["input"]): e["source"] for e in graph["edges"]}
        self.saved = {
            (node["id"], s["label"]): s
            for node in graph["nodes"]
            for s in node["saved"] or ()
            if s["storage"]
        }

    def node(self, node: str | None, otherwise: str = "") -> str:
        """`matmul n2`: the op and its number on this tape, as `graph` and `walk` say it."""
        if node is None:
            return otherwise
        return f"{self.nodes[node]['op']} {node}"

    def when(self, event: int) -> str:
        """`backward of matmul n2`"""
        e = self.found["events"][event]
        return f"{'backward' if e[PHASE] else 'forward'} of {self.node(e[NODE], e[OP])}"

    def what(self, storage: str) -> str:
        """What an array is: an input, the result of a node, or made inside one."""
        holder = self.storages[storage]["holders"][0]
        s = self.saved[holder["node"], holder["label"]]
        if s["kind"] == "output":
            return f"the result of {self.node(holder['node'])}"
        if s["kind"] == "intermediate":
            return f"made inside {self.node(holder['node'])}"
        source = self.sources.get((holder["node"], s["index"]))
        if s["kind"] == "input" and source in self.nodes:
            return f"the result of {self.node(source)}"
        if s["kind"] == "input" and source in self.leaves:
            leaf = self.leaves[source]
            return f"the {leaf['kind']} {leaf['name'] or ''}".strip()
        return f"a mask or an index of {self.node(holder['node'])}"

    def why(self, storage: str) -> list[str]:
        """Who holds an array, a phrase each."""
        return [
            f"{self.node(h['node'])} keeps it as {h['label']}"
            for h in self.storages[storage]["holders"]
        ]

    def size(self, storage: str) -> int:
        """Bytes of a storage."""
        return self.storages[storage]["nbytes"]

    def shape(self, storage: str) -> list[int]:
        """The shape that the first holder saved."""
        holder = self.storages[storage]["holders"][0]
        return self.saved[holder["node"], holder["label"]]["shape"]

    def index(self, storage: str) -> int:
        """Its place among the storages that are no parameters: the number of its fill."""
        shown = [s["id"] for s in self.storages.values() if not s["parameter"]]
        return shown.index(storage)

    def peak(self) -> dict[str, Any]:
        """The highest point: when it is, its bytes, and what they are.

        `tape`, `waiting` and `rest` add up to `bytes`: what the tape holds, what else was
        alive before the event (cotangents; in the forward pass values in use), and what the
        event makes itself, less the gradients that it returns. `parts` are what it makes
        and drops again, by line, as (bytes, source, place), from 1 % of the peak on;
        `kept` are the bytes that it sends on as gradients or cotangents.
        """
        at = self.found["peak"]
        held = at["held"]
        tape = sum(map(self.size, held))
        phase, node, op, total, *_ = self.found["events"][at["event"]]
        waiting = min(at["waiting"], max(0, total - tape))
        parts = [(p["nbytes"] - p["kept"], p["source"], p["place"]) for p in at["inside"]]
        return {
            "when": self.when(at["event"]),
            "node": self.node(node, op),
            "backward": bool(phase),
            "bytes": total,
            "tape": tape,
            "waiting": waiting,
            "rest": max(0, total - tape - waiting),
            "kept": sum(p["kept"] for p in at["inside"]),
            "parts": sorted((p for p in parts if 100 * p[0] > total), reverse=True),
            "held": held,
        }

    def mostly(self) -> tuple[str, str]:
        """What most of the peak is, in words, and why that is alive."""
        peak = self.peak()
        saved, made = (
            f"{100 * peak[k] / max(1, peak['bytes']):.0f} %" for k in ("tape", "rest")
        )
        if peak["held"] and peak["rest"] < peak["tape"]:
            first = peak["held"][0]
            size = self.size(first)
            same = sum(self.size(i) == size for i in peak["held"]) - 1
            name = self.storages[first]["name"]
            what = (
                f"{saved} saved arrays, the largest {name}, {size:,} B: {self.what(first)}"
            )
            what += f" (and {same} of the same size)" if same else ""
            if peak["backward"] and 3 * peak["rest"] > peak["bytes"]:
                what += f"; {made} scratch inside the vjp"
            return what, f"{'; '.join(self.why(first))}, until its vjp has run"
        if not peak["backward"]:
            return f"{made} made in the {peak['when']}", "its result, or on the way to it"
        scratch = f"{made} scratch inside the vjp of {peak['node']}"
        if peak["parts"]:
            size, source, place = peak["parts"][0]
            source = source if len(source) <= 32 else f"{source[:31]}…"
            scratch += f", the largest {size:,} B from {place.rpartition('/')[2]}: {source}"
        return scratch, "the vjp works in it, and drops it"

    def frees_most(self) -> tuple[str, int]:
        """The node whose vjp lets the tape drop the most, and those bytes."""
        freed: dict[str, int] = {}
        for s in self.storages.values():
            node = self.found["events"][self.found["held"][s["id"]][1]][NODE]
            if not s["parameter"] and node is not None:
                freed[node] = freed.get(node, 0) + s["nbytes"]
        if not freed:
            return "no node: nothing is saved", 0
        node = max(freed, key=lambda n: freed[n])
        return self.node(node), freed[node]

    def shared(self) -> list[str]:
        """The storages with several holders (parameters aside), the largest first."""
        found = [
            s["id"]
            for s in self.storages.values()
            if len(s["holders"]) > 1 and not s["parameter"]
        ]
        return sorted(found, key=lambda s: -self.size(s))


@dataclass(frozen=True)
class Scene:
    """Rows and traces of one comparison; `flops` has extra FLOPs by variant if known."""

    id: str
    title: str
    reference: str
    rows: Sequence[Mapping[str, Any]]
    traces: Mapping[str, Mapping[str, Any]]
    flops: Mapping[str, int]

    @property
    def readers(self) -> dict[str, Reader]:
        """A Reader by variant."""
        return {name: Reader(found) for name, found in self.traces.items()}

    @property
    def own(self) -> Mapping[str, float | None]:
        """The reference's own errors by input, against its float64 run."""
        return next(r["grads"] for r in self.rows if r["variant"] == self.reference)


# --- gradients


def worst_gradient(row: Mapping[str, Any]) -> tuple[str, float | None] | None:
    """The input whose gradient differs most from the float64 run (or, where there is none,
    from the reference), and by how much."""
    errors = row["grads"] or row["grad_diffs"]
    if not errors:
        return None
    name = max(errors, key=lambda k: math.inf if errors[k] is None else errors[k])
    return name, errors[name]


def verdict(error: float | None, own: float | None) -> tuple[bool, str]:
    """Whether an error is worse than the reference's own rounding, and how to say it."""
    if error is None:
        return True, "not a number"
    if own is None:
        return False, "not known: there is no float64 run"
    if error <= own:
        return False, "not worse"
    if own == 0:
        return True, "worse: the reference is exact here"
    times = error / own
    if times <= SAME_ROUNDING:
        return False, f"of the same size, {times:.1f}×"
    return True, f"worse, {times:.3g}×"


# --- one variant against another


def differences(
    a: Mapping[str, Any], b: Mapping[str, Any], flops: Mapping[str, int]
) -> list[list[str]]:
    """Rows [what, of a, of b, a less b] of two rows; `flops` has the extra ones by variant
    where they are known."""

    def size(what: str, x: int, y: int) -> list[str]:
        part = f" ({signed(100 * (x - y) / y, '.1f')} %)" if y and x != y else ""
        return [what, f"{x:,} B", f"{y:,} B", f"{signed(x - y)} B{part}"]

    lines = [
        size("saved for the backward pass", *(r["saved_bytes"]["counted"] for r in (a, b))),
        size("peak of the step", a["peak_bytes"], b["peak_bytes"]),
    ]
    if a["variant"] in flops and b["variant"] in flops:
        x, y = flops[a["variant"]], flops[b["variant"]]
        what = "FLOPs repeated in the backward pass"
        lines.append([what, f"{x:,}", f"{y:,}", signed(x - y)])
    for what, of in (("forward", "fwd_ms"), ("backward", "bwd_ms")):
        lines.append(_time(what, a[of], b[of]))
    lines.append(_time("whole step", a["step_ms"]["median"], b["step_ms"]["median"]))
    return lines


def _time(what: str, x: float, y: float) -> list[str]:
    more = f"{signed(x - y, '.2f')} ms ({x / y:.2f}×)"
    return [f"{what}, median", f"{x:.2f} ms", f"{y:.2f} ms", more]


def pair(rows: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """The two variants that the page sets against one another at first: the two policies
    that keep the most, or else the last variant and the first."""
    fused = [r["variant"] for r in rows if r["policy"]]
    if len(fused) > 1:
        return fused[1], fused[0]
    return rows[-1]["variant"], rows[0]["variant"]
