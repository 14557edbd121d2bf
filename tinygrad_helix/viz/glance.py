"""The first panel of the report: what a reader looks for first, answered by variant."""

from collections.abc import Mapping, Sequence
from typing import Any

from .answers import (
    Reader,
    Scene,
    differences,
    exact,
    number,
    pair,
    verdict,
    worst_gradient,
)
from .markup import Html, escape, join, note, table

__all__ = ["glance"]


def glance(scene: Scene) -> Html:
    """The answers that a reader looks for first."""
    readers = scene.readers
    most = max(r["peak_bytes"] for r in scene.rows) or 1
    bars = [
        [
            r["variant"],
            Html(
                '<span class="bar" aria-hidden="true">'
                f'<i class="top" style="width:{max(0, r["peak_bytes"]) / most:.1%}"></i>'
                '<i class="saved" '
                f'style="width:{r["saved_bytes"]["counted"] / most:.1%}"></i>'
                "</span>"
            ),
            exact(r["saved_bytes"]["counted"]),
            exact(r["peak_bytes"]),
        ]
        for r in scene.rows
    ]
    a, b = pair(scene.rows)
    trade = _trade(scene, a, b) if a != b else note("There is one variant only.")
    return join(
        Html('<div class="answers">'),
        _answer(
            "What does each keep, and how high does it peak?",
            table(
                "Saved for the backward pass (solid), inside the step's peak (hatched)",
                ["variant", "", "saved, B", "peak, B"],
                bars,
                words=(1,),
            ),
        ),
        _answer(
            "Which gradient differs most, and is that worse than rounding?",
            _gradient_answer(scene),
        ),
        _answer(
            "Which array is the peak, and why is it alive?", _peak_table(readers), full=True
        ),
        _answer("What does one variant give up against another?", trade),
        _answer("Which node frees most?", _frees_table(readers, scene.rows)),
        _answer(
            "Which storages have two holders or more?", _shared_table(readers), full=True
        ),
        Html("</div>"),
    )


def _peak_table(readers: Mapping[str, Reader]) -> Html:
    rows = []
    for name, reader in readers.items():
        peak = reader.peak()
        what, why = reader.mostly()
        sizes = [exact(peak[k]) for k in ("bytes", "tape", "waiting", "rest")]
        rows.append([name, *sizes, peak["when"], what, why])
    head = ["variant", "peak, B", "on the tape", "waiting", "made there", "when"]
    head += ["what most of it is", "alive because"]
    small = (
        "Waiting: cotangents on their way, values that the caller holds, Python objects. "
        "Made there: what the node makes itself while it runs, less the gradients that it "
        "returns; it is on no tape. The panel Peaks has the lines that make most of it."
    )
    return join(
        table("The highest point of the step", head, rows, words=(5, 6, 7), stack=True),
        note(small),
    )


def _frees_table(readers: Mapping[str, Reader], rows: Sequence[Mapping[str, Any]]) -> Html:
    lines = []
    for r in rows:
        node, freed = readers[r["variant"]].frees_most()
        total = r["saved_bytes"]["counted"]
        part = f"{freed / total:.0%}" if total else "–"
        lines.append([r["variant"], node, f"{freed:,}", part])
    head = ["variant", "node", "frees, B", "of saved"]
    caption = "The node whose vjp lets go of most"
    return table(caption, head, lines, words=(1,))


def _trade(scene: Scene, a: str, b: str) -> Html:
    """One pair as a table; the page puts another there when two others are chosen."""
    by_name = {r["variant"]: r for r in scene.rows}

    def choose(which: str, chosen: str) -> str:
        options = "".join(
            f"<option{' selected' if name == chosen else ''}>{escape(name)}</option>"
            for name in by_name
        )
        return (
            f'<label>{"" if which == "a" else "against "}<select data-pair="{which}" '
            f'aria-label="variant {which}">{options}</select></label>'
        )

    lines = differences(by_name[a], by_name[b], scene.flops)
    return join(
        Html(f'<p class="js pair">{choose("a", a)} {choose("b", b)}</p>'),
        Html('<div class="trade">'),
        table(f"{a} against {b}", ["", a, b, "difference"], lines, stack=True),
        Html("</div>"),
    )


def _shared_table(readers: Mapping[str, Reader]) -> Html:
    rows, without = [], []
    for name, reader in readers.items():
        shared = reader.shared()
        if not shared:
            without.append(name)
            continue
        words = [
            f"{reader.storages[s]['name']}, {reader.size(s):,} B, {reader.what(s)}: "
            + "; ".join(reader.why(s))
            for s in shared
        ]
        items = "".join(f"<li>{escape(w)}</li>" for w in words)
        listed = Html(f"<ul>{items}</ul>")
        if len(words) > 4:
            listed = Html(f"<details><summary>all {len(words)}</summary>{listed}</details>")
        rows.append([name, str(len(shared)), f"{sum(map(reader.size, shared)):,}", listed])
    head = ["variant", "storages", "bytes", "held by"]
    caption = "Storages that several saved tensors share"
    found = table(caption, head, rows, words=(3,), stack=True) if rows else Html("")
    small = "Each counts once; it is freed when the last of its holders has run its vjp."
    none = f"None in: {', '.join(without)}." if without else ""
    return join(found, note(f"{small if rows else ''} {none}".strip()))


def _gradient_answer(scene: Scene) -> Html:
    rows, own = [], scene.own
    for r in scene.rows:
        worst = worst_gradient(r)
        if worst is None:
            rows.append([r["variant"], "–", "–", "–", "no gradient was compared"])
            continue
        name, error = worst
        bad, words = verdict(error, own.get(name))
        if r["variant"] == scene.reference and r["grads"]:
            bad, words = False, "its own rounding"
        others = [
            k
            for k, e in r["grads"].items()
            if k != name and verdict(e, own.get(k))[0] and r["variant"] != scene.reference
        ]
        if others:
            bad = True
            words += f"; also worse: {', '.join(others)}"
        sign = Html('<span class="bad">▲</span> ') if bad else ""
        of = number(own[name]) if name in own else "–"
        rows.append([r["variant"], name, number(error), of, join(sign, words)])
    against = f"a float64 run of {scene.reference}" if own else scene.reference
    caption = f"The input whose gradient differs most from {against}: max|g − r| / max|r|"
    head = ["variant", "input", "error", f"{scene.reference}'s own", "verdict"]
    return table(caption, head, rows, words=(1, 4))


def _answer(title: str, *answer: Any, full: bool = False) -> Html:
    kind = "answer full" if full else "answer"
    head = Html(f'<div class="{kind}"><h3>{escape(title)}</h3>')
    return join(head, *answer, Html("</div>"))
