"""The command line, run as a user would: exit status, streams, files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tinygrad_helix.targets import load_target

ROOT = Path(__file__).parents[1]
SMALL = ["--dim", "8", "--layers", "1", "--batch", "2", "--seq", "6", "--steps", "1",
         "--warmup", "0", "--policy", "keep6"]  # fmt: skip


def run(*args, cwd, **env):
    return subprocess.run(
        [sys.executable, "-m", "tinygrad_helix", *map(str, args)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", **env},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
    )


def refused(result, *says):
    """Exit status 2 and one paragraph on stderr, no traceback, nothing on stdout."""
    assert result.returncode == 2, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    for words in says:
        assert words in result.stderr
    return result


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    return run("compare", *SMALL, "--json", "all.json", cwd=folder), folder


def test_compare_prints_tables_and_writes_a_report(compared):
    result, folder = compared
    assert result.returncode == 0, result.stderr
    assert "all checks passed: predicted, counted and measured bytes agree" in result.stdout
    for variant in ("composed", "primitive", "fused keep6"):
        assert result.stdout.count(variant) >= 5
    report = json.loads((folder / "helix-report" / "report.json").read_text())
    assert report == json.loads((folder / "all.json").read_text())
    assert [r["variant"] for r in report["rows"]] == [
        "composed",
        "primitive",
        "fused keep6",
    ]
    assert report["config"]["batch"] == 2
    assert list((folder / "helix-report").glob("timeline.*"))


def test_compare_against(compared):
    _, folder = compared
    old = json.loads((folder / "all.json").read_text())
    old["rows"][2]["saved_bytes"]["counted"] -= 4
    (folder / "old.json").write_text(json.dumps(old))
    worse = run("compare", *SMALL, "--against", "old.json", cwd=folder)
    assert worse.returncode == 1
    assert "fused keep6: saved bytes rose" in worse.stderr
    same = run("compare", *SMALL, "--against", "all.json", cwd=folder)
    assert same.returncode == 0


def test_json_to_stdout_is_json_alone(tmp_path):
    result = run("compare", *SMALL, "--json", "-", cwd=tmp_path)
    assert json.loads(result.stdout)["schema"] == "tinygrad_helix.compare/1"


def test_ascii_where_stdout_shows_no_more(tmp_path):
    result = run("compare", *SMALL, cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert result.returncode == 0
    assert result.stdout.isascii()
    assert "forward" in result.stdout


def test_the_worked_example(tmp_path):
    target = ROOT / "tutorials" / "swiglu.py"
    result = run(
        "compare", target, "--json", "-", "--set", "D=6", "--repeats", 1, cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    composed, fused = report["rows"]
    assert (composed["variant"], fused["variant"]) == ("composed", "fused")
    assert fused["saved_bytes"]["predicted"] == fused["saved_bytes"]["measured"]
    assert fused["mode"] is None
    assert report["config"]["set"] == {"D": 6}


USER = """
import tinygrad_helix as th
parameters = ("w",)
def inputs(n=4):
    return {"x": th.ones(n, 3, requires_grad=True), "w": th.ones(3, 3, requires_grad=True)}
def composed(x, w):
    return (x @ w).silu()
def fused_other(x, w):
    z = x @ w
    return z * z.sigmoid()
def extra(x, w):
    return (x @ w).silu() * 1.0
"""


BAD_VJP = """
class Bad(th.Op):
    def forward(xp, x, *, needs):
        return x * 1, {}
    def vjp(dy, saved, *, needs, inputs):
        raise KeyError("no such thing")
"""


def test_a_name_of_the_standard_library_and_what_lies_beside(tmp_path):
    folder = tmp_path / "below"
    folder.mkdir()
    source = USER.replace("(x @ w).silu()\n", "lazily(x @ w)\n")
    (folder / "calendar.py").write_text(
        "from beside_it import silu\n" + source + "def lazily(x):\n"
        "    import beside_too, calendar\n"
        "    assert calendar.isleap(2000)\n"
        "    return silu(x)\n"
    )
    (folder / "beside_it.py").write_text("from tinygrad_helix import silu\n")
    (folder / "beside_too.py").write_text("")
    result = run("compare", "below/calendar.py", "--repeats", 1, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


def test_loading_a_target_leaves_the_process_as_it_was(tmp_path):
    import calendar

    (tmp_path / "calendar.py").write_text(USER)
    path = list(sys.path)
    target = load_target(str(tmp_path / "calendar.py"), {})
    target.variants["composed"](**target.inputs)
    assert sys.modules["calendar"] is calendar
    assert sys.path == path


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda old: old.update(schema="tinygrad_helix.check/1"), "its schema is"),
        (lambda old: old.pop("rows"), "it lacks 'rows'"),
        (lambda old: old["model"][0].pop("peak_bytes"), "it lacks 'peak_bytes'"),
        (lambda old: old["rows"][0]["saved_bytes"].update(counted="9"), "is no readable"),
        (lambda old: old["config"].update(dim=9), "dim is 8 and was 9"),
        (lambda old: old["config"].update(target="mine.py"), "is a report of 'mine.py'"),
    ],
)
def test_an_earlier_report_that_does_not_fit(compared, tmp_path, change, says):
    old = json.loads((compared[1] / "all.json").read_text())
    change(old)
    (tmp_path / "old.json").write_text(json.dumps(old))
    refused(run("compare", *SMALL, "--against", "old.json", cwd=tmp_path), says)
    assert [p.name for p in tmp_path.iterdir()] == ["old.json"]


def test_an_earlier_report_of_a_users_file(tmp_path):
    (tmp_path / "mine.py").write_text(USER)
    own = "compare", "mine.py", "--repeats", 1
    assert run(*own, "--json", "old.json", cwd=tmp_path).returncode == 0
    same = run(*own, "--against", "old.json", cwd=tmp_path)
    assert same.returncode == 0, same.stderr
    other = run(*own, "--set", "n=5", "--against", "old.json", cwd=tmp_path)
    refused(other, "set is {'n': 5} and was {}")
    refused(run("compare", "--against", "old.json", cwd=tmp_path), "a report of 'mine.py'")


def test_an_earlier_report_with_a_variant_more(compared, tmp_path):
    old = json.loads((compared[1] / "all.json").read_text())
    old["model"].append(old["model"][0] | {"variant": "gone"})
    (tmp_path / "old.json").write_text(json.dumps(old))
    result = run("compare", *SMALL, "--against", "old.json", cwd=tmp_path)
    assert result.returncode == 1
    assert "model, gone: it is in the earlier report and missing now." in result.stderr


def test_help_says_what_each_option_is(tmp_path):
    for command in ("compare", "check"):
        text = " ".join(run(command, "--help", cwd=tmp_path).stdout.split())
        assert "helix, file.py[:name] or pkg.mod[:name], as above" in text
        assert "where the random numbers begin" in text
    assert "of weights and activations (float32)" in " ".join(
        run("compare", "--help", cwd=tmp_path).stdout.split()
    )


def test_a_users_file(tmp_path):
    (tmp_path / "mine.py").write_text(USER)
    result = run("compare", "mine.py", "--repeats", 1, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "composed" in result.stdout
    assert "fused_other" in result.stdout
    assert "extra" not in result.stdout
    chosen = run("compare", "mine.py:extra", "--repeats", 1, "--json", "-", cwd=tmp_path)
    assert [r["variant"] for r in json.loads(chosen.stdout)["rows"]] == ["extra"]
    module = run("compare", "mine", "--variant", "composed", "--json", "-", cwd=tmp_path)
    assert [r["variant"] for r in json.loads(module.stdout)["rows"]] == ["composed"]


@pytest.mark.parametrize(
    ("source", "args", "says"),
    [
        ("x = 1\n", [], "has no function 'inputs'"),
        ("def inputs():\n    return {}\n", [], "has no variant to run"),
        (
            USER,
            ["--variant", "nothing"],
            "has no function 'nothing'. It has: inputs, composed",
        ),
        (USER, ["--set", "m=3"], "--set m: inputs() of 'mine.py' takes n"),
        (USER, ["--set", "n"], "write NAME=VALUE"),
        (USER, ["--reference", "nothing"], "'nothing' is no variant"),
        (USER, ["--set", "tag=b'x'"], "a setting goes into the report as JSON"),
        (USER.replace("return {", "return 3 #"), [], "returned int"),
        (
            USER.replace("(x @ w).silu()\n", "th.apply(Bad, x @ w)\n") + BAD_VJP,
            [],
            "comparing 'mine.py' raised KeyError: 'no such thing' at",
        ),
        (
            USER.replace("(x @ w).silu()\n", "exit(3)\n"),
            [],
            "comparing 'mine.py' raised SystemExit: 3 at",
        ),
        ("raise SystemExit\n", [], "comparing 'mine.py' raised SystemExit at"),
        (USER.replace("@ w)", "@ v)"), [], "composed() of 'mine.py' raised NameError"),
        (
            USER + "\n1/0\n",
            [],
            "loading mine.py raised ZeroDivisionError: division by zero at",
        ),
        ("def f(:\n", [], "loading mine.py raised SyntaxError"),
        ("import nothing_of_this_name\n", [], "No module named 'nothing_of_this_name'"),
    ],
)
def test_a_users_file_that_is_wrong(tmp_path, source, args, says):
    (tmp_path / "mine.py").write_text(source)
    args = *args, "--json", "new.json"
    told = refused(run("compare", "mine.py", *args, cwd=tmp_path), says)
    assert len(told.stderr.splitlines()) == 1
    assert {p.name for p in tmp_path.iterdir()} <= {"mine.py", "__pycache__"}


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--dim", "0"], "argument --dim: 0 is too small: at least 1"),
        (["--seq", "0"], "argument --seq: 0 is too small: at least 1"),
        (["--batch", "two"], "argument --batch: 'two' is no whole number"),
        (["--text", "missing.txt"], "missing.txt"),
        (["--text", "empty.txt"], "empty"),
        (["--text", "."], "."),
        (["--policy", "keep7"], "keep9"),
        (["--policy", "keep(a)"], "x"),
        (["--policy", "budget(1B)"], "smallest"),
        (["--seq", "99999999"], "99999999"),
        (["missing.py"], "the file 'missing.py' does not exist"),
        (["no.such.module"], "helix, file.py[:name] or pkg.mod[:name]"),
        (["--out", "empty.txt"], "cannot be written to"),
        (["--out", "empty.txt/below"], "cannot be written to"),
        (["--against", "missing.json"], "is no readable report"),
        (["--against", "empty.txt"], "is no readable report"),
        (["--dtype", "int8"], "invalid choice"),
        (["--seed", "-1"], "argument --seed: -1 is too small: at least 0"),
        (["--set", "D=3"], "--set applies only to a target of your own"),
        (["--variant", "f", "--inputs", "g"], "--variant and --inputs apply only to"),
        (["--reference", "composed", "--repeats", "5"], "--reference and --repeats apply"),
        (["no.such.module", "--dim", "128"], "--dim applies only to the target helix"),
        (
            ["no.such.module", "--text", "stdlib", "--policy", "keep6"],
            "--text and --policy apply",
        ),
        (["no.such.module", "--batch", "8", "--seq", "128"], "--batch and --seq apply"),
        (["no.such.module", "--layers", "2", "--steps", "5"], "--layers and --steps apply"),
        (
            ["no.such.module", "--warmup", "0", "--dtype", "float32"],
            "--dtype and --warmup apply",
        ),
        (["--dim", "10000000", "--json", "new.json"], "there is not enough memory (Unable"),
    ],
)
def test_bad_arguments(tmp_path, args, says):
    (tmp_path / "empty.txt").write_text("")
    refused(run("compare", *args, cwd=tmp_path), says)
    assert [p.name for p in tmp_path.iterdir()] == ["empty.txt"]


def test_no_command_and_help(tmp_path):
    refused(run(cwd=tmp_path), "COMMAND")
    text = run("compare", "--help", cwd=tmp_path)
    assert text.returncode == 0
    assert "examples:" in text.stdout
    assert run("--version", cwd=tmp_path).stdout.strip() == "0.1.0"


def test_info(tmp_path):
    result = run("info", cwd=tmp_path)
    assert result.returncode == 0
    assert "numpy" in result.stdout
    assert "[test]" in result.stdout
    found = json.loads(run("info", "--json", "-", cwd=tmp_path).stdout)
    assert found["tinygrad_helix"] == "0.1.0"
    assert found["devices"]["cpu"] == "ok"
