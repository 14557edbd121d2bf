"""Products by cuBLAS: rows against columns, on a stand-in library with cuBLAS's meaning.

The stand-in computes by the definition in column-major order, so that a wrong transpose,
order of operands, leading dimension or stride between matrices gives wrong numbers.
"""

import ctypes
import itertools
import sys
import types

import ml_dtypes
import numpy as np
import pytest
import stub_blas

from tinygrad_helix.cuda import blas as module
from tinygrad_helix.cuda.blas import Blas
from tinygrad_helix.errors import DTypeError, KernelError, ShapeError

bf16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [np.dtype("float32"), np.dtype("float64"), np.dtype("float16"), bf16]
TOLERANCE = {"float32": 1e-6, "float64": 1e-14, "float16": 2e-3, "bfloat16": 1e-2}


@pytest.fixture
def blas():
    instance = Blas(np, stub_blas.built())
    stub_blas.journal()
    yield instance
    instance.free()


def values(shape, dtype="float64", seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def close(got, due, dtype):
    assert got.shape == due.shape
    got, due = got.astype("float64"), due.astype("float64")
    scale = np.abs(due).max(initial=1.0)
    assert np.abs(got - due).max(initial=0) <= TOLERANCE[np.dtype(dtype).name] * scale


def exact(a, b):
    return np.matmul(a.astype("float64"), b.astype("float64"))


# How a matrix of a given shape may lie; each makes a view of [rows, columns].
LAYOUTS = {
    "rows": lambda v, r, c: v((r, c)),
    "transposed": lambda v, r, c: v((c, r)).T,
    "rows with gaps": lambda v, r, c: v((r, c + 3))[:, 1 : c + 1],
    "transposed with gaps": lambda v, r, c: v((c, r + 2))[:, 2:].T,
    "every second column": lambda v, r, c: v((r, 2 * c))[:, ::2],
    "every second row": lambda v, r, c: v((2 * r, c))[::2],
    "backwards": lambda v, r, c: v((r, c))[::-1],
    "one row again and again": lambda v, r, c: np.broadcast_to(v((1, c)), (r, c)),
    "one column again and again": lambda v, r, c: np.broadcast_to(v((r, 1)), (r, c)),
}
IN_PLACE = ("rows", "transposed", "rows with gaps", "transposed with gaps")
SIZES = [(1, 1, 1), (3, 4, 5), (1, 7, 2), (7, 1, 2), (2, 5, 1), (17, 9, 33), (1, 1, 6)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", SIZES)
def test_every_layout_of_both_operands(blas, sizes, dtype):
    m, n, k = sizes
    for left, right in itertools.product(LAYOUTS, LAYOUTS):
        a = LAYOUTS[left](lambda s: values(s, dtype), m, k)
        b = LAYOUTS[right](lambda s: values(s, dtype, 1), k, n)
        got = blas.matmul(a, b)
        assert got.dtype == dtype
        assert got.flags.c_contiguous
        close(got, exact(a, b), dtype)


def test_what_cublas_can_read_is_not_copied(blas, monkeypatch):
    copies = []
    real = np.ascontiguousarray
    monkeypatch.setattr(
        np, "ascontiguousarray", lambda a: (copies.append(a.shape), real(a))[1]
    )
    for left, right in itertools.product(LAYOUTS, LAYOUTS):
        a = LAYOUTS[left](values, 5, 6)
        b = LAYOUTS[right](values, 6, 7)
        copies.clear()
        blas.matmul(a, b)
        free = {*IN_PLACE, "every second row"}
        assert len(copies) == (left not in free) + (right not in free), (left, right)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("accumulate", [False, True])
def test_a_result_of_any_layout(blas, layout, accumulate):
    if "again" in layout:
        return  # no array to write to
    a, b = values((4, 6)), values((6, 5))
    out = LAYOUTS[layout](values, 4, 5)
    base = out if out.base is None else out.base
    before = base.copy()
    due = exact(a, b) + (out if accumulate else 0)
    assert blas.matmul(a, b, out, accumulate=accumulate) is out
    close(out, due, "float64")
    out[...] = 0
    mask = base != 0  # what is beside the result is as it was
    assert (base[mask] == before[mask]).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_accumulate_and_alpha(blas, dtype):
    a, b = values((4, 6), dtype), values((6, 5), dtype)
    out = values((4, 5), dtype, 2)
    due = out.astype("float64") + 0.5 * exact(a, b)
    close(blas.matmul(a, b, out, accumulate=True, alpha=0.5), due, dtype)
    out[...] = np.nan  # beta = 0: what was there is not read
    close(blas.matmul(a, b, out), exact(a, b), dtype)


@pytest.mark.parametrize("dtype", DTYPES[2:], ids=str)
def test_16_bit_operands_add_up_in_float32(blas, dtype):
    a, b = np.full((1, 4096), 1, dtype), np.full((4096, 1), 1, dtype)
    assert blas.matmul(a, b)[0, 0] == 4096  # sums of 16 bits stick far below
    out = np.zeros((1, 1), "float32")
    blas.matmul(a, b * dtype.type(1.0078125), out)
    assert out[0, 0] == np.float32(4096 * 1.0078125)  # not rounded to 16 bits


BATCHES = [
    ((2, 3, 4), (2, 4, 5)),
    ((2, 3, 4), (4, 5)),
    ((3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (1, 6, 4, 5)),
    ((2, 6, 3, 4), (2, 6, 4, 5)),
    ((1, 3, 4), (7, 4, 5)),
    ((7, 1, 4), (7, 4, 1)),
    ((5, 1, 4), (4, 3)),
    ((4,), (4,)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((4,), (2, 4, 5)),
    ((2, 3, 4), (4,)),
    ((2, 3, 4), (2, 4, 1)),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shapes", BATCHES, ids=str)
def test_stacks(blas, shapes, dtype):
    a, b = values(shapes[0], dtype), values(shapes[1], dtype, 1)
    due = exact(a, b)
    close(blas.matmul(a, b), due, dtype)
    out = np.ones(due.shape, dtype)
    assert blas.matmul(a, b, out, accumulate=True) is out
    close(out, due + 1, dtype)


STACKS = {
    "transposed matrices": lambda v: v((3, 2, 5, 4)).swapaxes(-1, -2),
    "stack last": lambda v: v((4, 5, 3, 2)).transpose(2, 3, 0, 1),
    "stack axes swapped": lambda v: v((2, 3, 4, 5)).swapaxes(0, 1),
    "heads": lambda v: v((3, 4, 2, 5)).swapaxes(1, 2),
    "backwards": lambda v: v((3, 2, 4, 5))[::-1],
    "every second": lambda v: v((3, 4, 4, 5))[:, ::2],
    "one again and again": lambda v: np.broadcast_to(v((4, 5)), (3, 2, 4, 5)),
    "some again": lambda v: np.broadcast_to(v((3, 1, 4, 5)), (3, 2, 4, 5)),
}


@pytest.mark.parametrize("left", STACKS)
def test_stacks_of_any_layout(blas, left):
    a = STACKS[left](values)
    for right in STACKS:
        b = STACKS[right](values).swapaxes(-1, -2)
        close(blas.matmul(a, b), exact(a, b), "float64")
    close(blas.matmul(a, values((5, 6))), exact(a, values((5, 6))), "float64")
    out = STACKS[left](lambda s: np.zeros(s))
    if "again" not in left:
        b = values((3, 2, 5, 5))
        blas.matmul(a, b, out)
        close(out, exact(a, b), "float64")


def test_a_stack_by_one_matrix_is_one_product(blas):
    a, b = values((3, 4, 5)), values((5, 2))
    blas.matmul(a, b)
    assert stub_blas.journal() == "cmswg"  # create, math mode, stream, workspace, product
    blas.matmul(a[:, :3], b)  # rows are no longer in a row
    blas.matmul(a, values((3, 5, 2)))
    assert stub_blas.journal() == "bb"


@pytest.mark.parametrize(
    "shapes",
    [((0, 4), (4, 5)), ((3, 4), (4, 0)), ((3, 0), (0, 5)), ((0, 3, 4), (0, 4, 5)),
     ((0, 3, 4), (4, 5)), ((2, 3, 0), (2, 0, 5)), ((0,), (0,)), ((0,), (0, 5))],
    ids=str,
)  # fmt: skip
def test_empty(blas, shapes):
    a, b = values(shapes[0]), values(shapes[1])
    got = blas.matmul(a, b)
    due = np.matmul(a, b)
    assert got.shape == np.shape(due)
    assert not got.any()
    out = np.ones(np.shape(due))
    assert (blas.matmul(a, b, out, accumulate=True) == 1).all()
    assert not blas.matmul(a, b, out).any()
    assert "g" not in stub_blas.journal()  # cuBLAS is not asked


# --- streams, workspaces, handles


class Streams:
    """A `cupy` with NumPy's arrays whose current device and stream are told."""

    class cuda:
        device, stream = 0, 16

        class runtime:
            @staticmethod
            def getDevice():
                return Streams.cuda.device

        @staticmethod
        def get_current_stream():
            class Stream:
                ptr = Streams.cuda.stream

            return Stream

    def __getattr__(self, name):
        return getattr(np, name)


def test_the_workspace_is_set_after_each_change_of_stream():
    blas = Blas(Streams(), stub_blas.built())
    stub_blas.journal()
    a = values((2, 2))

    def calls(device, stream):
        Streams.cuda.device, Streams.cuda.stream = device, stream
        blas.matmul(a, a)
        return stub_blas.journal()

    assert calls(0, 16) == "cmswg"
    assert calls(0, 16) == "g"
    assert calls(0, 32) == "swg"
    assert calls(0, 16) == "swg"
    assert blas.workspace_bytes == 2 * module.WORKSPACE  # one a stream, kept
    assert calls(1, 16) == "cmswg"
    assert calls(0, 16) == "g"
    for stream in range(100, 99 + module.STREAMS):
        calls(0, stream)
    first, kept = list(blas._workspaces[0]), dict(blas._workspaces[0])
    assert first[0] == 16 and len(first) == module.STREAMS  # 32 was longest without
    assert calls(0, 16) == "swg" and blas._workspaces[0][16] is kept[16]
    assert (
        blas.workspace_bytes == (module.STREAMS + 1) * module.WORKSPACE
    )  # of both devices
    assert calls(1, 16) == "g"  # the other device's is still there
    blas.free()
    assert stub_blas.journal() == "dd"
    assert blas.workspace_bytes == 0
    assert calls(0, 16) == "cmswg"
    blas.free()


def test_nothing_is_loaded_before_the_first_product():
    blas = Blas(np, "/nowhere/libcublas.so")
    blas.free()
    with pytest.raises(KernelError, match=r"/nowhere/libcublas\.so cannot be used"):
        blas.matmul(values((2, 2)), values((2, 2)))


def test_float32_is_not_tf32_unless_asked(monkeypatch):
    """The compute types reach the library: the stub refuses TF32 for other dtypes."""
    seen = []
    for tf32 in (False, True):
        blas = Blas(np, stub_blas.built(), tf32=tf32)
        blas.matmul(values((2, 2)), values((2, 2)))
        real = blas._loaded.cublasGemmEx
        monkeypatch.setattr(
            blas._loaded,
            "cublasGemmEx",
            lambda *a, real=real: (seen.append(a[-2]), real(*a))[1],
        )
        for dtype in DTYPES:
            blas.matmul(values((2, 2), dtype), values((2, 2), dtype))
    assert seen == [68, 70, 68, 68, 77, 70, 68, 68]


def test_a_status_is_an_error_with_cublas_own_words(blas):
    stub_blas.fail_next(7)
    with pytest.raises(KernelError, match=r"\[2, 3\] by \[3, 4\], float64: an unsupported"):
        blas.matmul(values((2, 3)), values((3, 4)))
    blas.matmul(values((2, 3)), values((3, 4)))


def test_the_stub_refuses_what_cublas_would(blas):
    """Each check that the tests lean on can fail."""
    blas.matmul(values((2, 2)), values((2, 2)))
    lib, handle = blas._loaded, blas._handles[0]
    x = values((8, 8)).ctypes.data
    one = ctypes.addressof(number := ctypes.c_double(1))

    def gemm(lda=4, ta=0, ct=1, compute=70, m=4):
        return lib.cublasGemmEx(
            handle, ta, 0, m, 2, 3, one, x, 1, lda, x, 1, 3, one, x, ct, 4, compute, -1
        )

    assert gemm() == 0
    assert gemm(lda=3) == 7
    assert gemm(lda=3, ta=1) == 0
    assert gemm(ct=0) == gemm(compute=68) == gemm(m=0) == 7
    lib.cublasSetStream_v2(handle, None)
    assert gemm() == 14
    blas._bound.clear()
    assert number.value == 1


# --- what is refused


def test_bad_operands(blas):
    a = values((3, 4))
    for b in (values((3, 4)), values((5,)), values(())):
        with pytest.raises(ShapeError, match="matmul takes"):
            blas.matmul(a, b)
    with pytest.raises(ShapeError, match=r"\(2, 3, 4\) and \(3, 4, 5\)"):
        blas.matmul(values((2, 3, 4)), values((3, 4, 5)))
    with pytest.raises(ShapeError, match=r"result of shape \(3, 5\); got out \(5, 3\)"):
        blas.matmul(a, values((4, 5)), np.empty((5, 3)))
    with pytest.raises(ShapeError, match="needs the out"):
        blas.matmul(a, values((4, 5)), accumulate=True)
    with pytest.raises(DTypeError, match="got float64 and float32"):
        blas.matmul(a, values((4, 5), "float32"))
    with pytest.raises(DTypeError, match="int64"):
        blas.matmul(np.ones((2, 2), int), np.ones((2, 2), int))
    with pytest.raises(DTypeError, match="got out of float32"):
        blas.matmul(a, values((4, 5)), np.empty((3, 5), "float32"))
    with pytest.raises(DTypeError, match=r"float16 writes float16 or float32"):
        blas.matmul(values((2, 2), "f2"), values((2, 2), "f2"), np.empty((2, 2)))
    assert not blas.takes(a, a.astype("float32"))
    assert not blas.takes(a.astype(int), a.astype(int))
    assert blas.takes(a, a)


def test_sizes_beyond_a_c_int_are_refused(blas):
    huge = np.lib.stride_tricks.as_strided(values((1,)), (2**31, 1), (0, 0))
    with pytest.raises(KernelError, match=r"up to 2\^31 - 1"):
        blas.matmul(huge, values((1, 0)))


def test_the_library_is_found_through_pathfinder(monkeypatch):
    found = types.SimpleNamespace(abs_path=stub_blas.built())
    fake = types.ModuleType("cuda.pathfinder")
    fake.load_nvidia_dynamic_lib = lambda name: {"cublas": found}[name]
    monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", fake)
    blas = Blas(np)
    close(blas.matmul(np.eye(2), np.eye(2)), np.eye(2), "float64")
    blas.free()

    def missing(name):
        raise RuntimeError(f"no {name}")

    fake.load_nvidia_dynamic_lib = missing
    with pytest.raises(KernelError, match=r"no cublas\).*cuda-toolkit\[cublas"):
        Blas(np).matmul(np.eye(2), np.eye(2))
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    with pytest.raises(KernelError, match="cuBLAS was not found"):
        module.find_library()
