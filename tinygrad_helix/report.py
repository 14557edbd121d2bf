"""The result of a comparison: rows, tables, JSON, and the checks on them."""

import json
import math
import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .accounting import Profile
from .errors import BackendUnavailableError, HelixError
from .files import write_file
from .memory import Event
from .tables import (
    UNPREDICTED,
    aligned,
    csv_text,
    flat,
    html_table,
    latex,
    markdown,
    spread,
    unpredicted,
)
from .viz.report import page
from .viz.timeline import draw_timeline, text_timeline

__all__ = [
    "SCHEMA",
    "Report",
    "Row",
    "differing",
    "gradient_errors",
    "made_with",
    "output_folder",
    "plain",
    "row",
]

SCHEMA = "tinygrad_helix.compare/1"
# Where these settings differ, the bytes of two reports are not comparable.
SETTINGS = ("dtype", "dim", "layers", "batch", "seq", "set")


@dataclass(slots=True)
class Row:
    """What was predicted, counted, measured and timed of one variant.

    Bytes and counts are those of `accounting.Profile`. `saved_bytes` holds `predicted`
    (or None), `counted` and `measured`. `grads` is, by input, max|g - r| / max|r| against a
    float64 run of the reference, and empty where that does not run in float64 (it closes
    over float32 parameters, say); `grad_diffs` is the same against the reference itself,
    and `max_rel_grad_diff` the worst of these. `max_rel_value_diff` is that of the output
    (of a model: of the loss at step 0).
    """

    variant: str
    mode: str | None
    policy: str | None
    ops: int
    nodes: int
    saved_tensors: int
    storages: int
    saved_bytes: dict[str, int | None]
    peak_bytes: int
    peak_at: dict[str, str]
    transient_bytes: int
    workspace_bytes: int
    no_grad_peak_bytes: int
    fwd_ms: float
    bwd_ms: float
    step_ms: dict[str, float]
    loss: float
    max_rel_value_diff: float
    max_rel_grad_diff: float
    grads: dict[str, float]
    grad_diffs: dict[str, float]


def row(
    variant: str,
    measured: Profile,
    *,
    loss: float,
    times: Sequence[Sequence[float]],
    value_diff: float,
    diffs: Mapping[str, float],
    grads: Mapping[str, float],
    mode: str | None = None,
    policy: str | None = None,
    predicted: int | None = None,
) -> Row:
    """A Row from a profile, gradient errors, and (forward, backward[, step]) seconds."""
    steps = [1e3 * (t[2] if len(t) > 2 else t[0] + t[1]) for t in times]
    return Row(
        variant=variant,
        mode=mode,
        policy=policy,
        ops=measured.ops,
        nodes=measured.nodes,
        saved_tensors=measured.saved_tensors,
        storages=measured.storages,
        saved_bytes={
            "predicted": measured.predicted if predicted is None else predicted,
            "counted": measured.counted,
            "measured": measured.measured,
        },
        peak_bytes=measured.peak_bytes,
        peak_at=measured.peak_at,
        transient_bytes=measured.transient_bytes,
        workspace_bytes=measured.workspace_bytes,
        no_grad_peak_bytes=measured.no_grad_peak_bytes,
        fwd_ms=1e3 * statistics.median(t[0] for t in times),
        bwd_ms=1e3 * statistics.median(t[1] for t in times),
        step_ms={"median": statistics.median(steps), "min": min(steps)},
        loss=loss,
        max_rel_value_diff=value_diff,
        max_rel_grad_diff=_worst(diffs.values()),
        grads=dict(grads),
        grad_diffs=dict(diffs),
    )


def gradient_errors(
    got: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """max|g - r| / max|r| by name (absolute where r is all zero; NaN where one is NaN)."""
    return {name: _error(np.asarray(got[name]), r) for name, r in reference.items()}


def _error(got: np.ndarray, reference: np.ndarray) -> float:
    differ = got != reference  # equal infinities agree
    finite = np.abs(reference[np.isfinite(reference)])
    scale = float(finite.max(initial=0.0)) or 1.0
    with np.errstate(invalid="ignore", over="ignore"):
        return float(np.abs(got[differ] - reference[differ]).max(initial=0.0)) / scale


def _worst(values: Iterable[float]) -> float:
    """The largest, or NaN if one is NaN (which `max` may pass over)."""
    return float(np.max([0.0, *values]))


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: None in the place of NaN and infinity."""
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def made_with() -> dict[str, Any]:
    """The versions and the machine that a report was made with."""
    from . import __version__

    return {
        "versions": {
            "tinygrad_helix": __version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
        },
        "machine": {"platform": platform.platform(), "cores": os.cpu_count()},
    }


@dataclass(slots=True)
class Report:
    """The result of a comparison: `rows` of one block (or function), `model` rows of a
    whole training step where there is one, and the events of one step of each variant.

    `traces` maps "rows" and "model" to what the page shows of each variant's step (see
    `viz.trace`), and `dial` holds the costs of every policy (`viz.dial`), if there are any.
    """

    config: dict[str, Any]
    rows: list[Row]
    model: list[Row] = field(default_factory=list)
    events: dict[str, list[Event]] = field(default_factory=dict)
    reference: str = ""
    traces: dict[str, dict[str, Any]] = field(default_factory=dict)
    dial: dict[str, Any] | None = None

    def check(self) -> list[str]:
        """What does not agree, a sentence each; empty when all does.

        Predicted, counted and measured bytes must be equal, and values and gradients agree
        with the reference to 1e-4 (float32) or 1e-10 (float64).
        """
        bound = 1e-10 if self.config.get("dtype") == "float64" else 1e-4
        found = []
        for what, rows in (("block", self.rows), ("model", self.model)):
            for r in rows:
                name = f"{what}, {r.variant}"
                p, c, m = (r.saved_bytes[k] for k in ("predicted", "counted", "measured"))
                if p is not None and p != c:
                    found.append(f"{name}: {p:,} saved bytes predicted, {c:,} counted.")
                if c != m:
                    extra = (m or 0) - (c or 0)
                    found.append(
                        f"{name}: {c:,} saved bytes counted, {m:,} measured: "
                        + (
                            f"{extra:,} are kept outside the tape."
                            if extra > 0
                            else f"{-extra:,} are held elsewhere too, by what the variant "
                            "closes over, say. Make it an input or an nn.Parameter."
                        )
                    )
                for of, by in (
                    ("values", r.max_rel_value_diff),
                    ("gradients", r.max_rel_grad_diff),
                ):
                    if not by <= bound:
                        found.append(
                            f"{name}: {of} differ from {self.reference} by {by:.1e} "
                            f"(bound {bound:.0e})."
                        )
        return found

    def against(self, old: Mapping[str, Any]) -> list[str]:
        """Where saved or peak bytes rose against an earlier report's JSON.

        Saved bytes are compared exactly, peaks with 64 KiB + 1 % for Python's own objects.
        A variant that is missing now is told too, and settings that differ.
        """
        rose = differing(self.config, old.get("config", {}))
        for key, rows in (("rows", self.rows), ("model", self.model)):
            before = {r["variant"]: r for r in old.get(key, ())}
            names = {r.variant for r in rows}
            rose += [
                f"{key}, {name}: it is in the earlier report and missing now."
                for name in before
                if name not in names
            ]
            for r in rows:
                b = before.get(r.variant)
                if b is None:
                    continue
                was, now = b["saved_bytes"]["counted"], r.saved_bytes["counted"] or 0
                if now > was:
                    rose.append(
                        f"{key}, {r.variant}: saved bytes rose, {was:,} to {now:,}."
                    )
                was, now = b["peak_bytes"], r.peak_bytes
                if now > was * 1.01 + 65536:
                    rose.append(f"{key}, {r.variant}: peak bytes rose, {was:,} to {now:,}.")
        return rose

    def to_json(self) -> dict[str, Any]:
        """The report as plain data: schema, config, rows, model (null for NaN)."""
        return plain(
            {
                "schema": SCHEMA,
                "config": self.config,
                "reference": self.reference,
                "rows": [asdict(r) for r in self.rows],
                "model": [asdict(r) for r in self.model],
            }
        )

    def save(self, out: str | os.PathLike[str]) -> list[Path]:
        """Write report.json, report.html and the picture of live memory into the folder
        `out`, and return the paths.

        The page is one file that needs no network (see `viz.report`). The picture is
        timeline.png, .svg and .pdf where matplotlib is installed, else timeline.txt.
        """
        folder = output_folder(out)
        paths = [folder / "report.json"]
        data = self.to_json()
        text = json.dumps(data, indent=1, allow_nan=False)
        write_file(paths[0], text + "\n")
        if self.traces:
            paths.append(folder / "report.html")
            text = page(data, self.traces, self.dial, self.check())
            write_file(paths[-1], text)
        if self.events:
            try:
                title = "One step, live memory over its events"
                paths += draw_timeline(self.events, folder / "timeline", title)
            except BackendUnavailableError:  # no matplotlib
                paths.append(folder / "timeline.txt")
                write_file(paths[-1], text_timeline(self.events) + "\n")
        return paths

    def __str__(self) -> str:
        return "\n\n".join(
            "\n".join([title, aligned(lines), *notes])
            for title, lines, notes in self._tables()
        )

    def _repr_html_(self) -> str:
        return "".join(html_table(*table) for table in self._tables())

    def table(self, form: str) -> str:
        """The tables as "md" (Markdown), "latex" (with booktabs) or "csv" (a line a row,
        with every field; `of` says block or step)."""
        if form == "csv":
            rows = [("block", r) for r in self.rows] + [("step", r) for r in self.model]
            return csv_text([{"of": of} | flat(plain(asdict(r))) for of, r in rows])
        forms = {"md": markdown, "latex": latex}
        if form not in forms:
            raise HelixError(f"there is no table of form {form!r}. Take md, latex or csv.")
        return "\n\n".join(forms[form](*table) for table in self._tables())

    def _tables(self) -> list[tuple[str, list[list[str]], list[str]]]:
        tables = []
        for title, rows in (("One block", self.rows), ("The whole step", self.model)):
            if not rows:
                continue
            if not self.model:
                title = "Each variant"
            saved = [
                ["variant", "ops", "predicted", "counted", "measured", "peak", "transient"]
            ]
            other = [["variant", "forward", "backward", "step", "least", "loss"]]
            other[0] += ["values", "grads", "float64"]
            for r in rows:
                s = r.saved_bytes
                saved.append(
                    [
                        r.variant,
                        str(r.ops),
                        *("-" if s[k] is None else f"{s[k]:,}" for k in s),
                        f"{r.peak_bytes:,}",
                        f"{r.transient_bytes:,}",
                    ]
                )
                other.append(
                    [
                        r.variant,
                        f"{r.fwd_ms:.1f} ms",
                        f"{r.bwd_ms:.1f} ms",
                        f"{r.step_ms['median']:.1f} ms",
                        f"{r.step_ms['min']:.1f} ms",
                        f"{r.loss:.5g}",
                        f"{r.max_rel_value_diff:.1e}",
                        f"{r.max_rel_grad_diff:.1e}",
                        f"{_worst(r.grads.values()):.1e}" if r.grads else "-",
                    ]
                )
            notes = [UNPREDICTED] if unpredicted(r.saved_bytes for r in rows) else []
            notes += [
                f"{r.variant}: {r.workspace_bytes:,} bytes stay allocated after the step: "
                "scratch, or copies kept outside the tape"
                for r in rows
                if r.workspace_bytes > 0
            ]
            busy = spread({r.variant: r.step_ms for r in rows})
            tables.append(
                (f"{title}: bytes saved for the backward pass, and the peak", saved, notes)
            )
            tables.append(
                (
                    f"{title}: median times; differences from {self.reference} (values, "
                    "grads) and its float64 run",
                    other,
                    [busy] if busy else [],
                )
            )
        return tables


def differing(config: Mapping[str, Any], old: Mapping[str, Any]) -> list[str]:
    """The settings in which an earlier report's config differs, a sentence each."""
    return [
        f"config: {name} is {config[name]!r} and was {old.get(name)!r}: the bytes of the "
        "two reports are not comparable."
        for name in SETTINGS
        if name in config and plain(config[name]) != old.get(name)
    ]


def output_folder(out: str | os.PathLike[str], keep: bool = True) -> Path:
    """The folder `out`, made if need be; an error if nothing can be written there.

    With `keep=False` it is only tried: what had to be made is taken away again.
    """
    folder = Path(out)
    made = [] if keep else [p for p in (folder, *folder.parents) if not p.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.write_bytes(b"")
        probe.unlink()
        for new in made:
            new.rmdir()
    except OSError as error:
        raise HelixError(
            f"the output folder {str(folder)!r} cannot be written to ({error.strerror}). "
            "Choose another with --out (in Python: out=)."
        ) from None
    return folder
