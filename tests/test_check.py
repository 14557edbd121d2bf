"""`check`: every op and block is right, every planted fault is found and told, and no file
that was handed in stops the others."""

import inspect
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import tinygrad_helix as th
from tinygrad_helix import check, cli, samples, submissions
from tinygrad_helix.targets import TargetError

ROOT = Path(__file__).parents[1]


def run(*args, cwd, **env):
    return subprocess.run(
        [sys.executable, "-m", "tinygrad_helix", "check", *map(str, args)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", **env},
        input="y\n" * 9,  # for a target that asks: it must not get it
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=240,
    )


# --- the package


@pytest.mark.parametrize("name", samples.op_names())
def test_every_op(name):
    row = check.check(samples.op_sample(name))
    assert row.verdict == "ok", row.findings
    if samples.op_sample(name).gradient:
        assert (row.gradcheck, row.second_order, row.audit) == ("ok", "ok", "ok")
    assert row.saved_bytes["counted"] == row.saved_bytes["measured"] is not None


def test_no_op_and_no_layer_is_missing():
    functions = [n for n in th.ops.__all__ if callable(getattr(th.ops, n))]
    assert samples.op_names() == functions
    modules = {n for n in th.nn.__all__ if inspect.isclass(getattr(th.nn, n))}
    assert set(samples.LAYERS) == modules - {"Module", "Parameter"}


@pytest.mark.parametrize("sample", list(samples.layers()), ids=lambda s: s.name)
def test_every_layer(sample):
    row = check.check(sample)
    assert row.verdict == "ok", row.findings
    assert row.saved_bytes["predicted"] is not None


BLOCKS = list(samples.blocks())


def test_the_block_in_every_mode_and_policy():
    names = {s.name for s in BLOCKS}
    policies = ("keep9", "keep6", "keep4", "keep3", "keep2", "keep1")
    for form in ("primitive", "composed", *(f"fused {p}" for p in policies)):
        assert {f"helix_block {form}", f"helix_block {form}, with state"} <= names


@pytest.mark.parametrize("sample", BLOCKS, ids=lambda s: s.name)
def test_every_block(sample):
    row = check.check(sample)
    assert row.verdict == "ok", row.findings
    assert row.second_order == ("none" if "fused" in row.name else "ok")
    assert row.agrees == ("-" if "composed" in row.name else "ok")


def test_a_fault_in_an_op_of_ours_is_found(monkeypatch):
    op = th.ops.exp(th.ones(1, requires_grad=True)).node.op
    monkeypatch.setattr(
        op, "vjp", staticmethod(lambda dy, saved, *, needs, inputs: (dy * 2,))
    )
    row = check.check(samples.op_sample("exp"))
    assert (row.verdict, row.gradcheck, row.audit) == ("failed", "failed", "failed")
    assert any("d x[" in finding for finding in row.findings)
    assert any("exp.y: saved and not read" in finding for finding in row.findings)


def test_an_op_without_a_gradient_that_gets_one_is_found():
    x = th.ones(2, requires_grad=True)
    sample = samples.Sample("double", lambda x: x + x, ("x",), (x,), gradient=False)
    row = check.check(sample)
    assert row.verdict == "failed"
    assert "is to have no gradient" in row.findings[0]


@pytest.mark.parametrize(
    ("second", "fn", "says"),
    [
        (False, lambda x: x * x, "DoubleBackwardError is due"),
        (True, lambda x: th.helix_block(x, *BLOCKS[4].values[1:]), "second order"),
    ],
)
def test_claims_of_second_derivatives(second, fn, says):
    x = th.Tensor(np.random.default_rng(0).normal(size=(1, 2, 3)), requires_grad=True)
    row = check.check(samples.Sample("f", fn, ("x",), (x,), second=second))
    assert (row.verdict, row.gradcheck, row.second_order) == ("failed", "ok", "failed")
    assert says in row.findings[0]


# --- a user's file

GOOD = """
import numpy as np
import tinygrad_helix as th

parameters = ("w",)


def inputs(n=2):
    rng = np.random.default_rng(0)
    x = th.Tensor(rng.standard_normal((n, 3)), requires_grad=True)
    return {"x": x, "w": th.Tensor(rng.standard_normal((3, 4)), requires_grad=True)}


def composed(x, w):
    return (x @ w).tanh()


class Fused(th.Op):
    saves = {"x": th.Input(0), "w": th.Input(1), "y": th.Output(0)}

    @staticmethod
    def forward(xp, x, w, *, needs):
        y = xp.tanh(x @ w)
        return y, {"x": x if needs[1] else None, "w": w if needs[0] else None, "y": y}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        y = saved["y"]
        g = dy * (1 - y * y)
        dx = g @ saved["w"].T if needs[0] else None
        return dx, saved["x"].T @ g if needs[1] else None

    @staticmethod
    def predict(inputs, needs):
        (n, d), dtype = inputs[0]
        f = inputs[1][0][1]
        return {"x": n * d * dtype.itemsize * needs[1], "y": n * f * dtype.itemsize}


def fused(x, w):
    return th.apply(Fused, x, w)
"""


def faulty(*changes):
    source = GOOD
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    return source


@pytest.fixture
def rows_of(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def rows(source, *args, **kwargs):
        (tmp_path / "handed_in.py").write_text(source)
        return list(submissions.check_target("handed_in.py", *args, **kwargs))

    yield rows
    sys.modules.pop("handed_in", None)


def test_a_good_file(rows_of):
    composed, fused = rows_of(GOOD)
    assert [r.name for r in (composed, fused)] == ["composed", "fused"]
    for row in (composed, fused):
        assert row.verdict == "ok" and not row.findings and not row.notes
        assert (row.gradcheck, row.second_order) == ("ok", "ok")
    assert (composed.agrees, composed.audit) == ("-", "-")  # it is compared with, not ours
    assert (fused.agrees, fused.audit) == ("ok", "ok")
    assert fused.saved_bytes == dict.fromkeys(("predicted", "counted", "measured"), 112)


@pytest.mark.parametrize(
    ("changes", "failed", "says"),
    [
        (
            [("1 - y * y", "1 - y")],
            {"gradcheck", "agrees"},
            ["d output 0[0, 0] / d x[0, 0] is", "the gradient of x differs from composed"],
        ),
        (
            [("xp.tanh(x @ w)", "xp.tanh(2 * (x @ w)) / 2"), ("1 - y * y", "1 - 4*y*y")],
            {"agrees"},
            ["output 0 differs from composed's by"],
        ),
        (
            [('"x": x if needs[1] else None', '"x": x')],
            {"audit"},
            [
                "fused.x: saved and not read: all of it, when only the gradient of x is "
                "wanted (48 bytes), at",
                "handed_in.py",
            ],
        ),
        (
            [("        y = xp.tanh", "        KEPT.append(x.copy())\n        y = xp.tanh"),
             ("parameters =", "KEPT = []\nparameters =")],
            {"audit"},
            ["fused: kept outside the tape (48 bytes)"],
        ),
        (
            [('        y = saved["y"]\n', '        y = saved["y"]\n        y *= 1.0\n'
              "        y += 0.5\n        y -= 0.5\n        y[0, 0] += 1e-12\n")],
            {"audit"},
            ["fused.y: written by the vjp"],
        ),
        (
            [("itemsize * needs[1]", "itemsize")],
            {"audit"},
            ["fused.x: predicted otherwise: 48 bytes"],
        ),
        (
            [("n * f * dtype", "2 * n * f * dtype")],
            {"audit"},
            ["176 saved bytes are predicted, and 112 counted."],
        ),
        (
            [('"y": y}', '"y": y, "more": [y + 1.0]}'),
             ('"y": th.Output(0)}', '"y": th.Output(0), "more": th.Constant()}')],
            {"audit"},
            ["112 saved bytes are counted on the tape, and 176 measured", "kept outside"],
        ),
        (
            [("1 - y * y", "1 - constant(y) ** 2"),
             ("class Fused", "def constant(y):\n"
              "    return y.detach() if isinstance(y, th.Tensor) else y\n\n\nclass Fused")],
            {"second_order"},
            ["second order: d (gradient of x)"],
        ),
        (
            [("return th.apply(Fused, x, w)", "return th.apply(Fused, x, w).sum()")],
            {"agrees"},
            ["output 0 has shape (), in composed (2, 4)."],
        ),
        (
            [('saves = {"x": th.Input(0), ', "saves = {")],
            None,
            ["fused saved 'x', which its `saves` does not declare"],
        ),
        (
            [("return th.apply(Fused, x, w)", "return x.missing")],
            None,
            ["fused() of 'handed_in.py' raised AttributeError", "handed_in.py:"],
        ),
        (
            [("return th.apply(Fused, x, w)", "return th.apply(Fused, x, w).data")],
            {"gradcheck"},
            ["fused returned ndarray without a Tensor of floats"],
        ),
    ],
)  # fmt: skip
def test_a_fault_is_found_and_told(rows_of, changes, failed, says):
    composed, fused, *_ = rows_of(faulty(*changes))
    assert composed.verdict == "ok", composed.findings
    told = "\n".join(fused.findings)
    for words in says:
        assert words in told
    if failed is None:
        assert fused.verdict == "error"
        return
    assert fused.verdict == "failed"
    tried = ("gradcheck", "second_order", "agrees", "audit")
    assert {name for name in tried if getattr(fused, name) == "failed"} == failed
    assert all("\n" not in finding for finding in fused.findings)


def test_no_second_derivative_is_a_note(rows_of):
    source = faulty(("1 - y * y", "1 - np.square(y)"))
    fused = rows_of(source)[1]
    assert (fused.verdict, fused.second_order) == ("ok", "none")
    assert "differentiating twice raised TypeError" in fused.notes[0]


def test_op_classes_that_no_variant_applies(rows_of):
    unused = faulty(("th.apply(Fused, x, w)", "(x @ w).tanh()"))
    rows = rows_of(unused)
    assert [(r.name, r.verdict, r.audit) for r in rows] == [
        ("composed", "ok", "-"),
        ("fused", "ok", "-"),
        ("Fused", "ok", "ok"),
    ]
    alone = faulty(("def composed", "def other"), ("def fused", "def another"))
    (row,) = rows_of(alone)
    assert (row.name, row.verdict, row.saved_bytes["predicted"]) == ("Fused", "ok", 112)
    unfit = unused.replace("xp, x, w, *", "xp, x, w, v, *")
    assert [r.verdict for r in rows_of(unfit)] == ["ok", "ok", "not tried"]
    (row,) = rows_of(alone.replace("xp, x, w, *", "xp, x, w, v, *"))
    assert row.verdict == "error" and "raised TypeError" in row.findings[0]


def test_names_settings_and_what_is_refused(rows_of):
    assert [r.name for r in rows_of(GOOD, variants=["fused"])] == ["fused"]
    assert [r.name for r in rows_of(GOOD, variants=["Fused"])] == ["Fused"]
    assert rows_of(GOOD, {"n": 4})[1].saved_bytes["counted"] == 224
    for source, kwargs, says in (
        (GOOD, {"settings": {"m": 1}}, "--set m"),
        (GOOD, {"variants": ["nothing"]}, "has no function 'nothing'"),
        (GOOD, {"inputs": "nothing"}, "has no function 'nothing'"),
        (GOOD.replace('("w",)', '("w", "v")'), {}, "names v, which are no inputs"),
    ):
        with pytest.raises(TargetError, match=says):
            rows_of(source, **kwargs)


# --- many files

SIXTY = {
    "a_good.py": (GOOD, "ok", None),
    "b_raises.py": (
        GOOD + "\n1 / 0\n",
        "error",
        "raised ZeroDivisionError: division by zero at",
    ),
    "c_exits.py": (GOOD + "\nimport os\nos._exit(3)\n", "error", "exit status 3"),
    "d_leaves.py": (GOOD + "\nraise SystemExit('bye')\n", "error", "exit status 1"),
    "e_asks.py": (GOOD + "\ninput()\n", "error", "raised EOFError"),
    "f_prints.py": (GOOD + "\nprint('x' * 10**6)\n", "ok", None),
    "g_syntax.py": (
        "def f(:\n",
        "error",
        "raised SyntaxError: invalid syntax (g_syntax.py, line 1).",
    ),
    "h_empty.py": ("", "error", "has no function 'inputs'"),
    "i_wrong.py": (GOOD.replace("1 - y * y", "1 - y"), "failed", "by the tape and"),
    "j_loops.py": (
        GOOD.replace("return th.apply(Fused, x, w)", "while True: pass"),
        "error",
        "took longer than",
    ),
    "k_good.py": (GOOD, "ok", None),
}
if sys.platform != "win32":
    killed = "\nimport os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"
    SIXTY["l_crashes.py"] = (GOOD + killed, "error", "killed by SIGSEGV")
    nameless = GOOD + "\nimport os\nos.kill(os.getpid(), 40)\n"
    SIXTY["m_nameless.py"] = (nameless, "error", "killed by signal 40")
    SIXTY["n_forks.py"] = (GOOD + "\nimport os\nos.fork()\n", "ok", None)
    SIXTY["o_nothing.py"] = (
        GOOD.replace("return (x @ w).tanh()", "(x @ w).tanh()"),
        "failed",
        "composed returned None.",
    )


@pytest.fixture(scope="module")
def handed_in(tmp_path_factory):
    folder = tmp_path_factory.mktemp("handed_in")
    for name, (source, _, _) in SIXTY.items():
        (folder / name).write_text(source)
    return run(*SIXTY, "--timeout", 8, "--json", "marks.json", cwd=folder), folder


def test_none_of_many_files_stops_the_others(handed_in):
    result, folder = handed_in
    assert result.returncode == 1, result.stderr
    assert "Traceback" not in result.stdout + result.stderr
    report = json.loads((folder / "marks.json").read_text())
    assert report["schema"] == "tinygrad_helix.check/1"
    for name, (_, verdict, says) in SIXTY.items():
        rows = [r for r in report["rows"] if r["target"] == name]
        assert rows, name
        worst = max((r["verdict"] for r in rows), key=("ok", "failed", "error").index)
        assert worst == verdict, (name, rows)
        told = [finding for r in rows for finding in r["findings"]]
        assert bool(told) == (verdict != "ok")
        if says is not None:
            assert any(says in finding for finding in told), told
            assert all("\n" not in finding for finding in told)
            assert any(line.startswith(name) for line in result.stdout.splitlines())
    verdicts = [verdict for _, verdict, _ in SIXTY.values()]
    assert report["summary"] == {
        "targets": len(SIXTY),
        **{verdict: verdicts.count(verdict) for verdict in set(verdicts)},
    }
    assert f"{len(SIXTY)} targets: {verdicts.count('ok')} ok, " in result.stdout
    for name in {"n_forks.py", "o_nothing.py"} & SIXTY.keys():
        rows = [r for r in report["rows"] if r["target"] == name]
        assert [r["name"] for r in rows] == ["composed", "fused"], "a row each"
        assert sum(len(r["findings"]) for r in rows) <= 1, "and it is said once"
    assert report["config"]["timeout"] == 8


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no process groups")
@pytest.mark.parametrize("ends", [True, False])
def test_what_a_file_started_ends_with_it(ends, tmp_path):
    started = (
        "import pathlib, subprocess, sys, time\n"
        "code = 'import time; time.sleep(60)'\n"
        "pid = subprocess.Popen([sys.executable, '-c', code]).pid\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(pid))\n"
    )
    file = tmp_path / "starts.py"
    file.write_text(started + (GOOD if ends else "time.sleep(60)\n"))
    rows = list(submissions.check_targets([str(file)], timeout=60 if ends else 5))
    assert [row.verdict for row in rows] == (["ok", "ok"] if ends else ["error"])
    pid = int((tmp_path / "pid").read_text())
    for _ in range(100):  # whoever adopts it has to notice
        state = Path(f"/proc/{pid}/stat")
        try:
            os.kill(pid, 0)
            if state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z":
                break
        except ProcessLookupError:
            break
        time.sleep(0.05)
    else:
        pytest.fail(f"process {pid} lives on")


def test_helix_takes_no_settings(tmp_path):
    for extra in (["--set", "N=4"], ["--variant", "zzz"], ["--inputs", "other"]):
        result = run("helix", *extra, cwd=tmp_path)
        assert result.returncode == 2 and "helix takes no --set" in result.stderr
        assert not result.stdout


def test_bytes_that_something_outside_holds():
    held = []

    def fn(x):
        held.append(x.exp())
        return held[-1]

    x = th.tensor([1.0, 2.0], dtype="float64", requires_grad=True)
    row = check.check(samples.Sample("fn", fn, ("x",), (x,), second=None))
    assert row.saved_bytes["counted"] > row.saved_bytes["measured"]
    assert "something outside still holds the graph" in "".join(row.findings)
    assert "kept outside it" not in "".join(row.findings)


def test_what_was_found_before_time_ran_out_is_kept(handed_in):
    report = json.loads((handed_in[1] / "marks.json").read_text())
    rows = [r for r in report["rows"] if r["target"] == "j_loops.py"]
    assert [(r["name"], r["verdict"]) for r in rows] == [("composed", "ok"), ("", "error")]


# --- the command


def test_one_good_file(tmp_path):
    (tmp_path / "mine.py").write_text(GOOD)
    result = run("mine.py", "--set", "n=3", cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.isascii()
    head, *lines = result.stdout.splitlines()
    assert head.split()[:6] == ["checked", "gradient", "second", "agrees", "audit",
                                "predicted"]  # fmt: skip
    assert [line.split()[0] for line in lines[:2]] == ["composed", "fused"]
    assert lines[-1] == "2 checked: 2 ok"


def test_json_alone_on_stdout(tmp_path):
    (tmp_path / "mine.py").write_text(GOOD)
    result = run("mine.py:fused", "--json", "-", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert [r["name"] for r in report["rows"]] == ["fused"]
    assert report["summary"] == {"targets": 1, "ok": 1}
    assert report["config"]["targets"] == ["mine.py:fused"]


def test_without_a_target_and_helix(monkeypatch, capsys):
    # What each row says is tested above; here, which there are, and that one can fail.
    def checked(sample, target):
        verdict = "failed" if sample.name == failing else "ok"
        return check.Row(target, sample.name, verdict=verdict)

    monkeypatch.setattr(check, "check", checked)
    failing = None
    assert cli.main(["check"]) == 0
    told = capsys.readouterr().out.splitlines()
    names = {line.split("  ")[0] for line in told}
    assert {"exp", "gated_scan", "RMSNorm", "HelixLM fused"} <= names
    assert {"helix_block composed", "helix_block fused keep6, with state"} <= names
    assert cli.main(["check", "helix"]) == 0
    told = capsys.readouterr().out.splitlines()
    fewer = {line.split("  ")[0] for line in told}
    assert "HelixLM fused" in fewer and "exp" not in fewer
    failing = "exp"
    assert cli.main(["check"]) == 1
    assert "1 failed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["missing.py"], "the file 'missing.py' does not exist"),
        (["mine.py", "missing.py"], "the file 'missing.py' does not exist"),
        (["no_such_module.of:it"], "there is no module"),
        (["mine.py", "--set", "n"], "write NAME=VALUE"),
        (["--set", "n=3"], "are for a TARGET"),
        (["mine.py", "--timeout", "0"], "more than 0 is due"),
        (["mine.py", "--timeout", "soon"], "is no number of seconds"),
        (["mine.py", "--json", "missing/marks.json"], "cannot be written"),
    ],
)
def test_bad_arguments(tmp_path, args, says):
    (tmp_path / "mine.py").write_text(GOOD)
    result = run(*args, cwd=tmp_path)
    assert result.returncode == 2, result.stdout + result.stderr
    assert result.stdout == ""
    assert says in result.stderr
    assert "Traceback" not in result.stderr


def test_help_teaches(tmp_path):
    result = run("--help", cwd=tmp_path)
    assert result.returncode == 0
    for words in ("audit", "examples:", "exit status"):
        assert words in result.stdout
