"""Layers: Linear, Embedding, RMSNorm.

Each says beforehand what the tape will keep of a call: `predict_saved(shape, dtype, needs)`
of its input is {`op.label`: bytes}, parameters aside, and equals what is counted.
"""

import math
from typing import Any

import numpy as np

from .. import ops
from ..create import default_generator
from ..errors import DTypeError, HelixError, ShapeError
from .module import Module, Parameter, float_dtype

__all__ = ["Embedding", "Linear", "RMSNorm"]


def size(layer: str, name: str, value: Any) -> int:
    """`value` as an int ≥ 1, or an error that names the layer and its argument."""
    try:
        n = value.__index__()
    except AttributeError:
        raise DTypeError(
            f"{layer} takes an int as {name}; got {type(value).__name__}."
        ) from None
    if n < 1:
        raise ShapeError(f"{layer} got {name}={n}. Give at least 1.")
    return n


def generator_or_default(layer: str, generator: Any) -> np.random.Generator:
    """`generator`, or the package's own, which `manual_seed` seeds."""
    if generator is None:
        return default_generator()
    if not isinstance(generator, np.random.Generator):
        raise DTypeError(
            f"{layer} takes a numpy.random.Generator; got {type(generator).__name__}. "
            "Make one with numpy.random.default_rng(seed)."
        )
    return generator


def _last_axis(layer: Module, x: Any, width: int) -> None:
    shape = getattr(x, "shape", None)
    if shape is None:
        raise DTypeError(
            f"{type(layer).__name__} takes a Tensor or an array; got {type(x).__name__}."
        )
    if not shape or shape[-1] != width:
        raise ShapeError(
            f"{type(layer).__name__} takes x of shape [..., {width}]; got {shape}. Make "
            f"its last axis {width} long."
        )


class Linear(Module):
    """y = x W + b: x [..., I], W [I, O], b [O] give y [..., O].

    W and b start from U(-1/√I, 1/√I), drawn in float64 so that every dtype starts from
    the same numbers. x has the dtype of W. The tape keeps x (its bytes) if W wants a
    gradient; b keeps nothing.

    Errors: ShapeError for another last axis, DTypeError for another dtype.

    >>> import tinygrad_helix as th
    >>> layer = th.nn.Linear(3, 2)
    >>> layer(th.ones(4, 3)).shape, layer.weight.shape
    ((4, 2), (3, 2))
    >>> layer.predict_saved((4, 3), "float32")
    {'matmul.a': 48}
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        dtype: Any = np.float32,
        generator: np.random.Generator | None = None,
        device: str | None = None,
    ) -> None:
        n_in = size("Linear", "in_features", in_features)
        n_out = size("Linear", "out_features", out_features)
        dtype = float_dtype("Linear", dtype)
        generator = generator_or_default("Linear", generator)
        bound = 1 / math.sqrt(n_in)
        self.weight = Parameter(
            generator.uniform(-bound, bound, (n_in, n_out)).astype(dtype), device=device
        )
        self.bias: Parameter | None = None
        if bias:
            self.bias = Parameter(
                generator.uniform(-bound, bound, n_out).astype(dtype), device=device
            )

    def forward(self, x: Any) -> Any:
        _last_axis(self, x, self.weight.shape[0])
        y = ops.matmul(x, self.weight)
        return y if self.bias is None else y + self.bias

    def predict_saved(
        self, shape: tuple[int, ...], dtype: Any, needs: bool = True
    ) -> dict[str, int]:
        """{label: bytes} kept of an input of `shape`; `needs`: it wants a gradient."""
        if not self.weight.requires_grad:
            return {}
        return {"matmul.a": math.prod(shape) * np.dtype(dtype).itemsize}


class Embedding(Module):
    """y = W[index]: index [...] of ints in 0..V-1, W [V, D], y [..., D].

    W starts from a normal distribution of mean 0 and standard deviation 0.02. The tape
    keeps the index (its own bytes: 8 a token as int64, 1 as uint8).

    Errors: DTypeError for an index that holds no ints, ShapeError for one out of range.

    >>> import tinygrad_helix as th
    >>> layer = th.nn.Embedding(256, 16)
    >>> layer(th.tensor([[1, 2, 3]])).shape
    (1, 3, 16)
    >>> layer.predict_saved((1, 3), "int64")
    {'embedding.index': 24}
    """

    def __init__(
        self,
        vocab: int,
        dim: int,
        *,
        dtype: Any = np.float32,
        generator: np.random.Generator | None = None,
        device: str | None = None,
    ) -> None:
        shape = size("Embedding", "vocab", vocab), size("Embedding", "dim", dim)
        dtype = float_dtype("Embedding", dtype)
        generator = generator_or_default("Embedding", generator)
        self.weight = Parameter(
            generator.normal(0.0, 0.02, shape).astype(dtype), device=device
        )

    def forward(self, index: Any) -> Any:
        return ops.embedding(self.weight, index)

    def predict_saved(
        self, shape: tuple[int, ...], dtype: Any, needs: bool = False
    ) -> dict[str, int]:
        """{label: bytes} kept of an index of `shape` and `dtype`."""
        if not self.weight.requires_grad:
            return {}
        return {"embedding.index": math.prod(shape) * np.dtype(dtype).itemsize}


class RMSNorm(Module):
    """y = x / √(mean x² + eps) · gain: x, y [..., D], gain [D] of ones at first.

    The mean is over the last axis, in float32 for 16-bit x. The tape keeps x if x wants a
    gradient, and x / √(…) if the gain does: two times x's bytes in training.

    Errors: ShapeError for another last axis, DTypeError for another dtype than the gain's.

    Zhang and Sennrich, "Root mean square layer normalization", 2019.

    >>> import tinygrad_helix as th
    >>> layer = th.nn.RMSNorm(8)
    >>> layer(th.full((2, 8), 300.0))[0, 0].item()
    1.0
    >>> layer.predict_saved((2, 8), "float32")
    {'rms.x': 64, 'mul.a': 64}
    """

    def __init__(
        self,
        dim: int,
        eps: float = 1e-5,
        *,
        dtype: Any = np.float32,
        device: str | None = None,
    ) -> None:
        n = size("RMSNorm", "dim", dim)
        self.eps = float(eps)
        if not 0 <= self.eps < math.inf:
            raise HelixError(f"RMSNorm got eps={eps}. Give a finite number, 0 or more.")
        self.gain = Parameter(np.ones(n, float_dtype("RMSNorm", dtype)), device=device)

    def forward(self, x: Any) -> Any:
        _last_axis(self, x, self.gain.shape[0])
        return ops.rms_norm(x, self.gain, self.eps)

    def predict_saved(
        self, shape: tuple[int, ...], dtype: Any, needs: bool = True
    ) -> dict[str, int]:
        """{label: bytes} kept of an input of `shape`; `needs`: it wants a gradient."""
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        saved = {"rms.x": nbytes} if needs else {}
        return saved | ({"mul.a": nbytes} if self.gain.requires_grad else {})
