"""Products of matrices."""

import math
from typing import Any

from ..backend import backend_of
from ..errors import DTypeError, ShapeError
from ..op import Input, Op, apply
from .operands import plain, promote, same_float
from .reduce import sum as sum_over
from .view import reshape, transpose

__all__ = ["matmul"]


def _product(a: Any, b: Any) -> Any:
    """a @ b, with the leading axes of `a` folded into one product where b is a matrix."""
    matmul = backend_of(a).matmul
    if b.ndim == 2 and a.ndim > 2 and a.flags.c_contiguous:
        rows = math.prod(a.shape[:-1])
        y = matmul(a.reshape(rows, a.shape[-1]), b)
        return y.reshape(*a.shape[:-1], b.shape[-1])
    return matmul(a, b)


def _swapped(x: Any) -> Any:
    """x with its last two axes exchanged."""
    return transpose(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def _sum_to(x: Any, shape: tuple[int, ...]) -> Any:
    """x summed over the batch axes along which an operand of `shape` was broadcast."""
    lead = x.ndim - len(shape)
    axes = tuple(range(lead)) + tuple(
        [i + lead for i, n in enumerate(shape[:-2]) if n == 1 and x.shape[i + lead] != 1]
    )
    return reshape(sum_over(x, axis=axes), shape) if axes else x


class Matmul(Op):
    """y = a @ b
    da = dy @ bᵀ,   db = aᵀ @ dy
    keeps a if b needs a gradient, b if a does.

    A gradient is summed over the batch axes along which its operand was broadcast; for a
    matrix b and a batch a that is one product over all rows, without the batch's partial
    products.
    """

    saves = {"a": Input(0), "b": Input(1)}

    @staticmethod
    def forward(xp, a, b, *, needs):
        saved = {"a": a if needs[1] else None, "b": b if needs[0] else None}
        return _product(a, b), saved

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        a, b = saved["a"], saved["b"]
        (shape_a, _), (shape_b, _) = inputs
        # A vector is a matrix of one row (left) or one column (right).
        matrix_a = shape_a if len(shape_a) > 1 else (1, *shape_a)
        matrix_b = shape_b if len(shape_b) > 1 else (*shape_b, 1)
        if len(shape_b) == 1:
            dy = reshape(dy, (*dy.shape, 1))
        if len(shape_a) == 1:
            dy = reshape(dy, (*dy.shape[:-1], 1, dy.shape[-1]))
        da = db = None
        if needs[0]:
            da = matmul(dy, _swapped(reshape(b, matrix_b)))
            da = reshape(_sum_to(da, matrix_a), shape_a)
        if needs[1]:
            if len(matrix_b) == 2 and len(matrix_a) > 2:
                rows = math.prod(matrix_a[:-1])
                flat_a = reshape(a, (rows, matrix_a[-1]))
                db = matmul(_swapped(flat_a), reshape(dy, (rows, matrix_b[-1])))
            else:
                db = _sum_to(matmul(_swapped(reshape(a, matrix_a)), dy), matrix_b)
            db = reshape(db, shape_b)
        return da, db


def matmul(a: Any, b: Any) -> Any:
    """a @ b: vectors, matrices, and batches of matrices that broadcast, as in NumPy.

    a [..., n, k] and b [..., k, m] give [..., n, m]; a vector a [k] or b [k] loses its
    axis in the result. Both of one float dtype (an int operand takes the other's). Keeps
    a if b needs a gradient, b if a does.
    """
    for x in (a, b):
        if not hasattr(x, "shape"):
            raise DTypeError(f"matmul takes Tensors and arrays; got {type(x).__name__}.")
    a, b = promote(a, b)
    if a.dtype != b.dtype:
        same_float("matmul", a=a, b=b)
    inner_b = b.shape[-2] if b.ndim > 1 else b.shape[0] if b.ndim else None
    if not a.ndim or not b.ndim or a.shape[-1] != inner_b:
        raise ShapeError(
            f"matmul of shapes {a.shape} and {b.shape}: the last axis of the first must be "
            "as long as the last but one (of a vector: the only) axis of the second."
        )
    try:
        return apply(Matmul, a, b)
    except ValueError:
        raise ShapeError(
            f"matmul of shapes {plain(a).shape} and {plain(b).shape}: the batch axes do "
            "not broadcast."
        ) from None
