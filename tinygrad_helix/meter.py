"""Meters: the bytes that a device's allocator has handed out since tracing began.

NumPy reports to `tracemalloc`; another device brings a meter of its own with the same
five methods. The one in use is a context variable: NumPy's unless `tracing()` of another
is entered.
"""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

__all__ = ["Meter", "current_meter", "numpy_meter"]


class Meter:
    """NumPy's arrays, by tracemalloc."""

    empty_bytes = 1  # what an empty array takes: NumPy allocates one byte

    def is_tracing(self) -> bool:
        """Whether allocations are being counted."""
        return tracemalloc.is_tracing()

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Count allocations inside the block (or go on, if that is on already)."""
        already = self.is_tracing()
        if not already:
            self._start()
        token = _meter.set(self)
        try:
            yield
        finally:
            _meter.reset(token)
            if not already:
                self._stop()

    def _start(self) -> None:
        tracemalloc.start(1)

    def _stop(self) -> None:
        tracemalloc.stop()

    def live_and_peak(self) -> tuple[int, int]:
        """Bytes alive, and the most since tracing or `reset_peak` (here: all of Python)."""
        return tracemalloc.get_traced_memory()

    def reset_peak(self) -> None:
        """Let the peak begin anew at what is alive."""
        tracemalloc.reset_peak()

    def array_bytes(self) -> int:
        """The bytes in arrays that were allocated since tracing began and are alive."""
        domain = tracemalloc.DomainFilter(inclusive=True, domain=np.lib.tracemalloc_domain)
        snapshot = tracemalloc.take_snapshot().filter_traces([domain])
        return sum(trace.size for trace in snapshot.traces)

    def forget(self) -> None:
        """Count from here on only what is allocated from here on."""
        tracemalloc.clear_traces()


numpy_meter = Meter()
_meter: ContextVar[Meter] = ContextVar("meter", default=numpy_meter)
current_meter = _meter.get
