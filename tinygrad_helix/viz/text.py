"""The graph model as text, 80 columns wide, for a terminal.

A line a node, in the order of the tape: lanes that show which values are alive and where
they go, the node with what it was made from, its shape, and what it keeps.
"""

import sys
import unicodedata
from collections.abc import Sequence

from .graph import Graph, Leaf, Node, shape_text
from .timeline import bytes_text

__all__ = [
    "cut",
    "padded",
    "painted",
    "plain_text",
    "printable",
    "text_drawing",
    "unicode_shown",
]

_MOST_LANES = 10  # more are no help to the eye: then the names alone say what goes where
_KEEPS = 26  # columns for what a node keeps
_ASCII = str.maketrans(
    {"●": "*", "│": "|", "─": "-", "×": "x", "·": "-", "…": "~", "→": ">"}
    | dict.fromkeys("├┤┼╯╰┴┬╮╭", "+")
)


def unicode_shown() -> bool:
    """Whether stdout can show the lines and signs that go beyond ASCII."""
    try:
        "│●▁█…→×".encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def printable(line: str) -> str:
    """A line with a sign in the place of what moves the cursor, turns the direction of
    writing, or is no letter at all."""
    if line.isprintable():
        return line
    return "".join([c if c.isprintable() else "�" for c in line])


def plain_text(line: str, ascii_only: bool) -> str:
    """A line without control characters, and in ASCII if that is all there is."""
    line = printable(line)
    if ascii_only:
        line = line.translate(_ASCII).encode("ascii", "replace").decode()
    return line


def painted(line: str, code: str, colour: bool = True) -> str:
    """A line in one of ANSI's colours."""
    return f"\x1b[{code}m{line}\x1b[0m" if colour and line else line


def _columns(line: str) -> int:
    """How many columns a terminal takes for a line."""
    if line.isascii():
        return len(line)
    return sum(map(_columns_of, line))


def _columns_of(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def cut(line: str, most: int) -> str:
    """A line of at most `most` columns."""
    if _columns(line) <= most:
        return line
    taken = 0
    for i, letter in enumerate(line):
        taken += _columns_of(letter)
        if taken > most - 1:
            return line[:i] + "…"
    return line


def padded(line: str, columns: int, right: bool = False) -> str:
    """A line with blanks behind it (or before it) up to so many columns."""
    blanks = " " * (columns - _columns(line))
    return blanks + line if right else line + blanks


def text_drawing(
    graph: Graph,
    title: str = "",
    *,
    width: int = 80,
    ascii_only: bool = False,
    colour: bool = False,
) -> str:
    """The drawing, lines of at most `width` columns. `colour` adds ANSI's escapes."""

    def plain(line: str) -> str:
        return plain_text(line, ascii_only)

    head = f"{title}: {graph.caption}" if title else graph.caption
    lines = [painted(plain(cut(head, width)), "1", colour)]
    lines += [plain(line) for line in _inputs(graph, width)]
    lanes = _lanes(graph)
    wide = max(map(len, lanes.values()), default=0)
    shapes = max([9, *(len(_shape(n)) for n in graph.nodes)])
    shapes = min(shapes, 20)
    room = width - wide - shapes - _KEEPS - 3
    calls = {c.id: c for c in graph.clusters}
    names = {x.id: x.title for x in graph.leaves}
    first = {s.id: s.holders[0].node for s in graph.storages}
    parameters = {s.id for s in graph.storages if s.parameter}
    sources: dict[str, list[str]] = {}
    for e in graph.edges:
        sources.setdefault(e.target, []).append(names.get(e.source, e.source))
    at: str | None = None
    for node in graph.nodes:
        if node.cluster != at and node.cluster is not None:
            call = calls[node.cluster]
            times = graph.repeats(call.times, call.outer)
            name = f"{call.path}: {call.kind}" if call.path else call.title
            lines.append(painted(plain(cut(f"{name}{times}", width)), "1", colour))
        at = node.cluster
        times = graph.repeats(node.times, node.cluster)
        left = cut(_call(node, sources.get(node.id, ())) + times, room)
        keeps = cut(_keeps(node, first, parameters, _KEEPS), _KEEPS)
        shape = cut(_shape(node), shapes)
        line = (
            f"{lanes[node.id]:<{wide}} {padded(left, room)} {padded(shape, shapes, True)}"
        )
        line = plain(line)
        lines.append(f"{line} {painted(plain(keeps), '33', colour)}" if keeps else line)
    for y in graph.outputs:
        lines.append(plain(cut(f"{y.name} = {y.source}  {shape_text(y.shape)}", width)))
    return "\n".join(lines)


def _inputs(graph: Graph, width: int) -> list[str]:
    """The leaves by kind, in as many lines as it takes."""
    lines = []
    for kind in ("input", "parameter", "constant"):
        line = f"{kind + 's':<11}"
        words = [_leaf(x, width - len(line) - 1) for x in graph.leaves if x.kind == kind]
        for i, word in enumerate(words):
            if i and _columns(f"{line}, {word},") > width:
                lines.append(line + ",")
                line = " " * 11
            elif i:
                line += ", "
            line += word
        if words:
            lines.append(line)
    return lines


def _leaf(x: Leaf, most: int) -> str:
    text = f" {shape_text(x.shape)}" + (f" (× {x.times})" if x.times > 1 else "")
    return cut(x.title, most - len(text)) + text


def _call(node: Node, sources: Sequence[str]) -> str:
    if node.kind == "more":
        return f"… {node.count:,} earlier nodes"
    name = node.op
    if node.kind == "module" and node.path:
        name = f"{node.path}: {node.op}"
    made = ", ".join([n for n in node.names if n]) or node.id
    return f"{made} = {name}({', '.join(sources)})"


def _shape(node: Node) -> str:
    return ", ".join([shape_text(value.shape) for value in node.outputs])


def _keeps(node: Node, first: dict[str, str], parameters: set[str], most: int) -> str:
    """What the node keeps: its own arrays with their bytes, others by who has them too."""
    if node.saved is None:
        return "freed"
    if node.kind != "op":
        return f"keeps {bytes_text(node.saved_bytes)}" if node.saved_bytes else ""
    parts, own = [], 0
    for s in node.saved:
        if s.storage is None or s.storage in parameters:
            continue
        if first.get(s.storage) == node.id:
            parts.append(f"{s.label} {bytes_text(s.nbytes)}")
            own += 1
        else:
            parts.append(f"{s.label} with {first[s.storage]}")
    text = "keeps " + ", ".join(parts) if parts else ""
    if len(text) > most and own:
        shared = f" + {len(parts) - own}" if len(parts) > own else ""
        text = f"keeps {own} arrays{shared}, {bytes_text(node.saved_bytes)}"
    return text


def _lanes(graph: Graph) -> dict[str, str]:
    """What is drawn before each node: a lane for every value that is still to be used.
    Nothing at all where there are too many of them."""
    order = {node.id: i for i, node in enumerate(graph.nodes)}
    above: dict[str, list[str]] = {node.id: [] for node in graph.nodes}
    left = dict.fromkeys(order, 0)  # nodes that are still to use a value
    for e in graph.edges:
        if e.source in order and e.source not in above[e.target]:
            above[e.target].append(e.source)
            left[e.source] += 1
    lanes: list[str | None] = []
    drawn = {}
    for node in graph.nodes:
        sources = [lanes.index(source) for source in above[node.id]]
        for column in sources:
            left[lanes[column] or ""] -= 1
        ending = [column for column in sources if not left[lanes[column] or ""]]
        if ending:
            column = min(ending)
        else:
            column = lanes.index(None) if None in lanes else len(lanes)
        if column == _MOST_LANES:
            return dict.fromkeys(order, "")
        if column == len(lanes):
            lanes.append(None)
        drawn[node.id] = _row(lanes, column, sources, ending)
        for gone in ending:
            lanes[gone] = None
        lanes[column] = node.id if left[node.id] else None
        while lanes and lanes[-1] is None:
            lanes.pop()
    return drawn


def _row(
    lanes: Sequence[str | None], column: int, sources: Sequence[int], ending: Sequence[int]
) -> str:
    low, high = min([column, *sources]), max([column, *sources])
    row = ""
    for i, lane in enumerate(lanes):
        if i == column:
            sign = "●"
        elif i in sources:
            to_left, to_right = i > low, i < high
            goes_on = i not in ending
            sign = {
                (True, True, True): "┼",
                (True, True, False): "┴",
                (True, False, True): "┤",
                (True, False, False): "╯",
                (False, True, True): "├",
                (False, True, False): "╰",
            }[to_left, to_right, goes_on]
        elif lane is not None:
            sign = "│"
        else:
            sign = "─" if low < i < high else " "
        row += sign + ("─" if low <= i < high else " ")
    return row.rstrip()
