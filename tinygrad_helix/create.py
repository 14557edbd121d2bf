"""Making Tensors: filled ones, ranges, random ones, and the seed."""

from typing import Any

import numpy as np

from .backend import get_backend
from .errors import DTypeError, HelixError, ShapeError
from .tensor import Tensor

__all__ = [
    "arange", "empty", "eye", "from_dlpack", "from_numpy", "full", "linspace",
    "manual_seed", "ones", "ones_like", "rand", "rand_like", "randn", "randn_like",
    "zeros", "zeros_like",
]  # fmt: skip

_generator = np.random.default_rng()


def manual_seed(seed: int) -> None:
    """Start the package's own random generator anew. NumPy's global state is not used.

    The generator stays the same object: who holds it goes on with the new seed.
    """
    _generator.bit_generator.state = np.random.default_rng(seed).bit_generator.state


def default_generator() -> np.random.Generator:
    """The generator that is used where none is given."""
    return _generator


def _shape(given: tuple[Any, ...]) -> tuple[int, ...]:
    sizes = given[0] if len(given) == 1 and isinstance(given[0], (tuple, list)) else given
    try:
        shape = tuple(n.__index__() for n in sizes)
    except AttributeError:
        raise DTypeError(f"a shape is made of ints; got {sizes!r}.") from None
    if any(n < 0 for n in shape):
        raise ShapeError(f"a shape of sizes {shape}. None may be negative.")
    return shape


def _xp(device: str | None) -> Any:
    """The array module in which a constructor makes its array."""
    return get_backend(device or "cpu").xp


def full(
    shape: Any,
    value: float,
    dtype: Any = None,
    requires_grad: bool = False,
    device: str | None = None,
) -> Tensor:
    """A Tensor of one value; float32 for a float, int64 for an int, unless `dtype` says."""
    sizes = _shape(shape if isinstance(shape, tuple) else (shape,))
    dtype = Tensor(value, dtype).dtype  # or an error if that cannot hold it
    return Tensor(_xp(device).full(sizes, value, dtype), None, requires_grad, device)


def zeros(
    *shape: Any,
    dtype: Any = np.float32,
    requires_grad: bool = False,
    device: str | None = None,
) -> Tensor:
    """A Tensor of zeros."""
    return Tensor(_xp(device).zeros(_shape(shape), dtype), None, requires_grad, device)


def ones(
    *shape: Any,
    dtype: Any = np.float32,
    requires_grad: bool = False,
    device: str | None = None,
) -> Tensor:
    """A Tensor of ones."""
    return Tensor(_xp(device).ones(_shape(shape), dtype), None, requires_grad, device)


def empty(
    *shape: Any,
    dtype: Any = np.float32,
    requires_grad: bool = False,
    device: str | None = None,
) -> Tensor:
    """A Tensor whose values are whatever the memory held."""
    return Tensor(_xp(device).empty(_shape(shape), dtype), None, requires_grad, device)


def eye(
    n: int, m: int | None = None, *, dtype: Any = np.float32, device: str | None = None
) -> Tensor:
    """The n × m matrix (n × n by default) with ones on its diagonal."""
    return Tensor(_xp(device).eye(n, m, dtype=dtype), device=device)


def arange(*bounds: Any, dtype: Any = None, device: str | None = None) -> Tensor:
    """arange([start,] stop[, step]): int64 of ints, else float32, unless `dtype` says."""
    try:
        array = _xp(device).arange(*bounds, dtype=dtype)
    except OverflowError as error:
        raise DTypeError(
            f"arange{bounds} of {dtype}: {error}. Give a wider dtype."
        ) from None
    if dtype is None and array.dtype.kind == "f":
        array = array.astype(np.float32)
    return Tensor(array, device=device)


def linspace(
    start: float,
    stop: float,
    num: int,
    *,
    dtype: Any = np.float32,
    device: str | None = None,
) -> Tensor:
    """`num` values from `start` to `stop`, both included, evenly spaced."""
    return Tensor(_xp(device).linspace(start, stop, num, dtype=dtype), device=device)


def randn(
    *shape: Any,
    dtype: Any = np.float32,
    requires_grad: bool = False,
    generator: np.random.Generator | None = None,
    device: str | None = None,
) -> Tensor:
    """Values from N(0, 1), drawn in float64 so that every dtype gets the same numbers."""
    values = (generator or _generator).standard_normal(_shape(shape)).astype(dtype)
    return Tensor(values, None, requires_grad, device)


def rand(
    *shape: Any,
    dtype: Any = np.float32,
    requires_grad: bool = False,
    generator: np.random.Generator | None = None,
    device: str | None = None,
) -> Tensor:
    """Values from U[0, 1), drawn in float64 so that every dtype gets the same numbers."""
    values = (generator or _generator).random(_shape(shape))
    array = values.astype(dtype)
    # Rounding to a shorter float can reach 1.
    np.minimum(array, np.nextafter(array.dtype.type(1), array.dtype.type(0)), out=array)
    return Tensor(array, None, requires_grad, device)


def _like(x: Tensor, dtype: Any) -> dict[str, Any]:
    return {"dtype": x.dtype if dtype is None else dtype, "device": x.device}


def zeros_like(x: Tensor, dtype: Any = None) -> Tensor:
    """Zeros of x's shape, dtype and device."""
    return zeros(x.shape, **_like(x, dtype))


def ones_like(x: Tensor, dtype: Any = None) -> Tensor:
    """Ones of x's shape, dtype and device."""
    return ones(x.shape, **_like(x, dtype))


def randn_like(x: Tensor, generator: np.random.Generator | None = None) -> Tensor:
    """Values from N(0, 1) of x's shape, dtype and device."""
    return randn(x.shape, generator=generator, **_like(x, None))


def rand_like(x: Tensor, generator: np.random.Generator | None = None) -> Tensor:
    """Values from U[0, 1) of x's shape, dtype and device."""
    return rand(x.shape, generator=generator, **_like(x, None))


def from_numpy(array: np.ndarray) -> Tensor:
    """A Tensor that shares the memory of `array`."""
    if not isinstance(array, np.ndarray):
        raise DTypeError(f"from_numpy takes a numpy.ndarray; got {type(array).__name__}.")
    return Tensor(array)


_ON_CUDA = (2, 13)  # DLPack's kDLCUDA and kDLCUDAManaged


def from_dlpack(source: Any) -> Tensor:
    """A Tensor that shares the memory of another library's array, by DLPack.

    Shape, strides and dtype stay; what is written on one side is seen on the other, though
    not by the tape, and read-only memory stays so. It requires no gradient, and a source
    that does is refused.

    Errors: DTypeError for what has no `__dlpack__` or holds no floats, ints or bools;
    HelixError for what its library, NumPy or CuPy cannot share (another kind of device,
    say), BackendUnavailableError for CUDA memory where there is no CuPy.

    >>> import numpy as np, tinygrad_helix as th
    >>> array = np.zeros(2)
    >>> x = th.from_dlpack(array)
    >>> array[0] = 7
    >>> x.tolist()
    [7.0, 0.0]
    """
    if not hasattr(source, "__dlpack__"):
        raise DTypeError(
            f"from_dlpack takes an array with __dlpack__; got {type(source).__name__}. For "
            "lists and numbers there is tensor()."
        )
    try:
        where = source.__dlpack_device__()[0]
        xp = get_backend("cuda").xp if where in _ON_CUDA else np
        array = xp.from_dlpack(source)
    except HelixError:
        raise
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise HelixError(
            f"this {type(source).__name__} cannot be shared by DLPack ({error}). Detach "
            "it, move it to the CPU or convert it first."
        ) from None
    return Tensor(array)
