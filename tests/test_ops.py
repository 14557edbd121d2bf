"""The same fixed checks over every row of the table of ops."""

import warnings

import numpy as np
import pytest
from opinfo import COMPARISONS, DIFFERENTIABLE, OPS, SCANS, Bytes, as_tensors

import tinygrad_helix as th
from tinygrad_helix.errors import SavedTensorsFreedError

each = pytest.mark.parametrize("info", OPS, ids=repr)
each_differentiable = pytest.mark.parametrize("info", DIFFERENTIABLE, ids=repr)
# A cast to float32 leaves no digits to a finite difference.
SMOOTH = [info for info in DIFFERENTIABLE if info.name != "astype"]
each_smooth = pytest.mark.parametrize("info", SMOOTH, ids=repr)


def listed(value):
    return list(value) if isinstance(value, tuple) else [value]


def arrays(value):
    return [y.data if isinstance(y, th.Tensor) else y for y in listed(value)]


def leaves(inputs):
    return [x for x in inputs if isinstance(x, th.Tensor) and x.requires_grad]


def sweep(info, inputs, seed=0):
    """The outputs, and the gradients along a random cotangent."""
    ys = [y for y in listed(info.fn(*inputs)) if y.requires_grad]
    rng = np.random.default_rng(seed)
    dys = [th.Tensor(rng.standard_normal(y.shape), dtype=y.dtype) for y in ys]
    return ys, th.grad(ys, leaves(inputs), dys)


def test_the_table_has_every_op():
    named = {name for name in th.ops.__all__ if callable(getattr(th.ops, name))}
    assert {info.name.split()[0] for info in OPS} >= named - {"zeros"}


# --- values


@each
def test_value(info):
    for make in (info.inputs, *info.edges, *info.broadcasts):
        sample = info.sample(make=make)
        got, want = arrays(info.fn(*as_tensors(sample))), listed(info.reference(*sample))
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            assert g.shape == np.shape(w) and g.dtype == np.asarray(w).dtype
            np.testing.assert_allclose(g, w, rtol=1e-13, atol=1e-14)
        given = info.fn(*sample)  # arrays in, arrays out
        for g, w in zip(listed(given), got, strict=True):
            assert isinstance(g, np.ndarray) and np.array_equal(g, w)


@each
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_shorter_floats_keep_their_dtype(info, dtype):
    sample = info.sample(dtype)
    exact = [
        a.astype(np.float64) if getattr(a, "dtype", None) == dtype else a for a in sample
    ]
    tolerance = info.half if dtype == np.float16 else 1e-5
    inputs = as_tensors(sample)
    for g, w in zip(arrays(info.fn(*inputs)), listed(info.reference(*exact)), strict=True):
        if info.gradient and info.name != "astype":
            assert g.dtype == dtype
        np.testing.assert_allclose(g, w, rtol=tolerance, atol=tolerance / 4)
    if info.gradient:
        _, got = sweep(info, inputs)
        _, want = sweep(info, as_tensors(exact))
        for g, w in zip(got, want, strict=True):
            assert g.dtype == dtype and g.shape == w.shape
            scale = np.abs(w.data).max(initial=1e-3)
            assert np.abs(g.data - w.data).max(initial=0) <= 8 * tolerance * scale


@each
def test_methods_and_functions_are_one(info):
    sample = info.inputs(np.random.default_rng(0))
    if info.fn is getattr(th, info.name, None) and hasattr(th.Tensor, info.name):
        got = getattr(th.Tensor(sample[0]), info.name)(*sample[1:])
        assert np.array_equal(arrays(got)[0], arrays(info.fn(*sample))[0])


# --- gradients


@each_smooth
def test_gradient_along_a_direction(info):
    assert th.gradcheck(info.fn, info.tensors(), jacobian=False)


@each_smooth
def test_full_jacobian_and_second_order(info):
    assert th.gradcheck(info.fn, info.tensors(), jacobian=True, order=2)


@each_differentiable
def test_zero_sized_0d_and_broadcast(info):
    for make in (*info.edges, *info.broadcasts):
        if info.name != "astype":
            assert th.gradcheck(info.fn, info.tensors(make=make), order=2)
        inputs = info.tensors(make=make)
        _, gradients = sweep(info, inputs)
        for x, g in zip(leaves(inputs), gradients, strict=True):
            assert g.shape == x.shape and isinstance(g.data, np.ndarray)


def test_casting_gradients():
    x = th.Tensor(np.array([1.0, 2.0]), requires_grad=True)
    dy = th.Tensor(np.array([0.25, 3.0], np.float32))
    x.astype(np.float32).backward(dy)
    assert x.grad.dtype == np.float64 and x.grad.tolist() == [0.25, 3.0]
    (g,) = th.grad((x.astype(np.float32) ** 2).sum(), x, create_graph=True)
    assert g.dtype == np.float64
    assert th.grad(g.sum(), x)[0].tolist() == [2.0, 2.0]


@each_differentiable
def test_each_gradient_alone_is_the_same(info):
    sample = info.sample()
    _, want = sweep(info, as_tensors(sample))
    floats = [i for i, a in enumerate(sample) if getattr(a, "dtype", None) == np.float64]
    for i, w in zip(floats, want, strict=True):
        inputs = as_tensors(sample)
        for j in floats:
            inputs[j].requires_grad = j == i
        _, (g,) = sweep(info, inputs)
        assert np.array_equal(g.data, w.data)


@each_differentiable
def test_needs_of_the_sweep_are_enough(info):
    # The graph wants every gradient, the sweep one: no others may leak in.
    inputs = info.tensors()
    ys, want = sweep(info, inputs)
    ys = [y for y in listed(info.fn(*inputs)) if y.requires_grad]
    rng = np.random.default_rng(0)
    dys = [th.Tensor(rng.standard_normal(y.shape), dtype=y.dtype) for y in ys]
    for x, w in zip(leaves(inputs), want, strict=True):
        (g,) = th.grad(ys, x, dys, retain_graph=True)
        assert np.array_equal(g.data, w.data)


def strided(a, how):
    """The same values in another layout."""
    if how == "every other":
        wide = np.zeros((*a.shape[:-1], 2 * a.shape[-1]), a.dtype)
        wide[..., ::2] = a
        return wide[..., ::2]
    if how == "reversed":
        return np.flip(np.flip(a).copy())
    return np.asfortranarray(a)


@each
@pytest.mark.parametrize("how", ["every other", "reversed", "by columns"])
def test_layout(info, how):
    sample = info.sample()
    views = [strided(a, how) if isinstance(a, np.ndarray) and a.ndim else a for a in sample]
    for g, w in zip(arrays(info.fn(*views)), arrays(info.fn(*sample)), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-14, atol=1e-15)
    if info.gradient:
        _, got = sweep(info, as_tensors(views))
        _, want = sweep(info, as_tensors(sample))
        for g, w in zip(got, want, strict=True):
            np.testing.assert_allclose(g.data, w.data, rtol=1e-13, atol=1e-14)


@each
def test_inputs_are_not_written(info):
    inputs = info.tensors()
    before = [x.data.copy() for x in inputs if isinstance(x, th.Tensor)]
    for x in inputs:
        if isinstance(x, th.Tensor):
            x.data.flags.writeable = False
    if info.gradient:
        sweep(info, inputs)
    else:
        info.fn(*inputs)
    after = [x.data for x in inputs if isinstance(x, th.Tensor)]
    for a, b in zip(after, before, strict=True):
        assert np.array_equal(a, b)


# --- what is kept


@each_differentiable
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_saved_labels_and_bytes(info, dtype):
    inputs = info.tensors(dtype)
    outputs = listed(info.fn(*inputs))
    size = np.dtype(dtype).itemsize
    want = {k: int(n) if isinstance(n, Bytes) else n * size for k, n in info.saved.items()}
    rows = th.memory.saved(*outputs)
    assert {f"{s.op}.{s.label}": s.nbytes for s in rows if s.first} == want
    assert th.saved_bytes(*outputs) == sum(want.values())


@each_differentiable
def test_audit(info):
    # With all gradients wanted, and with each of them alone.
    inputs = info.tensors(make=info.audit)
    for wanted in (None, *range(len(leaves(inputs)))):
        given = info.tensors(make=info.audit)
        for i, x in enumerate(leaves(given)):
            x.requires_grad = wanted in (None, i)
        report = th.audit(info.fn, *given)
        assert report.ok, report


@each_differentiable
def test_freed_after_the_sweep(info):
    inputs = info.tensors()
    ys = [y for y in listed(info.fn(*inputs)) if y.requires_grad]
    th.backward(ys, [th.ones_like(y) for y in ys])
    assert th.saved_bytes(*ys) == 0
    assert all(x.grad is not None and x.grad.shape == x.shape for x in leaves(inputs))
    if info.saved:
        with pytest.raises(SavedTensorsFreedError):
            th.backward(ys, [th.ones_like(y) for y in ys])


@each
def test_nothing_is_recorded_under_no_grad(info):
    with th.no_grad():
        for y in listed(info.fn(*info.tensors())):
            assert y.node is None and not y.requires_grad
    for y in listed(info.fn(*[th.Tensor(a) for a in info.sample()])):
        assert y.node is None and not y.requires_grad


@pytest.mark.parametrize("info", COMPARISONS, ids=repr)
def test_no_gradient(info):
    for y in listed(info.fn(*info.tensors())):
        assert y.dtype.kind in "bi" and not y.requires_grad


@each_differentiable
def test_views_share_memory_and_nothing_else_does(info):
    inputs = info.tensors()
    for y in listed(info.fn(*inputs)):
        if y.size:
            shares = any(np.shares_memory(y.data, x.data) for x in leaves(inputs))
            assert shares == info.view


# --- PyTorch as the oracle


@pytest.mark.oracle
@pytest.mark.parametrize("info", [info for info in OPS if info.torch], ids=repr)
def test_against_pytorch(info):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch = pytest.importorskip("torch")
    for make in (info.inputs, *info.edges, *info.broadcasts):
        sample = info.sample(make=make)
        theirs = [
            torch.tensor(a, requires_grad=a.dtype.kind == "f")
            if isinstance(a, np.ndarray)
            else a
            for a in sample
        ]
        want = info.torch(torch, *theirs)
        want = list(want) if isinstance(want, (tuple, list)) else [want]
        ours = as_tensors(sample)
        got = listed(info.fn(*ours))
        for g, w in zip(got, want, strict=True):
            assert g.shape == tuple(w.shape)
            np.testing.assert_allclose(g.data, w.detach().numpy(), rtol=1e-12, atol=1e-13)
        if not info.gradient:
            continue
        rng = np.random.default_rng(0)
        dys = [rng.standard_normal(y.shape) for y in got]
        th.backward(got, [th.Tensor(dy) for dy in dys])
        torch.autograd.backward(want, [torch.tensor(dy) for dy in dys])
        for x, t in zip(ours, theirs, strict=True):
            if isinstance(x, th.Tensor) and x.requires_grad:
                g = np.zeros(x.shape) if t.grad is None else t.grad.numpy()
                np.testing.assert_allclose(x.grad.numpy(), g, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("info", SCANS, ids=repr)
def test_a_scan_needs_no_order_of_outputs(info):
    for which in (0, 1):
        inputs = info.tensors()
        y = info.fn(*inputs)[which]
        assert th.gradcheck(lambda *xs, w=which: info.fn(*xs)[w], inputs, order=2)
        y.sum().backward()
