"""Other values in the place of a saved one, by which `audit` sees whether it is read."""

from collections.abc import Iterator
from typing import Any

from .backend import array_module

__all__ = ["halves", "others"]


def halves(value: Any) -> Iterator[list[tuple[str, Any]]]:
    """Both halves along the first and the last axis that have two elements or more."""
    axes = [i for i, n in enumerate(value.shape) if n > 1]
    if not axes:
        yield [("all of it", ...)]
    for axis in dict.fromkeys(axes[:1] + axes[-1:]):
        middle = value.shape[axis] // 2
        lead = (slice(None),) * axis
        yield [
            (f"the first half of axis {axis}", (*lead, slice(None, middle))),
            (f"the second half of axis {axis}", (*lead, slice(middle, None))),
        ]


def others(value: Any, part: Any) -> Iterator[Any]:
    """Copies of `value` that differ in `part`, the likeliest to matter first."""
    xp = array_module(value)
    elsewhere = xp.flip(value)
    if value.dtype.kind == "f":
        candidates = [xp.full_like(value, xp.nan), elsewhere]
    elif value.dtype.kind == "b":
        candidates = [~value]
    else:
        candidates = [elsewhere, -value, value + 1]
    for candidate in candidates:
        other = value.copy()
        other[part] = candidate[part]
        yield other
