"""What ops do at kinks, ties, zeros and bounds, and what they refuse."""

import math
import warnings

import numpy as np
import pytest
from scipy import special
from threadpoolctl import threadpool_info, threadpool_limits

import tinygrad_helix as th
from tinygrad_helix.errors import DTypeError, HelixError, ShapeError


def leaf(data, dtype=np.float64):
    return th.Tensor(np.array(data, dtype), requires_grad=True)


def gradient(fn, x, dy=None):
    y = fn(x)
    (g,) = th.grad(y, x, th.ones_like(y) if dy is None else th.Tensor(np.array(dy)))
    return g.tolist()


# --- kinks and ties


@pytest.mark.parametrize(
    "fn, x, want",
    [
        (th.abs, [0.0, -0.0, -3.0, 2.0], [0, 0, -1, 1]),
        (abs, [0.0, -3.0, 2.0], [0, -1, 1]),
        (th.sign, [0.0, -3.0, 2.0], [0, 0, 0]),
        (th.relu, [0.0, -0.0, -3.0, 2.0], [0, 0, 0, 1]),
        (lambda x: x.clip(-1, 2), [-1.5, -1.0, 0.0, 2.0, 2.5], [0, 1, 1, 1, 0]),
        (lambda x: x.clip(low=0), [-1.0, 0.0, 1.0], [0, 1, 1]),
        (lambda x: x.clip(high=0), [-1.0, 0.0, 1.0], [1, 1, 0]),
        (th.min, [3.0, 1.0, 1.0, 2.0], [0, 0.5, 0.5, 0]),
        (lambda x: th.norm(x, math.inf), [-2.0, 1.0, 2.0], [-0.5, 0, 0.5]),
        (lambda x: th.norm(x, 1), [-2.0, 0.0, 3.0], [-1, 0, 1]),
        (lambda x: x.sort()[0], [2.0, 1.0, 2.0], [1, 1, 1]),
        (lambda x: x.topk(2)[0], [2.0, 1.0, 2.0, 2.0], [1, 0, 1, 0]),
        (lambda x: x.topk(2, largest=False)[0], [2.0, 1.0, 2.0, 2.0], [1, 1, 0, 0]),
        (th.std, [3.0, 3.0, 3.0], [0, 0, 0]),
        (th.std, [3.0], [0]),
        (th.norm, [0.0, 0.0], [0, 0]),
        (th.norm, [3.0, 0.0, 4.0], [0.6, 0, 0.8]),
        (lambda x: th.max_pool2d(x.reshape(1, 1, 2, 2), 2), [1.0, 4.0, 4.0, 4.0],
         [0, 1 / 3, 1 / 3, 1 / 3]),
    ],
)  # fmt: skip
def test_gradient_at_a_kink(fn, x, want):
    np.testing.assert_allclose(gradient(fn, leaf(x)), want, rtol=1e-15)


def test_each_convention_is_written_down():
    for op, words in {
        th.abs: "At 0 its gradient is 0",
        th.relu: "At 0 its gradient is 0",
        th.sign: "gradient is 0 everywhere",
        th.clip: "At a bound itself the gradient passes",
        th.min: "share the gradient evenly",
        th.max_pool2d: "share the gradient evenly",
        th.norm: "At 0 its gradient is 0",
        th.std: "Where it is 0 its gradient is 0",
        th.prod: "right where x has zeros",
        th.cumprod: "right where x has zeros",
        th.sort: "each takes its own gradient",
        th.topk: "the earlier come first",
    }.items():
        assert words in " ".join(op.__doc__.split()), op.__name__


def test_the_sign_has_a_gradient_and_it_is_zero():
    x = leaf([1.0, -2.0])
    y = th.sign(x)
    assert y.requires_grad
    (g,) = th.grad((y * x).sum(), x, create_graph=True)
    assert g.tolist() == [1.0, -1.0]
    assert th.grad(g.sum(), x)[0].tolist() == [0.0, 0.0]


def test_second_derivatives_at_the_kinks_are_zero_and_finite():
    for fn in (th.norm, th.std, th.abs):
        x = leaf([0.0, 0.0, 0.0])
        (g,) = th.grad(fn(x).sum(), x, create_graph=True)
        assert th.grad(g.sum(), x)[0].tolist() == [0.0, 0.0, 0.0], fn.__name__


def test_nothing_comes_of_nan():
    x = leaf([np.nan, 1.0, -1.0])
    for fn in (th.relu, lambda x: x.clip(-0.5, 0.5), th.min):
        y = fn(x)
        assert math.isnan(y.data.reshape(-1)[0])
        assert gradient(fn, x)[0] == 0
    image = leaf(np.full((1, 1, 2, 2), np.nan))
    assert np.array_equal(
        gradient(lambda x: th.max_pool2d(x, 2), image), np.zeros((1, 1, 2, 2))
    )
    values, index = th.sort(x)
    assert values.tolist()[:2] == [-1.0, 1.0] and index.tolist() == [2, 1, 0]
    assert th.topk(x, 1)[1].tolist() == [0]


def test_order_of_equal_values():
    x = np.array([1.0, 0.0, 1.0, 0.0, 1.0])
    assert th.sort(x)[1].tolist() == [1, 3, 0, 2, 4]
    assert th.sort(x, descending=True)[1].tolist() == [0, 2, 4, 1, 3]
    assert th.topk(x, 2)[1].tolist() == [0, 2]
    assert th.topk(x, 2, largest=False)[1].tolist() == [1, 3]
    # Neither -x nor a subtraction orders these.
    assert th.sort(np.array([0, 255], np.uint8), descending=True)[0].tolist() == [255, 0]
    assert th.sort(np.array([False, True]), descending=True)[1].tolist() == [1, 0]
    least = np.iinfo(np.int64).min
    assert th.sort(np.array([least, 0]), descending=True)[0].tolist() == [0, least]


# --- products and zeros


@pytest.mark.parametrize("zeros", [0, 1, 2, 5])
def test_products_where_there_are_zeros(zeros):
    rng = np.random.default_rng(zeros)
    data = rng.uniform(0.5, 2, 5)
    data[rng.permutation(5)[:zeros]] = 0
    others = [math.prod(np.delete(data, i).tolist()) for i in range(5)]
    np.testing.assert_allclose(gradient(th.prod, leaf(data)), others, rtol=1e-14)
    # dx_i of the running products: the sum over t ≥ i of the product of the others.
    want = [
        sum(math.prod(np.delete(data[: t + 1], i).tolist()) for t in range(i, 5))
        for i in range(5)
    ]
    np.testing.assert_allclose(gradient(th.cumprod, leaf(data)), want, rtol=1e-14)
    assert th.gradcheck(th.prod, leaf(data), order=2)
    assert th.gradcheck(th.cumprod, leaf(data), order=2)


@pytest.mark.parametrize("axis", [None, 0, 1, -1, (0, 2), (2, 0), (1, 2), ()])
@pytest.mark.parametrize("keepdims", [False, True])
def test_products_over_axes(axis, keepdims):
    data = np.random.default_rng(0).uniform(-2, 2, (2, 3, 2))
    data[0, 1, 0] = data[1, 2, 1] = 0.0
    x = leaf(data)
    y = th.prod(x, axis=axis, keepdims=keepdims)
    np.testing.assert_allclose(y.detach(), data.prod(axis=axis, keepdims=keepdims))
    assert th.gradcheck(lambda x: th.prod(x, axis=axis, keepdims=keepdims), x, order=2)


def test_products_and_sums_of_ints_and_16_bit_floats():
    assert th.prod(np.array([100, 100, 100], np.int8)).item() == 10**6
    assert th.cumsum(np.array([True, True])).tolist() == [1, 2]
    many = np.full(4096, 1 / 4096, np.float16)
    assert th.cumsum(many)[-1] == 1.0  # in float16 it stops growing at 0.5
    assert th.norm(np.full(8, 300, np.float16)).item() == pytest.approx(848.5, rel=1e-3)
    assert th.std(np.array([-300, 300], np.float16)).item() == 300
    for values in ([60000, 60000, 1 / 60000], [2.0**-14, 2.0**-14, 2.0**14]):
        x = np.array(values, np.float16)
        exact = x.astype(np.float64).prod()
        assert th.prod(x).item() == pytest.approx(exact, rel=1e-3)
    assert th.cumprod(np.array([2.0**-14, 2.0**-14, 2.0**14], np.float16))[-1] == 2.0**-14
    places = np.zeros(4096, int)
    assert th.scatter_add(np.zeros(1, np.float16), places, many, 0).item() == 1.0
    y = th.layer_norm(np.array([[-300, 300] * 4], np.float16))
    assert y.tolist() == [[-1, 1] * 4]


# --- at the ends of the range


FLOATS = [np.float16, np.float32, np.float64]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_and_erf_have_no_warnings_at_the_ends(dtype, approximate):
    big = np.finfo(dtype).max / 4
    x = leaf([-big, -1000, -30, -6, 0, 6, 30, 1000, big], dtype)
    with warnings.catch_warnings(), np.errstate(all="warn", under="ignore"):
        warnings.simplefilter("error")
        for fn in (lambda x: th.gelu(x, approximate), th.erf, th.erfc):
            y = fn(x)
            (g,) = th.grad(y, x, th.ones_like(y), create_graph=True)
            assert y.dtype == g.dtype == dtype
            assert np.isfinite(y.data).all() and np.isfinite(g.data).all()
            (h,) = th.grad(g.sum(), x)
            assert np.isfinite(h.data).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_erf_to_the_last_places(dtype):
    eps = np.finfo(dtype).eps
    x = np.concatenate(
        [
            np.linspace(-30, 30, 6001),
            np.geomspace(1e-30, 1, 2001),
            np.linspace(0.4, 0.6, 999),
        ]
    ).astype(dtype)
    np.testing.assert_allclose(th.erf(x), special.erf(x), rtol=4 * eps, atol=0)
    exact = x.astype(np.float64)
    # SciPy's own erfc is off by 7 places near 1; the C library's is not.
    want = np.array([math.erf(v) for v in exact])
    np.testing.assert_allclose(th.erf(x), want, rtol=2 * eps, atol=0)
    want = np.array([math.erfc(v) for v in exact])
    normal = want > np.finfo(dtype).tiny
    error = np.abs(th.erfc(x)[normal] / want[normal] - 1)
    assert (error <= (4 + exact[normal] ** 2) * eps).all()
    assert (th.erfc(x)[~normal] <= 1.2 * np.finfo(dtype).tiny).all()
    for at, value in ((0.0, 0.0), (np.inf, 1.0), (-np.inf, -1.0)):
        assert th.erf(np.array(at, dtype)) == value
        assert th.erfc(np.array(at, dtype)) == 1 - value
    assert np.isnan(th.erf(np.array(np.nan, dtype)))
    assert np.signbit(th.erf(np.array(-0.0, dtype)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gelu_keeps_its_digits_where_it_is_small(dtype):
    x = np.linspace(-8, 8, 801).astype(dtype)
    exact = x.astype(np.float64)
    rtol = 64 * np.finfo(dtype).eps
    np.testing.assert_allclose(th.gelu(x), exact * special.ndtr(exact), rtol=rtol)
    y = th.gelu(x)
    assert y.dtype == dtype and np.abs(y - th.gelu(x, "tanh")).max() < 5e-4
    t = leaf(x, dtype)
    slope = special.ndtr(exact) + exact * np.exp(-exact * exact / 2) / np.sqrt(2 * np.pi)
    np.testing.assert_allclose(
        gradient(th.gelu, t), slope, rtol=rtol, atol=8 * np.finfo(dtype).eps
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_norm_and_logsumexp_do_not_overflow(dtype):
    with warnings.catch_warnings(), np.errstate(all="warn", under="ignore"):
        warnings.simplefilter("error")
        top = float(np.finfo(dtype).max) / 8
        x = leaf([top, -top, top, top], dtype)
        assert th.norm(x).item() == 2 * top
        assert gradient(th.norm, x) == [0.5, -0.5, 0.5, 0.5]
        assert th.logsumexp(x).item() == top
        tiny = float(np.finfo(dtype).tiny) * 8
        x = leaf([3 * tiny, 4 * tiny], dtype)
        assert th.norm(x).item() == pytest.approx(5 * tiny)
        np.testing.assert_allclose(gradient(th.norm, x), [0.6, 0.8], rtol=1e-3)


def test_logsumexp_of_minus_infinity():
    rows = leaf([[-np.inf, -np.inf], [-np.inf, 2.0]])
    y = th.logsumexp(rows, axis=1)
    assert y.tolist() == [-np.inf, 2.0]
    assert gradient(lambda x: th.logsumexp(x, axis=1), rows) == [[0, 0], [0, 1]]
    nothing = th.logsumexp(leaf(np.zeros((2, 0))), axis=1)
    assert nothing.tolist() == [-np.inf, -np.inf]
    assert th.prod(np.zeros((2, 0)), axis=1).tolist() == [1, 1]
    assert th.norm(np.zeros((2, 0)), axis=1).tolist() == [0, 0]


# --- ints, numbers, dtypes


def test_functions_of_ints():
    x = th.tensor([-2, 0, 3])
    for name in ("abs", "sign", "relu", "clip"):
        y = getattr(th, name)(x, 0, 2) if name == "clip" else getattr(th, name)(x)
        assert y.dtype == np.int64, name
    assert abs(x).tolist() == [2, 0, 3]
    assert x.clip(0.5).tolist() == [0.5, 0.5, 3.0] and x.clip(0.5).dtype == np.float32
    for name in ("sin", "cos", "erf", "gelu", "expm1", "var", "std", "norm", "logsumexp"):
        assert getattr(th, name)(x).dtype == np.float32, name
    assert x.min().item() == -2 and x.prod().item() == 0 and x.prod().dtype == np.int64
    assert th.clip(th.ones(2), np.float64(0.5)).dtype == np.float32
    assert th.masked_fill(th.ones(2), np.array([True, False]), -np.inf).dtype == np.float32
    assert th.pad(th.tensor([1, 2]), 1).tolist() == [0, 1, 2, 0]
    assert th.one_hot(th.tensor([0, 2]), 3, dtype="int64").tolist() == [
        [1, 0, 0],
        [0, 0, 1],
    ]
    assert not th.one_hot(th.tensor([0]), 3).requires_grad


def test_axis_none_is_the_flattened_array_as_in_numpy():
    data = np.arange(1.0, 7.0).reshape(2, 3)
    for name in ("cumsum", "cumprod", "argmin"):
        np.testing.assert_array_equal(getattr(th, name)(data), getattr(np, name)(data))
    np.testing.assert_array_equal(th.take(data, [-1, 0]), np.take(data, [-1, 0]))
    np.testing.assert_array_equal(th.flip(data), np.flip(data))
    assert th.squeeze(np.zeros((1, 2, 1))).shape == (2,)


# --- indexing


def test_repeated_places_add_up():
    x = leaf([[1.0, 2.0], [3.0, 4.0]])
    index = np.array([[0, 0], [0, 1], [-2, 1]])
    y = th.gather(x, index, 0)
    assert y.tolist() == [[1, 2], [1, 4], [1, 4]]
    dy = [[1.0, 2.0], [4.0, 8.0], [16.0, 32.0]]
    assert gradient(lambda x: th.gather(x, index, 0), x, dy) == [[21, 2], [0, 40]]
    y = th.scatter_add(x, index, th.Tensor(np.array(dy)), 0)
    assert y.tolist() == [[22, 4], [3, 44]]
    assert x.tolist() == [[1, 2], [3, 4]]  # a copy
    assert gradient(lambda x: x.take([0, 0, 3]), x) == [[2, 0], [0, 1]]


def test_a_kept_index_does_not_hold_on_to_a_larger_one():
    x = leaf(np.random.default_rng(0).standard_normal((4, 1000)))
    values, index = th.topk(x, 2)
    assert th.saved_bytes(values) == 4 * 2 * 8
    assert index.data.base is None


# --- einsum


@pytest.mark.parametrize(
    "spec, shapes",
    [
        ("jiij->ij", [(2, 3, 3, 2)]),
        ("iii->", [(3, 3, 3)]),
        ("iij,jkk->ik", [(2, 2, 3), (3, 2, 2)]),
        ("a...b,b...c->...ac", [(2, 3, 1, 2), (2, 4, 3)]),
        ("...,...", [(2, 1), (3,)]),
        ("...i->...", [(2, 3)]),
        ("...ii->...i", [(2, 3, 3)]),
        ("ij,jk,kl,lm->im", [(2, 3), (3, 2), (2, 2), (2, 3)]),
        ("ij,ij->", [(2, 3), (2, 1)]),
        ("Zb,aZ", [(2, 3), (2, 2)]),
        ("", [()]),
        ("bhqd,bhkd->bhqk", [(2, 2, 3, 2), (2, 2, 2, 2)]),
        ("i,i,i->i", [(3,), (3,), (3,)]),
        ("ij,jk->ki", [(2, 0), (0, 3)]),
    ],
)
def test_einsum(spec, shapes):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape) for shape in shapes]
    xs = [th.Tensor(a, requires_grad=True) for a in arrays]
    y = th.einsum(spec, *xs)
    want = np.einsum(spec, *arrays)
    assert y.shape == np.shape(want)
    np.testing.assert_allclose(y.detach(), want, rtol=1e-13, atol=1e-14)
    assert th.gradcheck(lambda *xs: th.einsum(spec, *xs), xs, order=2)


def test_einsum_of_one_tensor_twice():
    x = leaf([[1.0, 2.0], [3.0, 4.0]])
    y = th.einsum("ij,ij->", x, x)
    assert th.saved_bytes(y) == 32
    assert gradient(lambda x: th.einsum("ij,ij->", x, x), x) == [[2, 4], [6, 8]]
    assert th.einsum("ij,j", th.tensor([[1, 2]]), th.ones(2)).tolist() == [3.0]


def test_products_differ_by_rounding_alone_under_any_number_of_threads():
    def products(threads):
        rng = np.random.default_rng(0)
        results = []
        with threadpool_limits(threads, user_api="blas"):
            for fn, shapes in (
                (lambda a, b: th.einsum("btd,de->bte", a, b), [(4, 100, 450), (450, 130)]),
                (lambda a, b: th.einsum("ij,ij->", a, b), [(300, 450), (300, 450)]),
                (lambda x, w: th.conv2d(x, w), [(2, 50, 20, 20), (33, 50, 3, 3)]),
            ):
                xs = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
                xs = [th.Tensor(x, requires_grad=True) for x in xs]
                y = fn(*xs)
                dy = rng.standard_normal(y.shape).astype(np.float32)
                results += [y.data, *(g.data for g in th.grad(y, xs, dy))]
        return results

    # These kernels of OpenBLAS round a product alike however its rows are shared out; its
    # Haswell kernels, for one, do not.
    alike = all(
        pool.get("architecture") == "SkylakeX"
        for pool in threadpool_info()
        if pool["user_api"] == "blas"
    )
    one = products(1)
    for threads in (2, 3):
        for got, due in zip(products(threads), one, strict=True):
            assert np.abs(got - due).max() <= (0 if alike else 1e-5 * np.abs(due).max())


# --- losses


def test_cross_entropy_of_ignored_rows_alone():
    logits, target = leaf(np.zeros((2, 3))), np.array([-100, -100])
    for how, want in (("sum", 0.0), ("none", [0.0, 0.0])):
        y = th.cross_entropy(logits, target, ignore_index=-100, reduction=how)
        assert y.tolist() == want
        (g,) = th.grad(y, logits, th.ones_like(y))
        assert g.tolist() == [[0.0] * 3] * 2
    with pytest.raises(ShapeError, match="no rows but ignored ones -100"):
        th.cross_entropy(logits, target, ignore_index=-100)


def test_cross_entropy_ignores_what_is_not_finite():
    logits = leaf([[np.nan, 1.0], [0.0, 0.0]])
    y = th.cross_entropy(logits, np.array([7, 1]), ignore_index=7)
    assert y.item() == pytest.approx(math.log(2))
    (g,) = th.grad(y, logits)
    assert g.tolist() == [[0.0, 0.0], [0.5, -0.5]]


def test_cross_entropy_may_ignore_a_class():
    logits = leaf([[1.0, 2.0], [0.0, 0.0]])
    y = th.cross_entropy(logits, np.array([0, 1]), ignore_index=0)
    assert y.item() == pytest.approx(math.log(2))


# --- convolutions


@pytest.mark.parametrize("width", [1, 2, 4])
def test_a_causal_convolution_cut_anywhere_is_the_same(width):
    rng = np.random.default_rng(0)
    x, w, b = (rng.standard_normal(s) for s in ((2, 7, 3), (3, width), (3,)))
    whole, last = th.causal_conv1d(x, w, b)
    assert last.shape == (2, width - 1, 3)
    for cuts in ([1] * 7, [0, 3, 4], [5, 2]):
        state, parts, start = None, [], 0
        for n in cuts:
            y, state = th.causal_conv1d(x[:, start : start + n], w, b, state)
            parts.append(y)
            start += n
        np.testing.assert_allclose(np.concatenate(parts, 1), whole, rtol=1e-13, atol=1e-14)
        np.testing.assert_array_equal(state, last)


def test_a_causal_convolution_sees_no_later_value():
    rng = np.random.default_rng(0)
    x, w = leaf(rng.standard_normal((1, 6, 2))), leaf(rng.standard_normal((2, 3)))
    y, _ = th.causal_conv1d(x, w)
    for t in range(6):
        (g,) = th.grad(y[:, t].sum(), x, retain_graph=True)
        reached = np.abs(g.data).sum((0, 2)) > 0
        assert reached.tolist() == [t - 3 < s <= t for s in range(6)]


def test_the_state_of_a_causal_convolution_is_a_copy_with_a_gradient():
    x, w = leaf(np.ones((1, 4, 2))), leaf(np.ones((2, 3)))
    _, state = th.causal_conv1d(x, w)
    assert state.data.base is None
    state.sum().backward()
    assert x.grad.data[0, :, 0].tolist() == [0, 0, 1, 1]
    assert w.grad.data.tolist() == [[0] * 3] * 2


def test_no_steps_pass_the_state_on():
    state = leaf(np.arange(4.0).reshape(1, 2, 2))
    y, last = th.causal_conv1d(np.zeros((1, 0, 2)), np.ones((2, 3)), None, state)
    assert y.shape == (1, 0, 2) and last.tolist() == state.tolist()
    last.sum().backward()
    assert state.grad.tolist() == np.ones((1, 2, 2)).tolist()


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_convolutions_of_any_geometry_against_pytorch(dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    rng = np.random.default_rng(0)
    rtol = 1e-4 if dtype == np.float32 else 1e-11
    for _ in range(40):
        kernel = rng.integers(1, 4, 2).tolist()
        stride = rng.integers(1, 4, 2).tolist()
        padding = [int(rng.integers(0, k // 2 + 1)) for k in kernel]
        shape = [int(rng.integers(0, 3)), int(rng.integers(1, 4)), *rng.integers(3, 9, 2)]
        x = rng.standard_normal(shape).astype(dtype)
        w = rng.standard_normal((2, shape[1], *kernel)).astype(dtype)
        for ours, theirs, arrays in (
            (lambda x, w, *g: th.conv2d(x, w, None, *g),
             lambda x, w, s, p: functional.conv2d(x, w, None, s, p), [x, w]),
            (lambda x, *g, k=kernel: th.max_pool2d(x, k, *g),
             lambda x, s, p, k=kernel: functional.max_pool2d(x, k, s, p), [x]),
        ):  # fmt: skip
            xs = [th.Tensor(a, requires_grad=True) for a in arrays]
            ts = [torch.tensor(a, requires_grad=True) for a in arrays]
            y, want = ours(*xs, stride, padding), theirs(*ts, stride, padding)
            dy = rng.standard_normal(y.shape).astype(dtype)
            y.backward(th.Tensor(dy))
            want.backward(torch.tensor(dy))
            got = [y.detach(), *[x.grad for x in xs]]
            right = [want.detach(), *[t.grad for t in ts]]
            for a, b in zip(got, right, strict=True):
                np.testing.assert_allclose(a, b.numpy(), rtol=rtol, atol=rtol)


def test_max_pooling_never_takes_the_padding():
    x = leaf(-np.ones((1, 1, 2, 2)))
    y = th.max_pool2d(x, 2, stride=1, padding=1)
    assert y.tolist() == (-np.ones((1, 1, 3, 3))).tolist()
    y.sum().backward()
    assert x.grad.data.sum() == pytest.approx(9)  # as many as there are places


# --- dropout


def test_dropout_is_seeded_scaled_and_off_in_evaluation():
    x = leaf(np.ones((64, 64)))
    th.manual_seed(7)
    first = th.dropout(x, 0.25)
    th.manual_seed(7)
    again = th.dropout(th.ones(64, 64), 0.25)
    assert np.array_equal(first.data != 0, again.data != 0)  # of either dtype
    other = th.dropout(x, 0.25)
    assert not np.array_equal(other.data, first.data)
    given = [th.dropout(x, 0.25, generator=np.random.default_rng(3)).data for _ in range(2)]
    assert np.array_equal(*given)
    assert set(np.unique(first.data)) == {0.0, 1 / 0.75}
    assert np.mean(first.data == 0) == pytest.approx(0.25, abs=0.03)
    assert gradient(
        lambda x: th.dropout(x, 0.25, generator=np.random.default_rng(3)), x
    ) == (given[0].tolist())
    assert th.dropout(x, 0.25, training=False) is x and th.dropout(x, 0.0) is x
    assert not th.dropout(x, 1.0).data.any()


# --- what is refused


x23, v3 = np.zeros((2, 3)), np.zeros(3)
image = np.zeros((1, 2, 4, 4))
REFUSED = [
    (lambda: th.clip(x23), DTypeError, "neither bound"),
    (lambda: th.clip(x23, th.ones(3)), DTypeError, "Use maximum and minimum"),
    (lambda: th.gelu(x23, "erf"), HelixError, "approximate='erf'"),
    (lambda: th.norm(x23, 3), HelixError, "ord=3"),
    (lambda: th.min(np.zeros((0, 2)), 0), ShapeError, r"min of a Tensor of shape \(0, 2\)"),
    (lambda: th.argmin(np.zeros(0)), ShapeError, "argmin"),
    (lambda: th.var(x23, 0, ddof=2), ShapeError, r"divides by 2 - 2"),
    (lambda: th.std(np.zeros((2, 0)), 1), ShapeError, r"divides by 0 - 0"),
    (lambda: th.cumsum(x23, 2), ShapeError, "axis 2"),
    (lambda: th.permute(x23, 0), ShapeError, "each of its 2 axes once"),
    (lambda: th.permute(x23, 0, -2), ShapeError, "names an axis twice"),
    (lambda: th.swapaxes(x23, 0, 2), ShapeError, "swapaxes got axis 2"),
    (lambda: th.squeeze(x23, 0), ShapeError, "Only axes of size 1"),
    (lambda: th.unsqueeze(x23, 3), ShapeError, "unsqueeze got axis 3"),
    (lambda: th.expand(x23, -1, 2, 3), ShapeError, r"expand of shape \(2, 3\)"),
    (lambda: th.expand(x23, 4, 3), ShapeError, "does not broadcast"),
    (lambda: th.flip(x23, (0, 0)), ShapeError, "twice"),
    (lambda: th.pad(x23, -1), ShapeError, "none negative"),
    (lambda: th.pad(x23, ((1, 1),) * 3), ShapeError, "2 pairs"),
    (lambda: th.pad(x23, 0.5), ShapeError, "Give an int"),
    (lambda: th.chunk(x23, 0), ShapeError, "at least 1"),
    (lambda: th.take(x23, 0.5), DTypeError, "take takes an index of ints"),
    (lambda: th.take(x23, [3], axis=1), IndexError, r"shape \(2, 3\): index 3"),
    (lambda: th.gather(x23, np.zeros((2, 3)), 0), DTypeError, "float64"),
    (lambda: th.gather(x23, np.zeros(3, int), 0), ShapeError, "It must have 2 axes"),
    (lambda: th.gather(x23, np.zeros((1, 4), int), 0), ShapeError, r"shape \(1, 4\)"),
    (lambda: th.gather(x23, np.full((1, 3), 2), 0), IndexError, r"-2\.\.1"),
    (lambda: th.scatter_add(x23, np.full((1, 3), -3), x23[:1], 0), IndexError, "-3 to -3"),
    (lambda: th.scatter_add(x23, np.zeros((1, 3), int), x23, 0), ShapeError, "source"),
    (lambda: th.scatter_add(x23, np.zeros((1, 3), int), x23[:1].astype("f4"), 0),
     DTypeError, "one float dtype"),
    (lambda: th.one_hot([0, 3], 3), ShapeError, "0 to 3 for 3 classes"),
    (lambda: th.one_hot([0.5], 3), DTypeError, "index of ints"),
    (lambda: th.topk(x23, 4), ShapeError, "k=4"),
    (lambda: th.sort(x23, 2), ShapeError, "sort got axis 2"),
    (lambda: th.tril(v3), ShapeError, "tril of a Tensor of shape"),
    (lambda: th.triu(v3), ShapeError, "triu of a Tensor of shape"),
    (lambda: th.masked_fill(v3, np.ones((2, 3), bool), 0), ShapeError, "must broadcast"),
    (lambda: th.masked_fill(v3, np.ones(3), 0), DTypeError, "bools"),
    (lambda: th.einsum("ij,jk->ik", x23), ShapeError, "a term for each operand"),
    (lambda: th.einsum("ij,jk->ik", x23, x23), ShapeError, "sizes 3 and 2"),
    (lambda: th.einsum("ij->ijk", x23), ShapeError, "letters of the terms"),
    (lambda: th.einsum("ij->ii", x23), ShapeError, "each once"),
    (lambda: th.einsum("i->i", x23), ShapeError, "a letter"),
    (lambda: th.einsum("ijk->i", x23), ShapeError, "a letter"),
    (lambda: th.einsum("i1->i", x23), ShapeError, "a letter"),
    (lambda: th.einsum("ij", [[1.0]]), DTypeError, "list"),
    (lambda: th.einsum("i,i", v3, v3.astype("f4")), DTypeError, "one float dtype"),
    (lambda: th.einsum("i"), ShapeError, "0 operands"),
    (lambda: th.layer_norm(x23, v3[:2]), ShapeError, "a gain of shape"),
    (lambda: th.layer_norm(x23, v3, v3[:2]), ShapeError, "a bias of shape"),
    (lambda: th.layer_norm(np.zeros((2, 0))), ShapeError, "last axis"),
    (lambda: th.cross_entropy(x23, [0, 1], reduction="max"), HelixError, "reduction='max'"),
    (lambda: th.cross_entropy(x23, [0, 1], label_smoothing=2), HelixError, "0..1"),
    (lambda: th.cross_entropy(x23, [0, -100]), ShapeError, "-100 to 0"),
    (lambda: th.cross_entropy(x23, [3, -1], ignore_index=-1), ShapeError, "3 to 3"),
    (lambda: th.causal_conv1d(x23, x23), ShapeError, r"x \[B, T, D\]"),
    (lambda: th.causal_conv1d(np.zeros((1, 2, 3)), x23), ShapeError, r"\(2, 3\)"),
    (lambda: th.causal_conv1d(np.zeros((1, 2, 3)), np.zeros((3, 0))), ShapeError, "K is 0"),
    (lambda: th.causal_conv1d(np.zeros((1, 2, 3)), np.zeros((3, 2)), v3[:2]), ShapeError,
     "a bias of shape"),
    (lambda: th.causal_conv1d(np.zeros((1, 2, 3)), np.zeros((3, 2)), None, x23), ShapeError,
     r"a state of shape \(1, 1, 3\)"),
    (lambda: th.conv2d(x23, x23), ShapeError, r"x \[N, C, H, W\]"),
    (lambda: th.conv2d(image, np.zeros((1, 3, 2, 2))), ShapeError, r"\(1, 3, 2, 2\)"),
    (lambda: th.conv2d(image, np.zeros((1, 2, 5, 2))), ShapeError, "must have a pixel"),
    (lambda: th.conv2d(image, np.zeros((1, 2, 2, 2)), v3), ShapeError, "a bias of shape"),
    (lambda: th.conv2d(image, np.zeros((1, 2, 2, 2)), stride=0), ShapeError, "at least 1"),
    (lambda: th.conv2d(image, np.zeros((1, 2, 2, 2), "f4")), DTypeError, "one float dtype"),
    (lambda: th.max_pool2d(x23, 2), ShapeError, r"x \[N, C, H, W\]"),
    (lambda: th.max_pool2d(image, (2, 2, 2)), ShapeError, r"kernel=\(2, 2, 2\)"),
    (lambda: th.max_pool2d(image, 2, padding=2), ShapeError, "at most half"),
    (lambda: th.max_pool2d(image, 5), ShapeError, "must have a pixel"),
    (lambda: th.dropout(x23, 1.5), HelixError, "p=1.5"),
]  # fmt: skip


@pytest.mark.parametrize("call, error, text", REFUSED)
def test_refused(call, error, text):
    with pytest.raises(error, match=text):
        call()


# --- one axis


ONE_AXIS = {
    "cumsum": lambda x, axis: th.cumsum(x, axis),
    "cumprod": lambda x, axis: th.cumprod(x, axis),
    "softmax": lambda x, axis: th.softmax(x, axis),
    "log_softmax": lambda x, axis: th.log_softmax(x, axis),
    "sort": lambda x, axis: th.sort(x, axis),
    "topk": lambda x, axis: th.topk(x, 1, axis),
    "gather": lambda x, axis: th.gather(x, np.zeros(x.shape, int), axis),
    "scatter_add": lambda x, axis: th.scatter_add(x, np.zeros(x.shape, int), x, axis),
    "take": lambda x, axis: th.take(x, [0], axis),
    "swapaxes": lambda x, axis: th.swapaxes(x, axis, 0),
    "unsqueeze": lambda x, axis: th.unsqueeze(x, axis),
    "cat": lambda x, axis: th.cat([x, x], axis),
    "stack": lambda x, axis: th.stack([x, x], axis),
    "split": lambda x, axis: th.split(x, 1, axis),
    "chunk": lambda x, axis: th.chunk(x, 1, axis),
}
FLATTENS = ("cumsum", "cumprod", "take")  # for None


@pytest.mark.parametrize("name", ONE_AXIS)
@pytest.mark.parametrize("axis", [None, (1, 0), (0,), [0], 0.5, True, "a"])
@pytest.mark.parametrize("shape", [(2,), (2, 2)])
def test_one_axis_is_one_int(name, axis, shape):
    x = th.ones(shape)
    if axis is None and name in FLATTENS:
        ONE_AXIS[name](x, axis)
        return
    with pytest.raises(DTypeError, match=f"^{name} got axis=.* It takes one axis, an int"):
        ONE_AXIS[name](x, axis)


# --- ints that do not fit


@pytest.mark.parametrize(
    "fn",
    [
        lambda u: u + 300,
        lambda u: 300 - u,
        lambda u: u * -1,
        lambda u: u + np.int64(300),
        lambda u: th.maximum(u, 300),
        lambda u: th.masked_fill(u, np.array([True]), 300),
        lambda u: th.where(np.array([True]), -1, u),
        lambda u: th.where(np.array([True]), u, np.int64(-1)),
        lambda u: th.clip(u, low=300),
        lambda u: th.clip(u, high=np.int64(-1)),
        lambda u: th.pad(u, 1, 300),
        lambda u: th.full((1,), 300, dtype="uint8"),
        lambda u: th.tensor([300], dtype="uint8"),
        lambda u: th.Tensor(-1, dtype="uint8"),
        lambda u: th.arange(300, 302, dtype="uint8"),
    ],
)
def test_an_int_that_the_dtype_cannot_hold(fn):
    u = th.tensor(np.array([7], np.uint8))
    with pytest.raises(DTypeError, match=r"uint8"):
        fn(u)
    assert u.tolist() == [7]


def test_ints_that_fit_keep_the_dtype():
    u = th.tensor(np.array([7], np.uint8))
    for y in (u + 248, th.where(np.array([True]), 255, u), th.clip(u, 0, 255)):
        assert y.dtype == np.uint8
    assert (u < 300).tolist() == [True] and (u == -1).tolist() == [False]
    assert (th.tensor([True]) + 300).tolist() == [301]
    assert th.where(np.array([True]), 300, th.tensor([True])).tolist() == [300]
    with pytest.raises(DTypeError, match="mul got a number"):
        th.ones(1) * 10**400


# --- what arguments are refused, and by whom


@pytest.mark.parametrize(
    ("fn", "error", "match"),
    [
        (lambda x: th.topk(x, 1.5), DTypeError, r"topk got k=1\.5. Give an int"),
        (lambda x: th.tril(x, 1.5), DTypeError, r"tril got k=1\.5"),
        (lambda x: th.triu(x, None), DTypeError, "triu got k=None"),
        (lambda x: th.one_hot([1], "a"), DTypeError, "one_hot got classes='a'"),
        (lambda x: th.one_hot([1], np.ones(2)), DTypeError, "one_hot got classes"),
        (lambda x: th.one_hot([], -1), ShapeError, "one_hot got classes=-1"),
        (lambda x: th.one_hot([1], 2, "foo"), DTypeError, "'foo', which is no dtype"),
        (lambda x: th.dropout(x, "a"), DTypeError, "dropout takes a number as p; got str"),
        (lambda x: th.dropout(x, generator=3), DTypeError, "Generator as generator; got"),
        (
            lambda x: th.cross_entropy(x, [0, 0], label_smoothing="a"),
            DTypeError,
            "number as label_smoothing; got str",
        ),
        (
            lambda x: th.cross_entropy(x, [0, 0], ignore_index="a"),
            DTypeError,
            "cross_entropy got ignore_index='a'",
        ),
        (lambda x: th.var(x, ddof="a"), DTypeError, "var got ddof='a'"),
        (lambda x: th.std(x, ddof=0.5), DTypeError, "std got ddof=0.5"),
        (lambda x: th.einsum(1, x), DTypeError, "einsum takes a spec .* got 1"),
        (lambda x: th.pad(x, 1, None), DTypeError, "pad takes a number as value; got None"),
        (lambda x: th.pad(x, 1, th.ones(1)), DTypeError, "as value; got Tensor"),
        (lambda x: th.split(x, 1.5), DTypeError, "split got sizes=1.5"),
        (lambda x: th.split(x, [1.5, 0.5]), DTypeError, "split got a size=1.5"),
        (lambda x: -(x > 0), DTypeError, "neg of bools"),
        (lambda x: th.sign(x > 0), DTypeError, "sign of bools"),
        (lambda x: th.sum(None), DTypeError, "sum takes Tensors, arrays and lists"),
        (lambda x: th.sum("a"), DTypeError, "sum takes Tensors, arrays and lists"),
        (lambda x: th.sort([[1.0], 2.0]), ShapeError, "no array can be made"),
    ],
)
def test_bad_arguments_of_ops(fn, error, match):
    with pytest.raises(error, match=match):
        fn(th.ones((2, 3)))


TAKE_LISTS = [
    "sum", "mean", "prod", "max", "min", "var", "std", "norm", "logsumexp", "argmax",
    "cumsum", "cumprod", "softmax", "squeeze", "flip", "transpose",
]  # fmt: skip


@pytest.mark.parametrize("name", TAKE_LISTS)
def test_lists_are_taken_as_arrays(name):
    given = [3.0, 1.0, 2.0]
    want = getattr(th, name)(np.array(given, np.float32))
    got = getattr(th, name)(given)
    assert type(got) is type(want) and got.dtype == want.dtype
    assert np.array_equal(got, want)


def test_pad_promotes_as_where_does():
    x = th.tensor([1])
    y = th.pad(x, 1, 0.5)
    assert y.dtype == np.float32 and y.tolist() == [0.5, 1, 0.5]
    assert np.isnan(th.pad(x, 1, math.nan).data[[0, 2]]).all()
    assert th.pad(x, 1, np.float64(2)).tolist() == [2, 1, 2]
    assert th.pad(x, 1, 2).dtype == np.int64


def test_pad_of_no_axes_is_a_copy():
    x = leaf(3.0)
    y = th.pad(x, 1)
    assert y.tolist() == 3 and not np.shares_memory(y.data, x.data)
    assert th.grad(y, x)[0].tolist() == 1


def test_no_classes_and_no_counted_row():
    logits = leaf(np.zeros((2, 0)))
    for reduction in ("sum", "none"):
        y = th.cross_entropy(
            logits, [-1, -1], ignore_index=-1, reduction=reduction, label_smoothing=0.0
        )
        assert y.data.sum() == 0
        (g,) = th.grad(y.sum(), logits)
        assert g.shape == (2, 0)


def test_a_power_of_zero_is_flat_at_infinity_too():
    x = leaf([math.inf, -math.inf, math.nan, 0.0])
    for power in (0, 0.0, th.zeros(4, dtype="float64")):
        assert th.grad((x**power).sum(), x)[0].tolist() == [0, 0, 0, 0]


def test_sums_of_ints_are_of_64_bits():
    for dtype, want in (
        (np.uint8, np.uint64),
        (np.uint64, np.uint64),
        (np.int8, np.int64),
        (bool, np.int64),
    ):
        x = th.ones(3, dtype=dtype)
        for fn in (th.sum, th.prod, th.cumsum, th.cumprod):
            assert fn(x).dtype == want


@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 2), (2, 0)])
def test_second_derivatives_of_nothing(shape):
    x = leaf(np.ones(shape))
    for axis in range(len(shape)):
        (g,) = th.grad(th.cumprod(x, axis).sum(), x, create_graph=True)
        assert th.grad(g.sum(), x)[0].shape == shape


def test_second_derivatives_of_a_scan_without_width():
    a, b, h0 = leaf(np.ones((2, 3, 0))), leaf(np.ones((2, 3, 0))), leaf(np.ones((2, 0)))
    h, last = th.gated_scan(a, b, h0)
    found = th.grad([h.sum(), last.sum()], [a, b, h0], create_graph=True)
    again = th.grad([g.sum() for g in found], [a, h0], allow_unused=True)
    assert again[0].shape == (2, 3, 0)
