"""What CuPy's pool hands out, byte by byte, by a MemoryHook.

CuPy tells a hook of every array: the bytes that were asked for and those that the pool
gave (rounded up to 512). A hook belongs to a thread, and sees a free only if it is active
when the array dies.
"""

from typing import Any

from ..meter import Meter

__all__ = ["DeviceMeter"]


class DeviceMeter(Meter):
    """Arrays of a CuPy-like module; `live_and_peak` and `array_bytes` in requested bytes.

    `pool_bytes` is the same as `array_bytes` in what the pool gave. Python's own memory
    is not in these numbers, so they are exact.
    """

    empty_bytes = 0

    def __init__(self, xp: Any) -> None:
        meter = self

        class Hook(xp.cuda.MemoryHook):
            name = "tinygrad_helix"

            def malloc_postprocess(self, **facts: Any) -> None:
                if facts["mem_ptr"]:
                    meter._grew(facts["mem_ptr"], facts["size"], facts["mem_size"])

            def free_postprocess(self, **facts: Any) -> None:
                meter._shrank(facts["mem_ptr"])

        self._hook: Any = Hook()
        self._tracing = False
        self._held: dict[int, tuple[int, int]] = {}  # pointer -> requested, given
        self._live = self._peak = 0

    def _grew(self, pointer: int, requested: int, given: int) -> None:
        self._held[pointer] = requested, given
        self._live += requested
        self._peak = max(self._peak, self._live)

    def _shrank(self, pointer: int) -> None:
        self._live -= self._held.pop(pointer, (0, 0))[0]  # or: older than the tracing

    def is_tracing(self) -> bool:
        return self._tracing

    def _start(self) -> None:
        self.forget()
        self._hook.__enter__()
        self._tracing = True

    def _stop(self) -> None:
        self._tracing = False
        self._hook.__exit__(None, None, None)

    def live_and_peak(self) -> tuple[int, int]:
        return self._live, self._peak

    def reset_peak(self) -> None:
        self._peak = self._live

    def array_bytes(self) -> int:
        return self._live

    def pool_bytes(self) -> int:
        """The bytes that the pool gave for what `array_bytes` counts."""
        return sum(given for _, given in self._held.values())

    def forget(self) -> None:
        self._held.clear()
        self._live = self._peak = 0
