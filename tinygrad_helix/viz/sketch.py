"""Small pictures for teaching: boxes, arrows, words and bars, as one SVG text.

`x` goes right and `y` down, in pixels. The same calls give the same bytes, so a picture
can be committed and compared. Nothing but the standard library is needed.
"""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from ..files import write_file

__all__ = [
    "AMBER",
    "BLACK",
    "BLUE",
    "GREEN",
    "GREY",
    "ORANGE",
    "SKY",
    "WHITE",
    "Sketch",
    "bars",
]

# From Okabe and Ito's colours, told apart with any colour vision. In grey, AMBER, SKY and
# WHITE go from mid to light.
BLACK, GREY, WHITE = "#000000", "#595959", "#ffffff"
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#007A59"  # lines and words
AMBER, SKY = (
    "#E69F00",
    "#CFE8F7",
)  # fills, dark enough beside WHITE, light enough below words

_LINE = 1.35  # from one line of words to the next, in sizes of the type


class Sketch:
    """A white sheet of `width` × `height` pixels; `title` is what a screen reader says.

    In a notebook it shows itself.

    >>> from tinygrad_helix.viz.sketch import Sketch
    >>> sheet = Sketch(200, 60, "a and b").box(40, 30, "a").box(160, 30, "b")
    >>> sheet.join("a", "b").save("ab.svg")  # doctest: +SKIP
    """

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width = width
        self.height = height
        self.title = title
        self._parts: list[str] = []
        self._boxes: dict[str, tuple[float, float, float, float]] = {}

    def text(
        self,
        x: float,
        y: float,
        words: object,
        *,
        size: float = 14,
        colour: str = BLACK,
        anchor: str = "middle",
        bold: bool = False,
    ) -> "Sketch":
        """Words with their middle at height y, at x their middle, "start" or "end"."""
        lines = str(words).split("\n")
        top = y - (len(lines) - 1) * size * _LINE / 2 + size * 0.35
        weight = ' font-weight="bold"' if bold else ""
        for i, line in enumerate(lines):
            self._parts.append(
                f'<text x="{x:.1f}" y="{top + i * size * _LINE:.1f}" font-size="{size}" '
                f'fill="{colour}" text-anchor="{anchor}"{weight}>{escape(line)}</text>'
            )
        return self

    def box(
        self,
        x: float,
        y: float,
        words: str,
        *,
        width: float | None = None,
        height: float | None = None,
        size: float = 14,
        fill: str = WHITE,
        colour: str = BLACK,
        dashed: bool = False,
        round: bool = True,
    ) -> "Sketch":
        """A box around words, with its middle at (x, y). `join` knows it by its words."""
        lines = words.split("\n")
        if width is None:
            width = max(map(len, lines)) * size * 0.62 + 18
        if height is None:
            height = len(lines) * size * _LINE + 12
        self._boxes[words] = (x, y, width / 2, height / 2)
        dash = ' stroke-dasharray="5 3"' if dashed else ""
        self._parts.append(
            f'<rect x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" width="{width:.1f}" '
            f'height="{height:.1f}" rx="{5 if round else 0}" fill="{fill}" '
            f'stroke="{colour}" stroke-width="1.3"{dash}/>'
        )
        ink = colour if fill == WHITE else BLACK
        return self.text(x, y, words, size=size, colour=ink)

    def line(
        self,
        points: Sequence[tuple[float, float]],
        *,
        colour: str = BLACK,
        dashed: bool = False,
        width: float = 1.5,
        arrow: bool = False,
    ) -> "Sketch":
        """A line through points."""
        path = "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        dash = ' stroke-dasharray="5 3"' if dashed else ""
        head = f' marker-end="url(#head{colour[1:]})"' if arrow else ""
        self._parts.append(
            f'<path d="{path}" fill="none" stroke="{colour}" '
            f'stroke-width="{width}"{dash}{head}/>'
        )
        return self

    def join(
        self, first: str, then: str, *, colour: str = GREY, dashed: bool = False
    ) -> "Sketch":
        """An arrow from one box to another, from edge to edge, named by their words."""
        ends = []
        for here, there in ((first, then), (then, first)):
            x, y, w, h = self._boxes[here]
            dx, dy = self._boxes[there][0] - x, self._boxes[there][1] - y
            part = min(s / abs(d) for s, d in ((w + 3, dx), (h + 3, dy)) if d)
            ends.append((x + dx * part, y + dy * part))
        return self.line(ends, colour=colour, dashed=dashed, arrow=True)

    def dot(self, x: float, y: float, colour: str = BLACK, radius: float = 4) -> "Sketch":
        """A filled circle."""
        self._parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}"/>'
        )
        return self

    @property
    def svg(self) -> str:
        """The picture as one SVG text."""
        heads = "".join(
            f'<marker id="head{c[1:]}" viewBox="0 0 10 10" refX="9" refY="5" '
            f'markerWidth="7" markerHeight="7" orient="auto-start-reverse">'
            f'<path d="M0 0 L10 5 L0 10 z" fill="{c}"/></marker>'
            for c in (BLACK, BLUE, ORANGE, GREEN, GREY)
            if f"#head{c[1:]})" in "".join(self._parts)
        )
        body = "\n".join(self._parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" '
            f'height="{self.height}" viewBox="0 0 {self.width} {self.height}" role="img" '
            f'font-family="Helvetica, Arial, sans-serif">\n'
            f"<title>{escape(self.title)}</title>\n<defs>{heads}</defs>\n"
            f'<rect width="100%" height="100%" fill="{WHITE}"/>\n{body}\n</svg>\n'
        )

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | Path) -> "Sketch":
        """Write the SVG file, and the folder for it where there is none yet."""
        write_file(path, self.svg, make_folder=True)
        return self


def bars(
    title: str,
    rows: Mapping[str, float],
    unit: str = "",
    *,
    notes: Mapping[str, str] | None = None,
    marked: Sequence[str] = (),
    width: float = 640,
) -> Sketch:
    """A bar a row, its name before it, its number and a note behind it; those `marked` are
    AMBER, the others SKY."""
    notes = notes or {}
    left = max(map(len, rows)) * 8.2 + 16
    tails = {
        name: ", ".join(filter(None, [f"{n:,.12g}{unit}", notes.get(name)]))
        for name, n in rows.items()
    }
    scale = (width - left - max(map(len, tails.values())) * 7.2 - 20) / max(rows.values())
    sheet = Sketch(width, 26 * len(rows) + 48, title)
    sheet.text(12, 20, title, anchor="start", bold=True)
    for i, (name, n) in enumerate(rows.items()):
        y = 52 + 26 * i
        fill = AMBER if name in marked else SKY
        sheet.text(left - 8, y, name, anchor="end", size=13)
        sheet.box(
            left + n * scale / 2, y, "", width=n * scale, height=17, fill=fill, round=False
        )
        sheet.text(left + n * scale + 7, y, tails[name], anchor="start", size=13)
    return sheet
