"""Random ops: dropout."""

from typing import Any

import numpy as np

from ..backend import backend_of
from ..create import default_generator
from ..errors import DTypeError, HelixError
from ..op import Constant, Op, apply
from .operands import floating, plain

__all__ = ["dropout"]


class Dropout(Op):
    """y = x · scale where mask, else 0      dx = dy · scale where mask, else 0
    keeps mask, one byte an element."""

    saves = {"mask": Constant()}

    @staticmethod
    def forward(xp, x, mask, *, needs, scale):
        return xp.where(mask, x * scale, 0), {"mask": mask}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, scale):
        return apply(Dropout, dy, saved["mask"], scale=scale), None


def dropout(
    x: Any,
    p: float = 0.5,
    training: bool = True,
    generator: np.random.Generator | None = None,
) -> Any:
    """x with each element 0 with probability p, else x / (1 - p), so that its mean stays.

    Without `training`, and for p = 0, x itself. The mask is drawn from `generator` (the
    package's own by default, see `manual_seed`), the same for every dtype. Keeps the mask,
    one byte an element.

    Srivastava et al., "Dropout", 2014.
    """
    if isinstance(p, bool) or not isinstance(p, (int, float, np.integer, np.floating)):
        raise DTypeError(f"dropout takes a number as p; got {type(p).__name__}.")
    if not 0 <= p <= 1:
        raise HelixError(f"dropout got p={p!r}, a probability. Give one in 0..1.")
    if generator is not None and not isinstance(generator, np.random.Generator):
        raise DTypeError(
            "dropout takes a numpy.random.Generator as generator; got "
            f"{type(generator).__name__}. Give numpy.random.default_rng(0), say."
        )
    if not training or p == 0:
        return x
    x = floating(x)
    rng = generator if generator is not None else default_generator()
    mask = backend_of(plain(x)).asarray(rng.random(x.shape, np.float32) >= p)
    return apply(Dropout, x, mask, scale=1 / (1 - p) if p < 1 else 0.0)
