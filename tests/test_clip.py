"""Clipping of gradients."""

import math

import numpy as np
import pytest

import tinygrad_helix as th
from tinygrad_helix.errors import DTypeError, GraphError, HelixError
from tinygrad_helix.optim import clip_grad_norm_


def leaf(values, grad=None, dtype="float64"):
    p = th.tensor(values, dtype=dtype, requires_grad=True)
    if grad is not None:
        p.grad = th.tensor(grad, dtype=dtype)
    return p


def test_clipping():  # O51
    a, b, c = leaf([0.0], [3.0]), leaf([0.0], [4.0]), leaf([0.0])
    assert clip_grad_norm_([a, b, c], 1.0) == 5.0
    np.testing.assert_allclose([a.grad.item(), b.grad.item()], [0.6, 0.8], rtol=1e-15)
    assert c.grad is None
    assert a.grad.version == 1


@pytest.mark.parametrize("limit", [5.0, 5.5, math.inf])
def test_below_the_limit_no_bit_changes(limit):
    a = leaf([0.0, 0.0], [3.0, 4.0])
    bits = a.grad.data.tobytes()
    assert clip_grad_norm_(iter([a]), limit) == 5.0
    assert a.grad.data.tobytes() == bits and a.grad.version == 0


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_a_norm_that_is_not_finite_changes_nothing(bad):
    a, b = leaf([0.0, 0.0], [bad, 2.0]), leaf([0.0], [7.0])
    assert not math.isfinite(clip_grad_norm_([a, b], 1.0))
    assert b.grad.item() == 7.0 and a.grad.tolist()[1] == 2.0
    with pytest.raises(HelixError, match=r"shapes \[\(2,\)\].*Nothing was clipped"):
        clip_grad_norm_([a, b], 1.0, error_if_nonfinite=True)
    assert b.grad.item() == 7.0


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("float16", 300.0), ("float16", 1e-4), ("float32", 1e30), ("float64", 1e200)],
)
def test_squares_neither_overflow_nor_vanish(dtype, value):
    a = leaf(np.zeros(16), np.full(16, value), dtype)
    due = 4 * float(a.grad[0].item())
    np.testing.assert_allclose(clip_grad_norm_([a], due / 2), due, rtol=1e-12)
    np.testing.assert_allclose(a.grad.data, value / 2, rtol=2e-3)


def test_a_parameter_given_twice_counts_once():
    a = leaf([0.0, 0.0], [3.0, 4.0])
    assert clip_grad_norm_([a, a], 2.5) == 5.0
    assert a.grad.tolist() == [1.5, 2.0]


@pytest.mark.parametrize(
    ("args", "error", "match"),
    [
        (([], 0.0), HelixError, "above 0"),
        (([], -1), HelixError, "above 0"),
        (([], math.nan), HelixError, "above 0"),
        (([], "1"), DTypeError, "str"),
        ((th.ones(2), 1.0), DTypeError, "iterable"),
        (([3], 1.0), DTypeError, "int"),
    ],
)
def test_clipping_refuses(args, error, match):
    with pytest.raises(error, match=match):
        clip_grad_norm_(*args)


def test_clipping_of_nothing():
    assert clip_grad_norm_([], 1.0) == 0.0
    assert clip_grad_norm_([leaf([1.0])], 1.0) == 0.0


def test_a_gradient_that_is_read_only():
    a, b = leaf([0.0], [3.0]), leaf([0.0], [4.0])
    b.grad.data.flags.writeable = False
    with pytest.raises(GraphError, match="read-only"):
        clip_grad_norm_([a, b], 1.0)
    assert a.grad.item() == 3.0


def test_a_gradient_that_two_parameters_share_is_scaled_once():
    a, b, c, d = (leaf([0.0, 0.0], [0.0, 0.0]) for _ in range(4))
    shared = th.tensor([3.0, 4.0], dtype="float64")
    a.grad = b.grad = shared
    assert clip_grad_norm_([a, b], 1.0) == pytest.approx(math.sqrt(50))
    assert a.grad.tolist() == pytest.approx([3 / math.sqrt(50), 4 / math.sqrt(50)])
    both = th.tensor(
        [1.0, 2.0, 4.0], dtype="float64"
    )  # two overlapping views, one element in common
    c.grad, d.grad = both[:2], both[1:]
    assert clip_grad_norm_([c, d], 1.0) == pytest.approx(5.0)
    assert both.tolist() == pytest.approx([0.2, 0.4, 0.8])
