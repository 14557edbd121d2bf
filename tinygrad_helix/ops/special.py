"""The error function, which NumPy lacks: erf and erfc."""

import math
from typing import Any

import numpy as np

from ..op import Input, Op, apply
from .choice import clip
from .elementwise import exp
from .operands import by_piece, floating, wide

__all__ = ["erf", "erfc", "gauss"]

# e^(z²) · erfc(z) · (1 + z) for z ≥ 0, as a polynomial in t = (z - 3) / (z + 3), which
# maps z = 0..∞ to -1..1: the interpolant of its values, of 60 digits, at 60 Chebyshev
# points, cut where what is left is below 3e-17 (float64) or 1e-8 (float32). With 3 in the
# map no other takes fewer terms in float32, nor more than one fewer in float64.
_TAIL = {
    np.dtype(np.float64): (
        0.7160046047255597, -0.23092733308380917, 0.09902075367945344,
        -0.010235388899012888, -0.02380391310930422, 0.021957764012793677,
        -0.009750689280977927, 0.0016185691254892154, 0.0006458140905479606,
        -0.00036728847066616046, -2.0550971009164816e-05, 5.6119347300494525e-05,
        -1.5166647076921398e-06, -8.99002256263096e-06, 2.6603442503591374e-07,
        1.5887117808490867e-06, 5.234210702739828e-08, -2.934111944342301e-07,
        -3.822498481380302e-08, 5.097096680939509e-08, 1.0423919369055346e-08,
        -7.063922718222641e-09, -1.2711506689522682e-09, 5.567150863376234e-10,
    ),
    np.dtype(np.float32): (
        0.7160046050098049, -0.23092694237554287, 0.09902073234981336,
        -0.010243340563419946, -0.023803649974768935, 0.02200348834348748,
        -0.009751904784118822, 0.001509279621886654, 0.0006484615338065875,
        -0.0002477261386855971, -2.3452139633280394e-05,
    ),
}  # fmt: skip

# erf(x) / x around 0, as a polynomial in x²: its Taylor series. Up to |x| = 1/2 these
# terms are enough for either dtype.
_CENTRE = {
    np.dtype(dtype): tuple(
        2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1))
        for n in range(terms)
    )
    for dtype, terms in ((np.float64, 12), (np.float32, 7))
}

_BOUND = 28.0  # e^(-28²) is 0 in float64, and x² does not overflow up to here


def _polynomial(xp: Any, t: Any, coefficients: tuple[float, ...]) -> Any:
    """Σ cₙ tⁿ by Horner's rule, in one new array."""
    y = xp.full_like(t, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        y *= t
        y += c
    return y


def _erfc_of_magnitude(xp: Any, x: Any) -> Any:
    """erfc(|x|), to 4 units in the last place and x² more."""
    z = xp.minimum(xp.abs(x), _BOUND)
    y = _polynomial(xp, xp.asarray((z - 3) / (z + 3)), _TAIL[x.dtype])
    return y * xp.exp(-(z * z)) / (1 + z)


def gauss(x: Any) -> Any:
    """e^(-x²) of a Tensor or array, recorded op by op; 16-bit floats in float32."""
    z = clip(wide(x), -_BOUND, _BOUND)
    return exp(-(z * z))


class Erf(Op):
    """y = 2/√π · ∫₀ˣ e^(-t²) dt      dx = dy · 2/√π · e^(-x²)      keeps x."""

    saves = {"x": Input(0)}

    @staticmethod
    def forward(xp, x, *, needs):
        def compute(z):
            far = xp.sign(z) * (1 - _erfc_of_magnitude(xp, z))
            near = xp.clip(z, -0.5, 0.5)
            near = near * _polynomial(xp, xp.asarray(near * near), _CENTRE[z.dtype])
            return xp.where(xp.abs(z) < 0.5, near, far)

        return by_piece(xp, x, compute), {"x": x}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        return (dy * (gauss(saved["x"]) * (2 / math.sqrt(math.pi))),)


def erf(x: Any) -> Any:
    """2/√π · ∫₀ˣ e^(-t²) dt, to 2 units in the last place. Keeps x.

    Up to |x| = 1/2 the Taylor series; beyond, 1 - erfc(|x|).
    """
    return apply(Erf, floating(x))


class Erfc(Op):
    """y = 1 - erf(x)      dx = -dy · 2/√π · e^(-x²)      keeps x."""

    saves = {"x": Input(0)}

    @staticmethod
    def forward(xp, x, *, needs):
        def compute(z):
            tail = _erfc_of_magnitude(xp, z)
            return xp.where(z < 0, 2 - tail, tail)

        return by_piece(xp, x, compute), {"x": x}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        return (dy * (gauss(saved["x"]) * (-2 / math.sqrt(math.pi))),)


def erfc(x: Any) -> Any:
    """1 - erf(x), without the cancellation: it has its digits where it is small. Keeps x.

    For x ≥ 0 it is e^(-x²) times a smooth function that falls like 1/x, and that is a
    polynomial of (x - 3) / (x + 3); for x < 0 it is 2 - erfc(-x). The relative error is
    at most 4 + x² units in the last place.
    """
    return apply(Erfc, floating(x))
