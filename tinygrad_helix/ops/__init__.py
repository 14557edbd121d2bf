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
from .activation import gelu, relu, softplus, tanh
from .choice import (
    astype,
    clip,
    equal,
    greater,
    greater_equal,
    less,
    less_equal,
    masked_fill,
    maximum,
    minimum,
    not_equal,
    tril,
    triu,
    where,
)
from .conv import causal_conv1d, conv2d, max_pool2d
from .device import to  # a method alone
from .elementwise import (
    abs,
    add,
    cos,
    div,
    exp,
    expm1,
    log,
    log1p,
    mul,
    neg,
    pow,
    reciprocal,
    rsqrt,
    sign,
    sin,
    sqrt,
    sub,
)
from .index import embedding, gather, getitem, one_hot, scatter_add, take
from .join import cat, chunk, pad, split, stack
from .linalg import einsum, matmul
from .logistic import sigmoid, silu
from .loss import cross_entropy
from .norm import layer_norm, log_softmax, rms_norm, softmax
from .operands import zeros as zeros  # (shape, like): not the constructor
from .random import dropout
from .reduce import argmax, argmin, logsumexp, max, mean, min, norm, prod, std, sum, var
from .scan import cumprod, cumsum, gated_scan
from .sorting import sort, topk
from .special import erf, erfc
from .view import (
    broadcast_to,
    expand,
    flip,
    permute,
    reshape,
    squeeze,
    swapaxes,
    transpose,
    unsqueeze,
)

__all__ = [
    "abs", "add", "argmax", "argmin", "astype", "broadcast_to", "cat", "causal_conv1d",
    "chunk", "clip", "conv2d", "cos", "cross_entropy", "cumprod", "cumsum", "div",
    "dropout", "einsum", "embedding", "equal", "erf", "erfc", "exp", "expand", "expm1",
    "flip", "gated_scan", "gather", "gelu", "getitem", "greater", "greater_equal",
    "layer_norm", "less", "less_equal", "log", "log1p", "log_softmax", "logsumexp",
    "masked_fill", "matmul", "max", "max_pool2d", "maximum", "mean", "min", "minimum",
    "mul", "neg", "norm", "not_equal", "one_hot", "pad", "permute", "pow", "prod",
    "reciprocal", "relu", "reshape", "rms_norm", "rsqrt", "scatter_add", "sigmoid",
    "sign", "silu", "sin", "softmax", "softplus", "sort", "split", "sqrt", "squeeze",
    "stack", "std", "sub", "sum", "swapaxes", "take", "tanh", "topk", "transpose",
    "tril", "triu", "unsqueeze", "var", "where",
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
    "__abs__": abs,
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
    "abs": abs,
    "argmax": argmax,
    "argmin": argmin,
    "astype": astype,
    "backward": _backward,
    "broadcast_to": broadcast_to,
    "chunk": chunk,
    "clip": clip,
    "copy_": inplace.copy_,
    "cos": cos,
    "cumprod": cumprod,
    "cumsum": cumsum,
    "dropout": dropout,
    "erf": erf,
    "erfc": erfc,
    "exp": exp,
    "expand": expand,
    "expm1": expm1,
    "flip": flip,
    "gather": gather,
    "gelu": gelu,
    "log": log,
    "log1p": log1p,
    "log_softmax": log_softmax,
    "logsumexp": logsumexp,
    "masked_fill": masked_fill,
    "max": max,
    "max_pool2d": max_pool2d,
    "mean": mean,
    "min": min,
    "norm": norm,
    "one_hot": one_hot,
    "pad": pad,
    "permute": permute,
    "prod": prod,
    "reciprocal": reciprocal,
    "register_hook": register_hook,
    "relu": relu,
    "reshape": reshape,
    "retain_grad": retain_grad,
    "rsqrt": rsqrt,
    "scatter_add": scatter_add,
    "sigmoid": sigmoid,
    "sign": sign,
    "silu": silu,
    "sin": sin,
    "softmax": softmax,
    "softplus": softplus,
    "sort": sort,
    "split": split,
    "sqrt": sqrt,
    "squeeze": squeeze,
    "std": std,
    "sum": sum,
    "swapaxes": swapaxes,
    "take": take,
    "tanh": tanh,
    "to": to,
    "topk": topk,
    "transpose": transpose,
    "tril": tril,
    "triu": triu,
    "unsqueeze": unsqueeze,
    "var": var,
}

for _name, _function in METHODS.items():
    setattr(Tensor, _name, _function)
