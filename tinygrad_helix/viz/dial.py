"""The policy dial of the report: what every set of kept arrays costs, for one call.

A set is a number: bit i says that `KEEPABLE[i + 1]` is kept (x always is).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ..fused.policy import KEEPABLE, POLICIES, VALUES, Call, extra_flops, kept
from .bands import round_steps
from .markup import Html, escape, table
from .timeline import bytes_text

__all__ = ["dial_data", "dial_panel", "number_of", "set_of"]

_OPTIONAL = KEEPABLE[1:]
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 330, 74, 44


def set_of(number: int) -> tuple[str, ...]:
    """The names in a set."""
    return ("x", *(name for i, name in enumerate(_OPTIONAL) if number >> i & 1))


def number_of(names: Sequence[str]) -> int:
    """The number of a set."""
    return sum(1 << i for i, name in enumerate(_OPTIONAL) if name in names)


def dial_data(call: Call, measured: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Bytes and extra FLOPs of all 128 sets, by `fused.policy`; `measured` maps the
    variants that were run to the sets that they keep."""
    numbers = range(1 << len(_OPTIONAL))
    _, _, D = call.shape
    return {
        "names": list(KEEPABLE),
        "widths": [VALUES[name].width for name in KEEPABLE],
        "shape": list(call.shape),
        "itemsize": call.itemsize,
        "bytes": [sum(kept(call, set_of(n)).values()) for n in numbers],
        "flops": [extra_flops(call, set_of(n)) for n in numbers],
        "products": 42 * call.rows * D * D,
        "policies": {
            name: number_of(policy.names)
            for name, policy in POLICIES.items()
            if name.startswith("keep")
        },
        "measured": {name: number_of(names) for name, names in measured.items()},
    }


def _flops(n: float) -> str:
    for unit, size in (("GFLOP", 1e9), ("MFLOP", 1e6), ("kFLOP", 1e3)):
        if n >= size:
            return f"{n / size:.3g} {unit}"
    return f"{n:.0f} FLOP"


def dial_panel(data: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Html:
    """Checkboxes, numbers, the plane of all sets, and a table of the named ones."""
    start = data["policies"]["keep6"]
    boxes = "".join(
        f'<label><input type="checkbox" data-bit="{i - 1}"{" checked" if on else ""}'
        f"{' disabled' if i == 0 else ''}> <b>{escape(name)}</b> "
        f"<span>{data['widths'][i]}·D{' · always kept' if i == 0 else ''}</span></label>"
        for i, name in enumerate(data["names"])
        for on in [i == 0 or start >> (i - 1) & 1]
    )
    presets = "".join(
        f'<button type="button" data-set="{n}">{escape(name)}</button>'
        for name, n in data["policies"].items()
    )
    by_name = {r["variant"]: r for r in rows}
    runs = {n: by_name[name] for name, n in data["measured"].items() if name in by_name}
    lines = [
        [
            name,
            ", ".join(set_of(n)),
            f"{data['bytes'][n]:,}",
            f"{data['flops'][n]:,}",
            f"{data['flops'][n] / data['products']:.1%}",
            f"{runs[n]['peak_bytes']:,}" if n in runs else "–",
            f"{runs[n]['step_ms']['median']:.2f}" if n in runs else "–",
        ]
        for name, n in data["policies"].items()
    ]
    head = [
        "policy", "keeps", "saved, B", "extra FLOPs", "of the products",
        "peak, B", "step, ms",
    ]  # fmt: skip
    B, T, D = data["shape"]
    return Html(
        "<p>The fused HELIX block keeps x and any of seven more arrays; what its backward "
        "pass needs beyond them it makes again. Bytes and FLOPs follow from the shape, "
        f"here B={B}, T={T}, D={D}, {data['itemsize']} bytes a number; peak and time "
        "are there for the sets that were run.</p>"
        '<div class="dial"><form id="dial-form" class="js" aria-label="arrays to keep">'
        f'<fieldset><legend>Keep</legend>{boxes}</fieldset><p class="presets">{presets}</p>'
        "</form>"
        '<dl id="dial-now" class="js" aria-live="polite">'
        '<dt>set</dt><dd data-now="set"></dd>'
        '<dt>saved</dt><dd><b data-now="bytes"></b> B</dd>'
        '<dt>extra FLOPs</dt><dd><b data-now="flops"></b> '
        '<span data-now="part"></span></dd>'
        '<dt>peak, measured</dt><dd data-now="peak"></dd>'
        '<dt>step, measured</dt><dd data-now="time"></dd>'
        '<dt>is it a good set?</dt><dd data-now="front"></dd></dl>'
        '<div class="wide plane-box" role="region" tabindex="0" '
        f'aria-label="the plane of all sets">{_plane(data, start)}</div></div>'
        + table("The named policies", head, lines, words=(1,), stack=True)
    )


def frontier(data: Mapping[str, Any]) -> list[int]:
    """The sets that no other one beats in bytes or FLOPs without losing in the other."""
    costs = list(zip(data["bytes"], data["flops"], range(len(data["bytes"])), strict=True))
    best: list[int] = []
    least = None
    for _, flops, n in sorted(costs):
        if least is None or flops < least:
            best.append(n)
            least = flops
    return best


def _plane(data: Mapping[str, Any], start: int) -> str:
    """All sets as points: bytes to the right, extra FLOPs upwards."""
    most, top = max(data["bytes"]) or 1, max(data["flops"]) or 1

    def x(n: int) -> float:
        return _LEFT + (_WIDTH - _LEFT - 20) * data["bytes"][n] / most

    def y(n: int) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - 24) * data["flops"][n] / top

    points = "".join(
        f'<circle class="set" data-set="{n}" cx="{x(n):.1f}" cy="{y(n):.1f}" r="3">'
        f"<title>keep({','.join(set_of(n))}): {data['bytes'][n]:,} B, "
        f"{data['flops'][n]:,} FLOPs</title></circle>"
        for n in range(len(data["bytes"]))
    )
    front = frontier(data)
    line = "L".join(f"{x(n):.1f} {y(n):.1f}" for n in front)
    named = "".join(
        f'<path class="named" d="M{x(n):.1f} {y(n) - 6:.1f}l6 6l-6 6l-6 -6Z"/>'
        f'<text class="label{" end" if x(n) > _WIDTH - 60 else ""}" '
        f'x="{x(n) + (-9 if x(n) > _WIDTH - 60 else 9):.1f}" y="{y(n) - 7:.1f}">'
        f"{escape(name)}</text>"
        for name, n in data["policies"].items()
    )
    base = _HEIGHT - _BOTTOM
    axis = f'<path class="axis" d="M{_LEFT} 14V{base}H{_WIDTH - 12}"/>'
    ticks = "".join(
        f'<text class="tick phase" x="{_LEFT + (_WIDTH - _LEFT - 20) * k / most:.1f}" '
        f'y="{base + 16}">{bytes_text(k)}</text>'
        for k in round_steps(most)
    )
    ticks += "".join(
        f'<text class="tick" x="{_LEFT - 6}" y="{base - (base - 24) * k / top + 4:.1f}">'
        f"{_flops(k)}</text>"
        for k in round_steps(top)
    )
    title = (
        "All 128 sets of kept arrays: bytes saved to the right, FLOPs that the backward "
        "pass repeats upwards. The line joins the sets that no other one beats in both."
    )
    return (
        f'<svg class="plane" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{title}"><title>{title}</title>{axis}{ticks}'
        f'<text class="tick phase" x="{(_LEFT + _WIDTH) / 2:.0f}" y="{_HEIGHT - 8}">'
        "bytes saved for the backward pass of one call</text>"
        f'<path class="front" d="M{line}"/>{points}{named}'
        f'<circle id="dial-here" class="js" cx="{x(start):.1f}" cy="{y(start):.1f}" '
        'r="10"/>'
        "</svg>"
    )
