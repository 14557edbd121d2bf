"""Trying a kernel on the CPU with made-up inputs: `kernels my.cu --run saxpy`.

The shapes come from the comment above the kernel, the values from a generator. The kernel
runs in four orders of threads, whose results have to agree, and may be held against a
function in Python. Around each array are bytes that nobody may touch: they are looked at
after each run, and a run with other bytes there has to have the same results. A kernel that
goes further astray ends its process: `child` gives each trial one of its own.
"""

import functools
import math
import runpy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import HelixError, KernelError
from .host import HostDevice, thread_order
from .launch import Kernel, load
from .parameters import Parameter
from .source import Instance, read_source
from .text import evaluate

__all__ = ["Output", "Trial", "trial"]

ORDERS = (0, 1, 2, 3)

# What an order of threads, or a reference, may differ by, of the largest value. Orders
# differ where atomics add floats.
TOLERANCES = {"float64": 1e-12, "float32": 1e-5, "float16": 3e-3, "bfloat16": 3e-2}

# Sizes that --set does not give: for one, several blocks of threads with a rest; for more,
# small ones, none a multiple of a warp and no two alike.
_ONE_SIZE = 1000
_SIZES = (7, 19, 33, 5, 11, 3)

# What every byte around an array is: NaN to floats, and in one run more another number, for
# each array its own: what is copied from beyond one to beyond another shows.
_GUARD, _OTHER = 0xFF, 0x3C
_LEAST, _MOST = 4 << 10, 4 << 20  # bytes on each side: as many as the array has, within


@dataclass(frozen=True)
class Output:
    """What a launch left in one array that the kernel may write."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    changed: int  # elements that are not what they were
    not_finite: int
    least: float
    most: float
    between_orders: float  # largest difference, of the largest value
    against: float | None  # the same against the reference, if it has this array
    tolerance: float

    @property
    def ok(self) -> bool:
        """The orders agree, and agree with the reference if there is one."""
        return self.between_orders <= self.tolerance and (
            self.against is None or self.against <= self.tolerance
        )


@dataclass(frozen=True)
class Trial:
    """One kernel, run on the CPU."""

    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: dict[str, Any]  # scalars by value, arrays as text
    outputs: list[Output]
    outside: list[str] = field(default_factory=list)  # what it touches that is not its own
    sanitizers: dict[str, str | None] = field(default_factory=dict)  # None: found nothing

    @property
    def ok(self) -> bool:
        """All outputs are, nothing outside was touched, no sanitizer found anything."""
        return (
            all(o.ok for o in self.outputs)
            and not self.outside
            and not any(self.sanitizers.values())
        )


def trial(
    file: str,
    expression: str,
    settings: Mapping[str, Any],
    *,
    grid: Sequence[int] | None = None,
    block: Sequence[int] | None = None,
    shared_mem: int = 0,
    against: str | None = None,
    tolerance: float | None = None,
    seed: int = 0,
    orders: Sequence[int] = ORDERS,
    guarded: bool = True,
) -> Trial:
    """Run a kernel of `file` in every order and compare.

    `settings` are sizes and scalars by name, None for a null pointer. Left out, the block
    is that of __launch_bounds__ or 128 threads, and the grid one thread for each element
    of the largest array that the kernel writes. `against` is a Python file with a
    function of the kernel's name: it is called with the arguments by name and returns
    what the kernel should have written, an array or a dict of arrays. Arrays that are
    not `guarded` have nothing around them, as the address sanitizer wants it.

    Errors: KernelError for what cannot be made up or launched.
    """
    source = read_source(file)
    instance = source.instance(expression)
    values = _values(instance, settings, np.random.default_rng(seed), source.name)
    written = [p.name for p in instance.parameters if p.pointer and not p.const]
    written = [name for name in written if values[name] is not None]
    block = tuple(block) if block else (instance.max_threads or 128,)
    if grid is None:
        work = max((values[name].size for name in written), default=1)
        grid = (max(1, -(-work // math.prod(block))),)
    wanted = _reference(against, instance, values, written) if against else {}
    kernel = load(file, [expression], device=HostDevice())[expression]
    once: Callable[..., _Run] = functools.partial(
        _run, kernel, (grid, block, shared_mem), values, written, guarded=guarded
    )
    runs = [once(order) for order in orders]
    outside = list(dict.fromkeys(text for run in runs for text in run.outside))
    if guarded:
        other = once(orders[0], fill=_OTHER)
        outside += [text for text in other.outside if text not in outside]
        if not outside and other.bits() != runs[0].bits():
            again = once(orders[0])  # in case it is the last run that shows, and not this
            if again.bits() == runs[0].bits():
                outside.append("it read outside of its arrays, and the results show it")
            runs.append(again)
    outputs = [
        _output(
            name, values[name], [r.arrays[name] for r in runs], wanted.get(name), tolerance
        )
        for name in written
    ]
    shown = {n: _shown(v) for n, v in values.items()}
    return Trial(instance.expression, tuple(grid), block, shown, outputs, outside)


@dataclass(frozen=True)
class _Run:
    """The arrays that one launch wrote, and where it wrote besides."""

    arrays: dict[str, np.ndarray]
    outside: list[str]

    def bits(self) -> list[bytes]:
        return [a.tobytes() for a in self.arrays.values()]


def _run(
    kernel: Kernel,
    how: tuple[Sequence[int], Sequence[int], int],
    values: Mapping[str, Any],
    written: Sequence[str],
    order: int,
    *,
    guarded: bool,
    fill: int = _GUARD,
) -> _Run:
    """Launch on copies of `values`, with bytes `fill` around each array."""
    arguments, rooms = dict(values), {}
    for i, (name, value) in enumerate(values.items()):
        if not isinstance(value, np.ndarray):
            continue
        byte = fill if fill == _GUARD else fill + i % 32
        around = min(max(value.nbytes, _LEAST), _MOST) // 64 * 64 if guarded else 0
        room = np.full(value.nbytes + 2 * around, byte, np.uint8)
        inside = room[around : around + value.nbytes]
        arguments[name] = inside.view(value.dtype).reshape(value.shape)
        arguments[name][...] = value
        rooms[name] = room, around, byte
    grid, block, shared_mem = how
    with thread_order(order):
        kernel(grid, block, list(arguments.values()), shared_mem=shared_mem)
    outside = []
    for name, (room, around, byte) in rooms.items():
        array = arguments[name]
        before = np.flatnonzero(room[:around] != byte)
        after = np.flatnonzero(room[around + array.nbytes :] != byte)
        if before.size:
            i = -(-(around - before[0]) // array.itemsize)
            outside.append(f"it wrote before the beginning of {name}: to element -{i:,}")
        if after.size:
            i = array.size + after[-1] // array.itemsize
            outside.append(
                f"it wrote past the end of {name}: to element {i:,}, and it has "
                f"{array.size:,}"
            )
    return _Run({name: arguments[name] for name in written}, outside)


def _values(
    instance: Instance,
    settings: Mapping[str, Any],
    random: np.random.Generator,
    file: str,
) -> dict[str, Any]:
    """A value for each parameter."""
    what = f"{file}: {instance.expression}"
    sizes = dict(instance.integers)
    arrays = [p for p in instance.parameters if p.pointer]
    for p in arrays:
        if p.shape is None:
            raise KernelError(
                f"{what}: what shape {p.name} has is not said. Write it in a comment "
                f"directly above the kernel: // {p.name} [n] (with no line between)"
            )
    names = [text for p in arrays for text in p.shape or () if text.isidentifier()]
    names = list(dict.fromkeys(n for n in names if n not in sizes))
    scalars = [p.name for p in instance.parameters if not p.pointer]
    unknown = set(settings) - set(names) - {p.name for p in instance.parameters}
    if unknown:
        raise KernelError(
            f"{what} has nothing called {', '.join(sorted(unknown))}. It has: "
            f"{', '.join([*scalars, *(n for n in names if n not in scalars)])}."
        )
    made_up = iter((_ONE_SIZE,) if len(names) == 1 else (*_SIZES, *range(2, 99)))
    for name in names:
        size = settings[name] if name in settings else next(made_up)
        if not isinstance(size, int) or size < 0:
            raise KernelError(f"{what}: the size {name} is a whole number, not {size!r}.")
        sizes[name] = size
    make: Callable[[Parameter], Any] = functools.partial(
        _value, settings=settings, sizes=sizes, random=random, what=what
    )
    return {p.name: make(p) for p in instance.parameters}


def _value(
    p: Parameter,
    *,
    settings: Mapping[str, Any],
    sizes: Mapping[str, int],
    random: np.random.Generator,
    what: str,
) -> Any:
    if not p.pointer:
        if p.name in settings:
            return settings[p.name]
        if p.name in sizes:
            return sizes[p.name]
        if p.dtype == "bool":
            return False
        if "float" in p.dtype:
            return 0.5
        raise KernelError(
            f"{what}: {p} is no size of an array, so its value has to be said: "
            f"--set {p.name}=1"
        )
    if p.name in settings:
        if settings[p.name] in (None, "None"):
            return None
        raise KernelError(
            f"{what}: {p.name} is an array; only None, a null pointer, can be set. Its "
            "values are made up."
        )
    try:
        shape = [evaluate(text, sizes) for text in p.shape or ()]
    except (KeyError, ValueError, ZeroDivisionError) as error:
        raise KernelError(f"{what}: the shape of {p.name} has no value: {error}.") from None
    if p.lanes > 1:
        shape = [*shape[:-1], (shape or [1])[-1] * p.lanes]
    if p.dtype == "bool":
        return random.random(shape) < 0.5
    if "int" in p.dtype:
        return random.integers(0, 10, shape).astype(p.dtype)
    dtype: Any = p.dtype
    if dtype == "bfloat16":
        try:
            from ml_dtypes import bfloat16 as dtype
        except ImportError:
            raise KernelError(
                f"{what}: {p.name} is bfloat16, which needs ml_dtypes. pip install "
                '"tinygrad_helix[bf16]"'
            ) from None
    return random.standard_normal(shape).astype(dtype)


def _reference(
    file: str, instance: Instance, values: Mapping[str, Any], written: Sequence[str]
) -> dict[str, Any]:
    name = instance.expression.partition("<")[0]
    try:
        function = runpy.run_path(file).get(name)
        if function is None:
            raise KernelError(
                f"{file} has no function {name!r} to hold the kernel against. Write: "
                f"def {name}({', '.join(values)}): …"
            )
        copies = {
            n: v.copy() if isinstance(v, np.ndarray) else v for n, v in values.items()
        }
        got = function(**copies)
    except HelixError:
        raise
    except Exception as error:
        raise KernelError(
            f"{file}: {name} failed with {type(error).__name__}: {error}."
        ) from error
    if not isinstance(got, dict):
        if len(written) != 1:
            raise KernelError(
                f"{file}: the kernel writes {', '.join(written)}; let {name} return a dict "
                "with an array for each of them."
            )
        got = {written[0]: got}
    for key, value in got.items():
        if key not in written:
            raise KernelError(
                f"{file}: {name} returns {key!r}, the kernel writes {', '.join(written)}."
            )
        got[key] = np.asarray(value)
        if got[key].shape != values[key].shape:
            raise KernelError(
                f"{file}: {name} returns {key} with shape {got[key].shape}, the kernel's "
                f"has {values[key].shape}."
            )
    return got


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)


def _difference(a: np.ndarray, b: np.ndarray) -> float:
    """max |a - b| / max |b|, equal infinities and NaNs apart."""
    a, b = _wide(a), _wide(b)
    with np.errstate(invalid="ignore"):
        apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, np.abs(a - b))
    most = float(np.max(apart, initial=0))
    largest = float(np.max(np.abs(b), initial=0, where=np.isfinite(b)))
    return math.inf if math.isnan(most) else most / largest if largest else most


def _output(
    name: str,
    before: np.ndarray,
    after: Sequence[np.ndarray],
    wanted: np.ndarray | None,
    tolerance: float | None,
) -> Output:
    first = _wide(after[0])
    finite = first[np.isfinite(first)]
    same = (first == _wide(before)) | (np.isnan(first) & np.isnan(_wide(before)))
    return Output(
        name=name,
        shape=before.shape,
        dtype=before.dtype.name,
        changed=int(np.sum(~same)),
        not_finite=first.size - finite.size,
        least=float(finite.min()) if finite.size else math.nan,
        most=float(finite.max()) if finite.size else math.nan,
        between_orders=max((_difference(a, after[0]) for a in after[1:]), default=0.0),
        against=None if wanted is None else max(_difference(a, wanted) for a in after),
        tolerance=TOLERANCES.get(before.dtype.name, 0.0)
        if tolerance is None
        else tolerance,
    )


def _shown(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return f"{value.dtype.name}[{', '.join(map(str, value.shape))}]"
    return value
