"""The graph model as DOT, Graphviz' language.

Ids are made of letters and digits alone, and whatever stands in a label is escaped: no
name can break a drawing. The ids and classes come back in the SVG
(`<g id="n12" class="node op">`), so that a page can find a node, and restyle it.
"""

from collections.abc import Container, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from .graph import Cluster, Edge, Graph, Holder, Leaf, Node, Storage, shape_text
from .text import printable
from .timeline import bytes_text

if TYPE_CHECKING:
    import graphviz

__all__ = ["Painter", "digraph", "legend_statements", "sheet", "text"]

# Okabe and Ito's colours and lighter tones of them: fills below black letters. Shapes and
# lines say the same, for a print in grey.
INPUT, PARAMETER, STORAGE, MODULE = "#B8E3D3", "#CFE8F7", "#E69F00", "#F0E442"
LINE, GREY, KEPT, ONLY = "#333333", "#767676", "#E69F00", "#D55E00"


def _attributes(**values: str) -> str:
    return " ".join([f'{name}="{value}"' for name, value in values.items()])


# How each kind looks, and what the legend says of it.
_LOOKS = {
    "input": _attributes(shape="ellipse", fillcolor=INPUT, margin="0.04"),
    "parameter": _attributes(style="filled,rounded", fillcolor=PARAMETER),
    "constant": _attributes(shape="ellipse", style="dashed", margin="0.04"),
    "again": _attributes(style="dotted,rounded"),
    "op": "",
    "module": _attributes(shape="box3d", fillcolor=MODULE, margin="0.18,0.08"),
    "more": _attributes(style="dashed"),
    "freed": _attributes(style="dashed", fontcolor=GREY, color=GREY),
    "swallowed": _attributes(style="filled,diagonals", fillcolor="#D9D9D9"),
    "storage": _attributes(shape="cylinder", fillcolor=STORAGE),
    "only": _attributes(fillcolor="#FBDCC8", color=ONLY, penwidth="3"),
    "output": _attributes(peripheries="2"),
}
_MEANINGS = {
    "input": ["input, needs a gradient"],
    "parameter": ["parameter"],
    "constant": ["constant, needs no gradient"],
    "again": ["an input once more, by name"],
    "op": ["op: a node of the tape"],
    "module": ["call of a module, closed"],
    "freed": ["its saved tensors are gone"],
    "swallowed": ["swallowed by the fusion"],
    "storage": [
        "kept for the backward pass",
        "by whom the thick lines say",
        "(dotted: a part of it)",
    ],
    "only": ["kept by this form alone"],
    "output": ["result"],
}

_HOLDS = _attributes(dir="none", color=KEPT, penwidth="2")
_LOOSE = _attributes(constraint="false")

_ROW = 4  # leaves of one node side by side
# Instead of a long line the name stands there once more: where a leaf has more readers than
# this, and where so many nodes lie between. Long lines cost dot minutes.
_READERS, _FAR = 4, 30

_FONT = {"fontname": "Helvetica", "fontsize": "11"}
_GRAPH = _FONT | {
    "rankdir": "TB",
    "nodesep": "0.25",
    "ranksep": "0.35",
    "newrank": "true",
    "labelloc": "t",
    "labeljust": "l",
}
# Of many boxes dot straightens the lines for minutes unless its steps are counted.
_MANY, _HURRIED = 200, {"nslimit": "1", "nslimit1": "1"}
_NODE = _FONT | {
    "shape": "box",
    "style": "filled",
    "fillcolor": "white",
    "color": LINE,
    "height": "0.3",
    "margin": "0.13,0.04",
}
_EDGE = _FONT | {
    "fontsize": "9",
    "color": LINE,
    "fontcolor": "#444444",
    "arrowsize": "0.6",
}


def sheet(title: str, boxes: int) -> "graphviz.Digraph":
    """An empty drawing with a title, for so many boxes.

    What is drawn on it are statements, put into its `body`: the package's own methods quote
    each attribute of each of them anew, which takes most of the time of a large graph.
    """
    import graphviz

    look = _GRAPH | (_HURRIED if boxes > _MANY else {})
    dot = graphviz.Digraph("graph", graph_attr=look, node_attr=_NODE, edge_attr=_EDGE)
    dot.body.append(f"\tlabel={text(title)} tooltip={text(title)}\n")
    return dot


def digraph(graph: Graph, title: str = "", legend: bool = True) -> "graphviz.Digraph":
    """The drawing of a graph, as a Digraph of the package `graphviz`."""
    caption = f"{title}: {graph.caption}" if title else graph.caption
    dot = sheet(caption, len(graph.nodes))
    painter = Painter(graph)
    dot.body += painter.statements()
    if legend:
        dot.body += legend_statements(painter.used)
    return dot


def text(*lines: str, left: bool = False) -> str:
    """Lines as a quoted label, in the middle or at the left, with everything escaped that
    DOT or an SVG would read."""
    end = "\\l" if left else "\\n"
    whole = ""
    for line in lines:
        line = (
            printable(line).replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"')
        )
        whole += line + end
    return f'"{whole if left else whole[:-2]}"'


def legend_statements(used: Container[str]) -> list[str]:
    """What the kinds of things that are drawn look like."""
    look = _attributes(label="legend", id="legend", color="none", **{"class": "legend"})
    lines = [f"subgraph cluster_legend {{ {look.replace(' ', '; ')}\n"]
    above = ""
    for kind, meaning in _MEANINGS.items():
        if kind in used:
            shape = _LOOKS["storage"] if kind == "only" else ""
            look = f"{shape} {_LOOKS[kind]} fontsize=9"
            lines.append(f"legend_{kind} [label={text(*meaning)} {look}]\n")
            if above:
                lines.append(f"legend_{above} -> legend_{kind} [style=invis]\n")
            above = kind
    return [*lines, "}\n"]


class Painter:
    """Makes the statements of one graph. `prefix` begins all its ids; for a difference view
    `shaded` holds ids of nodes, `only` ids of storages that are marked, and `numbers` says
    what comes before the names of storages."""

    def __init__(
        self,
        graph: Graph,
        prefix: str = "",
        shaded: Container[str] = (),
        only: Container[str] = (),
        numbers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.graph = graph
        self.prefix = prefix
        self.shaded = shaded
        self.only = only
        self.numbers = numbers
        self.home: dict[str, str | None] = {n.id: n.cluster for n in graph.nodes}
        self.outer = {c.id: c.outer for c in graph.clusters}
        self.leaf_of: dict[str, str] = {}  # storage -> the leaf that it is drawn as
        for leaf in graph.leaves:
            if leaf.storage is not None:
                self.leaf_of.setdefault(leaf.storage, leaf.id)
        self.held: dict[str, list[Holder]] = {}
        for storage in graph.storages:
            if storage.id in self.leaf_of:
                self.held.setdefault(self.leaf_of[storage.id], []).extend(storage.holders)
        stored = {leaf.id: leaf.storage for leaf in graph.leaves}
        # (storage, holder) that the line from a leaf to the holder shows already
        self.kept = {(stored.get(e.source), e.target) for e in graph.edges if e.kept}
        self.place = {node.id: i for i, node in enumerate(graph.nodes)}
        self.readers: dict[str, dict[str, None]] = {}
        for e in graph.edges:
            self.readers.setdefault(e.source, {})[e.target] = None
        self.tags = self._tags()
        self.tagged = {source for source, _ in self.tags}
        self.labelled: set[tuple[str, int]] = set()  # values
        self.used: set[str] = set()  # kinds of things, for the legend
        self.boxes: dict[str | None, list[str]] = {None: []}  # statements, by cluster

    def statements(self) -> list[str]:
        """All of them, those of a module's call in a subgraph of its own."""
        for cluster in self.graph.clusters:
            self.boxes[cluster.id] = [self._opening(cluster)]
        for node in self.graph.nodes:
            self._node(node)
        for leaf in self.graph.leaves:
            self._leaf(leaf)
        self._again()
        self._rows()
        for node, storages in self._stacks().items():
            beside = [node]
            for only in (False, True):
                group = [s for s in storages if (s.id in self.only) == only]
                if group:
                    self._stack(node, group, only)
                    beside.append(group[0].id)
            self._beside(beside)
        for cluster in reversed(self.graph.clusters):
            self.boxes[cluster.outer] += [*self.boxes[cluster.id], "}\n"]
        for y in self.graph.outputs:
            what = f"{shape_text(y.shape)}  {bytes_text(y.nbytes)}"
            self._put(None, y.id, ["output"], text(y.name, what))
            self._line(y.source, y.id, "")
        for e in self.graph.edges:
            self._edge(e)
        return self.boxes[None]

    def _around(self, nodes: Sequence[str]) -> str | None:
        """The innermost cluster that holds all of `nodes`."""
        common: list[str] | None = None
        for node in nodes:
            chain = []
            at = self.home[node]
            while at is not None:
                chain.append(at)
                at = self.outer[at]
            common = chain if common is None else [c for c in common if c in chain]
        return common[0] if common else None

    def _opening(self, cluster: Cluster) -> str:
        label = cluster.title + self.graph.repeats(cluster.times, cluster.outer)
        id = self.prefix + cluster.id
        return (
            f'subgraph cluster_{id} {{ label={text(label)}; id="{id}"; class="module"; '
            f'style="rounded"; color="{GREY}"\n'
        )

    def _put(
        self, box: str | None, id: str, kinds: Sequence[str], label: str, look: str = ""
    ) -> None:
        """A node that looks like `kinds`, later ones before earlier ones."""
        self.used.update(kinds)
        looks = " ".join([_LOOKS[kind] for kind in kinds])
        id = self.prefix + id
        self.boxes[box].append(
            f'{id} [label={label} {looks} {look} id="{id}" class="{" ".join(kinds)}"]\n'
        )

    def _line(self, source: str, target: str, look: str) -> None:
        ends = f"{self.prefix}{source} -> {self.prefix}{target}"
        self.boxes[None].append(f"{ends} [{look}]\n")

    def _edge(self, e: Edge) -> None:
        look = f'id="{self.prefix}{e.id}" class="edge{" kept" if e.kept else ""}"'
        if e.source in self.home:
            shape, nbytes = shape_text(e.shape), bytes_text(e.nbytes)
            shape += f" × {e.times}" if e.times > 1 else ""
            look += f" edgetooltip={text(f'{shape} {e.dtype}, {nbytes}')}"
            if (e.source, e.output) not in self.labelled:  # a value's first line says it
                self.labelled.add((e.source, e.output))
                look += f" label={text(f'  {shape}  ', f'  {nbytes}  ')}"
        elif e.kept:
            look += f' color="{KEPT}" penwidth=2'
        self._line(self.tags.get((e.source, e.target), e.source), e.target, look)

    def _node(self, node: Node) -> None:
        kinds = [node.kind]
        lines = [self._title(node)]
        if node.kind == "more":
            lines = [f"… {node.count:,} earlier nodes"]
            lines.append(f"keep {bytes_text(node.saved_bytes)}")
        elif node.kind == "module":
            lines = [f"{node.path}: {lines[0]}" if node.path else lines[0]]
            lines.append(f"{node.count} node{'s' * (node.count > 1)}")
            if node.parameters:
                lines[-1] += f", {node.parameters} parameter{'s' * (node.parameters > 1)}"
            if node.saved is not None:
                lines.append(f"keeps {bytes_text(node.saved_bytes)}")
        if node.saved is None:
            kinds.append("freed")
            lines.append("freed")
        if node.id in self.shaded:
            kinds.append("swallowed")
        tip = f"tooltip={text(f'{node.id}: {node.op} at {node.place}')}"
        self._put(node.cluster, node.id, kinds, text(*lines), tip)

    def _title(self, node: Node) -> str:
        title = node.title + self.graph.repeats(node.times, node.cluster)
        return f"{title} ({node.id})" if node.id in self.tagged else title

    def _leaf(self, leaf: Leaf) -> None:
        readers = [r for r in self.readers[leaf.id] if (leaf.id, r) not in self.tags]
        box = self._around(readers) if leaf.kind == "parameter" else None
        title = self.numbers.get(leaf.storage or "", "") + leaf.title
        title += self.graph.repeats(leaf.times, box)
        what = f"{shape_text(leaf.shape)}  {bytes_text(leaf.nbytes)}"
        self._put(box, leaf.id, [leaf.kind], text(title, what))
        for h in self.held.get(leaf.id, ()):
            if (leaf.storage, h.node) not in self.kept:
                self._hold(leaf.id, self.place[readers[0]], h, "", leaf.title)

    def _tags(self) -> dict[tuple[str, str], str]:
        """(source, reader): the id of a tag, where a line would be too long, or one too
        many at a leaf."""
        tags: dict[tuple[str, str], str] = {}
        for source, readers in self.readers.items():
            start, rest = self.place.get(source), list(readers)
            many = False
            if start is None:
                start, many = self.place[rest[0]], len(rest) > _READERS
                del rest[0]
            for n, reader in enumerate(rest):
                if many or self.place[reader] - start > _FAR:
                    tags[source, reader] = f"{source}_{n}"
        return tags

    def _again(self) -> None:
        """The tags."""
        leaves = {leaf.id: leaf for leaf in self.graph.leaves}
        for (source, reader), tag in self.tags.items():
            box, leaf = self.home[reader], leaves.get(source)
            if leaf is None:
                title = self._title(self.graph.nodes[self.place[source]])
                self._put(box, tag, ["again"], text(title))
            else:
                self._put(box, tag, [leaf.kind, "again"], text(leaf.title))

    def _rows(self) -> None:
        """Much that one node alone reads in rows of four, not in one long line."""
        own: dict[str, list[str]] = {}
        for source, readers in self.readers.items():
            if source not in self.place and len(readers) == 1:
                own.setdefault(next(iter(readers)), []).append(source)
        for (_, reader), tag in self.tags.items():
            own.setdefault(reader, []).append(tag)
        for sources in own.values():
            for one, other in zip(sources, sources[_ROW:], strict=False):
                self._line(one, other, "style=invis")

    def _stacks(self) -> dict[str, list[Storage]]:
        """The storages that are drawn, by their first holder: not those of leaves, nor
        what a closed module alone holds."""
        kinds = {node.id: node.kind for node in self.graph.nodes}
        stacks: dict[str, list[Storage]] = {}
        for s in self.graph.storages:
            nodes = {h.node for h in s.holders}
            hidden = len(nodes) == 1 and kinds[s.holders[0].node] == "module"
            if not (s.parameter or s.id in self.leaf_of or hidden):
                stacks.setdefault(s.holders[0].node, []).append(s)
        return stacks

    def _stack(self, node: str, group: Sequence[Storage], only: bool) -> None:
        at, box = group[0].id, self.home[node]
        kinds = ["storage", "only"] if only else ["storage"]
        lines = [(self._named(s), bytes_text(s.nbytes)) for s in group]
        if len(group) == 1:
            self._put(box, at, kinds, text(*lines[0]))
        else:
            label = text(*map("  ".join, lines), left=True)
            self._put(box, at, kinds, label, "shape=box")
        place = self.place[node]
        self._hold(at, place, group[0].holders[0], "", "")
        for s in group:
            for h in s.holders[1:]:
                which = f"label={text(self._named(s))}" if len(group) > 1 else ""
                self._hold(at, place, h, which, self._named(s))

    def _beside(self, ids: Sequence[str]) -> None:
        """A node and the storages that it is the first to hold, next to one another: in a
        cluster nothing gets between them, of which large graphs cannot afford one each."""
        row = " ".join([f"{self.prefix}{id}" for id in ids])
        opening = "{"
        if len(self.graph.nodes) <= _MANY:
            look = 'label="" peripheries=0 margin=1'
            opening = f"subgraph cluster_{self.prefix}k{ids[0]} {{ graph [{look}]"
        self.boxes[self.home[ids[0]]].append(f"{opening} rank=same {row} }}\n")

    def _named(self, s: Storage) -> str:
        return self.numbers.get(s.id, "") + s.name

    def _hold(self, at: str, place: int, h: Holder, look: str, name: str) -> None:
        """A line from a storage, which is drawn beside node number `place`, to a holder; to
        a tag with its `name` if that is far away."""
        style = "dotted" if h.view else "solid"
        look = f'{_HOLDS} style={style} class="holds" {look}'
        if self.place[h.node] - place > _FAR:
            tag = f"{at}_{h.node}"
            self._put(self.home[h.node], tag, ["storage", "again"], text(name))
            self._line(h.node, tag, look)
        else:
            loose = _LOOSE if name else ""
            self._line(h.node, at, f"{look} {loose}")
