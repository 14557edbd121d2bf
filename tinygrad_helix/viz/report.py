"""The report as one HTML file: nothing is loaded from anywhere, and no server is needed.

The page holds its tables and pictures as HTML and SVG, made here, and its data as JSON;
the script in `template.html` moves through them. Without it everything can still be read.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

from .answers import Scene, differences
from .dial import dial_panel, frontier
from .glance import glance
from .lanes import HATCHES, HUES
from .markup import Html, escape, script_json
from .panels import gradients, numbers, peaks, walk

__all__ = ["page"]

_TEMPLATE = Path(__file__).with_name("template.html")

# Okabe and Ito's colours without black, and what is drawn over them, so that neighbours
# differ in grey too.
_COLOURS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")
_HATCHES = ("", "M0 8L8 0M-2 2L2 -2M6 10L10 6", "M0 4H8", "M0 0L8 8M-2 6L2 10M6 -2L10 2")


def page(
    report: Mapping[str, Any],
    traces: Mapping[str, Mapping[str, Any]],
    dial: Mapping[str, Any] | None = None,
    failures: Sequence[str] = (),
) -> str:
    """The page of a report.

    `report` is its JSON, `traces` maps "rows" (and "model" where there are such rows) to
    the traces of its variants, `dial` is what `dial_data` made, or None, and `failures`
    says what does not agree.
    """
    flops: dict[str, int] = {}
    if dial is not None:
        flops = {name: dial["flops"][n] for name, n in dial["measured"].items()}
        dial = {**dial, "frontier": frontier(dial)}
    scenes = [
        Scene(key, title, report["reference"], report[key], traces[key], extra)
        for key, title, extra in (
            ("rows", "One block" if report["model"] else "Each variant", flops),
            ("model", "The whole step", {}),
        )
        if report[key]
    ]
    fields = {
        "title": escape(_title(report)),
        "about": escape(_about(report)),
        "scenes": _switch(scenes),
        "fillings": _fillings(),
        "checks": _checks(report, failures),
        "glance": _of_each(scenes, glance),
        "walk": _of_each(scenes, walk),
        "numbers": _of_each(scenes, numbers),
        "gradients": _of_each(scenes, gradients),
        "peaks": _of_each(scenes, peaks),
        "dial": "" if dial is None else dial_panel(dial, report["rows"]),
        "no_dial": " hidden" if dial is None else "",
        "data": script_json(_data(report, scenes, dial)),
    }
    template = _TEMPLATE.read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: fields[found[1]], template)


def _title(report: Mapping[str, Any]) -> str:
    target = report["config"].get("target")
    names = [r["variant"] for r in report["rows"]]
    if target is not None:
        return f"{target}: {len(names)} variant{'s' * (len(names) != 1)} compared"
    return f"{' and '.join(names)} compared" if len(names) < 4 else "Variants compared"


def _about(report: Mapping[str, Any]) -> str:
    """What was run, and on what, in a line."""
    config = report["config"]
    settings = config.get("set") or {
        k: config[k] for k in ("batch", "seq", "dim", "layers", "steps") if k in config
    }
    parts = [f"{k} {v}" for k, v in settings.items()]
    parts.append(str(config.get("dtype", "")))
    versions, machine = config.get("versions", {}), config.get("machine", {})
    parts += [f"{name} {version}" for name, version in versions.items()]
    parts += [str(machine["platform"])] if machine else []
    return " · ".join(part for part in parts if part)


def _checks(report: Mapping[str, Any], failures: Sequence[str]) -> Html:
    """What does not agree, or that all does."""
    if failures:
        items = "".join(f"<li>{escape(failure)}</li>" for failure in failures)
        return Html(f'<ul class="checks bad">{items}</ul>')
    known = all(r["saved_bytes"]["predicted"] is not None for r in report["rows"])
    what = "predicted, counted and measured" if known else "counted and measured"
    return Html(
        f'<p class="checks">✓ All checks pass: {what} bytes agree, and so do values and '
        "gradients.</p>"
    )


def _of_each(scenes: Sequence[Scene], panel: Callable[[Scene], Html]) -> Html:
    """A panel's content for every scene, one after the other."""
    title = "<h3>{}</h3>" if len(scenes) > 1 else ""
    return Html(
        "".join(
            f'<div class="scene" data-scene="{scene.id}">'
            f'<div class="scene-title">{title.format(escape(scene.title))}</div>'
            f"{panel(scene)}</div>"
            for scene in scenes
        )
    )


def _switch(scenes: Sequence[Scene]) -> Html:
    """The buttons that choose a scene, where there are two."""
    if len(scenes) < 2:
        return Html("")
    buttons = "".join(
        f'<button type="button" data-choose="{scene.id}" aria-pressed="'
        f'{"false" if i else "true"}">{escape(scene.title)}</button>'
        for i, scene in enumerate(scenes)
    )
    return Html(
        f'<span class="js switch" role="group" aria-label="what is shown">{buttons}</span>'
    )


def _fillings() -> Html:
    """The patterns that `lanes.filling` names: every colour with every hatching."""
    return Html(
        "".join(
            f'<pattern id="fill-{hue}-{hatch}" width="8" height="8" '
            f'patternUnits="userSpaceOnUse"><rect width="8" height="8" '
            f'fill="{_COLOURS[hue]}"/><path d="{_HATCHES[hatch]}" class="hatch"/></pattern>'
            for hue in range(HUES)
            for hatch in range(HATCHES)
        )
    )


def _data(
    report: Mapping[str, Any], scenes: Sequence[Scene], dial: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What the script reads."""
    return {
        "report": report,
        "scenes": {scene.id: _scene(scene) for scene in scenes},
        "dial": dial,
    }


def _scene(scene: Scene) -> dict[str, Any]:
    rows = {r["variant"]: r for r in scene.rows}
    pairs: dict[str, dict[str, Any]] = {}
    for a, b in permutations(rows, 2):
        pairs.setdefault(a, {})[b] = differences(rows[a], rows[b], scene.flops)
    variants = {
        name: {
            **scene.traces[name],
            "words": {
                s: {"what": reader.what(s), "why": reader.why(s)} for s in reader.storages
            },
        }
        for name, reader in scene.readers.items()
    }
    return {"title": scene.title, "pairs": pairs, "variants": variants}
