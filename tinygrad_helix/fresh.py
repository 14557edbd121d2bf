"""Whether a leaf may keep an array that a vjp returned, or has to copy it.

It may if nobody else holds the buffer, which CPython's reference counts tell. Which count
that is depends on how many references the sweep itself holds, and so on the interpreter:
it is found out once, by sweeps over arrays that are known to be held, or not.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from . import memory, tape
from .backend import is_array, is_writeable

__all__ = ["calibrate", "is_fresh", "limits", "owners"]

# The most references that there are to an array which only the sweep knows, and to the
# owner of a view which only the sweep knows. With 0 every array is copied.
limits = [0, 0]
# As counted by CPython 3.11 to 3.13. An interpreter may need fewer (where it borrows a
# reference); one that seems to need more is being watched, by a debugger say.
_MOST = (5, 3)


def owners(arrays: Iterable[Any]) -> Counter[int]:
    """How many of `arrays` look into each storage, by its id."""
    return Counter([id(memory.storage(a)) for a in arrays if is_array(a)])


def is_fresh(value: Any, known: Counter[int]) -> bool:
    """Whether nobody else holds the buffer of `value`, so that a leaf may keep it.

    `known` counts the storages of all cotangents, saved tensors and results of the node.
    """
    if not is_array(value):
        return False
    owner = memory.storage(value)
    if owner.nbytes != value.nbytes or not is_writeable(value):
        return False  # a part of something larger, or repeated
    most = limits[0] if owner is value else limits[1]
    return known[id(owner)] <= 1 and sys.getrefcount(owner) <= most


def calibrate(kept: Callable[[Callable[[], Any]], bool]) -> None:
    """Set the limits: the least with which arrays that nobody else holds are kept.

    `kept(make)` says whether a leaf keeps what a vjp makes by `make()`, in a sweep like
    any other. With the limits so found, it must not keep what somebody else holds too.
    """
    held: list[Any] = []

    def array() -> Any:
        return np.zeros(2)

    def view() -> Any:
        return np.zeros((2, 1)).reshape(2)

    def noted(make: Callable[[], Any]) -> Callable[[], Any]:
        def make_and_hold() -> Any:
            value = make()
            held.append(value if value.base is None else value.base)
            return value

        return make_and_hold

    for i, make in enumerate((array, view)):
        for most in range(1, _MOST[i] + 1):
            limits[i] = most
            if kept(make):
                break
        if not kept(make) or kept(noted(make)):
            limits[i] = 0
    tape.restart()
