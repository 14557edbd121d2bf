"""CUDA kernels compiled by g++ and run on NumPy arrays: `HostModule`."""

import contextlib
import contextvars
import ctypes
import functools
import hashlib
import os
import platform
import re
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import KernelError
from ..source import Source
from ..text import canonical
from ..toolkit import compiler, headers, shortened
from .sanitize import active_sanitizer

__all__ = ["HostFunction", "HostModule", "thread_order"]

_HERE = Path(__file__).parent
_SHARED = 227 << 10  # bytes: the array of cuda_on_cpu.h

_order: contextvars.ContextVar[int] = contextvars.ContextVar("thread_order", default=0)


@contextlib.contextmanager
def thread_order(order: int) -> Iterator[None]:
    """Kernels launched inside run their threads in this order.

    0 ascending (what runs without it), 1 descending, 2 and more: threads and blocks
    shuffled, each number another way. A kernel that lacks a barrier is right in some
    orders and wrong in others: run it in 0, 1, 2 and 3.
    """
    if not isinstance(order, (int, np.integer)) or not 0 <= order < 2**32:
        raise KernelError(f"a thread order is a whole number from 0 on, not {order!r}.")
    token = _order.set(int(order))
    try:
        yield
    finally:
        _order.reset(token)


class HostModule:
    """What `cupy.RawModule` is on a GPU, for NumPy arrays on a CPU.

    `code` is the text of a .cu file, `name_expressions` are the instances of its templates
    that are wanted; kernels that are no templates are found by themselves. Of `options`
    the -D, -U and -I are used, the others are for CUDA's compilers. In a process that was
    started under a sanitizer (`sanitizer_command`) the kernels are compiled with it.

    The result is kept by its hash under ~/.cache/tinygrad_helix, for all processes.

    Errors: KernelError if g++ or CUDA's headers are missing, or the text does not compile.
    """

    def __init__(
        self,
        code: str,
        options: Sequence[str] = (),
        name_expressions: Sequence[str] = (),
    ) -> None:
        source = Source(code, "kernel.cu")
        plain = [n for n, d in source.declarations.items() if not d.template]
        names = dict.fromkeys([*map(canonical, name_expressions), *plain])
        text = _translated(code) + "".join(
            f"HOST_EXPORT({i}, {name})\n" for i, name in enumerate(names)
        )
        self._library = ctypes.CDLL(str(_build(text, options)))
        self._lock = threading.Lock()  # the fibers of a module are global to it
        self._functions = {
            name: HostFunction(self, name, i) for i, name in enumerate(names)
        }

    def get_function(self, name: str) -> "HostFunction":
        """The kernel `name` (of a template the name expression, as it was given)."""
        function = self._functions.get(canonical(name))
        if function is None:
            raise KernelError(
                f"the module has no kernel {name!r}, only "
                f"{', '.join(self._functions) or 'none'}. List instances of templates in "
                "name_expressions."
            )
        return function


class HostFunction:
    """A kernel on the CPU: `function(grid, block, args, shared_mem=0)`.

    `signature` are its parameters as g++ sees them: "const float32*", "int64". Arguments
    are NumPy arrays, None for a null pointer, and NumPy scalars of exactly these types.
    """

    def __init__(self, module: HostModule, name: str, index: int) -> None:
        library = module._library
        describe = getattr(library, f"host_signature_{index}")
        describe.restype = ctypes.c_char_p
        self.signature = tuple(describe().decode().split(";")[:-1])
        self._launch = getattr(library, f"host_launch_{index}")
        self._launch.restype = ctypes.c_char_p
        self._module = module
        self._name = name
        self.max_dynamic_shared_size_bytes = 48 << 10

    def __call__(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[Any],
        *,
        shared_mem: int = 0,
    ) -> None:
        most = min(self.max_dynamic_shared_size_bytes, _SHARED)
        if shared_mem > most:
            raise KernelError(
                f"{self._name}: {shared_mem} bytes of dynamic shared memory, and it may "
                f"use {most}. More than 48 KB need max_dynamic_shared_size_bytes to be "
                "set; 227 KB is the end."
            )
        if len(args) != len(self.signature):
            raise KernelError(
                f"{self._name}: got {len(args)} arguments, the kernel has "
                f"{len(self.signature)} parameters: {', '.join(self.signature)}."
            )
        values = [
            self._argument(i, wanted, value)
            for i, (wanted, value) in enumerate(zip(self.signature, args, strict=True))
        ]
        pointers = (ctypes.c_void_p * len(values))(*[ctypes.addressof(v) for v in values])
        sizes = [
            (ctypes.c_uint * 3)(*(int(n) for n in (*d, 1, 1)[:3])) for d in (grid, block)
        ]
        with self._module._lock:
            error = self._launch(
                *sizes,
                ctypes.c_size_t(shared_mem),
                ctypes.c_uint(_order.get()),
                pointers,
            )
        if error:
            raise KernelError(f"{self._name}: {error.decode()}.")

    def _argument(self, i: int, wanted: str, value: Any) -> Any:
        if wanted.endswith("*"):
            if value is None:
                return ctypes.c_void_p(0)
            if isinstance(value, np.ndarray):
                kind = wanted.removeprefix("const ").removesuffix("*")
                name = kind.partition("x")[0]
                if value.dtype.name != name and kind != "?":
                    raise self._error(i, wanted, f"an array of {value.dtype.name}")
                if not value.flags.c_contiguous:
                    raise self._error(i, wanted, f"an array with strides {value.strides}")
                return ctypes.c_void_p(value.ctypes.data)
        elif isinstance(value, np.generic) and value.dtype.name == wanted:
            return (ctypes.c_char * value.nbytes).from_buffer_copy(value.tobytes())
        raise self._error(i, wanted, f"{value!r} ({type(value).__name__})")

    def _error(self, i: int, wanted: str, got: str) -> KernelError:
        return KernelError(f"{self._name}: argument {i} is {got}, the kernel has {wanted}.")


def _translated(code: str) -> str:
    """The text for g++: the shim before it, and dynamic shared memory from the shim."""
    code = re.sub(
        r"\bextern\s+__shared__\s+(?:__align__\s*\(\s*\d+\s*\)\s*)?([\w:<>\s]+?)\s*\b(\w+)\s*"
        r"\[\s*\]\s*;",
        r"\1* \2 = reinterpret_cast<\1*>(::host::dynamic_shared);",
        code,
    )
    return f'#include "cuda_on_cpu.h"\n#line 1 "kernel.cu"\n{code}\n#line 1 "exports"\n'


@functools.cache
def _compiler_version(path: str) -> str:
    command = [path, "-dumpfullversion", "-dumpmachine"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _pattern(version: str) -> tuple[str, ...]:
    """The option by which a variable that was never set is absurd, and not a lucky 0."""
    found = re.match(r"\d+", version)
    new = found is not None and int(found[0]) >= 12
    return ("-ftrivial-auto-var-init=pattern",) if new else ()


@functools.cache
def _cache() -> Path:
    """The folder of what was built; where none can be kept, one for this process."""
    try:
        folder = Path.home() / ".cache" / "tinygrad_helix" / "host"
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except (OSError, RuntimeError):
        return Path(tempfile.mkdtemp(prefix="tinygrad_helix-"))


def _build(text: str, options: Sequence[str]) -> Path:
    path = compiler()
    flags = [
        "-std=c++17",
        "-O1",
        "-g",
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
        "-fno-gnu-unique",  # else two modules would share a template's __shared__ arrays
        "-fno-strict-aliasing",  # CUDA code reads float4 through float*, and CUDA lets it
        "-ffp-contract=off",
        "-w",
        f"-isystem{_HERE}",
        *(f"-isystem{folder}" for folder in headers()),
        *(o for o in options if o.startswith(("-D", "-U", "-I"))),
    ]
    if sanitize := active_sanitizer():
        flags += [f"-fsanitize={sanitize}", "-fno-omit-frame-pointer"]
    else:
        flags += _pattern(_compiler_version(path))
    shim = "".join(p.read_text(encoding="utf-8") for p in sorted(_HERE.glob("*.h")))
    parts = [text, shim, *flags, _compiler_version(path), platform.machine()]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    library = _cache() / f"{key}.so"
    if library.exists():
        return library
    # Another process may build the same: each writes a file of its own, the last one stays.
    handle, partial = tempfile.mkstemp(suffix=".so", dir=_cache())
    os.close(handle)
    try:
        result = subprocess.run(
            [path, *flags, "-x", "c++", "-o", partial, "-"],
            input=text,
            text=True,
            capture_output=True,
            check=False,
        )
        if result.returncode:
            raise KernelError(
                f"g++ does not compile the kernel:\n{shortened(result.stderr)}"
            )
        os.replace(partial, library)
    finally:
        Path(partial).unlink(missing_ok=True)
    return library
