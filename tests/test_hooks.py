"""Hooks on tensors, nodes and saved tensors; retain_grad; checkpoint; detect_anomaly."""

import gc
import tracemalloc
import warnings
import weakref

import numpy as np
import pytest

import tinygrad_helix as th
from tinygrad_helix.errors import GraphError


def leaf(values, dtype="float64"):
    return th.tensor(values, dtype=dtype, requires_grad=True)


# --- hooks on tensors


def test_a_hook_sees_the_whole_sum_once():
    x = leaf([1.0, 2.0])
    seen = []
    handle = x.register_hook(lambda dx: seen.append(dx.tolist()))
    (x * 3 + x * x).sum().backward()
    assert seen == [[5, 7]]
    assert x.grad.tolist() == [5, 7]
    handle.remove()
    handle.remove()
    (x * 1).sum().backward()
    assert len(seen) == 1


def test_a_hook_on_a_result_replaces_its_cotangent():
    x = leaf([1.0, 2.0])
    y = x * x
    order = []
    y.register_hook(lambda dy: order.append("first") or dy * 10)
    y.register_hook(lambda dy: order.append(dy.tolist()))
    (y * 2 + y).sum().backward()
    assert order == ["first", [30, 30]]
    assert x.grad.tolist() == [60, 120]


def test_a_hook_on_one_of_several_outputs():
    x = leaf(np.zeros((4, 2)))
    first, second = th.split(x, 2)
    first.register_hook(lambda dy: dy * 5)
    second.register_hook(lambda dy: pytest.fail("this output got no cotangent"))
    first.sum().backward()
    assert x.grad.tolist() == [[5, 5], [5, 5], [0, 0], [0, 0]]


def test_hooks_run_under_grad_and_create_graph():
    x = leaf([3.0])
    x.register_hook(lambda dx: dx * 2)
    (g,) = th.grad(x * x * x, x, create_graph=True)
    assert g.item() == 54
    assert th.grad(g, x)[0].item() == 72, "d(6x²)/dx = 12x, doubled by the hook again"
    assert x.grad is None


@pytest.mark.parametrize(
    "wrong",
    [lambda d: d.sum(), lambda d: d.astype("float32"), lambda d: d.numpy(), lambda d: 3],
)
def test_what_a_hook_must_not_return(wrong):
    x = leaf([1.0, 2.0])
    x.register_hook(wrong)
    with pytest.raises(GraphError, match=r"a hook on a leaf's gradient returned"):
        (x * x).sum().backward()
    assert x.grad is None


def test_a_hook_needs_a_gradient():
    with pytest.raises(GraphError, match="requires no gradient would never run"):
        th.ones(2).register_hook(print)
    with pytest.raises(GraphError, match="requires no gradient"):
        th.ones(2).retain_grad()


def test_a_hook_that_raises_changes_nothing():
    x, w = leaf([1.0]), leaf([2.0])
    w.register_hook(lambda d: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        (x * w).backward()
    assert x.grad is None
    assert w.grad is None


def test_node_hooks_see_both_sides_and_may_replace():
    a, b = leaf([2.0]), leaf([5.0])
    y = a * b
    seen = []

    def hook(dxs, dys):
        seen.append(([d.item() for d in dxs], [d.item() for d in dys]))
        return dxs[0] * 100, dxs[1]

    handle = y.node.register_hook(hook)
    (y * 3).backward(retain_graph=True)
    assert seen == [([15, 6], [3])]
    assert (a.grad.item(), b.grad.item()) == (1500, 6)
    handle.remove()
    (y * 3).backward()
    assert (a.grad.item(), b.grad.item()) == (1515, 12)


def test_a_node_hook_with_the_wrong_number_of_cotangents():
    x = leaf([1.0])
    y = x * x
    y.node.register_hook(lambda dxs, dys: dxs[:1])
    with pytest.raises(GraphError, match="returned 1 cotangents for 2 inputs"):
        y.backward()


# --- retain_grad


def test_retained_gradients_add_up_as_a_leafs():
    x = leaf([1.0, 2.0])
    y = x * x
    assert y.grad is None
    y.retain_grad()
    z = (y * 3).sum()
    z.backward(retain_graph=True)
    z.backward()
    assert y.grad.tolist() == [6, 6]
    assert x.grad.tolist() == [12, 24]
    x.retain_grad()  # a leaf keeps its gradient anyway
    th.grad((y * y).sum(), y)
    assert y.grad.tolist() == [6, 6], "grad() lands nowhere"


def test_the_graph_with_a_retained_gradient_is_freed_by_reference_count():
    gc.disable()
    try:
        x = leaf(np.ones(10))
        y = x.exp()
        y.retain_grad()
        array = weakref.ref(y.data)
        y.sum().backward()
        assert y.grad.tolist() == [1] * 10
        del y
        assert array() is None
    finally:
        gc.enable()


# --- hooks on saved tensors


def test_saved_tensors_in_half_precision():
    x = leaf(np.linspace(0, 1, 8), "float32")
    labels = []
    with th.saved_tensor_hooks(
        lambda t: labels.append(t.shape) or t.astype("float16"),
        lambda t: t.astype("float32"),
    ):
        y = (x.exp() * x).sum()
    assert labels == [(8,)] * 3
    assert th.saved_bytes(y) == 3 * 8 * 2
    y.backward()
    assert np.abs(x.grad.numpy() - (1 + x.data) * np.exp(x.data)).max() < 5e-3


def test_saved_tensors_somewhere_else():
    stored = {}

    def pack(t):
        stored[len(stored)] = t.numpy().copy()
        return len(stored) - 1

    x = leaf([1.0, 2.0])
    with th.saved_tensor_hooks(pack, lambda key: th.Tensor(stored.pop(key))):
        y = (x * x).sum()
    assert th.saved_bytes(y) == 0
    y.backward()
    assert x.grad.tolist() == [2, 4]
    assert stored == {}


def test_the_innermost_pair_counts_and_it_ends_with_the_block():
    x = leaf([1.0])
    outer, inner = [], []
    keep = lambda store: lambda t: store.append(t) or t
    with th.saved_tensor_hooks(keep(outer), lambda t: t):
        x.exp()
        with th.saved_tensor_hooks(keep(inner), lambda t: t):
            x.exp()
        x.exp()
    x.exp()
    assert (len(outer), len(inner)) == (2, 1)


def test_packed_values_give_second_derivatives_and_are_checked():
    x = leaf([2.0])
    with th.saved_tensor_hooks(lambda t: t.numpy().copy(), th.Tensor):
        y = x * x * x
    (g,) = th.grad(y, x, create_graph=True)
    assert th.grad(g, x)[0].item() == 12
    with th.saved_tensor_hooks(lambda t: t, lambda t: t.sum()):
        y = (leaf([1.0, 2.0]) * 1.0).exp().sum()
    with pytest.raises(
        GraphError, match=r"the unpack hook of the saved tensor 'y' returned \(\)"
    ):
        y.backward()


def test_a_packed_view_still_sees_writes():
    x = leaf([1.0, 2.0])
    with th.saved_tensor_hooks(lambda t: t, lambda t: t):
        y = x.exp()
    with th.no_grad():
        y += 1
    with pytest.raises(th.errors.InPlaceModificationError):
        y.sum().backward()


# --- checkpoint


def region(x, w):
    h = (x @ w).silu()
    return (h * h.sigmoid()).tanh()


def test_checkpoint_keeps_its_arguments_and_gives_the_same_bits():
    rng = np.random.default_rng(0)
    x, w = leaf(rng.standard_normal((6, 4))), leaf(rng.standard_normal((4, 4)))
    plain = region(x, w)
    kept = th.checkpoint(region, x, w)
    assert (plain.data == kept.data).all()
    assert th.saved_bytes(kept) == x.nbytes + w.nbytes < th.saved_bytes(plain)
    rows = th.memory.saved(kept)
    assert [(r.op, r.label) for r in rows] == [("checkpoint", "x"), ("checkpoint", "x1")]
    assert th.accounting.measure_saved(
        lambda x, w: th.checkpoint(region, x, w), {"x": x, "w": w}
    ) == th.saved_bytes(kept)
    want = th.grad((plain * plain).sum(), [x, w])
    got = th.grad((kept * kept).sum(), [x, w])
    for a, b in zip(want, got, strict=True):
        assert (a.data == b.data).all()
    assert th.saved_bytes(kept) == 0


def test_checkpoint_runs_again_once_a_sweep():
    x = leaf([1.0, 2.0])
    runs = []

    def fn(x):
        runs.append(1)
        return (x.exp() * x).tanh()

    y = th.checkpoint(fn, x)
    y.sum().backward(retain_graph=True)
    assert len(runs) == 2
    first = x.grad.tolist()
    y.sum().backward()
    assert len(runs) == 3
    assert x.grad.tolist() == [2 * g for g in first]
    with pytest.raises(th.errors.SavedTensorsFreedError):
        y.sum().backward()


def test_checkpoint_with_closures_and_arguments_that_need_no_gradient():
    w = leaf([3.0, 4.0])
    x = th.tensor([1.0, 2.0], dtype="float64")
    y = th.checkpoint(lambda x: (x * w).exp() * w, x)
    y.sum().backward()
    want = leaf([3.0, 4.0])
    ((x * want).exp() * want).sum().backward()
    assert w.grad.tolist() == want.grad.tolist()
    z = leaf([1.0, 1.0])
    mixed = th.checkpoint(
        lambda x, z, s, *, scale: (x * z * s).exp() * scale, x, z, 2, scale=3
    )
    mixed.sum().backward()
    assert z.grad.tolist() == pytest.approx((3 * 2 * x.data * np.exp(2 * x.data)).tolist())
    assert not th.checkpoint(lambda x: x * 2, x).requires_grad


def test_checkpoint_nested_and_second_derivatives():
    x = leaf([0.3, -0.2])

    def inner(x):
        return (x * x).exp()

    def outer(x):
        return th.checkpoint(inner, x * 2).tanh() * x

    want = outer(x)
    got = th.checkpoint(outer, x)
    (a,) = th.grad(want.sum(), x, create_graph=True)
    (b,) = th.grad(got.sum(), x, create_graph=True)
    assert (a.data == b.data).all()
    assert (th.grad(a.sum(), x)[0].data == th.grad(b.sum(), x)[0].data).all()
    assert th.gradcheck(lambda x: th.checkpoint(outer, x), (x,), order=2)


def test_checkpoint_puts_random_numbers_back():
    x = leaf(np.ones(50))

    def noisy(x, generator=None):
        mask = th.rand(50, dtype="float64", generator=generator)
        return (x * mask).exp() * mask

    for generator in (None, np.random.default_rng(3)):
        th.manual_seed(1)
        y = th.checkpoint(noisy, x, generator)
        after = th.rand(3).tolist()
        (g,) = th.grad(y.sum(), x)
        assert np.allclose(
            g.data, y.data * (np.log(y.data / (y.data / 1)) * 0 + 1) * 0 + g.data
        )
        th.manual_seed(1)
        if generator is not None:
            generator = np.random.default_rng(3)
        plain = noisy(x, generator)
        assert th.rand(3).tolist() == after
        assert (th.grad(plain.sum(), x)[0].data == g.data).all()


def test_checkpoint_with_another_seed_between_the_passes():
    x = leaf(np.ones(50))

    def noisy(x):
        return x.exp() * th.rand(50, dtype="float64")

    th.manual_seed(1)
    y = th.checkpoint(noisy, x)
    th.manual_seed(2)
    state = th.create.default_generator().bit_generator.state
    (g,) = th.grad(y.sum(), x)
    assert np.allclose(g.data, y.data)
    assert th.create.default_generator().bit_generator.state == state


def test_a_seed_starts_the_same_generator_anew():
    generator = th.create.default_generator()
    th.manual_seed(5)
    assert th.create.default_generator() is generator
    assert (
        th.rand(3, dtype="float64").tolist() == np.random.default_rng(5).random(3).tolist()
    )


def test_checkpoint_with_tensors_as_keywords():
    x, w = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    calls = []

    def fn(x, *, w, scale, plain):
        calls.append((x.is_leaf, w.is_leaf))
        return (x * w).exp() * scale * plain

    kwargs = {"scale": 2.0, "plain": th.ones(2, dtype="float64")}
    got = th.checkpoint(fn, x, w=w * 1.0, **kwargs)
    assert [s.label for s in th.memory.saved(got)] == ["x", "x1", "x2"]
    want = th.grad(fn(x, w=w, **kwargs).sum(), (x, w))
    have = th.grad(got.sum(), (x, w))
    assert all((a.data == b.data).all() for a, b in zip(want, have, strict=True))
    assert len(calls) == 3
    y = th.checkpoint(fn, x=x, w=w, **kwargs)  # by keyword alone
    assert (th.grad(y.sum(), x)[0].data == want[0].data).all()
    written = w * 1.0
    y = th.checkpoint(fn, x, w=written, **kwargs)
    with th.no_grad():
        written += 1
    with pytest.raises(th.errors.InPlaceModificationError, match="checkpoint"):
        y.sum().backward()


def test_the_second_run_of_a_checkpoint_is_a_part_of_the_sweep():
    x = leaf(np.ones(5))
    with th.memory.record() as ledger:
        y = th.checkpoint(lambda x: x.exp().tanh(), x).sum()
        forward = len(ledger.events)
        y.backward()
    assert {e.phase for e in ledger.events[:forward]} == {"forward"}
    assert [(e.phase, e.op) for e in ledger.events[forward:]] == [
        ("backward", "sum"),
        ("backward", "tanh"),
        ("backward", "exp"),
        ("backward", "checkpoint"),
    ]


def test_checkpoint_of_a_function_that_changes():
    x = leaf([1.0])
    calls = []

    def fn(x):
        calls.append(1)
        return x.exp() if len(calls) == 1 else x.exp() * x

    y = th.checkpoint(fn, x)
    with pytest.raises(GraphError, match=r"fn again for a sweep and it saved 3 values, 1"):
        y.backward()
    assert x.grad is None


def test_checkpoint_sees_writes_to_its_arguments():
    x = leaf([1.0])
    h = x * 1.0
    y = th.checkpoint(lambda h: h.exp() * h, h)
    with th.no_grad():
        h += 1
    with pytest.raises(th.errors.InPlaceModificationError, match="checkpoint"):
        y.backward()


@pytest.mark.parametrize(
    "second", [lambda x: x.exp(), lambda x: x.cos(), lambda x: (x * x).sin()]
)
def test_checkpoint_of_a_function_that_saves_as_many_other_values(second):
    x = leaf([1.0])
    calls = []

    def fn(x):
        calls.append(1)
        return x.sin() if len(calls) == 1 else second(x)

    y = th.checkpoint(fn, x)
    with pytest.raises(GraphError, match=r"sin\.x \(1,\) float64 the first time"):
        y.backward()
    assert x.grad is None


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w: (x * w).exp(),
        lambda x, w: (x + w).exp(),  # no op saves w
        lambda x, w: x * (w.detach() * 1.0),
        lambda x, w: th.checkpoint(lambda x: (x + w).exp(), x),
        lambda x, w: (x + w[:]).exp(),
    ],
)
@pytest.mark.parametrize("argument", [True, False])
@pytest.mark.parametrize("trained", [True, False])
def test_checkpoint_sees_writes_to_all_it_reads(fn, argument, trained):
    x = leaf([3.0])
    w = th.tensor([2.0], dtype="float64", requires_grad=trained)
    y = th.checkpoint(fn, x, w) if argument else th.checkpoint(lambda x: fn(x, w), x)
    with th.no_grad():
        w -= 1
    with pytest.raises(th.errors.InPlaceModificationError, match=r"checkpoint.* \(1,\)"):
        y.backward()
    assert x.grad is None and w.grad is None


def test_checkpoint_sees_writes_to_arguments_that_need_no_gradient():
    m, w = th.tensor([3.0]), leaf([2.0])
    fns = (lambda m: m.astype("float64") * w, lambda m: (w + m) ** 2)
    ys = [th.checkpoint(fn, m) for fn in fns]
    m += 1
    for y in ys:
        with pytest.raises(th.errors.InPlaceModificationError, match=r"cast|add"):
            y.backward()


def test_checkpoint_sees_writes_between_two_sweeps():
    x, w = leaf([3.0]), leaf([2.0])
    p, q = th.checkpoint(lambda x: (x.exp(), x * w), x)
    p.backward(retain_graph=True)
    with th.no_grad():
        w -= 1
    with pytest.raises(th.errors.InPlaceModificationError, match=r"that mul reads"):
        q.backward()


def test_checkpoint_lets_its_function_write_and_results_be_written():
    x, state, mean = leaf([3.0]), th.zeros(1, dtype="float64"), th.zeros(1, dtype="float64")

    def fn(x):
        with th.no_grad():
            mean.copy_(mean * 0.5 + x.detach())
        state[...] = 2.0
        z = x * state
        return z, z.exp()

    z, y = th.checkpoint(fn, x)
    with th.no_grad():
        z += 1
    for due in (1, 2):
        y.backward(retain_graph=True)
        assert np.allclose(x.grad.data, due * 2 * np.exp(6.0))


def test_checkpoint_of_what_was_written_before_it():
    x, w = leaf([3.0]), leaf([2.0])
    with th.no_grad():
        w -= 1
        x += 1
    y = th.checkpoint(lambda x: th.checkpoint(lambda x: (x * w).exp(), x), x)
    y.backward()
    assert np.allclose(x.grad.data, np.exp(4.0))


@pytest.mark.parametrize("retain", [True, False])
def test_checkpoint_keeps_nothing_that_no_sweep_reads(retain):
    n = 100_000
    x, v = leaf(np.zeros(n)), leaf(np.zeros(n))
    p, q = th.checkpoint(lambda x, v: (x.exp().exp().exp(), v.exp().exp().exp()), x, v)
    with th.accounting.tracing():
        before = th.accounting.numpy_bytes()
        (g,) = th.grad(p.sum(), [x], retain_graph=retain)
        kept = th.accounting.numpy_bytes() - before - g.nbytes
    assert kept < 10_000, "what the second run saved for q is held after the sweep"
    if retain:
        q.sum().backward()
        assert np.allclose(v.grad.data, g.data)


def test_checkpoint_lowers_the_peak_and_leaks_nothing():
    x = leaf(np.ones(100_000))

    def deep(x):
        for _ in range(10):
            x = x.exp().log()
        return x

    def run(f):
        y = x
        for _ in range(5):
            y = f(y)
        y.sum().backward()
        x.grad = None

    gc.disable()
    try:
        tracemalloc.start()
        peaks = []
        for f in (deep, lambda y: th.checkpoint(deep, y)):
            run(f)
            start = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            run(f)
            end, peak = tracemalloc.get_traced_memory()
            peaks.append(peak - start)
            assert abs(end - start) < 10_000
    finally:
        tracemalloc.stop()
        gc.enable()
    assert peaks[1] < 0.4 * peaks[0]


# --- hooks do no harm


def scaled(d):
    d *= 10


@pytest.mark.parametrize("create_graph", [True, False])
def test_a_hook_cannot_write_to_what_others_hold(create_graph):
    c, e, start = leaf([1.0]), leaf([1.0]), th.ones(1, dtype="float64")
    c.register_hook(scaled)
    with pytest.raises(GraphError, match="read-only"):
        th.grad(c + e, [c, e], start, create_graph=create_graph)
    assert start.tolist() == [1]


def test_a_hook_of_a_node_cannot_write_to_what_others_hold():
    for which in (0, 1):
        c, e, start = leaf([1.0]), leaf([1.0]), th.ones(1, dtype="float64")
        y = c + e
        y.node.register_hook(lambda dxs, dys, which=which: scaled((dxs, dys)[which][0]))
        with pytest.raises(GraphError, match="read-only"):
            y.backward(start)
        assert start.tolist() == [1]


def test_what_a_hook_returned_as_it_was_is_the_leafs_own():
    x = leaf([1.0])
    x.register_hook(lambda dx: dx)
    (x * 2).backward()
    x.grad *= 3
    assert x.grad.tolist() == [6]


def test_hooks_are_functions():
    x = leaf([1.0])
    for give in (x.register_hook, (x * x).node.register_hook):
        with pytest.raises(th.errors.DTypeError, match="takes a function; got int"):
            give(3)
    for pair in ((3, print), (print, 4)):
        with (
            pytest.raises(th.errors.DTypeError, match="pack takes a function"),
            th.saved_tensor_hooks(*pair),
        ):
            pass


# --- detect_anomaly


def test_anomaly_names_the_op_and_its_line():
    x = leaf([1.0, 0.0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with th.detect_anomaly(), pytest.raises(GraphError) as caught:
            x.log().sum()
    assert "output 0 of log at " in str(caught.value)
    assert __file__ in str(caught.value)
    assert "1 of 2 elements" in str(caught.value)


def test_anomaly_names_the_input_that_came_in_so():
    x = leaf([1.0, np.nan])
    with (
        th.detect_anomaly(),
        pytest.raises(GraphError, match=r"input 1 of mul .* not made by an op"),
    ):
        leaf([1.0, 1.0]) * x


def test_anomaly_in_the_backward_pass():
    x = leaf([0.0, 1.0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with th.detect_anomaly():
            y = x.sqrt().sum()
            with pytest.raises(
                GraphError, match=r"cotangent of input 0, from the vjp of sqrt"
            ):
                y.backward()
    assert x.grad is None


def test_anomaly_is_off_outside_and_passes_what_is_finite():
    x = leaf([1.0, 2.0])
    with th.detect_anomaly():
        (x * x).log().sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        (x - 1).log()


def test_anomaly_lets_the_infinities_of_a_mask_pass():
    # masked attention, each way in which it is written
    later = np.triu(np.ones((3, 3), bool), 1)
    mask = th.tensor(np.where(later, -np.inf, 0.0))
    for masked in (
        lambda s: s.masked_fill(later, -np.inf),
        lambda s: th.where(later, -np.inf, s),
        lambda s: s + mask,
    ):
        for last in (lambda s: s.softmax(), lambda s: s.logsumexp(axis=-1)):
            scores = leaf(np.arange(9.0).reshape(3, 3))
            with th.detect_anomaly():
                (last(masked(scores)) ** 2).sum().backward()
            assert np.isfinite(scores.grad.data).all()
    with th.detect_anomaly():
        assert leaf([1.0]).pad(1, -np.inf).tolist() == [-np.inf, 1, -np.inf]


def test_anomaly_names_where_an_infinity_of_a_mask_becomes_nan():
    scores = leaf(np.ones((2, 2)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with (
            th.detect_anomaly(),
            pytest.raises(GraphError, match=r"output 0 of softmax .*2 of 4 elements"),
        ):
            scores.masked_fill(np.array([[True], [False]]), -np.inf).softmax()


def test_anomaly_names_who_makes_an_infinity():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for make, name in ((lambda x: 1 / x, "div"), (lambda x: (x + 1e3).exp(), "exp")):
            with (
                th.detect_anomaly(),
                pytest.raises(GraphError, match=f"output 0 of {name}"),
            ):
                make(leaf([0.0]))
