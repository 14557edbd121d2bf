"""Timelines drawn by matplotlib.

No legend: a curve is named beside its peak, a band at the end of the forward pass. Colours
are Okabe and Ito's, told apart with any colour vision; markers, dashes and hatches say the
same in a print in grey.
"""

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BackendUnavailableError
from .timeline import Curve, bytes_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["figure", "inline_svg", "write"]

_COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7")
_DASHES = ("-", (0, (5, 2)), (0, (1, 1)), (0, (6, 2, 1, 2)), (0, (3, 1)))
_MARKERS = "os^DvPX*"
# Tones of these that black letters are read on.
_TINTS = ("#F2C879", "#A6D6F3", "#7FCDB5", "#F6EFA0", "#8DBDDD", "#EBA57A", "#E3B7D0")
_HATCHES = ("", "////", "....", "\\\\\\\\", "--")
_GREY, _LIGHT, _INK = "#888888", "#E4E4E4", "#222222"

_SIZE = 8.0  # of the letters in bands, in points
_CURVES, _PANEL = 5.4, 3.7  # heights in inches, with all that is around them


def figure(curves: Mapping[str, Curve], title: str, bands: bool) -> "Figure":
    """The curves on one axis (if there are several, or no bands), and the panels."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise BackendUnavailableError(
            "a picture of a timeline is drawn by matplotlib, which is not installed: "
            'python -m pip install "tinygrad_helix[viz]". (As text: print it.)'
        ) from None

    top = max(max(c.ys) for c in curves.values()) or 1
    together = len(curves) > 1 or not bands
    across = min(len(curves), 2)
    down = -(-len(curves) // across) if bands else 0
    high = _CURVES * together + _PANEL * down + (0.3 if title else 0)
    sheet = Figure(figsize=(11, high))
    FigureCanvasAgg(sheet)
    if title:
        place = {"x": 0.08, "y": 1 - 0.12 / high, "ha": "left", "va": "top"}
        sheet.suptitle(title, fontsize=11, **place)
    bottom = _PANEL * down
    if together:
        # The names stand at its right.
        axes = sheet.add_axes((0.08, (bottom + 0.4) / high, 0.53, (_CURVES - 0.6) / high))
        _curves(axes, curves, top)
    names = list(dict.fromkeys(name for c in curves.values() for name in c.bands))
    for i, (name, curve) in enumerate(curves.items() if bands else ()):
        if i % across == 0:
            bottom -= _PANEL
        left, wide = 0.08 + (i % across) * 0.49, 0.9 if across == 1 else 0.41
        axes = sheet.add_axes((left, (bottom + 0.4) / high, wide, (_PANEL - 0.95) / high))
        _panel(axes, name, curve, top, names)
    return sheet


def _context() -> Any:
    from matplotlib import rc_context

    return rc_context({"svg.hashsalt": "tinygrad_helix", "hatch.linewidth": 0.5})


def write(sheet: "Figure", path: Path) -> None:
    """Write a figure as .png, .svg or .pdf; the same figure gives the same file."""
    made = {".png": "Software", ".svg": "Date", ".pdf": "CreationDate"}[path.suffix]
    with _context():
        sheet.savefig(path, dpi=150, metadata={made: None})


def inline_svg(sheet: "Figure") -> str:
    """A figure as an SVG element that fits the width it is given."""
    buffer = io.StringIO()
    with _context():
        sheet.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    return re.sub(r' height="[^"]*"| width="[^"]*"', "", svg, count=2)


def _frame(axes: Any, top: float, forward: str, backward: str) -> None:
    axes.axvline(1, color=_GREY, linewidth=0.8)
    axes.set_xlim(0, 2)
    axes.set_ylim(0, top)
    axes.set_xticks([0.5, 1.5], [forward, backward])
    axes.tick_params(axis="x", length=0)
    axes.yaxis.set_major_formatter(lambda value, _: bytes_text(value))
    axes.spines[["top", "right"]].set_visible(False)


def _curves(axes: Any, curves: Mapping[str, Curve], top: float) -> None:
    """A line for each variant, named at the right; its highest point is marked."""
    ends = _spread([c.ys[c.at] for c in curves.values()], top * 0.085, top * 0.04)
    high = max(top, *ends) * 1.05
    _frame(axes, high, "forward pass, op by op", "backward pass, node by node")
    axes.set_ylabel("live bytes, parameters and gradients aside")
    for i, (name, c) in enumerate(curves.items()):
        colour, dash = _COLOURS[i % len(_COLOURS)], _DASHES[i % len(_DASHES)]
        mark = {"marker": _MARKERS[i % len(_MARKERS)], "color": colour, "markersize": 6}
        x, y, end = c.xs[c.at], c.ys[c.at], ends[i]
        axes.plot(c.xs, c.ys, linestyle=dash, color=colour, linewidth=1.3)
        axes.plot([x], [y], mec="white", mew=0.5, **mark)
        leader = {"color": colour, "linewidth": 0.5, "alpha": 0.7, "clip_on": False}
        axes.plot([x, 2.02, 2.06], [y, end, end], **leader)
        axes.plot([2.06], [end], clip_on=False, **mark)
        words = f"{name}: {c.summary}"
        axes.text(2.1, end, words, color=_INK, fontsize=9, va="center", linespacing=1.1)


def _spread(wanted: Sequence[float], gap: float, least: float) -> list[float]:
    """Positions at least `gap` apart and not below `least`, in the order of the wanted
    ones and as near to them as can be (Σ of squares: pool adjacent violators)."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    pools: list[list[float]] = []  # what is left when the gaps are taken out
    for n, i in enumerate(order):
        pools.append([wanted[i] - n * gap])
        while len(pools) > 1 and _mean(pools[-2]) > _mean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    placed = list(wanted)
    level = [max(least, _mean(pool)) for pool in pools for _ in pool]
    for n, i in enumerate(order):
        placed[i] = level[n] + n * gap
    return placed


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _panel(axes: Any, name: str, curve: Curve, top: float, names: Sequence[str]) -> None:
    """One variant: a band for each `op.label`, and above them all else that is alive.

    At the end of the forward pass every band is there, so the names stand in that column.
    """
    _frame(axes, top * 1.06, "forward", "backward")
    axes.set_title(f"{name}: {curve.summary}", loc="left", fontsize=9, color=_INK)
    points = axes.get_window_extent().height * 72 / axes.figure.dpi
    thick = (_SIZE + 3) * top * 1.06 / points  # the height of a name, in bytes
    axes.fill_between(curve.xs, curve.ys, color=_LIGHT, linewidth=0)
    bands = _stacked(curve, thick)
    bottoms = [0] * len(curve.times)
    middles = []
    for label, heights in bands.items():
        tops = [a + b for a, b in zip(bottoms, heights, strict=True)]
        number = names.index(label) if label in names else len(names)
        axes.fill_between(
            curve.times,
            bottoms,
            tops,
            facecolor=_TINTS[number % len(_TINTS)] if label in names else "#CCCCCC",
            hatch=_HATCHES[number % len(_HATCHES)] if label in names else "xx",
            edgecolor="#666666",
            linewidth=0.3,
        )
        middles.append((bottoms[curve.end] + tops[curve.end]) / 2)
        bottoms = tops
    patch = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85}
    look: dict[str, Any] = {"ha": "center", "va": "center", "bbox": patch}
    heights_of_names = _spread(middles, thick, thick / 2)
    for (label, heights), y in zip(bands.items(), heights_of_names, strict=True):
        words = f"{label}  {bytes_text(heights[curve.end])}"
        axes.text(1, y, words, fontsize=_SIZE, **look)
    axes.plot(curve.xs, curve.ys, color="black", linewidth=1)
    axes.plot([curve.xs[curve.at]], [curve.ys[curve.at]], "o", color="black", markersize=5)


def _stacked(curve: Curve, thick: float) -> dict[str, list[int]]:
    """The bands from the bottom up; those too thin for a name at the end of the forward
    pass are put together, at the bottom."""
    thin = {name: h for name, h in curve.bands.items() if h[curve.end] < thick}
    if len(thin) < 2:
        return thin | curve.bands
    rest = {name: h for name, h in curve.bands.items() if name not in thin}
    ops = {name.partition(".")[0] for name in thin}
    label = f"{len(thin)} smaller"
    if len(ops) == 1:  # the saved tensors of a fused node
        label = f"{ops.pop()}: {' '.join([name.partition('.')[2] for name in thin])}"
    return {label: [*map(sum, zip(*thin.values(), strict=True))]} | rest
