"""gated_scan against values that were computed elsewhere, and what makes it a scan."""

import itertools
from pathlib import Path

import numpy as np
import pytest

import tinygrad_helix as th
from tinygrad_helix.errors import DTypeError, ShapeError

GOLDEN = sorted((Path(__file__).parent / "golden" / "helix").glob("scan_*.npz"))
rng = np.random.default_rng(5)


def leaf(data):
    return th.Tensor(data, requires_grad=True)


def test_the_golden_files_are_there():
    assert len(GOLDEN) == 10


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.stem)
@pytest.mark.parametrize("with_last", [False, True])
def test_golden(path, dtype, with_last):
    """Float64 values of a PyTorch loop; the largest error over the largest value."""
    golden = np.load(path)
    # In float32 a long product of gates near 1 loses more.
    tolerance = 1e-13 if dtype == np.float64 else 2e-5 if "near1" in path.stem else 1e-6
    prefix = "with_last." if with_last else ""
    a, b = (leaf(golden[name].astype(dtype)) for name in ("a", "b"))
    h0 = leaf(golden["h0"].astype(dtype)) if "h0" in golden else None
    h, last = th.gated_scan(a, b, h0)
    cotangents = [th.Tensor(golden["gh"].astype(dtype))]
    if with_last:
        cotangents.append(th.Tensor(golden["g_last"].astype(dtype)))
    th.backward([h, last][: len(cotangents)], cotangents)
    pairs = [(h, "h"), (a.grad, prefix + "ga"), (b.grad, prefix + "gb")]
    pairs += [(h0.grad, prefix + "gh0")] if h0 is not None else []
    for got, name in pairs:
        want = golden[name]
        assert got.shape == want.shape and got.dtype == dtype
        error = np.abs(got.detach().numpy() - want).max()
        assert error <= tolerance * (np.abs(want).max() or 1.0), name
    assert np.array_equal(last.data, h.data[:, -1])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_zeros_are_exact(dtype):
    golden = np.load(next(p for p in GOLDEN if "gate0_h0" in p.stem))
    a, b, h0 = (leaf(golden[name].astype(dtype)) for name in ("a", "b", "h0"))
    h, _ = th.gated_scan(a, b, h0)
    h.sum().backward()
    assert np.array_equal(h.data, b.data) and not h0.grad.data.any()
    golden = np.load(next(p for p in GOLDEN if "gate01mix" in p.stem))
    a, b, h0 = (leaf(golden[name].astype(dtype)) for name in ("a", "b", "h0"))
    h, _ = th.gated_scan(a, b, h0)
    shut = a.data == 0
    assert shut.any() and np.array_equal(h.data[shut], b.data[shut])


def test_a_reset_separates_packed_sequences():
    a, b = (rng.standard_normal((1, 9, 2)) for _ in range(2))
    reset = np.zeros((1, 9), bool)
    reset[0, [4, 6]] = True
    packed, last = th.gated_scan(leaf(a), leaf(b), leaf(np.ones((1, 2))), reset)
    parts = []
    for i, (start, end) in enumerate([(0, 4), (4, 6), (6, 9)]):
        h0 = th.Tensor(np.ones((1, 2))) if i == 0 else None
        parts.append(th.gated_scan(leaf(a[:, start:end]), leaf(b[:, start:end]), h0)[0])
    assert np.array_equal(packed.data, np.concatenate([p.data for p in parts], axis=1))
    assert np.array_equal(last.data, parts[-1].data[:, -1])


def test_no_gradient_crosses_a_reset():
    a, b, h0 = (leaf(rng.standard_normal(s)) for s in ((1, 5, 2), (1, 5, 2), (1, 2)))
    for reset in ([0, 0, 1, 0, 0], [True, False, False, False, False]):
        h, _ = th.gated_scan(a, b, h0, np.array([reset]))
        start = list(reset).index(1)
        g = th.grad(h[:, start:].sum(), [a, b, h0])
        assert not g[0].data[:, : start + 1].any()
        assert not g[1].data[:, :start].any() and g[1].data[:, start:].all()
        assert not g[2].data.any()


def test_resets_of_any_kind_are_bools_in_the_end():
    a, b = leaf(rng.standard_normal((2, 3, 1))), leaf(rng.standard_normal((2, 3, 1)))
    mask = np.array([[0, 1, 0], [1, 0, 0]])
    want = th.gated_scan(a, b, reset=mask.astype(bool))[0]
    for given in (mask, mask.astype(np.float32), th.Tensor(mask), mask.tolist()):
        h, _ = th.gated_scan(a, b, reset=given)
        assert np.array_equal(h.data, want.data)
        assert {s.label: s.nbytes for s in th.memory.saved(h)}["reset"] == 6


def test_the_final_state_is_an_array_of_its_own():
    a, b = leaf(rng.standard_normal((1, 4, 2))), leaf(rng.standard_normal((1, 4, 2)))
    h, last = th.gated_scan(a, b)
    assert not np.shares_memory(h.data, last.data) and last.data.base is None
    with th.no_grad():
        last *= 0.0  # writing to it harms nothing that the tape keeps
    h.sum().backward()
    for state in (None, leaf(np.ones((1, 2)))):
        _, last = th.gated_scan(a[:, :0], b[:, :0], state)
        assert last.shape == (1, 2)
        assert state is None or not np.shares_memory(last.data, state.data)


def test_float16_carries_float32():
    # 4,096 steps of 1: in float16 the sum stops at 2,048.
    ones = np.ones((1, 4096, 1), np.float16)
    h, _ = th.gated_scan(leaf(ones), leaf(ones))
    assert h.dtype == np.float16 and h.data[0, -1, 0] == 4096


@pytest.mark.parametrize(
    ("a", "b", "h0", "reset", "error", "text"),
    [
        ((2, 3, 4), (2, 3, 5), None, None, ShapeError, r"\(2, 3, 4\) and \(2, 3, 5\)"),
        ((2, 3), (2, 3), None, None, ShapeError, r"\[B, T, D\]"),
        ((2, 3, 4), (2, 3, 4), (2, 3), None, ShapeError, r"h0 of shape \(2, 4\)"),
        ((2, 3, 4), (2, 3, 4), (4,), None, ShapeError, r"h0 of shape \(2, 4\)"),
        ((2, 3, 4), (2, 3, 4), None, (2, 3, 4), ShapeError, r"reset of shape \(2, 3\)"),
    ],
)
def test_shapes_that_do_not_fit(a, b, h0, reset, error, text):
    given = [None if s is None else leaf(np.ones(s)) for s in (a, b, h0)]
    with pytest.raises(error, match=text):
        th.gated_scan(*given, None if reset is None else np.zeros(reset, bool))


def test_dtypes_that_do_not_fit():
    x, y = leaf(np.ones((1, 2, 1))), leaf(np.ones((1, 2, 1), np.float32))
    with pytest.raises(DTypeError, match="a float64, b float32"):
        th.gated_scan(x, y)
    with pytest.raises(DTypeError, match="h0 float32"):
        th.gated_scan(x, x, th.Tensor(np.ones((1, 1), np.float32)))
    with pytest.raises(DTypeError, match="b int64"):
        th.gated_scan(x, th.Tensor(np.ones((1, 2, 1), int)))
    for reset in (np.array([[0, 2]]), np.array([[0.5, 1]])):
        with pytest.raises(DTypeError, match="bools or of 0 and 1"):
            th.gated_scan(x, x, reset=reset)
    for reset in (np.array([["1", "0"]]), np.array([[1j, 0]])):
        with pytest.raises(DTypeError, match=f"gated_scan.*{reset.dtype}"):
            th.gated_scan(x, x, reset=reset)


def stepwise(a, b, h0, reset):
    """The scan as a loop of arithmetic: (h, h_T)."""
    keep = 1.0 if reset is None else th.tensor((~reset)[:, :, None].astype(a.dtype))
    h, steps = h0, []
    for t in range(a.shape[1]):
        gate = a[:, t] if reset is None else a[:, t] * keep[:, t]
        h = b[:, t] if h is None else gate * h + b[:, t]
        steps.append(h)
    return th.stack(steps, axis=1), h


SUBSETS = [s for n in (1, 2, 3) for s in itertools.combinations(range(3), n)]


@pytest.mark.parametrize("with_reset", [False, True])
@pytest.mark.parametrize("first", SUBSETS)
@pytest.mark.parametrize("second", SUBSETS)
def test_second_order_of_every_choice_of_gradients(first, second, with_reset):
    """Against a loop, with the others as leaves too and with them as plain Tensors."""
    local = np.random.default_rng(11)
    values = [local.standard_normal(s) for s in ((2, 4, 3), (2, 4, 3), (2, 3))]
    reset = np.array([[0, 0, 1, 0], [1, 0, 0, 1]], bool) if with_reset else None
    w, w_last = local.standard_normal((2, 4, 3)), local.standard_normal((2, 3))

    def gradients(scan, wanted, with_h0, power):
        xs = [th.Tensor(v, requires_grad=i in wanted) for i, v in enumerate(values)]
        h, last = scan(xs[0], xs[1], xs[2] if with_h0 else None, reset)
        y = (h**power * w).sum() + (last * w_last).sum()
        got = th.grad(y, [xs[i] for i in first], create_graph=True, allow_unused=True)
        z = sum((g * g * 0.5 + g).sum() for g in got if g is not None)
        if not z.requires_grad:
            return [*got, None]
        more = th.grad(z, [xs[i] for i in second], allow_unused=True)
        return [*got, *more]

    for wanted, power in itertools.product(({0, 1, 2}, {*first, *second}), (1, 2)):
        for with_h0 in (True, False):
            if not with_h0 and first == (2,):
                continue
            got = gradients(th.gated_scan, wanted, with_h0, power)
            want = gradients(stepwise, wanted, with_h0, power)
            for g, e in itertools.zip_longest(got, want):
                g = 0 if g is None else g.detach().numpy()
                e = 0 if e is None else e.detach().numpy()
                np.testing.assert_allclose(g, e, rtol=1e-12, atol=1e-12)
