"""Every op as a function, and the table of operators and methods that Tensor gets.

Functions take Tensors or arrays: given a Tensor they record, given arrays alone they
compute. So the body of a vjp, written with them, serves for second derivatives as well.
"""

from collections.abc import Callable
from typing import Any

from ..differentiate import backward
from ..errors import ShapeError
from ..hooks import register_hook, retain_grad
from ..tensor import Tensor
from . import inplace
from .choice import (
    astype,
    equal,
    greater,
    greater_equal,
    less,
    less_equal,
    maximum,
    minimum,
    not_equal,
    where,
)
from .elementwise import (
    add,
    div,
    exp,
    log,
    mul,
    neg,
    pow,
    reciprocal,
    rsqrt,
    softplus,
    sqrt,
    sub,
    tanh,
)
from .index import embedding, getitem
from .join import cat, split, stack
from .linalg import matmul
from .logistic import sigmoid, silu
from .loss import cross_entropy
from .norm import log_softmax, rms_norm, softmax
from .operands import zeros as zeros  # (shape, like): not the constructor
from .reduce import argmax, max, mean, sum
from .scan import gated_scan
from .view import broadcast_to, reshape, transpose

__all__ = [
    "add", "argmax", "astype", "broadcast_to", "cat", "cross_entropy", "div", "embedding",
    "equal", "exp", "gated_scan", "getitem", "greater", "greater_equal", "less",
    "less_equal", "log", "log_softmax", "matmul", "max", "maximum", "mean", "minimum",
    "mul", "neg", "not_equal", "pow", "reciprocal", "reshape", "rms_norm", "rsqrt",
    "sigmoid", "silu", "softmax", "softplus", "split", "sqrt", "stack", "sub", "sum",
    "tanh", "transpose", "where",
]  # fmt: skip


def _swap(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The reflected form: `1 - x` calls `x.__rsub__(1)`."""

    def reflected(self: Any, other: Any) -> Any:
        return fn(other, self)

    return reflected


def _matrix_transpose(x: Tensor) -> Tensor:
    """x with its last two axes exchanged."""
    if x.ndim < 2:
        raise ShapeError(f".mT of a Tensor of shape {x.shape}: it needs two axes or more.")
    return transpose(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def _backward(x: Tensor, cotangent: Any = None, retain_graph: bool = False) -> None:
    """Add cotangent·∂x/∂leaf to `.grad` of every leaf below x."""
    backward(x, cotangent, retain_graph)


METHODS: dict[str, Any] = {
    "T": property(transpose, doc="x with its axes reversed, a view."),
    "mT": property(_matrix_transpose, doc="x with its last two axes exchanged, a view."),
    "__add__": add,
    "__radd__": _swap(add),
    "__sub__": sub,
    "__rsub__": _swap(sub),
    "__mul__": mul,
    "__rmul__": _swap(mul),
    "__truediv__": div,
    "__rtruediv__": _swap(div),
    "__pow__": pow,
    "__rpow__": _swap(pow),
    "__matmul__": matmul,
    "__rmatmul__": _swap(matmul),
    "__neg__": neg,
    "__eq__": equal,
    "__ne__": not_equal,
    "__lt__": less,
    "__le__": less_equal,
    "__gt__": greater,
    "__ge__": greater_equal,
    "__getitem__": getitem,
    "__setitem__": inplace.setitem_,
    "__iadd__": inplace.add_,
    "__isub__": inplace.sub_,
    "__imul__": inplace.mul_,
    "__itruediv__": inplace.div_,
    "argmax": argmax,
    "astype": astype,
    "backward": _backward,
    "broadcast_to": broadcast_to,
    "copy_": inplace.copy_,
    "exp": exp,
    "log": log,
    "log_softmax": log_softmax,
    "max": max,
    "mean": mean,
    "reciprocal": reciprocal,
    "register_hook": register_hook,
    "reshape": reshape,
    "retain_grad": retain_grad,
    "rsqrt": rsqrt,
    "sigmoid": sigmoid,
    "silu": silu,
    "softmax": softmax,
    "softplus": softplus,
    "split": split,
    "sqrt": sqrt,
    "sum": sum,
    "tanh": tanh,
    "transpose": transpose,
}

for _name, _function in METHODS.items():
    setattr(Tensor, _name, _function)
