"""CuPy conformance without a GPU: all of it runs on a strict double of CuPy as on NumPy."""

import contextlib

import numpy as np
import pytest
import standin
from opinfo import OPS

import tinygrad_helix as th
from tinygrad_helix.backend import kernels_of
from tinygrad_helix.check import Row, _accounting, check
from tinygrad_helix.samples import blocks, layers, op_sample

TOLERANCE = {"float64": 1e-12, "float32": 1e-5}

pytestmark = pytest.mark.usefixtures("cuda_standin")


def leaves_on(device, arrays):
    """Arrays as Tensors of a device, of which all floats require a gradient."""
    return [
        th.Tensor(a, device=device, requires_grad=a.dtype.kind == "f")
        if isinstance(a, np.ndarray)
        else a
        for a in arrays
    ]


def listed(value):
    return list(value) if isinstance(value, (tuple, list)) else [value]


def on_host(x):
    """A Tensor's values, wherever they are."""
    return x.detach().to("cpu").numpy()


def ran(info, arrays, device):
    """Values and gradients of an op on a device."""
    xs = leaves_on(device, arrays)
    ys = [y for y in listed(info.fn(*xs)) if isinstance(y, th.Tensor)]
    assert all(y.device == device for y in ys)
    gradients = []
    wanted = [x for x in xs if isinstance(x, th.Tensor) and x.requires_grad]
    roots = [y for y in ys if y.requires_grad]
    if info.gradient and wanted and roots:
        rng = np.random.default_rng(0)
        dys = [
            th.Tensor(rng.standard_normal(y.shape), dtype=y.dtype, device=device)
            for y in roots
        ]
        gradients = th.grad(roots, wanted, dys, allow_unused=True)
        assert all(g is None or g.device == device for g in gradients)
    return [on_host(y) for y in ys], [None if g is None else on_host(g) for g in gradients]


def assert_equal(got, want, tolerance):
    for g, w in zip(got, want, strict=True):
        if w is None:
            assert g is None
            continue
        assert g.dtype == w.dtype and g.shape == w.shape
        scale = max(1.0, np.abs(w).max(initial=0)) if w.dtype.kind == "f" else 1.0
        np.testing.assert_allclose(g, w, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("info", OPS, ids=repr)
def test_every_op_and_gradient_equals_numpys(info, dtype):
    for make in (info.inputs, *info.edges, *info.broadcasts):
        arrays = info.sample(np.dtype(dtype), make)
        got, want = (ran(info, arrays, device) for device in ("cuda", "cpu"))
        assert_equal(got[0], want[0], TOLERANCE[dtype])
        assert_equal(got[1], want[1], TOLERANCE[dtype])


@contextlib.contextmanager
def no_kernels(device):
    """Within the block every op runs its own body."""
    table = kernels_of(device)
    before = dict(table)
    table.clear()
    try:
        yield
    finally:
        table.update(before)


# --- blocks, layers, the language model, optimizers


def on_device(sample):
    """(output values, gradients by name, row of bytes) of a sample of the package."""
    named = dict(zip(sample.names, sample.values, strict=True))
    leaves = {k: v for k, v in named.items() if isinstance(v, th.Tensor)}
    wanted = {k: v for k, v in leaves.items() if v.requires_grad}
    ys = [y for y in listed(sample.fn(*sample.values)) if y.requires_grad]
    rng = np.random.default_rng(0)
    dys = [th.Tensor(rng.standard_normal(y.shape), device=y.device) for y in ys]
    found = th.grad(ys, list(wanted.values()), dys, allow_unused=True)
    return [on_host(y) for y in ys], [None if g is None else on_host(g) for g in found]


SAMPLES = [s for s in (*blocks(), *layers()) if "keep" not in s.name or "keep6" in s.name]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.name)
def test_every_block_and_layer_equals_numpys(sample):
    got, want = on_device(sample.to("cuda")), on_device(sample)
    for g, w in zip(got, want, strict=True):
        assert_equal(g, w, 1e-12)


@pytest.mark.parametrize("sample", SAMPLES[:6], ids=lambda s: s.name)
def test_bytes_are_predicted_counted_and_measured_on_cuda_too(sample):
    with no_kernels("cuda"):
        row = check_bytes(sample.to("cuda"))
    assert row["predicted"] == row["counted"] == row["measured"] > 0


def check_bytes(sample):
    row = Row("", sample.name)
    for name, value in zip(sample.names, sample.values, strict=True):
        if name in sample.parameters:
            th.memory.mark_parameter(value.data)
    _accounting(row, sample)
    assert row.verdict == "ok", row.findings
    return row.saved_bytes


@pytest.mark.parametrize(
    "make",
    [
        lambda ps: th.optim.SGD(ps, 0.1),
        lambda ps: th.optim.SGD(ps, 0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
        lambda ps: th.optim.Adam(ps, 0.1),
        lambda ps: th.optim.AdamW(ps, 0.1),
    ],
    ids=["SGD", "SGD with momentum", "Adam", "AdamW"],
)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_optimizers_equal_numpys(make, dtype):
    def trained(device):
        rng = np.random.default_rng(0)
        layer = th.nn.Linear(3, 2, dtype=dtype, generator=rng, device=device)
        optimizer = make(list(layer.parameters()))
        x = th.Tensor(rng.standard_normal((4, 3)), dtype=dtype, device=device)
        for _ in range(3):
            (layer(x) ** 2).sum().backward()
            norm = th.optim.clip_grad_norm_(layer.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        again = make(list(layer.parameters()))
        again.load_state_dict(optimizer.state_dict())
        return [norm, *(on_host(p) for p in layer.parameters())]

    for g, w in zip(trained("cuda"), trained("cpu"), strict=True):
        tolerance = {"float16": 1e-2, "float32": 1e-5, "float64": 1e-12}[dtype]
        np.testing.assert_allclose(g, w, rtol=tolerance, atol=tolerance)


def test_the_language_model_trains_as_on_numpy():
    def losses(device):
        rng = np.random.default_rng(0)
        model = th.nn.HelixLM(17, 8, 2, dtype="float64", generator=rng, device=device)
        optimizer = th.optim.AdamW(list(model.parameters()), 0.01)
        tokens = rng.integers(0, 17, (2, 6))
        ids = th.Tensor(tokens, device=device)
        found = []
        for _ in range(3):
            loss = model.loss(ids[:, :-1], ids[:, 1:])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
        return found

    np.testing.assert_allclose(losses("cuda"), losses("cpu"), rtol=1e-12)


def test_compare_runs_on_cuda():
    x = th.Tensor(np.linspace(-1, 1, 12).reshape(3, 4), requires_grad=True)
    forms = {"a": lambda x: (x * x).sum(), "b": lambda x: (x**2).sum()}
    report = th.compare(forms, {"x": x}, repeats=1, device="cuda")
    assert report.config["device"] == "cuda" and report.check() == []
    assert [r.saved_bytes["measured"] for r in report.rows] == [96, 96]
    assert report.rows[0].peak_bytes > 0


@pytest.mark.parametrize("name", ["mul", "embedding", "softmax", "getitem"])
def test_gradcheck_and_audit_run_on_cuda(name):
    row = check(op_sample(name).to("cuda"))
    assert row.verdict == "ok" and row.audit == "ok", row.findings


# --- the double itself: what CuPy does not have is refused


@pytest.mark.parametrize(
    "planted, error, message",
    [
        (lambda xp, x: xp.errstate(all="ignore"), AttributeError, "errstate"),
        (lambda xp, x: xp.frompyfunc(abs, 1, 1), AttributeError, "frompyfunc"),
        (lambda xp, x: x.max(initial=0), TypeError, "initial"),
        (lambda xp, x: xp.sum(x, where=x > 0), TypeError, "where"),
        (lambda xp, x: xp.add(x, x, where=x > 0), TypeError, "where"),
        (lambda xp, x: x.flags.writeable, AttributeError, "writeable"),
        (lambda xp, x: x.ctypes, AttributeError, "ctypes"),
        (lambda xp, x: np.asarray(x), TypeError, "Implicit conversion"),
        (lambda xp, x: np.sum(x), TypeError, "numpy.sum"),
        (lambda xp, x: np.add.at(x, 0, 1), TypeError, "numpy.add.at"),
        (lambda xp, x: x + np.ones(3), TypeError, "Unsupported type"),
        (lambda xp, x: xp.exp(np.ones(3)), TypeError, "Unsupported type"),
        (lambda xp, x: xp.argsort(x, 0, None, "x"), TypeError, "positional"),
        (lambda xp, x: xp.einsum("i,i->", x, x, out=x), TypeError, "out"),
        (lambda xp, x: x[xp.array([7])], AssertionError, "would not see it"),
        (lambda xp, x: xp.isfinite(xp.array([1])).item(), None, ""),
    ],
)
def test_planted_calls_of_numpys_alone_are_caught(cuda_standin, planted, error, message):
    xp = cuda_standin.xp

    class Planted(th.Op):
        @staticmethod
        def forward(xp, x, *, needs):
            planted(xp, x)
            return x + 1, {}

    x = th.Tensor(xp.ones(3))
    if error is None:
        th.apply(Planted, x)
        return
    with pytest.raises(error, match=message):
        th.apply(Planted, x)


def test_results_are_arrays_where_numpy_makes_scalars(cuda_standin):
    x = cuda_standin.xp.arange(3.0)
    for value in (x.sum(), x[0], x.mean(), -x[1], cuda_standin.xp.exp(x[0])):
        assert type(value) is cuda_standin.array_type and value.shape == ()


def test_the_list_of_names_is_that_of_an_installed_cupy():
    pytest.importorskip("cupy", reason="CuPy is not installed: its names are in golden/")
    import cupy_names

    assert cupy_names.read() == standin.CUPY
