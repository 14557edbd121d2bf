"""The fused HELIX block on CUDA: its kernels and products, run on a CPU by doubles.

The kernels are those of a GPU, compiled by g++ (tinygrad_helix.cuda.host); cuBLAS is a
stand-in with the same meaning. Where there is a GPU the golden files run there too.
"""

import gc
import itertools
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from host_device import host_device, launches, products
from standin import MemoryHook, standin

import tinygrad_helix as th
from tinygrad_helix import memory
from tinygrad_helix.backend import get_backend
from tinygrad_helix.cuda import host, pointwise, sizes
from tinygrad_helix.cuda.helix import CudaHelix
from tinygrad_helix.cuda.host import thread_order
from tinygrad_helix.fused import FusedHelix, Keep
from tinygrad_helix.fused.policy import INPUTS, KEEPABLE
from tinygrad_helix.nn.helix import HelixBlock, helix_block, predict_saved

GOLDEN = Path(__file__).parent / "golden" / "helix"
FILES = sorted(path.stem for path in GOLDEN.glob("block_*.npz"))
NAMED = ["keep9", "keep6", "keep4", "keep3", "keep2", "keep1"]
SETS = [
    Keep("x", *names)
    for size in range(8)
    for names in itertools.combinations(KEEPABLE[1:], size)
]
NAMES = [n for n in INPUTS if n != "reset"]


@pytest.fixture
def double():
    with host_device() as backend:
        yield backend


@pytest.fixture(
    params=[
        pytest.param("host", marks=pytest.mark.host),
        pytest.param("gpu", marks=pytest.mark.cuda),
    ]
)
def device(request):
    """The double, and a GPU where there is one."""
    if request.param == "gpu":
        yield get_backend("cuda")
    else:
        with host_device() as backend:
            yield backend


def on_cuda(arrays, needs=None):
    return {
        n: th.Tensor(a, device="cuda", requires_grad=needs is None or n in needs)
        for n, a in arrays.items()
    }


def random_arrays(B, T, D, dtype="float64", h0=False, seed=0):
    rng = np.random.default_rng(seed)
    block = HelixBlock(D, dtype="float64", generator=rng)
    arrays = {"x": rng.standard_normal((B, T, D))}
    for name, p in block.named_parameters():
        arrays[name] = p.data + 0.1 * rng.standard_normal(p.shape)
    if h0:
        arrays["h0"] = rng.standard_normal((B, D))
    return {n: a.astype(dtype) for n, a in arrays.items()}


def mask(B, T, seed=7):
    return np.random.default_rng(seed).random((B, T)) < 0.2


def error(got, due):
    scale = np.abs(due).max() if due.size else 0.0
    return (np.abs(got - due).max() if due.size else 0.0) / (scale or 1.0)


def both(arrays, dy, dh_T=None, wanted=None, reset=None, device="cuda", **kwargs):
    """(y, h_T, {name: gradient}) as NumPy arrays."""
    wanted = list(arrays) if wanted is None else wanted
    leaves = {
        n: th.Tensor(a, device=device, requires_grad=n in wanted) for n, a in arrays.items()
    }
    if reset is not None:
        reset = th.Tensor(reset, device=device)
    y, h_T = helix_block(**leaves, reset=reset, return_state=True, **kwargs)
    outputs, cotangents = [y], [th.Tensor(dy, device=device)]
    if dh_T is not None and h_T.requires_grad:
        outputs.append(h_T)
        cotangents.append(th.Tensor(dh_T, device=device))
    grads = th.grad(outputs, [leaves[n] for n in wanted], cotangents)
    host = [t.detach().to("cpu").data for t in (y, h_T, *grads)]
    return host[0], host[1], dict(zip(wanted, host[2:], strict=True))


# --- values and gradients


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("policy", NAMED)
@pytest.mark.parametrize("name", FILES)
def test_golden(device, name, policy, dtype):
    z = dict(np.load(GOLDEN / f"{name}.npz"))
    arrays = {n: z[n].astype(dtype) for n in NAMES if n in z}
    y, h_T, grads = both(
        arrays,
        z["gy"].astype(dtype),
        reset=z.get("reset"),
        eps=float(z["eps"]),
        policy=policy,
    )
    bound_y, bound_g = (1e-13, 1e-12) if dtype == "float64" else (2e-6, 1e-5)
    assert y.dtype == h_T.dtype == dtype
    assert error(y, z["fwd.y"]) <= bound_y
    assert error(h_T, z["fwd.h"][:, -1]) <= bound_y
    for n, g in grads.items():
        assert g.dtype == dtype
        assert error(g, z[f"grad.{n}"]) <= bound_g, n
        if n == "wa" and name == "block_T1":
            assert not g.any()  # one step from a zero state: no gate matters


@pytest.mark.parametrize("keep", SETS, ids=lambda keep: keep.name)
@pytest.mark.host
def test_every_set_gives_the_golden_gradients(double, keep):
    z = dict(np.load(GOLDEN / "block_B3_T17_D8_h0_reset.npz"))
    arrays = {n: z[n] for n in NAMES if n in z}
    _, _, grads = both(arrays, z["gy"], reset=z["reset"], policy=keep)
    for n, g in grads.items():
        assert error(g, z[f"grad.{n}"]) <= 1e-12, n


@pytest.mark.host
def test_what_is_kept_is_what_the_golden_file_says(double):
    z = dict(np.load(GOLDEN / "block_B3_T17_D8_h0_reset.npz"))
    leaves = on_cuda({n: z[n] for n in NAMES if n in z})
    reset = th.Tensor(z["reset"], device="cuda")
    y = helix_block(**leaves, reset=reset, policy="keep9")
    assert y.node.kernel.name.endswith("CudaHelix")
    saved = {s.label: s.value for s in y.node.saved}
    for name in KEEPABLE[1:]:
        due = z[f"fwd.{name}"]
        got = saved[name]
        assert got.base is None  # of its own, not half of a wider one
        assert error(got.get().reshape(due.shape), due) <= 1e-13, name
    assert saved["x"] is leaves["x"].data
    assert saved["h0"] is leaves["h0"].data


RAGGED = [
    (1, 1, 1), (5, 1, 130), (3, 2, 33), (2, 127, 1), (1, 129, 33), (2, 257, 5),
    (70, 3, 2), (1, 17, 130),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("shape", RAGGED, ids=str)
@pytest.mark.host
def test_ragged_shapes_agree_with_numpy(double, shape, dtype):
    B, T, D = shape
    exact = random_arrays(*shape, h0=True)
    arrays = {n: a.astype(dtype) for n, a in exact.items()}
    rng = np.random.default_rng(1)
    dy, dh_T = rng.standard_normal(shape), rng.standard_normal((B, D))
    due = both(exact, dy, dh_T, reset=mask(B, T), device="cpu")
    got = both(arrays, dy.astype(dtype), dh_T.astype(dtype), reset=mask(B, T))
    bound = 1e-12 if dtype == "float64" else 1e-5
    assert error(got[0], due[0]) <= bound
    assert error(got[1], due[1]) <= bound
    for n in due[2]:
        assert error(got[2][n], due[2][n]) <= bound, n


@pytest.mark.parametrize("policy", ["keep6", "keep3", "keep2", "keep1"])
@pytest.mark.parametrize("many", [0, 10**9])
@pytest.mark.host
def test_both_ways_through_time(double, policy, many, monkeypatch):
    """One thread a channel, and time in chunks: the same values."""
    monkeypatch.setattr(pointwise, "_MANY", many)
    monkeypatch.setattr(sizes, "SHORTEST", 16)
    B, T, D = 2, 77, 5
    arrays = random_arrays(B, T, D, h0=True)
    rng = np.random.default_rng(1)
    dy, dh_T = rng.standard_normal((B, T, D)), rng.standard_normal((B, D))
    due = both(arrays, dy, dh_T, reset=mask(B, T), device="cpu", policy=policy)
    for reset in (mask(B, T), None):
        if reset is None:
            due = both(arrays, dy, dh_T, device="cpu", policy=policy)
        launches.clear()
        got = both(arrays, dy, dh_T, reset=reset, policy=policy)
        assert ("helix_summarize" in launches) == ("scan_c_carry" in launches) == bool(many)
        assert error(got[0], due[0]) <= 1e-13
        for n in due[2]:
            assert error(got[2][n], due[2][n]) <= 1e-12, n


@pytest.mark.parametrize("policy", ["keep9", "keep6", "keep1"])
@pytest.mark.parametrize("many", [0, 10**9])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.host
def test_a_reset_drops_whatever_came_before(double, value, many, policy, monkeypatch):
    """NaN and infinity end at a reset, as in the composed block, both ways through time."""
    monkeypatch.setattr(pointwise, "_MANY", many)
    monkeypatch.setattr(sizes, "SHORTEST", 16)
    B, T, D = 2, 77, 5
    arrays = random_arrays(B, T, D, h0=True)
    arrays["h0"][0] = value
    arrays["x"][1, 2, 1] = np.nan
    reset = np.zeros((B, T), bool)
    reset[0, 0] = reset[1, 5] = reset[1, 40] = True
    dy = np.random.default_rng(1).standard_normal((B, T, D))
    dh_T = dy[:, 0].copy()
    dy[0, 50] = value  # and backward, to steps before the reset at 45
    reset[0, 45] = True
    with np.errstate(invalid="ignore", over="ignore"):
        due = both(arrays, dy, dh_T, reset=reset, device="cpu", mode="composed")
        got = both(arrays, dy, dh_T, reset=reset, policy=policy)
    assert np.isfinite(due[0][0]).all() and np.isfinite(due[0][1, 5:]).all()
    assert np.isfinite(due[2]["x"][0, :45]).all() and np.isfinite(due[2]["h0"][0]).all()
    for a, b in [
        (got[0], due[0]),
        (got[1], due[1]),
        *((got[2][n], due[2][n]) for n in due[2]),
    ]:
        np.testing.assert_array_equal(np.isfinite(a), np.isfinite(b))
        finite = np.isfinite(b)
        assert error(a[finite], b[finite]) <= 1e-11


def test_the_cut_of_time():
    for channels, T in itertools.product(
        (1, 100, 4096, 49151, 49152, 10**6), (1, 127, 128, 65536)
    ):
        count, length = sizes.chunks(channels, T, pointwise._MANY)
        assert (count - 1) * length < T <= count * length
        assert count == 1 or (length >= 64 and length % 8 == 0 and channels < 49152)
    assert sizes.chunks(256, 65536, pointwise._MANY) == (512, 128)
    assert sizes.chunks(4096, 512, pointwise._MANY) == (8, 64)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("bias", [-1000.0, -30.0, 30.0, 1000.0])
@pytest.mark.host
def test_saturated_gates(double, bias, dtype):
    exact = random_arrays(2, 5, 4)
    exact["wa"][-1] = bias
    exact["x"][0, 0] *= 1e4
    dy = np.random.default_rng(2).standard_normal((2, 5, 4))
    due = both(exact, dy, device="cpu", mode="composed")[2]
    arrays = {n: a.astype(dtype) for n, a in exact.items()}
    got = both(arrays, dy.astype(dtype))[2]
    least = 1e-6 if bias > 0 else 1e-30
    for n in due:
        scale = max(np.abs(due[n]).max(), least)
        assert np.abs(got[n] - due[n]).max() <= 1e-4 * scale, n


@pytest.mark.parametrize(
    "dtype", [np.dtype("float16"), np.dtype(ml_dtypes.bfloat16)], ids=str
)
@pytest.mark.parametrize("policy", ["keep9", "keep6", "keep1"])
@pytest.mark.host
def test_16_bit_arrays_with_float32_inside(double, dtype, policy):
    B, T, D = 2, 33, 6
    exact = {
        n: a.astype(dtype).astype("float64")
        for n, a in random_arrays(B, T, D, h0=True).items()
    }
    dy = np.random.default_rng(3).standard_normal((B, T, D)).astype(dtype)
    due_y, _, due = both(exact, dy.astype("float64"), reset=mask(B, T), device="cpu")
    arrays = [double.asarray(exact[n].astype(dtype)) for n in NAMES]
    arrays.append(double.asarray(mask(B, T)))
    attrs = {"eps": 1e-5, "policy": policy, "return_state": False}
    needs = (True,) * len(NAMES) + (False,)
    y, saved = CudaHelix.forward(double.xp, *arrays, needs=needs, **attrs)
    assert y.dtype == dtype
    assert error(y.get().astype("float64"), due_y) <= 3e-2
    inputs = [(a.shape, a.dtype) for a in arrays]
    saved = dict.fromkeys(FusedHelix.saves) | saved
    grads = CudaHelix.vjp(double.asarray(dy), saved, needs=needs, inputs=inputs, **attrs)
    for n, g in zip(NAMES, grads, strict=False):
        assert g.dtype == dtype
        assert error(g.get().astype("float64"), due[n]) <= 6e-2, n


@pytest.mark.parametrize(
    "dtype", [np.dtype("float16"), np.dtype(ml_dtypes.bfloat16)], ids=str
)
@pytest.mark.host
def test_what_is_made_again_from_a_kept_16_bit_array_has_the_same_bits(double, dtype):
    """Forward a value is used as it is stored, so that the backward pass, which reads what
    is stored, makes the very same of it."""
    B, T, D = 2, 40, 6
    rng = np.random.default_rng(8)

    def values(*shape):
        return double.asarray(rng.standard_normal(shape).astype(dtype))

    def bits(array):
        return array.get().tobytes()

    work = pointwise.Kernels(double, (B, T, D), dtype)
    pre, bias, g2, eps = values(B * T, 2 * D), values(D), values(D), 1e-5
    a, h, s2, again, s2_again = (work.new(B * T, D) for _ in range(5))
    work.scan(pre, bias, g2, None, None, a=a, h=h, s2=s2)
    inputs = double.xp.ascontiguousarray(pre[:, D:])
    work.scan(inputs, None, g2, None, None, a=a, h=again, s2=s2_again)
    assert bits(h) == bits(again) and bits(s2) == bits(s2_again)
    z, add = values(B * T, D), values(B * T, D)
    total, normed, again = (work.new(B * T, D) for _ in range(3))
    work.rms(z, normed, eps, add=add, total=total)
    work.rms(total, again, eps)
    assert bits(normed) == bits(again)


@pytest.mark.parametrize("T", [1, 3])
@pytest.mark.host
def test_more_sequences_than_a_grid_has_rows(double, T):
    B, D = 70_000, 1
    arrays = random_arrays(B, T, D, "float32", h0=True)
    dy = np.random.default_rng(4).standard_normal((B, T, D)).astype("f4")
    due = both(arrays, dy, dy[:, 0], device="cpu")
    got = both(arrays, dy, dy[:, 0])
    assert error(got[0], due[0]) <= 1e-5
    for n in due[2]:
        assert error(got[2][n], due[2][n]) <= 1e-4, n  # float32 sums of 210,000 rows


@pytest.mark.host
def test_no_order_of_threads_changes_a_bit(double):
    z = random_arrays(2, 37, 33, "float32", h0=True)
    dy = np.random.default_rng(5).standard_normal((2, 37, 33)).astype("f4")
    for policy in ("keep9", "keep1"):
        results = []
        for order in range(4):
            with thread_order(order):
                y, h_T, grads = both(z, dy, dy[:, 0], reset=mask(2, 37), policy=policy)
            results.append([v.tobytes() for v in (y, h_T, *grads.values())])
        assert results[0] == results[1] == results[2] == results[3]


# --- sequences in parts, empty, strided


@pytest.mark.host
def test_a_sequence_in_two_parts_is_the_whole(double):
    leaves = on_cuda(random_arrays(2, 11, 4, h0=True))
    whole, last = helix_block(**leaves, return_state=True)
    x, h0, parts = leaves["x"], leaves["h0"], []
    for part in (x[:, :4], x[:, 4:]):
        y, h0 = helix_block(**leaves | {"x": part, "h0": h0}, return_state=True)
        parts.append(y.data.get())
    assert error(np.concatenate(parts, axis=1), whole.data.get()) <= 1e-14
    assert error(h0.data.get(), last.data.get()) <= 1e-14


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 0, 3), (0, 0, 3)])
@pytest.mark.parametrize("policy", NAMED)
@pytest.mark.host
def test_empty(double, policy, shape):
    arrays = random_arrays(*shape, h0=True)
    dh_T = np.ones((shape[0], 3))
    y, h_T, grads = both(arrays, np.ones(shape), dh_T, policy=policy)
    assert y.shape == shape
    assert (h_T == arrays["h0"]).all()
    for n, g in grads.items():
        assert g.shape == arrays[n].shape
        assert (g == (1 if n == "h0" else 0)).all(), n
    leaves = on_cuda(arrays)
    y, h_T = helix_block(**leaves, policy=policy, return_state=True)
    assert h_T.data is not leaves["h0"].data
    assert th.saved_bytes(y) == sum(
        predict_saved("fused", policy, shape, "float64", h0=True).values()
    )
    del leaves["h0"]
    assert not helix_block(**leaves, return_state=True)[1].data.any()


@pytest.mark.parametrize("policy", ["keep9", "keep1"])
@pytest.mark.host
def test_strides_change_no_bit(double, policy):
    xp = double.xp
    rng = np.random.default_rng(6)
    values = {n: rng.standard_normal((6, 6, 6)) for n in ("x", "dy")}
    for view in (
        lambda v: v.transpose(0, 2, 1),
        lambda v: v[:, ::2],
        lambda v: v[::-1, :, ::-1],
        lambda v: xp.broadcast_to(v[:, :1], v.shape),
    ):
        results = []
        for make in (lambda v: v, xp.ascontiguousarray):
            strided = {n: make(view(double.asarray(v))) for n, v in values.items()}
            B, _, D = strided["x"].shape
            leaves = on_cuda(random_arrays(B, 1, D, h0=True))
            h0 = double.asarray(np.repeat(leaves["h0"].data.get(), 2, axis=1))[:, ::2]
            leaves["x"] = th.Tensor(strided["x"], requires_grad=True)
            leaves["h0"] = th.Tensor(make(h0), requires_grad=True)
            # weights too: transposed views of contiguous arrays
            leaves["wf2"] = th.Tensor(
                make(leaves["wf2"].data.T.copy().T), requires_grad=True
            )
            y = helix_block(**leaves, policy=policy)
            grads = th.grad(y, list(leaves.values()), th.Tensor(strided["dy"]))
            results.append([v.data.get().tobytes() for v in (y, *grads)])
        assert results[0] == results[1]


# --- what is kept, computed, launched


@pytest.mark.host
def test_bytes_of_any_wanted_gradients(double):
    rng = np.random.default_rng(5)
    arrays = random_arrays(2, 3, 4, "float32", h0=True)
    reset = np.array([[0, 1, 0], [0, 0, 0]], bool)
    for _ in range(60):
        wanted = {n for n in NAMES if rng.random() < rng.choice([0.1, 0.5])}
        keep = SETS[rng.integers(len(SETS))]
        labels = []
        for device in ("cuda", "cpu"):
            leaves = {
                n: th.Tensor(a, device=device, requires_grad=n in wanted)
                for n, a in arrays.items()
            }
            y = helix_block(**leaves, reset=th.Tensor(reset, device=device), policy=keep)
            labels.append({s.label: s.nbytes for s in memory.saved(y) if not s.parameter})
            assert th.saved_bytes(y) == sum(labels[-1].values())
        predicted = predict_saved(
            "fused", keep, (2, 3, 4), "float32", needs=wanted, h0=True, reset=True
        )
        assert labels[0] == labels[1] == predicted, (wanted, keep)


@pytest.mark.host
def test_any_gradients_from_any_set(double):
    rng = np.random.default_rng(6)
    arrays = random_arrays(2, 5, 3, h0=True)
    reset = np.array([[0, 1, 0, 0, 0], [0, 0, 0, 0, 1]], bool)
    dy, dh_T = rng.standard_normal((2, 5, 3)), rng.standard_normal((2, 3))
    due = both(arrays, dy, dh_T, reset=reset, device="cpu", mode="composed")[2]
    due_y = both(arrays, dy, reset=reset, device="cpu", mode="composed")[2]
    for i in range(150):
        alone = NAMES[i % len(NAMES)]
        wanted = (
            [n for n in NAMES if rng.random() < 0.4 or n == alone] if i > 40 else [alone]
        )
        keep = SETS[rng.integers(len(SETS))]
        leaves = on_cuda(arrays, wanted)
        y, h_T = helix_block(
            **leaves, reset=th.Tensor(reset, device="cuda"), policy=keep, return_state=True
        )
        swept = [n for n in wanted if rng.random() < 0.7] or wanted
        outputs, cotangents = [y], [th.Tensor(dy, device="cuda")]
        if h_T.requires_grad:
            outputs, cotangents = [y, h_T], [*cotangents, th.Tensor(dh_T, device="cuda")]
        found = th.grad(outputs, [leaves[n] for n in swept], cotangents)
        for n, g in zip(swept, found, strict=True):
            expected = (due if h_T.requires_grad else due_y)[n]
            assert error(g.data.get(), expected) <= 1e-12, (n, wanted, swept, keep)


FORWARD = [
    "fold_gains", "rms_rows", "helix_scan", "rms_rows", "silu",
]  # fmt: skip
BACKWARD = [
    "fold_gains", "silu_back", "unfold_columns", "rms_rows", "unfold_rows", "rms_rows_back",
    "helix_scan_back", "sum_parts", "rms_rows", "unfold_rows", "rms_rows_back",
]  # fmt: skip


@pytest.mark.host
def test_a_step_is_twelve_products_and_sixteen_kernels(double):
    leaves = on_cuda(random_arrays(2, 16, 8, "float32"))
    y = helix_block(**leaves)
    assert launches == FORWARD
    assert products() == 4
    launches.clear()
    th.grad(y, list(leaves.values()), y.detach())
    assert launches == BACKWARD
    assert products() == 8
    # Chunks of time add two kernels each way.
    leaves = on_cuda(random_arrays(2, 200, 8, "float32"))
    launches.clear()
    y = helix_block(**leaves)
    assert len(launches) == len(FORWARD) + 2
    launches.clear()
    th.grad(y, list(leaves.values()), y.detach())
    assert len(launches) == len(BACKWARD) + 2
    products()


@pytest.mark.parametrize(
    ("policy", "count"),
    [("keep9", 8), ("keep6", 8), ("keep4", 9), ("keep3", 10), ("keep2", 11), ("keep1", 11)],
)
@pytest.mark.host
def test_what_is_rebuilt_takes_its_own_products(double, policy, count):
    leaves = on_cuda(random_arrays(2, 16, 8, "float32"))
    y = helix_block(**leaves, policy=policy)
    products()
    th.grad(y, list(leaves.values()), y.detach())
    assert products() == count  # keep1 makes [ua | ub] in one


ALONE = {"wf2": 1, "g4": 1, "wf1": 2, "g3": 2, "wo": 3, "g2": 3, "h0": 3, "wa": 4, "wb": 4,
         "g1": 5, "x": 4}  # fmt: skip


@pytest.mark.parametrize("wanted", ALONE)
@pytest.mark.host
def test_one_gradient_takes_its_own_products_only(double, wanted):
    arrays = random_arrays(2, 3, 4, h0=True)
    leaves = on_cuda(arrays, [wanted])
    y = helix_block(**leaves)
    assert products() == 4
    th.grad(y, [leaves[wanted]], y.detach())
    assert products() == ALONE[wanted]


class Meter(MemoryHook):
    """Bytes of device arrays, exactly, and their peak."""

    def __init__(self):
        self.sizes, self.live, self.peak = {}, 0, 0

    def malloc_postprocess(self, *, size, pmem_id, **facts):
        self.sizes[pmem_id] = size
        self.live += size
        self.peak = max(self.peak, self.live)

    def free_postprocess(self, *, pmem_id, **facts):
        self.live -= self.sizes.pop(pmem_id, 0)


# Most of a backward pass beyond what it starts from and returns, in N·D, where N is large.
TRANSIENT = {"keep9": 4, "keep6": 4, "keep4": 5, "keep3": 5, "keep2": 6, "keep1": 7}


@pytest.mark.parametrize("policy", TRANSIENT)
@pytest.mark.parametrize("shape", [(4, 100, 8), (300, 1, 8), (1, 300, 16)], ids=str)
@pytest.mark.host
def test_transient_bytes(double, policy, shape):
    B, T, D = shape
    N = B * T
    leaves = on_cuda(random_arrays(*shape, "float32"))
    y = helix_block(**leaves, policy=policy)
    dy = th.Tensor(np.ones(shape, "f4"), device="cuda")
    double.blas.matmul(dy.data[0], leaves["wb"].data)  # the workspace is there
    gc.collect()
    with Meter() as meter:
        grads = th.grad(y, list(leaves.values()), dy, retain_graph=True)
        transient = (meter.peak - sum(g.nbytes for g in grads)) / 4
        del grads
        assert meter.live == 0  # nothing stays
    assert transient <= (TRANSIENT[policy] + 0.1) * N * D + 2 * N + 8 * D * D + 2 * D + (
        N * D if T == 1 else 2 * B * D * (T < 64)
    )
    if policy in ("keep9", "keep6"):
        assert transient <= 5 * N * D + 21 * D * D


@pytest.mark.host
def test_without_a_tape_nothing_is_kept(double):
    leaves = on_cuda(random_arrays(2, 50, 8, "float32"))
    double.blas.matmul(leaves["wb"].data, leaves["wb"].data)  # the workspace is there
    gc.collect()
    with th.no_grad(), Meter() as meter:
        y = helix_block(**leaves)
        assert y.node is None
        assert meter.live == y.nbytes
        # [ua | ub], s2, y, and the weights with their gains
        assert meter.peak <= (4 * 100 * 8 + 6 * 64 + 2 * 8) * 4


@pytest.mark.parametrize("policy", NAMED)
@pytest.mark.host
def test_the_sweep_repeats_to_the_bit_and_frees(double, policy):
    leaves = on_cuda(random_arrays(2, 3, 4))
    y = helix_block(**leaves, policy=policy)
    saved = {s.label: s.value.get() for s in y.node.saved}
    inputs = list(leaves.values())
    first = th.grad(y, inputs, y.detach(), retain_graph=True)
    for s in y.node.saved:
        assert (s.value.get() == saved[s.label]).all(), s.label  # the pass wrote to none
    again = th.grad(y, inputs, y.detach())
    for a, b in zip(first, again, strict=True):
        assert a.data.get().tobytes() == b.data.get().tobytes()
    assert th.saved_bytes(y) == 0


@pytest.mark.parametrize("policy", [*NAMED, Keep("x", "a"), Keep("x", "s2", "xn2", "f2")])
@pytest.mark.host
def test_every_kept_array_is_read(double, policy):
    """NaN in the place of a kept array reaches a gradient."""
    arrays = random_arrays(2, 5, 4, h0=True)
    reset = th.Tensor(mask(2, 5), device="cuda")
    leaves = on_cuda(arrays)
    y = helix_block(**leaves, reset=reset, policy=policy)
    for s in y.node.saved:
        if s.value.dtype == bool:
            continue
        before = s.value.copy()
        s.value[...] = np.nan
        grads = th.grad(y, list(leaves.values()), y.detach(), retain_graph=True)
        s.value[...] = before
        assert any(np.isnan(g.data.get()).any() for g in grads), s.label


def test_a_device_without_a_blas_runs_the_ops_own_body():
    arrays = random_arrays(2, 5, 4, h0=True)
    dy = np.ones((2, 5, 4))
    due = both(arrays, dy, device="cpu")
    with standin():
        got = both(arrays, dy)
    for n in due[2]:
        assert error(got[2][n], due[2][n]) <= 1e-13, n


# --- under the sanitizers, in processes of their own

SCRIPT = """
import sys
sys.path.insert(0, "tests")
import numpy as np
from host_device import host_device
from test_cuda_helix import both, error, mask, random_arrays
from tinygrad_helix.cuda import host, pointwise, sizes
from tinygrad_helix.cuda.host import thread_order
sizes.SHORTEST = 16
with host_device():
    for B, T, D, many, order in [(2, 37, 5, 10**9, 2), (3, 5, 33, 0, 0)]:
        pointwise._MANY = many
        arrays = random_arrays(B, T, D, "float32", h0=True)
        dy, reset = np.ones((B, T, D), "f4"), mask(B, T)
        due = both(arrays, dy, dy[:, 0], reset=reset, device="cpu")[2]
        for policy in ("keep9", "keep1"):
            with thread_order(order):
                got = both(arrays, dy, dy[:, 0], reset=reset, policy=policy)[2]
            assert all(error(got[n], due[n]) < 1e-5 for n in due)
print("all right")
"""


@pytest.mark.host
@pytest.mark.parametrize("kind", host.SANITIZERS)
def test_the_sanitizers_find_nothing(kind):
    command = [*host.sanitizer_command(kind), sys.executable, "-c", SCRIPT]
    root = Path(__file__).parents[1]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    assert "all right" in result.stdout
