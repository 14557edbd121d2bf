"""Losses: cross_entropy."""

from typing import Any

import numpy as np

from ..backend import array_module, is_array
from ..errors import DTypeError, ShapeError
from ..op import Constant, Input, Op, apply
from .norm import _shifted, softmax
from .operands import floating, plain

__all__ = ["cross_entropy"]


class CrossEntropy(Op):
    """y = mean over rows of (ln Σ e^x - x_target)      dx = dy / n · (softmax(x) - onehot)
    keeps x (logits) and target."""

    saves = {"logits": Input(0), "target": Constant()}

    @staticmethod
    def forward(xp, logits, target, *, needs):
        z = _shifted(xp, logits, -1)
        right = xp.take_along_axis(z, target[..., None], axis=-1)
        y = xp.mean(xp.log(xp.exp(z).sum(axis=-1, keepdims=True)) - right)
        return y.astype(logits.dtype), {"logits": logits, "target": target}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        logits, target = saved["logits"], saved["target"]
        xp = array_module(target)
        onehot = target[..., None] == xp.arange(logits.shape[-1])
        return (softmax(logits) - onehot) * (dy / target.size), None


def cross_entropy(logits: Any, target: Any) -> Any:
    """-mean ln softmax(logits)[target]: logits [..., V], target [...] of ints in 0..V-1.

    One number, in nats a row. Keeps logits and target; the softmax is computed again.
    """
    logits = floating(logits)
    target = plain(target)
    if not is_array(target):
        target = np.asarray(target)
    if target.dtype.kind not in "iu":
        raise DTypeError(
            f"cross_entropy takes a target of ints (class numbers); got {target.dtype}."
        )
    if not logits.ndim or target.shape != logits.shape[:-1]:
        raise ShapeError(
            f"cross_entropy of logits {logits.shape} [..., V] takes a target of shape "
            f"{logits.shape[:-1]}; got {target.shape}."
        )
    if target.size == 0:
        raise ShapeError(f"cross_entropy of logits {logits.shape}: there are no rows.")
    if target.min() < 0 or target.max() >= logits.shape[-1]:
        raise ShapeError(
            f"cross_entropy got targets {target.min()} to {target.max()} for "
            f"{logits.shape[-1]} classes. Each must be in 0..{logits.shape[-1] - 1}."
        )
    return apply(CrossEntropy, logits, target)
