"""SGD, Adam and AdamW: each a formula and its few lines."""

import math
from typing import Any

from ..backend import array_module
from ..errors import DTypeError, HelixError
from ..ops.operands import accumulator, pieces
from .optimizer import Optimizer, number

__all__ = ["SGD", "Adam", "AdamW"]


class SGD(Optimizer):
    """m ← momentum·m + g          p ← (1 - lr·weight_decay)·p - lr·m

    With `nesterov=True` p ← (1 - lr·weight_decay)·p - lr·(g + momentum·m). Without
    momentum m is g itself, and no state is kept but the number of steps; otherwise m is
    of the parameter's shape and dtype (float32 for 16-bit floats), and 0 before its first
    step.

    The decay is decoupled: it shrinks the weight and enters neither g nor m. (PyTorch adds
    weight_decay·p to g; the two are the same only without momentum.)

    Errors: HelixError for a hyperparameter out of its range (momentum is in [0, 1)) or for
    nesterov without momentum, DTypeError for one of the wrong type.

    Sutskever, Martens, Dahl and Hinton, "On the importance of initialization and momentum
    in deep learning", 2013, with the rate outside m, as PyTorch has it.

    >>> import tinygrad_helix as th
    >>> p = th.tensor([1.0], requires_grad=True)
    >>> optimizer = th.optim.SGD([p], lr=0.5)
    >>> (p * p).backward(); optimizer.step(); p.item()
    0.0
    """

    def __init__(
        self,
        parameters: Any,
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        *,
        nesterov: bool = False,
    ) -> None:
        settings = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(parameters, settings | {"nesterov": nesterov})

    def _check(self, group: dict[str, Any]) -> None:
        for name in ("lr", "weight_decay"):
            number("SGD", name, group[name], 0, math.inf)
        number("SGD", "momentum", group["momentum"], 0, 1)
        if not isinstance(group["nesterov"], bool):
            raise DTypeError(f"SGD takes a bool as nesterov; got {group['nesterov']!r}.")
        if group["nesterov"] and not group["momentum"]:
            raise HelixError(
                "SGD got nesterov=True with momentum=0.0, which leaves nothing to look "
                "ahead along. Give a momentum above 0, or drop nesterov."
            )

    def _state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("m",) if group["momentum"] else ()

    def _update(self, p: Any, g: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
        xp = array_module(p)
        lr, momentum = float(group["lr"]), float(group["momentum"])
        decay = 1 - lr * float(group["weight_decay"])
        for p_, g_, *kept in pieces(p, g, *([state["m"]] if momentum else [])):
            step = g_.astype(accumulator(p.dtype))
            if momentum:
                (m,) = kept
                m *= momentum
                m += step
                if group["nesterov"]:
                    step += momentum * m
                else:
                    xp.copyto(step, m)
            step *= lr
            _decay_and_subtract(p_, decay, step)


class _Adam(Optimizer):
    """What Adam and AdamW share: m, v and the step along m̂ / (√v̂ + eps)."""

    def _check(self, group: dict[str, Any]) -> None:
        name = type(self).__name__
        for key, value in group.items():
            if key not in ("params", "betas"):
                number(name, key, value, 0, math.inf)
        betas = group["betas"]
        if not isinstance(betas, (tuple, list)) or len(betas) != 2:
            raise DTypeError(f"{name} takes a pair of numbers as betas; got {betas!r}.")
        for beta in betas:
            number(name, "betas", beta, 0, 1)

    def _state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("m", "v")

    def _update(self, p: Any, g: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
        xp = array_module(p)
        lr, eps, (beta1, beta2) = float(group["lr"]), float(group["eps"]), group["betas"]
        beta1, beta2 = float(beta1), float(beta2)
        step_size = lr / (1 - beta1 ** state["step"])
        correction2 = 1 / (1 - beta2 ** state["step"])
        decay = 1 - lr * float(group.get("weight_decay", 0.0))
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


class Adam(_Adam):
    """m ← β₁·m + (1 - β₁)·g          v ← β₂·v + (1 - β₂)·g²
    p ← p - lr·m̂ / (√v̂ + eps)

    m̂ = m / (1 - β₁ᵗ), v̂ = v / (1 - β₂ᵗ), t = the steps that this parameter has taken, from
    1; eps is added after the bias correction. m and v are of the parameter's shape and
    dtype (float32 for 16-bit floats) and made at its first step.

    There is no weight decay, as in the paper: AdamW has it decoupled. (PyTorch's Adam adds
    weight_decay·p to g; to have that, add it to the loss.)

    Kingma and Ba, "Adam: a method for stochastic optimization", 2015.

    >>> import tinygrad_helix as th
    >>> p = th.tensor([1.0], dtype="float64", requires_grad=True)
    >>> optimizer = th.optim.Adam([p], lr=0.1)
    >>> (p * p).backward(); optimizer.step(); round(p.item(), 6)
    0.9
    """

    def __init__(
        self,
        parameters: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps})


class AdamW(_Adam):
    """m ← β₁·m + (1 - β₁)·g          v ← β₂·v + (1 - β₂)·g²
    p ← (1 - lr·weight_decay)·p - lr·m̂ / (√v̂ + eps)

    m̂, v̂, t and the state are Adam's. The decay acts on the old weight, not on the one that
    was just stepped, and never enters g.

    Loshchilov and Hutter, "Decoupled weight decay regularization", 2019.

    >>> import tinygrad_helix as th
    >>> p = th.tensor([1.0], dtype="float64", requires_grad=True)
    >>> optimizer = th.optim.AdamW([p], lr=0.1, weight_decay=0.5)
    >>> (p * p).backward(); optimizer.step(); round(p.item(), 6)
    0.85
    """

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


def _decay_and_subtract(p: Any, decay: float, step: Any) -> None:
    """p ← decay·p - step, for a 16-bit p in the dtype of the step."""
    wide = p if p.dtype == step.dtype else p.astype(step.dtype)
    if decay != 1:
        wide *= decay
    wide -= step
    if wide is not p:
        p[...] = wide
