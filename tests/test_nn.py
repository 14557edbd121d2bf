"""Parameter, Module and layers."""

import copy
import pickle

import numpy as np
import pytest

import tinygrad_helix as th
from tinygrad_helix.errors import DTypeError, GraphError, HelixError, ShapeError
from tinygrad_helix.nn import Embedding, Linear, Module, Parameter, RMSNorm

RNG = np.random.default_rng(0)


class Net(Module):
    """Linear layers in an attribute and a list; the last shares its weight."""

    def __init__(self, dtype="float32"):
        self.first = Linear(3, 4, dtype=dtype)
        self.layers = [Linear(4, 4, dtype=dtype) for _ in range(2)]
        self.scale = Parameter(np.ones(4, dtype))
        self.last = Linear(4, 4, dtype=dtype)
        self.last.weight = self.layers[0].weight

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.last(x * self.scale)


NAMES = [
    "scale",
    "first.weight",
    "first.bias",
    "layers.0.weight",
    "layers.0.bias",
    "layers.1.weight",
    "layers.1.bias",
    "last.bias",
]


# --- Parameter


def test_parameter_is_a_leaf_that_counts_as_a_parameter():
    array = np.ones(3)
    p = Parameter(array)
    assert p.data is array and p.requires_grad and p.is_leaf
    assert th.memory.is_parameter(array)
    assert type(p * 2) is th.Tensor
    assert th.saved_bytes((p * p).sum()) == 0
    assert not Parameter(array.copy(), requires_grad=False).requires_grad
    with pytest.raises(DTypeError):
        Parameter([1, 2])


def test_parameter_is_written_like_a_tensor():
    lines = repr(Parameter(np.eye(2))).split("\n")
    assert lines[0].startswith("Parameter([[") and "requires_grad" in lines[1]
    assert lines[0].index("[1.") == lines[1].index("[0.")


@pytest.mark.parametrize(
    "twin", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copy", "pickle"]
)
def test_copies_keep_class_value_grad_and_sharing(twin):
    p = Parameter(np.ones(3))
    (p * p).sum().backward()
    q = twin(p)
    assert type(q) is Parameter and q.requires_grad and th.memory.is_parameter(q.data)
    assert q.grad.tolist() == [2, 2, 2] and q.tolist() == [1, 1, 1]
    q.grad.data[...] = 0
    q.data[...] = 0
    assert p.grad.tolist() == [2, 2, 2] and p.tolist() == [1, 1, 1]

    net = twin(Net())
    assert net.last.weight is net.layers[0].weight
    assert all(type(p) is Parameter for p in net.parameters())
    assert th.saved_bytes(net(th.ones(2, 3)).sum()) == th.saved_bytes(
        Net()(th.ones(2, 3)).sum()
    )


# --- Module: names


def test_names_are_dotted_in_order_and_once():
    net = Net()
    assert [n for n, _ in net.named_parameters()] == NAMES
    assert [id(p) for p in net.parameters()] == [id(p) for _, p in net.named_parameters()]
    assert len(set(net.parameters())) == len(NAMES)
    modules = [n for n, _ in net.named_modules()]
    assert modules == ["", "first", "layers.0", "layers.1", "last"]


def test_lists_and_tuples_may_be_nested():
    net = Module()
    net.tables = [(Parameter(np.ones(2)), [Linear(1, 1, False)]), Parameter(np.ones(1))]
    names = [n for n, _ in net.named_parameters()]
    assert names == ["tables.0.0", "tables.1", "tables.0.1.0.weight"]


def test_a_module_may_refer_to_its_parent():
    net = Net()
    net.first.parent = net
    assert [n for n, _ in net.named_parameters()] == NAMES
    assert "parent: shared with the whole" in repr(net)


def test_two_parameters_on_one_memory_are_refused():
    net = Net()
    net.last.weight = Parameter(net.first.bias)
    with pytest.raises(GraphError, match=r"first\.bias and last\.weight are two"):
        list(net.parameters())
    flat = np.zeros(8, np.float32)
    net.last.weight, net.last.bias = Parameter(flat[:4]), Parameter(flat[4:])
    assert len(list(net.parameters())) == len(NAMES) + 1


def test_repr_shows_shapes_counts_sharing_and_freezing():
    net = Net()
    net.first.requires_grad_(False)
    assert repr(net).split("\n") == [
        "Net: 64 parameters",
        "  first: Linear: 16 parameters",
        "    weight [3, 4] float32, frozen",
        "    bias [4] float32, frozen",
        "  layers.0: Linear: 20 parameters",
        "    weight [4, 4] float32",
        "    bias [4] float32",
        "  layers.1: Linear: 20 parameters",
        "    weight [4, 4] float32",
        "    bias [4] float32",
        "  scale [4] float32",
        "  last: Linear: 20 parameters",
        "    weight: shared with layers.0.weight",
        "    bias [4] float32",
    ]


# --- Module: modes, gradients, conversion


def test_train_eval_zero_grad_and_freezing():
    net = Net()
    assert net.training
    assert net.eval() is net
    assert not any(m.training for _, m in net.named_modules())
    assert net.train().layers[1].training
    net(th.ones(2, 3)).sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    net.zero_grad()
    assert all(p.grad is None for p in net.parameters())
    net(th.ones(2, 3)).sum().backward()
    assert net.requires_grad_(False) is net
    assert all(p.grad is None and not p.requires_grad for p in net.parameters())
    assert not net(th.ones(2, 3)).requires_grad
    net.requires_grad_()
    net(th.ones(2, 3)).sum().backward()
    assert all(p.grad is not None for p in net.parameters())


def test_astype_converts_values_and_gradients_in_place():
    net = Net()
    before = {n: p.data.copy() for n, p in net.named_parameters()}
    parameters = list(net.parameters())
    old_graph = net(th.ones(2, 3)).sum()
    net(th.ones(2, 3)).sum().backward()
    grads = [p.grad.data.copy() for p in net.parameters()]
    assert net.astype("float64") is net
    for p, q, g in zip(net.parameters(), parameters, grads, strict=True):
        assert p is q and p.dtype == p.grad.dtype == np.float64
        assert np.array_equal(p.grad.data, g.astype("float64"))
        assert th.memory.is_parameter(p.data)
    assert all(np.array_equal(p.data, before[n]) for n, p in net.named_parameters())
    old_graph.backward()  # its float32 gradients do not land on float64 parameters
    for p, g in zip(net.parameters(), grads, strict=True):
        assert p.grad.dtype == np.float64 and np.array_equal(p.grad.data, g)
    net(th.ones(2, 3, dtype="float64")).sum().backward()
    with pytest.raises(DTypeError, match="int8"):
        net.astype("int8")
    assert net.to("cpu") is net
    with pytest.raises(HelixError):
        net.to("nowhere")


def test_a_module_without_forward_says_so():
    class Empty(Module):
        pass

    with pytest.raises(HelixError, match=r"Empty has no forward"):
        Empty()(3)


# --- Module: state


def test_state_dict_is_a_snapshot_and_loads_in_place():
    net, other = Net(), Net()
    state = net.state_dict()
    assert list(state) == NAMES
    before = {n: v.data.copy() for n, v in state.items()}
    assert not any(th.memory.is_parameter(v.data) for v in state.values())
    with th.no_grad():
        net.first.weight += 1.0
    assert np.array_equal(state["first.weight"].data, before["first.weight"])

    weight = other.last.weight
    y = (weight * weight).sum()
    assert other.load_state_dict(state) == ([], [])
    assert other.last.weight is weight is other.layers[0].weight
    assert np.array_equal(weight.data, before["layers.0.weight"])
    with pytest.raises(th.errors.InPlaceModificationError):
        y.backward()
    other.load_state_dict({n: v.data for n, v in net.state_dict().items()})
    assert np.array_equal(other.first.weight.data, net.first.weight.data)


def test_loading_from_ones_own_parameters_in_another_order():
    net = Net()
    own = dict(net.named_parameters())
    a, b = own["first.bias"].data.copy(), own["last.bias"].data.copy()
    swapped = own | {"first.bias": own["last.bias"], "last.bias": own["first.bias"]}
    net.load_state_dict(swapped)
    assert np.array_equal(net.first.bias.data, b) and np.array_equal(net.last.bias.data, a)


def test_a_bad_state_lists_everything_and_changes_nothing():
    net = Net()
    before = {n: p.data.copy() for n, p in net.named_parameters()}
    state = {n: th.Tensor(v.data + 1) for n, v in net.state_dict().items()}
    del state["scale"], state["layers.1.bias"]
    state["extra"] = th.ones(1)
    state["first.weight"] = th.ones(4, 3)
    state["first.bias"] = th.ones(4, dtype="float64")
    state["last.bias"] = [1.0, 2.0, 3.0, 4.0]  # type: ignore[assignment]
    with pytest.raises(ShapeError) as caught:
        net.load_state_dict(state)
    message = str(caught.value)
    assert "missing: scale, layers.1.bias" in message
    assert "unexpected: extra" in message
    assert "first.weight has (4, 3), due (3, 4)" in message
    assert "first.bias is float64, due float32" in message
    assert "last.bias is list" in message
    assert all(np.array_equal(p.data, before[n]) for n, p in net.named_parameters())

    with pytest.raises(ShapeError) as caught:
        net.load_state_dict(state, strict=False)
    assert "missing" not in str(caught.value)
    good = {n: v for n, v in state.items() if n in ("layers.0.weight", "extra")}
    missing, unexpected = net.load_state_dict(good, strict=False)
    assert "layers.0.weight" not in missing and len(missing) == len(NAMES) - 1
    assert unexpected == ["extra"]
    with pytest.raises(DTypeError, match="mapping"):
        net.load_state_dict(list(state))  # type: ignore[arg-type]
    net.first.bias.data.flags.writeable = False
    with pytest.raises(HelixError, match=r"first\.bias of this module is read-only"):
        net.load_state_dict(net.state_dict())


# --- layers: values


def test_linear_value_and_initial_weights():
    layer = Linear(16, 64, generator=np.random.default_rng(0))
    x = RNG.standard_normal((2, 5, 16)).astype("float32")
    due = x @ layer.weight.data + layer.bias.data
    np.testing.assert_allclose(layer(th.Tensor(x)).data, due, rtol=1e-5, atol=1e-5)
    for p in (layer.weight, layer.bias):
        assert np.abs(p.data).max() <= 0.25  # 1/√16
        assert np.abs(p.data).max() > 0.22 and abs(p.data.mean()) < 0.06
    twin = Linear(16, 64, dtype="float64", generator=np.random.default_rng(0))
    assert np.array_equal(twin.weight.data.astype("float32"), layer.weight.data)
    assert Linear(2, 3, bias=False).bias is None


def test_embedding_and_rms_norm_values():
    embedding = Embedding(300, 50, generator=np.random.default_rng(0))
    assert abs(embedding.weight.data.std() - 0.02) < 0.001
    assert abs(embedding.weight.data.mean()) < 0.001
    index = np.array([[3, 299], [0, 3]])
    assert np.array_equal(embedding(index).data, embedding.weight.data[index])

    norm = RMSNorm(6, eps=0.5, dtype="float64")
    assert norm.gain.tolist() == [1.0] * 6
    with th.no_grad():
        norm.gain.copy_(RNG.standard_normal(6))
    x = RNG.standard_normal((4, 6))
    due = x / np.sqrt((x**2).mean(-1, keepdims=True) + 0.5) * norm.gain.data
    np.testing.assert_allclose(norm(th.Tensor(x)).data, due, rtol=1e-14)


def test_manual_seed_seeds_the_layers():
    th.manual_seed(3)
    a = Linear(4, 4)
    th.manual_seed(3)
    b = Linear(4, 4)
    assert np.array_equal(a.weight.data, b.weight.data)


def layers(dtype):
    g = np.random.default_rng(1)
    x = th.Tensor(g.standard_normal((2, 3, 4)).astype(dtype), requires_grad=True)
    index = th.Tensor(g.integers(0, 7, (2, 3)))
    return [
        ("linear", Linear(4, 5, dtype=dtype, generator=g), x),
        ("linear without bias", Linear(4, 5, False, dtype=dtype, generator=g), x),
        ("embedding", Embedding(7, 4, dtype=dtype, generator=g), index),
        ("rms_norm", RMSNorm(4, dtype=dtype), x),
    ]


@pytest.mark.parametrize("which", range(4))
def test_every_layer_gives_gradients_to_every_parameter(which):  # O43
    _, layer, x = layers("float64")[which]
    y = layer(x)
    assert y.requires_grad
    (y * y).sum().backward()
    for name, p in layer.named_parameters():
        assert p.grad is not None and np.any(p.grad.data != 0), name
    names = list(dict(layer.named_parameters()))
    values = [p.detach() for p in layer.parameters()]
    for v in values:
        v.requires_grad = True

    def fn(x, *weights):
        for name, w in zip(names, weights, strict=True):
            setattr(layer, name, w)
        return layer(x)

    assert th.gradcheck(fn, [x, *values], order=2)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("needs", [False, True])
@pytest.mark.parametrize("which", range(4))
def test_layers_predict_what_is_saved(which, needs, frozen, dtype):
    _, layer, x = layers(dtype)[which]
    layer.requires_grad_(not frozen)
    if x.dtype.kind == "f":
        x = th.Tensor(x.data.copy(), requires_grad=needs)
    y = layer(x)
    predicted = layer.predict_saved(x.shape, x.dtype, needs)
    counted = {
        f"{s.op}.{s.label}": s.nbytes
        for s in th.memory.saved(y)
        if s.first and not s.parameter
    }
    assert predicted == counted
    assert sum(predicted.values()) == th.saved_bytes(y)


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (
            lambda: Linear(3, 2)(th.ones(4, 5)),
            ShapeError,
            r"Linear takes .*3\]; got \(4, 5\)",
        ),
        (lambda: Linear(3, 2)(th.tensor(1.0)), ShapeError, r"got \(\)"),
        (lambda: Linear(3, 2)([1.0, 2.0, 3.0]), DTypeError, "got list"),
        (lambda: Linear(3, 2)(np.ones((1, 3))), DTypeError, "float64"),
        (lambda: Linear(0, 2), ShapeError, "in_features=0"),
        (lambda: Linear(3, 2.5), DTypeError, "out_features; got float"),
        (lambda: Linear(3, 2, dtype="int32"), DTypeError, "int32"),
        (lambda: Linear(3, 2, dtype=None), DTypeError, "None"),
        (lambda: Linear(3, 2, generator=1), DTypeError, "default_rng"),
        (lambda: Embedding(3, 2)([3]), ShapeError, "0..2"),
        (lambda: Embedding(3, 2)([0.5]), DTypeError, "float"),
        (lambda: Embedding(3, -1), ShapeError, "dim=-1"),
        (lambda: RMSNorm(3)(th.ones(2)), ShapeError, r"RMSNorm takes .*3\]"),
        (lambda: RMSNorm(3)(th.ones(3, dtype="float64")), DTypeError, "gain float32"),
        (lambda: RMSNorm(3, eps=-1.0), HelixError, "eps=-1.0"),
        (lambda: RMSNorm(3, eps=float("nan")), HelixError, "eps=nan"),
    ],
)
def test_bad_arguments(make, error, match):
    with pytest.raises(error, match=match):
        make()


def test_astype_keeps_the_hooks():
    layer = Linear(3, 2)
    seen = []
    handle = layer.weight.register_hook(lambda g: seen.append(g.dtype))
    layer.astype("float64")
    layer(th.ones(1, 3, dtype="float64")).sum().backward()
    assert seen == [np.float64]
    handle.remove()
    layer(th.ones(1, 3, dtype="float64")).sum().backward()
    assert seen == [np.float64]
