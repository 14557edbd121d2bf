"""Matrix products by cuBLAS, called through its C interface.

CuPy's own `matmul` refuses every call while its stream is capturing a graph, cannot add to
its result, and does not reach cuBLAS with stacks of bfloat16 matrices. This one does all
three, with a handle and a workspace of its own.

cuBLAS counts in columns: it computes C[m, n] = op(A) op(B) of matrices that lie column by
column. A matrix that lies row by row is its transpose to cuBLAS, so C = A B of rows is
asked for as Cᵀ = Bᵀ Aᵀ: the operands change places, and `op` transposes where the array
that is given is itself a transposed view.
"""

import ctypes
import math
import threading
from typing import Any, NamedTuple

import numpy as np

from ..errors import DTypeError, KernelError, ShapeError
from .arguments import address
from .toolkit import INSTALL_GPU

__all__ = ["Blas", "find_library"]

# cudaDataType_t, by the name of the dtype.
_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
# cublasComputeType_t: products and sums in float32, without and with TF32, and in float64.
_COMPUTE_32F, _COMPUTE_32F_TF32, _COMPUTE_64F = 68, 77, 70
_ALGO_DEFAULT = -1  # cublasGemmAlgo_t: the library chooses
# cublasMath_t: sums over parts of k stay in float32 where the result has 16 bits.
_NO_REDUCED_PRECISION_SUMS = 16
_LARGEST = 2**31 - 1  # sizes and strides between rows are C ints

# Bytes of the workspace: what cuBLAS's manual advises for Hopper; older cards do with 4
# MiB and leave the rest unused. Too small a workspace costs speed, not correctness.
WORKSPACE = 32 << 20
# Streams of a device whose workspaces are kept: those that had a product last.
STREAMS = 16

_P, _I, _L = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
_SIGNATURES: dict[str, list[Any]] = {
    "cublasCreate_v2": [ctypes.POINTER(_P)],
    "cublasDestroy_v2": [_P],
    "cublasSetStream_v2": [_P, _P],
    "cublasSetWorkspace_v2": [_P, _P, ctypes.c_size_t],
    "cublasSetMathMode": [_P, _I],
    "cublasGetStatusString": [_I],
    # handle, op, op, m, n, k, alpha, A, its type, ld, B, …, beta, C, …, compute, algo
    "cublasGemmEx": [_P, *[_I] * 5, _P, *[_P, _I, _I] * 2, _P, _P, *[_I] * 4],
    # the same with a stride from matrix to matrix after each ld, and their number
    "cublasGemmStridedBatchedEx": [
        _P, *[_I] * 5, _P, *[_P, _I, _I, _L] * 2, _P, _P, _I, _I, _L, *[_I] * 3,
    ],
}  # fmt: skip


def find_library() -> str:
    """The path of the cuBLAS that CuPy uses: from pip, conda, or a CUDA toolkit."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib  # comes with CuPy

        return str(load_nvidia_dynamic_lib("cublas").abs_path)
    except (ImportError, RuntimeError) as error:
        raise KernelError(
            f"cuBLAS was not found ({error}). Install it, or a CUDA toolkit: {INSTALL_GPU}."
        ) from error


class _Matrix(NamedTuple):
    """An operand as cuBLAS is to see it: a stack of matrices that lie row by row."""

    array: Any  # what is read, and kept until the call is made
    transposed: bool
    ld: int  # elements from one row to the next, of the matrix as it lies
    step: int  # elements from one matrix to the next; 0: the same one each time


class Blas:
    """a @ b by cuBLAS, for arrays of the module `xp` (CuPy).

    `library` is the path of libcublas (None: found with `find_library` on first use).
    Nothing is loaded or allocated before the first product. There is one handle a device
    and one workspace a device and stream, allocated from the pool that is current at the
    first product there and kept until `free`, or until 16 other streams of the device had
    products since (so a captured graph, which uses its stream's to the end, should not be
    followed by so many); calls from several threads wait for one another.

    float32 is multiplied in float32, unless `tf32` is set: then cuBLAS may round operands
    to 10 bits and use tensor cores. 16-bit operands are multiplied and added up in float32
    and rounded once, or not at all where the result is float32.
    """

    def __init__(self, xp: Any, library: str | None = None, *, tf32: bool = False) -> None:
        self.xp = xp
        self.tf32 = tf32
        self._library = library
        self._loaded: Any = None
        self._handles: dict[int, ctypes.c_void_p] = {}  # by device
        self._bound: dict[int, int] = {}  # device -> the stream that its handle is on
        self._workspaces: dict[int, dict[int, Any]] = {}  # by device and stream, last last
        self._lock = threading.Lock()

    # --- what is asked for

    def takes(self, a: Any, b: Any) -> bool:
        """Whether `matmul` takes operands of these dtypes: one float dtype for both."""
        return a.dtype == b.dtype and a.dtype.name in _TYPES

    def matmul(
        self,
        a: Any,
        b: Any,
        out: Any = None,
        *,
        accumulate: bool = False,
        alpha: float = 1.0,
    ) -> Any:
        """out = alpha·(a @ b), or out += alpha·(a @ b) with `accumulate`.

        a [..., m, k], b [..., k, n], out [..., m, n], shapes as in `numpy.matmul`, 1-D
        operands and broadcast stacks too. a and b are of one dtype, float32, float64,
        float16 or bfloat16; out has it too, or is float32 where they have 16 bits.
        Transposed views and rows with gaps between them are read where they are; other
        strides are copied. out must not overlap a or b.

        Errors: ShapeError, DTypeError; KernelError with cuBLAS's own words.
        """
        _check(a, b)
        if a.ndim == 1 or b.ndim == 1:
            return self._vectors(a, b, out, accumulate, alpha)
        m, k = a.shape[-2:]
        n = b.shape[-1]
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        if out is None:
            if accumulate:
                raise ShapeError("matmul with accumulate needs the out to be added to.")
            out = self.xp.empty((*batch, m, n), a.dtype)
        _check_out(a, out, (*batch, m, n))
        if max(m, n, k, math.prod(batch)) > _LARGEST:
            raise KernelError(
                f"matmul of {a.shape} by {b.shape}: cuBLAS takes sizes up to 2^31 - 1. "
                "Split the product."
            )
        if out.size == 0:
            return out
        if k == 0:
            if not accumulate:
                out[...] = 0
            return out
        if b.ndim == 2 and _rows_in_a_row(a) and _rows_in_a_row(out):
            a, out_ = a.reshape(-1, k), out.reshape(-1, n)  # one tall product
            self._product(a, b, out_, accumulate, alpha)
        else:
            self._product(a, b, out, accumulate, alpha)
        return out

    def free(self) -> None:
        """Give the workspaces and handles back; the next product makes new ones. Not
        while a captured graph holds a product."""
        with self._lock:
            for handle in self._handles.values():
                self._check(self._loaded.cublasDestroy_v2(handle))
            self._handles.clear()
            self._bound.clear()
            self._workspaces.clear()

    @property
    def workspace_bytes(self) -> int:
        """Bytes of all workspaces that are held."""
        return sum(w.nbytes for d in self._workspaces.values() for w in d.values())

    # --- shapes and strides

    def _vectors(self, a: Any, b: Any, out: Any, accumulate: bool, alpha: float) -> Any:
        """matmul where a or b is 1-D: a row or a column, and without it in the result."""
        wide_a = a[None, :] if a.ndim == 1 else a
        wide_b = b[:, None] if b.ndim == 1 else b
        lost = tuple(
            axis for axis, x in ((-2, a), (-1, b)) if x.ndim == 1
        )  # axes that the result does not have
        if out is not None:
            wide = out
            for axis in sorted(lost, reverse=True):  # -1 first: then -2 counts from it
                wide = self.xp.expand_dims(wide, axis)
            self.matmul(wide_a, wide_b, wide, accumulate=accumulate, alpha=alpha)
            return out
        y = self.matmul(wide_a, wide_b, accumulate=accumulate, alpha=alpha)
        return y.reshape([n for i, n in enumerate(y.shape) if i - y.ndim not in lost])

    def _product(self, a: Any, b: Any, out: Any, accumulate: bool, alpha: float) -> None:
        """out (+)= alpha·a b, of matrices or stacks of them, nothing empty."""
        target = self._operand(out, out.shape[:-2], copy=False)
        if target is None:  # cuBLAS cannot write there: by way of an array where it can
            result = self.xp.empty(out.shape, out.dtype)
            if accumulate:
                result[...] = out
            self._product(a, b, result, accumulate, alpha)
            out[...] = result
        elif target.transposed:  # outᵀ = bᵀ aᵀ
            self._product(
                b.swapaxes(-1, -2),
                a.swapaxes(-1, -2),
                out.swapaxes(-1, -2),
                accumulate,
                alpha,
            )
        else:
            batch = out.shape[:-2]
            left, right = self._operand(a, batch), self._operand(b, batch)
            m, k = a.shape[-2:]
            self._call(left, right, target, (m, out.shape[-1], k), batch, accumulate, alpha)

    def _operand(self, x: Any, batch: tuple[int, ...], copy: bool = True) -> Any:
        """`x` as a stack of matrices over the axes `batch`, copied where its strides are
        none that cuBLAS takes; None if it would have to be and may not."""
        rows, columns = x.shape[-2:]
        # Elements, not bytes. An axis of one element has no stride to speak of.
        item = x.dtype.itemsize
        down, right = (s // item for s in x.strides[-2:])
        down, right = (down if rows > 1 else columns), (right if columns > 1 else 1)
        step = _one_step(x, batch, item)
        if step is not None and right == 1 and columns <= down <= _LARGEST:
            return _Matrix(x, False, down, step)
        right = right if columns > 1 else rows
        down = down if rows > 1 else 1
        if step is not None and down == 1 and rows <= right <= _LARGEST:
            return _Matrix(x, True, right, step)
        if not copy:
            return None
        if step is None:  # no one stride leads through the stack: each matrix once
            x = self.xp.broadcast_to(x, (*batch, rows, columns))
        x = self.xp.ascontiguousarray(x)
        return _Matrix(x, False, columns, _one_step(x, batch, item) or 0)

    # --- cuBLAS

    def _call(
        self,
        a: _Matrix,
        b: _Matrix,
        out: _Matrix,
        sizes: tuple[int, int, int],
        batch: tuple[int, ...],
        accumulate: bool,
        alpha: float,
    ) -> None:
        m, n, k = sizes
        ab, c = _TYPES[a.array.dtype.name], _TYPES[out.array.dtype.name]
        double = ab == _TYPES["float64"]
        number = ctypes.c_double if double else ctypes.c_float
        scale, keep = number(alpha), number(1.0 if accumulate else 0.0)
        compute = _COMPUTE_64F if double else _COMPUTE_32F
        if self.tf32 and ab == _TYPES["float32"]:
            compute = _COMPUTE_32F_TF32
        where = [address(x.array) for x in (a, b, out)]
        count = math.prod(batch)
        by = ctypes.addressof
        with self._lock:
            handle, lib = self._handle(), self._loaded
            if count == 1:
                status = lib.cublasGemmEx(
                    handle, int(b.transposed), int(a.transposed), n, m, k, by(scale),
                    where[1], ab, b.ld, where[0], ab, a.ld, by(keep),
                    where[2], c, out.ld, compute, _ALGO_DEFAULT,
                )  # fmt: skip
            else:
                status = lib.cublasGemmStridedBatchedEx(
                    handle, int(b.transposed), int(a.transposed), n, m, k, by(scale),
                    where[1], ab, b.ld, b.step, where[0], ab, a.ld, a.step, by(keep),
                    where[2], c, out.ld, out.step, count, compute, _ALGO_DEFAULT,
                )  # fmt: skip
        if status:
            self._check(status, f" of [{m}, {k}] by [{k}, {n}], {a.array.dtype}")

    def _handle(self) -> ctypes.c_void_p:
        """The handle of the current device, on the current stream with its workspace."""
        device, stream = self._place()
        handle = self._handles.get(device)
        if handle is None:
            lib = self._load()
            handle = ctypes.c_void_p()
            self._check(lib.cublasCreate_v2(ctypes.byref(handle)))
            self._check(lib.cublasSetMathMode(handle, _NO_REDUCED_PRECISION_SUMS))
            self._handles[device] = handle
        if self._bound.get(device) != stream:
            mine = self._workspaces.setdefault(device, {})
            workspace = mine.pop(stream, None)
            if workspace is None:
                workspace = self.xp.empty(WORKSPACE, np.uint8)
            mine[stream] = workspace
            if len(mine) > STREAMS:
                del mine[next(iter(mine))]
            # In this order: a change of stream puts cuBLAS's own workspace back.
            self._check(self._loaded.cublasSetStream_v2(handle, stream))
            self._check(
                self._loaded.cublasSetWorkspace_v2(
                    handle, address(workspace), workspace.nbytes
                )
            )
            self._bound[device] = stream
        return handle

    def _place(self) -> tuple[int, int]:
        """The current device's number and the current stream's address."""
        cuda = getattr(self.xp, "cuda", None)
        if cuda is None:  # NumPy, with a library that computes on the CPU
            return 0, 0
        return int(cuda.runtime.getDevice()), int(cuda.get_current_stream().ptr)

    def _load(self) -> Any:
        if self._loaded is None:
            path = self._library or find_library()
            try:
                lib = ctypes.CDLL(path)
                for name, arguments in _SIGNATURES.items():
                    function = getattr(lib, name)
                    function.argtypes = arguments
                    function.restype = _I
                lib.cublasGetStatusString.restype = ctypes.c_char_p
            except (OSError, AttributeError) as error:
                raise KernelError(
                    f"{path} cannot be used as cuBLAS ({error}). It takes libcublas of "
                    "CUDA 12 or newer."
                ) from error
            self._loaded = lib
        return self._loaded

    def _check(self, status: int, what: str = "") -> None:
        if status:
            text = self._loaded.cublasGetStatusString(status).decode()
            raise KernelError(f"cuBLAS refused a product{what}: {text} (status {status}).")


def _check(a: Any, b: Any) -> None:
    if a.dtype != b.dtype or a.dtype.name not in _TYPES:
        raise DTypeError(
            f"matmul by cuBLAS takes two arrays of one dtype, {', '.join(_TYPES)}; got "
            f"{a.dtype} and {b.dtype}. Convert with astype() first."
        )
    fits = a.ndim >= 1 and b.ndim >= 1 and a.shape[-1] == b.shape[-2 if b.ndim > 1 else 0]
    if fits:
        try:
            np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        except ValueError:
            fits = False
    if not fits:
        raise ShapeError(
            f"matmul takes a [..., m, k] and b [..., k, n]; got {a.shape} and {b.shape}."
        )


def _check_out(a: Any, out: Any, shape: tuple[int, ...]) -> None:
    if out.shape != shape:
        raise ShapeError(f"matmul has a result of shape {shape}; got out {out.shape}.")
    if out.dtype != a.dtype and not (out.dtype == np.float32 and a.dtype.itemsize == 2):
        raise DTypeError(
            f"matmul of {a.dtype} writes {a.dtype}"
            f"{' or float32' if a.dtype.itemsize == 2 else ''}; got out of {out.dtype}."
        )


def _rows_in_a_row(x: Any) -> bool:
    """Whether all rows of all matrices of a stack are one matrix, without a copy."""
    return x.ndim > 2 and _steps(x.shape[:-1], x.strides[:-1]) is not None


def _one_step(x: Any, batch: tuple[int, ...], item: int) -> int | None:
    """Elements from one matrix to the next of `x` over the axes `batch`; None where no
    one stride leads through all of them, or one that leads back."""
    have = x.ndim - 2
    missing = len(batch) - have
    strides = [0] * missing + [
        0 if x.shape[i] == 1 else x.strides[i] for i in range(have)
    ]  # of x as if broadcast
    step = _steps(batch, strides)
    return None if step is None or step < 0 else step // item


def _steps(shape: Any, strides: Any) -> int | None:
    """The one stride by which the axes can be walked through as one, or None."""
    step = last = None
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 1:
            continue
        if step is None:
            step = stride
        elif stride != last:
            return None
        last = stride * size
    return 0 if step is None else step
