"""Running kernels under the sanitizers of g++, in a Python of their own.

A sanitizer has to be in a process from its start. A script (or a whole test suite) is run
under one by a command in front of it, and every `HostModule` in it is compiled for that:

    subprocess.run([*sanitizer_command("thread"), sys.executable, "script.py"])

- "address,undefined" finds reads and writes outside of arrays (NumPy's too), misaligned
  and undefined arithmetic, and ends the process at the first.
- "thread" finds races: two threads of a block that touch the same place, one of them
  writing, with no barrier between. It reports each and ends the process with status 66.
"""

import ctypes
import functools
import platform
import subprocess

from ...errors import KernelError
from ..toolkit import compiler

__all__ = ["SANITIZERS", "active_sanitizer", "sanitizer_command"]

SANITIZERS = ("address,undefined", "thread")

_LIBRARIES = {"address,undefined": ("libasan.so", "libubsan.so"), "thread": ("libtsan.so",)}
_OPTIONS = {
    # Python and NumPy keep memory to the end: what is called a leak is theirs.
    "address,undefined": (
        "ASAN_OPTIONS=detect_leaks=0",
        "UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1",
    ),
    "thread": ("TSAN_OPTIONS=report_signal_unsafe=0",),
}


@functools.cache
def sanitizer_command(kind: str) -> tuple[str, ...]:
    """What to put before a command, to run it with the sanitizer `kind` loaded.

    Errors: KernelError for an unknown kind, or if g++ has no such sanitizer.
    """
    if kind not in SANITIZERS:
        raise KernelError(f"there is no sanitizer {kind!r}. Use one of {SANITIZERS}.")
    preload = []
    for name in _LIBRARIES[kind]:
        command = [compiler(), f"-print-file-name={name}"]
        found = subprocess.run(command, capture_output=True, text=True, check=True)
        path = found.stdout.strip()
        if path == name:  # what g++ answers for a file that it does not have
            raise KernelError(
                f"g++ has no {name}. Install its sanitizers: apt install g++ brings them, "
                "dnf install libasan libubsan libtsan."
            )
        preload.append(path)
    # Without random addresses: the shadow memory of a sanitizer wants its own fixed places.
    fixed = ("setarch", platform.machine(), "--addr-no-randomize")
    return (*fixed, "env", *_OPTIONS[kind], f"LD_PRELOAD={':'.join(preload)}")


def active_sanitizer() -> str | None:
    """The sanitizer that this process was started with."""
    process = ctypes.CDLL(None)
    for kind, symbol in zip(SANITIZERS, ("__asan_init", "__tsan_init"), strict=True):
        if hasattr(process, symbol):
            return kind
    return None
