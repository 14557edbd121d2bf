"""What the fused HELIX block keeps, and what that costs: numbers without arrays."""

import itertools

import numpy as np
import pytest

from tinygrad_helix.errors import HelixError
from tinygrad_helix.fused import POLICIES, Budget, FusedHelix, Keep, helix, tiles
from tinygrad_helix.fused.policy import (
    INPUTS,
    KEEPABLE,
    VALUES,
    Call,
    extra_flops,
    kept,
    plan,
    resolve,
)

ALL = frozenset(INPUTS) - {"reset"}
SETS = [
    ("x", *names)
    for size in range(8)
    for names in itertools.combinations(KEEPABLE[1:], size)
]
NAMED = {"keep9": 9, "keep6": 6, "keep4": 4, "keep3": 3, "keep2": 2, "keep1": 1}


def call(shape=(2, 16, 32), itemsize=4, wanted=ALL, h0=False, reset=False):
    return Call(shape, itemsize, frozenset(wanted), h0, reset)


def total(c, keep):
    return sum(kept(c, keep).values())


@pytest.mark.parametrize("shape", [(2, 16, 32), (8, 128, 256), (8, 512, 512), (3, 7, 5)])
@pytest.mark.parametrize("itemsize", [4, 8])
@pytest.mark.parametrize("h0", [False, True])
@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("name", NAMED)
def test_bytes_of_the_named_policies(name, shape, itemsize, h0, reset):
    B, T, D = shape
    c = call(shape, itemsize, h0=h0, reset=reset)
    expected = NAMED[name] * B * T * D * itemsize + h0 * B * D * itemsize + reset * B * T
    assert total(c, resolve(name, c)) == expected


def test_aliases():
    assert POLICIES["full"] == POLICIES["keep9"]
    assert POLICIES["lean"] == POLICIES["keep6"]
    assert POLICIES["checkpoint"] == POLICIES["keep1"]
    assert resolve(None, call()) == resolve("lean", call()) == ("x", "a", "h", "out1", "f1")


def test_keep_is_a_set_with_a_name():
    keep = Keep("f2", "x", "a", "x")
    assert keep.names == ("x", "a", "f2")
    assert keep.name == repr(keep) == "keep(x,a,f2)"
    assert keep == Keep("x", "a", "f2") != Keep("x", "a")
    assert len({keep, Keep("a", "x", "f2")}) == 1
    assert Keep("x", "a", "h", "out1", "f1") == POLICIES["lean"]


@pytest.mark.parametrize(
    ("names", "says"), [(("a", "h"), "'x'"), ((), "'x'"), (("x", "xn"), "'xn'")]
)
def test_keep_refuses(names, says):
    with pytest.raises(HelixError, match=says):
        Keep(*names)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (1000, 1000),
        ("64MB", 64 * 10**6),
        ("64MiB", 64 * 2**20),
        ("1.5 kB", 1500),
        ("2gib", 2**31),
        ("7", 7),
        ("7 B", 7),
        (0, 0),
    ],
)
def test_budget_reads(text, size):
    assert Budget(text).bytes == size
    assert Budget(text) == Budget(size)
    assert Budget(Budget(text).bytes).name == f"budget({size})"


@pytest.mark.parametrize("text", ["", "MB", "64 parsecs", "-1", "1e6", -1, 1.5, True, None])
def test_budget_refuses(text):
    with pytest.raises(HelixError, match="bytes"):
        Budget(text)


@pytest.mark.parametrize("policy", ["keep7", "", 3, ["x"], b"lean"])
def test_an_unknown_policy_lists_the_valid_ones(policy):
    with pytest.raises(HelixError, match=r"'keep9'.*'checkpoint'.*Keep\('x', \.\.\.\)"):
        resolve(policy, call())


@pytest.mark.parametrize(
    ("name", "products"),
    [("keep9", 0), ("keep6", 0), ("keep4", 4), ("keep3", 6), ("keep2", 8), ("keep1", 10)],
)
def test_extra_products(name, products):
    """In N·D² FLOPs, of 42 for a step; elementwise work is less than one at this width."""
    N, D = 2 * 16, 4096
    extra = extra_flops(call((2, 16, D)), POLICIES[name].names)
    assert extra // (N * D * D) == products
    assert (extra == 0) == (name == "keep9")


def test_extra_flops_exactly():
    c = call((2, 16, 32))
    N, D = 32, 32
    # keep6: s2 = h·g2·s and xn2 = rms2·g3; the sigmoid and rms2 are needed in any case.
    assert extra_flops(c, POLICIES["keep6"].names) == N * 2 * D
    # keep1: also the products of 10·N·D², a (5), the scan (2), out1 = x + s2 wo (1).
    assert extra_flops(c, ("x",)) == N * (10 * D * D + (2 + 5 + 2 + 1) * D)


def test_a_budget_takes_the_cheapest_set_that_fits():
    for c in (
        call(),
        call((8, 128, 256), 8, h0=True, reset=True),
        call(wanted={"wf1", "g3"}),
        call(wanted={"x"}),
    ):
        costs = {keep: (extra_flops(c, keep), total(c, keep)) for keep in SETS}
        sizes = sorted({size for _, size in costs.values()})
        for limit in [*sizes, *(n + 1 for n in sizes)]:
            best = min(cost for cost in costs.values() if cost[1] <= limit)
            assert costs[resolve(Budget(limit), c)] == best, limit
        with pytest.raises(HelixError, match=rf"smallest set.*{sizes[0]}"):
            resolve(Budget(sizes[0] - 1), c)


def test_budgets_by_hand():
    unit = 2 * 16 * 32 * 4

    def names(k):
        return resolve(Budget(k * unit), call())

    assert names(100) == names(8) == ("x", "a", "h", "s2", "out1", "xn2", "f1")
    assert names(6) == POLICIES["keep6"].names
    assert names(5) == ("x", "a", "h", "f1")  # out1 again: a product and one addition
    assert names(4) == POLICIES["keep4"].names
    assert names(2) == ("x", "a")  # the scan again is 2 FLOPs a value, the gates 5
    assert names(1) == ("x",)


@pytest.mark.parametrize(
    ("wanted", "reads"),
    [
        ("wf2", "f1 g4"),
        ("g4", "f1 wf2"),
        ("wf1", "f1 wf2 g4 out1 g3"),
        ("g3", "f1 wf2 g4 out1 wf1"),
        ("wo", "f1 wf2 g4 out1 g3 wf1 h g2"),
        ("g2", "f1 wf2 g4 out1 g3 wf1 h g2 wo"),
        ("h0", "f1 wf2 g4 out1 g3 wf1 h g2 wo a reset"),
        ("wb", "f1 wf2 g4 out1 g3 wf1 h g2 wo a reset x g1"),
        ("wa", "f1 wf2 g4 out1 g3 wf1 h g2 wo a reset h0 x g1"),
        ("g1", "f1 wf2 g4 out1 g3 wf1 h g2 wo a reset h0 x wa wb"),
        ("x", "f1 wf2 g4 out1 g3 wf1 h g2 wo a reset h0 x g1 wa wb"),
    ],
)
def test_what_one_gradient_reads(wanted, reads):
    assert plan(frozenset({wanted}), frozenset(POLICIES["lean"].names)).reads == set(
        reads.split()
    )


def test_what_no_wanted_gradient_reads_is_not_kept():
    lean = POLICIES["lean"].names
    unit = 2 * 16 * 32 * 4
    assert kept(call(wanted={"wf2"}), lean) == {"f1": 2 * unit}
    assert kept(call(wanted={"wf1"}), POLICIES["keep9"].names) == {
        "f1": 2 * unit,
        "xn2": unit,
    }
    assert kept(call(wanted={"g4"}), POLICIES["keep9"].names) == {"f2": unit}
    assert kept(call(wanted=()), lean) == {}
    assert "h0" not in kept(call(wanted={"wb"}, h0=True), lean)
    assert "h0" in kept(call(wanted={"wb"}, h0=True), ("x",))  # the scan runs again
    assert "reset" not in kept(call(wanted={"wo"}, reset=True), lean)


def test_a_smaller_sweep_reads_no_more():
    """What a call keeps for its gradients serves a sweep that wants fewer of them."""
    rng = np.random.default_rng(0)
    names = sorted(ALL)
    for _ in range(400):
        wanted = frozenset(n for n in names if rng.random() < 0.5)
        fewer = frozenset(n for n in wanted if rng.random() < 0.5)
        keep = frozenset(SETS[rng.integers(len(SETS))])
        there = plan(wanted, keep).reads
        assert plan(fewer, keep & there).reads <= there


def test_the_products_that_run_are_those_of_the_table(monkeypatch):
    """For each of the 128 sets, the FLOPs of the products of a vjp, counted as they run."""
    B, T, D = 2, 6, 4
    rng = np.random.default_rng(0)
    shapes = [(B, T, D), (D + 1, D), (D, D), (D, D), (D, 2 * D), (2 * D, D), *[(D,)] * 4]
    arrays = [*(rng.standard_normal(s) for s in shapes), None, None]
    inputs = tuple(None if a is None else (a.shape, a.dtype) for a in arrays)
    needs = (True,) * 10 + (False,) * 2
    flops = []

    def gemm(a, b, out):
        flops.append(2 * a.shape[0] * a.shape[1] * b.shape[1])
        np.matmul(a, b, out=out)

    for module in (helix, tiles):
        monkeypatch.setattr(module, "gemm", gemm)
    for keep in SETS:
        attrs = {"eps": 1e-5, "policy": Keep(*keep), "return_state": False}
        flops.clear()
        y, saved = FusedHelix.forward(np, *arrays, needs=needs, **attrs)
        assert sum(flops) == 14 * B * T * D * D
        flops.clear()
        saved = dict.fromkeys(FusedHelix.saves) | saved
        FusedHelix.vjp(y, saved, needs=needs, inputs=inputs, **attrs)
        made = plan(ALL - {"h0"}, frozenset(keep)).made
        assert sum(flops) == B * T * D * D * (28 + sum(VALUES[n].gemm for n in made)), keep
