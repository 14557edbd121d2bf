"""Adam, and SGD with momentum: by hand, against PyTorch, and what each keeps."""

import copy
import math
import pickle

import numpy as np
import pytest

import tinygrad_helix as th
from tinygrad_helix.errors import DTypeError, HelixError, ShapeError
from tinygrad_helix.nn import Linear
from tinygrad_helix.ops.operands import PIECE
from tinygrad_helix.optim import SGD, Adam, AdamW, Optimizer


def leaf(values, dtype="float64"):
    return th.tensor(values, dtype=dtype, requires_grad=True)


def train(optimizer, parameters, gradients):
    """A step with each row of `gradients`, which holds one (or None) a parameter."""
    for row in gradients:
        for p, g in zip(parameters, row, strict=True):
            p.grad = None if g is None else th.tensor(g, dtype=p.dtype)
        optimizer.step()


# --- by hand


def test_momentum_by_hand():
    p = leaf([1.0])
    optimizer = SGD([p], lr=0.5, momentum=0.5)
    train(optimizer, [p], [[[1.0]], [[1.0]]])
    assert p.item() == 1 - 0.5 * 1 - 0.5 * 1.5  # m is 1, then 1.5
    train(optimizer, [p], [[[0.0]]])
    assert p.item() == -0.25 - 0.5 * 0.75  # a gradient of 0 is a step; m goes on
    assert optimizer.state_dict()["state"][0]["m"].tolist() == [0.75]


def test_nesterov_by_hand():
    p = leaf([1.0])
    train(SGD([p], lr=0.5, momentum=0.5, nesterov=True), [p], [[[1.0]], [[1.0]]])
    assert p.item() == 1 - 0.5 * (1 + 0.5) - 0.5 * (1 + 0.75)


def test_decay_of_sgd_never_enters_the_momentum():
    p = leaf([2.0])
    optimizer = SGD([p], lr=0.25, momentum=0.5, weight_decay=0.5)
    train(optimizer, [p], [[[0.0]], [[0.0]]])
    assert p.item() == 2.0 * 0.875**2
    assert optimizer.state_dict()["state"][0]["m"].tolist() == [0.0]


def test_momentum_does_not_move_a_parameter_without_a_gradient():
    # https://github.com/KellerJordan/Muon/issues/54
    p, q = leaf([1.0]), leaf([1.0])
    optimizer = SGD([p, q], lr=0.5, momentum=0.5)
    train(optimizer, [p, q], [[[1.0], [1.0]], [None, [1.0]]])
    assert p.item() == 0.5 and q.item() == -0.25
    assert optimizer.state_dict()["state"][0]["step"] == 1


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_adam_is_adamw_without_decay(dtype):
    rng = np.random.default_rng(0)
    gradients = [[rng.standard_normal((4, 3))] for _ in range(5)]
    p, q = (leaf(np.ones((4, 3)), dtype) for _ in range(2))
    train(Adam([p], lr=0.1), [p], gradients)
    train(AdamW([q], lr=0.1, weight_decay=0.0), [q], gradients)
    assert np.array_equal(p.data, q.data) and p.dtype == dtype
    assert not np.array_equal(p.data, np.ones((4, 3)))


def test_16_bit_momentum_is_kept_in_float32():
    p = leaf([1.0], dtype="float16")
    optimizer = SGD([p], lr=1.0, momentum=0.9)
    train(optimizer, [p], [[[1e-4]]] * 20)
    m = optimizer.state_dict()["state"][0]["m"]
    assert m.dtype == np.float32
    want = float(np.float16(1e-4)) * (1 - 0.9**20) / (1 - 0.9)
    np.testing.assert_allclose(m.data, [want], rtol=1e-5)


@pytest.mark.parametrize("nesterov", [False, True])
def test_pieces_change_no_bit(nesterov):
    rng = np.random.default_rng(0)
    values = rng.standard_normal((700, 300))
    assert values.size > 2 * PIECE
    gradients = rng.standard_normal((3, 700, 300))
    p = leaf(values)
    w, m = values.copy(), np.zeros_like(values)
    optimizer = SGD([p], lr=0.1, momentum=0.9, weight_decay=0.5, nesterov=nesterov)
    train(optimizer, [p], [[g] for g in gradients])
    for g in gradients:
        m = m * 0.9 + g
        w = w * (1 - 0.1 * 0.5) - (g + 0.9 * m if nesterov else m) * 0.1
    assert np.array_equal(p.data, w)


# --- PyTorch


@pytest.mark.oracle
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-13), ("float32", 2e-5)])
@pytest.mark.parametrize(
    ("rule", "settings"),
    [
        ("SGD", {"lr": 0.05, "momentum": 0.9}),
        ("SGD", {"lr": 0.05, "momentum": 0.7, "nesterov": True}),
        ("Adam", {"lr": 0.05}),
        ("Adam", {"lr": 0.05, "betas": (0.5, 0.8), "eps": 1e-2}),
    ],
)
def test_trajectories_of_pytorch(rule, settings, dtype, tolerance):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    starts = [rng.standard_normal(s).astype(dtype) for s in [(3, 5), (4,), ()]]
    ours = [th.tensor(s, requires_grad=True) for s in starts]
    theirs = [torch.tensor(s, requires_grad=True) for s in starts]

    def groups(ps):
        return [{"params": ps[:1]}, {"params": ps[1:], "lr": 0.02}]

    optimizer = getattr(th.optim, rule)(groups(ours), **settings)
    oracle = getattr(torch.optim, rule)(groups(theirs), **settings)
    for _ in range(20):
        for p, q in zip(ours, theirs, strict=True):
            g = (rng.standard_normal(p.shape) * 3).astype(dtype)
            missing = rng.random() < 0.2
            p.grad = None if missing else th.tensor(g)
            q.grad = None if missing else torch.tensor(g)
        optimizer.step()
        oracle.step()
        for p, q in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(
                p.data, q.detach().numpy(), rtol=tolerance, atol=tolerance
            )


# --- state


RULES = {
    "SGD": lambda ps: SGD(ps, lr=0.1),
    "momentum": lambda ps: SGD(ps, lr=0.1, momentum=0.9, weight_decay=0.1),
    "nesterov": lambda ps: SGD(ps, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda ps: Adam(ps, lr=0.1),
    "AdamW": lambda ps: AdamW(ps, lr=0.1, weight_decay=0.5),
}
KEEPS = {"SGD": "", "momentum": "m", "nesterov": "m", "Adam": "mv", "AdamW": "mv"}


def half_way(rule):
    rng = np.random.default_rng(1)
    ps = [leaf(rng.standard_normal((3, 2))), leaf(rng.standard_normal(4))]
    gradients = [[rng.standard_normal(p.shape) for p in ps] for _ in range(6)]
    optimizer = RULES[rule](ps)
    train(optimizer, ps, gradients[:3])
    return optimizer, ps, gradients[3:]


@pytest.mark.parametrize("rule", RULES)
def test_state_dict_resumes_bit_for_bit(rule):
    first, ps, gradients = half_way(rule)
    state = first.state_dict()
    assert all("".join(sorted(s.keys() - {"step"})) == KEEPS[rule]
               for s in state["state"].values())  # fmt: skip
    again = [leaf(p.data) for p in ps]
    train(first, ps, gradients)
    second = RULES[rule](again)
    second.load_state_dict(state)
    train(second, again, gradients)
    for p, q in zip(ps, again, strict=True):
        assert np.array_equal(p.data, q.data)


@pytest.mark.parametrize(
    "twin", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copy", "pickle"]
)
@pytest.mark.parametrize("rule", RULES)
def test_a_copied_optimizer_goes_on_alone(rule, twin):
    first, ps, gradients = half_way(rule)
    before = [p.data.copy() for p in ps]
    second, again = twin((first, ps))
    train(second, again, gradients)  # it steps the copies, from copies of the state
    assert all(np.array_equal(p.data, b) for p, b in zip(ps, before, strict=True))
    train(first, ps, gradients)
    for p, q in zip(ps, again, strict=True):
        assert np.array_equal(p.data, q.data)


def test_a_copied_model_and_its_optimizer_stay_together():
    model = Linear(2, 3)
    pair = copy.deepcopy((model, SGD(model.parameters(), lr=0.1, momentum=0.9)))
    assert pair[1].param_groups[0]["params"][0] is pair[0].weight
    assert pair[0].weight is not model.weight


def test_momentum_may_be_switched_between_steps():
    p = leaf([1.0])
    optimizer = SGD([p], lr=0.5)
    train(optimizer, [p], [[[1.0]]])
    optimizer.param_groups[0]["momentum"] = 0.5
    halfway = optimizer.state_dict()
    assert halfway["state"][0]["m"].tolist() == [0.0]  # what the next step begins with
    train(optimizer, [p], [[[1.0]], [[1.0]]])
    assert p.item() == 1 - 0.5 * (1 + 1 + 1.5)
    optimizer.param_groups[0]["momentum"] = 0.0
    assert list(optimizer.state_dict()["state"][0]) == ["step"]
    train(optimizer, [p], [[[1.0]]])
    optimizer.param_groups[0]["momentum"] = 0.5
    train(optimizer, [p], [[[0.0]]])
    assert p.item() == -1.25  # no momentum of the time before

    again = SGD([leaf([1.0])], lr=0.1)
    again.load_state_dict(halfway)
    assert again.param_groups[0]["momentum"] == 0.5
    assert again.state_dict()["state"][0]["m"].tolist() == [0.0]


def test_a_state_of_another_rule_is_refused():
    optimizer, _, _ = half_way("momentum")
    plain, _, _ = half_way("SGD")
    before = repr(optimizer.state_dict())
    state = plain.state_dict()
    state["param_groups"][0]["momentum"] = 0.9
    with pytest.raises(
        ShapeError, match=r"parameter 0 has \['step'\], due \['step', 'm'\]"
    ):
        optimizer.load_state_dict(state)
    with pytest.raises(ShapeError, match="other keys"):
        optimizer.load_state_dict(half_way("Adam")[0].state_dict())
    assert repr(optimizer.state_dict()) == before


def test_a_rule_of_ones_own():
    class SignSGD(Optimizer):
        def __init__(self, parameters, lr):
            super().__init__(parameters, {"lr": lr})

        def _check(self, group):
            pass

        def _state_names(self, group):
            return ()

        def _update(self, p, g, state, group):
            p -= group["lr"] * np.sign(g)

    p = leaf([1.0, 2.0])
    train(SignSGD([p], lr=0.5), [p], [[[3.0, -4.0]]])
    assert p.tolist() == [0.5, 2.5] and p.version == 1
    with pytest.raises(TypeError, match="abstract"):
        Optimizer([p], {})  # type: ignore[abstract]


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda p: SGD([p], lr=0.1, momentum=1.0), HelixError, "momentum=1.0.*below 1"),
        (lambda p: SGD([p], lr=0.1, momentum=-0.1), HelixError, "momentum=-0.1"),
        (lambda p: SGD([p], lr=0.1, momentum=math.nan), HelixError, "momentum=nan"),
        (lambda p: SGD([p], lr=0.1, momentum=True), DTypeError, "momentum; got bool"),
        (lambda p: SGD([p], lr=0.1, nesterov=True), HelixError, "momentum=0.0"),
        (lambda p: SGD([p], lr=0.1, momentum=0.9, nesterov=1), DTypeError, "a bool"),
        (lambda p: Adam([p], betas=(0.9, 1.0)), HelixError, "Adam got betas=1.0"),
        (lambda p: Adam([p], eps=-1.0), HelixError, "Adam got eps"),
        (lambda p: Adam([p], lr=math.inf), HelixError, "Adam got lr"),
        (lambda p: Adam([p], betas=0.9), DTypeError, "Adam takes a pair"),
        (
            lambda p: Adam([{"params": [p], "weight_decay": 0.1}]),
            HelixError,
            "Adam: a group",
        ),
    ],
)
def test_bad_arguments(make, error, match):
    with pytest.raises(error, match=match):
        make(leaf([1.0]))
