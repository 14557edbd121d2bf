"""Live memory drawn: curves, bands, their names, and files."""

import sys
from itertools import combinations, pairwise
from xml.etree import ElementTree

import numpy as np
import pytest

import tinygrad_helix as th
from tinygrad_helix.accounting import profile
from tinygrad_helix.errors import BackendUnavailableError, DTypeError, HelixError
from tinygrad_helix.memory import Event
from tinygrad_helix.viz.timeline import Curve, Timeline, bytes_text, draw_timeline

matplotlib = pytest.importorskip(
    "matplotlib", reason="needs matplotlib (pip install .[viz])"
)


def composed(x, w):
    return ((x @ w).silu() * x).tanh().sum()


def square(x, w):
    return (x * x).sum() + (w * 0).sum()


def sums(x, w):
    """What peaks in the forward pass, beside an input that the tape does not save."""
    return (x * 2 + x * 3).sum() + (w * 0).sum()


def inputs():
    rng = np.random.default_rng(0)
    return {
        "x": th.Tensor(rng.standard_normal((64, 128)), requires_grad=True),
        "w": th.nn.Parameter(rng.standard_normal((128, 128))),
    }


@pytest.fixture(scope="module")
def two():
    return th.viz.timeline({"composed": composed, "square": square}, inputs())


def block(mode, policy=None):
    def fn(x, **weights):
        return th.helix_block(x, *weights.values(), mode=mode, policy=policy).sum()

    return fn


@pytest.fixture(scope="module")
def blocks():
    weights = dict(th.nn.HelixBlock(32).named_parameters())
    variants = {
        "composed": block("composed"),
        "primitive": block("primitive"),
        **{f"fused {p}": block("fused", p) for p in ("keep9", "keep6", "keep2", "keep1")},
    }
    return th.viz.timeline(
        variants, {"x": th.randn(4, 64, 32, requires_grad=True)} | weights, title="HELIX"
    )


# --- the numbers


def test_bands_at_the_end_of_the_forward_pass_are_what_the_tape_holds(two):
    y = composed(**inputs())
    held = {}
    for s in th.memory.saved(y):
        if s.first and not s.parameter:
            held[f"{s.op}.{s.label}"] = held.get(f"{s.op}.{s.label}", 0) + s.nbytes
    curve = two.curves()["composed"]
    assert {name: h[curve.end] for name, h in curve.bands.items()} == held
    assert sum(held.values()) == th.saved_bytes(y)
    assert curve.times[curve.end] == 1
    assert all(h[0] == h[-1] == 0 for h in curve.bands.values())


def test_the_peak_is_that_of_compare(two):
    phases = set()
    for name, fn in {"composed": composed, "square": square, "sums": sums}.items():
        found = profile(fn, inputs())
        live = two if name in two.steps else th.viz.timeline({name: fn}, inputs())
        curve = live.curves()[name]
        phases.add(curve.peak.phase)
        # Python's own objects differ by a few hundred bytes from run to run.
        assert curve.ys[curve.at] == pytest.approx(found.peak_bytes, abs=4096)
        assert curve.peak.op == found.peak_at["node"]
        assert curve.peak.phase == found.peak_at["phase"]
        assert curve.most[0] == found.peak_at["label"]
    assert phases == {"forward", "backward"}


def event(phase, op, bands, peak, live, gradients=0):
    return Event(phase, op, "f.py:1", bands, gradients, live, peak)


BY_HAND = [
    event("forward", "exp", {"exp.y": 80}, 100, 80),
    event("forward", "sum", {"exp.y": 80}, 90, 88),
    event("backward", "sum", {"exp.y": 80}, 170, 160),
    event("backward", "exp", {}, 260, 85, gradients=80),
]


def test_a_curve_by_hand():
    curve = Curve.of(BY_HAND)
    assert curve.xs == [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2]
    assert curve.ys == [0, 100, 80, 90, 88, 170, 160, 180, 5]
    steps = dict(zip(curve.times, curve.bands["exp.y"], strict=True))  # the later of two
    assert steps == {0: 0, 0.25: 80, 0.5: 80, 0.75: 80, 1: 80, 1.5: 80, 2: 0}
    assert (curve.at, curve.peak.op, curve.most) == (7, "exp", ("exp.y", 80))
    at, most = curve.summary.splitlines()
    assert (at, most) == (
        "peak 180 B in backward of exp",
        "most saved under one label: exp.y, 80 B",
    )


@pytest.mark.parametrize(
    "n, text",
    [(0, "0 B"), (999, "999 B"), (1234567, "1.23 MB"), (999_600, "1 MB"), (5e9, "5 GB")],
)
def test_bytes_in_three_digits(n, text):
    assert bytes_text(n) == text


# --- the picture


def texts(figure):
    """What is written in a figure, each with the box that it takes."""
    figure.canvas.draw()
    unseen = set()
    for axes in figure.axes:
        low, high = axes.get_ylim()
        for tick in axes.yaxis.get_major_ticks():
            if not low <= tick.get_loc() <= high:
                unseen |= {tick.label1, tick.label2}
    return [
        (text.get_text(), text.get_window_extent())
        for text in figure.findobj(matplotlib.text.Text)
        if text.get_text().strip() and text.get_visible() and text not in unseen
    ]


def assert_legible(figure):
    """No two texts overlap, and none leaves the picture."""
    found = texts(figure)
    for (a, box_a), (b, box_b) in combinations(found, 2):
        inner = box_a.padded(-1)
        assert not inner.overlaps(box_b.padded(-1)), f"{a!r} and {b!r} overlap"
    for text, box in found:
        assert box.x0 >= 0 and box.x1 <= figure.bbox.x1, text
        assert box.y0 >= 0 and box.y1 <= figure.bbox.y1, text
    return " ".join(text for text, _ in found)


@pytest.mark.parametrize("bands", [True, False])
def test_every_variant_and_peak_is_named_and_no_name_overlaps(blocks, bands):
    words = assert_legible(blocks.figure(bands))
    assert "HELIX" in words
    for name, curve in blocks.curves().items():
        assert words.count(f"{name}: {curve.summary}") == (2 if bands else 1)


def test_bands_are_named_where_they_are_and_thin_ones_together(blocks):
    words = assert_legible(blocks.figure())
    for name in ("silu.x", "matmul.a", "mul.a", "rms.x", "smaller"):
        assert name in words
    assert "fused_helix: a h s2 out1 xn2 f2 x" in words or "fused_helix.a" in words


def test_neighbours_differ_in_grey(two):
    from matplotlib.collections import PolyCollection

    axes = two.figure().axes[1]
    bands = axes.findobj(PolyCollection)[1:]  # the first is what is not on the tape
    looks = [(tuple(c.get_facecolor()[0]), c.get_hatch()) for c in bands]
    assert len(looks) == len(set(looks)) >= 3
    assert all(a[1] != b[1] for a, b in pairwise(looks))


def test_peaks_are_marked(two):
    axes = two.figure(bands=False).axes[0]
    marked = {
        (line.get_xdata()[0], line.get_ydata()[0])
        for line in axes.lines
        if line.get_marker() not in ("None", None) and line.get_xdata()[0] <= 2
    }
    assert marked == {(c.xs[c.at], c.ys[c.at]) for c in two.curves().values()}


def test_all_panels_share_the_scale(blocks):
    first, *panels = blocks.figure().axes
    assert first.get_ylim()[0] == 0
    assert len(panels) == 6
    assert len({axes.get_ylim() for axes in panels}) == 1


def test_one_function_alone(tmp_path):
    live = th.viz.timeline(composed, inputs(), parameters=["w"])
    figure = live.figure()
    assert len(figure.axes) == 1
    assert "composed: peak" in assert_legible(figure)


@pytest.mark.parametrize(
    "suffix, head", [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")]
)
def test_files_are_the_same_each_time(two, tmp_path, suffix, head):
    first = two.save(tmp_path / f"a{suffix}")
    again = two.save(tmp_path / f"b{suffix}")
    assert first.read_bytes().startswith(head)
    assert first.read_bytes() == again.read_bytes()
    if suffix == ".svg":
        ElementTree.parse(first)


def test_draw_timeline_writes_three_files(tmp_path):
    paths = draw_timeline({"by hand": BY_HAND}, tmp_path / "t", "title")
    assert [p.name for p in paths] == ["t.png", "t.svg", "t.pdf"]
    assert all(p.stat().st_size > 1000 for p in paths)


def test_in_a_notebook_and_as_text(two, tmp_path):
    svg = two._repr_html_()
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert "width" not in svg.partition(">")[0]
    assert "composed" in str(two)
    path = two.save(tmp_path / "t.txt")
    assert path.read_text(encoding="utf-8") == f"{two}\n"


# --- bad input


def test_without_matplotlib_the_line_that_installs_it(two, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(
        BackendUnavailableError, match=r'pip install "tinygrad_helix\[viz\]"'
    ):
        two.save(tmp_path / "t.png")
    assert not (tmp_path / "t.png").exists()
    assert two.save(tmp_path / "t.txt").exists()


def test_bad_names_of_files(two, tmp_path):
    with pytest.raises(HelixError, match=r"'t\.jpg'.*ends in one of \.png, \.svg"):
        two.save("t.jpg")
    with pytest.raises(HelixError, match=r"cannot be written to .*No such file"):
        two.save(tmp_path / "no" / "t.svg")


@pytest.mark.parametrize(
    "variants, given",
    [({}, {}), ({"a": 3}, {}), (composed, [1]), (3, {})],
)
def test_bad_arguments(variants, given):
    with pytest.raises(DTypeError, match="function"):
        th.viz.timeline(variants, given)


def test_a_function_without_a_graph():
    with pytest.raises(HelixError, match="requires_grad=True"):
        th.viz.timeline(lambda x: x * 2, {"x": th.ones(3)})


def test_nothing_alive_at_all(tmp_path):
    events = [event("forward", "f", {}, 0, 0), event("backward", "f", {}, 0, 0)]
    assert_legible(Timeline({"empty": events}).figure())
