"""Losses: cross_entropy."""

from typing import Any

import numpy as np

from ..backend import array_module
from ..errors import DTypeError, HelixError, ShapeError
from ..op import Constant, Input, Op, apply
from .choice import select
from .norm import _shifted, softmax
from .operands import floating, owned, whole
from .view import reshape

__all__ = ["cross_entropy"]


def _counted(target: Any, ignored: int | None) -> Any:
    """The rows that count, as bools, or None for all."""
    return None if ignored is None else target != ignored


class CrossEntropy(Op):
    """y = ln Σ e^x - Σ q · x for each row, or their sum, or their mean over those counted
    dx = dy · (softmax(x) - q), over the number of rows for a mean
    keeps x (logits) and target.

    q = (1 - s) · onehot(target) + s / V with label smoothing s; an ignored row has y = 0
    and dx = 0.
    """

    saves = {"logits": Input(0), "target": Constant()}

    @staticmethod
    def forward(xp, logits, target, *, needs, ignored, reduction, smoothing):
        z = _shifted(xp, logits, -1)
        counted = _counted(target, ignored)
        if z.shape[-1]:
            place = target if counted is None else xp.where(counted, target, 0)
            right = xp.take_along_axis(z, place[..., None], axis=-1)[..., 0]
            if smoothing:
                right = (1 - smoothing) * right + smoothing * z.mean(axis=-1)
            y = xp.log(xp.exp(z).sum(axis=-1)) - right
        else:  # without classes no row can be counted
            y = xp.zeros(target.shape, z.dtype)
        if counted is not None:
            y = xp.where(counted, y, 0)
        if reduction != "none":
            y = y.sum()
        if reduction == "mean":
            y = y / (target.size if counted is None else counted.sum())
        y = xp.asarray(y).astype(logits.dtype, copy=False)
        return y, {"logits": logits, "target": target}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, ignored, reduction, smoothing):
        logits, target = saved["logits"], saved["target"]
        xp = array_module(target)
        classes = logits.shape[-1]
        counted = _counted(target, ignored)
        q = target[..., None] == xp.arange(classes)
        if smoothing:
            q = ((1 - smoothing) * q + smoothing / classes).astype(logits.dtype)
        if reduction == "mean":
            dy = dy / (target.size if counted is None else int(counted.sum()))
        elif reduction == "none":
            dy = reshape(dy, (*dy.shape, 1))
        dx = (softmax(logits) - q) * dy
        return dx if counted is None else select(counted[..., None], dx, 0.0), None


def cross_entropy(
    logits: Any,
    target: Any,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """-ln softmax(logits)[target], in nats: logits [..., V], target [...] of ints in
    0..V-1.

    `reduction` "mean" gives one number, the mean over rows, "sum" their sum, "none" a
    number for each row [...]. Rows whose target is `ignore_index` (any int) count for
    nothing: 0 in the sum, not in the mean's divisor, gradient 0; a mean over no rows is an
    error. `label_smoothing` s in 0..1 takes a target distribution of 1 - s at the target
    and s spread evenly over all V classes (Szegedy et al., 2016).

    Keeps logits and target (of an array that is no Tensor a copy); the softmax is computed
    again.
    """
    logits = floating(logits)
    target = owned("cross_entropy", target, logits)
    if target.dtype.kind not in "iu":
        raise DTypeError(
            f"cross_entropy takes a target of ints (class numbers); got {target.dtype}."
        )
    if not logits.ndim or target.shape != logits.shape[:-1]:
        raise ShapeError(
            f"cross_entropy of logits {logits.shape} [..., V] takes a target of shape "
            f"{logits.shape[:-1]}; got {target.shape}."
        )
    if reduction not in ("mean", "sum", "none"):
        raise HelixError(
            f"cross_entropy got reduction={reduction!r}. Use 'mean', 'sum' or 'none'."
        )
    if not isinstance(label_smoothing, (int, float, np.integer, np.floating)):
        raise DTypeError(
            "cross_entropy takes a number as label_smoothing; got "
            f"{type(label_smoothing).__name__}."
        )
    if not 0 <= label_smoothing <= 1:
        raise HelixError(
            f"cross_entropy got label_smoothing={label_smoothing!r}. Give one in 0..1."
        )
    if ignore_index is not None:
        ignore_index = whole("cross_entropy", "ignore_index", ignore_index)
    counted = _counted(target, ignore_index)
    rows = target if counted is None else target[counted]
    if reduction == "mean" and rows.size == 0:
        what = "no rows" if counted is None else f"no rows but ignored ones {ignore_index}"
        raise ShapeError(
            f"cross_entropy of logits {logits.shape}: there are {what}, and no mean of "
            'them. Leave such batches out, or use reduction="sum".'
        )
    if rows.size and (rows.min() < 0 or rows.max() >= logits.shape[-1]):
        raise ShapeError(
            f"cross_entropy got targets {rows.min()} to {rows.max()} for "
            f"{logits.shape[-1]} classes. Each must be in 0..{logits.shape[-1] - 1}."
        )
    return apply(
        CrossEntropy,
        logits,
        target,
        ignored=ignore_index,
        reduction=reduction,
        smoothing=float(label_smoothing),
    )
