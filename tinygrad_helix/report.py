"""The result of a comparison: rows, tables, JSON, and the checks on them."""

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .accounting import Profile
from .errors import HelixError
from .memory import Event
from .viz.timeline import draw_timeline, text_timeline

__all__ = ["Report", "Row", "aligned", "gradient_errors", "output_folder", "row"]

SCHEMA = "tinygrad_helix.compare/1"


@dataclass(slots=True)
class Row:
    """What was predicted, counted, measured and timed of one variant.

    Bytes are those of `accounting.Profile`. `saved_bytes` holds `predicted` (or None),
    `counted` and `measured`. `grads` is, by input, max|g - r| / max|r| against a float64
    run of the reference; `max_rel_grad_diff` the worst of it against the reference itself.
    """

    variant: str
    mode: str | None
    policy: str | None
    ops: int
    nodes: int
    saved_tensors: int
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
    max_rel_grad_diff: float
    grads: dict[str, float]


def row(
    variant: str,
    measured: Profile,
    *,
    loss: float,
    times: Sequence[Sequence[float]],
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
        max_rel_grad_diff=max(diffs.values(), default=0.0),
        grads=dict(grads),
    )


def gradient_errors(
    got: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """max|g - r| / max|r| by name (absolute where r is all zero)."""
    errors = {}
    for name, r in reference.items():
        scale = float(np.abs(r).max(initial=0.0)) or 1.0
        errors[name] = float(np.abs(got[name] - r).max(initial=0.0)) / scale
    return errors


@dataclass(slots=True)
class Report:
    """The result of a comparison: `rows` of one block (or function), `model` rows of a
    whole training step where there is one, and the events of one step of each variant."""

    config: dict[str, Any]
    rows: list[Row]
    model: list[Row] = field(default_factory=list)
    events: dict[str, list[Event]] = field(default_factory=dict)
    reference: str = ""

    def check(self) -> list[str]:
        """What does not agree, a sentence each; empty when all does.

        Predicted, counted and measured bytes must be equal, and gradients agree with the
        reference to 1e-4 (float32) or 1e-10 (float64).
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
                        + (f"{extra:,} are kept outside the tape." if extra > 0 else "")
                    )
                if not r.max_rel_grad_diff <= bound:
                    found.append(
                        f"{name}: gradients differ from {self.reference} by "
                        f"{r.max_rel_grad_diff:.1e} (bound {bound:.0e})."
                    )
        return found

    def against(self, old: Mapping[str, Any]) -> list[str]:
        """Where saved or peak bytes rose against an earlier report's JSON.

        Saved bytes are compared exactly, peaks with 64 KiB + 1 % for Python's own objects.
        """
        rose = []
        for key, rows in (("rows", self.rows), ("model", self.model)):
            before = {r["variant"]: r for r in old.get(key, ())}
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
        """The report as plain data: schema, config, rows, model."""
        return {
            "schema": SCHEMA,
            "config": self.config,
            "reference": self.reference,
            "rows": [asdict(r) for r in self.rows],
            "model": [asdict(r) for r in self.model],
        }

    def save(self, out: str | os.PathLike[str]) -> list[Path]:
        """Write report.json and the picture of live memory into the folder `out`.

        The picture is timeline.png and timeline.svg where matplotlib is installed, else
        timeline.txt. Returns the paths.
        """
        folder = output_folder(out)
        paths = [folder / "report.json"]
        paths[0].write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")
        if self.events:
            try:
                title = "One step, live memory over its events"
                paths += draw_timeline(self.events, folder / "timeline", title)
            except ModuleNotFoundError:
                paths.append(folder / "timeline.txt")
                paths[-1].write_text(text_timeline(self.events) + "\n", encoding="utf-8")
        return paths

    def __str__(self) -> str:
        return "\n\n".join(f"{title}\n{aligned(lines)}" for title, lines in self._tables())

    def _repr_html_(self) -> str:
        html = ""
        for title, (head, *lines) in self._tables():
            cells = "".join(f"<th>{c}</th>" for c in head)
            body = "".join(
                "<tr>"
                + "".join(f"<td style='text-align:right'>{c}</td>" for c in line)
                + "</tr>"
                for line in lines
            )
            html += f"<table><caption>{title}</caption><tr>{cells}</tr>{body}</table>"
        return html

    def _tables(self) -> list[tuple[str, list[list[str]]]]:
        tables = []
        for title, rows in (("One block", self.rows), ("The whole step", self.model)):
            if not rows:
                continue
            if not self.model:
                title = "Each variant"
            saved = [
                ["variant", "ops", "predicted", "counted", "measured", "peak", "transient"]
            ]
            other = [["variant", "forward", "backward", "step", "loss", "grads", "float64"]]
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
                        f"{r.loss:.5g}",
                        f"{r.max_rel_grad_diff:.1e}",
                        f"{max(r.grads.values(), default=0.0):.1e}",
                    ]
                )
            tables.append(
                (f"{title}: bytes saved for the backward pass, and the peak", saved)
            )
            tables.append(
                (
                    f"{title}: median times; gradients against {self.reference} (grads) "
                    "and its float64 run (float64)",
                    other,
                )
            )
        return tables


def aligned(lines: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table as text: the first `left` columns flush left, the others flush right."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i < left else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def output_folder(out: str | os.PathLike[str]) -> Path:
    """The folder `out`, made if need be; an error if nothing can be written there."""
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise HelixError(
            f"the output folder {str(folder)!r} cannot be written to ({error.strerror}). "
            "Choose another with --out (in Python: out=)."
        ) from None
    return folder
