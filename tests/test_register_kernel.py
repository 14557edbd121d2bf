"""Kernels: registered for an op, a device and a dtype, used in the place of its body."""

import numpy as np
import pytest
from standin import standin

import tinygrad_helix as th
from tinygrad_helix.backend import get_backend, kernels_of
from tinygrad_helix.errors import DeviceError, DTypeError, GraphError, KernelError


@pytest.fixture(autouse=True)
def clean():
    """The kernels of a test go with it."""
    before = {device: dict(kernels_of(device)) for device in ("cpu", "cuda")}
    yield
    for device, table in before.items():
        kernels_of(device).clear()
        kernels_of(device).update(table)


class Scale(th.Op):
    """y = factor · x, which counts who computed."""

    saves = {"x": th.Input(0)}
    log = []

    @staticmethod
    def forward(xp, x, *, needs, factor):
        Scale.log.append("op.forward")
        return factor * x, {"x": x if needs[0] else None}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, factor):
        Scale.log.append("op.vjp")
        return (factor * dy,)


def kernel(dtype, *, forward=True, vjp=True, device="cpu", refuse=False, op=Scale):
    """Register a kernel for `op` with the parts asked for."""

    def run(xp, x, *, needs, factor):
        Scale.log.append("kernel.forward")
        return NotImplemented if refuse else (x * factor, {"x": x if needs[0] else None})

    def back(dy, saved, *, needs, inputs, factor):
        Scale.log.append("kernel.vjp")
        return NotImplemented if refuse else (dy * factor,)

    parts = {}
    if forward:
        parts["forward"] = staticmethod(run)
    if vjp:
        parts["vjp"] = staticmethod(back)
    return th.register_kernel(op, device, dtype)(type("K", (), parts))


def step(dtype="float32"):
    Scale.log.clear()
    x = th.Tensor(np.array([1.0, 2.0], dtype), requires_grad=True)
    y = th.apply(Scale, x, factor=3.0)
    y.sum().backward()
    assert y.tolist() == [3.0, 6.0]
    assert x.grad.tolist() == [3.0, 3.0]
    return list(Scale.log)


def test_a_kernel_takes_the_place_of_both_parts_for_its_dtype_alone():
    assert step() == ["op.forward", "op.vjp"]
    kernel("float32")
    assert step() == ["kernel.forward", "kernel.vjp"]
    assert step("float64") == ["op.forward", "op.vjp"]


def test_several_dtypes_and_a_registration_for_another_device():
    kernel(("float32", np.float64))
    assert step("float64") == step() == ["kernel.forward", "kernel.vjp"]
    kernels_of("cpu").clear()
    kernel("float32", device="cuda")  # needs no GPU
    assert (Scale, np.dtype("float32")) in kernels_of("cuda")
    assert step() == ["op.forward", "op.vjp"]


@pytest.mark.parametrize(
    "parts, expected",
    [
        ({"vjp": False}, ["kernel.forward", "op.vjp"]),
        ({"forward": False}, ["op.forward", "kernel.vjp"]),
        ({"refuse": True}, ["kernel.forward", "op.forward", "kernel.vjp", "op.vjp"]),
    ],
)
def test_what_a_kernel_does_not_give_or_take_stays_with_the_op(parts, expected):
    kernel("float32", **parts)
    assert step() == expected


def test_a_call_of_arrays_inside_a_vjp_uses_the_kernel_too():
    kernel("float32")
    Scale.log.clear()
    y = th.apply(Scale, np.ones(2, "float32"), factor=2.0)
    assert type(y) is np.ndarray
    assert Scale.log == ["kernel.forward"]


def test_a_recorded_sweep_runs_the_ops_own_vjp_on_tensors():
    kernel("float32")
    Scale.log.clear()
    x = th.ones(2, requires_grad=True)
    (dx,) = th.grad(th.apply(Scale, x, factor=3.0).sum(), x, create_graph=True)
    assert Scale.log == ["kernel.forward", "op.vjp"]
    assert dx.tolist() == [3.0, 3.0]


def test_the_dtype_is_that_of_the_first_floating_input():
    class Pick(th.Op):
        @staticmethod
        def forward(xp, index, x, *, needs):
            return x[index], {}

        @staticmethod
        def vjp(dy, saved, *, needs, inputs):
            return (None, None)

    class Mine:
        @staticmethod
        def forward(xp, index, x, *, needs):
            return x[index] * 0 - 1, {}

    th.register_kernel(Pick, "cpu", "float32")(Mine)
    index = np.array([1, 0])
    assert th.apply(Pick, index, np.ones(3, "float32")).tolist() == [-1, -1]
    assert th.apply(Pick, index, np.ones(3)).tolist() == [1, 1]
    th.register_kernel(Pick, "cpu", "int64")(Mine)  # no floating input: the first array
    assert th.apply(Pick, index, np.ones(3, "int32")).tolist() == [-1, -1]
    assert th.apply(Pick, index, np.ones(3)).tolist() == [1, 1]


def test_a_subclass_of_an_op_has_kernels_of_its_own():
    class Scale2(Scale):
        pass

    kernel("float32")
    Scale.log.clear()
    th.apply(Scale2, th.ones(2), factor=2.0)
    assert Scale.log == ["op.forward"]


def test_what_a_kernel_returns_is_checked_as_an_ops_is():
    class Bad:
        @staticmethod
        def forward(xp, x, *, needs, factor):
            return factor * x, {"z": x}

    th.register_kernel(Scale, "cpu", "float32")(Bad)
    with pytest.raises(GraphError, match="scale saved 'z'"):
        step()


@pytest.mark.parametrize(
    ("result", "what"),
    [
        (None, "returned NoneType. forward returns a pair"),
        (np.ones(2, "f4"), "returned ndarray. forward returns a pair"),
        ((np.ones(2, "f4"), None), "returned NoneType as what is saved"),
        (([1.0, 2.0], {}), "returned builtins.list. On 'cpu' a result is a numpy.ndarray"),
        ((np.ones(2), {}), "returned float64 for inputs of float32"),
        (((np.ones(2, "f4"), None), {}), "returned builtins.NoneType. On 'cpu'"),
    ],
)
def test_what_is_no_result_names_the_kernel(result, what):
    class Bad:
        @staticmethod
        def forward(xp, x, *, needs, factor):
            return result

    th.register_kernel(Scale, "cpu", "float32")(Bad)
    with pytest.raises(KernelError, match=r"the kernel .*Bad of scale ") as error:
        step()
    assert what in str(error.value)


def test_a_host_array_is_no_result_on_another_device():
    class Host:
        @staticmethod
        def forward(xp, x, *, needs, factor):
            return x.get() * factor, {}

    th.register_kernel(Scale, "cuda", "float32")(Host)
    with (
        standin(),
        pytest.raises(KernelError, match=r"numpy\.ndarray\. On 'cuda' a result is"),
    ):
        th.apply(Scale, th.ones(2, device="cuda"), factor=2.0)


def test_results_of_other_kinds_pass():
    class Both(th.Op):
        @staticmethod
        def forward(xp, x, *, needs):
            return (x, x > 0, x.sum()), {}

    class Mine:
        @staticmethod
        def forward(xp, x, *, needs):
            return (x, x > 0, x.sum()), {}  # a bool, and NumPy's scalar

    th.register_kernel(Both, "cpu", "float32")(Mine)
    y, positive, total = th.apply(Both, th.ones(2))
    assert (y.tolist(), positive.tolist(), total.item()) == ([1, 1], [True, True], 2)


def test_the_node_names_its_kernel():
    kernel("float32")
    y = th.apply(Scale, th.ones(2, requires_grad=True), factor=2.0)
    assert y.node.kernel.name.endswith("K")
    assert y.sum().node.kernel is None


def test_registering_again():
    kernel("float32")
    kernel("float32", vjp=False)  # the same name: a cell of a notebook run again
    assert step() == ["kernel.forward", "op.vjp"]

    class Other:
        @staticmethod
        def vjp(dy, saved, *, needs, inputs, factor):
            return (dy,)

    with pytest.raises(KernelError, match=r"scale has a kernel on 'cpu' for float32"):
        th.register_kernel(Scale, "cpu", ("float64", "float32"))(Other)
    assert (Scale, np.dtype("float64")) not in kernels_of("cpu")  # nothing by halves


def test_bad_registrations():
    with pytest.raises(DTypeError, match="takes an op"):
        th.register_kernel(np.exp, "cpu", "float32")
    with pytest.raises(DTypeError, match="takes an op"):
        th.register_kernel(int, "cpu", "float32")
    with pytest.raises(DTypeError, match="'float33' is no dtype"):
        th.register_kernel(Scale, "cpu", "float33")
    with pytest.raises(DTypeError, match="None is no dtype"):
        th.register_kernel(Scale, "cpu", None)
    with pytest.raises(DTypeError, match="got no dtype"):
        th.register_kernel(Scale, "cpu", ())
    with pytest.raises(DeviceError, match="'tpu' is unknown"):
        th.register_kernel(Scale, "tpu", "float32")
    with pytest.raises(DeviceError, match="have no numbers"):
        th.register_kernel(Scale, "cuda:1", "float32")
    register = th.register_kernel(Scale, "cpu", "float32")
    with pytest.raises(KernelError, match="neither forward nor vjp"):
        register(type("Nothing", (), {}))

    class Short:
        @staticmethod
        def forward(xp, x, *, needs):
            return x, {}

    with pytest.raises(KernelError, match=r"forward of the kernel .*Short.*'factor'"):
        register(Short)

    class Method:
        def vjp(self, dy, saved, *, needs, inputs, factor):
            return (dy,)

    with pytest.raises(KernelError, match="vjp of the kernel"):
        register(Method)
    assert (Scale, np.dtype("float32")) not in get_backend("cpu").kernels
