"""The tutorials and the worked example run, and keep what they say they keep."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

import tinygrad_helix as th
from tinygrad_helix import cli, tutorial
from tinygrad_helix.cuda.toolkit import compiler, headers, missing
from tinygrad_helix.errors import HelixError
from tinygrad_helix.viz.sketch import Sketch, bars

ROOT = Path(__file__).parent.parent
TUTORIALS = ROOT / "tutorials"
SWIGLU = TUTORIALS / "swiglu.py"
README = (TUTORIALS / "README.md").read_text(encoding="utf-8")
LADDER = [t for t in tutorial.tutorials() if t.name[0].isdigit()]

each = pytest.mark.parametrize("t", LADDER, ids=lambda t: t.name)


def skipped(t):
    """{exercise: why it is skipped here}: those that begin with `skip_if(absent)`."""
    absent = missing(compiler, headers)
    found = re.findall(r"^with exercise\((\d+)\):\n    skip_if\(absent\)$", t.text, re.M)
    return {} if absent is None else {int(n): absent for n in found}


def python(*args, cwd, **environment):
    return subprocess.run(
        [sys.executable, *map(str, args)],
        cwd=cwd,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONIOENCODING": "utf-8",
            **environment,
        },
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
    )


# --- the ladder


def test_the_ladder_is_whole():
    assert [t.name[:3] for t in LADDER] == [f"{n:02}_" for n in range(1, len(LADDER) + 1)]
    for t in LADDER:
        assert f"[{t.name[:2]} {t.title}]({t.path.name})" in README
        assert f"(figures/{t.name}.svg)" in README


@each
def test_it_is_short_and_its_marks_match(t):
    lines = t.text.splitlines()
    assert len(lines) < 250
    assert max(map(len, lines)) <= 92
    assert len(t.exercises) in (2, 3)
    assert t.exercises == list(range(1, len(t.exercises) + 1))
    marks = [line.strip() for line in lines if line.strip().startswith("###")]
    assert len(marks) >= 2 * len(t.exercises)
    assert marks[::2] == ["### BEGIN SOLUTION"] * (len(marks) // 2)
    assert marks[1::2] == ["### END SOLUTION"] * (len(marks) // 2)
    assert t.text.startswith(f"# %% [markdown]\n# # {t.name[:2]} ")


@each
def test_it_runs_its_solutions_are_right_and_it_draws_the_picture_shown(t, tmp_path):
    out = python("-W", "error", t.path, cwd=tmp_path)
    assert out.returncode == 0, out.stderr
    said = re.findall(r"^exercise .*$", out.stdout, re.MULTILINE)
    why = skipped(t)
    assert said == [
        f"exercise {n}: " + (f"skipped: {why[n]}" if n in why else "right")
        for n in t.exercises
    ]
    drawn = {p.name: p.read_text(encoding="utf-8") for p in tmp_path.glob("figures/*.svg")}
    assert f"{t.name}.svg" in drawn
    assert sorted(p.name for p in tmp_path.iterdir()) == ["figures"]
    committed = TUTORIALS / "figures" / f"{t.name}.svg"
    shown = committed.read_text(encoding="utf-8")
    number = r"-?\d+(?:\.\d+)?"
    assert re.sub(number, "#", drawn[committed.name]) == re.sub(number, "#", shown)
    got, due = (
        np.array(re.findall(number, text), float) for text in (drawn[committed.name], shown)
    )
    # A point that shows a rounding error is elsewhere on a machine that rounds otherwise.
    assert np.abs(got - due).max() <= (12 if t.name.startswith("04") else 0.11)


@each
def test_the_student_edition_says_what_is_still_to_do(t, tmp_path, monkeypatch, capsys):
    text = tutorial.student(t.text)
    assert "SOLUTION" not in text
    holes = t.text.count("### BEGIN SOLUTION")
    assert text.count("raise NotImplementedError  # your code here") == holes
    for solution in re.findall(r"### BEGIN SOLUTION\n(.*?)### END", t.text, re.DOTALL):
        assert solution.rstrip() not in text
    monkeypatch.chdir(tmp_path)
    why = skipped(t)
    assert tutorial.run(t, text) == {n: None if n in why else False for n in t.exercises}
    said = re.findall(r"^exercise .*$", capsys.readouterr().out, re.MULTILINE)
    assert len(said) == len(t.exercises)
    for n, line in zip(t.exercises, said, strict=True):
        assert n in why or re.fullmatch(
            rf"exercise {n}: still to do \(line \d+, in \w+\): replace "
            r"`raise NotImplementedError`",
            line,
        )


@each
def test_an_empty_answer_is_never_right(t, tmp_path, monkeypatch, capsys):
    hole = "raise NotImplementedError  # your code here"
    text = tutorial.student(t.text).replace(hole, "return None")
    monkeypatch.chdir(tmp_path)
    why = skipped(t)
    assert tutorial.run(t, text) == {n: None if n in why else False for n in t.exercises}
    said = capsys.readouterr().out
    for n in t.exercises:
        assert n in why or re.search(
            rf"^exercise {n}: (not right yet|your code raised)", said, re.M
        )


NO_HEADERS = """
import runpy, sys
sys.modules["cuda"] = None
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.mark.parametrize(
    ("args", "environment", "why"),
    [
        ([], {"PATH": "nowhere"}, "needs the compiler g++"),
        (["-c", NO_HEADERS], {}, "cuda-pathfinder is missing. pip install"),
    ],
    ids=["no g++", "no headers"],
)
@pytest.mark.host
def test_11_runs_where_kernels_do_not(args, environment, why, tmp_path):
    t = tutorial.find("11")
    out = python("-W", "error", *args, t.path, cwd=tmp_path, **environment)
    assert out.returncode == 0, out.stderr
    said = out.stdout.splitlines()
    assert why in said[0] and "without the barrier: [" in out.stdout
    assert said[-2:] == ["exercise 1: right", f"exercise 2: skipped: {said[0]}"]
    drawn = (tmp_path / "figures" / f"{t.name}.svg").read_text(encoding="utf-8")
    shown = (TUTORIALS / "figures" / f"{t.name}.svg").read_text(encoding="utf-8")
    assert drawn == shown


def test_a_skipped_exercise_is_neither_right_nor_wrong(tmp_path, capsys):
    path = tmp_path / "99_mine.py"
    path.write_text(
        "from tinygrad_helix.tutorial import exercise, skip_if\n"
        "with exercise(1):\n    skip_if('no moon')\n"
        "with exercise(2):\n    skip_if(None)\n"
    )
    assert tutorial.run(tutorial.Tutorial(path)) == {1: None, 2: True}
    assert capsys.readouterr().out == ("exercise 1: skipped: no moon\nexercise 2: right\n")


def test_an_exercise_says_how_it_stands(capsys):
    def mine():
        return np.linalg.inv(np.ones((2, 3)))  # raises inside NumPy

    with tutorial.exercise(1):
        assert np.eye(2).sum() == 2
    with tutorial.exercise(2):
        raise AssertionError("two and one")
    with tutorial.exercise(3):
        mine()
    with tutorial.exercise(4):
        raise NotImplementedError
    with tutorial.exercise(5):
        raise AssertionError
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "exercise 1: right"
    assert lines[1] == "exercise 2: not right yet: two and one"
    assert re.match(
        r"exercise 3: your code raised LinAlgError \(line \d+, in mine\): ", lines[2]
    )
    assert lines[3].startswith("exercise 4: still to do")
    assert lines[4].startswith("exercise 5: not right yet")
    with pytest.raises(KeyboardInterrupt), tutorial.exercise(6):
        raise KeyboardInterrupt


# --- the README's table


def test_the_three_forms_are_as_the_table_says():
    x = th.ones(8, 128, 128, requires_grad=True)
    weights = list(th.nn.HelixBlock(128).parameters())
    rows = re.findall(r"^\| (primitive|composed|fused, keep\d) \|(.*)\|$", README, re.M)
    assert len(rows) == 8
    for name, cells in rows:
        mode, _, policy = name.partition(", ")
        y = th.helix_block(x, *weights, mode=mode, policy=policy or None)
        nodes = th.memory.nodes(y)
        saved = [s for s in th.memory.saved(y) if not s.parameter]
        kept = th.saved_bytes(y)
        due = [
            sum(node.op.name != "getitem" for node in nodes),
            len(nodes),
            len(saved),
            sum(s.first for s in saved),
            f"{kept:,}",
            f"{kept / x.nbytes:.4g}·D",
        ]
        assert [cell.strip() for cell in cells.split("|")] == list(map(str, due)), name


# --- the command


def test_the_command_lists_prints_and_exports(tmp_path, capsys):
    assert cli.main(["tutorial"]) == 0
    listed = capsys.readouterr().out
    for t in tutorial.tutorials():
        assert re.search(rf"^{t.name} +{re.escape(t.title)}$", listed, re.MULTILINE)
    for name in ("3", "03", "03_broadcasting"):
        assert cli.main(["tutorial", name]) == 0
        assert capsys.readouterr().out == LADDER[2].text
    file = tmp_path / "mine.py"
    assert cli.main(["tutorial", "4", "--student", "--script", str(file)]) == 0
    assert file.read_text(encoding="utf-8") == tutorial.student(LADDER[3].text)
    assert capsys.readouterr().out == ""
    assert cli.main(["tutorial", "1", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["name"], found["exercises"]) == ("01_chain_rule", [1, 2, 3])
    assert cli.main(["tutorial", "--json", "-"]) == 0
    assert len(json.loads(capsys.readouterr().out)["tutorials"]) == len(LADDER) + 1


def test_the_command_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["tutorial", "1", "--run"]) == 0
    assert "exercise 3: right" in capsys.readouterr().out
    assert cli.main(["tutorial", "1", "--run", "--student", "--json", "-"]) == 1
    streams = capsys.readouterr()
    assert json.loads(streams.out)["right"] == {"1": False, "2": False, "3": False}
    assert "exercise 3: still to do" in streams.err


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["12"], "there is no tutorial '12'. There are 01_chain_rule, "),
        (["--run"], "which tutorial?"),
        (["1", "--script", "no/where/x.py"], "'no/where/x.py' cannot be written"),
    ],
)
def test_the_command_refuses(args, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["tutorial", *args]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert says in streams.err


@pytest.mark.parametrize("option", ["--notebook", "--html"])
def test_a_missing_extra_is_named(option, tmp_path, monkeypatch, capsys):
    for module in ("jupytext", "nbconvert"):
        monkeypatch.setitem(sys.modules, module, None)
    assert cli.main(["tutorial", "1", option, str(tmp_path / "x")]) == 2
    said = capsys.readouterr().err
    assert 'python -m pip install "tinygrad_helix[tutorials]"' in said
    assert not (tmp_path / "x").exists()


@each
def test_it_becomes_a_notebook(t):
    pytest.importorskip("jupytext", reason="no jupytext: pip install '.[tutorials]'")
    import nbformat

    made = nbformat.reads(tutorial.notebook_text(t.text), as_version=4)
    nbformat.validate(made)
    kinds = [cell.cell_type for cell in made.cells]
    assert kinds[0] == "markdown"
    assert made.cells[0].source.startswith(f"# {t.name[:2]} ")
    assert kinds.count("code") == t.text.count("\n# %%\n")
    for cell in made.cells:
        if cell.cell_type == "code":
            compile(cell.source, t.name, "exec")
    assert tutorial.notebook_text(t.text) == tutorial.notebook_text(t.text)


def test_one_is_run_as_a_notebook_and_becomes_a_page(tmp_path):
    for module in ("jupytext", "nbclient", "nbconvert", "ipykernel"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"no {module}: pip install '.[tutorials]'")
    args = ("tutorial", "5", "--html", "page.html")
    out = python("-m", "tinygrad_helix", *args, cwd=tmp_path)
    assert out.returncode == 0, out.stderr
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    for n in (1, 2):
        assert f"exercise {n}: right" in page
    assert "<svg" in page
    assert "seven saved tensors of g" in page  # the picture's title
    assert "ipykernel" not in page
    assert re.search(r"\bcell 1, line \d+", page)  # in the table of saved tensors
    assert "pre-wrap" in page
    assert not re.search(r"(src|href)=['\"]?(https?:)?//", page)
    assert "<script" not in page
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


# --- the pictures


def test_a_sketch_is_xml_with_what_was_drawn(tmp_path):
    sheet = Sketch(200, 100, 'a < b & "c"').box(50, 50, "a<b").box(150, 50, "c&d\ntwo")
    sheet.join("a<b", "c&d\ntwo", dashed=True).text(10, 10, "<end>", bold=True).dot(1, 2)
    sheet.save(tmp_path / "new" / "folder.svg")
    root = ET.fromstring((tmp_path / "new" / "folder.svg").read_text(encoding="utf-8"))
    svg = "{http://www.w3.org/2000/svg}"
    assert root.find(f"{svg}title").text == 'a < b & "c"'
    words = [t.text for t in root.iter(f"{svg}text")]
    assert words == ["a<b", "c&d", "two", "<end>"]
    (path,) = root.findall(f"{svg}path")
    (x1, _), (x2, _) = re.findall(r"([\d.]+) ([\d.]+)", path.get("d"))
    left, right = root.findall(f"{svg}rect")[1:]
    assert float(x1) == pytest.approx(50 + float(left.get("width")) / 2 + 3, abs=0.1)
    assert float(x2) == pytest.approx(150 - float(right.get("width")) / 2 - 3, abs=0.1)
    (tmp_path / "file").write_text("")
    with pytest.raises(HelixError, match="cannot be written"):
        sheet.save(tmp_path / "file" / "x.svg")


def test_bars_are_as_long_as_their_numbers():
    root = ET.fromstring(bars("t", {"one": 1, "four": 4}, " B", notes={"one": "n"}).svg)
    svg = "{http://www.w3.org/2000/svg}"
    short, long = (float(r.get("width")) for r in root.findall(f"{svg}rect")[1:])
    assert long == pytest.approx(4 * short, rel=0.01)
    assert [t.text for t in root.iter(f"{svg}text") if t.text][-1] == "4 B"


# --- the worked example


@pytest.fixture(scope="module")
def swiglu():
    spec = importlib.util.spec_from_file_location("swiglu", SWIGLU)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_swiglu_runs_by_itself(tmp_path):
    out = python("-W", "error", SWIGLU, cwd=tmp_path)
    assert out.returncode == 0, out.stderr
    assert "composed, 576 numbers a token" in out.stdout
    assert "fused, 320 numbers a token" in out.stdout
    assert "audit of swiglu: no findings" in out.stdout


@pytest.mark.parametrize(
    ("B", "T", "D", "F"), [(2, 3, 4, 5), (4, 64, 64, 128), (1, 1, 7, 3)]
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_swiglu_bytes_predicted_counted_measured(swiglu, B, T, D, F, dtype):
    item = np.dtype(dtype).itemsize
    for name, width in (("composed", D + 4 * F), ("fused", D + 2 * F)):
        variant = getattr(swiglu, name)
        arguments = swiglu.inputs(B=B, T=T, D=D, F=F, dtype=dtype)
        assert th.saved_bytes(variant(**arguments)) == width * B * T * item
        measured = th.accounting.measure_saved(variant, arguments, swiglu.parameters)
        assert measured == width * B * T * item
    signatures = [(x.shape, x.dtype) for x in arguments.values()]
    predicted = swiglu.SwiGLU.predict(signatures, (True,) * 4)
    assert sum(predicted.values()) == width * B * T * item


def test_swiglu_gradients_for_every_set_of_wanted_ones(swiglu):
    for wanted in range(1, 16):
        arguments = swiglu.inputs(B=2, T=3, D=4, F=5, dtype="float64")
        for i, x in enumerate(arguments.values()):
            x.requires_grad = bool(wanted >> i & 1)
        free = [x for x in arguments.values() if x.requires_grad]
        due = th.grad((swiglu.composed(**arguments) ** 2).sum(), free)
        got = th.grad((swiglu.fused(**arguments) ** 2).sum(), free)
        for g, r in zip(got, due, strict=True):
            np.testing.assert_allclose(g.data, r.data, rtol=1e-12, atol=1e-14)


def test_swiglu_audit(swiglu):
    arguments = swiglu.inputs(B=2, T=3, D=4, F=5, dtype="float64")
    report = th.audit(swiglu.SwiGLU, *arguments.values())
    assert report.ok, report
