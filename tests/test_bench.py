"""`bench`: what is timed, in which order, and what the rows say. No time is a test."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import tinygrad_helix as th
from tinygrad_helix import bench, contests, peers
from tinygrad_helix.errors import HelixError
from tinygrad_helix.optim import AdamW

ROOT = Path(__file__).parents[1]
TINY = "helix-2x16x32"


def run(*args, cwd, code=None):
    command = ["-c", code] if code else ["-m", "tinygrad_helix", "bench"]
    return subprocess.run(
        [sys.executable, *command, *map(str, args)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=240,
    )


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    return run(TINY, "eng*", "--repeats", 2, "--json", "b.json", cwd=folder), folder


def test_rows(timed):
    result, folder = timed
    assert result.returncode == 0, result.stderr
    report = json.loads((folder / "b.json").read_text())
    assert report["schema"] == "tinygrad_helix.bench/1"
    rows = {(r["name"], r["over"]): r for r in report["rows"]}
    assert set(rows) == {
        ("helix fused keep6", "12 products"),
        ("helix fused keep9", "12 products"),
        ("helix composed", "12 products"),
        ("engine add", "numpy"),
    }
    for r in report["rows"]:
        assert r["ratio"] == r["step_ms"] / r["floor_ms"] > 0
        assert 0 < r["step_min_ms"] <= r["step_ms"]
        assert 0 < r["floor_min_ms"] <= r["floor_ms"]
        assert r["ratio_low"] <= r["ratio_high"]
        assert (r["device"], r["dtype"], r["repeats"]) == ("cpu", "float32", 2)
    helix = rows["helix composed", "12 products"]
    assert (helix["shape"], helix["per"]) == ([2, 16, 32], "step")
    assert rows["engine add", "numpy"]["per"] == "node"
    config = report["config"]
    assert config["rows"] == [TINY, "eng*"]
    assert config["machine"]["threads"] >= 1
    assert config["versions"]["numpy"] == np.__version__


def test_table(timed):
    lines = timed[0].stdout.splitlines()
    assert "threads" in lines[0] and "medians of 2 turns" in lines[0]
    table = "\n".join(lines)
    for words in ("helix fused keep6", "12 products", "2x16x32", "ratio", "quartiles"):
        assert words in table


def test_json_alone_on_stdout(tmp_path):
    result = run("engine", "--repeats", 1, "--json", "-", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert len(json.loads(result.stdout)["rows"]) == 1


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["nothing"], "bench has no 'nothing'. It has: helix-8x512x512, "),
        (["engine", "scale*"], "bench has no 'scale*'"),
        (["--repeats", "0"], "0 is too small: at least 1"),
        (["engine", "--json", "missing/b.json"], "cannot be written"),
    ],
)
def test_bad_arguments(tmp_path, args, says):
    result = run(*args, cwd=tmp_path)
    assert result.returncode == 2
    assert says in result.stderr
    assert result.stdout == "" and "Traceback" not in result.stderr


def test_peers_that_are_not_installed(tmp_path):
    code = (
        "import sys\n"
        "for name in ('torch', 'jax', 'mygrad'): sys.modules[name] = None\n"
        "from tinygrad_helix.cli import main\n"
        "sys.exit(main(['bench', 'engine', '--repeats', '1', '--peers']))"
    )
    result = run(cwd=tmp_path, code=code)
    assert result.returncode == 0, result.stderr
    assert "not installed, left out: torch, jax, mygrad" in result.stderr
    assert "numpy" in result.stdout


# --- how it is timed


def test_names_and_patterns(monkeypatch):
    picked = []
    monkeypatch.setattr(bench, "_times", lambda name, contest, repeats: picked.append(name))
    monkeypatch.setattr(bench, "_rows", lambda contest, times: [])
    monkeypatch.setattr(bench, "CONTESTS", dict.fromkeys(contests.CONTESTS, lambda b: b))
    bench.bench()
    assert picked == list(contests.CONTESTS)
    assert set(contests.LARGE) < set(picked)
    picked.clear()
    bench.bench(quick=True)
    assert picked == [n for n in contests.CONTESTS if n not in contests.LARGE]
    picked.clear()
    bench.bench(["s*", TINY], quick=True)
    assert picked == [TINY, "scaling-1x4096x512", "scaling-2x4096x512", "scan"]


def contest(steps, **kwargs):
    return contests.Contest((1,), steps, [("a", "a", "b")], **kwargs)


def test_sides_take_turns_with_a_pause_before_each(monkeypatch):
    told = []
    monkeypatch.setattr(bench, "_SHORTEST", 0.0)  # one call at a time
    monkeypatch.setattr(bench.time, "sleep", lambda seconds: told.append(seconds))
    steps = {name: lambda name=name: told.append(name) or [1.0] for name in "ab"}
    times = bench._times("x", contest(steps, equal=("a", "b")), 2)
    first = told.index(bench.PAUSE)
    assert {*told[:first]} == {"a", "b"}  # compared and warmed up
    assert told[first:] == [bench.PAUSE, "a", bench.PAUSE, "b"] * 2
    assert {name: len(t) for name, t in times.items()} == {"a": 2, "b": 2}


def test_short_calls_are_timed_several_at_once(monkeypatch):
    monkeypatch.setattr(bench.time, "sleep", lambda seconds: None)
    calls = {"a": 0, "b": 0}

    def step(name):
        calls[name] += 1

    steps = {name: lambda name=name: step(name) for name in "ab"}
    times = bench._times("x", contest(steps), 1)
    assert all(n > 100 for n in calls.values())
    assert all(t[0] < 1e-3 for t in times.values())


def test_medians_quartiles_and_units():
    times = {"a": [8.0, 2.0, 4.0, 6.0, 100.0], "b": [2.0, 1.0, 1.0, 2.0, 1.0]}
    (row,) = bench._rows(contest({}, per="node", units={"a": 2, "b": 1}), times)
    assert (row.step_ms, row.floor_ms, row.ratio) == (3000.0, 1000.0, 3.0)
    assert (row.step_min_ms, row.floor_min_ms) == (1000.0, 1000.0)
    assert (row.ratio_low, row.ratio_high) == (1.5, 2.0)  # of 1, 1.5, 2, 2, 50
    assert (row.per, row.repeats) == ("node", 5)


def test_sides_that_differ_are_refused():
    same = {"a": [np.ones(3), np.zeros(2)], "b": [np.ones(3) + 1e-6, np.zeros(2)]}
    bench._same("x", same)
    for wrong in (1.001, np.nan):
        with pytest.raises(HelixError, match="b and a do not compute the same"):
            bench._same("x", same | {"b": [np.full(3, wrong), np.zeros(2)]})


def test_the_floor_is_twelve_products(monkeypatch):
    N, D = 10, 4
    step = contests.products(N, D)
    flops = []

    def matmul(a, b, out):
        assert out.flags.c_contiguous and a.ndim == b.ndim == 2
        for matrix in (a, b):
            assert matrix.flags.c_contiguous or matrix.flags.f_contiguous
        flops.append(2 * a.shape[0] * a.shape[1] * b.shape[1])
        return original(a, b, out=out)

    original = np.matmul
    monkeypatch.setattr(np, "matmul", matmul)
    step()
    assert len(flops) == 12
    assert sum(flops) == 42 * N * D * D


def test_every_step_of_every_contest_runs():
    for name, make in contests.CONTESTS.items():
        if name in contests.LARGE or name.startswith("scaling"):
            continue  # the same code at sizes that take seconds
        made = make(frozenset())
        for row, step, over in made.ratios:
            assert row and {step, over} <= set(made.steps)
        bench._same(name, {step: made.steps[step]() for step in made.equal})
        for step in made.steps.values():
            step()


def test_scaling_counts_tokens(monkeypatch):
    monkeypatch.setattr(contests, "_Block", lambda shape: type(
        "Block", (), {"step": lambda self, mode: lambda: shape})())  # fmt: skip
    made = contests.CONTESTS["scaling-2x4096x512"](frozenset())
    ((_, step, over),) = made.ratios
    assert (made.steps[step](), made.steps[over]()) == ((2, 4096, 512), (2, 512, 512))
    assert made.units == {step: 8.192, over: 1.024}


# --- peers compute the same


def peer(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name)


def block(dtype, shape):
    rng = np.random.default_rng(0)
    made = th.nn.HelixBlock(shape[2], dtype=dtype, generator=rng)
    x = th.Tensor(rng.standard_normal(shape).astype(dtype), requires_grad=True)
    inputs = {"x": x, **dict(made.named_parameters())}
    dy = rng.standard_normal(shape).astype(dtype)
    want = th.grad(th.helix_block(**inputs), list(inputs.values()), dy)
    return {name: v.data for name, v in inputs.items()}, dy, [g.data for g in want]


@pytest.mark.oracle
@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("shape", [(2, 7, 5), (1, 1, 3), (3, 16, 8)])
def test_torch_helix(shape, time_major):
    peer("torch")
    arrays, dy, want = block(np.float64, shape)
    got = peers.torch_helix(arrays, dy, 1e-5, 1, time_major)()
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g.numpy(), w, rtol=1e-9, atol=1e-12)


@pytest.mark.oracle
def test_torch_scan_and_chain():
    peer("torch")
    rng = np.random.default_rng(0)
    a, b, dh = rng.uniform(-1, 1, (3, 2, 6, 4))
    xs = [th.Tensor(v, requires_grad=True) for v in (a, b)]
    want = th.grad(th.gated_scan(*xs)[0], xs, dh)
    for g, w in zip(peers.torch_scan(a, b, dh, 1)(), want, strict=True):
        np.testing.assert_allclose(g.numpy(), w.data, rtol=1e-12)
    (g,) = peers.torch_chain(100, 1)()
    assert g.item() == 101


@pytest.mark.oracle
def test_torch_language_model_trains_like_ours():
    peer("torch")
    rng = np.random.default_rng(0)
    model = th.nn.HelixLM(11, 8, 2, dtype=np.float64, generator=rng)
    tokens, targets = rng.integers(0, 11, (2, 3, 6))
    settings = {"lr": 0.05, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}
    state = {name: p.data.copy() for name, p in model.named_parameters()}
    theirs = peers.torch_language_model(state, 2, 1e-5, tokens, targets, settings, 1)
    optimizer = AdamW(list(model.parameters()), **settings)
    ours = contests.training(model, optimizer, th.Tensor(tokens), th.Tensor(targets))
    for _ in range(4):
        np.testing.assert_allclose(theirs(), ours(), rtol=1e-9)


@pytest.mark.oracle
def test_the_contests_with_pytorch_agree():
    peer("torch")
    for name, ratios in ((TINY, 9), ("engine", 2), ("model", 3)):
        made = contests.CONTESTS[name](frozenset(["torch"]))
        assert len(made.ratios) == ratios
        assert "torch" in made.equal
        bench._same(name, {step: made.steps[step]() for step in made.equal})


@pytest.mark.oracle
def test_jax_helix():
    peer("jax")
    arrays, dy, want = block(np.float32, (2, 7, 5))
    for g, w in zip(peers.jax_helix(arrays, dy, 1e-5)(), want, strict=True):
        np.testing.assert_allclose(np.asarray(g), w, rtol=1e-3, atol=1e-4)


@pytest.mark.oracle
def test_mygrad_chain():
    peer("mygrad")
    (g,) = peers.mygrad_chain(100)()
    assert g.item() == 101
