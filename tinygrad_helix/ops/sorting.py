"""Sorting, and the largest few: the order is found off the tape, the values gathered."""

from typing import Any

from ..errors import ShapeError
from ..op import apply
from ..tensor import Tensor
from .index import Gather
from .operands import axis_of, operand, plain, whole

__all__ = ["sort", "topk"]


def _order(x: Any, axis: int, descending: bool) -> Any:
    """The places of x in order along an axis, equal values in their old order."""
    array = plain(x)
    if not descending:
        return array.argsort(axis=axis, kind="stable")
    # Sorted backwards and read backwards: equal values keep their order that way too.
    reverse = (slice(None),) * axis + (slice(None, None, -1),)
    return array.shape[axis] - 1 - array[reverse].argsort(axis=axis, kind="stable")[reverse]


def _pick(x: Any, order: Any, axis: int) -> tuple[Any, Any]:
    return apply(Gather, x, order, axis=axis), Tensor(order) if isinstance(
        x, Tensor
    ) else order


def sort(x: Any, axis: int = -1, descending: bool = False) -> tuple[Any, Any]:
    """x sorted along `axis`, and the int64 index of each value in x.

    Equal values keep their order, and each takes its own gradient. NaN counts as the
    largest. Records gather, which keeps the index (8 bytes a value).
    """
    x = operand("sort", x)
    along = axis_of("sort", axis, x.ndim)
    return _pick(x, _order(x, along, descending), along)


def topk(x: Any, k: int, axis: int = -1, largest: bool = True) -> tuple[Any, Any]:
    """The k largest (or smallest) x along `axis`, the first in order first, and the int64
    index of each in x.

    Of equal values the earlier come first; each takes its own gradient. NaN counts as the
    largest. Records gather, which keeps the index (8 bytes a value).
    """
    x, k = operand("topk", x), whole("topk", "k", k)
    along = axis_of("topk", axis, x.ndim)
    if not 0 <= k <= x.shape[along]:
        raise ShapeError(
            f"topk got k={k} along axis {axis} of a Tensor of shape {x.shape}. k must be "
            f"in 0..{x.shape[along]}."
        )
    first = (slice(None),) * along + (slice(k),)
    # A copy: the index that is kept shall not hold on to that of all of x.
    return _pick(x, _order(x, along, largest)[first].copy(), along)
