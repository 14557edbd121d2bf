"""A graph as one upright SVG: a row a node, in the order of the tape, and lanes for values.

A value runs down its lane from the row of the node (or input) that made it to the last row
that uses it; each use bends off to the user's lane. Under a node stand the arrays that it
keeps, with a swatch and their bytes. Parameters and constants are tags in the rows of the
nodes that use them. The layout needs no other program, and labels cannot overlap.

Groups carry `data-node`, `data-storage`, `data-leaf` and edges `data-from` and `data-to`,
with the ids of the graph model; a page moves through the graph by these. Colours and type
come from the page's style sheet, by class.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from .graph import shape_text
from .markup import escape

__all__ = ["HATCHES", "HUES", "draw_lanes", "filling"]

WIDTH = 380
HUES, HATCHES = 7, 4  # Okabe and Ito's colours but black; kinds of hatching

_ROW, _KEPT, _HEAD = 24, 17, 22  # heights of a node's row, a kept array's, a heading's
_PIECE = 1000  # the height of a piece for paper: a page at the width of half a page
_LANE, _MOST = 14, 140  # width of a lane, and of all lanes together
_LETTER = 7.25  # width of one at the style sheet's 12 px, in a font of equal widths
_RIGHT = WIDTH - 10


def filling(i: int) -> str:
    """The `fill` of storage number i, as the page's patterns are called."""
    return f"url(#fill-{i % HUES}-{i % HATCHES})"


def draw_lanes(graph: Mapping[str, Any], title: str, paper: str = "") -> str:
    """The SVG element of a graph (as `Graph.to_json` has it); `title` says what it is.

    With `paper`, the id of the drawing, pieces of it that fit on a printed page follow, for
    a style sheet to show in its place.
    """
    return _Drawing(graph, paper).svg(title)


def _cut(text: str, letters: int) -> str:
    return text if len(text) <= letters else text[: max(1, letters - 1)] + "…"


class _Drawing:
    def __init__(self, graph: Mapping[str, Any], paper: str = "") -> None:
        self.graph = graph
        self.paper = paper
        self.leaves = {leaf["id"]: leaf for leaf in graph["leaves"]}
        self.storages = {s["id"]: s for s in graph["storages"]}
        shown = [s["id"] for s in graph["storages"] if not s["parameter"]]
        self.fillings = {s: filling(i) for i, s in enumerate(shown)}
        self.into: dict[str, list[Any]] = {}  # edges, by the id of the node they lead to
        for edge in graph["edges"]:
            self.into.setdefault(edge["target"], []).append(edge)
        self.rows = list(self._rows())
        self.lane, self.count = self._lanes()
        self.pitch = min(_LANE, _MOST / max(1, self.count))
        self.left = 8 + self.count * self.pitch + 8  # where words begin

    def _rows(self) -> Iterator[tuple[str, Any]]:
        """("head", cluster), ("leaf", leaf) or ("node", node), from top to bottom."""
        clusters = {c["id"]: c for c in self.graph["clusters"]}
        seen: set[str] = set()
        at = None
        for node in self.graph["nodes"]:
            for edge in self.into.get(node["id"], ()):
                leaf = self.leaves.get(edge["source"])
                if leaf is not None and leaf["kind"] == "input" and leaf["id"] not in seen:
                    seen.add(leaf["id"])
                    yield "leaf", leaf
            if node["cluster"] != at:
                at = node["cluster"]
                yield "head", clusters.get(at)
            yield "node", node

    def _lanes(self) -> tuple[dict[str, int], int]:
        """{id of a row's node or leaf: its lane}, and the number of lanes."""
        last: dict[str, int] = {}
        for i, (kind, item) in enumerate(self.rows):
            if kind == "node":
                last |= {edge["source"]: i for edge in self.into.get(item["id"], ())}
        lane: dict[str, int] = {}
        busy: list[str | None] = []  # who is in each lane
        for i, (kind, item) in enumerate(self.rows):
            if kind == "head":
                continue
            for at, who in enumerate(busy):
                if who is not None and last.get(who, -1) <= i:
                    busy[at] = None
            free = [at for at, who in enumerate(busy) if who is None]
            at = free[0] if free else len(busy)
            if at == len(busy):
                busy.append(None)
            lane[item["id"]] = at
            busy[at] = item["id"] if last.get(item["id"], -1) > i else None
        return lane, len(busy)

    def _x(self, lane: int) -> float:
        return 8 + self.pitch * (lane + 0.5)

    def svg(self, title: str) -> str:
        parts: list[str] = []
        heights: dict[str, float] = {}
        tops: list[float] = []
        y = 6.0
        for kind, item in self.rows:
            tops.append(y)
            if kind == "head":
                parts.append(self._head(item, y))
                y += _HEAD
                continue
            heights[item["id"]] = y + _ROW / 2
            text, tall = self._leaf(item, y) if kind == "leaf" else self._node(item, y)
            parts.append(text)
            y += tall
        edges = "".join(self._edges(heights))
        drawing = f"{edges}{''.join(parts)}"
        pieces = ""
        if self.paper:
            drawing = f'<g id="{self.paper}">{drawing}</g>'
            pieces = "".join(
                f'<svg class="paper" viewBox="0 {a:.1f} {WIDTH} {b - a:.1f}" '
                f'aria-hidden="true"><use href="#{self.paper}"/></svg>'
                for a, b in pairwise([*self._cuts(tops, y), y + 6])
            )
        return (
            f'<svg class="lanes" viewBox="0 0 {WIDTH} {y + 6:.0f}" role="group" '
            f'aria-label="{escape(title)}">'
            f"<title>{escape(title)}</title>{drawing}</svg>{pieces}"
        )

    @staticmethod
    def _cuts(tops: Sequence[float], end: float) -> list[float]:
        """Where the pieces for paper begin, each at the top of a row."""
        cuts = [0.0]
        for top, below in pairwise([*tops, end]):
            if below - cuts[-1] > _PIECE and top > cuts[-1]:
                cuts.append(top)
        return cuts

    def _head(self, cluster: Mapping[str, Any] | None, y: float) -> str:
        if cluster is None:
            title = "—"
        else:
            path, kind = cluster["path"] or cluster["name"], cluster["kind"]
            title = path if path == kind else f"{path}: {kind}"
        letters = int((_RIGHT - self.left) / _LETTER)
        return (
            f'<path class="rule" d="M{self.left:.1f} {y + 5:.1f}H{_RIGHT}"/>'
            f'<text class="head" x="{self.left:.1f}" y="{y + 17:.1f}">'
            f"{escape(_cut(title, letters))}</text>"
        )

    def _leaf(self, leaf: Mapping[str, Any], y: float) -> tuple[str, float]:
        name, shape = leaf["name"] or leaf["kind"], shape_text(leaf["shape"])
        x, middle = self._x(self.lane[leaf["id"]]), y + _ROW / 2
        letters = int((_RIGHT - self.left) / _LETTER) - len(shape) - 2
        return (
            f'<g class="leaf" data-leaf="{leaf["id"]}">'
            f"<title>input {escape(name)}, {shape} {leaf['dtype']}</title>"
            f'<rect class="dot" x="{x - 5:.1f}" y="{middle - 5:.1f}" '
            'width="10" height="10"/>'
            f'<text class="name" x="{self.left:.1f}" y="{middle + 4:.1f}">'
            f"{escape(_cut(name, letters))}</text>"
            f'<text class="num" x="{_RIGHT}" y="{middle + 4:.1f}">{shape}</text></g>',
            _ROW,
        )

    def _node(self, node: Mapping[str, Any], y: float) -> tuple[str, float]:
        shape = shape_text(node["outputs"][0]["shape"])
        kept = [s for s in node["saved"] or () if s["storage"] in self.fillings]
        tall = _ROW + _KEPT * len(kept)
        middle = y + _ROW / 2
        letters = int((_RIGHT - self.left) / _LETTER) - len(shape) - 2
        name = _cut(node["op"], letters)
        what = [f"{node['op']} {node['id']}", f"{shape} {node['outputs'][0]['dtype']}"]
        if kept:
            what.append(f"keeps {', '.join(s['label'] for s in kept)}")
        label = escape(", ".join(what))
        lines = "".join(
            self._kept(node["id"], s, y + _ROW + _KEPT * i) for i, s in enumerate(kept)
        )
        tags = self._tags(
            node, self.left + _LETTER * (len(name) + 1), middle, letters - len(name)
        )
        return (
            f'<g class="node" data-node="{node["id"]}" role="button" tabindex="-1" '
            f'aria-label="{label}"><title>{label}</title>'
            f'<rect class="hit" x="2" y="{y + 1:.1f}" width="{WIDTH - 4}" '
            f'height="{tall - 2:.1f}" rx="4"/>'
            f'<circle class="dot" cx="{self._x(self.lane[node["id"]]):.1f}" '
            f'cy="{middle:.1f}" r="5"/>'
            f'<text class="op" x="{self.left:.1f}" y="{middle + 4:.1f}">{escape(name)}'
            f'</text>{tags}<text class="num" x="{_RIGHT}" y="{middle + 4:.1f}">'
            f"{shape}</text>"
            f"{lines}</g>",
            tall,
        )  # fmt: skip

    def _tags(self, node: Mapping[str, Any], x: float, middle: float, room: int) -> str:
        """The parameters and constants that a node takes in, as far as there is room."""
        found = [
            self.leaves[edge["source"]]
            for edge in self.into.get(node["id"], ())
            if edge["source"] in self.leaves
            and self.leaves[edge["source"]]["kind"] != "input"
        ]
        found = [leaf for leaf in found if leaf["name"] or leaf["kind"] == "parameter"]
        text = ""
        for i, leaf in enumerate(found):
            whole = leaf["name"] or leaf["kind"]
            name = whole.rpartition(".")[2]
            rest = len(found) - i - 1
            if len(name) + 2 + (4 if rest else 0) > room:
                if room > 3:
                    text += f'<text class="more" x="{x:.1f}" y="{middle + 4:.1f}">'
                    text += f"+{rest + 1}</text>"
                break
            wide = _LETTER * (len(name) + 1)
            text += (
                f'<g class="leaf tag" data-leaf="{leaf["id"]}"><title>{leaf["kind"]} '
                f"{escape(whole)}, {shape_text(leaf['shape'])} {leaf['dtype']}</title>"
                f'<rect x="{x:.1f}" y="{middle - 8:.1f}" width="{wide:.1f}" height="16" '
                f'rx="3"/><text x="{x + wide / 2:.1f}" y="{middle + 4:.1f}">'
                f"{escape(name)}</text></g>"
            )
            x += wide + 4
            room -= len(name) + 2
        return text

    def _kept(self, node: str, saved: Mapping[str, Any], y: float) -> str:
        """A line of a node: an array that it keeps; its bytes stand at the first holder."""
        storage = self.storages[saved["storage"]]
        holders = storage["holders"]
        first = (holders[0]["node"], holders[0]["label"]) == (node, saved["label"])
        size = f"{storage['nbytes']:,} B" if first else "shared"
        many = f"{len(holders)} holders" if first and len(holders) > 1 else ""
        label, base = _cut(saved["label"], 14), y + 12
        return (
            f'<g class="kept" data-storage="{saved["storage"]}">'
            f'<rect class="swatch" x="{self.left:.1f}" y="{y + 2:.1f}" width="11" '
            f'height="11" fill="{self.fillings[saved["storage"]]}"/>'
            f'<text class="keep" x="{self.left + 17:.1f}" y="{base:.1f}">'
            f"{escape(label)}</text>"
            f'<text class="many" x="{_RIGHT - 96:.1f}" y="{base:.1f}">{many}</text>'
            f'<text class="num" x="{_RIGHT}" y="{base:.1f}">{size}</text></g>'
        )

    def _edges(self, heights: Mapping[str, float]) -> Iterator[str]:
        for edge in self.graph["edges"]:
            source, target = edge["source"], edge["target"]
            if source not in heights:  # a tag
                continue
            x, y = self._x(self.lane[source]), heights[source]
            to, end = self._x(self.lane[target]), heights[target]
            bend = end - min(14, end - y)
            path = f"M{x:.1f} {y:.1f}V{bend:.1f}"
            if to != x:
                path += f"C{x:.1f} {end - 3:.1f} {to:.1f} {bend:.1f} {to:.1f} {end:.1f}"
            else:
                path += f"V{end:.1f}"
            kept = " saved" if edge["kept"] else ""
            yield (
                f'<path class="edge{kept}" data-from="{source}" data-to="{target}" '
                f'd="{path}"/>'
            )
