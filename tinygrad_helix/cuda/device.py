"""The device "cuda": CuPy's arrays, and what CuPy does otherwise than NumPy.

The array module, the maker of kernel modules and the BLAS are parameters. On a GPU they
are CuPy, `cupy.RawModule` and cuBLAS; tests pass doubles that run on a CPU, so that all of
the code but the hardware runs there.
"""

import importlib
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from ..backend import Array, Backend
from ..errors import BackendUnavailableError
from .blas import Blas
from .memory import DeviceMeter

__all__ = ["CudaBackend", "unavailable"]

# The modules that register kernels for this device: known once it is used.
_OVERRIDES = ("helix", "scan")


def unavailable() -> str | None:
    """Why there is no "cuda" on this machine, in the words of the error; None if there is.

    >>> from tinygrad_helix.cuda.device import unavailable
    >>> reason = unavailable()
    >>> reason is None or reason.startswith("cuda is not available: ")
    True
    """
    try:
        cupy = importlib.import_module("cupy")
        if cupy.cuda.is_available():
            return None
        why = f"CuPy {cupy.__version__} is installed, but {_no_device(cupy.cuda.runtime)}"
    except Exception as error:  # whatever a broken installation raises
        if isinstance(error, ModuleNotFoundError) and error.name == "cupy":
            return (
                "cuda is not available: CuPy is not installed. pip install "
                '"tinygrad_helix[cuda12]" (driver for CUDA 12) or "[cuda13]" (CUDA 13).'
            )
        why = f"CuPy is installed, but fails with {type(error).__name__}: {error}"
    return f'cuda is not available: {why}. Tensors stay on "cpu".'


def _no_device(runtime: Any) -> str:
    """Why CuPy sees no GPU, in the words of the runtime."""
    try:
        runtime.getDeviceCount()
        why = "no CUDA device is visible"
    except runtime.CUDARuntimeError as error:
        why = str(error)
    return f"{why} (driver {runtime.driverGetVersion() or 'not found'})"


class CudaBackend(Backend):
    """One GPU, by CuPy: that which CuPy has chosen, on CuPy's current stream.

    `xp` is the array module, `module_factory(code=…, options=…, name_expressions=…)`
    makes what `cupy.RawModule` does, `blas` computes products (cuda/blas.py). Left out
    they are CuPy, its RawModule and cuBLAS, and where these are not to be had the
    constructor raises BackendUnavailableError.
    """

    name = "cuda"
    checks_indices = False

    def __init__(
        self,
        xp: Any = None,
        *,
        module_factory: Callable[..., Any] | None = None,
        blas: Any = None,
    ) -> None:
        if xp is None:
            reason = unavailable()
            if reason is not None:
                raise BackendUnavailableError(reason)
            xp = importlib.import_module("cupy")
            blas = blas or Blas(xp)
        self.xp = xp
        self.array_type = xp.ndarray
        self._module_factory = module_factory
        self.blas = blas
        for module in _OVERRIDES:
            importlib.import_module(f".{module}", __package__)
        super().__init__()

    @property
    def module_factory(self) -> Callable[..., Any]:
        """What makes a module of kernels from CUDA C++."""
        return self._module_factory or self.xp.RawModule

    @cached_property
    def meter(self) -> DeviceMeter:
        """The bytes that CuPy's pool has handed out to this thread."""
        return DeviceMeter(self.xp)

    # --- copies

    def asarray(self, data: Any, dtype: Any = None) -> Array:
        if type(data) is not self.array_type:
            data = np.asarray(data, dtype=dtype)
        return self.xp.asarray(data, dtype=dtype)

    def copy(self, array: Array) -> Array:
        return self.xp.array(array, order="C", copy=True)

    def to_numpy(self, array: Array) -> np.ndarray:
        return array.get()

    def synchronize(self) -> None:
        """Wait until everything that was launched on the current stream has run."""
        self.xp.cuda.get_current_stream().synchronize()

    # --- products and sums

    def matmul(self, a: Array, b: Array, out: Array | None = None) -> Array:
        if self.blas is not None and self.blas.takes(a, b):
            return self.blas.matmul(a, b, out)
        return self.xp.matmul(a, b, out=out)

    def scatter_add(self, target: Array, index: Any, values: Array) -> None:
        """`target[index] += values`, with repeated indices added up, in a fixed order.

        CuPy's own `add.at` adds by atomics: in the order in which threads happen to come,
        so that a float's last bits differ from run to run, and not for int64.
        """
        xp = self.xp
        rows: Any = index[0] if isinstance(index, tuple) and len(index) == 1 else index
        if (
            type(rows) is self.array_type
            and rows.dtype.kind != "b"
            and values.shape == rows.shape + target.shape[1:]
        ):
            rest = target.shape[1:]
            self._add_rows(target, rows.reshape(-1), values.reshape(rows.size, *rest))
            return
        places = xp.arange(target.size).reshape(target.shape)[index]
        flat = xp.ascontiguousarray(target).reshape(-1)
        self._add_rows(
            flat, places.reshape(-1), xp.broadcast_to(values, places.shape).reshape(-1)
        )
        if not target.flags.c_contiguous:
            target[...] = flat.reshape(target.shape)

    def _add_rows(self, target: Array, rows: Array, values: Array) -> None:
        """target[rows[i]] += values[i], equal rows added as a binary tree.

        The rows are sorted; in round r each takes the sum of the one 2ʳ places on, if that
        is an equal row, and so has that of 2ʳ⁺¹ in the end. log₂ n rounds whatever the rows
        are, and no value comes back to the host.
        """
        xp, n = self.xp, rows.size
        if n == 0:
            return
        rows = xp.where(rows < 0, rows + target.shape[0], rows)
        order = xp.argsort(rows)  # CuPy's sort is stable
        rows, values = rows[order], values[order]
        first = xp.searchsorted(rows, rows)
        column = (-1, *(1,) * (values.ndim - 1))
        step = 1
        while step < n:
            takes = rows[step:] == rows[:-step]
            more = xp.where(takes.reshape(column), values[step:], 0)
            values = xp.concatenate([values[:-step] + more, values[-step:]])
            step *= 2
        # Every place of a run writes the same sum, so the order of writing is no matter.
        target[rows] = target[rows] + values[first]

    # --- who owns a buffer

    def owner(self, array: Array) -> Array:
        while (base := array.base) is not None:
            array = base
        return array

    def is_writeable(self, array: Array) -> bool:
        return True  # CuPy has no read-only arrays
