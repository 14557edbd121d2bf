"""What the one-file report says at first glance, against other ways to find it out."""

import importlib
import re

import numpy as np
import pytest

import tinygrad_helix as th
from tinygrad_helix.accounting import profile
from tinygrad_helix.errors import GraphError, HelixError
from tinygrad_helix.files import write_file
from tinygrad_helix.fused.policy import WEIGHTS, Call
from tinygrad_helix.viz import dial, glance, panels
from tinygrad_helix.viz.answers import Scene
from tinygrad_helix.viz.markup import escape, script_json
from tinygrad_helix.viz.trace import OP, PHASE, describe, during, trace

compare = importlib.import_module("tinygrad_helix.compare")  # th.compare is the function


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(compare, "PAUSE", 0)


def traced(mode, policy=None):
    rng = np.random.default_rng(0)
    block = th.nn.HelixBlock(8, mode=mode, policy=policy, generator=rng)
    x = th.randn(8, 128, 8, generator=rng, requires_grad=True)
    found = trace(profile(lambda x: block(x), {"x": x}, describe=describe))
    return found, block(x)


def names(found, held):
    known = {s["id"]: s["name"] for s in found["graph"]["storages"]}
    return [known[s] for s in held]


@pytest.mark.parametrize("mode", ["composed", "fused"])
def test_during_a_vjp_the_tape_holds_what_it_held_before(mode):
    found, y = traced(mode, "keep9" if mode == "fused" else None)
    sizes = {s["id"]: s["nbytes"] for s in found["graph"]["storages"]}
    walk = th.tape.steps(y, np.ones(y.shape, y.dtype))
    before = walk.live_bytes
    for i, step in enumerate(walk, found["forward"]):
        assert sum(sizes[s] for s in during(found, i)) == before, step.node
        before = step.live_bytes
    top = found["peak"]["event"]
    assert top >= found["forward"]
    assert found["peak"]["held"] == during(found, top)


def test_arrays_at_the_peak_by_name():
    found, _ = traced("fused", "keep9")
    labels = ["a", "f1", "f2", "h", "out1", "s2", "x", "xn2"]
    held = names(found, found["peak"]["held"])
    assert sorted(held) == [f"fused_helix.{label}" for label in labels]
    assert held[0] == "fused_helix.f1"  # twice as wide as the others
    found, _ = traced("composed")
    vjps = [i for i, e in enumerate(found["events"]) if e[PHASE] and e[OP] == "silu"]
    held = names(found, during(found, vjps[0]))
    assert held[0] == "silu.x"  # until its own vjp has run
    assert {"gated_scan.h", "sigmoid.y", "rms.x"} <= set(held)


def three():
    rng = np.random.default_rng(0)
    return {
        name: th.Tensor(rng.standard_normal(4).astype("float32"), requires_grad=True)
        for name in "abc"
    }


def scene(report):
    data = report.to_json()
    return Scene("rows", "", report.reference, data["rows"], report.traces["rows"], {})


def test_every_gradient_that_is_worse_is_named():
    fn = {"one": lambda a, b, c: a * b * c, "two": lambda a, b, c: a * (b * c)}
    report = th.compare(fn, three(), repeats=1)
    report.rows[1].grads.update({"a": 1.0, "b": 0.5, "c": 0.25})
    text = str(glance._gradient_answer(scene(report)))
    assert re.search(r"also worse: b, c\b", text)
    assert text.count("also worse") == 1


def test_three_arrays_of_a_peak_are_named_and_the_others_together():
    def deep(x):
        for _ in range(6):
            x = x.exp().tanh()
        return x

    x = th.Tensor(np.zeros((64, 64)), requires_grad=True)
    report = th.compare({"deep": deep}, {"x": x}, repeats=1)
    held = report.traces["rows"]["deep"]["peak"]["held"]
    assert len(held) > 4
    text = str(panels.peaks(scene(report)))
    assert len(re.findall(r"<li><b>(exp|tanh)\.", text)) == 3
    assert f"<b>{len(held) - 3} more on the tape</b>" in text


def test_more_bytes_are_to_the_right_and_more_flops_above():
    data = dial.dial_data(Call((2, 5, 4), 4, frozenset(("x", *WEIGHTS))), {})
    text = dial._plane(data, 0)
    found = re.findall(r'data-set="(\d+)" cx="([\d.]+)" cy="([\d.]+)"', text)
    assert len(found) == 128
    order = [int(n) for n, _, _ in found]
    for costs, places, sign in (
        (data["bytes"], [float(x) for _, x, _ in found], 1),
        (data["flops"], [float(y) for _, _, y in found], -1),
    ):
        slope = np.polyfit([costs[n] for n in order], places, 1)[0]
        assert slope * sign > 0
        assert np.ptp(places) > 100
    ticks = re.findall(r'class="tick" x="[\d.]+" y="([\d.]+)"', text)
    assert [float(y) for y in ticks] == sorted(map(float, ticks), reverse=True)
    base, most = float(ticks[0]), max(data["flops"])
    assert base > dial._HEIGHT / 2
    at = next(float(y) for n, _, y in found if data["flops"][int(n)] == most)
    assert at == pytest.approx(24)


@pytest.mark.parametrize("name", ["x", "w"])
def test_a_variant_that_returns_what_it_got_is_named(name):
    w = th.nn.Parameter(np.ones(3, np.float32))
    same = {"x": lambda x: x, "w": lambda x: w}[name]
    x = th.ones(3, requires_grad=True)
    with pytest.raises(GraphError, match="variant 'same' returned an input or a param"):
        th.compare({"fine": lambda x: x * w, "same": same}, {"x": x}, repeats=1)


@pytest.mark.parametrize("taken", ["report.json", "report.html", "timeline.png"])
def test_a_folder_in_the_place_of_a_file_is_an_error_in_words(taken, tmp_path):
    if taken == "timeline.png":
        pytest.importorskip("matplotlib")
    (tmp_path / taken).mkdir()
    report = th.compare({"one": lambda a, b, c: a * b * c}, three(), repeats=1)
    with pytest.raises(
        HelixError, match=rf"{taken}' .*\(Is a directory\)|{taken}.*Is a dir"
    ):
        report.save(tmp_path)


def test_a_file_is_written_as_it_is_or_there_is_an_error(tmp_path):
    path = write_file(tmp_path / "a" / "b.txt", "é\n\ud800", make_folder=True)
    assert path.read_bytes() == b"\xc3\xa9\n?"
    with pytest.raises(HelixError, match="cannot be written"):
        write_file(tmp_path / "c" / "b.txt", b"")


def test_what_turns_the_direction_of_writing_is_shown_as_a_sign():
    assert escape("a\u202eb\nc\x00<") == "a�b\nc�&lt;"
    assert script_json({"op\u202e": ["line\n\u2066", 1, None]}) == (
        '{"op\\ufffd":["line\\n\\ufffd",1,null]}'
    )


def test_the_page_takes_no_scene_that_every_object_has():
    template = glance.__file__.replace("glance.py", "template.html")
    with open(template, encoding="utf-8") as file:
        text = file.read()
    assert " in scenes" not in text
    assert 'Object.hasOwn(scenes, part.get("scene"))' in text
