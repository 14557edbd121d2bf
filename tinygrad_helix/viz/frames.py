"""A sweep as numbered pictures for slides: one before it, and one for every step.

Every picture is 16:9 and shows the graph: the node of the step is lit, what the sweep has
done with is grey, a leaf whose gradient is complete has a green border. Of a graph that
would be too small to read, it shows what is around the node of the step. Above it a strip
has a cell for every node of the tape, and a bar shows the bytes that the tape still holds.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import BackendUnavailableError
from ..files import write_file
from .dot import digraph
from .graph import Graph, Storage
from .svg import render
from .text import cut, printable
from .walk import step_text
from .window import window

__all__ = ["Frames"]

_LIT = {"fillcolor": "#FFD9B8", "color": "#D55E00", "penwidth": "4"}
_DONE = {"fillcolor": "#EEEEEE", "color": "#AAAAAA", "fontcolor": "#767676"}
_LANDED = {"color": "#009E73", "penwidth": "4"}
_LIVE, _FREE = "#E69F00", "#EEEEEE"
_BAR = 360  # points
_LIT_CELL, _DONE_CELL, _CELL = "#D55E00", "#BBBBBB", "#FFFFFF"
_STRIP, _LEAST, _NAMED = 720, 4, 34  # points: its length, a cell's, one with a name in it
_WHOLE = 6  # nodes of a graph that is shown as a whole
_WIDE, _HIGH = 960, 540  # points of a slide
_SLIDE = {"rankdir": "LR", "size": "13.333,7.5!", "pad": "0.15", "nodesep": "0.15"}


class Frames:
    """Pictures of the sweep in the files `folder`/walk-000.svg, walk-001.svg, …

    `graph` is that of before the sweep.
    """

    def __init__(self, graph: Graph, title: str, folder: Path, format: str) -> None:
        self.graph = graph
        self.title = title
        self.folder = folder
        self.format = format

    def write(self, steps: Sequence[Mapping[str, Any]]) -> list[str]:
        """Write all pictures of `steps` (see `step_data`), and say what was written: a
        line or two. Where nothing draws pictures, texts take their place."""
        from tqdm.auto import tqdm

        shown = range(len(steps) + 1)
        digits = max(3, len(str(len(steps))))
        files = [self.folder / f"walk-{i:0{digits}}.{self.format}" for i in shown]
        try:
            for i in tqdm(shown, desc="drawing", disable=None, leave=False):
                picture = render(self.source(steps[:i]), self.format)
                write_file(files[i], _slide(picture) if self.format == "svg" else picture)
        except BackendUnavailableError as error:
            files = [file.with_suffix(".txt") for file in files]
            for i in shown:
                write_file(files[i], self.page(steps, i))
            return [f"wrote {files[0]} to {files[-1].name}, as text: {error}"]
        return [f"wrote {files[0]} to {files[-1].name}"]

    def source(self, done: Sequence[Mapping[str, Any]]) -> str:
        """The picture after the steps `done`, in DOT."""
        at = done[-1]["node"] if done else self.graph.nodes[-1].id
        graph = window(self.graph, at, _WHOLE)
        dot = digraph(graph, legend=False)
        drawn = set(re.findall(r"^\t*(\w+) \[", dot.source, re.MULTILINE))
        visited = {step["node"] for step in done}
        for step in done:
            if step["node"] in drawn:
                dot.node(step["node"], **(_LIT if step is done[-1] else _DONE))
        kept: dict[str, list[Storage]] = {}  # a box of several is under its first one's id
        for s in graph.storages:
            kept.setdefault(s.holders[0].node, []).append(s)
        holders = {s.id: [h.node for h in s.holders] for s in self.graph.storages}
        for group in kept.values():
            nodes = {holder for s in group for holder in holders[s.id]}
            if nodes <= visited:
                for s in group:
                    if s.id in drawn:
                        dot.node(s.id, style="dashed", **_DONE)
        complete = {e["leaf"] for step in done for e in step["landed"] if e["complete"]}
        for leaf in graph.leaves:
            if leaf.id in complete:
                dot.node(leaf.id, **_LANDED)
        dot.attr(label=self._heading(done), **_SLIDE)
        return dot.source

    def page(self, steps: Sequence[Mapping[str, Any]], at: int) -> str:
        """The picture after step `at` as text: every node, a mark at the one of the step,
        and what it did."""
        lines = [f"{self.title}\n"]
        for i, step in enumerate(steps, 1):
            mark = ">" if i == at else " " if i > at else "."
            lines.append(f"{mark} {i:>3}  {step['op']} {step['node']}")
        whole = self.graph.saved_bytes
        told = step_text(steps[at - 1], whole) if at else f"{whole:,} B live"
        return "\n".join([*lines, "", told, ""])

    def _heading(self, done: Sequence[Mapping[str, Any]]) -> str:
        """Title and bar as one of DOT's HTML labels."""
        whole = self.graph.saved_bytes
        live = done[-1]["live_bytes"] if done else whole
        words = "before the sweep"
        if done:
            at = done[-1]
            words = f"step {at['number']} of {at['count']}: {at['op']} {at['node']}"
            words += f", frees {at['freed_bytes']:,} B"
        long = round(_BAR * live / whole) if whole else 0
        parts = ((long, _LIVE), (_BAR - long, _FREE))
        cells = "".join(
            [f'<td width="{n}" height="14" bgcolor="{c}"></td>' for n, c in parts if n]
        )
        rows = [
            f'<tr><td align="left">{_html(line)}</td></tr>' for line in (self.title, words)
        ]
        look = f'border="0" cellspacing="0" align="left" fixedsize="true" width="{_BAR}"'
        bar = f'<table cellborder="0" {look} height="14"><tr>{cells}</tr></table>'
        rows.append(f'<tr><td align="left">{bar}</td></tr>')
        rows.append(f'<tr><td align="left">{live:,} of {whole:,} B live</td></tr>')
        rows.append(f'<tr><td align="left">{self._strip(done)}</td></tr>')
        return f'<<table border="0" cellspacing="2">{"".join(rows)}</table>>'

    def _strip(self, done: Sequence[Mapping[str, Any]]) -> str:
        """The tape from its first node to its last, a cell each, or one for several."""
        nodes = self.graph.nodes
        visited = {step["node"] for step in done}
        count = min(len(nodes), _STRIP // _LEAST)
        width = min(_STRIP // count, 2 * _NAMED)
        cells = []
        for i in range(count):
            part = nodes[i * len(nodes) // count : (i + 1) * len(nodes) // count]
            ids = {node.id for node in part}
            colour = _DONE_CELL if ids <= visited else _CELL
            if done and done[-1]["node"] in ids:
                colour = _LIT_CELL
            name = f'<font point-size="7">{_html(cut(part[0].op, 9))}</font>'
            cells.append(
                f'<td width="{width}" height="16" fixedsize="true" bgcolor="{colour}">'
                f"{name if width >= _NAMED else ''}</td>"
            )
        look = 'border="0" cellborder="1" cellspacing="0" align="left" color="#767676"'
        return f"<table {look}><tr>{''.join(cells)}</tr></table>"


def _slide(svg: bytes) -> bytes:
    """An SVG that fits on a slide, with room at its sides to be as large as one."""
    found = re.search(rb'width="(\d+)pt" height="(\d+)pt"\s+viewBox="[^"]*"', svg)
    if found is None:
        return svg
    left = round((_WIDE - int(found[1])) / 2)
    box = f'viewBox="{-left} 0 {_WIDE} {_HIGH}"'
    size = f'width="{_WIDE}pt" height="{_HIGH}pt" {box}'
    return svg[: found.start()] + size.encode() + svg[found.end() :]


def _html(line: str) -> str:
    return printable(line).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
