"""Launching kernels: a .cu file compiled on first use, every argument checked.

    kernels = load("saxpy.cu", device=get_backend("cuda"))
    kernels["saxpy<float>"]((blocks,), (128,), (x, y, 2.0, n))

A launch is written as for `cupy.RawModule`: the grid, the block, a tuple of arguments. What
CUDA and CuPy leave unchecked is checked here against the signature in the file (see
`source`), and any fault is a KernelError that names the kernel and the parameter:

- Numbers become exactly the parameter's type, if they fit. CuPy hands a Python float on as
  a double, and a kernel that has a float there reads garbage.
- Arrays have the parameter's dtype, live on the kernel's device and have the shape that
  the comment above the kernel states. A strided input is copied into C order first, and
  one at an address that is no multiple of the element (a float4 has 16 bytes) copied too;
  an output must be C-contiguous and aligned. An output shares no memory with another
  argument where either is declared __restrict__. None (a null pointer) goes where the
  comment allows it.
- Grid, block and shared memory are within CUDA's limits. A grid with a zero in it
  launches nothing.

The same goes for a file of one's own: load("my.cu", device=…). `device` says how modules
are made: by CuPy on a GPU, or on a laptop, on NumPy arrays, by `host.HostDevice()`.
"""

import functools
import math
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import HelixError, KernelError
from .arguments import Arguments
from .source import Instance, Source, read_source
from .text import canonical
from .toolkit import INSTALL_GPU, shortened

__all__ = ["Kernel", "Module", "load"]

_GRID = (2**31 - 1, 65535, 65535)
_BLOCK = (1024, 1024, 64)
_THREADS = 1024
_SHARED = 48 << 10  # bytes of dynamic shared memory that need no opting in

_modules: weakref.WeakKeyDictionary[Any, dict[Any, "Module"]] = weakref.WeakKeyDictionary()


def load(
    file: str | Path,
    name_expressions: Sequence[str] | None = None,
    *,
    device: Any,
    options: Sequence[str] = (),
) -> "Module":
    """The kernels of a .cu file on `device`, compiled when the first of them is launched.

    `file` is a path, or the bare name of one of the package's own files. The instances of
    `name_expressions` ("scan_r<float, 16, false>") are compiled together, once per device;
    left out they are all that the file states, and its kernels that are no templates.
    `options` go to the compiler (-DNAME=VALUE).

    Errors: KernelError if there is no such file or kernel; at the first launch, if it does
    not compile, or if the compiler or CUDA's headers are missing.
    """
    source = read_source(file)
    names = source.expressions if name_expressions is None else name_expressions
    names = tuple(dict.fromkeys(map(canonical, names)))
    modules = _modules.setdefault(device, {})
    key = source, names, tuple(options)  # equal texts are one Source
    if key not in modules:
        modules[key] = Module(source, names, device, options)
    return modules[key]


class Module(Mapping[str, "Kernel"]):
    """The kernels of one file on one device, by name expression."""

    def __init__(
        self, source: Source, names: Sequence[str], device: Any, options: Sequence[str]
    ) -> None:
        self.source = source
        self.options = tuple(options)
        self._factory = device.module_factory
        self._kernels = {
            name: Kernel(self, source.instance(name, options), device) for name in names
        }

    def __getitem__(self, name: str) -> "Kernel":
        try:
            return self._kernels[name]
        except KeyError:
            kernel = self._kernels.get(canonical(name))
        if kernel is None:
            raise KernelError(
                f"{self.source.name} was loaded without {name!r}. It was loaded with: "
                f"{', '.join(self._kernels) or 'none'}. Name it in load()'s "
                "name_expressions, or state it in the file: "
                f"// {name}: 64 registers"
            )
        self._kernels[name] = kernel
        return kernel

    def __iter__(self):
        return iter(dict.fromkeys(k.name for k in self._kernels.values()))

    def __len__(self) -> int:
        return len(set(self._kernels.values()))

    @functools.cached_property
    def compiled(self) -> Any:
        """What the device's module factory made of the text."""
        try:
            return self._factory(
                code=self.source.text,
                options=self.options,
                name_expressions=tuple(self),
            )
        except HelixError:
            raise
        except Exception as error:
            raise _not_compiled(self.source.name, error) from error


class Kernel:
    """One kernel on one device: `kernel(grid, block, args, shared_mem=0)` launches it.

    It runs on the device's current stream. Errors: KernelError, and nothing is launched.
    """

    def __init__(self, module: Module, instance: Instance, device: Any) -> None:
        self.name = instance.expression
        self.instance = instance
        self._module = module
        self._title = f"{module.source.name}: {self.name}"
        self._arguments = Arguments(self._title, instance, device)
        self._shared = _SHARED

    @functools.cached_property
    def _function(self) -> Any:
        try:
            return self._module.compiled.get_function(self.name)
        except HelixError:
            raise
        except Exception as error:
            raise _not_compiled(self._title, error) from error

    def __repr__(self) -> str:
        inside = ", ".join(map(str, self.instance.parameters))
        return f"<Kernel {self.name}({inside})>"

    def __call__(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[Any],
        *,
        shared_mem: int = 0,
    ) -> None:
        grid = self._dimensions("grid", grid, _GRID)
        block = self._dimensions("block", block, _BLOCK)
        if not _whole(shared_mem) or shared_mem < 0:
            raise self._error(f"shared_mem is {shared_mem!r}. Give a number of bytes")
        if not isinstance(args, Sequence) or isinstance(args, str):
            raise self._error(f"the arguments are {args!r}. Give a tuple of them")
        threads = math.prod(block)
        most = min(_THREADS, self.instance.max_threads or _THREADS)
        if not 1 <= threads <= most:
            raise self._error(
                f"a block of {block} is {threads} threads, the kernel takes 1 to {most}"
                + ("" if most == _THREADS else ", says its __launch_bounds__")
                + ". Launch smaller blocks, and more of them"
            )
        ready = self._arguments.ready(args)
        if 0 in grid:
            return
        function = self._function
        if shared_mem > self._shared:
            # Above 48 KB a kernel has to say what it wants, once.
            try:
                function.max_dynamic_shared_size_bytes = shared_mem
            except Exception as error:
                raise self._error(
                    f"{shared_mem} bytes of dynamic shared memory are more than the device "
                    f"gives ({error}). Make the tile smaller"
                ) from error
            self._shared = shared_mem
        try:
            function(grid, block, ready, shared_mem=shared_mem)
        except HelixError:
            raise
        except Exception as error:
            if _missing(error):
                raise _not_compiled(self._title, error) from error
            raise self._error(
                f"the launch with grid {grid}, block {block} and {shared_mem} bytes of "
                f"shared memory failed: {error}"
            ) from error

    def _error(self, what: str) -> KernelError:
        return KernelError(f"{self._title}: {what}.")

    def _dimensions(
        self, what: str, given: Sequence[int], limits: tuple[int, int, int]
    ) -> tuple[int, int, int]:
        sizes = tuple(given) if isinstance(given, Sequence) else (given,)
        if not 1 <= len(sizes) <= 3 or not all(map(_whole, sizes)):
            raise self._error(f"the {what} is {given!r}. Give one to three whole numbers")
        x, y, z = (*map(int, sizes), 1, 1)[:3]
        for axis, n, limit in zip("xyz", (x, y, z), limits, strict=True):
            if not 0 <= n <= limit:
                raise self._error(
                    f"{what}.{axis} is {n}, CUDA takes 0 to {limit}. Put the long axis on "
                    f"{what}.x, or loop inside the kernel"
                )
        return x, y, z


def _whole(n: Any) -> bool:
    return isinstance(n, (int, np.integer)) and not isinstance(n, bool)


def _missing(error: BaseException) -> bool:
    """Whether the compiler or its headers are what is missing."""
    return type(error).__name__.startswith("DynamicLib") or "CUDA headers" in str(error)


def _not_compiled(what: str, error: BaseException) -> KernelError:
    if _missing(error):
        return KernelError(
            f"{what} cannot be compiled: CuPy finds no NVRTC or no CUDA headers "
            f"({str(error).splitlines()[0]}). {INSTALL_GPU} brings both."
        )
    return KernelError(f"{what} does not compile:\n{shortened(str(error).strip())}")
