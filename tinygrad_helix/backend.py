"""A device: its array module, and what NumPy and CuPy do differently.

Ops are written once against an array module `xp`. What cannot be written that way
(copies between devices, adding at repeated indices, which array owns a buffer) is a
method here. NumPy's backend is complete; another device is another subclass.
"""

from typing import Any

import numpy as np

from .errors import BackendUnavailableError, DeviceError

__all__ = ["Backend", "array_module", "backend_of", "get_backend", "is_array"]

Array = Any  # a NumPy or CuPy array: the two share no base class


class Backend:
    """The CPU, by NumPy."""

    name = "cpu"
    xp: Any = np
    array_type: type = np.ndarray

    def asarray(self, data: Any, dtype: Any = None) -> Array:
        """`data` as an array of this device, aliased where possible."""
        return np.asarray(data, dtype=dtype)

    def copy(self, array: Array) -> Array:
        """A C-ordered copy that owns its buffer."""
        return np.array(array, order="C", copy=True, subok=False)

    def to_numpy(self, array: Array) -> np.ndarray:
        """The same values as a NumPy array (for NumPy the very array)."""
        return array

    def matmul(self, a: Array, b: Array, out: Array | None = None) -> Array:
        """a @ b of arrays, with bits that do not depend on the number of BLAS threads.

        OpenBLAS cuts a long sum over k where it fits its cache, and rounds the cut
        differently with one thread and with several unless k is a multiple of its unroll
        (seen with 0.3.31 from k = 385 in float64, 449 in float32). So the last k % 64
        columns are a product of their own.
        """
        k = a.shape[-1]
        whole = k - k % 64
        if whole == k or k <= 128 or a.ndim < 2 or b.ndim < 2:
            return self.xp.matmul(a, b, out=out)
        y = self.xp.matmul(a[..., :whole], b[..., :whole, :], out=out)
        y += self.xp.matmul(a[..., whole:], b[..., whole:, :])
        return y

    def scatter_add(self, target: Array, index: Any, values: Array) -> None:
        """`target[index] += values`, with repeated indices added up, in a fixed order."""
        rows = index[0] if isinstance(index, tuple) and len(index) == 1 else index
        if (
            isinstance(rows, np.ndarray)
            and rows.dtype != bool
            and target.ndim > 1
            and values.shape == rows.shape + target.shape[1:]
        ):
            # Whole rows at integer positions (an embedding): sort the positions once and
            # add each run of equal ones by a reduction. 5 times np.add.at at 1,024 rows.
            self._add_rows(target, rows.reshape(-1), values)
        else:
            np.add.at(target, index, values)

    @staticmethod
    def _add_rows(target: Array, rows: Array, values: Array) -> None:
        if rows.size == 0:
            return
        rows = np.where(rows < 0, rows + target.shape[0], rows)
        order = np.argsort(rows, kind="stable")
        rows = rows[order]
        starts = np.flatnonzero(np.r_[True, rows[1:] != rows[:-1]])
        flat = values.reshape(rows.size, *target.shape[1:])
        target[rows[starts]] += np.add.reduceat(flat[order], starts, axis=0)

    def owner(self, array: Array) -> Array:
        """The array whose buffer `array` looks into: itself unless it is a view."""
        while (base := array.base) is not None:
            if not isinstance(base, np.ndarray):
                base = getattr(base, "base", None)  # what as_strided puts in between
                if not isinstance(base, np.ndarray):
                    break
            array = base
        return array


_cpu = Backend()


def is_array(value: Any) -> bool:
    """Whether `value` is an array of some device (not a Tensor, list or number)."""
    return isinstance(value, np.ndarray)


def get_backend(device: str) -> Backend:
    """The backend named `device`, or an error that says why there is none."""
    if device == "cpu":
        return _cpu
    if device == "cuda" or device.startswith("cuda:"):
        raise BackendUnavailableError(
            f"device {device!r}: this version of tinygrad_helix computes on the CPU alone, "
            'it has no CUDA backend. Use device="cpu".'
        )
    raise DeviceError(f"device {device!r} is unknown. Use one of: 'cpu', 'cuda'.")


def backend_of(array: Array) -> Backend:
    """The backend that `array` lives on."""
    if isinstance(array, np.ndarray):
        return _cpu
    raise DeviceError(
        f"{type(array).__name__} is no array of a known device. Use a numpy.ndarray."
    )


def array_module(array: Array) -> Any:
    """The module (`numpy` or another of its kind) whose functions take `array`."""
    return backend_of(array).xp
