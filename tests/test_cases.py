"""Faults that other projects had in public: each kind is right here.

A test is named after its case; the address beside it is the report. Values come from the
reports, from PyTorch in float64, or by hand.
"""

import copy
import gc
import pickle
import subprocess
import sys
import tracemalloc
import warnings
import weakref

import numpy as np
import pytest

import tinygrad_helix as th
from tinygrad_helix.errors import (
    DeviceError,
    DoubleBackwardError,
    DTypeError,
    GraphError,
    NonScalarBackwardError,
    SavedTensorsFreedError,
    ShapeError,
)


def T(data, requires_grad=False):
    """A Tensor; floats in lists are float64."""
    array = np.asarray(data)
    return th.Tensor(array, requires_grad=requires_grad)


def leaf(data):
    return T(data, requires_grad=True)


def same(got, want, rtol=1e-12, atol=0.0):
    """Values and shape (a broadcast result would hide a wrong shape)."""
    got = got.detach().numpy() if isinstance(got, th.Tensor) else np.asarray(got)
    want = np.asarray(want)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)


# --- broadcasting


def test_O01_size_one_operands_get_their_shape_back():
    """https://github.com/pytorch/pytorch/issues/1787"""
    a, b = leaf([2.0]), leaf(np.arange(20.0).reshape(5, 4))
    (a * b).sum().backward()
    same(a.grad, [190.0])
    same(b.grad, np.full((5, 4), 2.0))
    c, d = leaf([[1.0], [2.0], [3.0], [4.0]]), leaf([[1.0, 2.0, 3.0, 4.0]])
    (c * d).sum().backward()
    same(c.grad, [[10.0]] * 4)
    same(d.grad, [[10.0, 10.0, 10.0, 10.0]])


@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "pow", "maximum", "minimum"])
@pytest.mark.parametrize(
    "shapes",
    [((1,), (5, 4)), ((3, 1), (1, 4)), ((2, 1, 3), (4, 1)), ((), (2, 3)), ((1, 1), (3,))],
)
def test_O01_every_binary_op(op, shapes):
    rng = np.random.default_rng(0)
    a, b = (leaf(rng.random(s) + 1.0) for s in shapes)
    y = getattr(th, op)(a, b)
    y.sum().backward()
    assert a.grad.shape == a.shape and b.grad.shape == b.shape
    # The same on operands that were broadcast beforehand, summed back by NumPy.
    wide_a, wide_b = (leaf(np.broadcast_to(x.data, y.shape).copy()) for x in (a, b))
    getattr(th, op)(wide_a, wide_b).sum().backward()
    for x, wide in ((a, wide_a), (b, wide_b)):
        lead = tuple(range(y.ndim - x.ndim))
        summed = wide.grad.numpy().sum(axis=lead)
        axes = tuple(i for i, n in enumerate(x.shape) if n == 1)
        same(x.grad, summed.sum(axis=axes, keepdims=True))


def test_O02_the_gradient_of_a_0d_tensor_is_a_0d_tensor():
    """https://github.com/rsokl/MyGrad/pull/373"""
    s, v = leaf(3.0), leaf([1.0, 2.0])
    for times in (1, 2):
        (s * v).sum().backward()
        assert isinstance(s.grad, th.Tensor) and isinstance(s.grad.data, np.ndarray)
        same(s.grad, 3.0 * times)
        same(v.grad, [3.0 * times] * 2)


@pytest.mark.parametrize(
    "fn",
    [
        lambda s: s + s,
        lambda s: s * s,
        lambda s: s * s + s,
        lambda s: (s * np.ones(3)).sum() + s,
        lambda s: th.where(T(True), s, s) + s.exp(),
        lambda s: s.sum() * s.mean() * s.max(),
        lambda s: s.reshape(1)[0] * s.reshape(1, 1).sum(),
        lambda s: -s / s + s**2,
        lambda s: th.maximum(s, s) + th.stack([s, s]).sum(),
    ],
)
def test_O02_every_path_through_0d_gives_arrays(fn):
    s = leaf(1.5)
    for _ in range(2):
        fn(s).backward()
    assert isinstance(s.grad.data, np.ndarray) and s.grad.shape == ()
    assert th.gradcheck(fn, s, order=2)


def test_O03_broadcast_to():
    """https://github.com/HIPS/autograd/issues/384"""
    x = leaf([1.0, 2.0, 3.0])
    (x.broadcast_to((4, 3)) * T(np.arange(12.0).reshape(4, 3))).sum().backward()
    same(x.grad, [18.0, 22.0, 26.0])
    y = leaf([[1.0], [2.0]])
    (y.broadcast_to(3, 2, 4) * T(np.arange(24.0).reshape(3, 2, 4))).sum().backward()
    same(y.grad, np.arange(24.0).reshape(3, 2, 4).sum(axis=(0, 2)).reshape(2, 1))


def test_O04_a_row_in_a_squared_loss():
    """https://github.com/deeplearning4j/nd4j/issues/2424"""
    a, r = leaf(np.arange(1.0, 13).reshape(3, 4)), leaf([[1.0, 2.0, 3.0, 4.0]])
    label = T(np.arange(100.0, 112).reshape(3, 4))
    ((a + r - label) ** 2).sum().backward()
    same(r.grad, [[-588.0, -582.0, -576.0, -570.0]])
    same(a.grad, [[-196.0, -194.0, -192.0, -190.0]] * 3)


# --- reuse


def test_O05_a_reused_result_counts_once_a_use():
    """https://github.com/karpathy/micrograd/pull/64"""
    a = leaf(1.0)
    b = a + a
    (b + b).backward()
    same(a.grad, 4.0)
    x = leaf(3.0)
    (x * x).backward()
    same(x.grad, 6.0)
    z = leaf([1.0, 2.0])
    doubled = z
    for _ in range(60):  # a sweep that followed paths would never come to an end
        doubled = doubled + doubled
    doubled.sum().backward()
    same(z.grad, [2.0**60, 2.0**60])


def test_O06_inner_nodes_do_not_accumulate():
    """https://github.com/karpathy/micrograd/issues/53"""
    a, b, d = leaf(3.0), leaf(2.0), leaf(1.0)
    e = (a + b) * d
    e.backward(retain_graph=True)
    assert (a.grad.item(), b.grad.item(), d.grad.item()) == (1, 1, 5)
    e.backward()
    assert (a.grad.item(), b.grad.item(), d.grad.item()) == (2, 2, 10)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y: (x + y).sum(),
        lambda x, y: (x - y).sum(),
        lambda x, y: (x.reshape(2) + y.reshape(2)).sum(),
        lambda x, y: th.cat([x, y]).sum(),
        lambda x, y: th.stack([x, y]).sum(),
        lambda x, y: sum(th.split(th.cat([x, y]), 2)).sum(),
        lambda x, y: (x.transpose() + y.broadcast_to(2)).sum(),
    ],
)
def test_O07_no_two_gradients_share_memory(fn):
    """https://github.com/pytorch/pytorch/issues/46168"""
    x, y = leaf([1.0, 2.0]), leaf([1.0, 2.0])
    fn(x, y).backward()
    before = y.grad.numpy().copy()
    with th.no_grad():
        x.grad *= 0.0
    same(y.grad, before)
    assert np.abs(before).tolist() == [1.0, 1.0]


def test_O07_a_gradient_shares_no_memory_with_the_cotangent():
    x, dy = leaf([1.0, 2.0]), np.array([3.0, 4.0])
    (x + 0.0).backward(T(dy))
    (g,) = th.grad(x + 0.0, x, T(dy))
    dy[:] = 0
    same(x.grad, [3.0, 4.0])
    same(g, [3.0, 4.0])
    x.backward(T(dy))  # a leaf as the root
    assert not np.shares_memory(x.grad.data, dy)


# --- depth and memory


def test_O08_deep_graphs():
    """https://github.com/karpathy/micrograd/pull/90"""
    limit = sys.getrecursionlimit()
    x = leaf([1.0])
    y = x
    for _ in range(20_000):
        y = y + 1.0
    same(y, [20_001.0])
    y.sum().backward()
    same(x.grad, [1.0])
    (g,) = th.grad(y.sum(), x, create_graph=True)
    same(g, [1.0])
    del y  # freeing it must not recurse either
    assert sys.getrecursionlimit() == limit


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_O09_training_steps_leave_nothing_behind(no_collector):
    """https://github.com/pytorch/pytorch/issues/7343"""
    rng = np.random.default_rng(0)
    w1, w2 = (leaf(rng.standard_normal((256, 256)) / 16) for _ in range(2))
    x = T(rng.standard_normal((16, 256)))
    levels = {}
    tracemalloc.start()
    try:
        for step in range(1, 201):
            loss = (((x @ w1).tanh() @ w2) ** 2).mean()
            loss.backward()
            with th.no_grad():
                for w in (w1, w2):
                    w -= w.grad * 0.01
                    w.grad = None
            levels[step] = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert abs(levels[200] - levels[5]) < 2**16


def test_O09_nothing_waits_for_the_collector(no_collector):
    def refused(y):
        with pytest.raises(ShapeError):
            y.backward(T([1.0, 2.0]))

    x = leaf(np.ones(5))
    dead = []
    for use in (
        lambda y: y.backward(),
        lambda y: y.backward(retain_graph=True),
        lambda y: th.grad(y, x, create_graph=True),
        lambda y: th.grad(th.grad(y, x, create_graph=True)[0].sum(), x),
        lambda y: None,
        refused,
    ):
        z = x.exp()
        y = (z * z.tanh()).sum()
        dead += [weakref.ref(z.data), weakref.ref(y.node), weakref.ref(z)]
        use(y)
        x.grad = None
        del y, z
    assert [r() for r in dead] == [None] * len(dead)


def test_O10_saved_tensors_go_with_the_sweep():
    """https://github.com/pytorch/pytorch/issues/51978"""
    x = leaf(np.ones((512, 512)))
    losses, arrays = [], []
    for _ in range(5):
        y = x.exp()
        z = y.tanh()
        loss = z.sum()
        arrays += [weakref.ref(y.data), weakref.ref(z.data)]
        del y, z
        assert th.saved_bytes(loss) == 2 * 512 * 512 * 8
        loss.backward()
        losses.append(loss)
        assert th.saved_bytes(loss) == 0
        assert [r() for r in arrays] == [None] * len(arrays)
    assert th.saved_bytes(*losses) == 0


def test_O11_a_buffer_counts_once():
    """https://github.com/pytorch/pytorch/issues/1995"""
    x = leaf(np.ones((1000, 100)))
    y = (x[:10] * x[:10]).sum()
    assert th.saved_bytes(y) == 800_000  # the storage, and once
    rows = [s for s in th.memory.saved(y) if s.op == "mul"]
    assert [s.nbytes for s in rows] == [800_000, 800_000]
    assert [s.view_nbytes for s in rows] == [8000, 8000]
    assert [s.first for s in rows] == [True, False]
    assert "800,000 (a view of 8,000)" in th.memory.table(y)
    small = x.exp()[:10]  # here the buffer is exp's result, which exp keeps anyway
    assert th.saved_bytes((small * small).sum()) == 800_000


# --- writing in place


def test_O12_no_silent_write_into_what_backward_needs():
    """https://github.com/pytorch/pytorch/issues/9391"""
    a = leaf([1.0, 2.0, 3.0])
    b = a.sigmoid()
    before = b.data.copy()
    with pytest.raises(GraphError, match=r"x\[\.\.\.\] = .* made by sigmoid .*no_grad"):
        b[1] = 2.0
    same(b, before)
    with th.no_grad():
        b[1] = 2.0
    with pytest.raises(GraphError, match=r"sigmoid .* saved 'y' .*written in place"):
        b.sum().backward()
    assert a.grad is None


@pytest.mark.parametrize(
    "write",
    [
        lambda b: b.__setitem__(0, 2.0),
        lambda b: b.__iadd__(1.0),
        lambda b: b.__isub__(1.0),
        lambda b: b.__imul__(2.0),
        lambda b: b.__itruediv__(2.0),
        lambda b: b.copy_(T([0.0, 0.0, 0.0])),
        lambda b: b[:2].__iadd__(1.0),
        lambda b: b.reshape(3, 1).__setitem__(1, 0.0),
        lambda b: b.detach().__imul__(2.0),
    ],
)
def test_O12_every_write_is_seen(write):
    a = leaf([1.0, 2.0, 3.0])
    for y in (a.exp(), a.tanh(), a.sqrt(), a.softmax()):
        total = y.sum()
        with th.no_grad():
            write(y)
        with pytest.raises(GraphError, match=f"{y.node.op.name} .*written in place"):
            total.backward()
    # A saved input as well, and one that is only a view of what is written to.
    total = (a[1:] * 2.0 * a[1:]).sum()
    with th.no_grad():
        write(a)
    with pytest.raises(GraphError, match=r"mul .*written in place"):
        total.backward()
    assert a.grad is None


def test_O13_updating_a_leaf_in_place():
    """https://github.com/tinygrad/tinygrad/pull/3880"""
    w = leaf([1.0, 2.0])
    array, before = w.data, w
    with th.no_grad():
        w -= 0.1
    assert w is before and w.data is array
    assert w.is_leaf and w.requires_grad and w.node is None
    same(w, [0.9, 1.9])
    with pytest.raises(RuntimeError, match="no_grad"):
        w += 1
    same(w, [0.9, 1.9])
    plain = T([1.0])
    with pytest.raises(RuntimeError, match="value written requires a gradient"):
        plain += w[:1]
    same(plain, [1.0])


# --- dtypes


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: 2 * x,
        lambda x: x * 2.5,
        lambda x: x / 12345,
        lambda x: x + np.float64(1),
        lambda x: np.float32(2) * x,
        lambda x: np.float64(2) - x,
        lambda x: np.int64(3) / x,
        lambda x: x**2,
        lambda x: x**0.5,
        lambda x: 2.0**x,
        lambda x: x * True,
        lambda x: x * np.arange(2),
        lambda x: x + th.Tensor([1, 2]),
        lambda x: th.maximum(x, 0.0),
        lambda x: th.minimum(0, x),
        lambda x: th.where(x > 0, x, 0.0),
        lambda x: th.where(x > 0, np.float64(1), x),
        lambda x: x.mean() + x.sum() + x.max(),
        lambda x: th.rms_norm(x) + x.softmax(),
    ],
)
def test_O14_numbers_do_not_widen(dtype, fn):
    """https://github.com/chainer/chainer/issues/421"""
    x = leaf(np.ones(2, dtype))
    y = fn(x)
    assert y.dtype == dtype and y.requires_grad
    y.sum().backward()
    assert x.grad.dtype == dtype


def test_O14_two_arrays_promote():
    a, b = leaf(np.ones(2, np.float32)), leaf(np.ones(2, np.float64))
    y = a * b
    assert y.dtype == np.float64
    y.sum().backward()
    assert a.grad.dtype == np.float32 and b.grad.dtype == np.float64


@pytest.mark.parametrize("data", [[1, 2, 3], np.arange(3, dtype=np.int8), [True, False]])
def test_O15_integers_require_no_gradient(data):
    """https://github.com/tinygrad/tinygrad/issues/9723"""
    with pytest.raises(TypeError, match=r"only floats .* is (int|bool)"):
        th.Tensor(data, requires_grad=True)
    x = th.Tensor(data)
    with pytest.raises(DTypeError, match="only floats"):
        x.requires_grad = True
    assert not x.requires_grad


def test_O15_results_of_ints_and_bools():
    x = leaf([1.0, 3.0, 2.0])
    for y in (x.argmax(), x > 1, x == x, x <= 2.0, x != 2, x.astype(np.int64)):
        assert not y.requires_grad and y.node is None and y.is_leaf
    assert x.astype("float32").requires_grad


def test_O16_dividing_ints():
    """https://github.com/tinygrad/tinygrad/issues/3133"""
    y = T([1]) / T([2])
    assert y.dtype == np.float32 and y.item() == 0.5
    mean = T(np.arange(6)).mean()
    assert mean.dtype == np.float32 and mean.item() == 2.5
    assert (T([1, 2]) / 4).tolist() == [0.25, 0.5]
    assert (3 / T([2])).item() == 1.5
    assert T([True, False]).mean().item() == 0.5
    assert (T([1]) + T([2])).dtype == np.int64 and T([3]).exp().dtype == np.float32


def test_O17_squares_of_float16():
    """https://github.com/pytorch/pytorch/issues/66707"""
    x = leaf(np.full((1, 8), 300.0, np.float16))
    gain = leaf(np.ones(8, np.float16))
    y = th.rms_norm(x, gain, 1e-5)
    same(y, np.ones((1, 8), np.float16))
    y.sum().backward()
    assert x.grad.dtype == np.float16
    same(x.grad, np.zeros((1, 8)), atol=1e-3)
    same(gain.grad, np.ones(8))


@pytest.mark.parametrize(
    ("fn", "want"),
    [
        (lambda x: x.sum(), 3000.0),
        (lambda x: x.mean(), 1.0),
        (lambda x: x.broadcast_to(20, 3000).mean(axis=1).max(), 1.0),
        (lambda x: (x * 0).softmax().sum(), 1.0),
        (lambda x: (x * 0).log_softmax()[0], -8.006),
    ],
)
def test_O17_sums_of_float16(fn, want):
    x = leaf(np.ones(3000, np.float16))
    same(fn(x), np.float16(want), rtol=1e-3)


def test_O17_long_sums_of_float16():
    # Adding ones up in float16 stops at 2,048 (over the first axis, which NumPy does not
    # add up pairwise).
    ones = np.ones((4096, 2), np.float16)
    x, row = leaf(ones), leaf(ones[0])
    same(x.sum(axis=0), [4096.0, 4096.0])
    same(x.mean(axis=0), [1.0, 1.0])
    (x + row).sum().backward()
    same(row.grad, [4096.0, 4096.0])
    same(x.softmax(axis=0).sum(axis=0), [1.0, 1.0])
    same(x.transpose().log_softmax()[:, 0], np.full(2, -np.log(4096)), rtol=1e-3)


# --- NumPy on the left


def test_O18_an_array_on_the_left():
    """https://github.com/chainer/chainer/issues/43"""
    x = leaf([1.0, 1.0, 1.0])
    r = np.array([1.0, 2.0, 3.0]) + x
    assert isinstance(r, th.Tensor) and r.requires_grad
    same(r, [2.0, 3.0, 4.0])
    r.sum().backward()
    same(x.grad, np.ones(3))


MATRIX = np.array([[1.0, 2.0], [3.0, 4.0]])
SYMBOLS = ["+", "-", "*", "/", "**", "<", "<=", "==", "!=", ">", ">="]


@pytest.mark.parametrize(
    ("left", "symbol"),
    [(left, s) for left in (MATRIX, np.float64(3), 3, 2.5) for s in SYMBOLS]
    + [(MATRIX, "@")],
)
def test_O18_every_operator(left, symbol):
    data = np.array([[1.5, 2.0], [0.5, 3.0]])
    scope = {"left": left, "right": leaf(data)}
    y = eval(f"left {symbol} right", scope)
    assert isinstance(y, th.Tensor)
    same(y, eval(f"left {symbol} right", {"left": left, "right": data}))
    assert y.requires_grad == (y.dtype.kind == "f")


# --- zero size, layout


def test_O19_summing_back_over_nothing():
    """https://github.com/pytorch/pytorch/issues/15223"""
    a, b = T(np.ones((4, 0))), leaf(np.ones(4))
    (a + b.reshape(4, 1)).sum().backward()
    same(b.grad, np.zeros(4))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.sum(axis=0),
        lambda x: x.sum(axis=1),
        lambda x: x.mean(axis=0),
        lambda x: x.max(axis=0),
        lambda x: x.softmax(axis=1),
        lambda x: x.log_softmax(axis=0),
        lambda x: x @ T(np.ones((0, 2))),
        lambda x: x.transpose() @ x,
        lambda x: x[:, :0],
        lambda x: x[[0, 0]],
        lambda x: th.cat([x, x], axis=1),
        lambda x: x.reshape(0, 9) * 2.0,
        lambda x: th.split(x, [2, 1], axis=0)[0],
        lambda x: x.exp() + x.silu() * x.softplus(),
        lambda x: th.rms_norm(x.transpose()),
    ],
)
def test_O19_zero_sized(fn):
    x = leaf(np.ones((3, 0)))
    y = fn(x)
    y.sum().backward()
    assert x.grad.shape == (3, 0)


@pytest.mark.parametrize(
    "strided",
    [
        lambda base: base.transpose(0, 2, 1),
        lambda base: base[:, ::2],
        lambda base: base[::-1],
        lambda base: base[..., ::-1],
        lambda base: np.broadcast_to(base[:1], base.shape),
        lambda base: np.asfortranarray(base),
    ],
)
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.exp() * x + x.silu(),
        lambda x: x.sigmoid() * x.tanh() / (x * x + 1.0),
        lambda x: th.gated_scan(x.sigmoid(), x)[0],
        lambda x: th.where(x > 0, x, -x),
        lambda x: x.max(axis=1),
        lambda x: x[[1, 0, 1]],
        lambda x: x.reshape(-1) * 2.0,
        lambda x: th.cat([x, x], axis=-1),
    ],
)
def test_O20_layout_changes_nothing(strided, fn):
    """https://github.com/cupy/cupy/issues/9233"""
    view = strided(np.random.default_rng(0).standard_normal((2, 6, 4)))
    x, flat = leaf(view), leaf(np.ascontiguousarray(view))
    y, want = fn(x), fn(flat)
    assert np.array_equal(y.data, want.data)
    dy = np.random.default_rng(1).standard_normal(y.shape)
    y.backward(T(dy))
    want.backward(T(np.asfortranarray(dy)))
    assert np.array_equal(x.grad.numpy(), flat.grad.numpy())


# --- indexing, ties


def test_O21_repeated_indices_add_up():
    """https://github.com/pytorch/pytorch/issues/1528"""
    x = leaf([0.1])
    x[np.array([0, 0])].backward(T([0.2, 0.3]))
    same(x.grad, [0.5])


@pytest.mark.parametrize(
    "index",
    [
        np.array([0, 0, 1]),
        np.array([-3, 0, 2, -1]),
        [[0, 0], [0, 2]],
        (np.array([0, 0]), np.array([1, 1])),
        (slice(None), np.array([1, 1, 0])),
        (np.array([0, 2, 0]), slice(1, None)),
        (np.array([0, 0])[:, None], np.array([1, 1])),
        (np.array([1, 1]), None, slice(None)),
        (np.array(True), np.array([0, 0])),
    ],
)
def test_O21_against_a_loop(index):
    x = leaf(np.arange(6.0).reshape(3, 2))
    y = x[index]
    dy = np.random.default_rng(0).standard_normal(y.shape)
    y.backward(T(dy))
    places = np.arange(6).reshape(3, 2)[tuple(index) if isinstance(index, tuple) else index]
    want = np.zeros(6)
    for place, value in zip(places.ravel(), dy.ravel(), strict=True):
        want[place] += value
    same(x.grad, want.reshape(3, 2))


def test_O23_ties_share_evenly():
    """https://github.com/HIPS/autograd/issues/212"""
    a, b = leaf([1.0, 1.0]), leaf([1.0, 2.0])
    th.maximum(a, b).sum().backward()
    same(a.grad, [0.5, 0.0])
    same(b.grad, [0.5, 1.0])
    x = leaf([[1.0, 3.0, 3.0]])
    x.max(axis=1).sum().backward()
    same(x.grad, [[0.0, 0.5, 0.5]])
    a, b = leaf([1.0, 1.0]), leaf([1.0, 2.0])
    th.minimum(a, b).sum().backward()
    same(a.grad, [0.5, 1.0])
    same(b.grad, [0.5, 0.0])
    x = leaf(np.ones((2, 3)))
    x.max().backward()
    same(x.grad, np.full((2, 3), 1 / 6))


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 1)])
@pytest.mark.parametrize("ord", [1, 2, np.inf])
def test_O24_the_norm_at_zero(axis, ord):
    """https://github.com/HIPS/autograd/issues/151"""
    x, w = leaf(np.zeros((2, 3))), leaf(np.ones((2, 3)))
    th.norm(w * x, ord, axis=axis).sum().backward()
    same(w.grad, np.zeros((2, 3)))  # nothing spreads to a weight
    same(x.grad, np.zeros((2, 3)))


def test_O24_only_the_rows_that_are_zero():
    x = leaf([[0.0, 0.0], [3.0, -4.0]])
    th.norm(x, axis=1).sum().backward()
    same(x.grad, [[0.0, 0.0], [0.6, -0.8]])
    x = leaf([[2.0, 2.0], [1.0, 3.0]])
    th.std(x, axis=1).sum().backward()
    same(x.grad, [[0.0, 0.0], [-0.5, 0.5]])


def test_O24_kinks():
    x = leaf(np.zeros(3))
    th.norm(x).backward()
    same(x.grad, [0.0, 0.0, 0.0])
    x = leaf([0.0, -3.0, 2.0])
    x.abs().sum().backward()
    same(x.grad, [0.0, -1.0, 1.0])
    x = leaf([0.0, -3.0, 2.0])
    x.relu().sum().backward()
    same(x.grad, [0.0, 0.0, 1.0])


# --- overflow


def test_O25_softplus():
    """https://github.com/tracel-ai/burn/issues/5373"""
    x = leaf(np.array([-1000.0, -20.0, 0.0, 20.0, 50.0, 100.0], np.float32))
    y = x.softplus()
    y.sum().backward()
    tiny = 2.0611537e-09
    same(y, np.array([0, tiny, 0.6931472, 20, 50, 100], np.float32), rtol=1e-6)
    same(x.grad, np.array([0, tiny, 0.5, 1, 1, 1], np.float32), rtol=1e-6, atol=1e-30)


def test_O26_sigmoid():
    """https://github.com/karpathy/neuraltalk/issues/2"""
    x = leaf(np.array([-1000.0, -89.0, 0.0, 89.0, 1000.0], np.float32))
    y = x.sigmoid()
    y.sum().backward()
    same(y, np.array([0, 0, 0.5, 1, 1], np.float32), atol=1e-30)
    same(x.grad, np.array([0, 0, 0.25, 0, 0], np.float32), atol=1e-30)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    "name", ["sigmoid", "silu", "softplus", "tanh", "softmax", "log_softmax"]
)
def test_O26_no_warning_and_no_nan_at_the_ends(name, dtype):
    with warnings.catch_warnings(), np.errstate(all="warn", under="ignore"):
        warnings.simplefilter("error")
        big = np.finfo(dtype).max / 4
        values = [-big, -1000.0, -89.0, 0.0, 11.0, 89.0, 1000.0, big]
        x = leaf(np.array(values, dtype))
        y = getattr(th, name)(x)
        y.backward(th.ones_like(y))
    assert np.isfinite(y.data).all() and np.isfinite(x.grad.data).all()
    assert y.dtype == dtype


# --- where, pow


def test_O27_where_inside_and_out():
    """https://github.com/jax-ml/jax/issues/347"""
    x = leaf([0.0, 4.0])
    y = th.where(x > 0, th.where(x > 0, x, 1.0).sqrt(), 0.0)
    same(y, [0.0, 2.0])
    y.sum().backward()
    same(x.grad, [0.0, 0.25])
    assert "0 · ∞" in th.where.__doc__  # the single where is documented, as elsewhere


def test_O27_the_branch_not_taken_gets_an_exact_zero():
    a, b = leaf([1.0, np.inf]), leaf([np.nan, 2.0])
    y = th.where(T([True, False]), a, b)
    y.backward(T([3.0, np.inf]))
    same(a.grad, [3.0, 0.0])
    same(b.grad, [0.0, np.inf])
    for x in (a, b):
        x.grad = None
    th.where(T([True, False]), a, b).backward(T([np.inf, 3.0]))
    same(a.grad, [np.inf, 0.0])
    same(b.grad, [0.0, 3.0])


def test_O28_the_gradient_of_an_exponent_at_zero():
    """https://github.com/pytorch/pytorch/issues/27134"""
    a, b = leaf([0.0, 2.0]), leaf([1.0, 1.0])
    (a**b).sum().backward()
    same(b.grad, [0.0, 2 * np.log(2)])
    same(a.grad, [1.0, 1.0])
    a, b = leaf([0.0, 0.0, 3.0]), leaf([0.0, 2.0, 0.0])
    (a**b).sum().backward()
    same(b.grad, [0.0, 0.0, np.log(3)])
    same(a.grad, [0.0, 0.0, 0.0])
    b = leaf([0.0, 1.0])
    (0.0**b).sum().backward()
    same(b.grad, [0.0, 0.0])


def test_O29_negative_bases():
    """https://github.com/tinygrad/tinygrad/issues/155"""
    for three in (3, 3.0, T([3.0, 3.0, 3.0]), np.full(3, 3)):
        x = leaf([-2.0, 0.0, 3.0])
        (x**three).sum().backward()
        same(x.grad, [12.0, 0.0, 27.0])
    x = leaf([-2.0, 0.0, 3.0])
    (x**0).sum().backward()
    same(x.grad, [0.0, 0.0, 0.0])


# --- reductions, permutations


def test_O30_reducing_the_only_axis():
    """https://github.com/pytorch/pytorch/issues/1813"""
    x = leaf(np.ones(5))
    (x**2).mean(axis=0).backward()
    same(x.grad, [0.4] * 5)
    x = leaf(np.ones((2, 3)))
    x.mean().reshape(()).backward()
    same(x.grad, np.full((2, 3), 1 / 6))


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(
    "axis", [None, 0, -1, (1, 2), (-1, 0), (2, 1), (0,), (), (0, 1, 2), (0, -1)]
)
@pytest.mark.parametrize("name", ["mean", "sum", "max"])
def test_O31_tuples_of_axes(name, axis, keepdims):
    """https://github.com/harvard-edge/cs249r_book/pull/1867"""
    data = np.random.default_rng(0).standard_normal((2, 3, 3))
    x = leaf(data)
    y = getattr(x, name)(axis=axis, keepdims=keepdims)
    same(y, getattr(data, name)(axis=axis, keepdims=keepdims))
    assert th.gradcheck(
        lambda x: getattr(x, name)(axis=axis, keepdims=keepdims), x, jacobian=True
    )


def test_O31_the_reported_values():
    x = leaf(np.ones((2, 3, 4)))
    (x.mean(axis=(1, 2)) * T([1.0, 2.0])).sum().backward()
    same(x.grad, np.broadcast_to(np.array([1 / 12, 1 / 6])[:, None, None], (2, 3, 4)))


def test_O32_negative_axes_of_a_transpose():
    """https://github.com/pytorch/pytorch/issues/5943"""
    x = leaf(np.arange(6.0).reshape(2, 3))
    (x.transpose(-1, -2) * T(np.arange(6.0).reshape(3, 2))).sum().backward()
    same(x.grad, [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]])
    x = leaf(np.zeros((2, 3, 4)))
    y = x.transpose(-1, 0, 1)
    (y * T(np.arange(24.0).reshape(4, 2, 3))).sum().backward()
    same(x.grad, np.arange(24.0).reshape(4, 2, 3).transpose(1, 2, 0))
    same(x.grad.numpy()[0], [[0, 6, 12, 18], [1, 7, 13, 19], [2, 8, 14, 20]])


def test_O32_negative_axes_of_permute():
    x = leaf(np.arange(6.0).reshape(2, 3))
    (x.permute(-1, -2) * T(np.arange(6.0).reshape(3, 2))).sum().backward()
    same(x.grad, [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]])
    x = leaf(np.zeros((2, 3, 4)))
    (x.permute(-1, 0, 1) * T(np.arange(24.0).reshape(4, 2, 3))).sum().backward()
    same(x.grad.numpy()[0], [[0, 6, 12, 18], [1, 7, 13, 19], [2, 8, 14, 20]])
    for op in (
        lambda x: x.swapaxes(-1, 0),
        lambda x: x.flip((-1, 0)),
        lambda x: x.unsqueeze(-2).squeeze(-2),
        lambda x: x.cumsum(-1),
        lambda x: x.sort(-2)[0],
        lambda x: x.chunk(2, -1)[1],
        lambda x: x.gather(np.array([[[1]], [[0]]]), -2),
    ):
        data = np.random.default_rng(0).standard_normal((2, 3, 4))
        assert th.gradcheck(op, leaf(data), jacobian=True)


def test_O33_products_with_zeros():
    """https://github.com/pytorch/pytorch/issues/773"""
    x = leaf([2.0, 0.0, 3.0, 4.0])
    x.prod().backward()
    same(x.grad, [0.0, 24.0, 0.0, 0.0])
    x = leaf([2.0, 0.0, 3.0, 4.0])
    x.cumprod(0).sum().backward()
    same(x.grad, [1.0, 32.0, 0.0, 0.0])
    x = leaf([0.0, 2.0, 0.0])
    x.prod().backward()
    same(x.grad, [0.0, 0.0, 0.0])


def test_O33_rows_with_no_zero_with_one_and_with_two():
    x = leaf([[1.0, 2.0, 3.0], [0.0, 2.0, 3.0], [0.0, 2.0, 0.0]])
    x.prod(axis=1).sum().backward()
    same(x.grad, [[6.0, 3.0, 2.0], [6.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    x = leaf([[1.0, 0.0], [5.0, 7.0]])
    x.cumprod(axis=0).sum().backward()
    same(x.grad, [[6.0, 8.0], [1.0, 0.0]])
    x = leaf([0.0, 0.0, 5.0])  # second derivatives: only that by the two zeros is left
    (g,) = th.grad(x.prod(), x, create_graph=True)
    same(th.grad(g[0], x)[0], [0.0, 5.0, 0.0])


# --- matmul, cat, split


def test_O34_vectors():
    """https://github.com/harvard-edge/cs249r_book/pull/1781"""
    m, b = leaf(np.arange(6.0).reshape(2, 3)), leaf([1.0, 2.0, 3.0])
    ((m @ b) * T([1.0, 2.0])).sum().backward()
    same(m.grad, [[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]])
    same(b.grad, [6.0, 9.0, 12.0])
    a, m = leaf([1.0, 2.0]), leaf(np.arange(6.0).reshape(2, 3))
    ((a @ m) * T([1.0, 2.0, 3.0])).sum().backward()
    same(a.grad, [8.0, 26.0])
    same(m.grad, [[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]])
    a, b = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    y = a @ b
    assert y.shape == ()
    y.backward()
    same(a.grad, [3.0, 4.0])
    same(b.grad, [1.0, 2.0])


def test_O35_a_batch_and_a_matrix():
    """https://github.com/tensorflow/tfjs/issues/8721"""
    a = leaf([[[1.0, 2], [3, 4]], [[5, 6], [7, 8]]])
    b = leaf([[9.0, 10], [11, 12]])
    (a @ b).sum().backward()
    same(b.grad, [[16.0, 16.0], [20.0, 20.0]])
    same(a.grad, np.broadcast_to([19.0, 23.0], (2, 2, 2)))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3,), (3,)),
        ((3,), (3, 2)),
        ((2, 3), (3,)),
        ((2, 3), (3, 4)),
        ((5, 2, 3), (3, 4)),
        ((2, 3), (5, 3, 4)),
        ((5, 2, 3), (5, 3, 4)),
        ((1, 2, 3), (5, 3, 4)),
        ((5, 2, 3), (1, 3, 4)),
        ((6, 1, 2, 3), (5, 3, 4)),
        ((5, 2, 3), (3,)),
        ((3,), (5, 3, 4)),
        ((2, 0), (0, 3)),
        ((0, 2, 3), (3, 4)),
    ],
)
def test_O35_every_pair_of_shapes(a, b):
    rng = np.random.default_rng(0)
    x, y = leaf(rng.standard_normal(a)), leaf(rng.standard_normal(b))
    same(x @ y, x.data @ y.data, rtol=1e-12, atol=1e-13)
    assert th.gradcheck(lambda x, y: x @ y, (x, y), order=2)


def test_O36_a_constant_in_the_middle():
    """https://github.com/tracel-ai/burn/pull/4069"""
    x, c, k = leaf([1.0, 2.0]), T([9.0]), leaf([5.0, 6.0, 7.0])
    (th.cat([x, c, k]) * T(np.arange(6.0))).sum().backward()
    same(x.grad, [0.0, 1.0])
    same(k.grad, [3.0, 4.0, 5.0])
    x = leaf([1.0, 2.0])
    (th.stack([x, 3 * x, x], axis=-1) * T(np.arange(6.0).reshape(2, 3))).sum().backward()
    same(x.grad, [5.0, 20.0])
    x, k = leaf(np.ones((2, 1))), leaf(np.ones((2, 3)))
    c = T(np.ones((2, 2)))
    y = th.cat([c, x, c, k, np.ones((2, 1))], axis=-1)
    (y * T(np.arange(18.0).reshape(2, 9))).sum().backward()
    same(x.grad, [[2.0], [11.0]])
    same(k.grad, [[5.0, 6.0, 7.0], [14.0, 15.0, 16.0]])


def test_O37_an_unused_output():
    """https://github.com/chelsea0x3b/dfdx/issues/303"""
    x = leaf(np.zeros((5, 2)))
    parts = th.split(x, 2, axis=0)
    assert [p.shape for p in parts] == [(2, 2), (2, 2), (1, 2)]
    parts[0].sum().backward()
    same(x.grad, [[1.0, 1.0]] * 2 + [[0.0, 0.0]] * 3)


def test_O37_an_unused_output_of_an_op_of_ones_own():
    class SumAndProduct(th.Op):
        saves = {"a": th.Input(0), "b": th.Input(1)}

        @staticmethod
        def forward(xp, a, b, *, needs):
            return (a + b, a * b, xp.argmax(a)), {"a": a, "b": b}

        @staticmethod
        def vjp(dy, saved, *, needs, inputs):
            ds, dp, di = dy
            assert ds.shape == dp.shape == (2,) and di.shape == ()
            return ds + dp * saved["b"], ds + dp * saved["a"]

    for which, want in ((0, ([1.0, 1.0], [1.0, 1.0])), (1, ([3.0, 4.0], [1.0, 2.0]))):
        a, b = leaf([1.0, 2.0]), leaf([3.0, 4.0])
        outputs = th.apply(SumAndProduct, a, b)
        assert not outputs[2].requires_grad
        outputs[which].sum().backward()
        same(a.grad, want[0])
        same(b.grad, want[1])
    g = th.grad(th.apply(SumAndProduct, a, b)[1].sum(), a, create_graph=True)[0]
    same(th.grad(g.sum(), b)[0], [1.0, 1.0])


# --- second derivatives, and sweeps that cannot be


class DoubledSquare(th.Op):
    """(2x)², keeping 2x: right once, and unable twice."""

    saves = {"m": th.Intermediate()}

    @staticmethod
    def forward(xp, x, *, needs):
        m = x * 2
        return m**2, {"m": m if needs[0] else None}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        return (4 * saved["m"] * dy,)


def test_O38_no_second_derivative_through_an_intermediate():
    """https://github.com/pytorch/pytorch/issues/58509"""
    x = leaf([1.0, 2.0])
    (g,) = th.grad(th.apply(DoubledSquare, x).sum(), x)
    same(g, [8.0, 16.0])
    with pytest.raises(DoubleBackwardError, match=r"doubled_square .*intermediate 'm'"):
        th.grad(th.apply(DoubledSquare, x).sum(), x, create_graph=True)
    (g,) = th.grad(((x * 2) ** 2).sum(), x, create_graph=True)
    same(th.grad(g.sum(), x)[0], [8.0, 8.0])


def test_O39_a_second_sweep():
    """https://stackoverflow.com/questions/48274929"""
    x = leaf([1.0])
    y = x.exp().sum()
    y.backward()
    with pytest.raises(RuntimeError, match=r"exp \(node .*retain_graph=True"):
        y.backward()
    with pytest.raises(SavedTensorsFreedError, match="retain_graph"):
        th.grad(y, x)
    same(x.grad, [np.e])
    x.grad = None
    y = x.exp().sum()
    y.backward(retain_graph=True)
    y.backward()
    same(x.grad, [5.43656365691809])


def test_O40_a_vector_wants_a_cotangent():
    """https://github.com/rsokl/MyGrad/issues/333"""
    x = leaf([1.0, 2.0, 3.0])
    y = x * 2
    with pytest.raises(
        NonScalarBackwardError, match=r"\(3,\) made by mul .*backward\(dy\)"
    ):
        y.backward()
    with pytest.raises(ValueError, match=r"\(2,\) .*\(3,\)"):
        y.backward(T([1.0, 1.0]))
    for wrong in (T(1.0), T([[1.0, 0.0, 2.0]]), T([1.0]), 1.0):
        with pytest.raises(ShapeError):
            y.backward(wrong)
    assert x.grad is None
    y.backward(T([1.0, 0.0, 2.0]))
    same(x.grad, [2.0, 0.0, 4.0])
    z = leaf([[3.0]])
    (z * 2).backward()  # one element of any shape needs none
    same(z.grad, [[2.0]])


@pytest.mark.parametrize(
    "wrong",
    [
        lambda dy: (dy.sum(axis=0),),
        lambda dy: (dy.sum(),),
        lambda dy: (dy[:1],),
        lambda dy: (dy[None],),
        lambda dy: (dy.T,),
        lambda dy: (None,),
        lambda dy: (1.0,),
        lambda dy: (dy, dy),
        lambda dy: (),
        lambda dy: dy,
        lambda dy: [dy],
        lambda dy: None,
    ],
)
def test_O41_cotangents_of_the_wrong_shape(wrong):
    """https://github.com/pytorch/pytorch/issues/82644"""

    class Faulty(th.Op):
        @staticmethod
        def forward(xp, x, *, needs):
            return x * 1.0, {}

        @staticmethod
        def vjp(dy, saved, *, needs, inputs):
            return wrong(dy)

    for create_graph in (False, True):
        x = leaf(np.ones((2, 3)))
        y = (th.apply(Faulty, x) * T(np.ones((2, 3)))).sum()
        with pytest.raises(GraphError, match=r"the vjp of faulty \(node .* returned"):
            th.grad(y, x, create_graph=create_graph)
        assert x.grad is None


def test_O41_the_message_has_both_shapes():
    class Summed(th.Op):
        @staticmethod
        def forward(xp, x, *, needs):
            return x * 1.0, {}

        @staticmethod
        def vjp(dy, saved, *, needs, inputs):
            return (dy.sum(axis=0),)

    y = th.apply(Summed, leaf(np.ones((2, 3)))).sum()
    with pytest.raises(
        GraphError, match=r"shape \(3,\) .* input 0, whose shape is \(2, 3\)"
    ):
        y.backward()


# --- grad mode


def test_O42_the_mode_is_put_back():
    """https://github.com/pytorch/pytorch/issues/113298"""
    with pytest.raises(ValueError), th.no_grad():
        raise ValueError
    assert th.is_grad_enabled()

    @th.no_grad()
    def down(n):
        return down(n - 1) if n else th.is_grad_enabled()

    assert th.is_grad_enabled()
    assert down(3) is False
    assert th.is_grad_enabled()

    @th.no_grad()
    def fails():
        raise ValueError

    with pytest.raises(ValueError):
        fails()
    assert th.is_grad_enabled()
    with th.no_grad():
        with th.enable_grad():
            assert th.is_grad_enabled()
            with th.no_grad():
                assert not th.is_grad_enabled()
            assert th.is_grad_enabled()
        assert not th.is_grad_enabled()
    mode = th.no_grad()
    with mode, mode:
        assert not th.is_grad_enabled()
    assert th.is_grad_enabled()


# --- identity, copies


def test_O44_identity():
    """https://github.com/tinygrad/tinygrad/issues/627"""
    a, b = T([1.0, 2.0]), T([1.0, 2.0])
    assert len({a, b}) == 2 and {a: 1}[a] == 1
    assert (a == b).tolist() == [True, True] and (a != b).tolist() == [False, False]
    assert a in [a]
    with pytest.raises(ShapeError, match="exactly one"):
        bool(a == b)


def test_O44_the_library_compares_no_tensors(monkeypatch):
    def refuse(self, other):
        raise AssertionError("Tensors were compared")

    monkeypatch.setattr(th.Tensor, "__eq__", refuse)
    monkeypatch.setattr(th.Tensor, "__bool__", refuse, raising=True)
    x, w = leaf(np.ones((2, 3))), leaf(np.ones((3, 3)))
    y = (th.rms_norm(x) @ w).silu()
    y = th.cat([y, y]) + th.stack([x[0], x[1], x[0], x[1]])
    g = th.grad([y.sum(), y.max()], [w, x], create_graph=True)
    th.backward([g[0].sum(), y.sum()])
    assert th.saved_bytes(y) == 0
    copy.deepcopy(x)


def test_O45_copies_keep_what_makes_a_leaf():
    """https://github.com/pytorch/pytorch/issues/3307"""
    x = leaf([2.0])
    (x * x).sum().backward()
    y, z = copy.deepcopy(x), pickle.loads(pickle.dumps(x))
    for c in (y, z):
        same(c, [2.0])
        assert c.requires_grad and c.is_leaf
        same(c.grad, [4.0])
        assert not np.shares_memory(c.data, x.data)
        assert not np.shares_memory(c.grad.data, x.grad.data)
    (y * y).sum().backward()
    same(y.grad, [8.0])
    same(x.grad, [4.0])
    for fn in (copy.deepcopy, pickle.dumps):
        with pytest.raises(GraphError, match=r"result of mul .*detach"):
            fn(x * x)
    shared = {"a": x, "b": x}
    again = copy.deepcopy(shared)
    assert again["a"] is again["b"]
    assert not copy.deepcopy(T([1.0])).requires_grad


# --- gated scan


def scan_loop(a, b, h0=None):
    h = np.zeros_like(b)
    carry = np.zeros_like(b[:, 0]) if h0 is None else h0
    for t in range(b.shape[1]):
        carry = a[:, t] * carry + b[:, t]
        h[:, t] = carry
    return h


def row(values):
    return np.asarray(values, dtype=np.float64).reshape(1, -1, 1)


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 7, 31, 32, 33, 100])
def test_O52_every_length(steps):
    """https://github.com/proger/accelerated-scan/issues/13"""
    a, b = leaf(row([0.5] * steps)), leaf(row([1.0] * steps))
    y, last = th.gated_scan(a, b)
    want = 2 - 2.0 ** -np.arange(steps)
    same(y, row(want))
    same(last, row(want)[:, -1])
    y.sum().backward()
    same(b.grad, row(want[::-1]))
    same(a.grad, row(want[::-1] * np.r_[0.0, want[:-1]]))


def test_O53_the_first_state():
    """https://github.com/lucidrains/minGRU-pytorch/issues/9"""
    a, b, h0 = leaf(row([0.5] * 3)), leaf(row([1.0] * 3)), leaf([[2.0]])
    y, last = th.gated_scan(a, b, h0)
    same(y, row([2.0] * 3))
    y.sum().backward()
    same(h0.grad, [[0.875]])
    none, zero = th.gated_scan(a, b)[0], th.gated_scan(a, b, T([[0.0]]))[0]
    assert np.array_equal(none.data, zero.data)
    same(none, row([1.0, 1.5, 1.75]))
    state = T([[2.0]])
    for t in range(3):  # step by step gives the very same numbers
        step, state = th.gated_scan(a[:, t : t + 1], b[:, t : t + 1], state)
        assert np.array_equal(step.data, y.data[:, t : t + 1])
    assert np.array_equal(state.data, last.data)


def test_O54_gates_of_one():
    """https://github.com/fla-org/flash-linear-attention/issues/104"""
    a, b = leaf(row([1.0] * 5)), leaf(row([1, 2, 3, 4, 5]))
    y, _ = th.gated_scan(a, b)
    same(y, row([1, 3, 6, 10, 15]))
    y.sum().backward()
    same(b.grad, row([5, 4, 3, 2, 1]))
    same(a.grad, row([0, 4, 9, 12, 10]))


@pytest.mark.parametrize("gate", [1e-30, 1e-300, 0.0])
def test_O55_tiny_gates(gate):
    """https://github.com/fla-org/flash-linear-attention/issues/77"""
    a, b = leaf(row([gate] * 64)), leaf(row([1.0] * 64))
    y, _ = th.gated_scan(a, b)
    same(y, row([1.0] * 64))
    y.sum().backward()
    same(b.grad, row([1.0] * 64))
    same(a.grad, row([0.0] + [1.0] * 63))


def test_O56_negative_gates():
    """https://github.com/proger/accelerated-scan/issues/11"""
    a, b = leaf(row([-0.5, 0.5, -1.0])), leaf(row([-1.0, 2.0, -3.0]))
    y, _ = th.gated_scan(a, b)
    same(y, row([-1.0, 1.5, -4.5]))
    y.sum().backward()
    same(a.grad, row([0.0, 0.0, 1.5]))
    same(b.grad, row([1.0, 0.0, 1.0]))


# --- import, devices


def run_python(code):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.mark.parametrize(
    "cupy", ["None", "type('broken', (), {'__getattr__': lambda *a: 1 / 0})()"]
)
def test_O68_no_cuda(cupy):
    """https://github.com/cupy/cupy/issues/1790"""
    out = run_python(
        f"import sys; sys.modules['cupy'] = {cupy}\n"
        "import tinygrad_helix as th\n"
        "x = th.ones(3, requires_grad=True)\n"
        "x.exp().sum().backward()\n"
        "try: th.ones(3, device='cuda')\n"
        "except th.ops.inplace.GraphError: pass\n"
        "except RuntimeError as e: print(type(e).__name__, e)\n"
    )
    assert out.startswith("BackendUnavailableError cuda is not available: CuPy is ")
    with pytest.raises(DeviceError, match="the devices have no numbers"):
        th.Tensor([1.0], device="cuda:1")
    with pytest.raises(RuntimeError, match="'abacus' is unknown"):
        T([1.0]).to("abacus")


def test_O68_importing_needs_numpy_alone():
    out = run_python(
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in {'cupy', 'matplotlib', 'graphviz', 'tqdm',\n"
        "                'threadpoolctl', 'scipy', 'torch', 'ml_dtypes', 'safetensors'}:\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "import tinygrad_helix as th\n"
        "print(th.tensor([1.0, 2.0]).sum().item())\n"
    )
    assert out.strip() == "3.0"
