"""The script for a GPU runs on the doubles, and what it cannot show here is made of parts
that can: its clocks on a made-up CuPy, others' scans on PyTorch's CPU."""

import contextlib
import json
import subprocess
import sys
import types
import zipfile
from pathlib import Path

import device_check
import device_facts
import device_peers
import device_scan
import device_stages
import numpy as np
import pytest
from device_check import Lab, OutOfTime, Skip
from device_clock import CALLS, CupyClock
from device_stages import STAGES, Stage

import tinygrad_helix as th
from tinygrad_helix.cuda.scan import plan

TESTS = Path(__file__).parent


def refuse(word):
    raise AssertionError(f"{word} is no JSON")


@pytest.mark.host
def test_all_stages_run_on_the_doubles(tmp_path, capsys):
    file = tmp_path / "found.json"
    assert device_check.main(["--quick", "--json", str(file)]) == 0
    found = json.loads(file.read_text(encoding="utf-8"), parse_constant=refuse)
    assert found["schema"] == device_check.SCHEMA
    assert [s["name"] for s in found["stages"]] == list(STAGES)
    for stage in found["stages"]:
        skipped = stage["name"] in ("machine", "tests", "sanitizer")
        assert stage["status"].startswith("skipped: needs a GPU" if skipped else "ok")
    rows = {row["name"]: row for row in found["rows"]}
    assert all(row["ok"] is not False for row in rows.values())
    promised = sum(row["ok"] is True for row in rows.values())
    assert promised >= 16 + 5 + 2 + 7 + 3 + 3  # scans, parity, facts, bytes, block, ops
    for fact in device_facts.FACTS:
        seen = rows[fact.name]["seen"]
        assert seen == ("n/a: needs a GPU" if fact.needs_gpu else fact.expected)
    for shape in device_scan.TINY:
        for way in ("R forward", "R backward", "C forward", "C backward"):
            data = rows[f"{way} {shape} bfloat16"]["data"]
            assert data["us"] > 0 and data["error"] < 1e-2
    streams = capsys.readouterr()
    last = streams.out.splitlines()[-1]
    assert last.startswith(f"{len(found['rows'])} results, 0 not as expected")
    assert streams.err.count("\n") == len(STAGES)


def test_what_was_predicted_fits_the_launch_code_and_the_time():
    assert device_check.TOTAL + 5 < 7 * 60
    for shape, (way, predicted) in device_scan.SHAPES.items():
        for dtype in map(np.dtype, ("float32", "float16")):
            assert way == ("R" if plan(*shape, dtype).chunks == 1 else "C")
        floor = 12 * np.prod(shape) / 4.3e12 * 1e6
        assert floor < predicted[0] < predicted[1] < 2.5 * floor
        assert (way, "forward") in device_scan.TARGETS


def test_the_list_and_bad_arguments(capsys, tmp_path):
    assert device_check.main(["--list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == list(STAGES)
    with pytest.raises(SystemExit, match="no stage 'sacn'"):
        device_check.main(["--stage", "sacn"])
    with pytest.raises(SystemExit, match="there is no such folder"):
        device_check.main(["--stage", "machine", "--wheels", str(tmp_path / "no")])


# --- stages that fail


def run_planted(monkeypatch, run):
    rows = []
    monkeypatch.setitem(STAGES, "planted", Stage(run, 5, ""))
    return device_check.run_stage("planted", True, 5, rows.append), rows


def test_what_a_stage_raises_is_a_row(monkeypatch):
    def broken(lab):
        lab.row("before", "seen", True)
        raise ValueError("a\nsecond line")

    status, rows = run_planted(monkeypatch, broken)
    assert status == "failed"
    assert [(r.name, r.ok) for r in rows] == [("before", True), ("the stage itself", False)]
    assert rows[1].seen.startswith("ValueError (test_device_check.py:")
    assert rows[1].seen.endswith("a second line")


def test_a_part_that_fails_leaves_the_others(monkeypatch):
    def parts(lab):
        for name, error, fatal in (
            ("missing", ImportError("no torch"), True),
            ("theirs", ValueError("their bug"), False),
            ("ours", ValueError("our bug"), True),
            ("not here", Skip("needs a moon"), True),
        ):
            with lab.part(name, fatal=fatal):
                raise error
        lab.row("after", 1, True)

    status, rows = run_planted(monkeypatch, parts)
    assert status == "failed"
    assert [(r.name, r.seen, r.ok) for r in rows] == [
        ("missing", "n/a: no torch", None),
        ("theirs", "n/a: ValueError: their bug", None),
        ("ours", "ValueError: our bug", False),
        ("not here", "n/a: needs a moon", None),
        ("after", "1", True),
    ]


def test_a_stage_ends_when_its_time_is_up(monkeypatch):
    def slow(lab):
        with lab.part("first"):
            lab.row("first", 1)
        lab.deadline = 0
        with lab.part("second"):
            lab.row("second", 2)

    status, rows = run_planted(monkeypatch, slow)
    assert status == "cut short: its time was up" and len(rows) == 1
    status, rows = run_planted(monkeypatch, lambda lab: (_ for _ in ()).throw(OutOfTime))
    assert status.startswith("cut short") and rows == []


def test_a_value_that_differs_is_a_miss():
    rows = []
    lab = Lab("s", None, False, True, float("inf"), rows.append)
    one, nan = np.ones(3), np.array([1.0, np.nan, 1.0])
    assert device_stages._compare(lab, "x", [(one, one), (nan, nan), (None, None)], 0) == 0
    assert rows == []
    for got, due in ((one + 1e-3, one), (nan, one), (one[:2], one), (None, one)):
        device_stages._compare(lab, "x", [(got, due)], 1e-4)
        assert rows.pop().ok is False and rows == []


# --- processes


def test_a_stage_in_a_process_of_its_own(monkeypatch):
    rows = []
    status = device_check.run_apart("machine", ["--quick"], 60, rows.append)
    assert status == "skipped: needs a GPU (the versions were noted)"
    assert rows[0].name == "python, numpy" and rows[0].stage == "machine"
    status = device_check.run_apart("machine", [], -4.99, rows.append)
    assert status == "failed: not done after -5 s"
    monkeypatch.setattr(sys, "executable", "false")
    assert device_check.run_apart("machine", [], 60, rows.append) == "failed: 1, no word"


def test_ops_need_no_scipy():
    code = (
        "import sys; sys.modules['scipy'] = None; import device_check as d;"
        "sys.exit(d.main(['--quick', '--stage', 'ops', '--json', '-']))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=TESTS, capture_output=True, text=True, timeout=120
    )
    assert out.returncode == 0, out.stderr
    assert [row["ok"] for row in json.loads(out.stdout)["rows"]] == [True] * 3


def test_wheels_are_unpacked_on_the_path(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "planted-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("planted_in_a_wheel.py", "here = __file__\n")
    before = list(sys.path)
    with device_check.wheels(str(tmp_path)) as folder:
        import planted_in_a_wheel

        assert planted_in_a_wheel.here.startswith(folder)
        with device_check.wheels(folder) as again:  # as a stage's own process gets it
            assert again == folder
    monkeypatch.delitem(sys.modules, "planted_in_a_wheel")
    assert sys.path == before and not Path(folder).exists()


# --- clocks


class FakeCuda:
    """As much of CuPy as the clock asks for. A launch takes 0.1 ms, and while the stream
    captures it does nothing but be noted."""

    def __init__(self, *, captures=True):
        self.now, self.tape, self.captures = 0.0, None, captures
        fake = self

        class Stream:
            def __init__(self, non_blocking):
                assert non_blocking

            __enter__ = synchronize = lambda self: None
            __exit__ = lambda self, *error: None

            def begin_capture(self):
                fake.tape = []

            def end_capture(self):
                graph, fake.tape = Graph(fake.tape), None
                return graph

        class Graph:
            def __init__(self, tape):
                self.tape = tape

            def launch(self, stream):
                for run in self.tape:
                    fake.launch(run)

        class Event:
            def record(self, stream):
                self.at = fake.now

            def synchronize(self):
                pass

        self.cuda = types.SimpleNamespace(
            Stream=Stream,
            Event=Event,
            Device=lambda: types.SimpleNamespace(synchronize=lambda: None),
            MemoryPool=lambda: types.SimpleNamespace(malloc=None),
            using_allocator=lambda malloc: contextlib.nullcontext(),
            get_elapsed_time=lambda start, end: end.at - start.at,
        )
        self.isfinite = np.isfinite

    def launch(self, run):
        if self.tape is None:
            run()
            self.now += 0.1
        elif self.captures:
            self.tape.append(run)
        else:
            raise NotImplementedError("during stream capture is unsupported")

    def call(self, value, used):
        def call():
            out = np.empty(3, "f4")
            self.launch(lambda: (out.fill(value), used.append(value)))
            return [out]

        return call


def test_a_clock_replays_both_sets_of_inputs():
    fake, used = FakeCuda(), []
    timing = CupyClock(fake).time(fake.call(1, used), fake.call(2, used))
    assert timing.how == "graph" and timing.us == pytest.approx(100)
    assert used[:4] == [1, 2, 1, 2] and used[4:][:CALLS] == [1, 2] * (CALLS // 2)
    assert timing.outputs[0].tolist() == [1, 1, 1] and fake.tape is None


def test_a_clock_without_capture_times_calls():
    fake, used = FakeCuda(captures=False), []
    timing = CupyClock(fake).time(fake.call(1, used), fake.call(2, used))
    assert timing.how == "calls, NotImplementedError"
    assert timing.us == pytest.approx(100)
    assert fake.tape is None  # the capture was ended


def test_a_clock_sees_outputs_that_nobody_wrote():
    fake = FakeCuda()

    def forgets():
        fake.launch(lambda: None)
        return [np.ones(3, "f4")]

    with pytest.raises(AssertionError, match="after the timing there are NaNs"):
        CupyClock(fake).time(forgets)


# --- PyTorch's side, on its CPU


@pytest.mark.oracle
def test_the_scans_and_the_block_of_pytorch_are_ours():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    rng = np.random.default_rng(0)
    a, b, dh = (rng.uniform(0.5, 1, (2, 13, 4)) for _ in range(3))
    due = device_scan.exact(a, b, dh)
    for scan in (device_peers.rounds, device_peers.loop(torch)):
        leaves = [torch.tensor(v, requires_grad=True) for v in (a, b)]
        h = scan(*leaves)
        da, db = torch.autograd.grad(h, leaves, torch.tensor(dh))
        for got, wanted in zip((h, da, db), due, strict=True):
            np.testing.assert_allclose(got[0].detach().numpy(), wanted, rtol=1e-12)
    made = th.nn.HelixBlock(4, dtype="float64", generator=rng)
    arrays = [rng.standard_normal((2, 13, 4)), *(p.data for p in made.parameters())]
    got = device_peers.block(torch, device_peers.rounds)(*map(torch.tensor, arrays))
    np.testing.assert_allclose(got.numpy(), made(arrays[0]).detach(), rtol=1e-9, atol=1e-12)


def test_the_slice_in_float64_is_numpys():
    rng = np.random.default_rng(0)
    a, b, dh = (rng.uniform(0.5, 1, (2, 13, 70)) for _ in range(3))
    leaves = [th.Tensor(v, requires_grad=True) for v in (a, b)]
    h, _ = th.gated_scan(*leaves)
    due = [h, *th.grad(h, leaves, dh, retain_graph=True)]
    for got, wanted in zip(device_scan.exact(a, b, dh), due, strict=True):
        np.testing.assert_allclose(got, wanted.detach().numpy()[0, :, :64], rtol=1e-12)
