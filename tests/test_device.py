"""The device "cuda": copies, mixing, errors, memory, files; on the double of CuPy.

Those marked `cuda` say the same of a GPU, where there is one.
"""

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from standin import DeviceArray, standin

import tinygrad_helix as th
from tinygrad_helix.backend import get_backend, installed
from tinygrad_helix.cuda.device import CudaBackend
from tinygrad_helix.errors import (
    BackendUnavailableError,
    DeviceError,
    DTypeError,
    GraphError,
    HelixError,
)

ROOT = Path(__file__).parents[1]


@pytest.fixture(params=["double", pytest.param("gpu", marks=pytest.mark.cuda)])
def xp(request):
    """The array module of "cuda": the double, and CuPy where there is a GPU."""
    if request.param == "gpu":
        yield get_backend("cuda").xp
    else:
        with standin() as backend:
            yield backend.xp


def on_cuda(values, requires_grad=False, dtype="float64"):
    return th.Tensor(np.array(values, dtype), requires_grad=requires_grad, device="cuda")


# --- moving


def test_to_and_back(xp):
    x = th.Tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    y = x.to("cuda")
    assert (y.device, type(y.data), y.dtype) == ("cuda", xp.ndarray, np.float32)
    assert y.to("cuda") is y and x.to("cpu") is x
    (y * y).sum().backward()
    assert x.grad.device == "cpu" and x.grad.tolist() == [[2.0, 4.0], [6.0, 8.0]]
    back = (y * 2).to("cpu")
    assert type(back.data) is np.ndarray and back.tolist() == [[2.0, 4.0], [6.0, 8.0]]
    assert repr(y.detach()) == repr(x.detach())[:-1] + ", cuda)"


def test_to_has_a_second_derivative(xp):
    x = th.Tensor(np.array([3.0]), requires_grad=True)
    (g,) = th.grad(x.to("cuda") ** 3, x, create_graph=True)
    assert g.device == "cpu"
    assert th.grad(g, x)[0].tolist() == [18.0]


def test_gradients_land_where_the_leaf_is(xp):
    x = on_cuda([1.0, 2.0], requires_grad=True)
    (x.to("cpu") * 3).sum().backward()
    assert x.grad.device == "cuda" and x.grad.tolist() == [3.0, 3.0]
    x.exp().sum().backward()
    np.testing.assert_allclose(x.grad.tolist(), 3 + np.exp([1.0, 2.0]))


@pytest.mark.parametrize(
    "make",
    [
        lambda **k: th.zeros(2, 3, **k),
        lambda **k: th.ones(2, 3, **k),
        lambda **k: th.empty(2, 3, **k) * 0,
        lambda **k: th.full((2, 3), 7, **k),
        lambda **k: th.eye(2, 3, **k),
        lambda **k: th.arange(1.0, 4.0, **k),
        lambda **k: th.arange(5, **k),
        lambda **k: th.linspace(0, 1, 5, **k),
        lambda **k: th.randn(2, 3, generator=np.random.default_rng(0), **k),
        lambda **k: th.rand(2, 3, generator=np.random.default_rng(0), **k),
        lambda **k: th.tensor([[1.0, 2.0]], **k),
        lambda **k: th.tensor([1, 2], **k),
        lambda **k: th.Tensor(np.arange(3.0), **k),
        lambda **k: th.Tensor(2.5, **k),
    ],
)
def test_constructors_take_a_device(xp, make):
    x, y = make(device="cuda"), make()
    assert x.device == "cuda" and x.dtype == y.dtype
    assert x.to("cpu").tolist() == y.tolist()  # random ones too: drawn on the host


def test_tensors_alias_device_arrays_and_likes_stay(xp):
    array = xp.arange(4.0)
    x = th.Tensor(array)
    assert x.data is array and x.device == "cuda"
    assert th.tensor(array).data is not array
    assert th.zeros_like(x).device == th.randn_like(x).device == "cuda"
    assert th.tensor(x).device == "cuda"
    assert th.tensor(x, device="cpu").device == "cpu"


def test_modules_and_optimizers(xp):
    model = th.nn.Linear(2, 3, device="cuda")
    assert {p.device for p in model.parameters()} == {"cuda"}
    model(th.ones(1, 2, device="cuda")).sum().backward()
    gradient = model.weight.grad.tolist()
    model.to("cpu")
    assert model.weight.device == model.weight.grad.device == "cpu"
    assert model.weight.grad.tolist() == gradient
    other = th.nn.Linear(2, 3).to("cuda")
    other.load_state_dict(model.state_dict())  # copies over
    assert other.weight.device == "cuda" and other.weight.tolist() == model.weight.tolist()
    lm = th.nn.HelixLM(vocab=5, dim=3, layers=1, device="cuda")
    assert lm.loss([[1, 2, 3]], [[2, 3, 4]]).device == "cuda"


# --- mixing (https://github.com/cupy/cupy/issues/5379)


def test_O69_mixing_devices_names_both(xp):
    x, y = th.ones(3), on_cuda([1.0, 2.0, 3.0], dtype="float32")
    mixed = [
        lambda: x + y,
        lambda: y + x,
        lambda: y * np.ones(3, np.float32),
        lambda: np.ones(3, np.float32) * y,
        lambda: th.ones(3, 3) @ y,
        lambda: th.where(th.tensor([True, False, True]), y, y),
        lambda: y[np.array([0, 1])],
        lambda: y > x,
        lambda: th.cat([x, y]),
        lambda: th.embedding(on_cuda([[1.0]]), np.array([0])),
        lambda: th.gated_scan(th.ones(1, 2, 3), th.ones(1, 2, 3, device="cuda")),
        lambda: th.nn.Linear(3, 2)(y),
    ]
    for call in mixed:
        with pytest.raises(DeviceError) as caught:
            call()
        assert "'cpu'" in str(caught.value) and "'cuda'" in str(caught.value)


def test_O69_writing_across_devices(xp):
    x = on_cuda([1.0, 2.0])
    for write in (x.__iadd__, x.__imul__, lambda v: x.__setitem__(slice(None), v)):
        with pytest.raises(DeviceError, match=r"'cuda' and 'cpu'"):
            write(th.Tensor(np.ones(2)))
    with pytest.raises(DeviceError):
        x[np.array([0])] = 1.0
    assert x.tolist() == [1.0, 2.0] and x.version == 0
    x.copy_(th.Tensor(np.array([5.0, 6.0])))  # the one that copies
    assert x.tolist() == [5.0, 6.0]


def test_O69_gradients_and_cotangents(xp):
    x = on_cuda([1.0, 2.0], requires_grad=True)
    with pytest.raises(DeviceError, match="'cpu' does not fit"):
        x.grad = th.Tensor(np.ones(2))
    with pytest.raises(DeviceError):
        (x * 2).backward(th.Tensor(np.ones(2)))


def test_O69_optimizer_state_on_another_device(xp):
    model = th.nn.Linear(2, 1)
    optimizer = th.optim.AdamW(list(model.parameters()), 0.1)
    model(th.ones(1, 2)).sum().backward()
    optimizer.step()
    model.to("cuda")
    model(th.ones(1, 2, device="cuda")).sum().backward()
    before = [p.tolist() for p in model.parameters()]
    with pytest.raises(DeviceError, match=r"is on 'cuda', and its m on 'cpu'"):
        optimizer.step()
    assert [p.tolist() for p in model.parameters()] == before
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step()
    assert [p.tolist() for p in model.parameters()] != before


def test_to_numpy_only_when_asked(xp):
    x = on_cuda([1.0])
    for convert in (x.numpy, lambda: np.asarray(x)):
        with pytest.raises(DeviceError, match=r"Use to\('cpu'\)"):
            convert()
    assert float(x) == 1.0 and x.item() == 1.0 and x.tolist() == [1.0] and bool(x)
    assert int(on_cuda([3], dtype="int64")) == 3
    with pytest.raises(DTypeError, match="from_numpy"):
        th.from_numpy(xp.ones(3))


# --- indices


def test_O22_repeated_indices_add_up(xp):
    x = th.Tensor(xp.zeros(3), requires_grad=True)
    x[xp.array([0, 0, 1])].sum().backward()
    assert x.grad.tolist() == [2.0, 1.0, 0.0]
    y = th.Tensor(xp.zeros((2, 3)), requires_grad=True)
    y[[0, 1, 1, 1], [2, 0, 0, -3]].sum().backward()
    assert y.grad.tolist() == [[0.0, 0.0, 1.0], [3.0, 0.0, 0.0]]
    y.grad = None
    y[:, [1, 1]].sum().backward()
    assert y.grad.tolist() == [[0.0, 2.0, 0.0]] * 2


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64"])
@pytest.mark.parametrize("n", [0, 1, 2, 7, 64, 200])
def test_scatter_add_equals_add_at(xp, dtype, n):
    rng = np.random.default_rng(n)
    backend = get_backend("cuda")
    rows, values = rng.integers(-5, 5, n), rng.integers(-9, 9, (n, 2)).astype(dtype)
    want = np.zeros((5, 2), dtype)
    np.add.at(want, rows, values)
    got = xp.zeros((5, 2), dtype)
    backend.scatter_add(got, xp.asarray(rows), xp.asarray(values))
    assert np.array_equal(got.get(), want)
    flat = xp.zeros((2, 5), dtype).T  # not contiguous; an index of two arrays
    columns = rng.integers(0, 2, n)
    want[...] = 0
    np.add.at(want, (rows, columns), values[:, 0])
    index = xp.asarray(rows), xp.asarray(columns)
    backend.scatter_add(flat, index, xp.asarray(values[:, 0]))
    assert np.array_equal(flat.get(), want)


def test_an_index_out_of_bounds_is_an_error_not_another_element(xp):
    x = on_cuda(np.arange(6.0).reshape(2, 3))
    for index in ([0, 2], [-3], ([0], [3]), (..., [3]), (None, slice(None), [-4])):
        with pytest.raises(IndexError, match="out of bounds for axis"):
            x[index]
    with pytest.raises(IndexError, match="out of bounds for axis 0 with size 2"):
        x[th.tensor([2], device="cuda")] = 1.0
    assert x[..., [-1, 0]].tolist() == [[2.0, 0.0], [5.0, 3.0]]
    assert x[x > 3].tolist() == [4.0, 5.0]


# --- layout (https://github.com/cupy/cupy/issues/9233)


@pytest.mark.parametrize("mode", ["composed", "fused"])
def test_O20_strided_inputs_are_read_as_they_lie(xp, mode):
    rng = np.random.default_rng(0)
    block = th.nn.HelixBlock(4, mode=mode, dtype="float64", generator=rng, device="cuda")
    base = xp.asarray(rng.standard_normal((6, 10, 4)))
    views = [
        xp.asarray(rng.standard_normal((3, 4, 5))).transpose(0, 2, 1),
        base[:, ::2],
        base[::-1],
        xp.broadcast_to(base[:1], (3, 10, 4)),
    ]

    def run(array):
        x = th.Tensor(array, requires_grad=True)
        y = block(x)
        dy = th.Tensor(xp.asarray(np.random.default_rng(1).standard_normal(y.shape)))
        return [y, *th.grad(y, [x, *block.parameters()], dy)]

    for view in views:
        got, want = run(view), run(xp.ascontiguousarray(view))
        for g, w in zip(got, want, strict=True):
            np.testing.assert_allclose(g.to("cpu").tolist(), w.tolist(), rtol=1e-10)


# --- the tape, memory


def test_versions_saved_bytes_and_anomaly(xp):
    x = on_cuda(np.ones((4, 8)), requires_grad=True)
    y = x.exp().sum()
    assert th.saved_bytes(y) == 256
    z = on_cuda([1.0, 2.0])
    w = on_cuda([1.0, 2.0], requires_grad=True)
    product = (w * z).sum()
    z += 1
    with pytest.raises(GraphError, match="written in place"):
        product.backward()
    with th.detect_anomaly(), pytest.raises(GraphError, match="not finite"):
        (w - 5).log()


def test_the_meter_counts_requested_and_given_bytes(xp):
    meter = get_backend("cuda").meter
    old = xp.zeros(100)
    with meter.tracing():
        a = xp.zeros((10, 10), "float32")
        b = xp.zeros(1, "float64")
        assert meter.live_and_peak() == (408, 408)
        assert (meter.array_bytes(), meter.pool_bytes()) == (408, 1024)
        del a, old  # what was there before does not count
        assert meter.live_and_peak() == (8, 408)
        view = b[:]
        del b
        assert meter.array_bytes() == 8
        del view
        meter.reset_peak()
        assert meter.live_and_peak() == (0, 0)
    assert not meter.is_tracing()


def test_the_meter_counts_no_allocation_that_failed():
    """CuPy's pool tells its hooks of those too, with the null pointer."""
    with standin() as backend:
        meter = backend.meter
        with meter.tracing():
            meter._hook.malloc_postprocess(mem_ptr=0, size=1 << 40, mem_size=1 << 40)
            assert meter.live_and_peak() == (0, 0) and meter.pool_bytes() == 0


def test_record_carries_device_bytes(xp):
    x = on_cuda(np.ones(64), requires_grad=True)
    meter = get_backend("cuda").meter
    with meter.tracing(), th.memory.record() as ledger:
        y = x.exp().sum()
    assert [e.live for e in ledger.events] == [512, 520]
    assert y.item() > 0


# --- copies and files


def test_deepcopy_and_pickle_stay_on_the_device(xp):
    x = th.nn.Parameter(on_cuda([1.0, 2.0]))
    (x * x).sum().backward()
    for again in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert type(again) is th.nn.Parameter
        assert (again.device, again.grad.device) == ("cuda", "cuda")
        assert (again.tolist(), again.grad.tolist()) == ([1.0, 2.0], [2.0, 4.0])
        assert again.data is not x.data


def test_files_hold_host_arrays(xp, tmp_path):
    model = th.nn.Linear(2, 3, device="cuda")
    th.save(model.state_dict(), tmp_path / "model.npz")
    state = th.load(tmp_path / "model.npz")
    assert state["weight"].device == "cpu"
    th.save({"bare": xp.arange(3)}, tmp_path / "bare.npz")
    assert th.load(tmp_path / "bare.npz")["bare"].tolist() == [0, 1, 2]
    other = th.nn.Linear(2, 3, device="cuda")
    other.load_state_dict(state)
    assert other.weight.tolist() == model.weight.tolist()


def test_dlpack(xp):
    x = on_cuda([1.0, 2.0])
    assert x.__dlpack_device__() == (2, 0)
    y = th.from_dlpack(x)
    assert y.device == "cuda" and y.tolist() == [1.0, 2.0]
    assert th.from_dlpack(xp.ones(2)).device == "cuda"


def test_dlpack_without_the_device():
    with standin() as backend:
        array = backend.xp.ones(2)
    with pytest.raises(HelixError, match="cuda is not available"):
        th.from_dlpack(array)


# --- what is not there


def python(code):
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


ASK = (
    "import tinygrad_helix as th\n"
    "assert th.ones(3).sum().item() == 3\n"
    "for ask in (lambda: th.ones(3, device='cuda'), lambda: th.ones(3).to('cuda'),\n"
    "            lambda: th.nn.Linear(2, 2).to('cuda')):\n"
    "    try: ask()\n"
    "    except th.errors.BackendUnavailableError as e: print(e)\n"
)
FAKE = """
import sys, types
class Error(RuntimeError): pass
def count():
    {count}
runtime = types.SimpleNamespace(CUDARuntimeError=Error, getDeviceCount=count,
                                driverGetVersion=lambda: {driver})
cuda = types.SimpleNamespace(runtime=runtime, is_available=lambda: False)
sys.modules['cupy'] = types.SimpleNamespace(__version__='14.2.0', cuda=cuda)
"""
INSUFFICIENT = (
    "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime "
    "version"
)


@pytest.mark.parametrize(
    "state, message",
    [
        (
            "import sys; sys.modules['cupy'] = None",
            'CuPy is not installed. pip install "tinygrad_helix[cuda12]" (driver for CUDA '
            '12) or "[cuda13]" (CUDA 13).',
        ),
        (
            FAKE.format(count=f"raise Error('{INSUFFICIENT}')", driver=0),
            f"CuPy 14.2.0 is installed, but {INSUFFICIENT} (driver not found). Tensors "
            'stay on "cpu".',
        ),
        (
            FAKE.format(count="return 0", driver=12080),
            "CuPy 14.2.0 is installed, but no CUDA device is visible (driver 12080). "
            'Tensors stay on "cpu".',
        ),
        (
            "import sys\nclass Broken:\n    def find_spec(self, name, *rest):\n"
            "        if name == 'cupy': raise ImportError('libcuda.so.1 is missing')\n"
            "sys.meta_path.insert(0, Broken())",
            "CuPy is installed, but fails with ImportError: libcuda.so.1 is missing. "
            'Tensors stay on "cpu".',
        ),
        (
            "import sys\nclass Broken:\n    def find_spec(self, name, *rest):\n"
            "        if name == 'cupy':\n"
            "            raise ModuleNotFoundError('No module named fastrlock',\n"
            "                                      name='fastrlock')\n"
            "sys.meta_path.insert(0, Broken())",
            "CuPy is installed, but fails with ModuleNotFoundError: No module named "
            'fastrlock. Tensors stay on "cpu".',
        ),
    ],
)
def test_O68_one_clear_error_in_each_state(state, message):
    lines = python(f"{state}\n{ASK}").splitlines()
    assert lines == [f"cuda is not available: {message}"] * 3


def test_O68_cupy_is_imported_on_first_use_only():
    code = "import sys, tinygrad_helix; print('cupy' in sys.modules)"
    assert python(code).strip() == "False"


def test_unknown_devices():
    for device in ("gpu", "CUDA", "", 0, None):
        with pytest.raises(DeviceError, match=r"unknown. Use one of: 'cpu', 'cuda'"):
            th.ones(2).to(device)
    with pytest.raises(DeviceError, match="the devices have no numbers"):
        th.ones(2).to("cuda:1")


def test_installing_a_device_ends_with_the_block():
    with standin() as backend:
        assert isinstance(backend, CudaBackend) and get_backend("cuda") is backend
        array = backend.xp.ones(2)
        with installed(CudaBackend(backend.xp)) as inner:
            assert get_backend("cuda") is inner
        assert get_backend("cuda") is backend
    assert type(array) is DeviceArray
    with pytest.raises(HelixError, match="DeviceArray"):
        th.Tensor(array)


def test_info_says_what_there_is():
    out = subprocess.run(
        [sys.executable, "-m", "tinygrad_helix", "info", "--json", "-"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    state = json.loads(out)["devices"]["cuda"]
    assert state == "ok" or state.startswith("cuda is not available: ")


@pytest.mark.cuda
def test_a_gpu_is_there():
    assert get_backend("cuda").xp.__name__ == "cupy"


def test_the_skip_of_tests_is_the_error_itself():
    from tinygrad_helix.cuda.device import unavailable

    reason = unavailable()
    if reason is not None:
        with pytest.raises(BackendUnavailableError) as caught:
            CudaBackend()
        assert str(caught.value) == reason
