"""Where the compilers and CUDA's headers are on this machine, with no GPU.

CUDA's headers and its runtime compiler NVRTC come from pip, from conda or from a CUDA
toolkit; NVIDIA's cuda-pathfinder knows all the places. The extra test-cuda brings
pathfinder, NVRTC and the headers.
"""

import functools
import shutil
import sys
from pathlib import Path
from typing import Any

from ..errors import KernelError

__all__ = [
    "INSTALL",
    "INSTALL_GPU",
    "compiler",
    "headers",
    "missing",
    "nvrtc_library",
    "shortened",
]

INSTALL = 'pip install "tinygrad_helix[test-cuda]"'
# What CuPy needs beside it on a GPU, for all that this package does; 0.7 GB.
INSTALL_GPU = (
    'pip install "cuda-toolkit[cublas,cudart,nvrtc]==12.*" (driver for CUDA 12; 13.* for '
    "CUDA 13)"
)

# A header of each part that is needed, and pathfinder's name of the part that brings it.
_PARTS = {
    "cuda_bf16.h": "cudart",
    "crt/host_config.h": "nvcc",
    "nv/target": "cccl",
}


def _pathfinder() -> Any:
    try:
        from cuda import pathfinder
    except ImportError:
        return None
    return pathfinder


@functools.cache
def headers() -> tuple[str, ...]:
    """The folders of CUDA's headers, for a compiler's -I.

    Errors: KernelError that says which header is missing and what to install.
    """
    pathfinder = _pathfinder()
    folders: list[str] = []
    for header, part in _PARTS.items():
        if any((Path(folder) / header).is_file() for folder in folders):
            continue
        folder = pathfinder and pathfinder.find_nvidia_header_directory(part)
        if not folder or not (Path(folder) / header).is_file():
            why = f"{header} is not found" if pathfinder else "cuda-pathfinder is missing"
            raise KernelError(f"CUDA's headers are needed, and {why}. {INSTALL} (Linux)")
        folders.append(folder)
    return tuple(folders)


@functools.cache
def nvrtc_library() -> str:
    """The path of libnvrtc. Errors: KernelError that says what to install."""
    pathfinder = _pathfinder()
    why = "cuda-pathfinder is missing"
    if pathfinder:
        try:
            return str(pathfinder.load_nvidia_dynamic_lib("nvrtc").abs_path)
        except RuntimeError as error:
            why = str(error).splitlines()[0]
    raise KernelError(
        f"compiling kernels needs CUDA's runtime compiler NVRTC, and {why}. "
        f"{INSTALL} (Linux)"
    )


def compiler() -> str:
    """The path of g++. Errors: KernelError where there is none, or not on Linux."""
    if sys.platform != "linux":
        raise KernelError(
            "running kernels on the CPU is for Linux (CUDA's headers and the fibers that "
            f"stand for CUDA's threads), this is {sys.platform}. On Windows use WSL."
        )
    found = shutil.which("g++")
    if found is None:
        raise KernelError(
            "running kernels on the CPU needs the compiler g++ (11 or newer). Install it: "
            "apt install g++, or dnf install gcc-c++."
        )
    return found


def missing(*parts: Any) -> str | None:
    """Why one of `parts` (compiler, headers, nvrtc_library) is not to be had, or None."""
    for part in parts:
        try:
            part()
        except KernelError as error:
            return str(error)
    return None


def shortened(log: str) -> str:
    """The beginning of a compiler's log, where the first errors stand."""
    return log if len(log) <= 4000 else log[:4000] + "\n…"
