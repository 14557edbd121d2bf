"""The HELIX block three ways: of arithmetic, of layers' ops, and as one fused node."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from .. import memory, ops
from ..backend import is_array
from ..errors import DTypeError, HelixError, ShapeError
from ..fused.helix import FusedHelix
from ..fused.policy import INPUTS, WEIGHTS, Call, Policy, checked, kept, resolve
from ..op import apply
from ..ops.operands import plain
from ..ops.scan import reset_mask
from ..tensor import Tensor
from .layers import generator_or_default, size
from .module import Module, Parameter, float_dtype

__all__ = ["MODES", "HelixBlock", "helix_block", "predict_saved"]

MODES = ("primitive", "composed", "fused")

# Where e^(-z) is still finite: the primitive form, which has arithmetic alone, takes no
# larger one. Its sigmoid ends there, at a value below any normal number of the dtype.
_LARGEST_EXPONENT = {4: 88.0, 8: 709.0}


def helix_block(
    x: Any,
    wa: Any,
    wb: Any,
    wo: Any,
    wf1: Any,
    wf2: Any,
    g1: Any,
    g2: Any,
    g3: Any,
    g4: Any,
    *,
    eps: float = 1e-5,
    h0: Any = None,
    reset: Any = None,
    mode: str = "fused",
    policy: Policy = None,
    return_state: bool = False,
) -> Any:
    """The HELIX block: a gated linear recurrence, then a feed-forward network.

        xn = rms(x)·g1         a = sigmoid(xn wa' + bias)      h_t = a_t·h_{t-1} + (xn wb)_t
        out1 = x + silu(h·g2) wo
        y = out1 + silu(rms(out1)·g3 wf1) wf2·g4        rms(z) = z / √(mean z² + eps)

    x, y [B, T, D]; wa [D+1, D], its last row the gate's bias; wb, wo [D, D]; wf1 [D, 2D];
    wf2 [2D, D]; g1 … g4 [D]. All of one dtype, float32 or float64, and Tensors or arrays.
    h0 [B, D] is the state before the first step (None: 0). reset [B, T], bools or 0/1:
    where it is set a_t counts as 0, which separates sequences packed into one row. With
    return_state the result is (y, h_T), h_T [B, D] the last state, h0 (or 0) if T = 0.
    Everything but the reset mask is differentiable. B and T may be 0.

    `mode` says how it gets onto the tape; the values and gradients are the same:

    - "primitive": 40 ops of plain arithmetic, matrix products and a scan; it keeps
      (22D + 2)·itemsize + 4D bytes a token;
    - "composed": 18 ops (rms, silu, sigmoid are one each), keeping 15·D·itemsize;
    - "fused": one op. `policy` says what it keeps, k·D·itemsize a token: keep9 (= full),
      keep6 (= lean, the default: only elementwise work is repeated), keep4, keep3, keep2,
      keep1 (= checkpoint); `Keep("x", "a", …)` for any set, `Budget("64MB")` for the set
      with the fewest extra FLOPs that fits. No second derivatives.

    On the CPU a fused call has as many threads as BLAS is set to, and the same bits with
    any number of them; BLAS itself, of which the process has one setting, has one thread
    until the call is done. What "composed" computes, BLAS cuts by its threads: there the
    last bits may depend on their number.

    Besides, h0 takes B·D·itemsize and reset B·T bytes; what no wanted gradient reads is
    not kept. Weights that are leaves or arrays are counted as parameters, from then on and
    everywhere; a weight that an op made (a cast, say) stays an activation, which the tape
    keeps besides. Of a reset that is no Tensor a copy is kept. `predict_saved` gives these
    numbers.

    Errors: ShapeError, DTypeError for what does not fit, by name; HelixError for an
    unknown mode or policy, or a policy with another mode. Nothing has changed then.

    The block is that of the Rust crate g-cpu 0.1.0; the scan without a gate on its input
    is related to Qin et al., "Hierarchically gated recurrent neural network", 2023.

    >>> import tinygrad_helix as th
    >>> block = th.nn.HelixBlock(8)
    >>> x = th.randn(2, 5, 8, requires_grad=True)
    >>> y = th.helix_block(x, *block.parameters(), policy="keep4")
    >>> y.shape, th.saved_bytes(y) == 4 * 2 * 5 * 8 * 4
    ((2, 5, 8), True)
    """
    _check_mode(mode, policy)
    eps = _checked_eps("helix_block", eps)
    weights = (wa, wb, wo, wf1, wf2, g1, g2, g3, g4)
    _check_inputs(x, dict(zip(WEIGHTS, weights, strict=True)), h0)
    if reset is not None:
        # A scan among the ops makes a copy of its own.
        kept_by = (x, *weights, h0) if mode == "fused" else ()
        reset = reset_mask("helix_block", reset, x.shape[:2], *kept_by)
    for w in weights:
        if not isinstance(w, Tensor) or w.is_leaf:
            memory.mark_parameter(plain(w))
    if mode == "fused":
        result = apply(
            FusedHelix,
            x,
            *weights,
            h0,
            reset,
            eps=eps,
            policy="lean" if policy is None else policy,
            return_state=bool(return_state),
        )
        if return_state and not any(
            isinstance(v, Tensor) and v.requires_grad for v in (x, wa, wb, g1, h0)
        ):
            y, h_T = result
            result = y, h_T.detach() if isinstance(h_T, Tensor) else h_T
        return result
    form = _primitive if mode == "primitive" else _composed
    y, h_T = form(x, *weights, h0, reset, eps)
    return (y, h_T) if return_state else y


def _composed(x, wa, wb, wo, wf1, wf2, g1, g2, g3, g4, h0, reset, eps):
    """18 ops, and two slices of wa."""
    xn = ops.rms_norm(x, g1, eps)  # [B, T, D]
    a = ops.sigmoid(xn @ wa[:-1] + wa[-1])
    h, h_T = ops.gated_scan(a, xn @ wb, h0, reset)
    out1 = x + ops.silu(h * g2) @ wo
    f1 = ops.rms_norm(out1, g3, eps) @ wf1  # [B, T, 2D]
    return out1 + ops.silu(f1) @ wf2 * g4, h_T


def _primitive(x, wa, wb, wo, wf1, wf2, g1, g2, g3, g4, h0, reset, eps):
    """The same with rms, sigmoid and silu spelled out: 40 ops, and two slices of wa."""
    bound = _LARGEST_EXPONENT[x.dtype.itemsize]

    def rms(z):
        return z * ops.rsqrt(ops.mean(z * z, axis=-1, keepdims=True) + eps)

    def sigmoid(z):
        return ops.reciprocal(ops.exp(ops.minimum(-z, bound)) + 1)

    def silu(z):
        return z * sigmoid(z)

    xn = rms(x) * g1
    a = sigmoid(xn @ wa[:-1] + wa[-1])
    h, h_T = ops.gated_scan(a, xn @ wb, h0, reset)
    out1 = x + silu(h * g2) @ wo
    f1 = rms(out1) * g3 @ wf1
    return out1 + silu(f1) @ wf2 * g4, h_T


# --- what is refused


def _check_mode(mode: str, policy: Policy) -> None:
    if mode not in MODES:
        raise HelixError(
            f"helix_block got mode={mode!r}. Valid are {', '.join(map(repr, MODES))}."
        )
    if policy is not None and mode != "fused":
        raise HelixError(
            f"helix_block got policy={policy!r} with mode={mode!r}, which keeps what its "
            "ops keep. Leave the policy out, or use mode='fused'."
        )
    checked(policy)


def _checked_eps(what: str, eps: Any) -> float:
    value = float(eps)
    if not 0 <= value < math.inf:
        raise HelixError(f"{what} got eps={eps}. Give a finite number, 0 or more.")
    return value


def _check_inputs(x: Any, weights: dict[str, Any], h0: Any) -> None:
    named = {"x": x, **weights} | ({} if h0 is None else {"h0": h0})
    for name, value in named.items():
        if not (isinstance(value, Tensor) or is_array(value)):
            raise DTypeError(
                f"helix_block takes Tensors or arrays; {name} is a "
                f"{type(value).__name__}. Make a Tensor of it first."
            )
        if value.dtype not in (np.float32, np.float64) or value.dtype != x.dtype:
            listed = ", ".join(
                f"{n} {v.dtype}" for n, v in named.items() if hasattr(v, "dtype")
            )
            raise DTypeError(
                f"helix_block takes one dtype for all, float32 or float64; got {listed}. "
                "Convert with astype() first."
            )
    if x.ndim != 3:
        raise ShapeError(
            f"helix_block takes x of shape [B, T, D]; got {x.shape}. For one sequence "
            "[T, D] give x[None]."
        )
    B, _, D = x.shape
    if D == 0:
        raise ShapeError(
            f"helix_block got x of shape {x.shape}: its width D is at least 1."
        )
    expected = _shapes(D) | ({} if h0 is None else {"h0": (B, D)})
    for name, shape in expected.items():
        if named[name].shape != shape:
            due = "Make them of one width D" if name != "h0" else "Give a row for each of B"
            what = {"wa": " (the last row is the bias)", "h0": " [B, D]"}.get(name, "")
            raise ShapeError(
                f"helix_block of x {x.shape} takes {name} of shape {shape}{what}; got "
                f"{named[name].shape}. {due}."
            )


def _shapes(D: int) -> dict[str, tuple[int, ...]]:
    square, gain = (D, D), (D,)
    shapes = ((D + 1, D), square, square, (D, 2 * D), (2 * D, D), gain, gain, gain, gain)
    return dict(zip(WEIGHTS, shapes, strict=True))


# --- what is kept


def predict_saved(
    mode: str,
    policy: Policy,
    shape: tuple[int, ...],
    dtype: Any,
    *,
    needs: Iterable[str] | None = None,
    h0: bool = False,
    reset: bool = False,
) -> dict[str, int]:
    """{name: bytes} that the tape will keep of one `helix_block`, parameters aside.

    shape (B, T, D) and dtype of x; `needs` names the inputs that want a gradient (None:
    all); h0 and reset say whether there are any. With all gradients wanted the sum is
    15·B·T·D·itemsize for "composed", B·T·((22D + 2)·itemsize + 4D) for "primitive",
    k·B·T·D·itemsize for "fused" with a policy of k values; and each time + B·D·itemsize
    with h0, + B·T with reset.

    >>> from tinygrad_helix.nn.helix import predict_saved
    >>> saved = predict_saved("composed", None, (2, 16, 32), "float32")
    >>> sum(saved.values()) == 15 * 2 * 16 * 32 * 4
    True
    """
    _check_mode(mode, policy)
    B, T, D = shape
    itemsize = np.dtype(dtype).itemsize
    wanted = frozenset(INPUTS if needs is None else needs) - {"reset"}
    if not h0:
        wanted -= {"h0"}
    if mode == "fused":
        call = Call((B, T, D), itemsize, wanted, h0, reset)
        return kept(call, resolve(policy, call))

    # Which results need a gradient, from the first to the last.
    rms1 = "x" in wanted
    xn = rms1 or "g1" in wanted
    gate = xn or "wa" in wanted
    scan = gate or not wanted.isdisjoint(("wb", "h0"))
    hg = scan or "g2" in wanted
    out1 = hg or "wo" in wanted
    f1 = out1 or not wanted.isdisjoint(("g3", "wf1"))
    N = B * T
    row = N * D * itemsize
    saved = {
        "x": row * rms1,
        "rms1": row * ("g1" in wanted),
        "xn": row * (not wanted.isdisjoint(("wa", "wb"))),
        "a": row * scan,
        "h": row * (gate or "g2" in wanted),
        "h0": B * D * itemsize * (h0 and gate),
        "reset": N * (reset and scan),
        "hg": row * hg,
        "s2": row * ("wo" in wanted),
        "out1": row * out1,
        "rms2": row * ("g3" in wanted),
        "xn2": row * ("wf1" in wanted),
        "f1": 2 * row * f1,
        "sf": 2 * row * ("wf2" in wanted),
        "f2": row * ("g4" in wanted),
    }
    if mode == "primitive":
        # A sigmoid of n values keeps e^(-z), itself, and a byte a value from its bound;
        # a silu all three, a rms its row scale.
        for name, n, need in (("a", N * D, gate), ("hg", N * D, hg), ("f1", 2 * N * D, f1)):
            saved[f"{name}.exp"] = n * itemsize * need
            saved[f"{name}.order"] = n * need
            if name != "a":
                saved[f"{name}.sigmoid"] = n * itemsize * need
        saved["x.scale"] = N * itemsize * rms1
        saved["out1.scale"] = N * itemsize * out1
    return {name: nbytes for name, nbytes in saved.items() if nbytes}


class HelixBlock(Module):
    """`helix_block` with its nine weights: x [B, T, D] -> y [B, T, D].

    wa, wb, wo, wf1 start from N(0, 1/D), wf2 from N(0, 1/2D), drawn in float64 so that
    every dtype starts from the same numbers; the gains from 1, the gate's bias from 3 (a
    gate of 0.95: a state fades to 1/e in 20 steps). 7D² + 5D parameters.

    Keeps what `helix_block` keeps in this mode and policy. Errors: those of `helix_block`.

    >>> import tinygrad_helix as th
    >>> block = th.nn.HelixBlock(8, policy="keep4")
    >>> y, state = block(th.zeros(2, 3, 8), return_state=True)
    >>> state.shape, sum(block.predict_saved((2, 3, 8), "float32").values())
    ((2, 8), 768)
    """

    def __init__(
        self,
        dim: int,
        *,
        eps: float = 1e-5,
        mode: str = "fused",
        policy: Policy = None,
        dtype: Any = np.float32,
        generator: np.random.Generator | None = None,
        device: str | None = None,
    ) -> None:
        D = size("HelixBlock", "dim", dim)
        dtype = float_dtype("HelixBlock", dtype)
        if dtype.itemsize not in _LARGEST_EXPONENT:
            raise DTypeError(f"HelixBlock got dtype {dtype}. Use float32 or float64.")
        _check_mode(mode, policy)
        generator = generator_or_default("HelixBlock", generator)
        self.eps = _checked_eps("HelixBlock", eps)
        self.mode = mode
        self.policy = policy
        for name, shape in _shapes(D).items():
            if name.startswith("g"):
                value = np.ones(shape)
            else:
                fan_in = shape[0] if name != "wa" else D
                value = generator.normal(0.0, fan_in**-0.5, shape)
            if name == "wa":
                value[-1] = 3.0
            setattr(self, name, Parameter(value.astype(dtype), device=device))

    def forward(
        self, x: Any, h0: Any = None, reset: Any = None, return_state: bool = False
    ) -> Any:
        """y, or (y, h_T) with `return_state`."""
        weights = {name: getattr(self, name) for name in WEIGHTS}
        return helix_block(
            x,
            **weights,
            eps=self.eps,
            h0=h0,
            reset=reset,
            mode=self.mode,
            policy=self.policy,
            return_state=return_state,
        )

    def predict_saved(
        self,
        shape: tuple[int, ...],
        dtype: Any,
        needs: bool = True,
        *,
        h0: bool = False,
        reset: bool = False,
    ) -> dict[str, int]:
        """{name: bytes} kept of an input of `shape`; `needs`: it wants a gradient (and so
        does h0, if there is one)."""
        D = getattr(self, WEIGHTS[-1]).shape[0]  # of a gain
        if len(shape) != 3 or shape[2] != D:
            raise ShapeError(
                f"HelixBlock.predict_saved of a block of width {D} takes a shape "
                f"(B, T, {D}); got {tuple(shape)}."
            )
        wanted = {name for name in WEIGHTS if getattr(self, name).requires_grad}
        if needs:
            wanted |= {"x", "h0"}
        return predict_saved(
            self.mode, self.policy, shape, dtype, needs=wanted, h0=h0, reset=reset
        )
