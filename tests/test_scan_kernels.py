"""The gated scan's CUDA kernels, run on a CPU: NumPy's numbers by both ways, and no others.

The kernels are those of a GPU, compiled by g++ (tinygrad_helix.cuda.host), and all from
`gated_scan` down to the launch is the code that runs there; only the device is a double.
"""

import itertools
import mmap
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from host_device import host_device, launches
from standin import standin

import tinygrad_helix as th
from tinygrad_helix.cuda import host, scan
from tinygrad_helix.cuda.host import HostDevice, HostModule, thread_order
from tinygrad_helix.cuda.launch import load
from tinygrad_helix.cuda.source import read_source
from tinygrad_helix.errors import KernelError
from tinygrad_helix.ops.scan import GatedScan, GatedScanGrad

GOLDEN = sorted((Path(__file__).parent / "golden" / "helix").glob("scan_*.npz"))
TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "float16": 3e-2, "bfloat16": 3e-2}
R = ["scan_r", "scan_grad_r"]
C = [
    *("scan_c_summarize", "scan_c_carry", "scan_c_apply"),
    *("scan_grad_c_summarize", "scan_c_carry", "scan_grad_c_apply"),
]
i32, i64 = np.int32, np.int64


@pytest.fixture(scope="module")
def device():
    with host_device() as backend:
        yield backend


def random_case(B, T, D, dtype, h0=True, reset=True, seed=0):
    """a with gates of exactly 0 and 1, b, h0, reset, and the cotangents of h and last."""
    rng = np.random.default_rng(seed)
    a = rng.uniform(-0.2, 1.0, (B, T, D))
    chance = rng.random((B, T, D))
    a[chance < 0.05] = 0
    a[chance > 0.95] = 1
    draw = rng.standard_normal
    arrays = [a, draw((B, T, D)), draw((B, D)) if h0 else None]
    mask = rng.random((B, T)) < 0.1 if reset else None
    dy = [draw((B, T, D)), draw((B, D))]
    cast = [None if v is None else v.astype(dtype) for v in (*arrays, *dy)]
    return cast[:3], mask, cast[3:]


def run(where, arrays, reset, dy, wanted=None):
    """h, last and the gradients of `wanted` (all) of the inputs, as NumPy arrays."""
    inputs = [None if v is None else th.Tensor(v, device=where) for v in arrays]
    given = [i for i, v in enumerate(inputs) if v is not None]
    wanted = given if wanted is None else wanted
    for i in wanted:
        inputs[i].requires_grad = True
    mask = None if reset is None else th.Tensor(reset, device=where)
    h, last = th.gated_scan(*inputs, mask)
    cotangents = [th.Tensor(v, device=where) for v in dy]
    th.backward([h, last], cotangents)
    got = [h, last, *(inputs[i].grad for i in wanted)]
    assert all(v.device == where and v.dtype == arrays[0].dtype for v in got)
    return [v.detach().to("cpu").numpy() for v in got]


def error(got, due, among=None):
    """The largest difference over the largest value of `due`, or of `among`."""
    got, due = got.astype(np.float64), due.astype(np.float64)
    assert got.shape == due.shape
    if due.size == 0:
        return 0.0
    scale = np.abs(due if among is None else among.astype(np.float64)).max(initial=0)
    return np.abs(got - due).max() / max(scale, 1.0)


def check(arrays, reset, dy, **kwargs):
    """The device's numbers are NumPy's; what was launched."""
    launches.clear()
    got = run("cuda", arrays, reset, dy, **kwargs)
    seen = list(launches)
    due = run("cpu", arrays, reset, dy, **kwargs)
    among = list(due)
    among[1] = due[0]  # last is one of h
    if len(due) == 5:
        among[4] = due[3]  # and dh0 = a_0 G_0 of the size of G = db
    for g, d, e in zip(got, due, among, strict=True):
        assert error(g, d, e) <= TOLERANCE[arrays[0].dtype.name]
    return seen


# --- which way


def test_the_plan():
    f4, f8, f2 = map(np.dtype, ("float32", "float64", "float16"))
    bf = np.dtype(ml_dtypes.bfloat16)
    # Many channels: one chunk, 16 steps ahead; fewer: 32.
    assert scan.plan(64, 512, 1024, f4) == scan.Plan("float", 1, 16, 16, 1, 512)
    assert scan.plan(8, 2048, 2048, f4) == scan.Plan("float", 1, 32, 16, 1, 2048)
    assert scan.plan(8, 2048, 2048, f8) == scan.Plan("double", 1, 16, 8, 1, 2048)
    # Few: 512 chunks of 128 steps.
    assert scan.plan(1, 65536, 256, f4) == scan.Plan("float", 1, 32, 16, 512, 128)
    # The first shapes on each side.
    cuts = [scan.plan(1, 256, D, f4).chunks for D in (12_287, 12_288)]
    assert cuts == [4, 1] and scan.plan(3, 256, 4096, f4).chunks == 1
    assert [scan.plan(1, 20, D, f4).ahead for D in (32_767, 32_768)] == [32, 16]
    # Short sequences are not cut, and chunks are not shorter than 64.
    assert scan.plan(1, 127, 3, f4).chunks == 1
    assert scan.plan(1, 129, 3, f4) == scan.Plan("float", 1, 32, 16, 3, 64)
    # Pairs of 16-bit channels where D is even.
    assert scan.plan(2, 9, 6, f2)[:2] == ("__half2", 2)
    assert scan.plan(2, 9, 7, f2)[:2] == ("__half", 1)
    assert scan.plan(2, 9, 6, bf)[:2] == ("__nv_bfloat162", 2)
    assert scan.plan(2, 9, 7, bf)[:2] == ("__nv_bfloat16", 1)


def test_chunks_cover_time_once():
    for T, channels in itertools.product(
        (1, 127, 128, 129, 1000, 65537, 10**7), (1, 77, 9999)
    ):
        p = scan.plan(1, T, channels, np.dtype("float32"))
        assert (p.chunks - 1) * p.length < T <= p.chunks * p.length
        assert p.chunks == 1 or (p.length >= 64 and p.length % 8 == 0)


# --- NumPy's numbers


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.stem)
def test_golden(device, path, dtype):
    """Against float64 values of a PyTorch loop; on long products float32 may be NumPy's."""
    golden = np.load(path)
    names = ("a", "b", "h0") if "h0" in golden else ("a", "b")
    arrays = [golden[n].astype(dtype) for n in names] + [None] * (3 - len(names))
    dy = [golden["gh"].astype(dtype), golden["g_last"].astype(dtype)]
    check(arrays, None, dy)
    if dtype == "float64":
        got = run("cuda", arrays, None, dy)
        due = [golden["h"], golden["h"][:, -1], *(golden[f"with_last.g{n}"] for n in names)]
        for g, d in zip(got, due, strict=True):
            assert error(g, d) <= TOLERANCE[dtype]


SHAPES = [
    ((2, 1, 3), R),
    ((1, 2, 130), R),
    ((3, 127, 33), R),
    ((1, 129, 1), C),
    ((2, 257, 33), C),
    ((1, 257, 130), C),
    ((1, 1000, 2), C),
    ((70_000, 3, 1), R),
]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize(("shape", "way"), SHAPES, ids=str)
def test_ragged_shapes(device, shape, way, dtype):
    for h0, reset in itertools.product((False, True), (False, True)):
        assert check(*random_case(*shape, dtype, h0, reset)) == way


@pytest.mark.parametrize("shape", [(2, 65, 33), (2, 65, 34), (1, 257, 33), (1, 257, 34)])
def test_bfloat16_storage(device, shape):
    """The kernels' own functions on arrays, against NumPy's on the same values widened."""
    (a, b, h0), reset, dy = random_case(*shape, ml_dtypes.bfloat16)
    on_device = [device.asarray(v) for v in (a, b, h0, reset)]
    (h, last), saved = scan.CudaGatedScan.forward(device.xp, *on_device, needs=(True,) * 4)
    assert saved["a"] is on_device[0] and saved["h"] is h
    grad = scan.CudaGatedScanGrad.forward(
        *(device.xp, *map(device.asarray, dy), on_device[0], h, *on_device[2:]),
        needs=(False,) * 6,
        wants=(True, True),
    )[0]
    wide = [v.astype(np.float64) for v in (a, b, h0)]
    due, _ = GatedScan.forward(np, *wide, reset, needs=(True,) * 4)
    due_grad, _ = GatedScanGrad.forward(
        *(np, *(v.astype(np.float64) for v in dy), wide[0], due[0], wide[2], reset),
        needs=(False,) * 6,
        wants=(True, True),
    )
    for got, d in zip((h, last, *grad), (*due, *due_grad), strict=True):
        assert got.dtype == ml_dtypes.bfloat16
        assert error(device.to_numpy(got), d) <= TOLERANCE["bfloat16"]


def test_a_16_bit_state_is_float32(device):
    # 4,096 steps of 1: in float16 the sum stops at 2,048, in bfloat16 at 256.
    for dtype, D in itertools.product((np.float16, ml_dtypes.bfloat16), (1, 2)):
        ones = device.asarray(np.ones((1, 4096, D), dtype))
        arrays = (ones, ones, None, None)
        forward = scan.CudaGatedScan.forward
        (h, last), _ = forward(device.xp, *arrays, needs=(False,) * 4)
        assert (device.to_numpy(last) == 4096).all()
        assert (device.to_numpy(h)[0, -1] == 4096).all()


def test_every_length_around_what_is_on_its_way(device):
    """T below, at and above U, 2 U and their neighbours, in the middle of others."""
    lengths = {n + k for n in (8, 16, 24, 32, 48, 64, 96) for k in (-1, 0, 1)}
    for T in sorted(lengths | {1, 2, 3}):
        for dtype in ("float32", "float64"):
            assert check(*random_case(2, T, 2, dtype, seed=T)) == R


def test_many_channels_take_the_short_turns(device):
    case = random_case(33_000, 20, 1, "float32")
    assert scan.plan(33_000, 20, 1, np.dtype("float32")).ahead == 16
    assert check(*case) == R


@pytest.mark.parametrize("T", [40, 200])
def test_gates_of_zero_and_one_are_exact(device, T):
    (_, b, h0), _, dy = random_case(2, T, 3, "float32")
    h, _, _, db, dh0 = run("cuda", [np.zeros_like(b), b, h0], None, dy)
    assert np.array_equal(h, b) and not dh0.any()
    assert np.array_equal(db[:, :-1], dy[0][:, :-1])
    b = np.round(b * 8) / 8  # sums of eighths are exact in any order
    h, last, *_ = run("cuda", [np.ones_like(b), b, np.round(h0)], None, dy)
    assert np.array_equal(h, np.round(h0)[:, None] + np.cumsum(b, axis=1))
    assert np.array_equal(last, h[:, -1])


@pytest.mark.parametrize("T", [5, 40, 200])
def test_resets_at_the_start_and_everywhere(device, T):
    arrays, _, dy = random_case(2, T, 3, "float64")
    start = np.zeros((2, T), bool)
    start[:, 0] = True
    ends = np.zeros((2, T), bool)
    ends[:, -1] = True
    for reset in (start, ends, np.ones((2, T), bool)):
        check(arrays, reset, dy)
    h, _, da, _, dh0 = run("cuda", arrays, np.ones((2, T), bool), dy)
    assert np.array_equal(h, arrays[1]) and not da.any() and not dh0.any()


@pytest.mark.parametrize("T", [40, 300])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_overflowed_ends_at_a_reset(device, T, dtype):
    """A sequence that went to infinity leaves the next one in the row alone, both ways."""
    (a, b, h0), _, dy = random_case(1, T, 4, dtype)
    reset = np.zeros((1, T), bool)
    reset[:, T // 2] = True
    b[:, 3] = np.inf
    dy[0][:, T - 3] = np.inf
    h, last, _, db, dh0 = run("cuda", (a, b, h0), reset, dy)
    after, before = slice(T // 2, None), slice(None, T // 2)
    assert np.isfinite(h[:, after]).all() and np.isfinite(last).all()
    assert np.isfinite(db[:, before]).all() and np.isfinite(dh0).all()


def test_a_carry_of_zero_meets_no_overflowed_product(device):
    """Gates of 4: the product of a chunk's overflows, while no state of the first does."""
    a = np.full((1, 256, 1), 4, np.float32)
    b = np.zeros_like(a)
    b[:, -10:] = 1
    dy = [np.zeros_like(a), np.zeros((1, 1), np.float32)]
    dy[0][:, :10] = 1
    assert check([a, b, None], None, dy) == C


@pytest.mark.parametrize("T", [33, 129])
def test_only_what_is_wanted_is_computed(device, T):
    case = random_case(2, T, 3, "float64")
    for size in (1, 2, 3):
        for wanted in itertools.combinations(range(3), size):
            check(*case, wanted=list(wanted))
    (a, _, _), reset, dy = case
    arrays = [device.asarray(v) for v in (*dy, a, reset)]
    (da, _, dh0), _ = scan.CudaGatedScanGrad.forward(
        *(device.xp, *arrays[:3], None, None, arrays[3]),
        needs=(False,) * 6,
        wants=(False, False),
    )
    assert da.shape == dh0.shape == (0,)


@pytest.mark.parametrize("T", [9, 130])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_inputs_of_any_layout(device, T, dtype):
    """Transposed, strided, reversed and broadcast arrays; pairs at odd addresses."""
    (a, b, h0), reset, dy = random_case(2, T, 4, dtype)
    due = run("cpu", (a, b, h0), reset, dy)

    def views(array):
        on = device.asarray
        yield on(array.swapaxes(0, -1).copy()).swapaxes(0, -1)
        yield on(np.repeat(array, 2, axis=-1))[..., ::2]
        yield on(array[::-1].copy())[::-1]
        shifted = device.xp.empty((array.size + 1,), array.dtype)
        shifted[1:] = on(array).reshape(-1)
        yield shifted[1:].reshape(array.shape)

    for laid in zip(*map(views, (a, b, h0, reset, *dy)), strict=True):
        inputs = [th.Tensor(v, requires_grad=True) for v in laid[:3]]
        h, last = th.gated_scan(*inputs, th.Tensor(laid[3]))
        th.backward([h, last], [th.Tensor(v) for v in laid[4:]])
        got = (h, last, *(x.grad for x in inputs))
        for g, d in zip(got, due, strict=True):
            assert error(device.to_numpy(g.detach().data), d) <= TOLERANCE[dtype]
    x = [th.Tensor(device.asarray(v), requires_grad=True) for v in (a, b)]
    th.gated_scan(*x)[0].sum().backward()  # its cotangent is broadcast
    y = [th.Tensor(v, requires_grad=True) for v in (a, b)]
    th.gated_scan(*y)[0].sum().backward()
    for g, d in zip(x, y, strict=True):
        assert error(device.to_numpy(g.grad.data), d.grad.data) <= TOLERANCE[dtype]


@pytest.mark.parametrize("shape", [(2, 37, 5), (1, 200, 5)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_order_of_threads_gives_the_same_bits(device, shape, dtype):
    case = random_case(*shape, dtype)
    first = None
    for order in range(4):
        with thread_order(order):
            got = run("cuda", *case)
        first = first or got
        assert all(np.array_equal(g, f) for g, f in zip(got, first, strict=True))


@pytest.mark.parametrize("shape", [(2, 5, 3), (1, 130, 2)])
def test_second_order(device, shape):
    """Derivatives of derivatives go through the same kernels."""
    arrays, reset, dy = random_case(*shape, "float64")

    def second(where):
        xs = [th.Tensor(v, device=where, requires_grad=True) for v in arrays]
        h, last = th.gated_scan(*xs, th.Tensor(reset, device=where))
        weights = [th.Tensor(v, device=where) for v in dy]
        y = (h * h * weights[0]).sum() + (last * weights[1]).sum()
        first = th.grad(y, xs, create_graph=True)
        z = sum((g * g).sum() for g in first)
        return [g.to("cpu").numpy() for g in th.grad(z, xs)]

    launches.clear()
    got = second("cuda")
    assert launches.count("scan_r") + launches.count("scan_c_apply") == 2
    for g, d in zip(got, second("cpu"), strict=True):
        assert error(g, d) <= 1e-12


def test_cumprod_uses_the_gradient_kernel(device):
    x = np.random.default_rng(3).uniform(-2, 2, (3, 7))
    launches.clear()
    on = th.Tensor(x, device="cuda", requires_grad=True)
    th.cumprod(on, 1).sum().backward()
    host_x = th.Tensor(x, requires_grad=True)
    th.cumprod(host_x, 1).sum().backward()
    assert "scan_grad_r" in launches
    assert error(on.grad.to("cpu").numpy(), host_x.grad.numpy()) <= 1e-12


# --- the edges


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 0, 3), (2, 4, 0)])
def test_nothing_to_do_launches_nothing(device, shape):
    for h0 in (False, True):
        assert check(*random_case(*shape, "float32", h0)) == []


def test_a_device_without_kernels_uses_the_body():
    with standin():
        case = random_case(2, 5, 3, "float64")
        due = run("cpu", *case)
        for g, d in zip(run("cuda", *case), due, strict=True):
            assert error(g, d) <= 1e-12


def test_saved_are_the_inputs_and_outputs_themselves(device):
    arrays, reset, _ = random_case(2, 130, 3, "float32")
    xs = [th.Tensor(v, device="cuda", requires_grad=True) for v in arrays]
    h, _ = th.gated_scan(*xs, th.Tensor(reset, device="cuda"))
    sizes = {s.label: s.nbytes for s in th.memory.saved(h)}
    assert sizes == {"a": h.data.nbytes, "h": h.data.nbytes, "h0": 24, "reset": 260}


def mapped(nbytes):
    """So many bytes of addresses, of which those have memory that are touched."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
    try:
        return mmap.mmap(-1, nbytes, flags=flags)
    except OSError as why:
        pytest.skip(f"no {nbytes} bytes of addresses: {why}")


def test_too_many_steps_for_the_kernels_are_refused(device):
    x = np.frombuffer(mapped(2**32), np.float16).reshape(1, 2**31, 1)
    name = "scan_r<__half,16,false>"
    kernel = load("scan.cu", [name], device=HostDevice())[name]
    last = np.empty((1, 1), np.float16)
    with pytest.raises(KernelError, match=r"int T is 2147483648, and int holds"):
        kernel((1,), (128,), (x, x, None, None, x, last, 1, 2**31, 1))


PROBE = """
// where[i] of thread threads[i]: row, channel, step, first, start, steps.
__global__ void probe(
    const long long* threads, long long* where, int T, int D, int length, int chunks) {
    const int i = threadIdx.x;
    const Span at = span_of(threads[i], T, D, length, chunks);
    const long long all[] = {at.row, at.channel, at.step, at.first, at.start, at.steps};
    for (int k = 0; k < 6; ++k) where[6 * i + k] = all[k];
}
"""


def test_indices_of_tensors_beyond_2_to_the_31(device):
    """The arithmetic of every kernel's place in its arrays, without the arrays."""
    module = HostModule(read_source("scan.cu").text + PROBE, (), ())
    probe = module.get_function("probe")
    B, T, D = 500_000, 2_000_003, 4097
    for length in (T, 512):
        chunks = -(-T // length)
        total = B * chunks * D
        threads = np.array([0, 1, D, 2**31, 2**32 + 5, total // 2, total - 1], i64)
        where = np.empty((len(threads), 6), i64)
        sizes = tuple(i32(v) for v in (T, D, length, chunks))
        probe((1,), (len(threads),), (threads, where, *sizes))
        for thread, got in zip(threads.tolist(), where.tolist(), strict=True):
            row, d = divmod(thread, D)
            n, c = divmod(row, chunks)
            start = c * length
            step = n * T + start
            due = [row, n * D + d, step, step * D + d, start, min(length, T - start)]
            assert got == due


def test_a_step_of_more_than_2_to_the_31_bytes(device):
    """Two steps, 1.2e9 channels apart, of which one block's are computed. The arrays are
    mapped, and their pages are there where they are touched."""
    D = 1_200_000_000
    a, b, h = (np.frombuffer(mapped(4 * D), np.float16).reshape(1, 2, D) for _ in range(3))
    a[0, :, :128], b[0, :, :128] = 0.5, 1
    last = np.empty((1, 128), np.float16)
    names = ("scan_r<__half,16,false>",)
    kernel = HostModule(read_source("scan.cu").text, (), names).get_function(names[0])
    kernel((1,), (128,), (a, b, None, None, h, last, i64(128), i32(2), i32(D)))
    assert (h[0, 0, :128] == 1).all() and (h[0, 1, :128] == 1.5).all()
    assert not h[0, :, 128:200].any() and (last == 1.5).all()


# --- under the sanitizers, in processes of their own

SCRIPT = """
import sys
sys.path.insert(0, "tests")
from host_device import host_device
from test_scan_kernels import check, random_case
from tinygrad_helix.cuda import scan
from tinygrad_helix.cuda.host import thread_order
from tinygrad_helix.cuda.launch import load
R = ["scan_r<{},32,{}>", "scan_grad_r<{},16,{},true>"]
C = [
    *("scan_c_summarize<{},{}>", "scan_c_carry<{},{}>", "scan_c_apply<{},{}>"),
    *("scan_grad_c_summarize<{},{}>", "scan_grad_c_apply<{},{},true>"),
]
CASES = [(2, 37, 5), (1, 1, 3), (1, 130, 3)]
pairs = sys.argv[1] != "thread"
with host_device() as device:
    # The instances that are used, not all of a type's, and those with a reset, which have
    # all of the others' loads and stores: building them for the sanitizer takes the time.
    scan._modules[device] = modules = {}
    for storage in ("float", "__half2") if pairs else ("float",):
        for cut, names in ((False, R), (True, C)):
            if not cut or storage == "float":
                names = [n.format(storage, "true") for n in names]
                modules[storage, cut] = load("scan.cu", names, device=device)
    for shape in CASES:
        with thread_order(3):
            check(*random_case(*shape, "float32"))
    if pairs:
        check(*random_case(1, 35, 4, "float16"))
print("all right")
"""


@pytest.mark.parametrize("kind", host.SANITIZERS)
def test_the_sanitizers_find_nothing(device, kind):
    command = [*host.sanitizer_command(kind), sys.executable, "-c", SCRIPT, kind]
    root = Path(__file__).parents[1]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    assert "all right" in result.stdout
