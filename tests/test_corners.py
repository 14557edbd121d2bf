"""Corners of ops: far arguments, 16-bit sums, arrays that change later, foreign arrays."""

import warnings

import numpy as np
import pytest

import tinygrad_helix as th
from tinygrad_helix.errors import DTypeError, HelixError, ShapeError
from tinygrad_helix.nn.helix import INPUTS, WEIGHTS, HelixBlock, helix_block

FLOATS = [np.float16, np.float32, np.float64, np.longdouble]


def leaf(data, dtype=np.float64):
    return th.Tensor(np.array(data, dtype), requires_grad=True)


# --- the logistic function far out


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_logistic_function_far_out(dtype):
    far = np.finfo(dtype).max / 2
    x = leaf([-far, far, 0], dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        s, y = th.sigmoid(x), th.silu(x)
        (dy,) = th.grad(y.sum(), x, create_graph=True)
        (d2y,) = th.grad(dy.sum(), x)
    assert s.tolist() == [0, 1, 0.5]
    assert y.tolist() == [0, far, 0] and np.signbit(y.data[0])
    assert dy.tolist() == [0, 1, 0.5]
    assert d2y.tolist() == [0, 0, 0.5]


# --- 16-bit sums


def test_float16_adds_up_at_one_index():
    n = 5000
    index = np.zeros(n, int)
    v, m = leaf([0, 0], np.float16), leaf(np.zeros((2, 3)), np.float16)
    (v[index].sum() + m[index].sum() + v.take(index).sum()).backward()
    assert v.grad.tolist() == [2 * n, 0] and v.grad.dtype == np.float16
    assert m.grad.tolist() == [[n] * 3, [0] * 3]
    m.grad = v.grad = None
    th.embedding(m, index).sum().backward()
    assert m.grad.data[0, 0] == n
    v.gather(index, 0).sum().backward()
    assert v.grad.tolist() == [n, 0]


@pytest.mark.parametrize("fn", [th.max, th.min, th.mean])
def test_float16_of_more_elements_than_it_can_count(fn):
    n = 70_000
    x = leaf(np.ones(n), np.float16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fn(x).backward()
    assert x.grad.dtype == np.float16
    assert np.all(x.grad.data == np.float16(1 / n)) and x.grad.data[0] > 0


@pytest.mark.parametrize("fn", [th.argmax, th.argmin])
@pytest.mark.parametrize("axis", [(0, 1), (0,), [0], ()])
def test_one_axis_to_find_a_place_along(fn, axis):
    with pytest.raises(DTypeError, match=f"{fn.__name__} got axis=.*one axis"):
        fn(th.ones(2, 3), axis=axis)


# --- arrays that the caller writes to between forward and backward

ROWS = np.array([0, 2, 2])
MASK = np.array([True, False, True])
KEPT = {
    "getitem": (lambda x, i: x[i], ROWS),
    "getitem with a slice": (lambda x, i: x[..., i], ROWS),
    "getitem of a mask": (lambda x, i: x[i], MASK),
    "take": (lambda x, i: th.take(x, i, axis=0), ROWS),
    "gather": (lambda x, i: th.gather(x, i, 0), ROWS[:, None].repeat(3, 1)),
    "scatter_add": (
        lambda x, i: th.scatter_add(th.zeros(3, 3, dtype="float64"), i, x, 0),
        ROWS[:, None].repeat(3, 1),
    ),
    "embedding": (lambda x, i: th.embedding(x, i), ROWS),
    "where": (lambda x, m: th.where(m, x, x * 2), MASK),
    "masked_fill": (lambda x, m: th.masked_fill(x, m, 1.0), MASK),
    "cross_entropy": (lambda x, t: th.cross_entropy(x, t), ROWS),
    "gated_scan": (
        lambda x, r: th.gated_scan(x[None], x[None], x[0:1], r[None])[0],
        MASK,
    ),
    **{
        f"helix_block {mode}": (
            lambda x, r, mode=mode: helix_block(x[None], *BLOCK, reset=r[None], mode=mode),
            MASK,
        )
        for mode in ("fused", "composed")
    },
}
BLOCK = [
    th.Tensor(w.data)
    for w in HelixBlock(
        3, dtype=np.float64, generator=np.random.default_rng(2)
    ).parameters()
]


@pytest.mark.parametrize("name", KEPT)
def test_what_the_caller_writes_later_moves_no_gradient(name):
    fn, given = KEPT[name]
    x = leaf(np.random.default_rng(3).standard_normal((3, 3)))

    def gradient(change):
        mine = given.copy()
        y = fn(x, mine)
        weights = np.arange(1.0, y.size + 1).reshape(y.shape)
        if change:
            mine[...] = ~mine if mine.dtype == bool else 1
        return th.grad((y * weights).sum(), x)[0].data

    assert np.array_equal(gradient(True), gradient(False))


def test_a_tensor_is_shared_and_guarded():
    x, i = leaf(np.ones(3)), th.tensor([0, 1])
    y = x[i]
    (row,) = th.memory.saved(y)
    assert np.shares_memory(i.data, y.node.saved[0].array) and row.nbytes == 16
    i[0] = 2
    with pytest.raises(HelixError, match="in place"):
        y.sum().backward()


def test_nothing_is_copied_that_is_not_kept():
    index = np.array([0, 1])
    x = leaf(np.ones((3, 3)))
    assert th.saved_bytes(x[index, index]) == 16  # one copy of one array
    reset = th.tensor([[True, False, False]])
    h, _ = th.gated_scan(x[None], x[None], None, reset)
    held = {id(s.array) for node in h.node.reachable() for s in node.saved or ()}
    assert id(reset.data) in held


# --- arrays of other kinds


class Odd(np.ndarray):
    """A subclass that says so."""


def test_subclasses_of_arrays_become_plain():
    x = leaf([[1.0, 2.0], [3.0, 4.0]])
    odd = np.array([1, 0]).view(Odd)
    matrix = np.array([[0, 1], [1, 0]]).view(Odd)
    mask = np.array([True, False]).view(Odd)
    for y in (
        x[odd],
        th.embedding(x, odd),
        th.take(x, matrix, axis=0),
        th.where(mask, x, 0.0),
        th.cross_entropy(x, odd),
        th.gather(x, matrix, 0),
        th.gated_scan(x[None], x[None], None, np.zeros((1, 2), bool).view(Odd))[0],
    ):
        for s in y.node.saved:
            assert type(s.array) is np.ndarray
        y.sum().backward()


@pytest.mark.parametrize("dtype", ["complex64", "U1", "object"])
def test_arrays_of_other_dtypes_are_refused(dtype):
    x = leaf([[1.0, 2.0], [3.0, 4.0]])
    other = np.array(["1", "0"]).astype("f8" if dtype == "complex64" else "U1")
    other = other.astype(dtype)
    square = np.stack([other, other])
    calls = {
        "embedding": lambda: th.embedding(x, other),
        "take": lambda: th.take(x, other),
        "gather": lambda: th.gather(x, square, 0),
        "where": lambda: th.where(other, x, x),
        "cross_entropy": lambda: th.cross_entropy(x, other),
        "gated_scan": lambda: th.gated_scan(x[None], x[None], None, other[None]),
        "index": lambda: x[other],
        "exp": lambda: th.exp(square),
        "add": lambda: th.add(x, square),
        "matmul": lambda: th.matmul(x, square),
        "cat": lambda: th.cat([x, square]),
        "maximum": lambda: th.maximum(square, x),
    }
    for name, call in calls.items():
        with pytest.raises(DTypeError, match=f"(?s){name}.*{np.dtype(dtype)}"):
            call()


@pytest.mark.parametrize("number", [1j, np.complex64(1j), "1"])
def test_numbers_of_other_kinds_are_refused(number):
    with pytest.raises(DTypeError, match="exp takes"):
        th.exp(number)
    with pytest.raises(DTypeError, match="add takes"):
        th.add(leaf([1.0]), number)


# --- the block


def test_a_weight_that_an_op_made_is_no_parameter_for_good():
    block = HelixBlock(4)
    x = th.randn(1, 3, 4, requires_grad=True)
    weights = dict(zip(WEIGHTS, block.parameters(), strict=True))
    made = weights["wo"] * 2
    for mode in ("fused", "composed"):
        y = helix_block(x, **{**weights, "wo": made}, mode=mode)
        assert not th.memory.is_parameter(made.data)
        assert any(s.nbytes == made.nbytes for s in th.memory.saved(y) if not s.parameter)
    raw = np.ones((4, 4), np.float32)
    helix_block(x, **{**weights, "wo": raw})
    assert th.memory.is_parameter(raw)


@pytest.mark.parametrize("mode", ["fused", "composed", "primitive"])
def test_the_last_state_requires_a_gradient_only_if_something_leads_to_it(mode):
    values = dict(zip(WEIGHTS, BLOCK, strict=True))
    values |= {"x": th.ones(2, 3, 3, dtype="float64"), "h0": th.ones(2, 3, dtype="float64")}
    for name in [n for n in INPUTS if n != "reset"]:
        wanted = {k: th.Tensor(v.data, requires_grad=k == name) for k, v in values.items()}
        y, h_T = helix_block(**wanted, mode=mode, return_state=True)
        assert y.requires_grad
        assert h_T.requires_grad == (name in ("x", "wa", "wb", "g1", "h0")), name
        y.sum().backward()
        assert wanted[name].grad is not None


def test_what_the_block_refuses():
    with pytest.raises(ShapeError, match=r"h0 of shape \(2, 8\) \[B, D\].*row for each"):
        HelixBlock(8)(th.ones(2, 3, 8), h0=th.ones(3, 8))
    for eps in (-1, float("nan"), float("inf")):
        with pytest.raises(HelixError, match="HelixBlock got eps="):
            HelixBlock(8, eps=eps)
    for shape in ((2, 3, 9), (3, 8)):
        with pytest.raises(ShapeError, match="width 8"):
            HelixBlock(8).predict_saved(shape, "float32")
