"""SGD and AdamW: against written-out values, golden files and PyTorch."""

import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import tinygrad_helix as th
from tinygrad_helix.errors import (
    DTypeError,
    GraphError,
    HelixError,
    InPlaceModificationError,
)
from tinygrad_helix.nn import Linear, Module
from tinygrad_helix.ops.operands import PIECE
from tinygrad_helix.optim import SGD, AdamW, clip_grad_norm_

GOLDEN = Path(__file__).parent / "golden" / "optim"


def leaf(values, grad=None, dtype="float64"):
    p = th.tensor(values, dtype=dtype, requires_grad=True)
    if grad is not None:
        p.grad = th.tensor(grad, dtype=dtype)
    return p


def steps(optimizer, p, gradients):
    """The values of p after a step with each of the gradients."""
    trajectory = []
    for g in gradients:
        p.grad = th.tensor(g, dtype=p.dtype)
        optimizer.step()
        trajectory.append(p.tolist())
    return trajectory


# --- the rules


def test_adamw_decays_the_old_weight():  # O47
    p = leaf([1.0, -2.0])
    rule = AdamW([p], lr=0.1, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
    one, two, three = steps(rule, p, [[1.0, 2.0], [0.5, -1.0], [0.0, 0.0]])
    np.testing.assert_allclose(one, [0.890000001, -2.0799999995], rtol=0, atol=5e-11)
    np.testing.assert_allclose(two, [0.7878820383, -2.0858337033], rtol=0, atol=5e-11)
    np.testing.assert_allclose(three, [0.7079454628, -2.0855632965], rtol=0, atol=5e-11)


def test_adamw_eps_is_outside_the_bias_correction():  # O48
    p = leaf([1.0])
    one, two = steps(AdamW([p], lr=0.1, eps=0.1, weight_decay=0.0), p, [[0.3], [0.2]])
    np.testing.assert_allclose(one, [0.925], rtol=0, atol=1e-15)
    np.testing.assert_allclose(two, [0.8553043144], rtol=0, atol=5e-11)


@pytest.mark.parametrize("name", ["adamw_5steps", "adamw_5steps_nodecay_group"])
def test_adamw_golden(name):
    golden = np.load(GOLDEN / f"{name}.npz")
    ps = {n: leaf(golden[f"p0_{n}"]) for n in "wbs"}
    groups = [
        {"params": [p], "weight_decay": float(golden[f"decay_{n}"])} for n, p in ps.items()
    ]
    rule = AdamW(
        groups,
        lr=float(golden["lr"]),
        betas=(float(golden["beta1"]), float(golden["beta2"])),
        eps=float(golden["eps"]),
    )
    for t in range(1, 6):
        for n, p in ps.items():
            p.grad = th.tensor(golden[f"g{t}_{n}"])
        rule.step()
        state = rule.state_dict()["state"]
        for i, (n, p) in enumerate(ps.items()):
            assert state[i]["step"] == t
            for got, key in ((p, "p"), (state[i]["m"], "m"), (state[i]["v"], "v")):
                due = golden[f"{key}{t}_{n}"]
                np.testing.assert_allclose(got.data, due, rtol=1e-13, atol=1e-15)


def test_sgd_decay_never_enters_the_gradient():
    p = leaf([2.0], grad=[1.0])
    SGD([p], lr=0.25, weight_decay=0.5).step()
    assert p.item() == 2.0 * (1 - 0.25 * 0.5) - 0.25
    assert p.grad.item() == 1.0


@pytest.mark.parametrize("rule", [SGD, AdamW])
def test_gradient_none_is_left_alone(rule):  # O49
    a, b = leaf([1.0]), leaf([1.0], grad=[0.0])
    optimizer = rule([a, b], lr=0.1, weight_decay=0.5)
    optimizer.step()
    assert a.item() == 1.0
    assert b.item() == 0.95
    assert list(optimizer.state_dict()["state"]) == [1]
    optimizer.zero_grad()
    assert a.grad is None and b.grad is None
    before = b.item()
    optimizer.step()
    assert b.item() == before
    (a * b).backward()
    assert a.grad.item() == 0.95 and b.grad.item() == 1.0


def test_each_parameter_counts_its_own_steps():
    late = leaf([1.0])
    early = leaf([1.0])
    optimizer = AdamW([early, late], lr=0.1, weight_decay=0.0)
    for t in range(3):
        early.grad = th.tensor([0.3], dtype="float64")
        late.grad = None if t < 2 else th.tensor([0.3], dtype="float64")
        optimizer.step()
    np.testing.assert_allclose(late.item(), 0.9, atol=1e-7)  # a first step is lr long
    assert [s["step"] for s in optimizer.state_dict()["state"].values()] == [3, 1]


def test_groups_have_their_own_hyperparameters():
    a, b, c = leaf([1.0], [1.0]), leaf([1.0], [1.0]), leaf([1.0], [1.0])
    groups = [{"params": [a]}, {"params": iter([b, c]), "lr": 0.5, "weight_decay": 1.0}]
    optimizer = SGD(groups, lr=0.25)
    optimizer.step()
    assert [p.item() for p in (a, b, c)] == [0.75, 0.0, 0.0]
    optimizer.param_groups[0]["lr"] = 0.5
    optimizer.step()
    assert a.item() == 0.25


class Shared(Module):
    def __init__(self):
        self.l1, self.l2 = Linear(1, 1, bias=False), Linear(1, 1, bias=False)
        self.l2.weight = self.l1.weight


def test_shared_weight_is_stepped_once():  # O50
    model = Shared()
    (w,) = model.parameters()
    with th.no_grad():
        w.copy_(th.tensor([[1.0]]))
    w.grad = th.tensor([[1.0]])
    SGD(model.parameters(), lr=0.1).step()
    assert w.item() == np.float32(1) - np.float32(0.1)
    with pytest.raises(GraphError, match="parameters 0 and 1 are one Tensor"):
        SGD([w, w], lr=0.1)
    with pytest.raises(GraphError, match="0 and 1"):
        SGD([{"params": [w]}, {"params": [w]}], lr=0.1)
    with pytest.raises(GraphError, match="share memory"):
        SGD([w, th.Tensor(w.data, requires_grad=True)], lr=0.1)


def test_two_views_of_one_buffer_are_two_parameters():
    flat = np.ones(6)
    a = th.Tensor(flat[:3], requires_grad=True)
    b = th.Tensor(flat[3:], requires_grad=True)
    optimizer = SGD([a, b], lr=1.0)
    a.grad = th.ones(3, dtype="float64")
    optimizer.step()
    assert flat.tolist() == [0, 0, 0, 1, 1, 1]


# --- how a step works


@pytest.mark.parametrize("layout", ["rows", "vector", "wide row", "transposed", "scalar"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pieces_change_no_bit(layout, dtype):
    rng = np.random.default_rng(0)
    shape = {"vector": (3 * PIECE + 7,), "wide row": (2, 2 * PIECE), "scalar": ()}
    values = rng.standard_normal(shape.get(layout, (700, 300))).astype(dtype)
    grads = rng.standard_normal((3, *values.shape)).astype(dtype)
    if layout == "transposed":
        values, grads = values.T, grads.transpose(0, 2, 1)
    p = th.Tensor(values.copy(order="K"), requires_grad=True)
    q = th.Tensor(values.copy(order="K"), requires_grad=True)
    optimizer, plain = AdamW([p], lr=0.1, weight_decay=0.1), SGD([q], lr=0.1)
    w, u, m, v = values.copy(), values.copy(), np.zeros_like(values), np.zeros_like(values)
    for t, g in enumerate(grads, 1):
        p.grad, q.grad = th.Tensor(g), th.Tensor(g.copy())
        optimizer.step()
        plain.step()
        m = m * 0.9 + g * (1 - 0.9)
        v = v * 0.999 + g * g * (1 - 0.999)
        step = m / (np.sqrt(v * (1 / (1 - 0.999**t))) + 1e-8) * (0.1 / (1 - 0.9**t))
        w = w * (1 - 0.1 * 0.1) - step
        u = u - g * 0.1
    assert np.array_equal(p.data, w)
    assert np.array_equal(q.data, u)


def test_a_step_makes_no_temporary_of_the_parameters_size():
    p = leaf(np.ones((4096, 1024), np.float32), dtype="float32")  # 16 MiB
    optimizer = AdamW([p])
    p.grad = th.ones(4096, 1024)
    optimizer.step()  # makes m and v
    tracemalloc.start()
    optimizer.step()
    clip_grad_norm_([p], 1.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * 8 * PIECE  # two scratch arrays, of float64 in clipping


def test_a_step_bumps_the_version():
    p = leaf([1.0], grad=[1.0])
    y = p * p
    SGD([p], lr=0.1).step()
    assert p.version == 1 and p.is_leaf and p.requires_grad
    with pytest.raises(InPlaceModificationError):
        y.backward()


def test_16_bit_parameters_step_in_float32():
    p = leaf([1.0], dtype="float16")
    optimizer = AdamW([p], lr=0.01, eps=1e-8, weight_decay=0.1)
    for _ in range(10):
        p.grad = th.tensor([1e-4], dtype="float16")  # its square is 0 in float16
        optimizer.step()
    assert optimizer.state_dict()["state"][0]["v"].dtype == np.float32
    assert p.dtype == np.float16
    np.testing.assert_allclose(p.item(), 0.891, atol=2e-3)


# --- state


def trained(seed, n):
    rng = np.random.default_rng(seed)
    ps = [leaf(rng.standard_normal((3, 2))), leaf(rng.standard_normal(4))]
    optimizer = AdamW([{"params": ps[:1], "lr": 0.1}, {"params": ps[1:]}], lr=0.2)
    gradients = [[rng.standard_normal(p.shape) for p in ps] for _ in range(6)]
    train(optimizer, ps, gradients[:n])
    return optimizer, ps, gradients


def train(optimizer, ps, gradients):
    for step in gradients:
        for p, g in zip(ps, step, strict=True):
            p.grad = th.tensor(g)
        optimizer.step()


def test_state_dict_resumes_bit_for_bit():
    _, whole, _ = trained(0, 6)
    first, ps, gradients = trained(0, 3)
    state = first.state_dict()
    train(first, ps, gradients[3:])  # the snapshot does not follow
    again = [leaf(p.data) for p in trained(0, 3)[1]]
    second = AdamW([{"params": again[:1]}, {"params": again[1:]}])
    second.load_state_dict(state)
    train(second, again, gradients[3:])
    for p, q in zip(whole, again, strict=True):
        assert np.array_equal(p.data, q.data)
    assert second.param_groups[0]["lr"] == 0.1
    assert state["state"][0]["step"] == 3


def bad_states():
    def change(path, value):
        def apply(state):
            *parents, last = path
            for key in parents:
                state = state[key]
            state[last] = value

        return apply

    def drop_group(state):
        del state["param_groups"][1]

    yield "no dict", lambda s: s.clear(), "param_groups"
    yield "group missing", drop_group, "numbers of parameters"
    yield "other keys", change(("param_groups", 0, "beta"), 0.9), "other keys"
    yield "shape", change(("state", 0, "m"), np.zeros((2, 3))), r"m of 0 is \(2, 3\)"
    yield "dtype", change(("state", 1, "v"), np.zeros(4, "float32")), "v of 1 is"
    yield "step", change(("state", 1, "step"), 0), "step 0"
    yield "number", change(("state", 7), {}), "state of parameter 7"
    yield "names", change(("state", 1), {"step": 1}), "parameter 1 has"
    yield "lr", change(("param_groups", 0, "lr"), -1.0), "lr=-1.0"


@pytest.mark.parametrize(("fault", "match"), [p[1:] for p in bad_states()])
def test_a_bad_state_changes_nothing(fault, match):
    optimizer, _, _ = trained(0, 2)
    before = repr(optimizer.state_dict())
    state = trained(1, 4)[0].state_dict()
    fault(state)
    with pytest.raises(HelixError, match=match):
        optimizer.load_state_dict(state)
    assert repr(optimizer.state_dict()) == before


# --- what is refused


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda p: SGD([p], lr=-0.1), HelixError, "lr=-0.1"),
        (lambda p: SGD([p], lr=math.nan), HelixError, "lr=nan"),
        (lambda p: SGD([p], lr=math.inf), HelixError, "finite"),
        (lambda p: SGD([p], lr="0.1"), DTypeError, "lr; got str"),
        (lambda p: SGD([p], lr=0.1, weight_decay=-1), HelixError, "weight_decay"),
        (lambda p: AdamW([p], betas=(0.9, 1.0)), HelixError, "below 1"),
        (lambda p: AdamW([p], betas=0.9), DTypeError, "pair"),
        (lambda p: AdamW([p], eps=-1e-8), HelixError, "eps"),
        (lambda p: SGD([], lr=0.1), HelixError, "no parameters"),
        (lambda p: SGD(p, lr=0.1), DTypeError, "iterable"),
        (lambda p: SGD([p.data], lr=0.1), DTypeError, "ndarray"),
        (lambda p: SGD([p * 2], lr=0.1), GraphError, "mul"),
        (lambda p: SGD([th.arange(3)], lr=0.1), DTypeError, "int64"),
        (lambda p: SGD([{"params": [p], "beta": 0.9}], lr=0.1), HelixError, "ms, beta"),
        (lambda p: SGD([{"lr": 0.9}], lr=0.1), HelixError, "params"),
    ],
)
def test_bad_arguments(make, error, match):
    with pytest.raises(error, match=match):
        make(leaf([1.0]))


def test_a_failed_step_changes_nothing():
    a, b = leaf([1.0], [1.0]), leaf([1.0], [1.0])
    optimizer = SGD([a, b], lr=0.1)
    optimizer.param_groups[0]["lr"] = math.nan
    with pytest.raises(HelixError, match="lr=nan"):
        optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.1
    b.data.flags.writeable = False
    with pytest.raises(GraphError, match=r"parameter 1 .* read-only"):
        optimizer.step()
    assert a.item() == b.item() == 1.0


def test_a_model_converted_after_its_optimizer_was_made():
    layer = Linear(2, 2, bias=False)
    optimizer = AdamW(layer.parameters())
    layer.weight.grad = th.ones(2, 2)
    optimizer.step()
    layer.astype("float64")
    assert layer.weight.grad.dtype == np.float64
    with pytest.raises(DTypeError, match="has become float64"):
        optimizer.step()


# --- PyTorch


def random_run(dtype):
    """Start values and 20 steps of gradients, None now and then."""
    rng = np.random.default_rng(7)
    shapes = [(3, 5), (4,), ()]
    starts = [rng.standard_normal(s).astype(dtype) for s in shapes]
    gradients = [
        [
            None if rng.random() < 0.2 else (rng.standard_normal(s) * 3).astype(dtype)
            for s in shapes
        ]
        for _ in range(20)
    ]
    return starts, gradients


@pytest.mark.oracle
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-13), ("float32", 1e-5)])
@pytest.mark.parametrize("rule", ["SGD", "AdamW"])
def test_trajectories_of_pytorch(rule, dtype, tolerance):
    torch = pytest.importorskip("torch")
    starts, gradients = random_run(dtype)
    ours = [th.tensor(s, requires_grad=True) for s in starts]
    theirs = [torch.tensor(s, requires_grad=True) for s in starts]

    def make(module, ps):
        groups = [{"params": ps[:1]}, {"params": ps[1:], "lr": 0.02, "weight_decay": 0.3}]
        # Without momentum PyTorch's coupled decay of SGD is the decoupled one.
        settings = {"lr": 0.1, "weight_decay": 0.05}
        settings |= {"betas": (0.8, 0.95), "eps": 1e-3} if rule == "AdamW" else {}
        return getattr(module, rule)(groups, **settings)

    optimizer, oracle = make(th.optim, ours), make(torch.optim, theirs)
    for step in gradients:
        for p, q, g in zip(ours, theirs, step, strict=True):
            p.grad = None if g is None else th.tensor(g)
            q.grad = None if g is None else torch.tensor(g)
        norm = clip_grad_norm_(ours, 4.0)
        due = torch.nn.utils.clip_grad_norm_(theirs, 4.0)
        np.testing.assert_allclose(norm, due.item(), rtol=tolerance)
        for p, q in zip(ours, theirs, strict=True):
            # PyTorch divides by the norm + 1e-6.
            if q.grad is not None:
                np.testing.assert_allclose(p.grad.data, q.grad.numpy(), rtol=2e-6)
                q.grad = torch.tensor(p.grad.data.copy())
        optimizer.step()
        oracle.step()
        for p, q in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(
                p.data, q.detach().numpy(), rtol=tolerance, atol=tolerance
            )


# --- groups that change


@pytest.mark.parametrize("make", [lambda p: SGD(p, 0.1, 0.9), lambda p: AdamW(p, lr=0.1)])
def test_a_group_added_later_steps_as_its_own_optimizer(make):
    p, q = leaf([1.0, 2.0]), leaf([3.0])
    alone_p, alone_q = leaf([1.0, 2.0]), leaf([3.0])
    both, first, second = make([p]), make([alone_p]), make([alone_q])
    for step in range(4):
        if step == 2:
            both.add_param_group({"params": [q]})
        for x in (p, q, alone_p, alone_q):
            x.grad = th.ones_like(x) * (step + 1)
        both.step()
        first.step()
        if step >= 2:
            second.step()
    assert p.tolist() == alone_p.tolist() and q.tolist() == alone_q.tolist()
    state = both.state_dict()
    assert [state["state"][i]["step"] for i in (0, 1)] == [4, 2]
    both.load_state_dict(state)


@pytest.mark.parametrize(
    ("group", "error", "match"),
    [
        (3, DTypeError, "add_param_group takes a dict with params; got int"),
        ({"lr": 1.0}, HelixError, "a group has the keys params"),
        ({"params": [th.ones(1)], "foo": 1}, HelixError, "a group has the keys params"),
        ({"params": 3}, DTypeError, "takes an iterable of Tensors"),
        ({"params": [th.ones(1)], "lr": -1.0}, HelixError, "lr=-1.0"),
        ({"params": [th.tensor([1])]}, DTypeError, r"parameter 1 \(1,\) is int64"),
    ],
)
def test_a_bad_group_changes_nothing(group, error, match):
    p = leaf([1.0], [1.0])
    optimizer = SGD([p], lr=0.5)
    with pytest.raises(error, match=match):
        optimizer.add_param_group(group)
    with pytest.raises(GraphError, match="stepped twice"):
        optimizer.add_param_group({"params": [p]})
    assert len(optimizer.param_groups) == 1
    optimizer.step()
    assert p.tolist() == [0.5]


def test_other_parameters_in_the_groups_are_refused():
    def appended(o, q):
        o.param_groups.append({**o.param_groups[0], "params": [q]})

    def longer(o, q):
        o.param_groups[0]["params"].append(q)

    def replaced(o, q):
        o.param_groups[0]["params"][0] = q

    def twice(o, q):
        o.param_groups[0]["params"].append(o.param_groups[0]["params"][0])

    def fewer(o, q):
        o.param_groups[0]["params"].pop()

    for edit in (appended, longer, replaced, twice, fewer):
        p, r, q = leaf([1.0], [1.0]), leaf([1.0], [1.0]), leaf([5.0], [1.0])
        optimizer = AdamW([p, r], lr=0.1)
        optimizer.step()
        state, before = optimizer.state_dict(), [p.tolist(), r.tolist()]
        edit(optimizer, q)
        for call in (
            optimizer.step,
            optimizer.state_dict,
            lambda: optimizer.load_state_dict(state),  # noqa: B023
            lambda: optimizer.add_param_group({"params": [leaf([1.0])]}),  # noqa: B023
        ):
            with pytest.raises(GraphError, match=r"groups hold . parameters .*add_par"):
                call()
        assert [p.tolist(), r.tolist()] == before and q.tolist() == [5]
