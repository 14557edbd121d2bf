"""SGD and AdamW: each a formula and its few lines."""

import math
from typing import Any

from ..backend import array_module
from ..errors import DTypeError
from ..ops.operands import accumulator
from .optimizer import Optimizer, number, pieces

__all__ = ["SGD", "AdamW"]


class SGD(Optimizer):
    """p ← (1 - lr·weight_decay)·p - lr·g

    The decay is decoupled: it shrinks the weight and never enters the gradient. No state
    but the number of steps.

    >>> import tinygrad_helix as th
    >>> p = th.tensor([1.0], requires_grad=True)
    >>> optimizer = th.optim.SGD([p], lr=0.5)
    >>> (p * p).backward(); optimizer.step(); p.item()
    0.0
    """

    def __init__(self, parameters: Any, lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    def _check(self, group: dict[str, Any]) -> None:
        for name in ("lr", "weight_decay"):
            number("SGD", name, group[name], 0, math.inf)

    def _update(self, p: Any, g: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
        lr = float(group["lr"])
        decay = 1 - lr * float(group["weight_decay"])
        for p_, g_ in pieces(p, g):
            step = g_.astype(accumulator(p.dtype))
            step *= lr
            _decay_and_subtract(p_, decay, step)


class AdamW(Optimizer):
    """m ← β₁·m + (1 - β₁)·g          v ← β₂·v + (1 - β₂)·g²
    p ← (1 - lr·weight_decay)·p - lr·m̂ / (√v̂ + eps)

    m̂ = m / (1 - β₁ᵗ), v̂ = v / (1 - β₂ᵗ), t = the steps that this parameter has taken, from
    1. The decay acts on the old weight; eps is added after the bias correction. m and v
    are of the parameter's shape and dtype (float32 for 16-bit floats) and made at its
    first step.

    Loshchilov and Hutter, "Decoupled weight decay regularization", 2019.

    >>> import tinygrad_helix as th
    >>> p = th.tensor([1.0], dtype="float64", requires_grad=True)
    >>> optimizer = th.optim.AdamW([p], lr=0.1, weight_decay=0.0)
    >>> (p * p).backward(); optimizer.step(); round(p.item(), 6)
    0.9
    """

    state_names = ("m", "v")

    def __init__(
        self,
        parameters: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(parameters, settings)

    def _check(self, group: dict[str, Any]) -> None:
        for name in ("lr", "eps", "weight_decay"):
            number("AdamW", name, group[name], 0, math.inf)
        betas = group["betas"]
        if not isinstance(betas, (tuple, list)) or len(betas) != 2:
            raise DTypeError(f"AdamW takes a pair of numbers as betas; got {betas!r}.")
        for beta in betas:
            number("AdamW", "betas", beta, 0, 1)

    def _update(self, p: Any, g: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
        xp = array_module(p)
        lr, eps, (beta1, beta2) = float(group["lr"]), float(group["eps"]), group["betas"]
        beta1, beta2 = float(beta1), float(beta2)
        step_size = lr / (1 - beta1 ** state["step"])
        correction2 = 1 / (1 - beta2 ** state["step"])
        decay = 1 - lr * float(group["weight_decay"])
        for p_, g_, m, v in pieces(p, g, state["m"], state["v"]):
            scratch = g_.astype(m.dtype)
            m *= beta1
            scratch *= 1 - beta1
            m += scratch
            v *= beta2
            xp.multiply(g_, g_, out=scratch, dtype=m.dtype)
            scratch *= 1 - beta2
            v += scratch
            xp.multiply(v, correction2, out=scratch)
            xp.sqrt(scratch, out=scratch)
            scratch += eps
            xp.divide(m, scratch, out=scratch)
            scratch *= step_size
            _decay_and_subtract(p_, decay, scratch)


def _decay_and_subtract(p: Any, decay: float, step: Any) -> None:
    """p ← decay·p - step, for a 16-bit p in the dtype of the step."""
    wide = p if p.dtype == step.dtype else p.astype(step.dtype)
    if decay != 1:
        wide *= decay
    wide -= step
    if wide is not p:
        p[...] = wide
