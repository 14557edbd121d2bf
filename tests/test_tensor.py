"""Tensor as a Python object: constructors, protocols, operators, declarations."""

import ast
import copy
import inspect
import pickle

import numpy as np
import pytest

import tinygrad_helix as th
from tinygrad_helix.errors import (
    BackendUnavailableError,
    DeviceError,
    DTypeError,
    GraphError,
    ShapeError,
)
from tinygrad_helix.methods import TensorMethods
from tinygrad_helix.ops import METHODS


def leaf(data, dtype=np.float64):
    return th.Tensor(np.asarray(data, dtype), requires_grad=True)


# --- making one


@pytest.mark.parametrize(
    ("data", "dtype", "shape"),
    [
        ([1.0, 2.0], np.float32, (2,)),
        ([1, 2.5], np.float32, (2,)),
        ([[1, 2], [3, 4]], np.int64, (2, 2)),
        ([True, False], np.bool_, (2,)),
        (3.5, np.float32, ()),
        (3, np.int64, ()),
        (True, np.bool_, ()),
        ([], np.float32, (0,)),
        (range(3), np.int64, (3,)),
        (np.float64(2), np.float64, ()),
        (np.float16(2), np.float16, ()),
        (np.ones(2), np.float64, (2,)),
        (np.ones(2, np.float16), np.float16, (2,)),
        (np.ones((2, 0), np.uint8), np.uint8, (2, 0)),
        ([th.Tensor([1.0]), th.Tensor([2.0])], np.float32, (2, 1)),
    ],
)
def test_dtypes_of_data(data, dtype, shape):
    for made in (th.Tensor(data), th.tensor(data)):
        assert made.dtype == dtype and made.shape == shape and made.device == "cpu"
        assert isinstance(made.data, np.ndarray) and not made.requires_grad and made.is_leaf
        assert made.ndim == len(shape) and made.size == made.data.size
    for wanted in (np.float64, "float16", int, bool):
        assert th.Tensor(data, dtype=wanted).dtype == np.dtype(wanted)


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (None, DTypeError, "dtype object from NoneType"),
        ("abc", DTypeError, "dtype <U3 from str"),
        (1j, DTypeError, "complex128"),
        ([2**70], DTypeError, "object"),
        (np.array([1, None]), DTypeError, "object from ndarray"),
        ([[1], [1, 2]], ShapeError, "nested lists of equal lengths"),
        ([leaf([1.0])], GraphError, "detach"),
    ],
)
def test_data_that_is_none(data, error, text):
    for make in (th.Tensor, th.tensor):
        with pytest.raises(error, match=text):
            make(data)


def test_aliases_and_copies():
    data = np.arange(4.0)
    alias, copied, again = th.Tensor(data), th.tensor(data), th.from_numpy(data)
    assert alias.data is data and again.data is data
    assert not np.shares_memory(copied.data, data)
    assert np.shares_memory(th.Tensor(alias).data, data)
    assert not np.shares_memory(th.tensor(alias).data, data)
    assert not np.shares_memory(th.tensor(data, dtype=np.float64).data, data)
    data[0] = 9.0
    assert alias.data[0] == 9.0 and copied.data[0] == 0.0
    view = data[::-1]
    assert th.tensor(view).data.flags.c_contiguous and th.Tensor(view).data is view
    with pytest.raises(DTypeError, match="got list"):
        th.from_numpy([1.0])


def test_filled_ones():
    assert th.zeros(2, 3).shape == th.zeros((2, 3)).shape == th.ones([2, 3]).shape == (2, 3)
    assert th.zeros(()).shape == th.zeros().shape == () and th.empty(0, 2).size == 0
    assert th.zeros(2).dtype == th.ones(2).dtype == th.empty(2).dtype == np.float32
    assert th.ones(2, dtype=np.float64, requires_grad=True).requires_grad
    assert th.full((2, 2), 3).dtype == np.int64 and th.full(2, 3.0).dtype == np.float32
    assert th.full((), True).dtype == bool and th.full((1,), 1, dtype="float16").item() == 1
    assert th.eye(2, 3).tolist() == [[1, 0, 0], [0, 1, 0]]
    assert th.zeros(np.int64(2), th.Tensor(3)).shape == (2, 3)
    for shape, error in (((2.5,), DTypeError), ((-1,), ShapeError), (("a",), DTypeError)):
        with pytest.raises(error):
            th.zeros(*shape)


def test_ranges():
    assert th.arange(3).dtype == np.int64 and th.arange(3).tolist() == [0, 1, 2]
    assert th.arange(0, 1, 0.25).dtype == np.float32 and th.arange(5, 2, -1).size == 3
    assert th.arange(3, dtype=np.float64).dtype == np.float64
    assert th.linspace(0, 1, 3).tolist() == [0.0, 0.5, 1.0]


def test_random_ones_and_the_seed():
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    th.manual_seed(3)
    a, u = th.randn(100), th.rand(100)
    th.manual_seed(3)
    assert np.array_equal(th.randn(100).data, a.data)
    assert np.array_equal(th.rand(100, dtype=np.float64).data.astype(np.float32), u.data)
    assert not np.array_equal(th.randn(100).data, a.data)
    assert np.array_equal(np.random.get_state()[1], state)  # noqa: NPY002
    generators = [np.random.default_rng(1) for _ in range(3)]
    b, c = (th.randn(5, generator=g) for g in generators[:2])
    assert np.array_equal(b.data, c.data)
    # Every dtype gets the same numbers, rounded.
    half = th.randn(5, dtype=np.float16, generator=generators[2])
    assert np.array_equal(half.data, b.data.astype(np.float16))
    assert th.rand(200_000, dtype=np.float16).data.max() < 1  # some would round up to 1
    assert th.randn(2, requires_grad=True).requires_grad


def test_ones_like_another():
    x = leaf(np.ones((2, 3)), np.float16)
    for make, value in ((th.zeros_like, 0), (th.ones_like, 1)):
        y = make(x)
        assert (y.shape, y.dtype, y.requires_grad) == ((2, 3), np.float16, False)
        assert (y.data == value).all() and make(x, dtype=np.int64).dtype == np.int64
    for make in (th.randn_like, th.rand_like):
        assert make(x).shape == (2, 3) and make(x).dtype == np.float16


def test_devices():
    x = th.ones(2)
    assert x.to("cpu") is x
    with pytest.raises(BackendUnavailableError, match="cuda is not available: CuPy"):
        th.Tensor([1.0], device="cuda")
    with pytest.raises(DeviceError, match="'tpu' is unknown"):
        th.zeros(2, device="tpu")


# --- requires_grad, grad


def test_requires_grad_is_a_property_of_leaves():
    x = th.ones(2)
    x.requires_grad = True
    assert x.requires_grad and x.is_leaf
    y = x * 2
    y.requires_grad = True  # it does already
    with pytest.raises(GraphError, match=r"result of mul .*detach"):
        y.requires_grad = False
    (y * x).sum().backward()
    x.requires_grad = False
    assert x.grad.tolist() == [4.0, 4.0] and not (x * 2).requires_grad


def test_the_gradient_fits():
    x = leaf([1.0, 2.0])
    x.grad = th.Tensor(np.array([3.0, 4.0]))
    x.sum().backward()
    assert x.grad.tolist() == [4.0, 5.0]
    for wrong, error in (
        (np.ones(2), DTypeError),
        (th.ones(2), ShapeError),
        (th.ones(3, dtype=np.float64), ShapeError),
        (1.0, DTypeError),
    ):
        with pytest.raises(error):
            x.grad = wrong
    assert x.grad.tolist() == [4.0, 5.0]
    x.grad = None
    assert x.grad is None
    plain = th.ones(2)
    plain.grad = None
    assert plain.grad is None and not plain.requires_grad


def test_detach_shares_memory_and_no_graph():
    x = leaf([1.0, 2.0])
    y = x.exp().detach()
    assert y.is_leaf and not y.requires_grad and y.node is None
    assert x.detach().data is x.data


# --- Python's protocols


def test_one_element():
    for made in (th.Tensor(2.5), th.Tensor([[2.5]])):
        assert made.item() == 2.5 and float(made) == 2.5 and int(made) == 2 and bool(made)
        assert f"{made:.3f}" == "2.500" and f"{made:>6}" == "   2.5"
    assert type(th.Tensor([3]).item()) is int and type(th.Tensor(True).item()) is bool
    assert not th.Tensor(0.0)
    for convert in (float, int, bool, th.Tensor.item, "{:.2f}".format):
        for shape in ((2,), (0,)):
            with pytest.raises(ShapeError, match=rf"{shape[0]} elements.*exactly one"):
                convert(th.zeros(shape))
    assert [10, 20, 30][th.Tensor(1)] == 20 and list(range(th.Tensor(2))) == [0, 1]
    with pytest.raises(DTypeError, match="float32"):
        [10][th.Tensor(0.0)]


def test_length_and_iteration():
    x = leaf(np.arange(6.0).reshape(3, 2))
    assert len(x) == 3 and [row.tolist() for row in x] == [[0, 1], [2, 3], [4, 5]]
    first, *_ = x
    first.sum().backward()
    assert x.grad.tolist() == [[1, 1], [0, 0], [0, 0]]
    assert 3.0 in x[1] and 9.0 not in x[1]
    for use in (len, list, iter):
        with pytest.raises(TypeError, match="no length"):
            use(th.Tensor(1.0))
    assert list(th.zeros(0, 2)) == []


def test_numpy():
    x = th.Tensor(np.arange(3.0))
    assert x.numpy() is x.data and np.asarray(x) is not None
    assert np.shares_memory(np.asarray(x), x.data)
    assert not np.shares_memory(np.array(x), x.data)
    assert np.asarray(x, dtype=np.float32).dtype == np.float32
    with pytest.raises(ValueError):
        np.array(x, dtype=np.float32, copy=False)
    assert np.allclose(x, [0, 1, 2]) and np.mean(np.asarray(x)) == 1.0
    y = leaf([1.0])
    for use in (lambda: y.numpy(), lambda: np.asarray(y), lambda: np.from_dlpack(y)):
        with pytest.raises(GraphError, match="detach"):
            use()
    assert y.data[0] == 1.0 and y.tolist() == [1.0]
    with pytest.raises(TypeError):
        np.add(np.ones(1), x)


def test_dlpack():
    x = th.Tensor(np.arange(3.0))
    theirs = np.from_dlpack(x)
    assert np.shares_memory(theirs, x.data)
    ours = th.from_dlpack(np.arange(4.0))
    assert ours.tolist() == [0, 1, 2, 3] and ours.dtype == np.float64
    base = np.arange(4.0)
    assert np.shares_memory(th.from_dlpack(base).data, base)


@pytest.mark.oracle
def test_dlpack_with_pytorch():
    torch = pytest.importorskip("torch")
    x = th.Tensor(np.arange(3.0))
    theirs = torch.from_dlpack(x)
    theirs[0] = 5.0
    assert x.data[0] == 5.0
    assert th.from_dlpack(torch.ones(2)).tolist() == [1.0, 1.0]


def test_repr():
    assert repr(th.Tensor([1.0, 2.0])) == "Tensor([1., 2.], shape=(2,), float32)"
    x = leaf([[1.0]])
    assert repr(x) == "Tensor([[1.]], shape=(1, 1), float64, requires_grad)"
    assert repr(x.exp()) == "Tensor([[2.71828183]], shape=(1, 1), float64, op=exp)"
    assert repr(th.zeros(1000)).count("0.") == 6 and str(x) == f"{x}" == repr(x)


def test_copies_and_pickles():
    x = leaf([1.0, 2.0])
    for y in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert y.requires_grad and y.grad is None and y.tolist() == [1.0, 2.0]
        assert y.edge != x.edge
    (x * x).sum().backward()
    data = pickle.dumps(th.Tensor(np.zeros(100_000))[:10].detach())
    assert len(data) < 1000  # of a view only what it shows
    holder = {"x": x, "again": [x]}
    assert (again := copy.deepcopy(holder))["x"] is again["again"][0]
    assert type(copy.deepcopy(th.nn.Parameter(np.ones(2)))) is th.nn.Parameter
    assert type(pickle.loads(pickle.dumps(th.nn.Parameter(np.ones(2))))) is th.nn.Parameter


def test_equality_is_elementwise_and_hash_identity():
    a, b = th.Tensor([1.0, 2.0]), th.Tensor([1.0, 3.0])
    assert (a == b).tolist() == [True, False] and (a != b).tolist() == [False, True]
    assert (a < b).tolist() == [False, True] and (a >= 2).tolist() == [False, True]
    assert (a < 2).tolist() == [True, False] and (a >= [2]).tolist() == [False, True]
    assert len({a, b, a}) == 2 and hash(a) == hash(a)
    assert (a == None).tolist() == [False, False]  # noqa: E711
    for compare in (lambda: a == "a", lambda: a < "a"):
        with pytest.raises(DTypeError, match="got str"):
            compare()


def test_weak_references_and_slots():
    x = th.ones(2)
    with pytest.raises(AttributeError):
        x.gradient = None  # a misspelt name is an error, not a new attribute


# --- operators


def test_augmented_assignment_keeps_the_object():
    x = th.Tensor(np.array([1.0, 2.0]))
    before, data = x, x.data
    x += 1
    x *= np.array([2.0, 3.0])
    x -= th.Tensor(np.array(1.0))
    x /= 2
    assert x is before and x.data is data and x.tolist() == [1.5, 4.0]
    x[0] = 7.0
    x[1:] = th.Tensor(np.array([8.0]))
    x[np.array([True, False])] += 1.0
    assert x.tolist() == [8.0, 8.0]


def test_indexing_with_tensors():
    x = leaf(np.arange(6.0).reshape(3, 2))
    i = th.Tensor([2, 0])
    assert x[i].tolist() == [[4, 5], [0, 1]] and x[i, 1].tolist() == [5, 1]
    assert x[th.Tensor(1)].tolist() == [2, 3] and x[th.Tensor(1) :].shape == (2, 2)
    assert x[x > 2.0].tolist() == [3, 4, 5] and x[..., None].shape == (3, 2, 1)
    y = th.zeros(3)
    y[i] = th.Tensor([1.0, 2.0])
    y[th.Tensor([False, True, False])] = 5.0
    assert y.tolist() == [2.0, 5.0, 1.0]


def test_transposes():
    x = leaf(np.arange(24.0).reshape(2, 3, 4))
    assert x.T.shape == (4, 3, 2) and x.mT.shape == (2, 4, 3)
    assert x.transpose(0, 2, 1).tolist() == x.mT.tolist()
    with pytest.raises(ShapeError, match="two axes"):
        _ = th.ones(3).mT
    with pytest.raises(AttributeError):
        x.T = x


# --- the written table of methods


def declared():
    """What TensorMethods declares for type checkers: {name: arguments}."""
    block = ast.parse(inspect.getsource(TensorMethods)).body[0]
    found = {}
    for node in block.body:
        if isinstance(node, ast.AnnAssign):
            found[node.target.id] = None
        elif isinstance(node, ast.FunctionDef):
            names = [a.arg for a in node.args.args[1:]]
            names += [f"*{node.args.vararg.arg}"] if node.args.vararg else []
            values = [ast.literal_eval(d) for d in node.args.defaults]
            found[node.name] = (names, values)
    return found


def test_the_declarations_are_the_table():
    declarations = declared()
    assert set(declarations) == set(METHODS)
    for name, arguments in declarations.items():
        if name.startswith("__"):
            continue
        if arguments is None:
            assert isinstance(METHODS[name], property)
            continue
        parameters = list(inspect.signature(METHODS[name]).parameters.values())[1:]
        names = [f"*{p.name}" if p.kind is p.VAR_POSITIONAL else p.name for p in parameters]
        values = [p.default for p in parameters if p.default is not p.empty]
        assert (names, values) == arguments, name


def test_the_table_is_attached_and_documented():
    for name, function in METHODS.items():
        assert getattr(th.Tensor, name) is function
        if not name.startswith("__"):
            assert function.__doc__
    for name in th.ops.__all__:
        assert getattr(th, name, None) is getattr(th.ops, name) or name == "zeros", name
    for name in th.__all__:
        assert hasattr(th, name), name


def test_every_op_of_one_main_operand_is_a_method():
    several = {"cat", "stack", "where", "maximum", "minimum", "embedding", "cross_entropy",
               "gated_scan", "rms_norm", "layer_norm", "einsum", "conv2d",
               "causal_conv1d"}  # fmt: skip
    operators = {"matmul", "pow", "getitem", "neg", "add", "sub", "mul", "div", "equal",
                 "not_equal", "less", "less_equal", "greater", "greater_equal"}  # fmt: skip
    assert set(th.ops.__all__) - several - operators <= set(METHODS)


def test_backward_takes_its_arguments_by_name():
    x = leaf([1.0, 2.0])
    y = x * x
    y.backward(cotangent=np.array([1.0, 0.0]), retain_graph=True)
    y.backward(th.Tensor([0.0, 1.0]))
    assert x.grad.tolist() == [2.0, 4.0]
