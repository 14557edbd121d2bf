"""Live memory over the events of one step, all variants on one axis.

An event is an op (forward) or a node's vjp (backward). Variants have different numbers of
them, so each phase is stretched to the same length: 0 to 1 is the forward pass, 1 to 2 the
backward pass. Parameters and leaf gradients are left out, as in `peak_bytes`.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..memory import Event

__all__ = ["draw_timeline", "text_timeline"]

# Okabe and Ito's eight colours, told apart with any colour vision; black comes first.
_COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7")
_DASHES = ("-", "--", "-.", ":")


def _curve(events: Sequence[Event]) -> tuple[list[float], list[float], int]:
    """x and bytes of a curve that rises to each event's peak and falls to what stays,
    and the position of the highest point."""
    forward = sum(e.phase == "forward" for e in events)
    backward = len(events) - forward
    xs, ys = [0.0], [0.0]
    for i, e in enumerate(events):
        start, of, count = (0, i, forward) if i < forward else (1, i - forward, backward)
        xs += [start + (of + 0.5) / count, start + (of + 1) / count]
        ys += [max(0, e.peak - e.gradients), max(0, e.live - e.gradients)]
    return xs, ys, max(range(len(ys)), key=lambda i: ys[i])


def _spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Positions near the wanted ones, at least `gap` apart, in the same order."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed = list(wanted)
    for below, i in pairwise(order):
        placed[i] = max(placed[i], placed[below] + gap)
    return placed


def bytes_text(n: float) -> str:
    """1234567 as 1.23 MB (10⁶), with three digits."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= size:
            return f"{n / size:.3g} {unit}"
    return f"{int(n)} B"


def draw_timeline(
    steps: Mapping[str, Sequence[Event]], stem: Path, title: str = ""
) -> list[Path]:
    """Write `stem`.png and `stem`.svg by matplotlib, and return their paths.

    `steps` maps a variant's name to the events of one recorded step. Each curve is labelled
    at its end of the forward pass; its highest point is marked and named after the node
    that ran then.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6), layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots()
    curves = {name: _curve(events) for name, events in steps.items()}
    top = max(max(ys) for _, ys, _ in curves.values()) or 1
    ends = _spread([ys[at] for _, ys, at in curves.values()], top * 0.045)
    for i, (name, (xs, ys, at)) in enumerate(curves.items()):
        colour = _COLOURS[i % len(_COLOURS)]
        style = _DASHES[i // len(_COLOURS) % len(_DASHES)]
        axes.plot(xs, ys, style, color=colour, linewidth=1.4)
        axes.plot([xs[at]], [ys[at]], "o", color=colour, markersize=5)
        event = steps[name][max(0, (at - 1) // 2)]
        axes.annotate(
            f"{name}: peak {bytes_text(ys[at])} in {event.phase} of {event.op}",
            xy=(xs[at], ys[at]),
            xytext=(2.04, ends[i]),
            color=colour,
            fontsize=9,
            va="center",
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.5, "alpha": 0.6},
            annotation_clip=False,
        )
    axes.axvline(1, color="#888888", linewidth=0.8)
    axes.set_xlim(0, 2)
    axes.set_ylim(0, max(top, *ends) * 1.05)
    axes.set_xticks([0.5, 1.5], ["forward pass, op by op", "backward pass, node by node"])
    axes.tick_params(axis="x", length=0)
    axes.yaxis.set_major_formatter(lambda value, _: bytes_text(value))
    axes.set_ylabel("live bytes, parameters and gradients aside")
    axes.spines[["top", "right"]].set_visible(False)
    if title:
        axes.set_title(title, loc="left", fontsize=11)
    paths = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    figure.savefig(paths[0], dpi=150)
    figure.savefig(paths[1], metadata={"Date": None})  # the same run, the same file
    return paths


def text_timeline(
    steps: Mapping[str, Sequence[Event]], width: int = 72, ascii_only: bool = False
) -> str:
    """The same curves as rows of bars, one a variant, for a terminal.

    A column shows the highest point of its share of a phase, on one scale for all rows.
    """
    levels = " .:-=+*#" if ascii_only else " ▁▂▃▄▅▆▇█"
    curves = {name: _curve(events) for name, events in steps.items()}
    top = max(max(ys) for _, ys, _ in curves.values()) or 1
    label = max(len(name) for name in curves)
    columns = max(10, width - label - 12)
    lines = []
    for name, (xs, ys, at) in curves.items():
        bars = ""
        for column in range(columns):
            low, high = column * 2 / columns, (column + 1) * 2 / columns
            inside = [y for x, y in zip(xs, ys, strict=True) if low < x <= high]
            before = [y for x, y in zip(xs, ys, strict=True) if x <= low]
            height = max(inside) if inside else before[-1]
            bars += levels[round(height / top * (len(levels) - 1))]
        lines.append(f"{name:<{label}} {bars} {bytes_text(ys[at]):>9}")
    half = columns // 2
    lines.append(
        f"{'':<{label}} {'forward':<{half}}{'backward':<{columns - half}} {'peak':>9}"
    )
    return "\n".join(lines)
