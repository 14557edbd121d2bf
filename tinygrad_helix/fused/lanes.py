"""Several tiles in work at once: a Python thread for each, and one BLAS thread in each.

Products are as fast that way as with all of BLAS's threads in one, and the elementwise
work between them, which NumPy does on one core, is on all cores too. And no number of
threads changes a result: the work is cut by its shape alone, what must happen in the order
of the tiles (a scan that hands on its state, a sum) waits for its turn, and BLAS, which
cuts a product by the number of its threads and rounds the edges of the cuts differently
(OpenBLAS 0.3.31 on its Haswell kernels, for nearly every shape), always has one.

There are as many threads as BLAS is set to, by the user or by the machine. The setting,
which the process has one of, is 1 while a call is under way and then as before.
"""

import contextvars
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

__all__ = ["Turns", "run", "threads"]

Lane = TypeVar("Lane")


# --- the setting of BLAS


@cache
def _libraries() -> tuple[tuple[Callable[[], int], Callable[[int], None]], ...]:
    """How to read and how to set the number of threads of each BLAS in the process."""
    from threadpoolctl import ThreadpoolController

    found = []
    for library in ThreadpoolController().select(user_api="blas").lib_controllers:
        get, set_to = library.get_num_threads, library.set_num_threads
        # By their names where they are OpenBLAS's: threadpoolctl's own take 3 and 5 us,
        # and do nothing in a thread other than the first that called them.
        for prefix, suffix in (("scipy_", "64_"), ("scipy_", ""), ("", "64_"), ("", "")):
            names = [f"{prefix}openblas_{do}_num_threads{suffix}" for do in ("get", "set")]
            if all(hasattr(library.dynlib, name) for name in names):
                get, set_to = (getattr(library.dynlib, name) for name in names)
                break
        found.append((get, set_to))
    return tuple(found)


class _OneBlasThread:
    """A context in which BLAS has one thread; after the last such, the user's setting."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before: list[int] = []

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._before = [get() for get, _ in _libraries()]
                for (_, set_to), before in zip(_libraries(), self._before, strict=True):
                    if before != 1:
                        set_to(1)

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                for (_, set_to), before in zip(_libraries(), self._before, strict=True):
                    if before != 1:
                        set_to(before)

    def threads(self) -> int:
        with self._lock:
            before = self._before if self._inside else [get() for get, _ in _libraries()]
        return max(before, default=1)


_one_blas_thread = _OneBlasThread()


def threads() -> int:
    """How many threads a call may use: BLAS's number; 1 where it cannot be set."""
    return _one_blas_thread.threads()


# --- order


class _Stopped(Exception):
    """Raised where a thread waits for its turn when another one has failed."""


class Turns:
    """Points that work 0, 1, 2, … pass one after the other, each point for itself."""

    def __init__(self) -> None:
        self._passed: dict[str, int] = {}
        self._changed = threading.Condition()
        self._stopped = False

    @contextmanager
    def turn(self, point: str, index: int) -> Iterator[None]:
        """Wait until work 0 … index - 1 has passed the point, then pass it."""
        with self._changed:
            while self._passed.get(point, 0) < index and not self._stopped:
                self._changed.wait()
            if self._stopped:
                raise _Stopped
        yield
        with self._changed:
            self._passed[point] = index + 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Nobody passes a point any more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


# --- threads


@cache
def _pool(helpers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(helpers, "tinygrad_helix")


def _after_fork() -> None:
    """A child process has none of its parent's threads."""
    _pool.cache_clear()
    _one_blas_thread.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def run(
    lanes: Sequence[Lane], turns: Turns, count: int, work: Callable[[Lane, int], None]
) -> None:
    """work(lane, index) for each index below `count`, begun in this order, as many at a
    time as there are lanes. Returns when all are done, or have stopped for an error."""
    indices = iter(range(count))  # its next() is atomic

    def through(lane: Lane) -> None:
        try:
            for index in indices:
                work(lane, index)
        except _Stopped:
            pass
        except BaseException:
            turns.stop()
            raise

    with _one_blas_thread:
        helpers = [
            # np.errstate and the like are the caller's in each thread.
            _pool(len(lanes) - 1).submit(contextvars.copy_context().run, through, lane)
            for lane in lanes[1:]
        ]
        try:
            through(lanes[0])
        finally:
            begun = [helper for helper in helpers if not helper.cancel()]
            wait(begun)
        for helper in begun:
            helper.result()
