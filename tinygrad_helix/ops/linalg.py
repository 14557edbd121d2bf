"""Products of matrices, and einsum."""

import math
import string
from collections import Counter
from typing import Any

import numpy as np

from ..backend import array_module, backend_of
from ..errors import DTypeError, ShapeError
from ..op import Input, Op, apply
from .operands import accumulator, plain, promote, same_float
from .reduce import sum as sum_over
from .view import broadcast_to, reshape, transpose

__all__ = ["einsum", "matmul"]


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


# --- einsum

_MAX_OPERANDS = 8


class Einsum(Op):
    """y = Σ of products, as a spec says: "ij,jk->ik", no label twice in one term
    dxᵢ = the einsum of dy and the other operands onto xᵢ's labels, repeated along those
    that only xᵢ has
    keeps each operand if another needs a gradient."""

    saves = {f"x{i}": Input(i) for i in range(_MAX_OPERANDS)}

    @staticmethod
    def forward(xp, *arrays, needs, spec):
        left, out = spec.split("->")
        dtype = np.result_type(*[a.dtype for a in arrays])
        wide = [a.astype(accumulator(a.dtype), copy=False) for a in arrays]
        y = _contracted(wide, left.split(","), out)
        others = [any(needs[:i] + needs[i + 1 :]) for i in range(len(arrays))]
        return y.astype(dtype, copy=False), {
            f"x{i}": a if others[i] else None for i, a in enumerate(arrays)
        }

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, spec):
        left, out = spec.split("->")
        terms = left.split(",")
        results = []
        for i, (own, (shape, _), need) in enumerate(zip(terms, inputs, needs, strict=True)):
            if not need:
                results.append(None)
                continue
            others = [j for j in range(len(terms)) if j != i]
            given = ",".join([out, *(terms[j] for j in others)])
            shared = "".join([label for label in own if label in given])
            arrays = [saved[f"x{j}"] for j in others]
            dx = apply(Einsum, dy, *arrays, spec=f"{given}->{shared}")
            if shared != own:  # summed over alone: dy is the same all along
                kept = [n if c in shared else 1 for n, c in zip(shape, own, strict=True)]
                dx = broadcast_to(reshape(dx, kept), shape)
            results.append(dx)
        return tuple(results)


def _contracted(arrays: list[Any], terms: list[str], out: str) -> Any:
    """The operands taken in from left to right, each by one product of matrices."""
    x, term = arrays[0], terms[0]
    for i, (b, other) in enumerate(zip(arrays[1:], terms[1:], strict=True), 2):
        wanted = "".join([out, *terms[i:]])
        x, term = _summed(x, term, other + wanted)
        b, other = _summed(b, other, term + wanted)
        x, term = _product_of_two(x, term, b, other, wanted)
    x, term = _summed(x, term, out)
    return x.transpose([term.index(label) for label in out])


def _summed(x: Any, term: str, wanted: str) -> tuple[Any, str]:
    """x summed over the labels that nobody else has."""
    axes = tuple([i for i, label in enumerate(term) if label not in wanted])
    if axes:
        kept = [n for i, n in enumerate(x.shape) if i not in axes]
        x = x.sum(axis=axes, keepdims=True).reshape(kept)
    return x, "".join([label for label in term if label in wanted])


def _product_of_two(
    a: Any, term_a: str, b: Any, term_b: str, wanted: str
) -> tuple[Any, str]:
    """Two operands into one with the labels of both, but for shared ones nobody wants."""
    sizes = dict(zip(term_a + term_b, a.shape + b.shape, strict=True))
    batch = [label for label in term_a if label in term_b and label in wanted]
    inner = [label for label in term_a if label in term_b and label not in wanted]
    left = [label for label in term_a if label not in term_b]
    right = [label for label in term_b if label not in term_a]

    def matrices(x: Any, term: str, rows: list[str], columns: list[str]) -> Any:
        order = [term.index(label) for label in [*batch, *rows, *columns]]
        shape = [math.prod(sizes[label] for label in part) for part in (rows, columns)]
        return x.transpose(order).reshape([sizes[label] for label in batch] + shape)

    a, b = matrices(a, term_a, left, inner), matrices(b, term_b, inner, right)
    # With nothing to sum over a is a column and b a row, and their product elementwise.
    y = backend_of(a).matmul(a, b) if inner else a * b
    term = "".join([*batch, *left, *right])
    return y.reshape([sizes[label] for label in term]), term


def einsum(spec: str, *operands: Any) -> Any:
    """Sums of products by labelled axes: "ij,jk->ik" is y[i, k] = Σ_j a[i, j] · b[j, k].

    A label for each axis; those not after "->" are summed over; a label twice in one
    term takes the diagonal; "..." stands for axes that broadcast; without "->" the result
    has the labels that occur once, in alphabetical order (NumPy's rules). One float dtype.
    Several operands are multiplied from left to right. Keeps each operand if another needs
    a gradient; a diagonal keeps its index.
    """
    if not isinstance(spec, str):
        raise DTypeError(f'einsum takes a spec like "ij,jk->ik" first; got {spec!r}.')
    for x in operands:
        if not hasattr(x, "shape"):
            raise DTypeError(f"einsum takes Tensors and arrays; got {type(x).__name__}.")
    if not 1 <= len(operands) <= _MAX_OPERANDS:
        raise ShapeError(
            f"einsum got {len(operands)} operands; it takes 1 to {_MAX_OPERANDS}."
        )
    xs = list(promote(*operands))
    if len({x.dtype for x in xs}) > 1:
        same_float("einsum", **{f"operand {i}": x for i, x in enumerate(xs)})
    terms, out = _labels(spec, [x.ndim for x in xs])
    sizes = _sizes(spec, terms, [x.shape for x in xs])
    for i, term in enumerate(terms):
        full = tuple([sizes[label] for label in term])
        if xs[i].shape != full:
            xs[i] = broadcast_to(xs[i], full)
        for label, n in Counter(term).items():
            for _ in range(n - 1):
                xs[i], term = _diagonal(xs[i], term, label)
        terms[i] = term
    return apply(Einsum, *xs, spec=f"{','.join(terms)}->{out}")


def _labels(spec: str, ndims: list[int]) -> tuple[list[str], str]:
    """A label for each axis of each operand and of the result, "..." written out."""
    left, arrow, out = spec.replace(" ", "").partition("->")
    terms = left.split(",")
    named = [term.replace("...", "", 1) for term in terms]
    wild = [
        ndim - len(name) if "..." in term else 0
        for ndim, name, term in zip(ndims, named, terms, strict=False)
    ]
    right = out.replace("...", "", 1) if arrow else _implied(named)
    if (
        len(terms) != len(ndims)
        or any(n < 0 for n in wild)
        or any(
            len(name) + n != ndim for name, n, ndim in zip(named, wild, ndims, strict=True)
        )
        or not all(label in string.ascii_letters for label in "".join([*named, right]))
        or len(set(right)) != len(right)
        or not set(right) <= set("".join(named))
    ):
        raise ShapeError(
            f"einsum got the spec {spec!r} for operands of {ndims} axes. Give a term for "
            "each operand, a letter (or ...) for each axis, and after -> letters of the "
            "terms, each once."
        )
    free = [label for label in string.ascii_letters if label not in "".join(named)]
    rest = "".join(free[: max(wild)])
    full = [
        term.replace("...", rest[len(rest) - n :])
        for term, n in zip(terms, wild, strict=True)
    ]
    return full, out.replace("...", rest) if arrow else rest + right


def _implied(named: list[str]) -> str:
    counts = Counter("".join(named))
    return "".join(sorted([label for label, n in counts.items() if n == 1]))


def _sizes(spec: str, terms: list[str], shapes: list[tuple[int, ...]]) -> dict[str, int]:
    """The size of each label: axes of one label are equal, or 1 and then repeated."""
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for label, n in zip(term, shape, strict=True):
            known = sizes.get(label, 1)
            if n != known and 1 not in (n, known):
                raise ShapeError(
                    f"einsum {spec!r} of shapes {', '.join(map(str, shapes))}: one label "
                    f"has the sizes {known} and {n}. They must be equal, or 1."
                )
            sizes[label] = n if known == 1 else known
    return sizes


def _diagonal(x: Any, term: str, label: str) -> tuple[Any, str]:
    """x where the first two axes of one label have the same index, that axis the last."""
    first = term.index(label)
    second = term.index(label, first + 1)
    order = [i for i in range(x.ndim) if i not in (first, second)]
    every = array_module(plain(x)).arange(x.shape[first])
    rest = "".join([term[i] for i in order])
    return transpose(x, (*order, first, second))[..., every, every], rest + label
