"""The sweep node by node: `tape.steps`. Its effects are those of backward(), to the bit."""

import gc
import operator
import weakref

import numpy as np
import pytest

import tinygrad_helix as th
from tinygrad_helix.errors import (
    DTypeError,
    GraphError,
    InPlaceModificationError,
    NonScalarBackwardError,
    SavedTensorsFreedError,
    ShapeError,
)
from tinygrad_helix.tape import steps


def leaf(data, dtype=np.float64):
    return th.Tensor(np.asarray(data, dtype), requires_grad=True)


def bits(tensors):
    return [None if t.grad is None else t.grad.numpy().tobytes() for t in tensors]


# --- the same as backward()


def block(mode, policy=None, state=False):
    def build():
        rng = np.random.default_rng(3)
        B, T, D = 2, 5, 6
        module = th.nn.HelixBlock(D, mode=mode, policy=policy, generator=rng)
        x = leaf(rng.standard_normal((B, T, D)), np.float32)
        weights = list(module.parameters())
        if not state:
            return (module(x) ** 2).sum(), [x, *weights]
        h0 = leaf(rng.standard_normal((B, D)), np.float32)
        y, h_T = th.helix_block(
            x, *weights, h0=h0, mode=mode, policy=policy, return_state=True
        )
        return y.sum() + (h_T * h_T).sum(), [x, h0, *weights]

    return build


def language_model():
    rng = np.random.default_rng(4)
    model = th.nn.HelixLM(11, 6, 2, generator=rng)
    tokens = rng.integers(0, 11, (2, 7))
    return model.loss(tokens[:, :-1], tokens[:, 1:]), list(model.parameters())


def shared_leaves():
    x, w = leaf([[1.5, -2.0], [0.1, 3.0]]), leaf([0.3, 0.7])
    y = x * x + x @ x * w
    return (y * y + w).exp().mean() + x.sum(), [x, w]


def hooks():
    x, w = leaf([1.5, -2.0]), leaf([0.3, 0.7])
    y = x * w
    y.register_hook(lambda dy: dy * 3)
    y.node.register_hook(lambda dxs, dys: (dxs[0] * 2, dxs[1]))
    x.register_hook(lambda dx: dx + 1)
    return (y * y).sum(), [x, w]


def results_that_keep_their_gradient():
    x = leaf([1.5, -2.0])
    y = x * x
    y.retain_grad()
    return (y * y + y).sum(), [x, y]


def with_and_without_gradient():
    x, frozen = leaf([1.5, -2.0]), th.Tensor(np.array([3.0, 4.0]))
    unused = leaf([1.0])
    return (th.where(frozen > 3, x * frozen, x)).sum(), [x, frozen, unused]


def an_unused_output():
    x = leaf(np.arange(6.0))
    first, _, last = th.split(x, 2)
    return (first * last).sum(), [x]


def checkpointed():
    x, w = leaf([1.5, -2.0]), leaf([0.3, 0.7])
    return th.checkpoint(lambda x, w: (x * w).exp().tanh(), x, w).sum(), [x, w]


def only_a_leaf():
    x = leaf([2.0])
    return x, [x]


BUILDS = {
    "composed": block("composed"),
    "primitive": block("primitive"),
    "fused": block("fused"),
    "fused keep1": block("fused", "keep1"),
    "fused, state": block("fused", "keep4", state=True),
    "composed, state": block("composed", state=True),
} | {
    build.__name__: build
    for build in (
        language_model,
        shared_leaves,
        hooks,
        results_that_keep_their_gradient,
        with_and_without_gradient,
        an_unused_output,
        checkpointed,
        only_a_leaf,
    )
}


@pytest.fixture(params=BUILDS.values(), ids=BUILDS)
def build(request):
    return request.param


@pytest.mark.parametrize("retain_graph", [False, True])
def test_all_steps_together_are_backward_to_the_bit(build, retain_graph):
    expected, theirs = build()
    got, ours = build()
    for _ in range(2):  # the second time onto the gradients that are there
        expected.backward(retain_graph=retain_graph)
        for step in steps(got, retain_graph=retain_graph):
            assert step.number <= step.count
        assert bits(ours) == bits(theirs)
        assert th.saved_bytes(got) == th.saved_bytes(expected)
        if not retain_graph:
            expected, got = (run_again(build, old) for old in (theirs, ours))


def run_again(build, old):
    """The same function again, on leaves that hold the gradients so far."""
    y, fresh = build()
    for was, now in zip(old, fresh, strict=True):
        if was.is_leaf and was.grad is not None:
            now.grad = th.tensor(was.grad)
    old[:] = fresh
    return y


def test_steps_are_the_nodes_the_latest_first(build):
    y, _ = build()
    nodes = y.node.reachable() if y.node is not None else []
    walk = steps(y)
    assert walk.count == len(nodes)
    assert [step.node for step in walk] == nodes
    assert next(walk, None) is None, "an iterator that has ended stays ended"


@pytest.mark.parametrize("retain_graph", [False, True])
def test_live_bytes_are_what_the_tape_holds_after_the_step(build, retain_graph):
    y, _ = build()
    walk = steps(y, retain_graph=retain_graph)
    live = walk.live_bytes
    assert live == th.saved_bytes(y)
    for step in walk:
        live -= step.freed_bytes
        assert step.live_bytes == live == th.saved_bytes(y)
    if not retain_graph:
        assert live == 0


def test_an_event_a_node_as_in_backward(build):
    expected, _ = build()
    got, _ = build()
    with th.memory.record() as theirs:
        expected.backward()
    with th.memory.record() as ours:
        for _ in steps(got):
            pass
    assert [e[:5] for e in ours.events] == [e[:5] for e in theirs.events]


# --- what a step says


def test_the_cotangents_in_and_out_by_hand():
    # a = 3, b = 2a, c = 3b, y = b + c: an eager visit of b would give 2 instead of 8
    a = leaf(3.0)
    b = a * 2
    c = b * 3
    y = b + c
    seen = []
    for step in steps(y):
        came = [None if d is None else d.value.item() for d in step.came]
        sent = [(s.input, s.to, s.output, s.cotangent.value.item()) for s in step.sent]
        seen.append((step.number, step.node, came, sent))
    assert seen == [
        (1, y.node, [1.0], [(0, b.node, 0, 1.0), (1, c.node, 0, 1.0)]),
        (2, c.node, [1.0], [(0, b.node, 0, 3.0)]),
        (3, b.node, [4.0], [(0, a.edge[0], 0, 8.0)]),
    ]
    assert a.grad.item() == 8


def test_a_square_sends_two_parts_and_says_both_rightly():
    # The leaf keeps the first array and adds the second to it.
    x = leaf([1.0, 5.0])
    (step,) = held(steps(x * x, np.ones(2)))
    assert step == ([[1.0, 5.0], [1.0, 5.0]], [[2.0, 10.0]])


def held(walk):
    for step in walk:
        yield (
            [s.cotangent.value.tolist() for s in step.sent],
            [s.gradient.value.tolist() for s in step.landed],
        )


def test_every_cotangent_is_the_derivative_by_that_result():
    rng = np.random.default_rng(0)
    x, w = leaf(rng.standard_normal((3, 4))), leaf(rng.standard_normal((4, 2)))
    u = x @ w
    v = u.tanh()
    y = (v * u).sum()
    expected = dict(
        zip((v.node, u.node), th.grad(y, [v, u], retain_graph=True), strict=True)
    )
    got = {step.node: step.came[0].value.numpy().copy() for step in steps(y)}
    for node, dy in expected.items():
        np.testing.assert_array_equal(got[node], dy.numpy())


def test_gradients_land_with_the_last_step_and_are_announced_before():
    x, w = leaf([2.0]), leaf([3.0])
    y = x * w  # the last node to be visited
    z = (y * w).sum()
    landed = []
    for step in steps(z):
        for entry in step.landed:
            name = "x" if entry.leaf is x.edge[0] else "w"
            landed.append((step.number, name, entry.gradient.value.item(), entry.complete))
        assert (x.grad is None) == (step.number < step.count)
    assert landed == [(2, "w", 6.0, False), (3, "x", 9.0, True), (3, "w", 12.0, True)]
    assert (x.grad.item(), w.grad.item()) == (9, 12)


def test_what_is_freed_and_what_another_node_still_holds():
    x = leaf(np.ones(4))  # 32 bytes
    w = th.nn.Parameter(np.ones(4))
    y = x.exp()  # saves y
    z = y * y * w  # mul saves y once more, then the product; w is a parameter
    freed = [
        (step.node.op.name, {f.label: f.nbytes for f in step.freed}, step.live_bytes)
        for step in steps(z.sum())
    ]
    assert freed == [
        ("sum", {}, 64),
        ("mul", {"a": 32, "b": 0}, 32),
        ("mul", {"a": 0, "b": 0}, 32),
        ("exp", {"y": 32}, 0),
    ]


def test_retained_graph_frees_nothing():
    x = leaf([1.0])
    y = (x * x).exp().sum()
    assert all(s.freed == () and s.live_bytes == 16 for s in steps(y, retain_graph=True))


def test_cotangents_that_wait_are_counted_once_a_buffer():
    x = leaf(np.ones((2, 3)))
    y = x.exp() + x.tanh()
    waiting = [step.waiting_bytes for step in steps(y, np.ones((2, 3)))]
    # add hands one array to both sides; exp and tanh send theirs to the leaf
    assert waiting == [48, 48, 0]


def test_cotangents_come_past_the_hooks_and_unused_outputs_are_none():
    x = leaf(np.arange(4.0))
    _, second = th.split(x, 2)
    second.register_hook(lambda dy: dy * 5)
    walk = steps(second.sum())
    next(walk)
    step = next(walk)
    assert step.came[0] is None
    assert step.came[1].value.tolist() == [5, 5]


def test_several_outputs_and_cotangents():
    x = leaf([1.0, 2.0])
    for _ in steps([x * 2, x * 3], [[1.0, 1.0], th.tensor([10.0, 10.0])]):
        pass
    assert x.grad.tolist() == [32, 32]


# --- values are there while the step is current


def test_values_go_when_the_sweep_goes_on():
    x = leaf([1.0, 2.0])
    walk = steps((x * x).sum())
    first = next(walk)
    kept = first.came[0]
    assert kept.value.item() == 1
    last = next(walk)
    with pytest.raises(GraphError, match="belongs to a step that is over"):
        _ = kept.value
    assert (kept.shape, str(kept.dtype), kept.nbytes) == ((), "float64", 8)
    assert last.landed[0].gradient.value.tolist() == [2, 4]
    assert next(walk, None) is None
    with pytest.raises(GraphError, match="Copy the value"):
        _ = last.sent[0].cotangent.value


def test_a_list_of_steps_keeps_no_cotangent_alive():
    x = leaf(np.ones(1000))
    alive = []

    def spy(dy):
        alive.append(weakref.ref(dy.data))

    y = (x * 2).exp()
    y.register_hook(spy)
    all_steps = list(steps((y * 3).sum()))
    gc.collect()
    assert len(all_steps) == 4 and alive[0]() is None


def test_what_the_reader_writes_to_a_gradient_does_not_reach_the_step():
    x = leaf([1.0, 2.0])
    walk = steps(x * 3, np.ones(2))
    step = next(walk)
    x.grad.data[:] = 7
    assert step.landed[0].gradient.value.tolist() == [3, 3]
    assert step.sent[0].cotangent.value.tolist() == [3, 3]


# --- left off, or disturbed


def test_left_off_half_way():
    x = leaf(np.ones(4))
    u = x.exp()
    y = u.tanh()
    z = y.sum()
    walk = steps(z)
    next(walk), next(walk)  # sum, tanh
    del walk
    assert x.grad is None, "gradients land together, at the end"
    assert y.node.saved is None and u.node.saved is not None
    assert th.saved_bytes(z) == 32
    with pytest.raises(SavedTensorsFreedError, match="a second sweep reached tanh"):
        z.backward()
    u.backward(np.ones(4))  # what was not visited is whole
    np.testing.assert_array_equal(x.grad.numpy(), np.exp(np.ones(4)))


def test_left_off_with_a_retained_graph():
    x = leaf([1.0, 2.0])
    z = (x * x).sum()
    next(steps(z, retain_graph=True))
    z.backward()
    assert x.grad.tolist() == [2, 4]


def test_dropping_the_iterator_drops_its_cotangents():
    x = leaf(np.ones(1000))
    z = (x.exp() * 2).sum()
    walk = steps(z)
    refs = [weakref.ref(next(walk).sent[0].cotangent.value.data) for _ in range(2)]
    del walk
    assert [r() for r in refs] == [None, None]


def test_a_sweep_in_between_is_noticed():
    x = leaf([1.0, 2.0])
    z = (x.exp() * 2).sum()
    walk = steps(z)
    next(walk)
    z.backward()
    before = x.grad.tolist()
    with pytest.raises(SavedTensorsFreedError, match="a second sweep reached mul"):
        next(walk)
    assert x.grad.tolist() == before
    assert next(walk, "over") == "over"


def test_a_write_in_between_is_noticed():
    x = leaf([1.0, 2.0])
    z = (x * x).sum()
    walk = steps(z)
    next(walk)
    with th.no_grad():
        x += 1
    with pytest.raises(InPlaceModificationError, match=r"mul .* saved 'a'"):
        next(walk)
    assert x.grad is None and next(walk, "over") == "over"


def test_an_error_in_a_hook_changes_no_gradient():
    x, w = leaf([1.0]), leaf([1.0])
    w.register_hook(lambda dw: dw.astype("float32"))
    walk = steps((x * w).sum())
    next(walk)
    with pytest.raises(GraphError, match="a hook on a leaf's gradient"):
        next(walk)
    assert x.grad is None and w.grad is None


# --- refused as backward() refuses


def freed():
    x = leaf([1.0])
    y = (x * x).sum()
    y.backward()
    return y, None


def written():
    x = leaf([1.0])
    y = (x * x).sum()
    with th.no_grad():
        x += 1
    return y, None


BAD = {
    "freed": (SavedTensorsFreedError, freed),
    "written in place": (InPlaceModificationError, written),
    "no graph": (GraphError, lambda: (th.ones(1), None)),
    "not one element": (NonScalarBackwardError, lambda: (leaf([1.0, 2.0]) * 2, None)),
    "wrong shape": (ShapeError, lambda: (leaf([1.0, 2.0]) * 2, np.ones(3))),
    "no Tensor": (DTypeError, lambda: (np.ones(1), None)),
    "too many cotangents": (GraphError, lambda: ([leaf([1.0])], [[1.0], [1.0]])),
}


@pytest.mark.parametrize("kind, make", BAD.values(), ids=BAD)
def test_refused_at_the_call_with_the_words_of_backward(kind, make):
    y, dy = make()
    with pytest.raises(kind) as theirs:
        th.backward(y, dy)
    with pytest.raises(kind) as ours:
        steps(y, dy)
    assert type(ours.value) is type(theirs.value)
    assert str(ours.value) == str(theirs.value)


def test_a_vjp_that_is_not_finite_is_named_as_in_backward():
    x = leaf([0.0])
    with th.detect_anomaly():
        walk = steps(x.sqrt().sum())
        next(walk)
        with (
            np.errstate(divide="ignore"),
            pytest.raises(GraphError, match="from the vjp of sqrt"),
        ):
            next(walk)


def test_ten_thousand_nodes():
    x = leaf([1.0])
    y = x
    for _ in range(10_000):
        y = y + 1.0
    walk = steps(y)
    assert operator.countOf((s.node.op.name for s in walk), "add") == 10_000
    assert x.grad.item() == 1


def test_each_step_looks_at_its_own_cotangents_alone(monkeypatch):
    """Many wait at once: looking at all of them in every step would be quadratic."""
    looked = []
    storage = th.memory.storage
    w = leaf([1.0])
    terms = [w * float(i) for i in range(512)]
    while len(terms) > 1:
        terms = [a + b for a, b in zip(terms[::2], terms[1::2], strict=True)]
    walk = steps(terms[0])
    monkeypatch.setattr(
        th.memory, "storage", lambda array: looked.append(1) or storage(array)
    )
    waiting = [step.waiting_bytes for step in walk]
    assert len(looked) < 10 * walk.count
    assert waiting[510] == 8  # the adds hand on one array
    assert waiting[-1] == 0 and w.grad.item() == 511 * 256


def test_waiting_bytes_are_what_a_look_at_all_that_waits_finds(build):
    y, _ = build()
    walk = steps(y, np.ones(y.shape, y.dtype))
    sweep = walk._sweep
    for step in walk:
        owners = {
            id(owner := th.memory.storage(s.value)): owner.nbytes
            for sums in sweep.pending.values()
            for s in sums
            if s is not None
        }
        assert step.waiting_bytes == sum(owners.values())


@pytest.mark.parametrize("fails", [False, True])
def test_at_the_end_and_after_an_error_the_graph_is_free(fails):
    x = leaf([1.0, 2.0])
    y = (x * x).exp().sum()
    if fails:
        y.node.register_hook(lambda dxs, dys: 1 / 0)
    node, walk = weakref.ref(y.node), steps(y)
    if fails:
        with pytest.raises(ZeroDivisionError):
            next(walk)
    else:
        assert sum(step.freed_bytes for step in walk) == 32
    assert next(walk, None) is None
    del y
    gc.collect()
    assert node() is None
