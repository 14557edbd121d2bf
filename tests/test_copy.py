"""Copies of leaves and modules by copy and pickle, and memory shared by DLPack."""

import copy
import pickle
import weakref

import numpy as np
import pytest

import tinygrad_helix as th
from tinygrad_helix.errors import DTypeError, GraphError, HelixError, ShapeError
from tinygrad_helix.nn import HelixBlock, Linear, Module, Parameter

TWINS = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "pickle 2": lambda x: pickle.loads(pickle.dumps(x, protocol=2)),
}
twins = pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS)


def layouts():
    base = np.arange(24.0).reshape(4, 6)
    return {
        "matrix": base,
        "0-d": np.array(2.5, np.float32),
        "empty": np.zeros((0, 3), np.float16),
        "slice": base[1:3, ::2],
        "backwards": base[::-1],
        "transposed": base.T,
        "broadcast": np.broadcast_to(np.float32(3), (2, 3)),
        "ints": np.arange(3),
        "bools": np.array([True, False]),
    }


# --- leaves


@twins
@pytest.mark.parametrize("layout", layouts())
def test_values_in_memory_of_their_own(layout, twin):
    x = th.Tensor(layouts()[layout])
    y = twin(x)
    assert type(y) is th.Tensor and y.is_leaf and not y.requires_grad and y.grad is None
    assert (y.shape, y.dtype) == (x.shape, x.dtype) and y.tolist() == x.tolist()
    assert not np.shares_memory(x.data, y.data)
    assert th.memory.storage(y.data).nbytes == x.nbytes  # of a slice only itself
    y.data[...] = 0
    assert x.tolist() == layouts()[layout].tolist()


@twins
@pytest.mark.parametrize("kind", [th.Tensor, Parameter])
@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("with_grad", [True, False])
def test_leaves_keep_class_flag_and_gradient(with_grad, requires_grad, kind, twin):
    x = kind(np.ones(3), requires_grad=requires_grad)
    if with_grad:
        x.grad = th.Tensor(np.arange(3.0))
    y = twin(x)
    assert type(y) is kind and y.requires_grad is requires_grad and y.is_leaf
    assert th.memory.is_parameter(y.data) is (kind is Parameter)
    if with_grad:
        assert y.grad.tolist() == [0, 1, 2] and not y.grad.requires_grad
        assert not np.shares_memory(x.grad.data, y.grad.data)
    else:
        assert y.grad is None
    y.requires_grad = True
    (y * y).sum().backward()
    assert y.grad.tolist() == ([2, 3, 4] if with_grad else [2, 2, 2])
    assert (x.grad.tolist() if with_grad else x.grad) == ([0, 1, 2] if with_grad else None)


@twins
def test_a_gradient_that_is_on_the_tape_is_copied_as_values(twin):
    x = th.tensor([3.0], requires_grad=True)
    (x.grad,) = th.grad(x * x * x, x, create_graph=True)
    y = twin(x)
    assert y.grad.tolist() == [27.0] and y.grad.is_leaf


@twins
def test_one_object_stays_one(twin):
    x = th.tensor([1.0], requires_grad=True)
    a, b, (c,) = twin((x, x, [x]))
    assert a is b is c and a is not x


def test_results_are_refused_and_nothing_of_the_graph_is_held():
    x = th.tensor([1.0], requires_grad=True)
    y = (x * x).exp()
    for fn in (copy.deepcopy, copy.copy, pickle.dumps):
        with pytest.raises(
            GraphError, match=r"result of exp \(node .*Use detach\(\) first"
        ):
            fn({"y": y} if fn is not copy.copy else y)
    assert copy.deepcopy(y.detach()).tolist() == y.tolist()
    node = weakref.ref(y.node)
    z = copy.deepcopy(x)
    del y
    assert node() is None and z.edge != x.edge


def test_a_shallow_copy_is_another_leaf_on_the_same_memory():
    x = th.tensor([1.0, 2.0], requires_grad=True)
    y = copy.copy(x)
    assert np.shares_memory(x.data, y.data) and y.requires_grad and y.edge != x.edge
    y.sum().backward()
    assert x.grad is None
    model = Linear(2, 2)
    assert copy.copy(model).weight is model.weight


# --- modules


class Tied(Module):
    def __init__(self):
        self.blocks = [HelixBlock(4), HelixBlock(4)]
        self.head = Linear(4, 4)
        self.tail = Linear(4, 4)
        self.tail.weight = self.head.weight
        self.scale = th.Tensor(np.ones(4, np.float32))  # not a parameter

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.tail(self.head(x)) * self.scale


@twins
def test_modules_keep_sharing_modes_and_what_they_compute(twin):
    model = Tied().eval()
    model.blocks[0].requires_grad_(False)
    x = th.randn(2, 3, 4)
    model(x).sum().backward()
    again = twin(model)
    assert not again.training and not again.blocks[1].training
    assert again.tail.weight is again.head.weight is not model.head.weight
    for (name, p), (other, q) in zip(
        model.named_parameters(), again.named_parameters(), strict=True
    ):
        assert name == other and type(q) is Parameter
        assert q.requires_grad is p.requires_grad and th.memory.is_parameter(q.data)
        assert np.array_equal(p.data, q.data) and not np.shares_memory(p.data, q.data)
        assert (q.grad is None) is (p.grad is None)
        assert p.grad is None or np.array_equal(p.grad.data, q.grad.data)
    assert np.array_equal(model(x).data, again(x).data)
    assert th.saved_bytes(model(x)) == th.saved_bytes(again(x))
    with th.no_grad():
        again.head.weight += 1.0
    assert not np.array_equal(model.head.weight.data, again.head.weight.data)


# --- DLPack


@pytest.mark.parametrize("layout", [n for n in layouts() if n != "backwards"])
def test_numpy_shares_both_ways(layout):
    array = layouts()[layout]
    x = th.from_dlpack(array)
    back = np.from_dlpack(x)
    for y in (x.data, back):
        assert (y.shape, y.dtype) == (array.shape, array.dtype)
        assert y.tolist() == array.tolist()
        assert y.flags.writeable is array.flags.writeable
        if array.size:
            assert np.shares_memory(y, array)
    assert not x.requires_grad and x.is_leaf


def test_writes_are_seen_on_the_other_side():
    array = np.zeros(3)
    x = th.from_dlpack(array)
    array[0] = 1
    with th.no_grad():
        x += 1.0
    assert array.tolist() == x.tolist() == [2, 1, 1]
    x.requires_grad = True
    (x * x).sum().backward()
    assert x.grad.tolist() == [4, 2, 2]


def test_the_memory_outlives_its_owner():
    array = np.arange(1000.0)
    x = th.from_dlpack(array)
    del array
    assert x.tolist() == list(range(1000))
    y = np.from_dlpack(th.Tensor(np.arange(1000.0)))
    assert y.tolist() == list(range(1000))


def test_read_only_memory_stays_so():
    array = np.ones(2)
    array.flags.writeable = False
    x = th.from_dlpack(array)
    assert not x.data.flags.writeable
    assert not np.from_dlpack(x).flags.writeable
    with pytest.raises(GraphError, match="read-only"), th.no_grad():
        x += 1.0


def test_a_copy_on_request():
    x = th.Tensor(np.ones(2))
    assert not np.shares_memory(np.from_dlpack(x, copy=True), x.data)


class Foreign:
    """An array of another library that cannot be shared, for a reason of its own."""

    def __dlpack__(self, **kwargs):
        raise BufferError("it lies on the moon")

    def __dlpack_device__(self):
        return (1, 0)


@pytest.mark.parametrize(
    ("source", "error", "match"),
    [
        ([1.0], DTypeError, r"got list\. .*tensor\(\)"),
        (np.ones(1, complex), DTypeError, "complex128"),
        (np.array([None]), HelixError, "this ndarray cannot be shared"),
        (Foreign(), HelixError, r"this Foreign cannot .*on the moon\)\. Detach it"),
        (th.ones(2, requires_grad=True), GraphError, r"detach\(\) first"),
        (Parameter([1.0]), GraphError, r"detach\(\) first"),
        (th.ones(2, requires_grad=True) * 2, GraphError, r"detach\(\) first"),
        (th.Tensor(np.ones((2, 2))[::-1]), ShapeError, r"\(-16, 8\).*Share a copy"),
    ],
)
def test_what_cannot_be_shared(source, error, match):
    with pytest.raises(error, match=match):
        th.from_dlpack(source)


@pytest.mark.oracle
@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int64", "float16", "float32", "float64"]
)
def test_pytorch_shares_both_ways(dtype):
    torch = pytest.importorskip("torch")
    x = th.Tensor(np.ones((2, 3), dtype).T)
    theirs = torch.from_dlpack(x)
    assert str(theirs.dtype) == f"torch.{dtype}" and theirs.stride() == (1, 3)
    theirs[0, 1] = 0
    assert x.data[0, 1] == 0
    y = th.from_dlpack(theirs)
    assert y.dtype == x.dtype and np.shares_memory(y.data, x.data)
    for shape in [(), (0, 3)]:
        assert th.from_dlpack(torch.ones(shape)).shape == shape
        assert torch.from_dlpack(th.ones(shape)).shape == shape
    del theirs, x
    assert y.data[0, 1] == 0


@pytest.mark.oracle
def test_what_pytorch_cannot_share():
    torch = pytest.importorskip("torch")
    for source, match in [
        (torch.ones(2, requires_grad=True), "require gradient"),
        (torch.ones(2, dtype=torch.bfloat16), "[Uu]nsupported"),
        (torch.ones(2, device="meta"), "meta"),
    ]:
        with pytest.raises(HelixError, match=f"this Tensor cannot be shared .*{match}"):
            th.from_dlpack(source)
    for x in (th.ones(2, requires_grad=True), Parameter([1.0])):
        with pytest.raises(GraphError, match=r"detach\(\) first"):
            torch.from_dlpack(x)
    # PyTorch itself aborts the process at a negative stride.
    with pytest.raises(ShapeError, match=r"strides \(-4,\)"):
        torch.from_dlpack(th.Tensor(np.ones(2, np.float32)[::-1]))
