"""Properties that hold for every shape: broadcasting, indexing, reshaping, scans."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tinygrad_helix as th

quick = settings(deadline=None, max_examples=40, derandomize=True)
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


def leaf(shape, seed=0, low=0.5, high=2.0):
    values = np.random.default_rng(seed).uniform(low, high, shape)
    return th.Tensor(values, requires_grad=True)


def pulled_back(fn, *xs):
    """The output, a random cotangent, and its gradients."""
    y = fn(*xs)
    dy = np.random.default_rng(9).standard_normal(y.shape)
    return y, dy, th.grad(y, xs, th.Tensor(dy))


@quick
@given(
    hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=3, min_side=0),
    st.sampled_from(["add", "sub", "mul", "div", "pow", "maximum", "minimum"]),
)
def test_binary_ops_broadcast_as_numpy_does(shapes, name):
    a, b = (leaf(shape, seed) for seed, shape in enumerate(shapes.input_shapes))
    function = getattr(th, name)
    y, dy, (ga, gb) = pulled_back(function, a, b)
    assert y.shape == shapes.result_shape
    assert (ga.shape, gb.shape) == (a.shape, b.shape)
    # Σ dy·y is linear in a broadcast operand: its gradient is that of the copies, summed.
    copied = (np.broadcast_to(x.data, y.shape).copy() for x in (a, b))
    wide = [th.Tensor(data, requires_grad=True) for data in copied]
    copies = th.grad(function(*wide), wide, th.Tensor(dy))
    for x, g, copy in ((a, ga, copies[0]), (b, gb, copies[1])):
        summed = copy.data.sum(axis=tuple(range(y.ndim - x.ndim)))
        ones = tuple(i for i, n in enumerate(x.shape) if n == 1)
        summed = summed.sum(axis=ones, keepdims=True)
        np.testing.assert_allclose(g.data, summed, rtol=1e-12, atol=1e-12)


@quick
@given(st.data())
def test_basic_and_advanced_indexing(data):
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=4))
    index = data.draw(
        st.one_of(
            hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True),
            hnp.integer_array_indices(shape, result_shape=hnp.array_shapes(max_dims=2)),
            hnp.arrays(bool, shape),
            hnp.arrays(bool, shape[:1]),
        )
    )
    x = leaf(shape)
    y, dy, (g,) = pulled_back(lambda x: x[index], x)
    assert np.array_equal(y.data, x.data[index])
    want = np.zeros(shape)
    np.add.at(want, index, dy)
    np.testing.assert_allclose(g.data, want, rtol=1e-13, atol=1e-13)


@quick
@given(st.data())
def test_mixed_indexing(data):
    shape = data.draw(st.tuples(*[st.integers(1, 4)] * 3))

    def part(n):
        within = st.integers(-n, n - 1)
        arrays = [hnp.arrays(np.int64, s, elements=within) for s in ((2,), (3, 1))]
        return data.draw(st.one_of(within, st.slices(n), *arrays))

    index = tuple(part(n) for n in shape)
    y, dy, (g,) = pulled_back(lambda x: x[index], leaf(shape))
    want = np.zeros(shape)
    np.add.at(want, index, dy)
    assert y.shape == want[index].shape
    np.testing.assert_allclose(g.data, want, rtol=1e-13, atol=1e-13)


@quick
@given(shapes, st.data())
def test_views_carry_gradients_back_in_place(shape, data):
    x = leaf(shape)
    axes = data.draw(st.permutations(range(len(shape))))
    _, dy, (g,) = pulled_back(lambda x: x.transpose(*axes).reshape(-1), x)
    back = np.argsort(axes)
    wide = dy.reshape([shape[i] for i in axes]).transpose(back) if axes else dy.reshape(())
    assert np.array_equal(g.data, wide)


@quick
@given(shapes, st.booleans(), st.data())
def test_reductions_of_any_axes(shape, keepdims, data):
    axis = data.draw(
        st.one_of(
            st.none(), st.lists(st.sampled_from(range(-len(shape), len(shape))), max_size=3)
        )
        if shape
        else st.none()
    )
    axis = None if axis is None else tuple({i % len(shape): i for i in axis}.values())
    x = leaf(shape)
    y, dy, (g,) = pulled_back(lambda x: x.sum(axis=axis, keepdims=keepdims), x)
    np.testing.assert_allclose(y.data, x.data.sum(axis=axis, keepdims=keepdims), rtol=1e-13)
    kept = np.sum(np.zeros(shape), axis=axis, keepdims=True).shape
    assert np.array_equal(g.data, np.broadcast_to(dy.reshape(kept), shape))


@quick
@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(0, 2))
def test_split_undoes_cat(sizes, axis):
    shape = [2, 3, 2]
    parts = []
    for i, size in enumerate(sizes):
        shape[axis] = size
        parts.append(leaf(tuple(shape), i))
    joined = th.cat(parts, axis=axis)
    for part, again in zip(parts, th.split(joined, sizes, axis=axis), strict=True):
        assert np.array_equal(part.data, again.data)
        (g,) = th.grad(again, part, th.Tensor(np.ones(part.shape)), retain_graph=True)
        assert np.array_equal(g.data, np.ones(part.shape))


@quick
@given(
    st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 3)),
    st.booleans(),
    st.booleans(),
    st.integers(0, 99),
)
def test_scans_of_any_length(shape, with_h0, with_reset, seed):
    batch, steps, width = shape
    rng = np.random.default_rng(seed)
    # Gates of any sign, some exactly 0 and 1.
    a = rng.choice([0.0, 1.0, -0.5, 0.3], shape)
    b = rng.standard_normal(shape)
    h0 = rng.standard_normal((batch, width)) if with_h0 else None
    reset = rng.random((batch, steps)) < 0.3 if with_reset else None
    xs = [th.Tensor(v, requires_grad=True) for v in (a, b, h0) if v is not None]
    h, last = th.gated_scan(xs[0], xs[1], xs[2] if with_h0 else None, reset)
    carry = np.zeros((batch, width)) if h0 is None else h0
    for t in range(steps):
        gate = a[:, t] * (~reset[:, t, None] if with_reset else 1.0)
        carry = gate * carry + b[:, t]
        np.testing.assert_allclose(h.data[:, t], carry, rtol=1e-14, atol=1e-14)
    assert np.array_equal(last.data, h.data[:, -1] if steps else carry)
    # The scan is linear in (b, h0): its gradients there give back the very sum.
    dh = rng.standard_normal(h.shape)
    dlast = rng.standard_normal(last.shape)
    grads = th.grad([h, last], xs, [th.Tensor(dh), th.Tensor(dlast)])
    linear = sum((g.data * x.data).sum() for g, x in zip(grads[1:], xs[1:], strict=True))
    total = (dh * h.data).sum() + (dlast * last.data).sum()
    np.testing.assert_allclose(linear, total, rtol=1e-10, atol=1e-10)


@quick
@given(
    st.integers(1, 4), st.integers(0, 4), st.integers(1, 3), st.integers(0, 2), st.data()
)
def test_products_of_any_batch(n, k, m, batch_axes, data):
    lead = data.draw(
        hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=batch_axes, max_side=3)
    )
    a, b = leaf((*lead.input_shapes[0], n, k)), leaf((*lead.input_shapes[1], k, m), 1)
    y, dy, (ga, gb) = pulled_back(th.matmul, a, b)
    np.testing.assert_allclose(y.data, a.data @ b.data, rtol=1e-12, atol=1e-13)
    assert ga.shape == a.shape and gb.shape == b.shape
    # Linear in each operand: <g, x> = <dy, y>.
    for g, x in ((ga, a), (gb, b)):
        np.testing.assert_allclose(
            (g.data * x.data).sum(), (dy * y.data).sum(), rtol=1e-10, atol=1e-10
        )


@quick
@given(hnp.array_shapes(min_dims=1, max_dims=3, max_side=4), st.data())
def test_embeddings_add_up_over_repeats(index_shape, data):
    index = data.draw(hnp.arrays(np.int64, index_shape, elements=st.integers(0, 4)))
    w = leaf((5, 3))
    y, dy, (g,) = pulled_back(lambda w: th.embedding(w, index), w)
    assert np.array_equal(y.data, w.data[index])
    want = np.zeros((5, 3))
    np.add.at(want, index, dy)
    np.testing.assert_allclose(g.data, want, rtol=1e-13, atol=1e-13)
