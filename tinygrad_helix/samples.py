"""Every op, layer and block of the package with inputs to check it on.

The inputs are small enough for a full Jacobian, in float64, and chosen so that everything
matters: no equal values where an op compares, a reset after the first step of a scan.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from . import nn, ops
from .backend import get_backend, is_array
from .fused.policy import Budget, Keep
from .nn.helix import helix_block, predict_saved
from .op import Op
from .tensor import Tensor

__all__ = ["Sample", "blocks", "layers", "op_names", "op_sample"]


@dataclass(frozen=True, slots=True)
class Sample:
    """A function, what it is to be called with, and what it claims.

    `names` are those of the arguments. `predicted` is the bytes that a formula gives for
    what the tape will keep, `parameters` not counted. `reference` computes the same in
    another way. `second` says whether there is a second derivative (None: there may be),
    `gradient` whether there is any, `ops` which ops an audit looks at (None: all), and
    `audit_values` are its own, for an op that needs some value only in rare places.
    """

    name: str
    fn: Callable[..., Any]
    names: tuple[str, ...]
    values: tuple[Any, ...]
    parameters: frozenset[str] = frozenset()
    predicted: int | None = None
    reference: Callable[..., Any] | None = None
    reference_name: str = ""
    gradient: bool = True
    second: bool | None = True
    ops: frozenset[type[Op]] | None = None
    audit_values: tuple[Any, ...] = ()

    def to(self, device: str) -> "Sample":
        """The same with its values on `device`."""
        if device == "cpu":
            return self
        values, audited = (
            tuple([_on(device, v) for v in given])
            for given in (self.values, self.audit_values)
        )
        name = f"{self.name} on {device}"
        return replace(self, name=name, values=values, audit_values=audited)


def _on(device: str, value: Any) -> Any:
    if isinstance(value, Tensor):
        return Tensor(value.data, requires_grad=value.requires_grad, device=device)
    return get_backend(device).asarray(value) if is_array(value) else value


Make = Callable[[np.random.Generator], list[Any]]


def _floats(*shapes: tuple[int, ...], low: float = -2.0, high: float = 2.0) -> Make:
    return lambda rng: [rng.uniform(low, high, shape) for shape in shapes]


def _and(make: Make, *values: Any) -> Make:
    return lambda rng: [*make(rng), *values]


_ONE, _TWO = _floats((3, 4)), _floats((3, 4), (3, 4))
_POSITIVE = _floats((3, 4), low=0.5)
_RESET = np.array([[False] * 5, [False, False, True, False, False]])
_SCAN = _and(_floats((2, 5, 3), (2, 5, 3), (2, 3), low=-1, high=1), _RESET)

# What each op is called with, where that is not one array of both signs.
_OPS: dict[str, tuple[Callable[..., Any], Make]] = {
    "add": (ops.add, _floats((3, 4), (4,))),
    "astype": (lambda x: ops.astype(x, "int64"), _ONE),
    "broadcast_to": (lambda x: ops.broadcast_to(x, 2, 3, 4), _floats((3, 1))),
    "cat": (lambda a, b: ops.cat([a, b], axis=1), _floats((2, 3), (2, 1))),
    "cross_entropy": (
        ops.cross_entropy,
        _and(_floats((2, 3, 5)), np.array([[2, 0, 4], [1, 1, 3]])),
    ),
    "div": (ops.div, _floats((3, 4), (4,), low=0.5)),
    "embedding": (ops.embedding, _and(_floats((6, 4)), np.array([[3, 0, 3], [5, 5, 1]]))),
    "gated_scan": (ops.gated_scan, _SCAN),
    "getitem": (
        lambda x, rows: ops.getitem(x, (rows, slice(None, None, -2))),
        _and(_floats((6, 4)), np.array([3, 0, 3])),
    ),
    "log": (ops.log, _POSITIVE),
    "matmul": (ops.matmul, _floats((2, 3, 4), (4, 5))),
    "mul": (ops.mul, _floats((3, 4), (4,))),
    "pow": (ops.pow, _floats((3, 4), (4,), low=0.5)),
    "reciprocal": (ops.reciprocal, _POSITIVE),
    "reshape": (lambda x: ops.reshape(x, 2, -1), _ONE),
    "rms_norm": (ops.rms_norm, _floats((2, 3, 4), (4,))),
    "rsqrt": (ops.rsqrt, _POSITIVE),
    "split": (lambda x: ops.split(x, [1, 3], axis=1), _ONE),
    "sqrt": (ops.sqrt, _POSITIVE),
    "stack": (lambda a, b: ops.stack([a, b], axis=-1), _TWO),
    "sub": (ops.sub, _floats((3, 4), (4,))),
    "where": (
        lambda condition, a, b: ops.where(condition, a, b),
        lambda rng: [np.arange(12).reshape(3, 4) % 3 == 0, *_TWO(rng)],
    ),
} | {name: (getattr(ops, name), _floats((3, 4), (4,))) for name in ("maximum", "minimum")}

_ROWS = np.array([[2, 0, 2, 1], [1, 1, 0, 2]])
_OPS |= {
    "causal_conv1d": (
        ops.causal_conv1d,
        _floats((2, 4, 2), (2, 3), (2,), (2, 2, 2)),
    ),
    "chunk": (lambda x: ops.chunk(x, 2, axis=1), _ONE),
    "clip": (lambda x: ops.clip(x, -1.0, 0.5), _ONE),
    "conv2d": (
        lambda x, weight, bias: ops.conv2d(x, weight, bias, stride=2, padding=1),
        _floats((2, 2, 4, 3), (2, 2, 3, 2), (2,)),
    ),
    "dropout": (lambda x: ops.dropout(x, generator=np.random.default_rng(1)), _ONE),
    "einsum": (
        lambda a, b: ops.einsum("bij,bkj->bik", a, b),
        _floats((2, 2, 3), (2, 2, 3)),
    ),
    "expand": (lambda x: ops.expand(x, 2, -1, 4), _floats((3, 1))),
    "gather": (lambda x, index: ops.gather(x, index, 0), _and(_ONE, _ROWS)),
    "layer_norm": (ops.layer_norm, _floats((2, 3, 4), (4,), (4,))),
    "log1p": (ops.log1p, _POSITIVE),
    "masked_fill": (
        lambda x, mask: ops.masked_fill(x, mask, -7.0),
        _and(_ONE, np.arange(4) % 2 == 0),
    ),
    "max_pool2d": (lambda x: ops.max_pool2d(x, 2), _floats((2, 1, 4, 5))),
    "min": (lambda x: ops.min(x, axis=1), _ONE),
    "one_hot": (lambda index: ops.one_hot(index, 3), lambda rng: [_ROWS]),
    "pad": (lambda x: ops.pad(x, ((1, 0), (2, 3)), 0.5), _ONE),
    "permute": (lambda x: ops.permute(x, 2, 0, 1), _floats((2, 3, 4))),
    "scatter_add": (
        lambda x, source, index: ops.scatter_add(x, index, source, 0),
        _and(_floats((3, 4), (2, 4)), _ROWS),
    ),
    # The gradient of the sign is 0 everywhere, which a product shows.
    "sign": (lambda x: ops.sign(x) * x, _ONE),
    "swapaxes": (lambda x: ops.swapaxes(x, 0, -1), _floats((2, 3, 4))),
    "take": (lambda x, index: ops.take(x, index, axis=1), _and(_ONE, _ROWS)),
    "topk": (lambda x: ops.topk(x, 2), _ONE),
    "unsqueeze": (lambda x: ops.unsqueeze(x, 1), _ONE),
}

# Their results are bools or numbers of places: no gradient.
_COMPARISONS = ("equal", "greater", "greater_equal", "less", "less_equal", "not_equal")
_OPS |= {name: (getattr(ops, name), _TWO) for name in _COMPARISONS}
_NO_GRADIENT = frozenset((*_COMPARISONS, "argmax", "argmin", "astype", "one_hot"))

# d(a^b)/db reads b where a is 0, and there alone: in each half of b, then.
_BASES = np.array([[0.0, 1.5, 0.0, 2.5], [1.5, 0.0, 2.5, 0.0]])


def op_names() -> list[str]:
    """Every op of the package, by name."""
    return [name for name in ops.__all__ if inspect.isfunction(getattr(ops, name))]


def op_sample(name: str) -> Sample:
    """The op `name` with its inputs: one array of both signs unless the table has more."""
    fn, make = _OPS.get(name, (getattr(ops, name), _ONE))
    values = make(np.random.default_rng(list(name.encode())))
    return Sample(
        name,
        fn,
        argument_names(fn, len(values)),
        _tensors(values),
        gradient=name not in _NO_GRADIENT,
        audit_values=_tensors([_BASES, values[1] + 1]) if name == "pow" else (),
    )


def argument_names(fn: Callable[..., Any], count: int) -> tuple[str, ...]:
    """The names of the first `count` arguments of a function."""
    named = [p.name for p in inspect.signature(fn).parameters.values()]
    return tuple((named + [f"input {i}" for i in range(len(named), count)])[:count])


def _tensors(values: Sequence[Any]) -> tuple[Any, ...]:
    """Arrays of floats as Tensors that require a gradient; the rest as it is."""
    return tuple(
        [
            Tensor(v, requires_grad=True)
            if isinstance(v, np.ndarray) and v.dtype.kind == "f"
            else v
            for v in values
        ]
    )


# --- the HELIX block, each mode and policy

_SHAPE = (2, 5, 3)  # [B, T, D]
_POLICIES = (
    *("keep9", "keep6", "keep4", "keep3", "keep2", "keep1"),
    Keep("x", "out1"),
    Budget(1000),
)


def blocks() -> Iterator[Sample]:
    """The HELIX block: plain, and with an initial state, a reset and its final state."""
    forms = [("primitive", None), ("composed", None)]
    for mode, policy in [*forms, *(("fused", policy) for policy in _POLICIES)]:
        for state in (False, True):
            yield _block(mode, policy, state)


def _block(mode: str, policy: Any, state: bool) -> Sample:
    def form(mode: str, policy: Any = None) -> Callable[..., Any]:
        def block(*values: Any) -> Any:
            h0, reset = values[10:] or (None, None)
            return helix_block(
                *values[:10],
                h0=h0,
                reset=reset,
                mode=mode,
                policy=policy,
                return_state=state,
            )

        return block

    B, _, D = _SHAPE
    rng = np.random.default_rng(0)
    weights = dict(nn.HelixBlock(D, dtype=np.float64, generator=rng).named_parameters())
    given: dict[str, Any] = {"x": rng.standard_normal(_SHAPE)}
    given |= {
        name: w.data + 0.1 * rng.standard_normal(w.shape) for name, w in weights.items()
    }
    if state:
        given |= {"h0": rng.standard_normal((B, D)), "reset": _RESET}
    saved = predict_saved(mode, policy, _SHAPE, "float64", h0=state, reset=state)
    kept = getattr(policy, "name", policy)
    name = " ".join(["helix_block", mode, *([kept] if kept else [])])
    return Sample(
        f"{name}, with state" if state else name,
        form(mode, policy),
        tuple(given),
        _tensors(list(given.values())),
        parameters=frozenset(weights),
        predicted=sum(saved.values()),
        reference=None if mode == "composed" else form("composed"),
        reference_name="composed",
        second=mode != "fused",
    )


# --- layers and the language model

_FLOAT64 = {"dtype": np.float64}
_TOKENS = np.array([[1, 4, 2, 0], [3, 3, 1, 2]])

# What each layer is made with, and its input: ints, or the shape of floats.
LAYERS: dict[str, tuple[dict[str, Any], Any]] = {
    "Linear": ({"in_features": 4, "out_features": 3}, (2, 5, 4)),
    "Embedding": ({"vocab": 5, "dim": 3}, _TOKENS),
    "RMSNorm": ({"dim": 4}, (2, 5, 4)),
    "HelixBlock": ({"dim": 3, "mode": "composed"}, _SHAPE),
    "HelixLM": ({"vocab": 5, "dim": 3, "layers": 2}, _TOKENS),
}


def layers() -> Iterator[Sample]:
    """Every layer, differentiated for its input and its parameters; the loss of HelixLM
    in each mode."""
    for name, (settings, given) in LAYERS.items():
        modes = ("primitive", "composed", "fused") if name == "HelixLM" else (None,)
        for mode in modes:
            yield _layer(name, settings | ({"mode": mode} if mode else {}), given)


def _layer(name: str, settings: dict[str, Any], given: Any) -> Sample:
    rng = np.random.default_rng(0)
    module = getattr(nn, name)(**settings, dtype=np.float64)
    named = dict(module.named_parameters())
    x = rng.standard_normal(given) if isinstance(given, tuple) else given
    inputs = {"x": x}
    if name == "HelixLM":
        inputs = {"tokens": x, "targets": x[:, ::-1].copy()}
        predicted = module.predict_saved(*x.shape)
    else:
        predicted = module.predict_saved(x.shape, x.dtype)

    def fn(*values: Any) -> Any:
        given, weights = values[: len(inputs)], values[len(inputs) :]
        for path, w in zip(named, weights, strict=True):
            _assign(module, path, w)
        return module.loss(*given) if name == "HelixLM" else module(*given)

    mode = settings.get("mode")
    return Sample(
        f"{name} {mode}" if mode else name,
        fn,
        (*inputs, *named),
        _tensors(
            [*inputs.values(), *(rng.standard_normal(p.shape) for p in named.values())]
        ),
        parameters=frozenset(named),
        predicted=sum(predicted.values()),
        second=mode != "fused",
    )


def _assign(module: Any, path: str, value: Any) -> None:
    """Put `value` where the parameter `path` of the module is."""
    *parents, last = path.split(".")
    for part in parents:
        module = module[int(part)] if isinstance(module, list) else getattr(module, part)
    if isinstance(module, list):
        module[int(last)] = value
    else:
        setattr(module, last, value)
