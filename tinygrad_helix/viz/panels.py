"""Panels of the report: what the page shows of one scene without any script.

A scene is a comparison of its own, of one block or of the whole step: its rows, as in the
report's JSON, and a trace of each variant.
"""

from collections.abc import Mapping
from typing import Any

from ..tables import UNPREDICTED, spread, unpredicted
from .answers import Reader, Scene, exact, number, verdict
from .bands import draw_bands
from .graph import shape_text
from .lanes import draw_lanes, filling
from .markup import Html, escape, join, note, table
from .timeline import bytes_text
from .trace import PEAK

__all__ = ["gradients", "numbers", "peaks", "walk"]

_MOST_NODES = 1000  # more are no picture any more, and slow in a browser
_TALL = 24  # more nodes than half a printed page takes at a size that can be read


def walk(scene: Scene) -> Html:
    """A card for each variant: its bytes over time above its graph."""
    top = max(max(e[PEAK] for e in found["events"]) for found in scene.traces.values())
    toggles = "".join(
        f'<label><input type="checkbox" checked data-show="{escape(name)}"> '
        f"{escape(name)}</label>"
        for name in scene.traces
    )
    cards = [
        _card(row, scene.traces[row["variant"]], top, f"drawing-{scene.id}-{i}")
        for i, row in enumerate(scene.rows)
        if row["variant"] in scene.traces
    ]
    return join(
        Html(f'<fieldset class="js shown"><legend>Shown</legend>{toggles}</fieldset>'),
        Html(f'<div class="cards">{"".join(cards)}</div>'),
    )


def _card(row: Mapping[str, Any], found: Mapping[str, Any], top: int, paper: str) -> str:
    name, graph = row["variant"], found["graph"]
    nodes = len(graph["nodes"])
    peak = Reader(found).peak()
    title = f"{name}: {nodes} nodes in the order of the tape, with what each keeps"
    picture = _too_many(nodes)
    if nodes <= _MOST_NODES:
        picture = draw_lanes(graph, title, paper if nodes > _TALL else "")
    what = (
        f"{name}: live bytes over one step, at most {peak['bytes']:,} in {peak['when']}; "
        f"{row['saved_bytes']['counted']:,} saved at the end of the forward pass"
    )
    return (
        f'<article class="card{" tall" if nodes > _TALL else ""}" '
        f'data-variant="{escape(name)}">'
        f"<h3>{escape(name)}</h3>"
        f'<p class="sub">{nodes} node{"s" * (nodes != 1)} · saved '
        f"{bytes_text(row['saved_bytes']['counted'])} · peak "
        f"{bytes_text(row['peak_bytes'])}</p>"
        '<p class="js now"><span data-now="event"></span><br>tape '
        '<b data-now="tape"></b> B · all <b data-now="live"></b> B</p>'
        f"{draw_bands(found, top, what)}"
        '<div class="scroll" tabindex="0" role="region" '
        f'aria-label="graph of {escape(name)}">'
        f"{picture}</div></article>"
    )


def _too_many(nodes: int) -> str:
    return (
        f'<p class="note">{nodes:,} nodes are too many to be drawn here. The command '
        "<code>graph</code> draws them with modules closed.</p>"
    )


# --- numbers


def numbers(scene: Scene) -> Html:
    """The table of the comparison."""
    head = ["variant", "ops", "nodes", "saved tensors", "storages"]
    head += ["predicted", "counted", "measured"]
    sizes = [
        [
            r["variant"],
            *(exact(r[k]) for k in ("ops", "nodes", "saved_tensors", "storages")),
            *(exact(r["saved_bytes"][k]) for k in ("predicted", "counted", "measured")),
        ]
        for r in scene.rows
    ]
    heights = [
        [
            r["variant"],
            exact(r["peak_bytes"]),
            exact(r["transient_bytes"]),
            exact(r["workspace_bytes"]),
            exact(r["no_grad_peak_bytes"]),
        ]
        for r in scene.rows
    ]
    times = [
        [
            r["variant"],
            f"{r['fwd_ms']:.2f}",
            f"{r['bwd_ms']:.2f}",
            f"{r['step_ms']['median']:.2f}",
            f"{r['step_ms']['min']:.2f}",
            number(r["loss"], ".6g"),
            number(r["max_rel_value_diff"]),
            number(r["max_rel_grad_diff"]),
        ]
        for r in scene.rows
    ]
    against = f"from {scene.reference}"
    busy = spread({r["variant"]: r["step_ms"] for r in scene.rows})
    dashes = unpredicted(r["saved_bytes"] for r in scene.rows)
    return join(
        table(
            "Nodes, saved tensors, the storages behind them, and saved bytes",
            head,
            sizes,
        ),
        note(UNPREDICTED.replace("predicted -", "predicted –")) if dashes else "",
        table(
            "Bytes at the highest points",
            ["variant", "peak", "transient", "workspace", "peak under no_grad"],
            heights,
        ),
        table(
            f"Milliseconds (medians), loss, and the largest relative differences {against}",
            [
                "variant",
                *("forward", "backward", "step", "step, least"),
                *("loss", "values", "gradients"),
            ],
            times,
        ),
        note(busy) if busy else "",
    )


def gradients(scene: Scene) -> Html:
    """The errors of the gradients, by input and variant."""
    own = scene.own
    of = "grads" if own else "grad_diffs"
    names = list(scene.rows[0][of])
    lines = []
    for name in names:
        line: list[Any] = [name]
        for r in scene.rows:
            error = r[of][name]
            bad = bool(own) and r["variant"] != scene.reference
            bad = bad and verdict(error, own.get(name))[0]
            sign = Html('<span class="bad">▲</span> ') if bad else ""
            line.append(join(sign, number(error)))
        lines.append(line)
    if own:
        exactly = f"a float64 run of {scene.reference}"
        caption = f"max|g − r| / max|r| by input, r from {exactly}"
        small = (
            f"The column of {scene.reference} is its own rounding. ▲ marks an error that "
            "is more than four times as large."
        )
    else:
        caption = f"max|g − r| / max|r| by input, r from {scene.reference}"
        small = "The reference did not run in float64, so its own rounding is not known."
    head = ["input", *(r["variant"] for r in scene.rows)]
    return join(table(caption, head, lines), note(small))


def peaks(scene: Scene) -> Html:
    """The three largest arrays at the peak of each variant, and what else there is."""
    return join(
        note(
            "The three largest arrays on the tape at each peak, and the others together; "
            "what waits: cotangents, values that the caller holds, objects of Python; and "
            "what the node makes while it runs, by the lines that make most of it, less "
            "the gradients that it returns."
        ),
        Html('<div class="heights">'),
        *(_height(name, reader) for name, reader in scene.readers.items()),
        Html("</div>"),
    )


def _inside(peak: Mapping[str, Any]) -> list[tuple[str, int, str, str]]:
    """What the node of a peak makes itself: the lines that make most, and the rest."""
    parts, left = [], peak["rest"]
    for size, source, place in peak["parts"][:3]:
        if 0 < size <= left:
            parts.append((f"scratch: {source}", size, f"{place}, dropped there", ""))
            left -= size
    name = "more made there" if parts else "made there"
    return [*parts, (name, left, f"in the {peak['when']}", "")] if left else parts


def _height(name: str, reader: Reader) -> Html:
    peak = reader.peak()
    first, others = peak["held"][:3], peak["held"][3:]
    parts = [
        (
            f"{reader.storages[s]['name']} {shape_text(reader.shape(s))}",
            reader.size(s),
            f"{reader.what(s)}; {'; '.join(reader.why(s))}",
            filling(reader.index(s)),
        )
        for s in first
    ]
    if others:
        size = sum(map(reader.size, others))
        parts.append((f"{len(others)} more on the tape", size, "", ""))
    if peak["waiting"]:
        parts.append(("waiting", peak["waiting"], "", ""))
    parts += _inside(peak)
    whole = max(1, sum(size for _, size, _, _ in parts))
    bar, left = "", 0.0
    for _, size, _, fill in parts:
        wide = 100 * size / whole
        style = f' fill="{fill}"' if fill else ' class="plain"'
        bar += f'<rect x="{left:.2f}" y="0" width="{wide:.2f}" height="6"{style}/>'
        left += wide
    kept = ""
    if peak["kept"]:
        kept = (
            f'<p class="sub">{peak["kept"]:,} B of what it makes go on, as gradients '
            "(not counted in the peak) or cotangents (in it).</p>"
        )
    lines = "".join(
        f"<li><b>{escape(what)}</b> {size:,} B{escape(f', {why}' if why else '')}</li>"
        for what, size, why, _ in parts
    )
    return Html(
        f"<article><h3>{escape(name)}: {peak['bytes']:,} B</h3>"
        f'<p class="sub">in the {escape(peak["when"])}</p>'
        '<svg class="stacked" viewBox="0 0 100 6" preserveAspectRatio="none" '
        f'aria-hidden="true">{bar}</svg><ol>{lines}</ol>{kept}</article>'
    )
