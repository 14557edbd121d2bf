"""Shapes, dtypes, devices, and values of arguments: the explanations."""

from ..errors import (
    BackendUnavailableError,
    DeviceError,
    DTypeError,
    HelixError,
    ShapeError,
)
from .page import Explanation

__all__ = ["PAGES"]

PAGES: dict[str, Explanation] = {
    "shapes": Explanation(
        error=ShapeError,
        cause=(
            "The shapes do not go together. Elementwise ops line shapes up at their "
            "ends, and an axis must be equal, or 1, or missing; a product x @ w sums "
            "over the last axis of x and the last but one of w."
        ),
        lines="""\
import tinygrad_helix as th
x = th.ones(2, 3)
w = th.ones(4, 3)
x @ w""",
        fix="Transpose, reshape or index until they do; print the shapes on the way.",
        fixed_lines="""\
import tinygrad_helix as th
x = th.ones(2, 3)
w = th.ones(4, 3)
assert (x @ w.T).shape == (2, 4)""",
    ),
    "cotangent-shape": Explanation(
        error=ShapeError,
        cause="The cotangent that a sweep starts with has another shape than the output.",
        lines="""\
import tinygrad_helix as th
x = th.ones(2, 3, requires_grad=True)
(x * x).backward(th.ones(3))""",
        fix="Give a cotangent of exactly the output's shape; nothing is broadcast here.",
        fixed_lines="""\
import tinygrad_helix as th
x = th.ones(2, 3, requires_grad=True)
(x * x).backward(th.ones(2, 3))""",
    ),
    "one-element": Explanation(
        error=ShapeError,
        cause=(
            "item(), float(), int(), and `if` want exactly one number. A comparison "
            "of Tensors compares element by element and gives a Tensor of bools."
        ),
        lines="""\
import tinygrad_helix as th
x = th.tensor([1.0, -2.0])
if x > 0:
    print("positive")""",
        fix="Index or reduce it first, or choose element by element with where().",
        fixed_lines="""\
import tinygrad_helix as th
x = th.tensor([1.0, -2.0])
if x.min() > 0:
    print("positive")
th.where(x > 0, x, 0.0)""",
    ),
    "mixed-floats": Explanation(
        error=DTypeError,
        cause=(
            "One float type for all: products, layers, scans and blocks refuse to mix "
            "them. A float64 array, NumPy's default, would otherwise double the bytes "
            "of all that follows, unseen."
        ),
        lines="""\
import numpy as np
import tinygrad_helix as th
x = th.Tensor(np.ones((2, 3)))  # float64, as the array is
w = th.ones(3, 4)  # float32
x @ w""",
        fix="Convert one of them with astype().",
        fixed_lines="""\
import numpy as np
import tinygrad_helix as th
x = th.Tensor(np.ones((2, 3)), dtype="float32")
w = th.ones(3, 4)
x @ w""",
    ),
    "integer-gradient": Explanation(
        error=DTypeError,
        cause="Only floats can require a gradient, and a list of whole numbers makes ints.",
        lines="""\
import tinygrad_helix as th
th.tensor([1, 2], requires_grad=True)""",
        fix='Write floats, or dtype="float32".',
        fixed_lines="""\
import tinygrad_helix as th
th.tensor([1.0, 2.0], requires_grad=True)
th.tensor([1, 2], dtype="float32", requires_grad=True)""",
    ),
    "unknown-device": Explanation(
        error=DeviceError,
        cause='There are two devices, "cpu" and "cuda", and no other names or numbers.',
        lines="""\
import tinygrad_helix as th
th.ones(2, device="gpu")""",
        fix='Write device="cuda", or "cpu".',
        fixed_lines="""\
import tinygrad_helix as th
th.ones(2, device="cpu")""",
    ),
    "mixed-devices": Explanation(
        error=DeviceError,
        cause="An op got Tensors on different devices. Nothing is copied unasked.",
        lines="""\
import tinygrad_helix as th
x = th.ones(3, device="cuda")
x + th.ones(3)""",
        fix="Move one with to(device), or make both on the same device.",
        fixed_lines="""\
import tinygrad_helix as th
x = th.ones(3, device="cuda")
x + th.ones(3).to("cuda")""",
        needs="cuda",
    ),
    "no-device": Explanation(
        error=BackendUnavailableError,
        cause=(
            "This machine, or this installation, does not have it: no GPU, no CuPy, or "
            "one that does not fit the other; for a picture no matplotlib or Graphviz. "
            "The message says which."
        ),
        lines="""\
import tinygrad_helix as th
th.ones(2, device="cuda")""",
        fix=(
            "Install what the message names (`tinygrad-helix info` shows what is "
            "there), or fall back to the CPU."
        ),
        fixed_lines="""\
import tinygrad_helix as th
try:
    x = th.ones(2, device="cuda")
except th.errors.BackendUnavailableError:
    x = th.ones(2, device="cpu")""",
        needs="no cuda",
    ),
    "argument": Explanation(
        error=HelixError,
        cause=(
            "An argument has a value that the function does not take. HelixError is "
            "also the root of all errors of the package: `except HelixError` catches "
            "every one."
        ),
        lines="""\
import tinygrad_helix as th
th.dropout(th.ones(3), p=1.5)""",
        fix="The message names the argument, its value and what would do.",
        fixed_lines="""\
import tinygrad_helix as th
th.dropout(th.ones(3), p=0.5)""",
    ),
    "policy": Explanation(
        error=HelixError,
        cause=(
            "A policy says what a fused node keeps. It is one of the names keep9 "
            "(full), keep6 (lean), keep4, keep3, keep2, keep1 (checkpoint), a set "
            "Keep('x', ...), or a bound Budget(bytes) that the smallest set must fit."
        ),
        lines="""\
import tinygrad_helix as th
block = th.nn.HelixBlock(8, policy=th.Budget(10))
block(th.randn(1, 4, 8, requires_grad=True))  # 10 bytes do not hold even x""",
        fix="Name a policy that there is, or give the budget at least the bytes of x.",
        fixed_lines="""\
import tinygrad_helix as th
block = th.nn.HelixBlock(8, policy=th.Budget("1kB"))
block(th.randn(1, 4, 8, requires_grad=True))""",
    ),
}
