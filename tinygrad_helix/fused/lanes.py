"""Several tiles in work at once: a Python thread for each, and one BLAS thread in each.

Products are as fast that way as with all of BLAS's threads in one, and the elementwise
work between them, which NumPy does on one core, is on all cores too. And no number of
threads changes a result: the work is cut by its shape alone, what must happen in the order
of the tiles (a scan that hands on its state, a sum) waits for its turn, and BLAS, which
cuts a product by the number of its threads and rounds the edges of the cuts differently
(OpenBLAS 0.3.31 on its Haswell kernels, for nearly every shape), always has one.

There are as many threads as BLAS is set to, by the user or by the machine. The setting,
which the process has one of, is 1 while a call is under way and then as before; so what
other threads compute or set meanwhile is under one thread, or undone.
"""

import contextvars
import os
import threading
from collections.abc import Callable, Iterator, Sequence
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
    """A context in which BLAS has one thread; after the last such, the user's setting.

    No thread enters it twice at once, so what a thread that enters has left behind was cut
    off by an interrupt, and is put right then.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside: set[int] = set()  # threads
        self._before: list[int] | None = None

    def __enter__(self) -> None:
        with self._lock:
            now = [get() for get, _ in _libraries()]
            self._inside.discard(threading.get_ident())
            if not self._inside:
                # What is still 1 after a call that was cut off was not the user's doing.
                was = now if self._before is None else self._before
                pairs = zip(now, was, strict=True)
                self._before = [old if new == 1 else new for new, old in pairs]
            for (_, set_to), threads in zip(_libraries(), now, strict=True):
                if threads != 1:
                    set_to(1)
            self._inside.add(threading.get_ident())

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside.discard(threading.get_ident())
            if not self._inside:
                self._restore()

    def _restore(self) -> None:
        if self._before is not None:
            for (_, set_to), before in zip(_libraries(), self._before, strict=True):
                if before != 1:
                    set_to(before)
            self._before = None

    def threads(self) -> int:
        with self._lock:
            if self._inside and self._before is not None:
                return max(self._before, default=1)
            return max((get() for get, _ in _libraries()), default=1)

    def after_fork(self) -> None:
        """A child process has none of its parent's other threads, and is in no call."""
        self._lock = threading.Lock()
        self._inside.clear()
        self._restore()


_one_blas_thread = _OneBlasThread()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_one_blas_thread.after_fork)


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


def run(
    lanes: Sequence[Lane], turns: Turns, count: int, work: Callable[[Lane, int], None]
) -> None:
    """work(lane, index) for each index below `count`, begun in this order, as many at a
    time as there are lanes. Returns when all are done, or have stopped for an error."""
    indices = iter(range(count))  # its next() is atomic
    failures: list[BaseException] = []

    def through(lane: Lane) -> None:
        try:
            for index in indices:
                work(lane, index)
        except _Stopped:
            pass
        except BaseException as error:
            failures.append(error)
            turns.stop()

    with _one_blas_thread:
        helpers: list[threading.Thread] = []
        try:
            for lane in lanes[1:]:
                # np.errstate and the like are the caller's in each thread.
                target = contextvars.copy_context().run
                helper = threading.Thread(target=target, args=(through, lane), daemon=True)
                try:
                    helper.start()
                except RuntimeError:  # none can be had, as when Python is about to end
                    break
                helpers.append(helper)
            through(lanes[0])
        except BaseException:  # an interrupt outside of `through`
            turns.stop()
            raise
        finally:
            for helper in helpers:
                helper.join()
    if failures:
        raise failures[0]
