"""Choosing between values (maximum, clip, where, ...), comparing them, casting them."""

from typing import Any

import numpy as np

from ..backend import is_array
from ..errors import DTypeError, ShapeError
from ..op import Constant, Op, apply
from ..tensor import Tensor
from .operands import (
    binary,
    check_range,
    module_of,
    operand,
    owned,
    plain,
    promote,
    whole,
)

__all__ = [
    "astype", "clip", "equal", "greater", "greater_equal", "less", "less_equal",
    "masked_fill", "maximum", "minimum", "not_equal", "select", "tril", "triu", "where",
]  # fmt: skip


def _order(xp: Any, a: Any, b: Any) -> Any:
    """1 where a > b, -1 where a < b, else 0: one byte an element."""
    return xp.asarray(a > b).astype(np.int8) - xp.asarray(a < b).astype(np.int8)


class Maximum(Op):
    """y = max(a, b)
    da = dy where a > b, dy/2 where a = b, else 0; db the other way round
    keeps order = sign(a - b), one byte an element."""

    broadcasts = True
    saves = {"order": Constant()}
    sign = 1

    @classmethod
    def forward(cls, xp, a, b, *, needs):
        y = xp.maximum(a, b) if cls.sign > 0 else xp.minimum(a, b)
        return y, {"order": _order(xp, a, b) if any(needs) else None}

    @classmethod
    def vjp(cls, dy, saved, *, needs, inputs):
        order = saved["order"]
        return tuple(
            [
                select(order == 0, dy * 0.5, select(order == side, dy, 0.0))
                if need
                else None
                for side, need in zip((cls.sign, -cls.sign), needs, strict=True)
            ]
        )


class Minimum(Maximum):
    """y = min(a, b)
    da = dy where a < b, dy/2 where a = b, else 0; db the other way round
    keeps order = sign(a - b), one byte an element."""

    sign = -1


def maximum(a: Any, b: Any) -> Any:
    """max(a, b), elementwise with broadcasting; equal values share the gradient evenly.

    Keeps one byte an element (which of the two is larger).
    """
    return binary(Maximum, a, b)


def minimum(a: Any, b: Any) -> Any:
    """min(a, b), elementwise with broadcasting; equal values share the gradient evenly.

    Keeps one byte an element (which of the two is larger).
    """
    return binary(Minimum, a, b)


class Clip(Op):
    """y = min(max(x, low), high)
    dx = dy where low ≤ x ≤ high, else 0
    keeps inside, whether it is, one byte an element."""

    saves = {"inside": Constant()}

    @staticmethod
    def forward(xp, x, *, needs, low, high):
        inside = None
        if needs[0]:
            inside = xp.ones(x.shape, bool)
            if low is not None:
                inside &= x >= low
            if high is not None:
                inside &= x <= high
        return xp.clip(x, low, high), {"inside": inside}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, low, high):
        return (select(saved["inside"], dy, 0.0),)


def clip(x: Any, low: float | None = None, high: float | None = None) -> Any:
    """min(max(x, low), high), elementwise; None is no bound.

    At a bound itself the gradient passes. Keeps one byte an element. The bounds are
    numbers: for arrays of bounds use maximum and minimum.
    """
    bounds = [b.item() if isinstance(b, np.generic) else b for b in (low, high)]
    if any(b is not None and not isinstance(b, (int, float)) for b in bounds):
        raise DTypeError(
            f"clip takes numbers or None as bounds; got {type(low).__name__} and "
            f"{type(high).__name__}. Use maximum and minimum for Tensors."
        )
    if bounds == [None, None]:
        raise DTypeError("clip got neither bound. Give low=, high=, or both.")
    given = [b for b in bounds if b is not None]
    x = promote(operand("clip", x), *given)[0]
    check_range("clip", x, *given)
    return apply(Clip, x, low=bounds[0], high=bounds[1])


class Where(Op):
    """y = a where condition, else b      da = dy where condition, else 0; db the rest
    keeps condition, one byte an element."""

    broadcasts = True
    saves = {"condition": Constant()}

    @staticmethod
    def forward(xp, condition, a, b, *, needs):
        return xp.where(condition, a, b), {"condition": condition}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        condition = saved["condition"]
        return (
            None,
            select(condition, dy, 0.0) if needs[1] else None,
            select(condition, 0.0, dy) if needs[2] else None,
        )


def select(condition: Any, a: Any, b: Any) -> Any:
    """`where` for a vjp, whose condition is an array that only the tape holds."""
    return apply(Where, plain(condition), *promote(a, b))


def where(condition: Any, a: Any, b: Any) -> Any:
    """a where `condition` is true, else b, with broadcasting. Keeps the condition
    (of an array that is no Tensor a copy).

    The branch not taken gets an exact 0. An infinite or undefined derivative *inside* it
    still gives 0 · ∞ = NaN there: put a harmless value into its input by a `where` of its
    own, as in `where(x > 0, sqrt(where(x > 0, x, 1)), 0)`.
    """
    if isinstance(condition, (bool, np.bool_, Tensor)) or is_array(condition):
        condition = owned("where", condition, a, b)
    if not is_array(condition) or condition.dtype != bool:
        got = getattr(condition, "dtype", type(condition).__name__)
        raise DTypeError(f"where takes a condition of bools; got {got}. Compare first.")
    if a is None or b is None:
        raise DTypeError("where takes Tensors, arrays and numbers; got None.")
    a, b = promote(a, b)
    check_range("where", a, b)
    try:
        return apply(Where, condition, a, b)
    except ValueError as error:
        if isinstance(error, ShapeError):
            raise
        raise ShapeError(
            f"where of shapes {condition.shape}, {np.shape(plain(a))} and "
            f"{np.shape(plain(b))}, which do not broadcast."
        ) from None


def masked_fill(x: Any, mask: Any, value: float) -> Any:
    """x with the number `value` where `mask` is true, which broadcasts to x's shape.

    No gradient goes to the filled places. Records where; keeps the mask (of an
    array that is no Tensor a copy).
    """
    filled = where(mask, value, x)
    if filled.shape != x.shape:
        got = np.shape(plain(mask))
        raise ShapeError(
            f"masked_fill of a Tensor of shape {x.shape} got a mask of shape {got}. It "
            "must broadcast to the Tensor's shape."
        )
    return filled


class Tril(Op):
    """y = x on and below the k-th diagonal (column ≤ row + k), else 0
    dx = dy there, else 0
    keeps nothing."""

    upper = False

    @classmethod
    def forward(cls, xp, x, *, needs, k):
        return (xp.triu if cls.upper else xp.tril)(x, k), {}

    @classmethod
    def vjp(cls, dy, saved, *, needs, inputs, k):
        return (apply(cls, dy, k=k),)


class Triu(Tril):
    """y = x on and above the k-th diagonal (column ≥ row + k), else 0
    dx = dy there, else 0
    keeps nothing."""

    upper = True


def _triangle(op: type[Op], x: Any, k: int) -> Any:
    x = operand(op.name, x)
    if x.ndim < 2:
        raise ShapeError(
            f"{op.name} of a Tensor of shape {x.shape}. It takes a matrix [..., n, m]."
        )
    return apply(op, x, k=whole(op.name, "k", k))


def tril(x: Any, k: int = 0) -> Any:
    """x [..., n, m] with 0 above the k-th diagonal (0 is the main one, 1 the next above).

    Keeps nothing.
    """
    return _triangle(Tril, x, k)


def triu(x: Any, k: int = 0) -> Any:
    """x [..., n, m] with 0 below the k-th diagonal (0 is the main one, 1 the next above).

    Keeps nothing.
    """
    return _triangle(Triu, x, k)


# --- casts and comparisons


class Cast(Op):
    """y = x in another dtype
    dx = dy in the old one (the tape casts)
    keeps nothing."""

    @staticmethod
    def forward(xp, x, *, needs, dtype):
        return x.astype(dtype), {}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, dtype):
        return (dy.astype(inputs[0][1]),)


def astype(x: Any, dtype: Any) -> Any:
    """x in another dtype, as a copy; x itself if it has that dtype. Keeps nothing.

    To a float the gradient goes through, cast back; to ints or bools there is none.
    """
    try:
        target = np.dtype(dtype)
    except TypeError:
        raise DTypeError(
            f"astype got {dtype!r}, which is no dtype. Use 'float32', say."
        ) from None
    x = operand("astype", x)
    if target.kind not in "fiub":
        raise DTypeError(f"a Tensor holds floats, ints or bools; got dtype {target}.")
    return x if x.dtype == target else apply(Cast, x, dtype=target)


def _compare(name: str, a: Any, b: Any) -> Any:
    a_, b_ = plain(a), plain(b)
    try:
        xp = module_of(name, a_, b_)
        result = getattr(xp, name)(a_, b_)
    except ValueError:
        raise ShapeError(
            f"{name} of shapes {np.shape(a_)} and {np.shape(b_)}, which do not broadcast."
        ) from None
    except TypeError:
        other = b_ if is_array(a_) else a_
        raise DTypeError(
            f"{name} compares Tensors, arrays and numbers; got {type(other).__name__}."
        ) from None
    result = xp.asarray(result)
    return Tensor(result) if isinstance(a, Tensor) or isinstance(b, Tensor) else result


def equal(a: Any, b: Any) -> Any:
    """a = b, elementwise: bools, no gradient."""
    return _compare("equal", a, b)


def not_equal(a: Any, b: Any) -> Any:
    """a ≠ b, elementwise: bools, no gradient."""
    return _compare("not_equal", a, b)


def less(a: Any, b: Any) -> Any:
    """a < b, elementwise: bools, no gradient."""
    return _compare("less", a, b)


def less_equal(a: Any, b: Any) -> Any:
    """a ≤ b, elementwise: bools, no gradient."""
    return _compare("less_equal", a, b)


def greater(a: Any, b: Any) -> Any:
    """a > b, elementwise: bools, no gradient."""
    return _compare("greater", a, b)


def greater_equal(a: Any, b: Any) -> Any:
    """a ≥ b, elementwise: bools, no gradient."""
    return _compare("greater_equal", a, b)
