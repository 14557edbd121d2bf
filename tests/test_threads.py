"""The fused block's bits do not depend on the number of BLAS threads, nor does a call
change it. Tiles that are in work at once: order, errors, settings."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import tinygrad_helix as th
from tinygrad_helix.fused import lanes, tiles


def blas_threads():
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


def bits(mode, policy, B, T, D):
    rng = np.random.default_rng(0)
    block = th.nn.HelixBlock(D, mode=mode, policy=policy, generator=rng)
    x = th.Tensor(rng.standard_normal((B, T, D)).astype("float32"), requires_grad=True)
    h0 = th.Tensor(rng.standard_normal((B, D)).astype("float32"), requires_grad=True)
    y = block(x, h0=h0)
    wanted = [x, h0, *block.parameters()]
    grads = th.grad(y, wanted, rng.standard_normal(y.shape).astype("float32"))
    return [y.data, *(g.data for g in grads)]


@pytest.mark.parametrize(
    "shape", [(8, 128, 64), (1, 600, 96), (3, 333, 70), (2, 70, 130), (1, 30, 450)]
)
@pytest.mark.parametrize("policy", ["keep9", "keep6", "keep1"])
@pytest.mark.parametrize("lanes_from", [0, tiles.LANES_FROM], ids=["lanes", "one"])
def test_bits_under_1_2_and_3_threads(policy, shape, lanes_from, monkeypatch):
    monkeypatch.setattr(tiles, "LANES_FROM", lanes_from)
    before = blas_threads()
    if not before:
        pytest.skip("threadpoolctl finds no BLAS whose threads it can set")
    results = []
    for threads in (1, 2, 3):
        with threadpool_limits(threads, user_api="blas"):
            results.append(bits("fused", policy, *shape))
            assert blas_threads() == [threads] * len(before)
    assert blas_threads() == before
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert (a == b).all()


def test_a_large_block_as_it_comes():
    results = []
    for threads in (1, 2, 3):
        with threadpool_limits(threads, user_api="blas"):
            results.append(bits("fused", "keep6", 4, 260, 260))
            assert blas_threads() == [threads] * len(blas_threads())
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert (a == b).all()


def test_composed_differs_by_rounding_alone():
    # Its products are cut by BLAS, by the number of its threads.
    with threadpool_limits(1, user_api="blas"):
        one = bits("composed", None, 8, 128, 64)
    with threadpool_limits(2, user_api="blas"):
        two = bits("composed", None, 8, 128, 64)
    for a, b in zip(one, two, strict=True):
        assert np.abs(a - b).max() <= 1e-5 * np.abs(a).max()


# --- lanes


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_turns_are_taken_in_order(count):
    turns, passed, done = lanes.Turns(), [], set()

    def work(lane, index):
        with turns.turn("first", index):
            passed.append(index)
        done.add(index)

    lanes.run(["a", "b", "c"], turns, count, work)
    assert passed == list(range(count))
    assert done == set(range(count))


@pytest.mark.parametrize("failing", [0, 1, 4])
def test_an_error_ends_all_and_restores_blas(failing):
    before, turns, passed = blas_threads(), lanes.Turns(), []

    def work(lane, index):
        assert blas_threads() == [1] * len(before)
        if index == failing:
            raise ValueError(f"tile {index}")
        with turns.turn("sum", index):
            passed.append(index)

    with pytest.raises(ValueError, match=f"tile {failing}"):
        lanes.run(["a", "b"], turns, 9, work)
    assert blas_threads() == before
    assert passed == list(range(len(passed)))
    assert len(passed) <= failing


def test_settings_of_numpy_are_the_callers_in_every_lane():
    turns, seen, both = lanes.Turns(), {}, threading.Barrier(2, timeout=30)

    def work(lane, index):
        both.wait()  # so that each lane has one
        seen[lane] = np.geterr()["over"]

    with np.errstate(over="raise"), threadpool_limits(2, user_api="blas"):
        lanes.run(["a", "b"], turns, 2, work)
    assert seen == {"a": "raise", "b": "raise"}


def test_calls_at_once_leave_the_setting_as_it_was(monkeypatch):
    monkeypatch.setattr(tiles, "LANES_FROM", 0)
    before = blas_threads()
    due = bits("fused", "keep6", 2, 70, 130)
    results = []
    callers = [
        threading.Thread(target=lambda: results.append(bits("fused", "keep6", 2, 70, 130)))
        for _ in range(4)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert blas_threads() == before
    assert len(results) == 4
    for got in results:
        assert all((a == b).all() for a, b in zip(got, due, strict=True))


def test_an_interrupt_anywhere_is_put_right_by_the_next_call(monkeypatch):
    # Ctrl-C may come between any two lines of entering and leaving.
    with threadpool_limits(2, user_api="blas"):
        due, real = bits("fused", "keep6", 2, 20, 30), lanes._libraries()

        def interrupted(after):
            def then(call):
                def once(*args):
                    result = call(*args)
                    left.append(1)
                    if len(left) == after:
                        raise KeyboardInterrupt
                    return result

                return once

            return tuple([(then(get), then(set_to)) for get, set_to in real])

        for after in range(1, 30):
            left = []
            libraries = interrupted(after)
            monkeypatch.setattr(lanes, "_libraries", lambda libraries=libraries: libraries)
            try:
                bits("fused", "keep6", 2, 20, 30)
                last = after
            except KeyboardInterrupt:
                last = None
            monkeypatch.setattr(lanes, "_libraries", lambda: real)
            got = bits("fused", "keep6", 2, 20, 30)
            assert all((a == b).all() for a, b in zip(got, due, strict=True))
            assert blas_threads() == [2] * len(blas_threads()), after
            if last:
                break
        assert last  # all places were tried


def test_a_call_when_python_is_about_to_end(tmp_path):
    # https://github.com/python/cpython/issues/113964: no thread can be had any more
    code = (
        "import threading, numpy as np, tinygrad_helix as th\n"
        "from tinygrad_helix.fused import tiles\n"
        "tiles.LANES_FROM = 0\n"
        "block = th.nn.HelixBlock(64)\n"
        "x = th.randn(4, 64, 64, requires_grad=True)\n"
        "def late():\n"
        "    threading.main_thread().join()\n"
        "    for _ in range(3): th.grad(block(x).sum(), x)\n"
        "    print('done', flush=True)\n"
        "threading.Thread(target=late).start()\n"
    )
    here = Path(__file__).parents[1]
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=here, capture_output=True, text=True, timeout=120
    )
    assert out.stdout == "done\n", out.stderr


@pytest.mark.parametrize(
    "shape", [(300, 5, 256), (512, 1, 512), (1024, 1, 256), (2100, 3, 120), (9, 1, 2000)]
)
def test_no_tile_is_empty(shape):
    assert all(tile.rows > 0 for tile in tiles.tiles(*shape))
    B, T, _ = shape
    assert sum(tile.rows for tile in tiles.tiles(*shape)) == B * T


def test_a_short_wide_batch():
    B, T, D = 300, 5, 256
    assert all(np.isfinite(a).all() for a in bits("fused", "keep6", B, T, D))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_lanes_of_its_own(monkeypatch):
    monkeypatch.setattr(tiles, "LANES_FROM", 0)
    with threadpool_limits(2, user_api="blas"):
        due = bits("fused", "keep6", 2, 70, 130)
        with lanes._one_blas_thread:  # as beside a thread in the middle of a call
            child = os.fork()
        if child == 0:
            same = False
            try:
                assert blas_threads() == [2] * len(blas_threads())
                got = bits("fused", "keep6", 2, 70, 130)
                same = all((a == b).all() for a, b in zip(got, due, strict=True))
            finally:
                sys.stdout.flush()
                os._exit(0 if same else 1)
        assert os.waitpid(child, 0)[1] == 0
