"""Compiling kernels for GPUs that are not there, by NVRTC, and what they will use of one.

NVRTC is the compiler that CuPy calls on a GPU; it is called here through its C interface
with the options that CuPy gives it, so that registers, spills and shared memory are those
of a run.

    for row in resources(read_source("scan.cu"), "sm_90"):
        print(row.kernel, row.registers, row.spill_bytes)
"""

import ctypes
import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import KernelError
from .source import Source
from .text import canonical
from .toolkit import headers, nvrtc_library

__all__ = [
    "ARCHITECTURES",
    "Resources",
    "architectures",
    "nvrtc_version",
    "resources",
]

# Turing, Ampere, Hopper, Blackwell: an architecture each that CuPy 14 runs on.
ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100")

# What CuPy adds to every compilation (denormals of float32 are flushed to zero), and the
# report. NVRTC's own default is C++17.
_OPTIONS = ("-ftz=true", "--device-as-default-execution-space", "--ptxas-options=-v")


@dataclass(frozen=True)
class Resources:
    """What one kernel takes of a multiprocessor on one architecture."""

    file: str
    kernel: str
    arch: str
    registers: int  # of each thread
    budget: int | None  # the registers that the file allows it
    spill_bytes: int  # of each thread, stored and loaded, because registers ran out
    stack_bytes: int  # of each thread, in local memory
    shared_bytes: int  # of a block, static

    @property
    def ok(self) -> bool:
        """No spills, and within the budget, if the file states one."""
        return not self.spill_bytes and (
            self.budget is None or self.registers <= self.budget
        )


@dataclass(frozen=True)
class Program:
    """A compiled file: machine code, the compiler's report, mangled names of kernels."""

    cubin: bytes
    log: str
    names: dict[str, str]


@functools.cache
def _nvrtc() -> ctypes.CDLL:
    library = ctypes.CDLL(nvrtc_library())
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


def _call(name: str, *arguments: Any) -> None:
    status = getattr(_nvrtc(), name)(*arguments)
    if status:
        why = _nvrtc().nvrtcGetErrorString(status).decode()
        raise KernelError(f"NVRTC {nvrtc_version()}: {name} failed: {why}.")


def nvrtc_version() -> str:
    """The version of NVRTC, as in "13.0"."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


@functools.cache
def architectures() -> tuple[str, ...]:
    """What this NVRTC can compile for, as in ("sm_75", "sm_80", …)."""
    count = ctypes.c_int()
    _call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
    found = (ctypes.c_int * count.value)()
    _call("nvrtcGetSupportedArchs", found)
    return tuple(f"sm_{n}" for n in found)


def compile_source(
    source: Source, names: Iterable[str], arch: str, options: Sequence[str] = ()
) -> Program:
    """The kernels `names` of `source` as machine code for `arch` ("sm_90").

    Errors: KernelError with the compiler's own words if it does not compile, or if NVRTC,
    CUDA's headers or the architecture are not to be had.
    """
    if arch not in architectures():
        raise KernelError(
            f"NVRTC {nvrtc_version()} does not compile for {arch!r}. It knows: "
            f"{', '.join(architectures())}."
        )
    names = [*names]
    program = ctypes.c_void_p()
    text, title = source.text.encode(), source.name.encode()
    _call("nvrtcCreateProgram", ctypes.byref(program), text, title, 0, None, None)
    try:
        for name in names:
            _call("nvrtcAddNameExpression", program, name.encode())
        flags = [*_OPTIONS, f"-arch={arch}", *(f"-I{f}" for f in headers()), *options]
        encoded = [f.encode() for f in flags]
        array = (ctypes.c_char_p * len(encoded))(*encoded)
        status = _nvrtc().nvrtcCompileProgram(program, len(encoded), array)
        log = _bytes(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        if status:
            raise KernelError(f"{source.name} does not compile for {arch}:\n{log.strip()}")
        lowered = {}
        for name in names:
            mangled = ctypes.c_char_p()
            _call("nvrtcGetLoweredName", program, name.encode(), ctypes.byref(mangled))
            lowered[name] = (mangled.value or b"").decode()
        return Program(_bytes(program, "CUBIN"), log, lowered)
    finally:
        _call("nvrtcDestroyProgram", ctypes.byref(program))


def _bytes(program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    _call(f"nvrtcGet{what}", program, buffer)
    return buffer.raw


def resources(
    source: Source,
    arch: str,
    name_expressions: Iterable[str] | None = None,
    options: Sequence[str] = (),
) -> list[Resources]:
    """What NVRTC reports of the kernels of `source`, all that it states, on `arch`.

    Errors: KernelError if there are none or they do not compile.
    """
    names = source.expressions if name_expressions is None else name_expressions
    names = [canonical(name) for name in names]
    if not names:
        raise KernelError(
            f"{source.name} has no kernel that could be compiled: it has no __global__ "
            "function, or only templates of which no instance is stated. State them: "
            "// name<float, 4>: 32 registers"
        )
    program = compile_source(source, names, arch, options)
    report = _report(program.log)
    rows = []
    for name in names:
        if (found := report.get(program.names[name])) is None:
            raise KernelError(
                f"the report of NVRTC {nvrtc_version()} on {source.name} says nothing of "
                f"{name}:\n{program.log}"
            )
        budget = source.budgets.get(name)
        rows.append(Resources(source.name, name, arch, budget=budget, **found))
    return rows


def _report(log: str) -> dict[str, dict[str, int]]:
    """The numbers of `ptxas -v`, by mangled name."""

    def number(pattern: str, text: str) -> int:
        match = re.search(pattern, text)
        return int(match[1]) if match else 0

    sections = re.split(r"Compiling entry function '([^']+)'", log)[1:]
    return {
        name: {
            "registers": number(r"Used (\d+) registers", text),
            "spill_bytes": number(r"(\d+) bytes spill stores", text)
            + number(r"(\d+) bytes spill loads", text),
            "stack_bytes": number(r"(\d+) bytes stack frame", text),
            "shared_bytes": number(r"(\d+) bytes smem", text),
        }
        for name, text in zip(sections[::2], sections[1::2], strict=True)
    }
