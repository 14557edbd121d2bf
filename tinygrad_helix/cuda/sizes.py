"""What the launches share: the size of a block, how time is cut, the dtypes."""

import contextlib
import importlib
from typing import Any

__all__ = ["BLOCK", "ceil_div", "chunks", "dtypes"]

BLOCK = 128  # threads: BLOCK of scan.cu and of helix.cuh

# Where channels are few, time is cut so that there are about this many (chunk, channel)
# pairs, a thread each: 8 steps of two float32 arrays are 64 bytes of each on their way from
# memory, 8 MB. A chunk has at least 64 steps, or the carries between chunks would be most
# of the work; a T of less than two is not cut.
_PAIRS = 131_072
SHORTEST = 64


def ceil_div(n: int, by: int) -> int:
    """n / by, rounded up."""
    return -(-n // by)


def chunks(channels: int, T: int, enough: int) -> tuple[int, int]:
    """(chunks, steps of each but the last) for a scan of so many channels.

    From `enough` channels on a thread for each has the memory busy, and T is one chunk.
    """
    if channels >= enough or T < 2 * SHORTEST:
        return 1, T
    steps = ceil_div(T, ceil_div(_PAIRS, channels))
    length = max(SHORTEST, ceil_div(steps, 8) * 8)
    return ceil_div(T, length), length


def dtypes() -> list[Any]:
    """Those that the kernels take; bfloat16 is ml_dtypes', where that is installed.

    Tensors are not bfloat16 yet: those kernels run where they are called with arrays.
    """
    found: list[Any] = ["float32", "float64", "float16"]
    with contextlib.suppress(ImportError):
        found.append(importlib.import_module("ml_dtypes").bfloat16)
    return found
