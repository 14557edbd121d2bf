"""Clipping: one norm over all gradients, and what is done where it is too large."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from .. import memory
from ..backend import array_module, backend_of, is_writeable
from ..errors import DTypeError, GraphError, HelixError
from ..ops.operands import pieces
from ..tensor import Tensor
from .optimizer import listed

__all__ = ["clip_grad_norm_"]


def _norm(grads: list[Any], unit: float) -> float:
    """√(Σ g²) in float64, computed from g / unit; the sum is the same on any machine."""
    sums: list[Any] = []
    with np.errstate(over="ignore", invalid="ignore"):
        for g in grads:
            for (piece,) in pieces(g):
                wide = piece.astype(np.float64)
                if unit != 1:
                    wide /= unit
                wide *= wide
                sums.append(wide.sum())
    return unit * math.sqrt(sum(_on_host(sums), 0.0))


def _on_host(sums: list[Any]) -> list[float]:
    """Numbers as Python's: those of another device come over together, in one wait."""
    away = [s for s in sums if not isinstance(s, np.generic)]
    if not away:
        return [float(s) for s in sums]
    stacked = array_module(away[0]).stack(away)
    came = iter(backend_of(stacked).to_numpy(stacked).tolist())
    return [float(s) if isinstance(s, np.generic) else next(came) for s in sums]


def clip_grad_norm_(
    parameters: Iterable[Tensor], max_norm: float, *, error_if_nonfinite: bool = False
) -> float:
    """g ← g · max_norm / n for all gradients if n > max_norm; returns n = √(Σ g²).

    n is taken over all gradients together, before clipping, and adds up in float64.
    Gradients that are None are left out, a parameter given twice counts once. A gradient
    that two parameters share counts for each, and is scaled once. At or below
    the limit no bit changes. Where n is inf or NaN the gradients stay as they are and n
    tells; with `error_if_nonfinite=True` that is an error. `max_norm=math.inf` measures.

    >>> import tinygrad_helix as th
    >>> a = th.zeros(2, requires_grad=True)
    >>> a.grad = th.tensor([3.0, 4.0])
    >>> th.optim.clip_grad_norm_([a], 1.0)
    5.0
    >>> a.grad.tolist()  # doctest: +ELLIPSIS
    [0.6..., 0.8...]
    """
    if not isinstance(max_norm, (int, float, np.integer, np.floating)) or isinstance(
        max_norm, bool
    ):
        raise DTypeError(
            f"clip_grad_norm_ takes a number as max_norm; got {type(max_norm).__name__}."
        )
    if not max_norm > 0:
        raise HelixError(
            f"clip_grad_norm_ got max_norm={max_norm!r}. Give a number above 0; to clip "
            "nothing, give math.inf."
        )
    once = {id(p): p for p in listed("clip_grad_norm_", parameters)}
    grads = [p.grad.data for p in once.values() if p.grad is not None]
    norm = _norm(grads, 1.0)
    if math.isinf(norm):  # of the squares, perhaps, and not of the gradients
        largest = max(float(abs(g).max()) for g in grads if g.size)
        norm = _norm(grads, largest) if math.isfinite(largest) else norm
    if not math.isfinite(norm):
        if error_if_nonfinite:
            shapes = [g.shape for g in grads if not array_module(g).isfinite(g).all()]
            raise HelixError(
                f"clip_grad_norm_: the norm of the gradients is {norm}; not finite are "
                f"those of shapes {shapes}. Nothing was clipped. Look for the first op "
                "whose result is not finite."
            )
        return norm
    if norm > max_norm:
        for g in grads:
            if not is_writeable(g):
                raise GraphError(
                    f"clip_grad_norm_: the gradient of shape {g.shape} is read-only. Set "
                    ".grad to a copy; nothing was clipped."
                )
        scale = max_norm / norm
        owners = [id(memory.storage(g)) for g in grads]
        alone = [owners.count(owner) == 1 for owner in owners]
        # What shares memory is scaled elsewhere first, so that no element is twice.
        scaled = [
            None if single else g * scale for g, single in zip(grads, alone, strict=True)
        ]
        for g, other in zip(grads, scaled, strict=True):
            if other is None:
                g *= scale
            else:
                g[...] = other
            memory.bump(g)
    return norm
