"""Live bytes over the events of one step as an SVG: a band for every storage on the tape,
and above them a line for all that is alive.

Events are spread as in `viz.timeline`: the forward pass over the left half, the backward
pass over the right. All variants of a comparison share the height of the axis. The page
moves a cursor over it; `data-x` and `data-wide` say where the drawing begins and ends.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from .lanes import filling
from .markup import escape
from .timeline import bytes_text
from .trace import LIVE, PEAK

__all__ = ["draw_bands", "round_steps"]

WIDTH, HEIGHT = 380, 190
_LEFT, _TOP, _WIDE, _HIGH = 52, 22, 318, 144  # the drawing inside
_THICK = 12  # the least height of a band that is labelled
_RISE = 0.2  # of an event, until it stands at its peak


def _times(found: Mapping[str, Any]) -> list[float]:
    """When each event ends, from 0 over 1 (the end of the forward pass) to 2."""
    forward = found["forward"]
    backward = len(found["events"]) - forward
    return [
        (i + 1) / forward if i < forward else 1 + (i + 1 - forward) / backward
        for i in range(len(found["events"]))
    ]


def draw_bands(found: Mapping[str, Any], top: int, title: str) -> str:
    """The SVG element of one trace, `top` bytes high; `title` says what it is."""
    events, times = found["events"], _times(found)
    scale = _HIGH / max(1, top)

    def x(time: float) -> float:
        return _LEFT + _WIDE * time / 2

    def y(nbytes: float) -> float:
        return _TOP + _HIGH - nbytes * scale

    starts = [0.0, *times[:-1]]
    curve = [(0.0, 0)]
    for start, end, e in zip(starts, times, events, strict=True):
        rise, fall = start + _RISE * (end - start), end - _RISE * (end - start)
        curve += [(rise, max(0, e[PEAK])), (fall, max(0, e[PEAK])), (end, max(0, e[LIVE]))]
    line = "L".join(f"{x(t):.1f} {y(n):.1f}" for t, n in curve)
    peak = events[found["peak"]["event"]]
    at = curve[3 * found["peak"]["event"] + 2]
    bands, labels = _bands(found, starts, times, x, y)
    axis = "".join(
        f'<path class="rule" d="M{_LEFT} {y(n):.1f}h{_WIDE}"/>'
        f'<text class="tick" x="{_LEFT - 5}" y="{y(n) + 4:.1f}">{bytes_text(n)}</text>'
        for n in round_steps(top)
    )
    words = f"peak {bytes_text(peak[PEAK])}"
    beside = min(max(x(at[0]), _LEFT + 45), WIDTH - 50)
    return (
        f'<svg class="bands" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}" data-x="{_LEFT}" data-wide="{_WIDE}">'
        f"<title>{escape(title)}</title>{axis}"
        f'<path class="rest" d="M{_LEFT} {y(0):.1f}L{line}V{y(0):.1f}Z"/>'
        f"{''.join(bands)}"
        f'<path class="live" d="M{line}"/>'
        f'<path class="middle" d="M{x(1):.1f} {_TOP}v{_HIGH}"/>'
        f"{''.join(labels)}"
        f'<circle class="peak" cx="{x(at[0]):.1f}" cy="{y(at[1]):.1f}" r="4"/>'
        f'<text class="label middled" x="{beside:.1f}" y="{y(at[1]) - 9:.1f}">'
        f"{words}</text>"
        f'<text class="tick phase" x="{x(0.5):.1f}" y="{HEIGHT - 6}">forward</text>'
        f'<text class="tick phase" x="{x(1.5):.1f}" y="{HEIGHT - 6}">backward</text>'
        f'<path class="cursor" d="M0 {_TOP}v{_HIGH}" transform="translate({_LEFT})"/></svg>'
    )


def round_steps(top: float) -> list[float]:
    """Round numbers from 0 to `top`, three to five of them."""
    if top <= 0:
        return [0.0]
    unit = 10.0 ** math.floor(math.log10(top))
    step = next(s for s in (unit * 2, unit, unit / 2) if top / s >= 2)
    return [step * i for i in range(int(top / step) + 1)]


def _bands(
    found: Mapping[str, Any],
    starts: Sequence[float],
    times: Sequence[float],
    x: Any,
    y: Any,
) -> tuple[list[str], list[str]]:
    """A path for each storage, stacked in the order of birth, and words in the thick ones.

    A band rises in the middle of the event that saves it and falls towards the end of the
    vjp that lets go of it; below it, older ones may fall before.
    """
    shown = [s for s in found["graph"]["storages"] if not s["parameter"]]
    spans = {}
    for s in shown:
        born, gone = found["held"][s["id"]]
        fall = times[gone] - _RISE * (times[gone] - starts[gone])
        spans[s["id"]] = ((starts[born] + times[born]) / 2, fall)
    bands, labels = [], []
    for i, s in enumerate(shown):
        begin, end = spans[s["id"]]
        older = [(spans[o["id"]], o["nbytes"]) for o in shown[:i]]
        cuts = [begin, *sorted({e for (_, e), _ in older if begin < e < end}), end]
        bottoms = [
            (a, b, sum(n for (born, gone), n in older if born <= a < gone))
            for a, b in pairwise(cuts)
        ]
        under = "".join(f"L{x(a):.1f} {y(n):.1f}H{x(b):.1f}" for a, b, n in bottoms)
        over = "".join(
            f"L{x(b):.1f} {y(n + s['nbytes']):.1f}H{x(a):.1f}"
            for a, b, n in reversed(bottoms)
        )
        name = escape(f"{s['name']}, {s['nbytes']:,} B")
        bands.append(
            f'<path class="band" data-storage="{s["id"]}" fill="{filling(i)}" '
            f'd="M{under[1:]}{over}Z"><title>{name}</title></path>'
        )
        height = y(0) - y(s["nbytes"])
        if height >= _THICK and begin < 1 <= end:
            bottom = next(n for a, b, n in bottoms if a < 1 <= b)
            labels.append(
                f'<text class="label end" x="{x(1) - 6:.1f}" '
                f'y="{y(bottom + s["nbytes"] / 2) + 4:.1f}">{escape(s["name"])}</text>'
            )
    return bands, labels
