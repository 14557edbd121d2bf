"""Live memory over the events of one step, all variants on one axis.

An event is an op (forward) or a node's vjp (backward). Variants have different numbers of
them, so each phase is stretched to the same length: 0 to 1 is the forward pass, 1 to 2 the
backward pass. Parameters and leaf gradients are left out, as in `peak_bytes`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..accounting import profile
from ..errors import DTypeError, HelixError
from ..memory import Event

__all__ = ["Curve", "Timeline", "bytes_text", "draw_timeline", "text_timeline", "timeline"]

FORMATS = (".png", ".svg", ".pdf", ".txt")


def bytes_text(n: float) -> str:
    """1234567 as 1.23 MB (10⁶), with three digits."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= size * 0.9995:
            return f"{n / size:.3g} {unit}"
    return f"{int(n)} B"


@dataclass(frozen=True, slots=True)
class Curve:
    """The events of one step laid out in time.

    `xs`, `ys`: the line of all live bytes, which rises to each event's peak and falls to
    what stays. `bands` has, by `op.label`, the bytes that the tape held under that name at
    each of `times`: a band rises in the middle of the op that saves it, and falls at the
    end of the vjp that lets go of it; number `end` is the end of the forward pass. The
    highest point is number `at` of the line, in the event `peak`; `most` is the largest
    band then, with its bytes.
    """

    xs: list[float]
    ys: list[float]
    times: list[float]
    bands: dict[str, list[int]]
    end: int
    at: int
    peak: Event
    most: tuple[str, int]

    @classmethod
    def of(cls, events: Sequence[Event]) -> "Curve":
        """The curve of recorded events, which must begin with a forward pass."""
        forward = sum(e.phase == "forward" for e in events)
        backward = len(events) - forward
        xs, ys, times = [0.0], [0.0], [0.0]
        held: list[Mapping[str, int]] = [{}]
        before: Mapping[str, int] = {}
        tops = []
        for i, e in enumerate(events):
            first, of, count = (
                (0, i, forward) if i < forward else (1, i - forward, backward)
            )
            start, end = first + of / count, first + (of + 1) / count
            xs += [(start + end) / 2, end]
            ys += [max(0, e.peak - e.gradients), max(0, e.live - e.gradients)]
            change = (start + end) / 2 if i < forward else end
            times += [change, change, end]
            held += [before, e.bands, e.bands]
            tops.append(e.bands if i < forward else before)
            before = e.bands
        names = dict.fromkeys(name for bands in held for name in bands)
        at = max(range(len(ys)), key=lambda i: ys[i])
        event = max(0, (at - 1) // 2)
        top = tops[event]
        return cls(
            xs,
            ys,
            times,
            {name: [bands.get(name, 0) for bands in held] for name in names},
            3 * forward,
            at,
            events[event],
            max(top.items(), key=lambda item: item[1], default=("", 0)),
        )

    @property
    def summary(self) -> str:
        """The peak in words, two lines: how high and where, what most is saved under."""
        text = f"peak {bytes_text(self.ys[self.at])} in {self.peak.phase} of {self.peak.op}"
        if self.most[1]:
            text += (
                f"\nmost saved under one label: {self.most[0]}, {bytes_text(self.most[1])}"
            )
        return text


@dataclass(frozen=True, slots=True)
class Timeline:
    """Recorded steps by the name of their variant, and how to show them.

    Printed it is a text of bars; `save` writes a picture; in a notebook it shows itself.
    """

    steps: dict[str, Sequence[Event]]
    title: str = ""

    def figure(self, bands: bool = True) -> Any:
        """A matplotlib Figure: several variants as curves on one axis, and with `bands` a
        panel for each, on the same scale, with a band for each `op.label` on the tape."""
        from .plot import figure

        return figure(self.curves(), self.title, bands)

    def curves(self) -> dict[str, Curve]:
        """The events of every variant, laid out in time."""
        return {name: Curve.of(events) for name, events in self.steps.items()}

    def save(self, path: str | Path, bands: bool = True) -> Path:
        """Write a picture, .png, .svg or .pdf, or the text of `print`, .txt.

        Errors: HelixError for another ending and for a path that cannot be written to,
        BackendUnavailableError where matplotlib is missing (except for .txt).
        """
        path = Path(path)
        if path.suffix not in FORMATS:
            raise HelixError(
                f"a timeline cannot be written to {str(path)!r}. Choose a name that ends "
                f"in one of {', '.join(FORMATS)}."
            )
        try:
            if path.suffix == ".txt":
                path.write_text(f"{self}\n", encoding="utf-8")
            else:
                from .plot import write

                write(self.figure(bands), path)
        except OSError as error:
            raise HelixError(
                f"the timeline cannot be written to {str(path)!r} ({error.strerror}). "
                "Choose another path."
            ) from None
        return path

    def __str__(self) -> str:
        return text_timeline(self.steps)

    def _repr_html_(self) -> str:
        from .plot import inline_svg

        return inline_svg(self.figure())


def timeline(
    variants: Callable[..., Any] | Mapping[str, Callable[..., Any]],
    inputs: Mapping[str, Any],
    *,
    parameters: Sequence[str] = (),
    cotangent: Any = None,
    title: str = "",
) -> Timeline:
    """Run a function, or several variants of it, forward and backward once, and show the
    live bytes of every moment.

    Each variant is called as fn(**inputs), traced, on copies of the inputs; the (first)
    result is swept from `cotangent` (ones if left out), and no gradient lands. `parameters`
    names the inputs that are weights: their bytes are left out. The heights are those of
    `compare`: live bytes by tracemalloc less parameters, gradients, and inputs that the
    tape does not save. Pictures need matplotlib; the text form does not.

    Errors: DTypeError for what is no function.

    >>> import tinygrad_helix as th
    >>> x = th.ones(64, 128, requires_grad=True)
    >>> live = th.viz.timeline(lambda x: x.exp().tanh().sum(), {"x": x})
    >>> print(live)  # doctest: +SKIP
    >>> live.save("step.svg")  # doctest: +SKIP
    """
    if not isinstance(variants, Mapping):
        variants = {getattr(variants, "__name__", "function"): variants}
    for name, fn in variants.items():
        if not callable(fn):
            raise DTypeError(f"variant {name!r} is no function but {type(fn).__name__}.")
    if not variants or not isinstance(inputs, Mapping):
        raise DTypeError(
            "timeline takes a function, or a dict {name: function} with at least one, and "
            "the inputs as a dict {name: Tensor}."
        )
    steps = {}
    for name, fn in variants.items():
        found = profile(fn, inputs, parameters=parameters, cotangent=cotangent)
        steps[name] = [
            e._replace(peak=peak + e.gradients, live=live + e.gradients)
            for e, (peak, live) in zip(found.events, found.heights, strict=True)
        ]
    return Timeline(steps, title)


def draw_timeline(
    steps: Mapping[str, Sequence[Event]], stem: Path, title: str = ""
) -> list[Path]:
    """Write the curves of all variants to `stem`.png, .svg and .pdf; return the paths.

    `steps` maps a variant's name to the events of one recorded step.
    BackendUnavailableError where matplotlib is missing.
    """
    drawn = Timeline(dict(steps), title)
    endings = (".png", ".svg", ".pdf")
    return [drawn.save(stem.with_suffix(end), bands=False) for end in endings]


def text_timeline(
    steps: Mapping[str, Sequence[Event]], width: int = 72, ascii_only: bool = False
) -> str:
    """The same curves as rows of bars, one a variant, for a terminal.

    A column shows the highest point of its share of a phase, on one scale for all rows.
    """
    levels = " .:-=+*#" if ascii_only else " ▁▂▃▄▅▆▇█"
    curves = {name: Curve.of(events) for name, events in steps.items()}
    top = max(max(c.ys) for c in curves.values()) or 1
    label = max(len(name) for name in curves)
    columns = max(10, width - label - 12)
    lines = []
    for name, c in curves.items():
        bars = ""
        for column in range(columns):
            low, high = column * 2 / columns, (column + 1) * 2 / columns
            inside = [y for x, y in zip(c.xs, c.ys, strict=True) if low < x <= high]
            before = [y for x, y in zip(c.xs, c.ys, strict=True) if x <= low]
            height = max(inside) if inside else before[-1]
            bars += levels[round(height / top * (len(levels) - 1))]
        lines.append(f"{name:<{label}} {bars} {bytes_text(c.ys[c.at]):>9}")
    half = columns // 2
    lines.append(
        f"{'':<{label}} {'forward':<{half}}{'backward':<{columns - half}} {'peak':>9}"
    )
    return "\n".join(lines)
