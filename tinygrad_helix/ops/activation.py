"""Activations: relu, tanh, softplus, gelu (sigmoid and silu are in logistic.py)."""

import math
from typing import Any

from ..errors import HelixError
from ..op import Input, Op, Output, apply
from .choice import clip, greater, select
from .logistic import sigmoid
from .operands import by_piece, floating, wide
from .special import erfc, gauss

__all__ = ["gelu", "relu", "softplus", "tanh"]


class Relu(Op):
    """y = max(x, 0)      dx = dy where y > 0, else 0      keeps y."""

    saves = {"y": Output()}

    @staticmethod
    def forward(xp, x, *, needs):
        y = xp.maximum(x, 0)
        return y, {"y": y}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        return (select(greater(saved["y"], 0), dy, 0.0),)


def relu(x: Any) -> Any:
    """max(x, 0). At 0 its gradient is 0. Keeps its result."""
    return apply(Relu, x)


class Tanh(Op):
    """y = tanh x      dx = dy · (1 - y²)      keeps y."""

    saves = {"y": Output()}

    @staticmethod
    def forward(xp, x, *, needs):
        y = xp.tanh(x)
        return y, {"y": y}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        y = saved["y"]
        return (dy * (1 - y * y),)


def tanh(x: Any) -> Any:
    """tanh x. Keeps its result."""
    return apply(Tanh, floating(x))


class Softplus(Op):
    """y = ln(1 + e^x) = max(x, 0) + ln(1 + e^(-|x|))
    dx = dy · sigmoid(x)
    keeps x."""

    saves = {"x": Input(0)}

    @staticmethod
    def forward(xp, x, *, needs):
        return xp.maximum(x, 0) + xp.log1p(xp.exp(-xp.abs(x))), {"x": x}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        return (dy * sigmoid(saved["x"]),)


def softplus(x: Any) -> Any:
    """ln(1 + e^x), without overflow for any x. Keeps x."""
    return apply(Softplus, floating(x))


class Gelu(Op):
    """y = x · Φ(x), Φ(x) = erfc(-x/√2) / 2, the share of N(0, 1) below x
    dx = dy · (Φ(x) + x · e^(-x²/2) / √2π)
    keeps x."""

    saves = {"x": Input(0)}

    @staticmethod
    def forward(xp, x, *, needs):
        y = by_piece(xp, x, lambda z: 0.5 * z * erfc(-math.sqrt(0.5) * z))
        return y, {"x": x}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        x = wide(saved["x"])
        share = 0.5 * erfc(-math.sqrt(0.5) * x)
        density = gauss(math.sqrt(0.5) * x) / math.sqrt(2 * math.pi)
        return (dy * (share + x * density),)


# Beyond, tanh in the formula below is ±1 in float64 as well, and x³ might overflow.
_GELU_BOUND = 10.0


class GeluTanh(Op):
    """y = x/2 · (1 + t), t = tanh u, u = √(2/π) · (x + 0.044715 · x³)
    dx = dy/2 · (1 + t + x · (1 - t²) · u'),   u' = √(2/π) · (1 + 3 · 0.044715 · x²)
    keeps x."""

    saves = {"x": Input(0)}

    @staticmethod
    def forward(xp, x, *, needs):
        y = by_piece(xp, x, lambda z: 0.5 * z * (1 + _gelu_tanh(z)[0]))
        return y, {"x": x}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        x = wide(saved["x"])
        t, change = _gelu_tanh(x)
        return (dy * (0.5 * (1 + t + (1 - t * t) * change)),)


def _gelu_tanh(x: Any) -> tuple[Any, Any]:
    """t and x · u' of GeluTanh; far out, where 1 - t² is 0, the latter stays bounded."""
    z = clip(x, -_GELU_BOUND, _GELU_BOUND)
    c, a = math.sqrt(2 / math.pi), 0.044715
    cube = a * (z * z * z)
    return tanh(c * (z + cube)), c * (z + 3 * cube)


def gelu(x: Any, approximate: str = "none") -> Any:
    """x · Φ(x), with Φ(x) = (1 + erf(x/√2)) / 2, the distribution function of N(0, 1).

    Φ is computed as erfc(-x/√2) / 2 (see `erfc`), which keeps its digits where x is far
    below 0 and Φ small. `approximate="tanh"` takes x/2 · (1 + tanh(√(2/π) · (x + 0.044715 ·
    x³))) instead, from which it differs by up to 5e-4. Keeps x.

    Hendrycks and Gimpel, "Gaussian error linear units", 2016.
    """
    if approximate not in ("none", "tanh"):
        raise HelixError(
            f'gelu got approximate={approximate!r}. Use "none" (exact) or "tanh".'
        )
    return apply(Gelu if approximate == "none" else GeluTanh, floating(x))
