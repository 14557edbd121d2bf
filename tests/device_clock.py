"""Times of calls on a device: microseconds of one, by events around graph replays.

Several calls are captured in a graph, which takes turns between sets of inputs, so that no
launch waits for Python and nothing is found in a cache that a step would not find there.
Outputs are filled with NaN before the timing and have to be finite after it. Where calls
cannot be captured they are timed in a row, and `how` says "calls" and why.
"""

import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

CALLS = 10  # in a graph
REPEATS = 5
AT_MOST = 0.15  # seconds of one repeat


class Timing(NamedTuple):
    us: float  # of one call: the median of the repeats
    how: str
    outputs: list[Any]  # of a call on the first set of inputs


Call = Callable[[], Sequence[Any]]  # its result: the arrays that it wrote


def _median(once: Callable[[int], float]) -> float:
    """`once(n)` takes n rounds and gives the seconds of one."""
    n = max(1, min(20, int(AT_MOST / max(once(1), 1e-7))))
    return statistics.median(once(n) for _ in range(REPEATS))


def poison(x: Any) -> None:
    """Fill with NaN; bfloat16 by its bits, so that this needs none of CuPy's support."""
    if x.dtype.name == "bfloat16":
        x.view("uint16").fill(0x7FC0)
    else:
        x.fill(np.nan)


def wide(x: Any) -> Any:
    """At least in float32."""
    if x.dtype.name == "bfloat16":
        return (x.view("uint16").astype("uint32") << 16).view("float32")
    return x


class HostClock:
    """For the doubles: nothing that it says means anything."""

    def time(self, *calls: Call) -> Timing:
        outputs = calls[0]()
        start = time.perf_counter()
        for call in calls:
            call()
        us = (time.perf_counter() - start) * 1e6 / len(calls)
        return Timing(us, "doubles", list(outputs))


class CupyClock:
    """For calls that launch on CuPy's current stream."""

    def __init__(self, cupy: Any) -> None:
        self.cupy = cupy

    def time(self, *calls: Call) -> Timing:
        cupy = self.cupy
        cupy.cuda.Device().synchronize()  # the inputs are there
        pool = cupy.cuda.MemoryPool()
        stream = cupy.cuda.Stream(non_blocking=True)
        with cupy.cuda.using_allocator(pool.malloc), stream:
            for call in (*calls, *calls):
                call()
            stream.synchronize()
            try:
                graph, kept = self._captured(stream, calls)
            except Exception as error:
                stream.synchronize()
                return self._in_a_row(stream, calls, f"calls, {type(error).__name__}")
            poisoned = [x for outputs in kept for x in outputs if x.dtype.kind not in "biu"]
            for x in poisoned:
                poison(x)
            us = self._timed(stream, lambda: graph.launch(stream)) / CALLS
            stream.synchronize()
            if not all(bool(cupy.isfinite(wide(x)).all()) for x in poisoned[-4:]):
                raise AssertionError("after the timing there are NaNs in an output")
            return Timing(us, "graph", list(kept[0]))

    def _captured(self, stream: Any, calls: Sequence[Call]) -> tuple[Any, list[Any]]:
        gc.collect()
        gc.disable()
        stream.begin_capture()
        try:
            kept = [calls[i % len(calls)]() for i in range(CALLS)]
        except BaseException:
            with contextlib.suppress(Exception):
                stream.end_capture()
            raise
        finally:
            gc.enable()
        return stream.end_capture(), kept

    def _in_a_row(self, stream: Any, calls: Sequence[Call], how: str) -> Timing:
        outputs = list(calls[0]())

        def run() -> None:
            for call in calls:
                call()

        return Timing(self._timed(stream, run) / len(calls), how, outputs)

    def _timed(self, stream: Any, run: Callable[[], Any]) -> float:
        start, end = self.cupy.cuda.Event(), self.cupy.cuda.Event()

        def once(n: int) -> float:
            start.record(stream)
            for _ in range(n):
                run()
            end.record(stream)
            end.synchronize()
            return self.cupy.cuda.get_elapsed_time(start, end) * 1e-3 / n

        return _median(once) * 1e6


class TorchClock:
    """For calls of PyTorch. `graph` False: in a row, with the cost of launching."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch

    def time(self, *calls: Call, graph: bool = True) -> Timing:
        torch = self.torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for call in (*calls, *calls):
                call()
        torch.cuda.synchronize()
        how = "calls"
        if graph:
            try:
                captured = torch.cuda.CUDAGraph()
                with torch.cuda.graph(captured):
                    kept = [calls[i % len(calls)]() for i in range(CALLS)]
            except Exception as error:
                torch.cuda.synchronize()
                how = f"calls, {type(error).__name__}"
            else:
                for outputs in kept:
                    for x in outputs:
                        x.detach().fill_(float("nan"))
                us = self._timed(captured.replay) / CALLS
                if not all(bool(torch.isfinite(x).all()) for x in kept[0]):
                    raise AssertionError("after the timing there are NaNs in an output")
                return Timing(us, "graph", [x.detach() for x in kept[0]])
        outputs = [x.detach() for x in calls[0]()]

        def run() -> None:
            for call in calls:
                call()

        return Timing(self._timed(run) / len(calls), how, outputs)

    def _timed(self, run: Callable[[], Any]) -> float:
        torch = self.torch
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

        def once(n: int) -> float:
            start.record()
            for _ in range(n):
                run()
            end.record()
            end.synchronize()
            return start.elapsed_time(end) * 1e-3 / n

        return _median(once) * 1e6


@contextlib.contextmanager
def cuda_torch() -> Iterator[Any]:
    """PyTorch, if it is there and sees the GPU; ImportError if not."""
    import torch

    if not torch.cuda.is_available():
        raise ImportError("PyTorch is installed without CUDA, or sees no GPU")
    torch.backends.cuda.matmul.allow_tf32 = False
    yield torch
