"""A sweep as numbered pictures for slides: one before it, and one for every step.

Every picture is the drawing of the graph in the same place: the node of the step is lit,
what the sweep has done with is grey, a leaf whose gradient is complete has a green border,
and a bar above shows the bytes that the tape still holds.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import BackendUnavailableError, HelixError
from .dot import digraph
from .drawing import draw
from .graph import Storage
from .svg import render
from .walk import step_text

__all__ = ["Frames"]

_LIT = {"fillcolor": "#FFD9B8", "color": "#D55E00", "penwidth": "4"}
_DONE = {"fillcolor": "#EEEEEE", "color": "#AAAAAA", "fontcolor": "#767676"}
_LANDED = {"color": "#009E73", "penwidth": "4"}
_LIVE, _FREE = "#E69F00", "#EEEEEE"
_BAR = 360  # points


class Frames:
    """Pictures of the sweep from `y` in the files `folder`/walk-000.svg, walk-001.svg, …

    It must be made before the sweep; `names` are the reader's own, as in `draw`.
    """

    def __init__(
        self, y: Any, names: Mapping[str, Any], title: str, folder: Path, format: str
    ) -> None:
        self.graph = draw(y, names).graph
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
                _put(files[i], render(self.source(steps[:i]), self.format))
        except BackendUnavailableError as error:
            files = [file.with_suffix(".txt") for file in files]
            for i in shown:
                _put(files[i], self.page(steps, i).encode("utf-8"))
            return [f"wrote {files[0]} to {files[-1].name}, as text: {error}"]
        return [f"wrote {files[0]} to {files[-1].name}"]

    def source(self, done: Sequence[Mapping[str, Any]]) -> str:
        """The picture after the steps `done`, in DOT."""
        dot = digraph(self.graph, legend=False)
        drawn = set(re.findall(r"^\t*(\w+) \[", dot.source, re.MULTILINE))
        visited = {step["node"] for step in done}
        for step in done:
            dot.node(step["node"], **(_LIT if step is done[-1] else _DONE))
        kept: dict[str, list[Storage]] = {}  # a box of several is under its first one's id
        for s in self.graph.storages:
            kept.setdefault(s.holders[0].node, []).append(s)
        for group in kept.values():
            nodes = {holder.node for s in group for holder in s.holders}
            if nodes <= visited:
                for s in group:
                    if s.id in drawn:
                        dot.node(s.id, style="dashed", **_DONE)
        complete = {e["leaf"] for step in done for e in step["landed"] if e["complete"]}
        for leaf in self.graph.leaves:
            if leaf.name in complete:
                dot.node(leaf.id, **_LANDED)
        dot.attr(label=self._heading(done))
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
        look = f'border="0" cellspacing="0" fixedsize="true" width="{_BAR}" height="14"'
        bar = f'<table cellborder="0" {look}><tr>{cells}</tr></table>'
        rows.append(f'<tr><td align="left">{bar}</td></tr>')
        rows.append(f'<tr><td align="left">{live:,} of {whole:,} B live</td></tr>')
        return f'<<table border="0" cellspacing="2">{"".join(rows)}</table>>'


def _html(line: str) -> str:
    clean = "".join([c if c.isprintable() else "�" for c in line])
    return clean.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _put(file: Path, data: bytes) -> None:
    try:
        file.write_bytes(data)
    except OSError as error:
        raise HelixError(
            f"{str(file)!r} cannot be written ({error.strerror}). Choose a folder that you "
            "may write to."
        ) from None
