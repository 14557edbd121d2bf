"""A device: its array module, its kernels, and what NumPy and CuPy do differently.

Ops are written once against an array module `xp`. What cannot be written that way
(copies between devices, adding at repeated indices, which array owns a buffer) is a
method here. NumPy's backend is complete; another device is another subclass, made when it
is first asked for and known from then on by the type of its arrays.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import DeviceError, KernelError
from .meter import Meter, numpy_meter

__all__ = [
    "Backend",
    "Kernel",
    "array_module",
    "backend_of",
    "device_of",
    "get_backend",
    "installed",
    "is_array",
    "is_writeable",
    "kernels_of",
    "known_device",
    "others",
]

Array = Any  # a NumPy or CuPy array: the two share no base class

DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class Kernel:
    """What runs an op on a device for a dtype in the place of the op's own body.

    `forward` and `vjp` have the op's own signatures; None leaves that one to the op.
    """

    name: str
    forward: Callable[..., Any] | None
    vjp: Callable[..., Any] | None

    def checked(self, op: str, result: Any, backend: "Backend", arrays: Any) -> Any:
        """`result` if it is what `op`'s forward returns: (y, saved), or (ys, saved), of
        arrays of the device; floats have the dtype of one of the inputs."""
        here = f"the kernel {self.name} of {op}"
        if not (isinstance(result, tuple) and len(result) == 2):
            raise KernelError(
                f"{here} returned {type(result).__name__}. forward returns a pair, the "
                "result (or a tuple of results) and a dict of what is saved."
            )
        ys, saved = result
        if not isinstance(saved, Mapping):
            raise KernelError(
                f"{here} returned {type(saved).__name__} as what is saved. Return a dict "
                "by name; {} where nothing is."
            )
        dtypes = [a.dtype for a in arrays if is_array(a) and is_floating(a.dtype)]
        for y in ys if isinstance(ys, tuple) else (ys,):
            if not isinstance(y, (backend.array_type, np.generic)):
                raise KernelError(
                    f"{here} returned {type(y).__module__}.{type(y).__name__}. On "
                    f"{backend.name!r} a result is a {backend.array_type.__module__}."
                    f"{backend.array_type.__name__}."
                )
            if dtypes and is_floating(y.dtype) and y.dtype not in dtypes:
                raise KernelError(
                    f"{here} returned {y.dtype} for inputs of {dtypes[0]}. Give the result "
                    "the dtype that the op's own body gives it."
                )
        return result


Kernels = dict[tuple[type, np.dtype], Kernel]  # by op and dtype

_kernels: dict[str, Kernels] = {device: {} for device in DEVICES}


class Backend:
    """The CPU, by NumPy."""

    name = "cpu"
    xp: Any = np
    checks_indices = True  # x[index] out of bounds is an error, not another element
    array_type: type = np.ndarray

    def __init__(self) -> None:
        self.kernels = _kernels[self.name]

    def kernel(self, op: type, dtypes: Sequence[Any]) -> Kernel | None:
        """The kernel registered for `op` on inputs of `dtypes` (None: no array): that of
        the first floating dtype among them, or of the first dtype where none is floating.
        """
        known = [d for d in dtypes if d is not None]
        floating = [d for d in known if is_floating(d)]
        first = (floating or known)[:1]
        return self.kernels.get((op, first[0])) if first else None

    meter: Meter = numpy_meter

    def asarray(self, data: Any, dtype: Any = None) -> Array:
        """`data` as an array of this device: aliased if it is one, else copied to it."""
        if type(data) in others:
            data = others[type(data)].to_numpy(data)
        return np.asarray(data, dtype=dtype)

    def copy(self, array: Array) -> Array:
        """A C-ordered copy that owns its buffer."""
        return np.array(array, order="C", copy=True, subok=False)

    def copied(self, array: Array) -> Array:
        """`copy` of an array of any device, on this one."""
        return self.copy(array) if backend_of(array) is self else self.asarray(array)

    def to_numpy(self, array: Array) -> np.ndarray:
        """The same values as a NumPy array (for NumPy the very array)."""
        return array

    def matmul(self, a: Array, b: Array, out: Array | None = None) -> Array:
        """a @ b of arrays, with bits that depend on the number of BLAS threads as little as
        BLAS lets them.

        OpenBLAS cuts a long sum over k where it fits its cache, and rounds the cut
        differently with one thread and with several unless k is a multiple of its unroll
        (seen with 0.3.31 from k = 385 in float64, 449 in float32). So the last k % 64
        columns are a product of their own. With its AVX-512 kernels that is all; its
        Haswell kernels round at the edges of each thread's rows too. Where that matters,
        give BLAS one thread (threadpoolctl); the fused nodes do.
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

    def is_writeable(self, array: Array) -> bool:
        """Whether `array` may be written to."""
        return array.flags.writeable

    def synchronize(self) -> None:
        """Wait for what was launched on this device; on the CPU nothing is pending."""


_cpu = Backend()
_backends: dict[str, Backend] = {"cpu": _cpu}

# The devices in use beside the CPU, by the type of their arrays. Empty on a machine
# without them, so that one test of it is all that mixing devices costs there.
others: dict[type, Backend] = {}


def is_floating(dtype: Any) -> bool:
    """Whether `dtype` is one of floats, those of ml_dtypes (bfloat16) among them."""
    return dtype.kind == "f" or dtype.name == "bfloat16"


def is_array(value: Any) -> bool:
    """Whether `value` is an array of some device (not a Tensor, list or number)."""
    return isinstance(value, np.ndarray) or type(value) in others


def known_device(device: Any) -> str:
    """`device`, or an error if there is no device of that name."""
    if device in DEVICES:
        return device
    if isinstance(device, str) and device.startswith("cuda:"):
        raise DeviceError(
            f"device {device!r}: 'cuda' is the one GPU that CuPy uses, and the devices "
            "have no numbers. Choose the GPU with CUDA_VISIBLE_DEVICES, and write 'cuda'."
        )
    raise DeviceError(f"device {device!r} is unknown. Use one of: 'cpu', 'cuda'.")


def kernels_of(device: str) -> Kernels:
    """The kernels registered for `device`, whether or not this machine has it."""
    return _kernels[known_device(device)]


def get_backend(device: str) -> Backend:
    """The backend named `device`, or an error that says why there is none."""
    backend = _backends.get(device)
    if backend is None:
        known_device(device)
        from .cuda.device import CudaBackend  # brings CuPy: on first use only

        backend = CudaBackend()
        _install(backend)
    return backend


def _install(backend: Backend) -> None:
    _backends[backend.name] = backend
    others[backend.array_type] = backend


@contextmanager
def installed(backend: Backend) -> Iterator[Backend]:
    """Within the block `backend` is the device of its name, whatever was before."""
    before = _backends.get(backend.name), dict(others)
    _install(backend)
    try:
        yield backend
    finally:
        others.clear()
        others.update(before[1])
        if before[0] is None:
            del _backends[backend.name]
        else:
            _backends[backend.name] = before[0]


def backend_of(array: Array) -> Backend:
    """The backend that `array` lives on."""
    if isinstance(array, np.ndarray):
        return _cpu
    backend = others.get(type(array))
    if backend is None:
        raise DeviceError(
            f"{type(array).__name__} is no array of a known device. Use a numpy.ndarray, "
            'or move it with Tensor(array, device="cuda").'
        )
    return backend


def is_writeable(array: Array) -> bool:
    """Whether `array` may be written to: NumPy has read-only arrays, CuPy has none."""
    return backend_of(array).is_writeable(array)


def device_of(data: Any) -> str:
    """The device that `data` is on: that of an array, "cpu" for lists and numbers. An
    array of CuPy's makes the device known."""
    if isinstance(data, np.ndarray):
        return "cpu"
    if type(data) in others:
        return others[type(data)].name
    if type(data).__module__.partition(".")[0] == "cupy":
        return get_backend("cuda").name
    return "cpu"


def array_module(array: Array) -> Any:
    """The module (`numpy` or another of its kind) whose functions take `array`."""
    return backend_of(array).xp
