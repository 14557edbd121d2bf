"""The stand-in for libcublas, built by g++: the same symbols, on host memory."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("stub_blas.cpp")


@cache
def _build() -> str:
    compiler = shutil.which("g++")
    if compiler is None:
        raise FileNotFoundError("the stand-in for cuBLAS is built by g++, which is missing")
    key = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    path = Path(tempfile.gettempdir()) / f"libstub_blas_{key}.so"
    if not path.exists():
        part = path.with_suffix(f".{os.getpid()}")  # another process may build it too
        flags = ["-std=c++17", "-O2", "-shared", "-fPIC", "-Wall"]
        subprocess.run([compiler, *flags, "-o", part, SOURCE], check=True)
        part.replace(path)
    return str(path)


def built() -> str:
    """The stub's path; the test is skipped where it cannot be built."""
    try:
        return _build()
    except FileNotFoundError as error:
        pytest.skip(str(error))


def journal() -> str:
    """The calls since the last look, a letter each: `stub_blas.cpp` says which."""
    stub = ctypes.CDLL(built())
    stub.stub_journal.restype = ctypes.c_char_p
    return stub.stub_journal().decode()


def fail_next(status: int) -> None:
    """Let the next product end with this status."""
    ctypes.c_int.in_dll(ctypes.CDLL(built()), "stub_next_status").value = status
