"""One table of ops: a row per op and way of calling it, for the checks of test_ops.py.

`fn` and `reference` get the same inputs, as Tensors and as arrays; the reference is NumPy's
or SciPy's. `torch` is the same in PyTorch, for the tests that compare with it. `saved`
says what a recorded call keeps: {label: number of floats}, or {label: Bytes(n)} where the
size does not follow the dtype.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import special

import tinygrad_helix as th

Make = Callable[[np.random.Generator], list[Any]]


class Bytes(int):
    """A size in bytes, whatever the dtype of the floats."""


@dataclass(frozen=True)
class OpInfo:
    name: str
    fn: Callable[..., Any]
    inputs: Make
    reference: Callable[..., Any]
    torch: Callable[..., Any] | None
    saved: dict[str, int] = field(default_factory=dict)
    edges: tuple[Make, ...] = ()  # zero-sized and 0-d inputs
    broadcasts: tuple[Make, ...] = ()  # inputs whose shapes differ
    audit: Make | None = None  # where the audit needs values that matter more
    gradient: bool = True
    view: bool = False  # the result shares the input's memory
    half: float = 2e-3  # tolerance in float16

    def __repr__(self) -> str:
        return self.name

    def sample(self, dtype: Any = np.float64, make: Make | None = None) -> list[Any]:
        """The inputs as arrays: floats of `dtype`, the rest as it is."""
        values = (make or self.inputs)(np.random.default_rng(list(self.name.encode())))
        return [
            np.asarray(v, dtype) if isinstance(v, np.ndarray) and v.dtype.kind == "f" else v
            for v in values
        ]

    def tensors(self, dtype: Any = np.float64, make: Make | None = None) -> list[Any]:
        """The inputs as Tensors, of which all floats require a gradient."""
        return as_tensors(self.sample(dtype, make))


def as_tensors(arrays: Sequence[Any]) -> list[Any]:
    return [
        th.Tensor(a, requires_grad=a.dtype.kind == "f") if isinstance(a, np.ndarray) else a
        for a in arrays
    ]


def uniform(*shapes: tuple[int, ...], low: float = -2.0, high: float = 2.0) -> Make:
    return lambda rng: [rng.uniform(low, high, shape) for shape in shapes]


def also(make: Make, *values: Any) -> Make:
    """The inputs of `make` and then `values`."""
    return lambda rng: [*make(rng), *values]


N = 12  # values in the sample of shape (3, 4)
POSITIVE = {"low": 0.5, "high": 2.0}


def unary(
    name: str,
    reference: Callable[..., Any],
    torch: Callable[..., Any],
    saved: str | None,
    low: float = -2.0,
    high: float = 2.0,
    half: float = 2e-3,
) -> OpInfo:
    shapes = [(0,), (3, 0), (), (1,)]
    return OpInfo(
        name,
        getattr(th, name),
        uniform((3, 4), low=low, high=high),
        reference,
        torch,
        {f"{name}.{saved}": N} if saved else {},
        tuple(uniform(s, low=low, high=high) for s in shapes),
        half=half,
    )


def binary(
    name: str,
    reference: Callable[..., Any],
    torch: Callable[..., Any],
    saved: dict[str, int] | None = None,
    low: float = -2.0,
    high: float = 2.0,
    audit: Make | None = None,
) -> OpInfo:
    bounds = {"low": low, "high": high}
    edges = [((0,), (0,)), ((), ()), ((3, 0), (3, 0))]
    mixed = [((3, 4), (4,)), ((), (2, 3)), ((2, 1), (1, 3)), ((3, 1, 2), (4, 1)),
             ((3, 1), (0,)), ((1,), ())]  # fmt: skip
    return OpInfo(
        name,
        getattr(th, name),
        uniform((3, 4), (3, 4), **bounds),
        reference,
        torch,
        {f"{name}.{label}": n for label, n in (saved or {}).items()},
        tuple(uniform(*shapes, **bounds) for shapes in edges),
        tuple(uniform(*shapes, **bounds) for shapes in mixed),
        audit,
    )


def choose(rng: np.random.Generator) -> list[Any]:
    condition = np.array([[True, False, True, False]] * 3)
    return [condition, *uniform((3, 4), (3, 4))(rng)]


def powers(rng: np.random.Generator) -> list[Any]:
    base = np.array([0.0, 1.5, 0.0, 2.5])  # only at 0 does b matter for db
    return [np.stack([base, base[::-1]]), rng.uniform(1.5, 3.0, (2, 4))]


def rms(x: Any, gain: Any = 1.0, eps: float = 1e-5) -> Any:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * gain


def nll(x: Any, target: Any) -> Any:
    picked = np.take_along_axis(special.log_softmax(x, axis=-1), target[..., None], -1)
    return -picked.mean()


def scan(a: Any, b: Any, h0: Any = None, reset: Any = None) -> tuple[Any, Any]:
    h = np.zeros(b.shape)
    carry = np.zeros(b[:, 0].shape) if h0 is None else h0
    for t in range(b.shape[1]):
        gate = a[:, t] if reset is None else np.where(reset[:, t, None], 0.0, a[:, t])
        carry = gate * carry + b[:, t]
        h[:, t] = carry
    return h, carry


def torch_scan(torch: Any, a: Any, b: Any, h0: Any = None, reset: Any = None) -> Any:
    carry = torch.zeros_like(b[:, 0]) if h0 is None else h0
    steps = []
    for t in range(b.shape[1]):
        gate = a[:, t] if reset is None else a[:, t] * ~reset[:, t, None]
        carry = gate * carry + b[:, t]
        steps.append(carry)
    return torch.stack(steps, 1) if steps else b * 1, carry


RESET = np.array([[False, False, True, False, False], [True, False, False, True, False]])
LATER = np.array([[False] * 5, [False, False, True, False, False]])
LABELS = np.array([[2, 0, 4], [1, 1, 3]])
PART = (slice(1, None), ..., None, slice(None, None, -2))
ROWS = np.array([[3, 0, 3], [5, 5, 1]])

ARITHMETIC = [
    binary("add", np.add, lambda torch, a, b: a + b),
    binary("sub", np.subtract, lambda torch, a, b: a - b),
    binary("mul", np.multiply, lambda torch, a, b: a * b, {"a": N, "b": N}),
    binary("div", np.divide, lambda torch, a, b: a / b, {"a": N, "b": N}, **POSITIVE),
    binary("pow", np.power, lambda torch, a, b: a**b, {"a": N, "b": N, "y": N},
           audit=powers, **POSITIVE),
    binary("maximum", np.maximum, lambda torch, a, b: torch.maximum(a, b),
           {"order": Bytes(N)}),
    binary("minimum", np.minimum, lambda torch, a, b: torch.minimum(a, b),
           {"order": Bytes(N)}),
    OpInfo("mul by itself", lambda x: x * x, uniform((3, 4)), lambda x: x * x,
           lambda torch, x: x * x, {"mul.a": N}),
    OpInfo("mul by a number", lambda x: x * 2.5, uniform((3, 4)), lambda x: x * 2.5,
           lambda torch, x: x * 2.5),
    OpInfo("number over", lambda x: 2.5 / x, uniform((3, 4), **POSITIVE),
           lambda x: 2.5 / x, lambda torch, x: 2.5 / x, {"div.b": N}),
    OpInfo("pow to a number", lambda x: x**3, uniform((3, 4)), lambda x: x**3,
           lambda torch, x: x**3, {"pow.a": N}, half=5e-3),
    OpInfo("number to a power", lambda x: 2.0**x, uniform((3, 4)), lambda x: 2.0**x,
           lambda torch, x: 2.0**x, {"pow.y": N}),
    OpInfo("where", th.where, choose, np.where, lambda torch, c, a, b: torch.where(c, a, b),
           {"where.condition": Bytes(N)},
           (also(lambda rng: [np.zeros((2, 0), bool)], np.ones((2, 0)), np.ones((2, 0))),
            also(lambda rng: [np.array(True)], np.array(1.0), np.array(2.0))),
           (also(lambda rng: [np.array([True, False, True])], np.ones((2, 1)), np.ones(3)),
            also(lambda rng: [np.array([[True], [False]])], np.ones(()), np.ones((1, 3))))),
]  # fmt: skip

FUNCTIONS = [
    unary("neg", np.negative, lambda torch, x: -x, None),
    unary("exp", np.exp, lambda torch, x: x.exp(), "y"),
    unary("log", np.log, lambda torch, x: x.log(), "x", **POSITIVE),
    unary("sqrt", np.sqrt, lambda torch, x: x.sqrt(), "y", **POSITIVE),
    unary("rsqrt", lambda x: 1 / np.sqrt(x), lambda torch, x: x.rsqrt(), "y", **POSITIVE,
          half=4e-3),
    unary("reciprocal", np.reciprocal, lambda torch, x: x.reciprocal(), "y", **POSITIVE,
          half=4e-3),
    unary("sigmoid", special.expit, lambda torch, x: x.sigmoid(), "y", -6.0, 6.0),
    unary("silu", lambda x: x * special.expit(x),
          lambda torch, x: torch.nn.functional.silu(x), "x", -6.0, 6.0),
    unary("tanh", np.tanh, lambda torch, x: x.tanh(), "y", half=8e-3),
    unary("softplus", lambda x: np.logaddexp(0, x),
          lambda torch, x: torch.nn.functional.softplus(x), "x", -6.0, 6.0),
]  # fmt: skip


def reduction(name: str, torch_name: str, axis: Any, keepdims: bool, size: int) -> OpInfo:
    ours, theirs = getattr(th, name), getattr(np, name)

    def torch(torch: Any, x: Any) -> Any:
        dim = tuple(range(x.ndim)) if axis is None else axis
        return getattr(torch, torch_name)(x, dim=dim, keepdim=keepdims)

    return OpInfo(
        f"{name} {axis} {keepdims}",
        lambda x: ours(x, axis=axis, keepdims=keepdims),
        uniform((2, 3, 4)),
        lambda x: theirs(x, axis=axis, keepdims=keepdims),
        None if axis == () else torch,  # there an empty tuple means all axes
        {"max.x": 24, "max.y": size} if name == "max" else {},
        (uniform(()),) if axis is None else (),
    )


def softmax(x: Any, axis: int = -1) -> Any:
    return special.softmax(x, axis=axis) if x.size else x.copy()


def log_softmax(x: Any) -> Any:
    return special.log_softmax(x, axis=-1) if x.size else x.copy()


REDUCTIONS = [
    reduction(name, torch_name, axis, keepdims, size)
    for name, torch_name in (("sum", "sum"), ("mean", "mean"), ("max", "amax"))
    for axis, keepdims, size in (
        (None, False, 1),
        (0, False, 12),
        (-1, True, 6),
        ((0, 2), False, 3),
        ((), False, 24),
    )
] + [
    OpInfo("sum of nothing", lambda x: th.sum(x, axis=0), uniform((0, 3)),
           lambda x: x.sum(axis=0), lambda torch, x: x.sum(0)),
    OpInfo("softmax", th.softmax, uniform((3, 4)),
           softmax, lambda torch, x: x.softmax(-1),
           {"softmax.y": N}, (uniform((0, 3)), uniform((3, 0)))),
    OpInfo("softmax 0", lambda x: th.softmax(x, axis=0), uniform((3, 4)),
           lambda x: softmax(x, 0), lambda torch, x: x.softmax(0),
           {"softmax.y": N}),
    OpInfo("log_softmax", th.log_softmax, uniform((3, 4)),
           log_softmax, lambda torch, x: x.log_softmax(-1),
           {"log_softmax.y": N}, (uniform((0, 3)), uniform((3, 0)))),
    OpInfo("cross_entropy", th.cross_entropy, also(uniform((2, 3, 5)), LABELS), nll,
           lambda torch, x, t: torch.nn.functional.cross_entropy(
               x.reshape(-1, 5), t.reshape(-1)),
           {"cross_entropy.logits": 30, "cross_entropy.target": Bytes(48)},
           (also(uniform((5,)), np.array(2)),)),
    OpInfo("rms_norm", th.rms_norm, uniform((3, 4)), rms,
           lambda torch, x: torch.nn.functional.rms_norm(x, x.shape[-1:], eps=1e-5),
           {"rms.x": N}, (uniform((0, 4)), uniform((1,)))),
    OpInfo("rms_norm with gain", th.rms_norm, uniform((2, 3, 4), (4,)), rms,
           lambda torch, x, g: torch.nn.functional.rms_norm(x, x.shape[-1:], g, 1e-5),
           {"rms.x": 24, "mul.a": 24, "mul.b": 4}, (uniform((0, 4), (4,)),), half=4e-3),
]  # fmt: skip

SHAPES = [
    OpInfo("reshape", lambda x: th.reshape(x, 2, -1), uniform((3, 4)),
           lambda x: x.reshape(2, -1), lambda torch, x: x.reshape(2, -1), view=True),
    OpInfo("reshape to 0-d", lambda x: th.reshape(x, ()), uniform((1, 1)),
           lambda x: x.reshape(()), lambda torch, x: x.reshape(()),
           edges=(uniform(()),), view=True),
    OpInfo("transpose", th.transpose, uniform((2, 3, 4)), np.transpose,
           lambda torch, x: x.permute(tuple(range(x.ndim))[::-1]),
           edges=(uniform(()), uniform((0, 2))), view=True),
    OpInfo("transpose 1 -1 0", lambda x: th.transpose(x, 1, -1, 0), uniform((2, 3, 4)),
           lambda x: x.transpose(1, 2, 0), lambda torch, x: x.permute(1, 2, 0), view=True),
    OpInfo("broadcast_to", lambda x: th.broadcast_to(x, 2, 3, 4), uniform((3, 1)),
           lambda x: np.broadcast_to(x, (2, 3, 4)), lambda torch, x: x.expand(2, 3, 4),
           edges=(uniform(()),), view=True),
    OpInfo("cat", lambda *xs: th.cat(xs, axis=1), uniform((2, 3), (2, 1), (2, 4)),
           lambda *xs: np.concatenate(xs, axis=1), lambda torch, *xs: torch.cat(xs, 1),
           edges=(uniform((2, 0), (2, 3)), uniform((0, 1), (0, 2)))),
    OpInfo("stack", lambda *xs: th.stack(xs, axis=-1), uniform((2, 3), (2, 3)),
           lambda *xs: np.stack(xs, axis=-1), lambda torch, *xs: torch.stack(xs, -1),
           edges=(uniform((), ()), uniform((0,), (0,)))),
    OpInfo("split", lambda x: th.split(x, 2, axis=1), uniform((3, 5)),
           lambda x: tuple(np.split(x, [2, 4], axis=1)), lambda torch, x: x.split(2, 1),
           view=True),
    OpInfo("split by sizes", lambda x: th.split(x, [0, 3, 2], axis=0), uniform((5, 2)),
           lambda x: tuple(np.split(x, [0, 3], axis=0)),
           lambda torch, x: x.split([0, 3, 2], 0), edges=(), view=True),
    OpInfo("astype", lambda x: th.astype(x, np.float32), uniform((3, 4)),
           lambda x: x.astype(np.float32), None, edges=(uniform(()), uniform((0,)))),
    OpInfo("getitem", lambda x: th.getitem(x, PART), uniform((3, 4)),
           lambda x: x[PART], None, edges=(uniform((0, 4)),), view=True),
    OpInfo("getitem int", lambda x: th.getitem(x, (-1, 2)), uniform((3, 4)),
           lambda x: x[-1, 2], lambda torch, x: x[-1, 2]),
    OpInfo("getitem rows", th.getitem, also(uniform((6, 4)), ROWS),
           lambda x, i: x[i], lambda torch, x, i: x[i], {"getitem.index0": Bytes(48)},
           (also(uniform((6, 0)), ROWS), also(uniform((3,)), np.zeros((0,), np.int64)))),
    OpInfo("getitem two arrays", lambda x, i, j: th.getitem(x, (i, slice(None), j)),
           also(uniform((3, 2, 4)), np.array([0, 0, 2]), np.array([[1], [3]])),
           lambda x, i, j: x[i, :, j], lambda torch, x, i, j: x[i, :, j],
           {"getitem.index0": Bytes(24), "getitem.index1": Bytes(16)}),
    OpInfo("getitem mask", th.getitem,
           also(uniform((3, 4)), np.arange(12).reshape(3, 4) % 3 == 0),
           lambda x, m: x[m], lambda torch, x, m: x[m], {"getitem.index0": Bytes(12)}),
    OpInfo("embedding", th.embedding, also(uniform((6, 4)), ROWS), lambda w, i: w[i],
           lambda torch, w, i: torch.nn.functional.embedding(i, w),
           {"embedding.index": Bytes(48)},
           (also(uniform((6, 0)), ROWS), also(uniform((6, 2)), np.zeros((0, 3), int)),
            also(uniform((6, 2)), np.array(4)))),
]  # fmt: skip

PRODUCTS = [
    OpInfo(f"matmul {a} {b}", th.matmul, uniform(a, b), np.matmul,
           lambda torch, a, b: a @ b,
           {"matmul.a": int(np.prod(a)), "matmul.b": int(np.prod(b))}, half=8e-3)
    for a, b in (((3, 4), (4, 2)), ((4,), (4,)), ((4,), (4, 2)), ((3, 4), (4,)),
                 ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((2, 1, 3, 4), (5, 4, 2)),
                 ((5, 3, 4), (4,)), ((4,), (5, 4, 3)))
] + [
    OpInfo("matmul of nothing", th.matmul, uniform((3, 0), (0, 2)), np.matmul,
           lambda torch, a, b: a @ b, {"matmul.a": 0, "matmul.b": 0},
           (uniform((0, 4), (4, 2)), uniform((2, 0, 4), (4, 0)))),
]  # fmt: skip

SCANS = [
    OpInfo("gated_scan", th.gated_scan, uniform((2, 5, 3), (2, 5, 3), low=-1, high=1), scan,
           torch_scan, {"gated_scan.a": 30, "gated_scan.h": 30},
           (uniform((0, 5, 3), (0, 5, 3)), uniform((2, 5, 0), (2, 5, 0)),
            uniform((2, 1, 3), (2, 1, 3))), half=8e-3),
    OpInfo("gated_scan h0", th.gated_scan,
           uniform((2, 5, 3), (2, 5, 3), (2, 3), low=-1, high=1), scan, torch_scan,
           {"gated_scan.a": 30, "gated_scan.h": 30, "gated_scan.h0": 6},
           (uniform((2, 0, 3), (2, 0, 3), (2, 3)),), half=8e-3),
    OpInfo("gated_scan h0 reset", th.gated_scan,
           also(uniform((2, 5, 3), (2, 5, 3), (2, 3), low=-1, high=1), RESET), scan,
           torch_scan, {"gated_scan.a": 30, "gated_scan.h": 30, "gated_scan.h0": 6,
                        "gated_scan.reset": Bytes(10)}, half=8e-3,
           audit=also(uniform((2, 5, 3), (2, 5, 3), (2, 3), low=-1, high=1), LATER)),
    OpInfo("gated_scan reset", lambda a, b, reset: th.gated_scan(a, b, reset=reset),
           also(uniform((2, 5, 3), (2, 5, 3), low=-1, high=1), RESET),
           lambda a, b, reset: scan(a, b, None, reset),
           lambda torch, a, b, reset: torch_scan(torch, a, b, None, reset),
           {"gated_scan.a": 30, "gated_scan.h": 30, "gated_scan.reset": Bytes(10)},
           half=8e-3),
]  # fmt: skip

COMPARISONS = [
    OpInfo(name, getattr(th, name), uniform((3, 4), (3, 4)), getattr(np, name),
           lambda torch, a, b, name=torch_name: getattr(torch, name)(a, b), gradient=False,
           broadcasts=(uniform((3, 1), (2,)), uniform((), (2,))))
    for name, torch_name in (
        ("equal", "eq"), ("not_equal", "ne"), ("less", "lt"), ("less_equal", "le"),
        ("greater", "gt"), ("greater_equal", "ge"))
] + [
    OpInfo("argmax", th.argmax, uniform((3, 4)), np.argmax, lambda torch, x: x.argmax(),
           gradient=False),
    OpInfo("argmax 0", lambda x: th.argmax(x, axis=0), uniform((3, 4)),
           lambda x: np.argmax(x, axis=0), lambda torch, x: x.argmax(0), gradient=False),
]  # fmt: skip

OPS = ARITHMETIC + FUNCTIONS + REDUCTIONS + SHAPES + PRODUCTS + SCANS + COMPARISONS
from opinfo_more import MORE  # noqa: E402  (its rows are made of what is above)

OPS += MORE
DIFFERENTIABLE = [info for info in OPS if info.gradient]
