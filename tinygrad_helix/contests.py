"""What `bench` times: blocks over their matrix products, long sequences over short ones,
the engine over bare NumPy, a whole training step, and all of it over peers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import data, nn, ops, peers
from .differentiate import backward, grad
from .language import LEARNING_RATE, VOCABULARY
from .nn.helix import helix_block
from .optim import AdamW
from .tensor import Tensor

__all__ = ["CONTESTS", "LARGE", "Contest", "blas", "products", "threads", "training"]

_CHAIN = 100
_EPS = 1e-5


@dataclass(frozen=True, slots=True)
class Contest:
    """Steps by name that take turns, and which ratios of them are wanted.

    `ratios` are (row, step, over). Those in `equal` must return the same. A step counts
    `units[step]` of what `per` says, or 1.
    """

    shape: tuple[int, ...]
    steps: dict[str, Callable[[], Any]]
    ratios: list[tuple[str, str, str]]
    equal: tuple[str, ...] = ()
    per: str = "step"
    units: Mapping[str, float] = field(default_factory=dict)


def blas() -> dict[str, Any]:
    """What `threadpoolctl` knows of NumPy's BLAS."""
    from threadpoolctl import threadpool_info

    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    numpys = [pool for pool in pools if "numpy" in pool["filepath"]]  # SciPy has another
    return (numpys or pools or [{}])[0]


def threads() -> int:
    """The threads of NumPy's BLAS, which PyTorch gets too."""
    return int(blas().get("num_threads", 1))


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def products(rows: int, dim: int) -> Callable[[], Any]:
    """The 12 matrix products of a HELIX step, and nothing else: 42·N·D² FLOPs.

    For each of D→2D, D→D, D→2D and 2D→D: y = x w, dx = dy wᵀ, dw = xᵀ dy, of contiguous
    matrices (the transposes are views, as BLAS takes them) into arrays that are there.
    """
    rng = np.random.default_rng(0)
    calls = []
    for n_in, n_out in ((dim, 2 * dim), (dim, dim), (dim, 2 * dim), (2 * dim, dim)):
        x, w = _normal(rng, rows, n_in), _normal(rng, n_in, n_out)
        y, dy = _normal(rng, rows, n_out), _normal(rng, rows, n_out)
        dx, dw = _normal(rng, rows, n_in), _normal(rng, n_in, n_out)
        calls += [(x, w, y), (dy, w.T, dx), (x.T, dy, dw)]

    def step() -> None:
        for a, b, out in calls:
            np.matmul(a, b, out=out)

    return step


class _Block:
    """A HELIX block of one shape with its input and cotangent."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        rng = np.random.default_rng(0)
        block = nn.HelixBlock(shape[2], eps=_EPS, generator=rng)
        x = Tensor(_normal(rng, *shape), requires_grad=True)
        self.inputs: dict[str, Any] = {"x": x, **dict(block.named_parameters())}
        self.dy = _normal(rng, *shape)

    def step(self, mode: str, policy: str | None = None) -> Callable[[], Any]:
        """Forward, and all ten gradients."""

        def step() -> Any:
            y = helix_block(**self.inputs, eps=_EPS, mode=mode, policy=policy)
            return grad(y, list(self.inputs.values()), self.dy)

        return step

    def arrays(self) -> dict[str, np.ndarray]:
        return {name: x.data for name, x in self.inputs.items()}


def _helix(shape: tuple[int, int, int]) -> Callable[[frozenset[str]], Contest]:
    def contest(beside: frozenset[str]) -> Contest:
        B, T, D = shape
        block = _Block(shape)
        steps = {
            "fused keep6": block.step("fused", "keep6"),
            "fused keep9": block.step("fused", "keep9"),
            "composed": block.step("composed"),
        }
        given, ours = (block.arrays(), block.dy, _EPS), len(steps)
        if "torch" in beside:
            steps["torch"] = peers.torch_helix(*given, threads())
            steps["torch, time-major"] = peers.torch_helix(*given, threads(), True)
        if "jax" in beside:
            steps["jax"] = peers.jax_helix(*given)
        equal = tuple(steps)
        ratios = [(f"helix {step}", step, "12 products") for step in steps]
        ratios += [
            (f"helix {step}", step, peer)
            for peer in equal[ours:]
            for step in ("fused keep6", "composed")
        ]
        steps["12 products"] = products(B * T, D)
        return Contest(shape, steps, ratios, equal)

    return contest


def _scaling(batch: int, seq: int, base: tuple[int, int]) -> Any:
    """A token of (batch, seq) over one of `base`, at D = 512."""

    def contest(beside: frozenset[str]) -> Contest:
        shapes = {"long": (batch, seq, 512), "short": (*base, 512)}
        steps = {which: _Block(shape).step("fused") for which, shape in shapes.items()}
        names = {which: "x".join(map(str, shape)) for which, shape in shapes.items()}
        return Contest(
            shapes["long"],
            {names[which]: step for which, step in steps.items()},
            [("helix fused keep6", names["long"], names["short"])],
            per="1,000 tokens",
            units={names[w]: B * T / 1000 for w, (B, T, _) in shapes.items()},
        )

    return contest


def _scan(beside: frozenset[str]) -> Contest:
    shape = (8, 512, 512)
    rng = np.random.default_rng(0)
    a = rng.uniform(0.8, 1.0, shape).astype(np.float32)
    b, dh = _normal(rng, *shape), _normal(rng, *shape)
    xs = [Tensor(a, requires_grad=True), Tensor(b, requires_grad=True)]
    outs = [np.ones(shape, np.float32) for _ in range(3)]

    def passes() -> None:
        for left, right, out in zip((a, a, b), (b, dh, dh), outs, strict=True):
            np.multiply(left, right, out=out)

    steps = {"gated_scan": lambda: grad(ops.gated_scan(*xs)[0], xs, dh)}
    ratios = [("gated_scan", "gated_scan", "3 passes")]
    if "torch" in beside:
        steps["torch"] = peers.torch_scan(a, b, dh, threads())
        ratios += [("gated_scan", "gated_scan", "torch")]
    equal = tuple(steps)
    return Contest(shape, steps | {"3 passes": passes}, ratios, equal)


def _engine(beside: frozenset[str]) -> Contest:
    def chain() -> Any:
        x = Tensor(np.ones(1, np.float32), requires_grad=True)
        y = x
        for _ in range(_CHAIN):
            y = y + x
        backward(y)
        return [x.grad]

    def bare() -> None:
        x = np.ones(1, np.float32)
        y = x
        for _ in range(_CHAIN):
            y = y + x

    steps = {"add": chain}
    if "torch" in beside:
        steps["torch"] = peers.torch_chain(_CHAIN, threads())
    if "mygrad" in beside:
        steps["mygrad"] = peers.mygrad_chain(_CHAIN)
    equal = tuple(steps)
    steps["numpy"] = bare
    ratios = [("engine add", "add", over) for over in steps if over != "add"]
    return Contest(
        (1,), steps, ratios, equal, per="node", units=dict.fromkeys(steps, _CHAIN)
    )


def _model(beside: frozenset[str]) -> Contest:
    batch, seq, dim, layers = 8, 128, 128, 2  # what `compare` trains
    text = data.load_text("package")
    tokens, targets = next(data.ByteBatches(text, batch, seq, 0))
    steps: dict[str, Callable[[], Any]] = {}
    for mode in ("fused", "composed"):
        rng = np.random.default_rng(0)
        model = nn.HelixLM(VOCABULARY, dim, layers, mode=mode, eps=_EPS, generator=rng)
        optimizer = AdamW(list(model.parameters()), lr=LEARNING_RATE)
        steps[mode] = training(model, optimizer, tokens, targets)
    ratios = [("model fused", "fused", "composed")]
    if "torch" in beside:
        rng = np.random.default_rng(0)
        model = nn.HelixLM(VOCABULARY, dim, layers, eps=_EPS, generator=rng)
        settings = AdamW(list(model.parameters()), lr=LEARNING_RATE).param_groups[0]
        steps["torch"] = peers.torch_language_model(
            {name: p.data for name, p in model.named_parameters()},
            layers,
            _EPS,
            tokens.data,
            targets.data,
            {name: value for name, value in settings.items() if name != "params"},
            threads(),
        )
        ratios += [(f"model {mode}", mode, "torch") for mode in ("fused", "composed")]
    return Contest((batch, seq, dim), steps, ratios, tuple(steps))


def training(model: Any, optimizer: Any, tokens: Any, targets: Any) -> Callable[[], Any]:
    """A training step on one batch, whose loss before the step it returns."""

    def step() -> Any:
        loss = model.loss(tokens, targets)
        backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return [loss.item()]

    return step


CONTESTS: dict[str, Callable[[frozenset[str]], Contest]] = {
    "helix-8x512x512": _helix((8, 512, 512)),
    "helix-8x128x256": _helix((8, 128, 256)),
    "helix-2x16x32": _helix((2, 16, 32)),
    "scaling-1x4096x512": _scaling(1, 4096, (8, 512)),
    "scaling-2x4096x512": _scaling(2, 4096, (2, 512)),
    "scan": _scan,
    "engine": _engine,
    "model": _model,
}
LARGE = ("helix-8x512x512", "scaling-2x4096x512")  # left out by --quick
